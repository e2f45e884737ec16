"""What studies whose arms are cells do alike: nodes, pairs of nodes, batch sizes, commits.

The profile stays as deployed; what an arm varies is in its cell. No such arm has to run, so there
is no reference, and verdicts come at once when the last trial is over. Of a failed run it says
whether the nodes may be at fault: one that a person cancelled, or that the scheduler or a hub lost,
accuses no node.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

from msgspec.structs import replace

from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import CLASS_OF_STATE, FailureClass
from pytest_xlatune.model.message import Message, at_most, say
from pytest_xlatune.model.pairs import CellsRecord
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.record import Real, digest
from pytest_xlatune.model.result import Conclusion, TrialResult, Verdict, VerdictKind
from pytest_xlatune.model.trial import Arm, Trial
from pytest_xlatune.stats.design import t_quantile
from pytest_xlatune.studies import (
    NEVER,
    NOT_YET,
    Aim,
    Answer,
    Answered,
    Ask,
    Decision,
    DeclaredStudy,
    History,
    OnNodeFailure,
    Outlook,
    Policy,
    Question,
    Study,
    name_of,
    remembered,
)
from pytest_xlatune.studies.trials import is_ours, usable
from pytest_xlatune.studies.verdicts import as_answer, changed, level_kind, named

C = TypeVar("C", bound="CellArms")
_MAD_DF = 0.37  # efficiency of a median absolute deviation: degrees of freedom per further value


class _StageOpenError(Exception):
    """A stage is not over: the walk ends here."""


class CellWalk(ABC, Generic[C]):
    """How far one history of a study reaches: its stages in `walk`, the answer in `conclusion`.

    A walk runs one stage after the other, in the order in which things happen. Where a stage is not
    over the walk ends, and its missing trials are due. Plan and findings are one: the conclusion
    rests on what the walk saw.

    Attributes:
        results: its scored trials in a history, by id: the order of arrival says nothing.
        planned: the trials of all stages so far, in order.
        pending: those of the last stage that are not over.
        later: how many are likely to follow those, such that cannot be planned yet included.
    """

    def __init__(self, study: C, history: History) -> None:
        self.study = study
        self.results: Mapping[str, TrialResult] = {
            result.trial.id: result
            for result in sorted(history, key=lambda result: result.trial.id)
            if result.trial.protocol.is_scored
            and is_ours(result.trial, protocols=study.protocols, study=study.name)
        }
        self.planned: list[Trial] = []
        self.pending: tuple[Trial, ...] = ()
        self.later = 0

    @abstractmethod
    def walk(self) -> None:
        """Run the stages of the study, the first one first."""

    @abstractmethod
    def conclusion(self) -> Conclusion:
        """Return what follows from the walk, however far it came."""

    def run(self, trials: Sequence[Trial], *, later: int = 0) -> list[TrialResult]:
        """Return the results of a stage, in its order; the walk ends here where one is not over.

        `later` trials are likely to follow it.
        """
        self.planned += trials
        self.pending = tuple(trial for trial in trials if self.over(trial) is None)
        if self.pending:
            self.later = later
            raise _StageOpenError
        return self.results_of(trials)

    def over(self, trial: Trial) -> TrialResult | None:
        """Return the result of a trial that is over; None of another."""
        result = self.results.get(trial.id)
        return result if result is not None and result.status.is_final else None

    def value(self, trial: Trial) -> float | None:
        """Return the log score of a trial; None where there is none."""
        result = self.over(trial)
        score = usable(result) if result is not None else None
        return None if score is None else score.value

    def results_of(self, trials: Iterable[Trial]) -> list[TrialResult]:
        """Return the results of trials, as far as there are any."""
        return [self.results[trial.id] for trial in trials if trial.id in self.results]

    def concluded(
        self,
        verdicts: Iterable[Verdict],
        record: CellsRecord,
        *,
        alpha: float,
        notes: Iterable[Message] = (),
        reference: Verdict | None = None,
    ) -> Conclusion:
        """Return the conclusion as far as the walk came; the record says what was declared."""
        verdicts = tuple(verdicts)
        mde80 = next((verdict.mde80 for verdict in verdicts if verdict.mde80), None)
        return Conclusion(
            reference=reference,
            verdicts=verdicts,
            record=replace(record, peak_tflops=self.study.asked.peak_tflops, mde80=mde80),
            alpha=alpha,
            complete=self.is_over,
            notes=tuple(notes),
        )

    @property
    def is_over(self) -> bool:
        """Whether every stage is."""
        return not self.pending

    def arms_of(self, trial: Trial) -> Sequence[str]:
        """Return the arms that a trial tells of."""
        return (trial.arm,)

    @cached_property
    def by_arm(self) -> dict[str, list[TrialResult]]:
        """The results of all stages by arm, in the order of the stages; once the walk has ended."""
        results: dict[str, list[TrialResult]] = {arm.id: [] for arm in self.study.compared(())}
        for result in self.results_of(self.planned):
            for arm in self.arms_of(result.trial):
                results[arm].append(result)
        return results


class DeclaredCells(DeclaredStudy, frozen=True, kw_only=True):
    """A study of cells, as a sweep file declares it.

    Attributes:
        peak_tflops: TFLOP/s that one device can do, for MFU; None is as logs print it.
    """

    positive: ClassVar[tuple[str, ...]] = ()  # demands; None demands nothing
    peak_tflops: Real | None = None

    def __post_init__(self) -> None:
        for name in ("peak_tflops", *self.positive):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{self.kind}: {name} is {value}, expected a positive number")


class CellArms(Study, frozen=True, kw_only=True):
    """A study whose arms are cells, run as deployed: none has to run, so there is no reference.

    Attributes:
        walk_class: what it makes of a history.
        asked: what the sweep file declares.
        budget: jobs that it may cost.
        seed: of the random orders, where a study draws any.
        loss_tolerance: relative distance of losses at which two runs compute something else.
    """

    walk_class: ClassVar[type[CellWalk[Any]]]
    asked: Any = None
    budget: int = 50

    @cached_property
    def name(self) -> str:
        """The study's word, and which one it is where that was said."""
        return name_of(self.asked.kind, *filter(None, [self.asked.key]))

    @property
    def most_jobs(self) -> int:
        """What it costs at most."""
        return self.budget

    def refuse_budget(self, what: str, *, least: int, most: int) -> None:
        """Refuse a budget below the `least` jobs that it needs, as `what` says; `most` it takes."""
        if self.budget < least:
            raise ConfigError(
                f"{what}, the budget is {self.budget}; ask for --xlatune-budget {most}, "
                "which is the most that it takes"
            )

    def refuse_nodes(self, names: Sequence[str], *, least: int) -> None:
        """Refuse a list of fewer nodes than `least`, or that names one twice, in whatever case."""
        if len(names) < least:
            raise ConfigError(
                f"a study of {self.asked.kind} compares nodes with each other: {len(names)} nodes "
                f"are named, at least {least} are needed (--xlatune-nodelist 'node[001-008]')"
            )
        if len({name.lower() for name in names}) < len(names):
            raise ConfigError(
                f"the node list {','.join(names)} names a node twice; name each node once"
            )

    @remembered
    def walked(self, history: History) -> Any:
        """Return the walk as far as a history reaches."""
        progress = self.walk_class(self, history)
        with suppress(_StageOpenError):
            progress.walk()
        return progress

    @remembered
    def decide(self, history: History) -> Decision:
        """Return the trials of the stage that is not over, and what follows from the walk."""
        progress = self.walked(history)
        arms = self.compared(history)
        return Decision(due=progress.pending, arms=arms, concluded=progress.conclusion)

    @remembered
    def outlook(self, history: History) -> Outlook:
        """Return what is still to come: trials on the nodes of others run beside them."""
        progress = self.walked(history)
        left = len(progress.pending) + progress.later
        trials = (*(result.trial for result in progress.results.values()), *progress.pending)
        return Outlook(
            ahead=progress.pending,
            left=left,
            at_most=left,
            rounds=left,
            places={trial.id: place for trial in trials if (place := self.place_of(trial))},
            write_lines=lambda: self.outline,
        )

    @property
    def outline(self) -> tuple[Message, ...]:
        """What a plan says of it: its trials, and what they can show."""
        return ()

    def place_of(self, trial: Trial) -> Message | None:
        """Return where a trial stands, e.g. `round 3 of about 7`."""
        del trial
        return None

    @property
    def policy(self) -> Policy:
        """A cell that cannot run on its nodes is an answer; a node that runs alone is asked too."""
        is_alone = self.traits.cell_nodes == 1
        return Policy(on_node_failure=OnNodeFailure.VERDICT, asks_nodes=is_alone)

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
        return {cell.digest: cell.protocol for cell in self.cells}

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
        drawn = sorted(arms, key=lambda arm: digest([self.seed, number, arm.cell_digest]))
        return tuple(self.trial_of(arm, stage, block=number) for arm in drawn)

    def compared(self, history: History) -> tuple[Arm, ...]:
        """Return all that it compares: each cell that it may run."""
        del history
        return self.every_arm

    def best(self, conclusion: Conclusion) -> str:
        """Return the id of the recommended arm; "" where there is none."""
        del conclusion
        return ""

    def answer(self, history: History, question: Question) -> Answer:
        """Return the verdict on an arm, or the recommended one, once everything is over."""
        if question.about in (Ask.REFERENCE, Ask.SLOT, Ask.RANKED):
            return NEVER
        decision = self.decide(history)
        if question.about is not Ask.PROVEN and decision.due:
            return NOT_YET
        if question.about in (Ask.BEST, Ask.PROVEN):
            return named(self.best(decision.conclusion), decision.arms)
        verdict = decision.conclusion.verdict(question.name)
        if verdict is not None and self.traits.aim is Aim.ACCUSES:
            return Answer(state=Answered.YES, verdict=verdict)  # what cannot run is a finding too
        return as_answer(verdict)


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


def within_spread(verdict: Verdict, change: float, *, sigma: float, n: int) -> Verdict:
    """Return a verdict with the change of a single run, a log ratio to the level of all.

    Its interval comes from `sigma`, the robust spread of the single runs of all `n` arms.
    """
    reach = t_quantile(0.975, max(_MAD_DF * (n - 1), 1.0)) * sigma
    return changed(verdict, change, (change - reach, change + reach))


ACCUSED = (VerdictKind.INVALID, VerdictKind.SLOWER)
LEVEL = (VerdictKind.EQUIVALENT, VerdictKind.SCREENED)  # of arms that are not accused
# the kinds that are named in a sentence; these and their order are those of a report
_NAMED = {
    VerdictKind.INVALID: "not measured: {arms}",
    VerdictKind.SLOWER: "slower: {arms}",
    VerdictKind.INCONCLUSIVE: "neither shown nor excluded: {arms}",
    VerdictKind.FASTER: "faster: {arms}",
}
_MOST_NAMED = 8


def worst_first(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return verdicts in the order of a report: the worst kind first, then the greatest loss."""
    worst = [*_NAMED][:3]

    def rank(verdict: Verdict) -> tuple[int, float]:
        order = worst.index(verdict.kind) if verdict.kind in worst else len(worst)
        return order, verdict.delta or 0.0

    return sorted(verdicts, key=rank)


def in_a_sentence(verdicts: Sequence[Verdict]) -> Message:
    """Return which arms are slower, and by how much, which have no figure, and which are open."""
    parts = []
    for kind, text in _NAMED.items():
        arms = [_with_change(verdict) for verdict in verdicts if verdict.kind is kind]
        if arms:
            parts.append(say(text, arms=at_most(_MOST_NAMED, arms)))
    return say("{parts:; }", parts=parts) if parts else say("none is shown to be slow")


def _with_change(verdict: Verdict) -> Message:
    if verdict.delta is None or verdict.ci95 is None or verdict.kind is VerdictKind.INVALID:
        return say("{arm}", arm=verdict.arm)
    low, high = verdict.ci95
    text = "{arm} {change:percent} ({low:percent} to {high:percent})"
    return say(text, arm=verdict.arm, change=verdict.delta, low=low, high=high)


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


def is_excused(result: TrialResult, by: Collection[str] = OF_THE_SWEEP) -> bool:
    """Whether a trial without a score says nothing of its nodes, or of what it was run for.

    Failure classes `by` excuse it, beside those that excuse every trial.
    """
    excuses = {*_OF_THE_SITE, *by}
    if result.outcome is not None and CLASS_OF_STATE.get(result.outcome.state) in excuses:
        return True
    findings = result.asking or result.findings
    return bool(findings) and findings[-1].cls in excuses
