"""What a test may assert of a verdict: faster, faster by x, not slower than x, within x.

A claim is true or false and says why in its own words, so that a failed `assert` explains itself.
All rest on the verdict's 95 % interval: one-sided, stricter than 5 %. One trial supports none.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_xlatune.results import Verdict, VerdictKind

MIN_TRIALS = 2
REPR_CHARS = 240  # pytest cuts the middle out of what is longer


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A claim: true in an `if` or an `assert` where it holds; its text is the evidence.

    What a failed assertion shows of it ends where pytest would cut; the figures come first.
    """

    holds: bool
    text: str

    def __bool__(self) -> bool:
        return self.holds

    def __repr__(self) -> str:
        return self.text if len(self.text) <= REPR_CHARS else f"{self.text[: REPR_CHARS - 3]}..."


def faster(verdict: Verdict) -> Claim:
    """Claim that the profile was found faster, false winners counted over the whole sweep."""
    return _claim(verdict, "faster", holds=verdict.kind is VerdictKind.FASTER)


def faster_by(verdict: Verdict, margin: float) -> Claim:
    """Claim a gain of more than `margin`; 0.02 is +2 %."""
    low = verdict.ci95[0] if verdict.ci95 else None
    holds = verdict.kind is VerdictKind.FASTER and low is not None and low > margin
    return _claim(verdict, f"faster by more than {margin:.1%}", holds=holds)


def not_slower_than(verdict: Verdict, margin: float) -> Claim:
    """Claim that a loss of `margin` or more is excluded (non-inferiority)."""
    low = verdict.ci95[0] if verdict.ci95 else None
    return _claim(
        verdict, f"not slower by {margin:.1%} or more", holds=low is not None and low > -margin
    )


def within(verdict: Verdict, margin: float) -> Claim:
    """Claim that any difference of `margin` or more is excluded (equivalence)."""
    holds = verdict.ci95 is not None and -margin < verdict.ci95[0] and verdict.ci95[1] < margin
    return _claim(verdict, f"within {margin:.1%} of the baseline", holds=holds)


def no_regression(verdict: Verdict) -> Claim:
    """Claim that a gate passes: its margin holds, and its floor. What cannot be told does not."""
    if verdict.kind is VerdictKind.INVALID:
        return _claim(verdict, "no regression", holds=False)
    enough = verdict.n >= MIN_TRIALS and verdict.ci95 is not None
    head = _GATE[verdict.kind] if enough else "cannot tell"
    why = "; ".join(verdict.reasons) or "no reason is known"
    text = f"{head}: {verdict.profile}, {_figures(verdict)}; {why.removeprefix(f'{head}: ')}"
    return Claim(holds=head == _HOLDS, text=text)


_HOLDS = "no regression"
_GATE = {
    VerdictKind.FASTER: _HOLDS,
    VerdictKind.EQUIVALENT: _HOLDS,
    VerdictKind.SLOWER: "regression",
    VerdictKind.INCONCLUSIVE: "cannot tell",
    VerdictKind.SCREENED: "cannot tell",
}


def _claim(verdict: Verdict, words: str, *, holds: bool) -> Claim:
    what = f"{verdict.profile} is {words}"
    if verdict.kind is VerdictKind.INVALID:
        why = verdict.reasons[0] if verdict.reasons else "no reason is known"
        return Claim(holds=False, text=f"{what}: refused, the measurement is invalid: {why}")
    if verdict.n < MIN_TRIALS or verdict.ci95 is None:
        text = f"{what}: refused, n = {verdict.n} and no interval: confirm it first"
        return Claim(holds=False, text=text)
    said = "holds" if holds else "not shown"
    return Claim(holds=holds, text=f"{what}: {said}, {_figures(verdict)}; {verdict.method}")


def _figures(verdict: Verdict) -> str:
    low, high = verdict.ci95 or (None, None)
    parts = (
        "" if verdict.delta is None else f"delta {verdict.delta:+.2%}",
        "no interval" if low is None or high is None else f"95 % {low:+.2%} to {high:+.2%}",
        f"n = {verdict.n}",
        str(verdict.kind),
        "" if verdict.mde80 is None else f"80 % power at {verdict.mde80:.1%}",
    )
    return ", ".join(part for part in parts if part)
