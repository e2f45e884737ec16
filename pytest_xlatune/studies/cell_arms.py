"""What studies whose arms are cells do alike: nodes, pairs of nodes, batch sizes, commits.

The profile stays as deployed; what an arm varies is in its cell. No such arm has to run, so there
is no reference, and verdicts come at once when the last trial is over. Of a failed run it says
whether the nodes may be at fault: one that a person cancelled, or that the scheduler or a hub lost,
accuses no node. Plans nothing.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from msgspec.structs import replace

from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import Message, at_most, say
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.record import digest
from pytest_xlatune.model.result import Conclusion, State, TrialResult, Verdict, VerdictKind
from pytest_xlatune.model.trial import Arm, Trial
from pytest_xlatune.studies import (
    NEVER,
    NOT_YET,
    Answer,
    Answered,
    Ask,
    History,
    LossRule,
    OnNodeFailure,
    Policy,
    Question,
)
from pytest_xlatune.studies.staged import StagedStudy, W, Walk
from pytest_xlatune.studies.trials import is_ours
from pytest_xlatune.studies.verdicts import level_kind, named, told

C = TypeVar("C", bound="CellArms[Any]")


class CellWalk(Walk[C]):
    """A walk of a study whose arms are cells.

    Attributes:
        results: its scored trials in a history, by id.
    """

    def __init__(self, study: C, history: History) -> None:
        super().__init__(study)
        self.results: Mapping[str, TrialResult] = {
            each.trial.id: each
            for each in history
            if each.trial.protocol.is_scored
            and is_ours(each.trial, protocols=study.protocols, study=study.name)
        }

    def result(self, trial: Trial) -> TrialResult | None:
        """Return the result of a trial so far; None where there is none."""
        return self.results.get(trial.id)

    def arms_of(self, trial: Trial) -> Sequence[str]:
        """Return the arms that a trial tells of."""
        return (trial.arm,)

    @cached_property
    def by_arm(self) -> dict[str, list[TrialResult]]:
        """The results of all stages by arm, in the order of the stages; once the walk has ended."""
        found: dict[str, list[TrialResult]] = {each.id: [] for each in self.study.arms(())}
        for each in self.of(self.planned):
            for arm in self.arms_of(each.trial):
                found[arm].append(each)
        return found


class CellArms(StagedStudy[W], frozen=True, kw_only=True):
    """A study whose arms are cells, run as deployed: none has to run, so there is no reference."""

    @property
    def policy(self) -> Policy:
        """A cell that cannot run on its nodes is an answer; no loss is compared with another's."""
        return Policy(on_node_failure=OnNodeFailure.VERDICT, loss=LossRule.NONE)

    @property
    @abstractmethod
    def ids(self) -> Sequence[str]:
        """The ids of its arms, one for each of its cells."""

    @cached_property
    def every_arm(self) -> tuple[Arm, ...]:
        """Its cells as arms: all that it may run."""
        return tuple(
            Arm(id=name, cell_digest=cell.digest, profile=BASELINE)
            for name, cell in zip(self.ids, self.cells, strict=True)
        )

    @cached_property
    def protocols(self) -> Mapping[str, Protocol]:
        """Digest of a cell -> how its trials are run and scored."""
        return {each.digest: each.protocol for each in self.cells}

    def trial_of(self, arm: Arm, stage: str, *, block: int = 0, position: int = 0) -> Trial:
        """Return the trial of an arm in a stage."""
        return Trial(
            arm=arm.id,
            cell_digest=arm.cell_digest,
            profile=arm.profile,
            protocol=self.protocols[arm.cell_digest],
            study=self.name,
            stage=stage,
            block=block,
            position=position,
        )

    def block(self, stage: str, number: int, arms: Iterable[Arm]) -> tuple[Trial, ...]:
        """Return a block of these arms in a random order of its own."""

        def drawn(arm: Arm) -> str:
            return digest([self.seed, number, arm.cell_digest])

        return tuple(self.trial_of(arm, stage, block=number) for arm in sorted(arms, key=drawn))

    def arms(self, history: History) -> tuple[Arm, ...]:
        """Return all that it compares: each cell that it may run."""
        del history
        return self.every_arm

    def answer(self, history: History, question: Question) -> Answer:
        """Return the verdict on an arm, once everything is over."""
        if question.about in (Ask.REFERENCE, Ask.SLOT, Ask.RANKED):
            return NEVER
        if question.about in (Ask.BEST, Ask.PROVEN):
            return Answer(state=Answered.YES)
        if self.propose(history):
            return NOT_YET
        verdict = self.conclude(history).verdict(question.name)
        return NEVER if verdict is None else Answer(state=Answered.YES, verdict=verdict)


class RankedCells(CellArms[W], frozen=True, kw_only=True):
    """Cells of which one may be recommended; one that could not be measured has no verdict."""

    @abstractmethod
    def best(self, conclusion: Conclusion) -> str:
        """Return the id of the recommended arm; "" where there is none."""

    def answer(self, history: History, question: Question) -> Answer:
        """Return the verdict on an arm, or the recommended one, once everything is over."""
        if question.about in (Ask.REFERENCE, Ask.SLOT, Ask.RANKED):
            return NEVER
        if question.about is not Ask.PROVEN and self.propose(history):
            return NOT_YET
        found = self.conclude(history)
        if question.about in (Ask.BEST, Ask.PROVEN):
            return named(self.best(found), self.arms(history))
        return told(found.verdict(question.name))


def decided(verdict: Verdict, kind: VerdictKind, *reasons: Message) -> Verdict:
    """Return a verdict of a kind, why in front of what was known of it."""
    return replace(verdict, kind=kind, reasons=(*reasons, *verdict.reasons))


def undecided(verdict: Verdict, *reasons: Message) -> Verdict:
    """Return the verdict on an arm of which nothing is shown, and nothing excluded."""
    return decided(verdict, VerdictKind.INCONCLUSIVE, *reasons)


def not_accused(verdict: Verdict, *reasons: Message) -> Verdict:
    """Return the verdict on an arm that is not low: EQUIVALENT where its interval shows that."""
    return decided(verdict, level_kind(verdict), *reasons)


def dropped(verdict: Verdict, *reasons: Message) -> Verdict:
    """Return the verdict on an arm that cannot run: its test fails."""
    return replace(decided(verdict, VerdictKind.INVALID, *reasons), can_run=False)


# verdicts on arms that are not accused
LEVEL = (VerdictKind.EQUIVALENT, VerdictKind.SCREENED)
_WORST_FIRST = (VerdictKind.INVALID, VerdictKind.SLOWER, VerdictKind.INCONCLUSIVE)


def worst_first(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return verdicts in the order of a report: the worst kind first, then the greatest loss."""

    def rank(each: Verdict) -> tuple[int, float]:
        order = _WORST_FIRST.index(each.kind) if each.kind in _WORST_FIRST else len(_WORST_FIRST)
        return order, each.delta or 0.0

    return sorted(verdicts, key=rank)


_NAMED = {
    VerdictKind.INVALID: "not measured: {arms}",
    VerdictKind.SLOWER: "slower: {arms}",
    VerdictKind.INCONCLUSIVE: "neither shown nor excluded: {arms}",
    VerdictKind.FASTER: "faster: {arms}",
}
_MOST_NAMED = 8


def in_a_sentence(verdicts: Sequence[Verdict]) -> Message:
    """Return which arms are slower, and by how much, which have no figure, and which are open."""
    parts = []
    for kind, text in _NAMED.items():
        arms = [_with_change(each) for each in verdicts if each.kind is kind]
        if arms:
            parts.append(say(text, arms=at_most(_MOST_NAMED, arms)))
    return say("{parts:; }", parts=parts) if parts else say("none is shown to be slow")


def _with_change(verdict: Verdict) -> Message:
    if verdict.delta is None or verdict.ci95 is None or verdict.kind is VerdictKind.INVALID:
        return say("{arm}", arm=verdict.arm)
    low, high = verdict.ci95
    text = "{arm} {change:percent} ({low:percent} to {high:percent})"
    return say(text, arm=verdict.arm, change=verdict.delta, low=low, high=high)


def refuse_unless_positive(what: str, **values: float | None) -> None:
    """Refuse a demand that is no positive, finite number; None demands nothing.

    Raises:
        ConfigError: naming the study `what`, and the demand.
    """
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"{what}: {name} is {value}, expected a positive number")


def refuse_nodes(names: Sequence[str], *, least: int, study: str) -> None:
    """Refuse a node list of fewer nodes, or that names one twice, in whatever case.

    Args:
        names: the list.
        least: how many are needed.
        study: its kind, e.g. `node`.

    Raises:
        ConfigError: with the list.
    """
    if len(names) < least:
        raise ConfigError(
            f"a {study} study compares its nodes with each other: {len(names)} nodes are named, "
            f"at least {least} are needed (--xlatune-nodelist 'node[001-008]')"
        )
    if len({each.lower() for each in names}) < len(names):
        raise ConfigError(
            f"the node list {','.join(names)} names a node twice; name each node once"
        )


def waves_in(nodelists: Iterable[Sequence[str]]) -> int:
    """Return how many trials of equal length follow one another, where node lists are disjoint.

    Args:
        nodelists: of the trials, in their order; one without names is this machine.
    """
    free: dict[str, int] = {}  # node -> trials before it can take another
    for names in nodelists:
        nodes = tuple(names) or ("",)
        free.update(dict.fromkeys(nodes, 1 + max(free.get(each, 0) for each in nodes)))
    return max(free.values(), default=0)


# what ends a trial and says nothing of its cell, whatever its arms are
_OF_THE_SITE = frozenset(
    {
        *(FailureClass.CANCELLED, FailureClass.PREEMPTED, FailureClass.LOST),
        *(FailureClass.REQUEUED, FailureClass.NEVER_STARTS),
        *(FailureClass.HUB, FailureClass.GITHUB_5XX, FailureClass.SLURM_CONTROLLER_DOWN),
        *(FailureClass.QUEUE_LIMIT, FailureClass.SUBMISSION_REFUSED, FailureClass.BUDGET),
        *(FailureClass.LOG_UNREADABLE, FailureClass.OUTCOME_UNREADABLE),
    }
)
# nor does this say anything of a node, or of a commit
OF_THE_SWEEP = frozenset({FailureClass.UNKNOWN_FLAG, FailureClass.CONFIG_ERROR})
OF_THE_NODES = frozenset(
    {
        *(FailureClass.NODE_FAIL, FailureClass.NODE_DRAIN),
        *(FailureClass.GPU_HARDWARE, FailureClass.GPU_ECC, FailureClass.NIC_FAULT),
    }
)
_STATES = {
    State.CANCELLED: FailureClass.CANCELLED,
    State.PREEMPTED: FailureClass.PREEMPTED,
    State.LOST: FailureClass.LOST,
    State.REQUEUED: FailureClass.REQUEUED,
    State.NODE_FAIL: FailureClass.NODE_FAIL,
}


def is_excused(result: TrialResult, by: Collection[str] = OF_THE_SWEEP) -> bool:
    """Whether a trial without a score says nothing of its nodes, or of what it was run for.

    Args:
        result: of the trial.
        by: failure classes that excuse it, beside those that excuse every trial.
    """
    excuses = {*_OF_THE_SITE, *by}
    if result.outcome is not None and _STATES.get(result.outcome.state) in excuses:
        return True
    found = result.asking or result.findings
    return bool(found) and found[-1].cls in excuses
