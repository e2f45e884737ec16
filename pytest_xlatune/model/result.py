"""The result of a trial and the conclusions of a study: settings, comparison, verdict.

These are values without behaviour of their own. Trouble of a workload is an `Outcome` with findings
and raises no exception. Values that come from a log alone are in `failure` and `metric`, so that
commands that only read logs do not load this module.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

import msgspec

from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.failure import Action, Finding, Outcome, State
from pytest_xlatune.model.message import Message, MessageCode, say, verbatim
from pytest_xlatune.model.metric import TGS, Figure, Metric, NoScore, Score, StepRecord, relative
from pytest_xlatune.model.record import DecodedType, JobId, Json, Real, Record, RelativePath
from pytest_xlatune.model.rotation import RotationRead
from pytest_xlatune.model.rotation_score import RotationScore
from pytest_xlatune.model.shares import Shares
from pytest_xlatune.model.trial import CompiledMemory, Trial

__all__ = [  # including names of `failure` and `metric`, which many callers import from here
    "MIN_TRIALS",
    "Action",
    "Blamed",
    "BlamedAt",
    "CellsRecord",
    "Comparison",
    "Conclusion",
    "Effect",
    "EvidenceResult",
    "Finding",
    "LostRuns",
    "Needed",
    "NoScore",
    "NoiseRecord",
    "Outcome",
    "PairFound",
    "Recipe",
    "RecipePart",
    "RotationResult",
    "Score",
    "SettingKind",
    "Shares",
    "State",
    "StepRecord",
    "StudyRecord",
    "Submission",
    "TrialResult",
    "TrialSetting",
    "TrialStatus",
    "TuningRecord",
    "Verdict",
    "VerdictKind",
    "Witness",
    "relative",
]


class Submission(Record, frozen=True, kw_only=True):
    """One submission of a trial, journalled before anyone waits for it.

    Attributes:
        trial_id: id of the trial.
        attempt: the number of the attempt, from 1.
        executor: the name of the executor that took it.
        job_id: the id that the executor gave to the job.
        folder: the attempt's folder, relative to the work directory.
    """

    trial_id: str
    attempt: int
    executor: str
    job_id: JobId
    folder: RelativePath


class Effect(StrEnum):
    """How well it is known that a setting was in effect, from the best case to the worst."""

    IN_EFFECT = "in effect"  # the program, its framework or its runtime says so
    ASKED = "asked"  # only our request, or a printed environment, shows it
    NOT_SEEN = "not seen"  # a witness that should show it does not
    CONTRADICTED = "contradicted"  # a witness shows another value

    @property
    def rank(self) -> int:
        """The place of this effect in the order above; 0 is the best."""
        return list(Effect).index(self)


class Witness(StrEnum):
    """What shows that a setting is in effect, the strongest witness first."""

    OPTIONS = "XLA's dump of its options"
    CONFIG = "the framework's configuration lines"
    NCCL = "the lines of NCCL_DEBUG"
    READER = "the flags that the library lists"
    LOG = "the log"  # it lists the environment with which the program was started
    NONE = ""  # nothing shows the setting


class SettingKind(StrEnum):
    """What a setting is: a flag of XLA, an environment variable, or a key of the trainer."""

    FLAG = "flag"
    VARIABLE = "variable"
    OVERRIDE = "override"


class TrialSetting(Record, frozen=True, kw_only=True):
    """One setting of a trial, and how well it is known that it was in effect.

    Attributes:
        name: name of an XLA flag without dashes, of a variable, or of a key of the trainer.
        kind: whether it is a flag, a variable or a key.
        asked: the value that was asked for; hidden if the name looks like that of a secret.
        effect: what the strongest witness shows.
        witness: the strongest witness.
        seen: the value that the witness shows; "" if it shows none.
        is_deployed: whether the setting belongs to the cell; otherwise it belongs to the profile.
        is_exempt: whether the sweep declares that nothing can show the setting.
        why: what the witness shows, where a value does not say enough; otherwise None.
    """

    name: str
    kind: SettingKind
    asked: str
    effect: Effect
    witness: Witness = Witness.NONE
    seen: str = ""
    is_deployed: bool = False
    is_exempt: bool = False
    why: Message | None = None

    @property
    def evidence(self) -> Message | None:
        """What the witness shows; None if it shows nothing."""
        return self.why or (verbatim(self.seen) if self.seen else None)

    @property
    def label(self) -> str:
        """The name as people write it: with the dashes of a flag."""
        return f"--{self.name}" if self.kind is SettingKind.FLAG else self.name

    @property
    def is_proved(self) -> bool:
        """Whether a profile with this setting may win."""
        is_silent = self.effect in (Effect.ASKED, Effect.NOT_SEEN)
        return self.effect is Effect.IN_EFFECT or (self.is_exempt and is_silent)


class TrialStatus(StrEnum):
    """The state of a trial. Only the last three are final."""

    PLANNED = "planned"
    RUNNING = "running"
    MEASURED = "measured"
    # the profile cannot run here: out of memory, unknown flag, NaN, flags not in effect
    DROPPED = "dropped"
    UNMEASURED = "unmeasured"  # it could not be measured: bad nodes, no time left, a person's stop

    @property
    def is_final(self) -> bool:
        """Whether the trial is over."""
        return self not in (TrialStatus.PLANNED, TrialStatus.RUNNING)


class BlamedAt(StrEnum):
    """The phase in which a program of a rotation was when the job died."""

    COMPILING = "compiling"
    TURN = "turn"


class Blamed(Record, frozen=True, kw_only=True):
    """The program that ended an attempt of a rotation; the next attempt runs without it.

    Attributes:
        program: the id of the program.
        at: the phase of the program.
        cls: the failure class of the attempt.
        attempt: the number of the attempt, from 1.
        is_suspect: whether something else, such as a hang or a person's `kill`, may have ended the
            attempt. Then the next attempt still runs the program, and the program is blamed only if
            that attempt ends in the same way at the same program.
    """

    program: str
    at: BlamedAt
    cls: str
    attempt: int
    is_suspect: bool = False


class RotationResult(Record, frozen=True, kw_only=True):
    """The result of a rotation.

    Attributes:
        score: each program against the baseline, and the turns; None if nothing was measured.
        reason: why there is no score; None if there is one.
        read: the content of the first process's journal; None if it wrote none.
        blamed: the programs that ended earlier attempts; the last attempt ran without them.
    """

    score: RotationScore | None = None
    reason: Message | None = None
    read: RotationRead | None = None
    blamed: tuple[Blamed, ...] = ()

    @property
    def is_found(self) -> bool:
        """Whether the worker found the program of a step, so that programs can take turns.

        The right program is called once in each step, so the answer is no if the log shows no
        turns.
        """
        has_no_turns = self.reason is not None and self.reason.code is MessageCode.NO_TURNS
        has_step = self.read is not None and bool(self.read.found) and not self.read.trouble
        return has_step and not has_no_turns


class TrialResult(Record, frozen=True, kw_only=True):
    """A trial and all that is known about it; studies get these as their history.

    Attributes:
        trial: the trial.
        status: the state of the trial.
        score: the score of the attempt that was measured; None if none was.
        reason: why there is no score, or why the trial was dropped; None otherwise.
        findings: the findings of all attempts.
        job_ids: the ids of the jobs of all attempts, in order.
        outcome: how the last attempt ended; None if none has ended.
        epoch: how many changes, such as a node swap, came before. Scores of different epochs cannot
            be compared.
        settings: each setting, and whether it was in effect; None if that was not checked.
        memory: the memory that the compiler reports, if the trial only compiled; None otherwise.
        rotation: the result of a trial whose programs took turns; None for other trials. Such a
            trial has no `score`, unless it is a look: the first rotation, with the baseline alone.
        devices: witness, e.g. a module of a dump -> the device that it shows, e.g. "cuda sm_9.0".
    """

    trial: Trial
    status: TrialStatus
    score: Score | None = None
    reason: Message | None = None
    findings: tuple[Finding, ...] = ()
    job_ids: tuple[str, ...] = ()
    outcome: Outcome | None = None
    epoch: int = 0
    settings: tuple[TrialSetting, ...] | None = None
    memory: CompiledMemory | None = None
    rotation: RotationResult | None = None
    devices: dict[str, str] = msgspec.field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.trial, self.status, self.job_ids, self.epoch))

    @property
    def start_s(self) -> float | None:
        """When its last attempt began, in seconds since 1970; None if unknown."""
        return self.outcome.start_s if self.outcome is not None else None

    @property
    def is_unread(self) -> bool:
        """Whether files of the measured trial still have to be read; False without evidence."""
        return False

    @property
    def own_settings(self) -> tuple[TrialSetting, ...]:
        """The settings of the profile, without those of the cell."""
        return tuple(setting for setting in self.settings or () if not setting.is_deployed)

    @property
    def actionable(self) -> tuple[Finding, ...]:
        """The findings after which a person or the campaign must act."""
        no_action = (Action.NONE, Action.SUCCESS)
        return tuple(finding for finding in self.findings if finding.action not in no_action)


class EvidenceResult(TrialResult, frozen=True, kw_only=True):
    """An evidence trial with its result; it has no score.

    Attributes:
        is_read: whether the trace and the dump of the run have been read.
        shares: how the time of a step is divided; None if the run left nothing that can be read.
        pgle: path of the file for XLA's scheduler (PGLE) that was made from the trace; "" if none.
    """

    is_read: bool = False
    shares: Shares | None = None
    pgle: str = ""

    @property
    def is_unread(self) -> bool:
        """Whether the trace and the dump of a measured run still have to be read."""
        return self.status is TrialStatus.MEASURED and not self.is_read


class Comparison(Record, frozen=True, kw_only=True):
    """One arm compared with the reference by the scores of jobs; effects are log ratios.

    Attributes:
        estimate: the log ratio of the arm to the reference.
        ci95: the two-sided 95 % interval of `estimate`.
        lower: the one-sided lower bound, which holds for all confirmed arms at once.
        n: how many trials of the arm were compared.
        df: residual degrees of freedom.
        sigma: residual standard deviation of one job's score.
        mde80: smallest effect that this comparison finds with 80 % power, as a log ratio.
        method: the rule of the comparison, with its numbers of arms, blocks and baselines.
    """

    estimate: Real
    ci95: tuple[Real, Real]
    lower: Real
    n: int
    df: int
    sigma: Real
    mde80: Real
    method: Message


MIN_TRIALS = 2  # an arm with fewer trials cannot get a verdict


class VerdictKind(StrEnum):
    """The verdict on an arm; docs/reference/glossary.md explains each kind."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    EQUIVALENT = "EQUIVALENT"
    INCONCLUSIVE = "INCONCLUSIVE"
    SCREENED = "SCREENED"
    INVALID = "INVALID"


class LostRuns(Record, frozen=True, kw_only=True):
    """The confirming runs of an arm that ended without a score.

    Attributes:
        lost: how many ended without a score.
        runs: how many ended, with or without a score.
        to: the reasons, each once: a failure class, `hang`, or the reason of the trial.
    """

    lost: int
    runs: int
    to: tuple[Message, ...]

    @property
    def message(self) -> Message:
        """How many runs were lost and why, e.g. `2 of 4 runs lost: hang`."""
        if not self.to:
            return say("{lost} of {runs} runs lost", lost=self.lost, runs=self.runs)
        return say("{lost} of {runs} runs lost: {to}", lost=self.lost, runs=self.runs, to=self.to)


class Verdict(Record, frozen=True, kw_only=True):
    """The conclusion on one arm.

    Attributes:
        arm: the id of the arm; the profile's id where arms are profiles.
        kind: the verdict.
        delta: relative change of TGS against the reference; +0.034 is +3.4 %. With another metric
            it is the change of that figure, or of 1 / figure if less is better. None if unknown.
        ci95: the 95 % interval of `delta`; for a FASTER arm it is corrected for the selection of
            the best. None if unknown, as at n = 1.
        n: how many trials the verdict rests on.
        tgs: tokens per second and device: the reference's figure times the change, or the geometric
            mean over the trials if `delta` is None. None if another figure is scored.
        step_s: seconds per step, in the same way as `tgs`; None if unknown.
        mde80: smallest relative change that would be found with 80 % power; None if unknown.
        method: how the verdict was decided; None if nothing was compared.
        reasons: why the arm got this verdict, the most important reason first.
        can_run: whether the arm can run; if not, it is INVALID and its trials were dropped.
        job_ids: the job ids of the trials that the verdict rests on.
        figure: the scored figure if it is not TGS; None for TGS.
        lost: the confirming runs that ended without a score; None if every run has a score.
        retries: the number of attempts of its trials, without the first attempt of each.
        hangs: the number of attempts that hung.
        effect: the weakest effect among the settings of the trials; None if the arm has no settings
            or they were not checked.
        unproved: the settings, as people write them, that no witness shows to be in effect and that
            the sweep does not exempt.
        is_likely_slower: whether its one measurement lies more than three standard deviations below
            the reference.
        word: what a gate calls the verdict, e.g. `NO REGRESSION`; "" for the word of `kind`.
        against: what `delta` is compared with; None for the reference.
        likely: for a FASTER arm the likely change and both ends of its 95 % interval: `delta` is
            a little too large, because the arm is the best of several. None for other arms.
    """

    arm: str
    kind: VerdictKind
    delta: Real | None = None
    ci95: tuple[Real, Real] | None = None
    n: int = 0
    tgs: Real | None = None
    step_s: Real | None = None
    mde80: Real | None = None
    method: Message | None = None
    reasons: tuple[Message, ...] = ()
    can_run: bool = True
    job_ids: tuple[str, ...] = ()
    figure: Figure | None = None
    lost: LostRuns | None = None
    retries: int = 0
    hangs: int = 0
    is_likely_slower: bool = False
    effect: Effect | None = None
    unproved: tuple[str, ...] = ()
    word: str = ""
    against: Message | None = None
    likely: tuple[Real, Real, Real] | None = None

    @property
    def may_be_nothing(self) -> bool:
        """Whether an interval that is corrected for the choice of the best arm includes 0."""
        # Each may be lower:  a delta of +26.4 % [+0.3, +48.3]  with a likely +0.3 [-1.9, +2.1]
        lower_ends = (self.ci95 and self.ci95[0], self.likely and self.likely[1])
        return any(low is not None and low <= 0 for low in lower_ends)

    @property
    def wins(self) -> bool:
        """Whether the arm may be recommended.

        It must be FASTER, its settings must have been in effect, and the intervals that are
        corrected for the choice of the best arm must not include 0.
        """
        is_faster = self.kind is VerdictKind.FASTER
        return is_faster and not self.unproved and not self.may_be_nothing


class StudyRecord(Record, frozen=True, kw_only=True):
    """What a study found in addition to its verdicts; each study has its own subclass.

    `kind` names the subclass in a ledger, so it must be unique. A subclass is frozen, and all its
    fields are keyword-only.
    """

    kind: ClassVar[str] = ""
    _kinds: ClassVar[dict[str, type[StudyRecord]]] = {}

    def __init_subclass__(cls) -> None:
        cls._kinds[cls.kind] = cls

    def to_json(self) -> dict[str, Json]:
        """Return the record as builtins, with its kind."""
        return {"kind": self.kind, **super().to_json()}

    @classmethod
    def from_json(cls, data: Json) -> Self:
        """Return the record of the kind that `data` names.

        Raises:
            LedgerError: no class of that kind is loaded, or the data do not fit the class.
        """
        kind = data.get("kind") if isinstance(data, dict) else None
        record_class = cls._kinds.get(str(kind))
        if record_class is None or not issubclass(record_class, cls):
            raise LedgerError(
                f"a study's record of kind {kind!r} is not known here; known are "
                f"{', '.join(sorted(cls._kinds))}. Was it written by another version?"
            )
        values = {name: value for name, value in data.items() if name != "kind"}
        return super(StudyRecord, record_class).from_json(values)


if TYPE_CHECKING:
    AnyStudyRecord = StudyRecord
else:

    class AnyStudyRecord(metaclass=DecodedType):
        """A record of any study; `from_json` returns an object of the class of its kind."""

        value_type = StudyRecord
        from_json = StudyRecord.from_json


class NoiseRecord(StudyRecord, frozen=True, kw_only=True):
    """How noisy the jobs of a study were, and how small a change it can find with that noise.

    Attributes:
        sigma: standard deviation of one job's score between jobs; None if unknown.
        mde80: smallest relative change that is found with 80 % power; None if unknown.
    """

    kind: ClassVar[str] = "noise"
    sigma: Real | None = None
    mde80: Real | None = None


class PairFound(Record, frozen=True, kw_only=True):
    """The result of one pair of nodes.

    Attributes:
        nodes: both nodes.
        change: relative change of its speed. Without fresh runs, its first run is compared with
            its round. Fresh runs are compared with the median of all first runs, or, for the
            slowest pair, with the runs beside them.
        runs: number of runs with a score.
    """

    nodes: tuple[str, ...]
    change: Real
    runs: int = 1


class CellsRecord(NoiseRecord, frozen=True, kw_only=True):
    """The common part of the results of studies whose arms are cells.

    Attributes:
        peak_tflops: declared peak of one device in TFLOP/s; None if unknown.
        summary: the answer first, then further lines of a summary.
        objection: why the test of the whole study fails; () if it passes.
        files: name -> text of each file for the work directory that later sweeps can use.
        pairs: the pairs of nodes that ran; () for studies of other arms.
    """

    kind: ClassVar[str] = "cells"
    peak_tflops: Real | None = None
    summary: tuple[Message, ...] = ()
    objection: tuple[Message, ...] = ()
    files: dict[str, str] = msgspec.field(default_factory=dict)
    pairs: tuple[PairFound, ...] = ()

    def shown_name(self, arm: str) -> str:
        """Return the name of an arm in a plot: its id, unless the study has a better name."""
        return arm


class Needed(StrEnum):
    """Whether settings of a recipe were shown to be needed."""

    NEEDED = "needed"
    NOT_SHOWN = "not shown to be needed"
    NOT_TESTED = "not measured without it"


class RecipePart(Record, frozen=True, kw_only=True):
    """Settings of a recipe, and their gain.

    Attributes:
        settings: names of flags (without dashes), variables and keys that were measured together.
        need: whether they were shown to be needed.
        gain: the relative change of the figure with them, against the arm `without` them; None if
            unknown.
        without: the arm that lacks only these settings and ran in the same blocks; "" if none did.
        n: the number of blocks in which both arms ran.
    """

    settings: tuple[str, ...]
    need: Needed
    gain: Real | None = None
    without: str = ""
    n: int = 0


class Recipe(Record, frozen=True, kw_only=True):
    """What a tuning sweep recommends: the smallest set of settings shown to be needed.

    Attributes:
        arm: the confirmed arm that is recommended.
        largest: the confirmed arm with the largest estimate; `arm` is the same or a part of it.
        parts: the settings of `arm`.
    """

    arm: str
    largest: str
    parts: tuple[RecipePart, ...] = ()


class TuningRecord(NoiseRecord, frozen=True, kw_only=True):
    """What a tuning sweep found in addition to its verdicts.

    Attributes:
        finalists: the ids of the profiles chosen for confirmation, the best first; () before that.
        bound: the relative change that no profile's gain exceeds, at 95 %; None if unknown.
        recipe: the recommended arm and its settings; None if there is no winner.
        from_start80: smallest relative change of a single winner that the whole sweep finds with
            80 % power, the screen included; `mde80` is that of an arm that is a finalist already.
        moved: the 95 % interval of an A/A control, as relative changes, if it excludes 0: then no
            figure of the sweep can be trusted. None if the interval of each control includes 0.
    """

    kind: ClassVar[str] = "tuning"
    finalists: tuple[str, ...] = ()
    bound: Real | None = None
    recipe: Recipe | None = None
    from_start80: Real | None = None
    moved: tuple[Real, Real] | None = None


Found = TypeVar("Found", bound=StudyRecord)


class Conclusion(Record, frozen=True, kw_only=True, dict=True, gc=True):
    """What a study concludes about its arms.

    The class has no slots, because it caches the verdicts by arm.

    Attributes:
        reference: the figures of the arm that the others are compared with; None if there is none.
        verdicts: one for each other arm, confirmed arms first, both groups sorted by `delta`.
        record: what the study found in addition; None if nothing.
        alpha: how much of the sweep's error rate of 0.05 was spent on these verdicts.
        complete: whether every planned trial is final.
        first_step: id of the first step of the window of all scores; None for the protocol's.
        notes: further facts that a reader should know.
    """

    reference: Verdict | None = None
    verdicts: tuple[Verdict, ...]
    record: AnyStudyRecord | None = None
    alpha: Real = 0.0
    complete: bool = False
    first_step: int | None = None
    notes: tuple[Message, ...] = ()

    @property
    def baseline(self) -> Verdict:
        """The figures of the reference, for the reports of studies that have one.

        Raises:
            LedgerError: the study has no reference.
        """
        if self.reference is None:
            raise LedgerError("this conclusion has no reference to compare with")
        return self.reference

    @property
    def nothing_in_effect(self) -> bool:
        """Whether each arm whose settings were checked has an unproved one; False if none was."""
        known = [verdict for verdict in self.verdicts if verdict.effect is not None]
        return bool(known) and all(verdict.unproved for verdict in known)

    @property
    def facts(self) -> CellsRecord:
        """The record of a study of cells, or an empty one."""
        return self.found(CellsRecord)

    def found(self, kind: type[Found]) -> Found:
        """Return the record if it is of this class, or else an empty record of the class."""
        return self.record if isinstance(self.record, kind) else kind()

    @property
    def noise(self) -> NoiseRecord:
        """The record of the noise, or an empty one."""
        return self.found(NoiseRecord)

    @property
    def tuning(self) -> TuningRecord:
        """The record of a tuning sweep, or an empty one."""
        return self.found(TuningRecord)

    @property
    def winner(self) -> Verdict | None:
        """The verdict on the recommended arm: that of the recipe, or else the first that wins."""
        recipe = self.tuning.recipe
        recommended = self.verdict(recipe.arm) if recipe is not None else None
        if recommended is not None:
            return recommended if recommended.wins else None
        return next((verdict for verdict in self.verdicts if verdict.wins), None)

    @property
    def metric(self) -> Metric:
        """The metric by which the arms are scored; TGS as long as none has a score."""
        verdicts = self.verdicts if self.reference is None else (self.reference, *self.verdicts)
        return next((verdict.figure.metric for verdict in verdicts if verdict.figure), TGS)

    def verdict(self, arm: str) -> Verdict | None:
        """Return the verdict on an arm; None if the study has no such arm."""
        if self.reference is not None and arm == self.reference.arm:
            return self.reference
        return self._by_arm.get(arm)

    @cached_property
    def _by_arm(self) -> dict[str, Verdict]:
        return {verdict.arm: verdict for verdict in reversed(self.verdicts)}
