"""A wave of single settings, chosen from many by what an evidence run of the baseline shows.

Slots decide how many are measured; which ones follows from where the time of a step goes, never
from a score: the error rates of the confirmation do not depend on it. Parts of a step share the
slots in proportion to what could be saved there, so that thirty variables of one library do not
keep the flags of another part out. This module reads no ledger and no catalog.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from pytest_xlatune.errors import ConfigError
from pytest_xlatune.profiles import Profile, check_unique
from pytest_xlatune.records import Record
from pytest_xlatune.results import COLLECTIVES, EvidenceResult, Shares

# An assumption, and a mild one: time that nothing hides may be hidden; kernels stay what they are
COMPUTE_COUNTS = 0.1
NO_AIM = "an evidence run does not show what it acts on"
_NAMED = 6  # profiles that a sentence lists by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Singles(Record):
    """A wave of single settings: as many of the candidates as there are slots.

    Attributes:
        wave: the marker of the wave that measures them.
        slots: how many at most; they are part of the budget from the start.
        candidates: in the order in which they are worth trying where nothing is known, e.g.
            `catalog.profiles_for("PP")`.
        evidence: whether the baseline is run once before, with profiler and dump, to order them;
            one job beside the budget. What is recorded already is not run again.
        aims: profile -> the parts of a step that it acts on; the catalog says it.

    Raises:
        ConfigError: no slot, no candidate, or two of one id.
    """

    kind: ClassVar[str] = "single"
    wave: str = "wave2"
    slots: int
    candidates: tuple[Profile, ...]
    evidence: bool = True
    aims: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ConfigError(
                f"{self.kind} of {self.wave}: {self.slots} slots, expected one or more"
            )
        if not self.candidates:
            raise ConfigError(
                f"single settings in {self.wave}: no candidate is given; name some, e.g. "
                "candidates=catalog.profiles_for('PP')"
            )
        check_unique(self.candidates, where=f"the candidates of {self.wave}")

    def __hash__(self) -> int:
        return hash((self.wave, self.slots, tuple(each.id for each in self.candidates)))

    @property
    def words(self) -> str:
        """What fills the slots."""
        by = "by an evidence run of the baseline" if self.evidence else "in declared order"
        return f"single settings out of {len(self.candidates)}, {by}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A candidate in its place, and why it is there; "" where it is the declared order."""

    profile: Profile
    why: str = ""


def placed(rule: Singles, evidence: EvidenceResult | None) -> tuple[Placed, ...]:
    """Return the candidates in the order in which slots are given to them.

    Each place goes to the largest weight divided by one more than the places that its part of the
    step already has (the divider method of D'Hondt); equal ones stay in declared order.

    Args:
        rule: whose candidates.
        evidence: of the baseline; None, or one without shares, leaves the declared order.
    """
    own = [replace(each, wave=rule.wave) for each in rule.candidates]
    shares = evidence.shares if evidence is not None else None
    if shares is None:
        return tuple(Placed(profile=each) for each in own)
    known = {each.id: _weighed(rule.aims.get(each.id, ()), shares) for each in own}
    left, taken, order = list(own), Counter[str](), []
    while left:
        best = max(left, key=lambda each: _claim(known[each.id], taken))  # the first of equals
        left.remove(best)
        taken[known[best.id].part] += 1
        order.append(Placed(profile=best, why=known[best.id].why))
    return tuple(order)


def sentences(
    rule: Singles,
    order: Sequence[Placed],
    *,
    evidence: EvidenceResult | None,
    chosen: Iterable[str],
    refused: Mapping[str, str],
) -> tuple[str, ...]:
    """Say which candidates are measured and which are cut, and why.

    Args:
        rule: of the wave.
        order: of its candidates.
        evidence: that the order is by.
        chosen: ids that have a slot, or had one until compiling settled them.
        refused: id -> why it gets no slot whatever its place.
    """
    kept = set(chosen)
    own = [each for each in order if each.profile.id in kept]
    cut = [each for each in order if each.profile.id not in kept and each.profile.id not in refused]
    said = f"{rule.wave}: {_by(rule, evidence)}"
    if own:
        numbered = [f"{number} {each.profile.id}" for number, each in enumerate(own, start=1)]
        said += f": {_grouped(numbered, [each.why for each in own])}"
    slots = f"{rule.slots} slot" + "s" * (rule.slots > 1)
    named = _grouped([each.profile.id for each in cut], [each.why for each in cut])
    return (
        said,
        *([f"{rule.wave}: cut, for it has {slots}: {named}"] if cut else []),
        *left_out(rule.wave, refused),
    )


def left_out(wave: str, refused: Mapping[str, str]) -> tuple[str, ...]:
    """Say in a sentence, or none, what got no slot whatever it promised: id -> why."""
    named = _grouped(tuple(refused), tuple(refused.values()))
    return (f"{wave}: left out: {named}",) if refused else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Weight:
    part: str  # whose places it counts among
    value: float
    why: str


def _claim(weight: _Weight, taken: Counter[str]) -> float:
    # what is in no program stays last, however few of it were placed
    return weight.value / (1 + taken[weight.part]) if weight.value > 0 else weight.value


def _weighed(aims: Sequence[str], shares: Shares) -> _Weight:
    """Weigh what a profile acts on by what a step spends there with nothing beside it."""
    present = [each for each in aims if not _is_absent(each, shares)]
    if not aims:
        return _Weight(part="", value=0.0, why=NO_AIM)
    if not present:
        return _Weight(part="", value=-1.0, why=f"the program has no {' and no '.join(aims)}")
    found = {each: shares.of_step[each] for each in present if each in shares.of_step}
    if not found:
        why = f"{' and '.join(present)}: no trace tells the time that it costs"
        return _Weight(part=present[0], value=0.0, why=why)
    largest = max(found, key=lambda each: found[each])
    if largest == "compute":
        why = f"compute, {_share(found[largest])} of a step"
        return _Weight(part=largest, value=COMPUTE_COUNTS * found[largest], why=why)
    what = " and ".join(found)
    idle = "idle" if largest == "idle" else f"{what} alone"
    total = sum(found.values())
    return _Weight(part=largest, value=total, why=f"{idle}, {_share(total)} of a step")


def _is_absent(part: str, shares: Shares) -> bool:
    return part in COLLECTIVES and shares.kinds is not None and part not in shares.kinds


def _share(value: float) -> str:
    return f"{100 * value:.1f} %"


def _by(rule: Singles, evidence: EvidenceResult | None) -> str:
    if not rule.evidence and evidence is None:
        return "candidates in declared order"
    if evidence is None:
        return "candidates in declared order, for the baseline has no evidence"
    if evidence.shares is None:
        why = evidence.reason or "it left nothing that says where the time of a step goes"
        return f"candidates in declared order, for the evidence run {evidence.trial.id}: {why}"
    return f"candidates by the evidence of {evidence.trial.id}"


def _grouped(names: Sequence[str], reasons: Sequence[str]) -> str:
    """Name profiles in their order, those of one reason together."""
    groups: dict[str, list[str]] = {}
    for name, why in zip(names, reasons, strict=True):
        groups.setdefault(why, []).append(name)
    return "; ".join(_listed(each) + (f" ({why})" if why else "") for why, each in groups.items())


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    rest = f" and {more} more" if more > 0 else ""
    return ", ".join(names[:_NAMED]) + rest
