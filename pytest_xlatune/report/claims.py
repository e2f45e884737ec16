"""The claims that a test makes about a verdict; a failed `assert` shows the reasons.

    assert faster(verdict)       assert faster_by(verdict, 0.02)       assert no_regression(verdict)

Each claim uses the two-sided 95 % interval of the verdict, so a one-sided claim has an error rate
below 5 %. One trial supports no claim, and an undecided claim never passes.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import nan

from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.result import MIN_TRIALS, Verdict, VerdictKind
from pytest_xlatune.model.text import interval, percent, size

REPR_CHARS = 240  # pytest cuts out the middle of a longer text
_NO_REASON = "no reason is known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim, which is true in an `if` or an `assert` if it holds.

    Attributes:
        holds: whether the claim holds.
        text: the claim, and the figures that show whether it holds; the most important come first,
            because a failed assertion shows only the first REPR_CHARS characters.
        is_undecided: whether neither the claim nor its contrary is shown.
    """

    holds: bool
    text: str
    is_undecided: bool = False

    def __bool__(self) -> bool:
        return self.holds

    def __call__(self, *_: object, **__: object) -> Claim:
        """Refuse a call: `faster(by=0.02)` is `faster_by(0.02)`."""
        raise TypeError("a claim takes no arguments; for a margin say faster_by(0.02)")

    def __repr__(self) -> str:
        return self.text if len(self.text) <= REPR_CHARS else f"{self.text[: REPR_CHARS - 3]}..."


def faster(verdict: Verdict) -> Claim:
    """Claim that the profile was found faster, with false winners controlled over the sweep."""
    is_undecided = verdict.kind is VerdictKind.INCONCLUSIVE
    holds = verdict.kind is VerdictKind.FASTER
    return _claim(verdict, "faster", holds=holds, is_undecided=is_undecided)


def faster_by(verdict: Verdict, margin: float) -> Claim:
    """Claim a gain of more than `margin`, a fraction: 0.02 is +2 %."""
    low, high = verdict.ci95 or (nan, nan)  # every comparison with NaN is false
    holds = verdict.kind is VerdictKind.FASTER and low > margin
    words = f"faster by more than {size(margin)}"
    return _claim(verdict, words, holds=holds, is_undecided=high > margin)


def no_regression(verdict: Verdict) -> Claim:
    """Claim that a gate excludes a loss of its margin; an undecided gate does not."""
    if verdict.kind is VerdictKind.INVALID:
        return _claim(verdict, "no regression", holds=False, is_undecided=False)
    if verdict.unproved and verdict.kind is not VerdictKind.SLOWER:
        text = f"{_CANNOT_TELL}: {verdict.arm}, {_unproved_settings(verdict)}"
        return Claim(holds=False, text=text, is_undecided=True)
    has_enough_trials = verdict.n >= MIN_TRIALS and verdict.ci95 is not None
    answer = _GATE_ANSWERS[verdict.kind] if has_enough_trials else _CANNOT_TELL
    why = "; ".join(map(sentence, verdict.reasons)) or _NO_REASON
    word = answer if answer == _HOLDS else verdict.word or answer
    text = f"{word}: {verdict.arm}, {_figures(verdict)}; {why.removeprefix(f'{answer}: ')}"
    return Claim(holds=answer == _HOLDS, text=text, is_undecided=answer == _CANNOT_TELL)


_HOLDS, _CANNOT_TELL = "no regression", "cannot tell"
_GATE_ANSWERS = {
    **dict.fromkeys((VerdictKind.FASTER, VerdictKind.EQUIVALENT), _HOLDS),
    VerdictKind.SLOWER: "regression",
    **dict.fromkeys((VerdictKind.INCONCLUSIVE, VerdictKind.SCREENED), _CANNOT_TELL),
}


def _claim(verdict: Verdict, words: str, *, holds: bool, is_undecided: bool) -> Claim:
    what = f"{verdict.arm} is {words}"
    if verdict.kind is VerdictKind.INVALID:
        why = sentence(verdict.reasons[0]) if verdict.reasons else _NO_REASON
        return Claim(holds=False, text=f"{what}: refused, the measurement is invalid: {why}")
    if verdict.unproved:
        text = f"{what}: refused, {_unproved_settings(verdict)}"
        return Claim(holds=False, text=text, is_undecided=True)
    if verdict.n < MIN_TRIALS or verdict.ci95 is None:
        text = f"{what}: refused, n = {verdict.n} and no interval: confirm it first"
        return Claim(holds=False, text=text, is_undecided=True)
    shown = "holds" if holds else "not shown"
    text = f"{what}: {shown}, {_figures(verdict)}; {sentence(verdict.method)}"
    return Claim(holds=holds, text=text, is_undecided=is_undecided and not holds)


def _unproved_settings(verdict: Verdict) -> str:
    names = ", ".join(verdict.unproved)
    return f"nothing shows that {names} was in effect ({verdict.effect})"


def _figures(verdict: Verdict) -> str:
    low, high = verdict.ci95 or (None, None)
    parts = (
        "" if verdict.delta is None else f"delta {percent(verdict.delta)}",
        "no interval" if low is None or high is None else f"95 % {interval((low, high))}",
        f"n = {verdict.n}",
        str(verdict.kind),
        "" if verdict.mde80 is None else f"80 % power at {size(verdict.mde80)}",
    )
    return ", ".join(part for part in parts if part)
