"""What all studies of cells share: studies of nodes, pairs of nodes, batch sizes, commits.

The profile stays as deployed, and an arm is a cell. No arm is required to run, so there is no
reference, and all verdicts come when the last trial is over. A failed run is evidence against its
cell, unless a person cancelled it, or the scheduler or a hub lost it.
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
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.record import Real, digest
from pytest_xlatune.model.result import CellsRecord, Conclusion, TrialResult, Verdict, VerdictKind
from pytest_xlatune.model.trial import Arm, Trial
from pytest_xlatune.stats.quantiles import t_quantile
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
    remembered,
)
from pytest_xlatune.studies.trials import is_ours, usable
from pytest_xlatune.studies.verdicts import arm_answer, as_answer, level_kind, with_change

C = TypeVar("C", bound="CellArms")
_MAD_DF = 0.37  # efficiency of a median absolute deviation: degrees of freedom per additional value


class _StageOpenError(Exception):
    """A stage is not over, so no later stage can be planned."""


class CellProgress(ABC, Generic[C]):
    """The progress of a study through its stages, after a history.

    `run_stages` goes through the stages in order and ends at the first that is not over; the
    missing trials of that stage are due. `conclusion` returns what follows. Both use the same
    attributes, so that the plan and the conclusion agree.

    Attributes:
        study: the study.
        results: id of a trial -> its result, for the scored trials of the study.
        planned: the trials of all stages so far, in order.
        pending: the trials of the last stage that are not over; () when the study is over.
        later: how many trials are likely to follow the pending ones.
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
    def run_stages(self) -> None:
        """Go through the stages of the study in order, by `stage_results` of each."""

    @abstractmethod
    def conclusion(self) -> Conclusion:
        """Return what follows from the stages so far."""

    def stage_results(self, trials: Sequence[Trial], *, later: int = 0) -> list[TrialResult]:
        """Return the results of a stage, in the order of `trials`.

        If a trial is not over, `run_stages` ends here.

        Args:
            trials: the trials of the stage.
            later: an estimate of how many trials follow the stage.
        """
        self.planned += trials
        self.pending = tuple(trial for trial in trials if self.final_result(trial) is None)
        if self.pending:
            self.later = later
            raise _StageOpenError
        return self.results_of(trials)

    def final_result(self, trial: Trial) -> TrialResult | None:
        """Return the result of the trial if it is over, else None."""
        result = self.results.get(trial.id)
        return result if result is not None and result.status.is_final else None

    def value(self, trial: Trial) -> float | None:
        """Return the log score of the trial; None if it has none."""
        result = self.final_result(trial)
        score = usable(result) if result is not None else None
        return None if score is None else score.value

    def results_of(self, trials: Iterable[Trial]) -> list[TrialResult]:
        """Return the results of those trials that have one."""
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
        """Return the conclusion so far; `record` holds the result of the study."""
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
        """Whether every stage is over."""
        return not self.pending

    def arms_of(self, trial: Trial) -> Sequence[str]:
        """Return the ids of the arms that a trial measures."""
        return (trial.arm,)

    @cached_property
    def by_arm(self) -> dict[str, list[TrialResult]]:
        """Arm id -> its results of all stages, in the order of the stages."""
        results: dict[str, list[TrialResult]] = {arm.id: [] for arm in self.study.compared(())}
        for result in self.results_of(self.planned):
            for arm in self.arms_of(result.trial):
                results[arm].append(result)
        return results


class DeclaredCells(DeclaredStudy, frozen=True, kw_only=True):
    """A study of cells, as a sweep file declares it.

    Attributes:
        positive: names of further fields that must be positive or None.
        peak_tflops: peak TFLOP/s of one device, for MFU; None takes the figure from logs.
    """

    positive: ClassVar[tuple[str, ...]] = ()
    peak_tflops: Real | None = None

    def __post_init__(self) -> None:
        for name in ("peak_tflops", *self.positive):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{self.kind}: {name} is {value}, expected a positive number")


class CellArms(Study, frozen=True, kw_only=True):
    """A study whose arms are cells, run as deployed: no arm is required, so none is a reference.

    A subclass may have the fields `seed`, the seed of its random orders, and `loss_tolerance`, the
    relative difference of losses beyond which two runs count as different.

    Attributes:
        progress_class: the class that goes through the stages.
        asked: the declaration in the sweep file.
        budget: how many jobs the study may run.
    """

    progress_class: ClassVar[type[CellProgress[Any]]]
    asked: Any = None
    budget: int = 50

    @property
    def name(self) -> str:
        """The kind of study; a subclass appends a digest if a ledger can hold several."""
        return str(self.asked.kind)

    def refuse_budget(self, what: str, *, least: int, most: int) -> None:
        """Raise ConfigError if the budget is below `least` jobs; the message starts with `what`."""
        if self.budget < least:
            raise ConfigError(
                f"{what}, the budget is {self.budget}; pass --xlatune-budget {most}, which is the "
                "most that the study takes"
            )

    def refuse_nodes(self, names: Sequence[str], *, least: int) -> None:
        """Raise ConfigError if there are fewer nodes than `least`, or one is named twice."""
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
    def progress(self, history: History) -> Any:
        """Return the progress through the stages after a history."""
        progress = self.progress_class(self, history)
        with suppress(_StageOpenError):
            progress.run_stages()
        return progress

    @remembered
    def decide(self, history: History) -> Decision:
        """Return the trials that are missing in the current stage, and the conclusion so far."""
        progress = self.progress(history)
        arms = self.compared(history)
        return Decision(due=progress.pending, arms=arms, concluded=progress.conclusion)

    @remembered
    def outlook(self, history: History) -> Outlook:
        """Return what is still to come; trials on disjoint nodes run at the same time."""
        progress = self.progress(history)
        left = len(progress.pending) + progress.later
        most = min(self.most_jobs, self.budget) - len(progress.results)
        trials = (*(result.trial for result in progress.results.values()), *progress.pending)
        return Outlook(
            ahead=progress.pending,
            left=left,
            at_most=max(left, most) if left else 0,
            places={trial.id: place for trial in trials if (place := self.place_of(trial))},
            write_lines=lambda: self.outline,
        )

    @property
    def most_jobs(self) -> int:
        """How many jobs the study takes at most, whatever they show; its budget may allow fewer."""
        return self.budget

    @property
    def outline(self) -> tuple[Message, ...]:
        """The lines of a plan about the study: its trials, and what they can show."""
        return ()

    def place_of(self, trial: Trial) -> Message | None:
        """Return the place of a trial in the study, e.g. `round 3 of about 7`; None if unknown."""
        del trial
        return None

    @property
    def policy(self) -> Policy:
        """What the study demands: a cell that cannot run is an answer, and its arm gets a verdict.

        The log of a node is read if each cell is one node.
        """
        is_alone = self.traits.cell_nodes == 1
        return Policy(on_node_failure=OnNodeFailure.VERDICT, asks_nodes=is_alone)

    @property
    @abstractmethod
    def ids(self) -> Sequence[str]:
        """The id of each arm, in the order of `cells`."""

    @cached_property
    def all_arms(self) -> tuple[Arm, ...]:
        """The cells of the study as arms, in the order of `cells`."""
        return tuple(
            Arm(id=name, cell_digest=cell.digest, profile=BASELINE)
            for name, cell in zip(self.ids, self.cells, strict=True)
        )

    @cached_property
    def protocols(self) -> Mapping[str, Protocol]:
        """Digest of a cell -> the protocol of its trials."""
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
        """Return a block of these arms in random order."""
        drawn = sorted(arms, key=lambda arm: digest([self.seed, number, arm.cell_digest]))
        return tuple(self.trial_of(arm, stage, block=number) for arm in drawn)

    def compared(self, history: History) -> tuple[Arm, ...]:
        """Return all arms that are compared: every cell that may run."""
        del history
        return self.all_arms

    def best(self, conclusion: Conclusion) -> str:
        """Return the id of the recommended arm; "" if there is none."""
        del conclusion
        return ""

    def answer(self, history: History, question: Question) -> Answer:
        """Return the verdict on an arm, or the recommended arm, once everything is over."""
        if question.about in (Ask.REFERENCE, Ask.SLOT, Ask.RANKED):
            return NEVER
        decision = self.decide(history)
        if question.about is not Ask.PROVEN and decision.due:
            return NOT_YET
        if question.about in (Ask.BEST, Ask.PROVEN):
            return arm_answer(self.best(decision.conclusion), decision.arms)
        verdict = decision.conclusion.verdict(question.name)
        if verdict is not None and self.traits.aim is Aim.ACCUSES:
            # an arm that cannot run has a verdict too
            return Answer(state=Answered.YES, verdict=verdict)
        return as_answer(verdict)


def decided(verdict: Verdict, kind: VerdictKind, *reasons: Message) -> Verdict:
    """Return the verdict with this kind, and with these reasons before its earlier ones."""
    return replace(verdict, kind=kind, reasons=(*reasons, *verdict.reasons))


def undecided(verdict: Verdict, *reasons: Message) -> Verdict:
    """Return an INCONCLUSIVE verdict: nothing is shown and nothing excluded."""
    return decided(verdict, VerdictKind.INCONCLUSIVE, *reasons)


def not_accused(verdict: Verdict, *reasons: Message) -> Verdict:
    """Return the verdict on an arm that is not slower: EQUIVALENT if its interval shows that."""
    return decided(verdict, level_kind(verdict), *reasons)


def dropped(verdict: Verdict, *reasons: Message) -> Verdict:
    """Return the verdict on an arm that cannot run, whose test fails."""
    return replace(decided(verdict, VerdictKind.INVALID, *reasons), can_run=False)


def within_spread(verdict: Verdict, change: float, *, sigma: float, n: int) -> Verdict:
    """Return a verdict with the change of a single run, a log ratio to the level of all arms.

    The interval comes from `sigma`, the robust spread over the single runs of all `n` arms.
    """
    half_width = t_quantile(0.975, max(_MAD_DF * (n - 1), 1.0)) * sigma
    return with_change(verdict, change, (change - half_width, change + half_width))


ACCUSED = (VerdictKind.INVALID, VerdictKind.SLOWER)
LEVEL = (VerdictKind.EQUIVALENT, VerdictKind.SCREENED)  # kinds of verdicts that accuse no arm
# the texts of a summary, by kind of verdict, in the order of a report
_SUMMARY_TEXTS = {
    VerdictKind.INVALID: "not measured: {arms}",
    VerdictKind.SLOWER: "slower: {arms}",
    VerdictKind.INCONCLUSIVE: "neither shown nor excluded: {arms}",
    VerdictKind.FASTER: "faster: {arms}",
}
_MOST_NAMED = 8  # a summary names at most so many arms of a kind


def worst_first(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """Return the verdicts in a report's order: the worst kind first, then the greatest loss."""
    worst_kinds = [VerdictKind.INVALID, VerdictKind.SLOWER, VerdictKind.INCONCLUSIVE]

    def rank(verdict: Verdict) -> tuple[int, float]:
        is_bad = verdict.kind in worst_kinds
        order = worst_kinds.index(verdict.kind) if is_bad else len(worst_kinds)
        return order, verdict.delta or 0.0

    return sorted(verdicts, key=rank)


def summary_sentence(verdicts: Sequence[Verdict]) -> Message:
    """Return a sentence on which arms were not measured, are slower, undecided, or faster."""
    parts = []
    for kind, text in _SUMMARY_TEXTS.items():
        arms = [_arm_and_change(verdict) for verdict in verdicts if verdict.kind is kind]
        if arms:
            parts.append(say(text, arms=at_most(_MOST_NAMED, arms)))
    return say("{parts:; }", parts=parts) if parts else say("none is shown to be slow")


def _arm_and_change(verdict: Verdict) -> Message:
    """Return the name of an arm, with its change if it has an interval."""
    if verdict.delta is None or verdict.ci95 is None or verdict.kind is VerdictKind.INVALID:
        return say("{arm}", arm=verdict.arm)
    low, high = verdict.ci95
    text = "{arm} {change:percent} ({low:percent} to {high:percent})"
    return say(text, arm=verdict.arm, change=verdict.delta, low=low, high=high)


# failures that say nothing about the cell of a trial, in any study of cells
_SITE_FAILURES = frozenset(
    {
        *(FailureClass.CANCELLED, FailureClass.PREEMPTED, FailureClass.LOST),
        *(FailureClass.REQUEUED, FailureClass.NEVER_STARTS),
        *(FailureClass.HUB, FailureClass.GITHUB_5XX, FailureClass.SLURM_CONTROLLER_DOWN),
        *(FailureClass.QUEUE_LIMIT, FailureClass.SUBMISSION_REFUSED, FailureClass.BUDGET),
        *(FailureClass.LOG_UNREADABLE, FailureClass.OUTCOME_UNREADABLE),
    }
)
# failures that say nothing about a node either: the settings of the sweep are wrong
SWEEP_FAILURES = frozenset({FailureClass.UNKNOWN_FLAG, FailureClass.CONFIG_ERROR})
NODE_FAILURES = frozenset(
    {
        *(FailureClass.NODE_FAIL, FailureClass.NODE_DRAIN),
        *(FailureClass.GPU_HARDWARE, FailureClass.GPU_ECC, FailureClass.NIC_FAULT),
    }
)


def is_excused(result: TrialResult, by: Collection[str] = SWEEP_FAILURES) -> bool:
    """Return whether the failure of a trial says nothing about its cell.

    The failure classes in `by` excuse it, in addition to those that excuse every trial.
    """
    excuses = {*_SITE_FAILURES, *by}
    if result.outcome is not None and CLASS_OF_STATE.get(result.outcome.state) in excuses:
        return True
    findings = result.actionable or result.findings
    return bool(findings) and findings[-1].cls in excuses
