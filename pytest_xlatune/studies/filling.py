"""What may fill the slots of a wave: candidates by evidence, and no stack that cannot be worth it.

Of single settings a candidate that has a trial stays. One that needs no run, that repeats another
or that the catalog objects to gives its slot to the next. What a confirmation showed to gain
nothing is in no new stack. Spends no error rate: all this is read off evidence, off the screen, or
off blocks that are over.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.profile import BASELINE, Effective, Profile
from pytest_xlatune.model.result import EvidenceResult, TrialResult, TrialStatus, VerdictKind
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies import History
from pytest_xlatune.studies.derived import (
    Placed,
    Singles,
    choices,
    placed,
)
from pytest_xlatune.studies.look import begun, frozen_arms, is_spare, look_at_design
from pytest_xlatune.studies.trials import Past


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledWave:
    """What a rule comes to at one moment.

    Attributes:
        profiles: that it adds, in order; those that a compile check took out included.
        slotted: those of them that have a slot.
        is_open: whether more could come.
        is_begun: whether those that there are run before more can come.
        awaits_evidence: whether an evidence run has to say so.
        told: how, and what was passed over.
    """

    profiles: tuple[Profile, ...]
    slotted: tuple[Profile, ...]
    is_open: bool = False
    is_begun: bool = False
    awaits_evidence: bool = False
    told: tuple[Message, ...] = ()


def choose(
    rule: Singles,
    *,
    evidence: EvidenceResult | None,
    planned: Mapping[str, TrialResult],
    profiles: Sequence[Profile],
    effective: Effective,
    why_not: Callable[[Profile], Message | None],
) -> FilledWave:
    """Return the candidates that have a slot, in their order, and those that need none.

    Args:
        rule: of the wave.
        evidence: of the baseline; None where there is none yet.
        planned: profile -> its trial in the wave.
        profiles: those that the sweep has besides.
        effective: of the cell.
        why_not: why a candidate is not worth a trial; None where nothing says so.
    """
    order = placed(rule, evidence)
    kept = {
        candidate.profile.id: planned[candidate.profile.id]
        for candidate in order
        if candidate.profile.id in planned
        and candidate.profile.same_as(planned[candidate.profile.id].trial.profile)
    }
    # a compile check took them out: the next ones take their places
    unrun = {name for name, result in kept.items() if result.not_run is not None}
    free = rule.slots - len(kept.keys() - unrun)
    if rule.evidence and evidence is None and free > 0:
        own = tuple(result.trial.profile for result in kept.values())
        return FilledWave(profiles=own, slotted=own, is_open=True, awaits_evidence=True)
    ids = {each.id for each in profiles}
    seen = {effective.key(each): each.id for each in (BASELINE, *profiles)}
    refused: dict[str, Message] = {}
    chosen: list[Profile] = []
    for number, candidate in enumerate(order, start=1):
        profile, key = candidate.profile, effective.key(candidate.profile)
        if profile.id in kept:
            chosen.append(kept[profile.id].trial.profile)
        else:
            if profile.id in ids:
                why: Message | None = say("the sweep declares it itself")
            elif key in seen:
                why = say("the same settings as {profile}", profile=seen[key])
            else:
                why = why_not(profile)
            if why is not None:
                refused[profile.id] = why
                continue
            if free <= 0:
                continue
            free -= 1
            chosen.append(_noted(candidate, number=number, of=len(order)))
        seen.setdefault(key, profile.id)
    told = choices(
        rule, order, evidence=evidence, chosen=[each.id for each in chosen], refused=refused
    )
    slotted = tuple(each for each in chosen if each.id not in unrun)[: rule.slots]
    return FilledWave(profiles=tuple(chosen), slotted=slotted, told=told)


def evidence_of(history: History, run: Trial) -> EvidenceResult | None:
    """Return the latest evidence of the baseline that was read, or that could not be recorded.

    Args:
        history: with the evidence trials among it.
        run: the evidence run of the cell as deployed.
    """
    own = [
        result
        for result in history
        if isinstance(result, EvidenceResult)
        and result.trial.is_baseline
        and result.trial.cell_digest == run.cell_digest
    ]
    read = [result for result in own if result.is_read]
    told = [result for result in read if result.shares is not None]
    lost = [
        result
        for result in own
        if result.trial.id == run.id
        and result.status.is_final
        and result.status is not TrialStatus.MEASURED
    ]
    return next(reversed([*lost, *read, *told]), None)


def kinds_of(evidence: EvidenceResult | None) -> tuple[str, ...] | None:
    """Return the collectives of the program, as evidence names them; None where none does."""
    shares = evidence.shares if evidence is not None else None
    return None if shares is None else shares.kinds


def _noted(placed: Placed, *, number: int, of: int) -> Profile:
    """Return a candidate with its place; without evidence as it was declared."""
    if placed.why is None:
        return placed.profile
    place = say(
        "number {number} of {of} by the evidence ({why})", number=number, of=of, why=placed.why
    )
    return replace(placed.profile, origin=place)


def without_gain(past: Past) -> frozenset[str]:
    """Return the arms that a confirmation showed to be level with the baseline, or slower.

    None of them before all its blocks are over.
    """
    design = begun(past)
    own = {key: result for key, result in past.confirm.items() if not is_spare(result.trial)}
    last = max((key.block for key in own), default=0)
    if design is None or last < design.blocks:
        return frozenset()
    if not all(result.status.is_final for result in own.values()):
        return frozenset()
    kept = frozen_arms(past, after=last - 1)
    look = look_at_design(past, design, kept)
    level = (VerdictKind.EQUIVALENT, VerdictKind.SLOWER)
    return frozenset(arm for arm, kind in look.kinds.items() if kind in level)
