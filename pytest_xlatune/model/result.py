"""What a trial told and what was decided: settings, result, comparison, verdict, conclusion.

Pure values. A score exists only for a job; nothing here lets two step series be compared. What a
workload did wrong is in an `Outcome` and its findings, not in an exception. What a log alone tells
is in `failure` and `metric`, which a command that reads logs loads without the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

import msgspec

from pytest_xlatune.model.channels import COLLECTIVES
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.failure import Action, Finding, Outcome, State
from pytest_xlatune.model.message import Message, MessageCode, say, verbatim
from pytest_xlatune.model.metric import TGS, Figure, Metric, NoScore, Score, StepRecord, relative
from pytest_xlatune.model.record import JobId, Json, OfOurs, Real, Record, RelativePath
from pytest_xlatune.model.rotation import RotationRead
from pytest_xlatune.model.rotation_score import RotationScore
from pytest_xlatune.model.sentences import SHARE_OF_STEP, SHARE_OF_STEP_ALONE
from pytest_xlatune.model.trial import CompiledMemory, Trial

__all__ = [  # what a log tells too, from where it stands
    "MIN_TRIALS",
    "Action",
    "Blamed",
    "BlamedAt",
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
        attempt: from 1.
        executor: the name of the executor that took it.
        job_id: the executor's own name of the job.
        folder: the attempt's folder, relative to the work directory.
    """

    trial_id: str
    attempt: int
    executor: str
    job_id: JobId
    folder: RelativePath


class Effect(StrEnum):
    """How well it is known that a setting was in effect, the best first."""

    IN_EFFECT = "in effect"  # the program, its framework or its runtime says so
    ASKED = "asked"  # only we, or a list of the environment, say so
    NOT_SEEN = "not seen"  # a witness that should show it is silent
    CONTRADICTED = "contradicted"  # a witness shows another value

    @property
    def rank(self) -> int:
        """0 for the best."""
        return list(Effect).index(self)


class Witness(StrEnum):
    """What shows a setting, the strongest first."""

    OPTIONS = "XLA's dump of its options"
    CONFIG = "the framework's configuration lines"
    NCCL = "the lines of NCCL_DEBUG"
    READER = "the flags that the library lists"
    LOG = "the log"  # a list of the environment: what the program was started with
    NONE = ""


class SettingKind(StrEnum):
    """Which sort of setting it is."""

    FLAG = "flag"
    VARIABLE = "variable"
    OVERRIDE = "override"


class TrialSetting(Record, frozen=True, kw_only=True):
    """One setting of a trial, and how well it is known that it was in effect.

    Attributes:
        name: name of an XLA flag without dashes, of a variable, or of a key of the trainer.
        kind: which of these.
        asked: the value that was asked for; hidden where the name speaks of a secret.
        effect: what the strongest witness says.
        witness: that one.
        seen: the value that it shows; "" where it shows none.
        is_deployed: it is the cell's own, and not the profile's.
        is_exempt: the sweep declares that nothing can show it.
        why: what it shows where that is no value, or not a value alone.
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
    def said(self) -> Message | None:
        """What the witness shows; None where it shows nothing."""
        return self.why or (verbatim(self.seen) if self.seen else None)

    @property
    def label(self) -> str:
        """The name as people write it."""
        return f"--{self.name}" if self.kind is SettingKind.FLAG else self.name

    @property
    def is_proved(self) -> bool:
        """Whether a winner may rest on it."""
        is_silent = self.effect in (Effect.ASKED, Effect.NOT_SEEN)
        return self.effect is Effect.IN_EFFECT or (self.is_exempt and is_silent)


class TrialStatus(StrEnum):
    """Where a trial stands. Only the last three are final."""

    PLANNED = "planned"
    RUNNING = "running"
    MEASURED = "measured"
    DROPPED = "dropped"  # this profile cannot run here: OOM, unknown flag, NaN, flags not effective
    UNMEASURED = "unmeasured"  # it could not be measured: nodes, time, cancelled

    @property
    def is_final(self) -> bool:
        """Whether the trial is over."""
        return self not in (TrialStatus.PLANNED, TrialStatus.RUNNING)


class BlamedAt(StrEnum):
    """What a program of a rotation was at when the job died."""

    COMPILING = "compiling"  # it was being compiled
    TURN = "turn"  # it had its turn


class Blamed(Record, frozen=True, kw_only=True):
    """The program that an attempt of a rotation died of; the next one goes without it.

    Attributes:
        program: its id.
        at: what it was at.
        cls: the failure class of that attempt.
        attempt: its number.
        is_suspect: it may have died of something else, such as a hang or a person's `kill`: the
            next attempt has the program still, and only another such end right after, at the same
            program, is its fault.
        before: of a suspect that died in the first steps of its turn the profile that had the turn
            before, whose error may show as late; "" is none.
    """

    program: str
    at: BlamedAt
    cls: str
    attempt: int
    is_suspect: bool = False
    before: str = ""


class RotationResult(Record, frozen=True, kw_only=True):
    """The result of a rotation.

    Attributes:
        score: each program against the baseline, and the turns; None where there is none.
        reason: why there is none; None where there is one.
        read: what the journal of the first process said; None where it wrote none.
        blamed: the programs that earlier attempts died of, which the last one went without.
    """

    score: RotationScore | None = None
    reason: Message | None = None
    read: RotationRead | None = None
    blamed: tuple[Blamed, ...] = ()

    @property
    def is_found(self) -> bool:
        """Whether the worker found the step's program, so that programs can take turns.

        One that is not called once a step is not the one, and of a log whose lines are no turns
        nothing can be told.
        """
        is_apart = self.reason is not None and self.reason.code is MessageCode.NO_TURNS
        has_step = self.read is not None and bool(self.read.found) and not self.read.trouble
        return has_step and not is_apart


class TrialResult(Record, frozen=True, kw_only=True):
    """A trial and all that is known of it: what studies read as history.

    Attributes:
        trial: the trial.
        status: where it stands.
        score: the score of the attempt that was measured.
        reason: why there is no score, or why it was dropped; None otherwise.
        findings: the findings of all attempts.
        job_ids: the job ids of all attempts, in order.
        outcome: how the last attempt ended.
        epoch: counts the changes after which scores are not comparable (a node swap).
        settings: each setting, and whether it was in effect; None where nothing was looked at.
        memory: what compiling says, where that was all that was asked and nothing ran; else None.
        rotation: of a trial whose programs took turns; its `score` is None but for a look.
        devices: what shows where it ran -> the device, e.g. a module of a dump -> "cuda sm_9.0".
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
    def own_settings(self) -> tuple[TrialSetting, ...]:
        """The profile's settings, those of the cell left out."""
        return tuple(setting for setting in self.settings or () if not setting.is_deployed)

    @property
    def asking(self) -> tuple[Finding, ...]:
        """The findings that ask for something."""
        none = (Action.NONE, Action.SUCCESS)
        return tuple(finding for finding in self.findings if finding.action not in none)


class Shares(Record, frozen=True, kw_only=True):
    """Where the time of a step went in an evidence run, as far as it left something to read.

    Attributes:
        of_step: part -> its share of a step, 0.2 is 20 %. A collective's, `communication`'s and
            `copies`' is the time in which nothing else ran; absent where no trace tells it.
        kinds: of the collectives in the compiled program; None where no dump tells them.
        kernels: class of kernels -> names of those that run alone longest.
    """

    of_step: dict[str, Real]
    kinds: tuple[str, ...] | None = None
    kernels: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)

    @property
    def exposed(self) -> Message | None:
        """The share of a step of each class of kernels, most first; None without a trace.

        Communication and copies count with nothing beside them.
        """
        classes = {name: share for name, share in self.of_step.items() if name not in COLLECTIVES}
        reasons = [
            say(
                SHARE_OF_STEP if name in ("compute", "idle") else SHARE_OF_STEP_ALONE,
                parts=[name],
                share=share,
            )
            for name, share in sorted(classes.items(), key=lambda item: -item[1])
        ]
        return say("{reasons:; }", reasons=reasons) if reasons else None


class EvidenceResult(TrialResult, frozen=True, kw_only=True):
    """An evidence trial and all that is known of it; it has no score.

    Attributes:
        is_read: whether what it left has been read.
        shares: what that says; None where it left nothing that can be read.
        pgle: file for XLA's scheduler that its trace made; "" where that names no operation.
    """

    is_read: bool = False
    shares: Shares | None = None
    pgle: str = ""


class Comparison(Record, frozen=True, kw_only=True):
    """One arm against the reference on job scores; all effects are differences of logarithms.

    Attributes:
        estimate: log ratio to the reference.
        ci95: two-sided 95 % interval of it.
        lower: simultaneous one-sided lower bound over the confirmed arms.
        n: trials of the arm behind it.
        n_baseline: baseline trials beside them.
        df: residual degrees of freedom.
        sigma: residual standard deviation of one job's score.
        mde80: smallest effect this comparison finds with 80 % power, as a log ratio.
        method: the rule, and what it rests on.
    """

    estimate: Real
    ci95: tuple[Real, Real]
    lower: Real
    n: int
    n_baseline: int
    df: int
    sigma: Real
    mde80: Real
    method: Message


MIN_TRIALS = 2  # of an arm, below which nothing is shown of it


class VerdictKind(StrEnum):
    """What a study says of an arm; docs/reference/glossary.md has the meaning of each."""

    FASTER = "FASTER"
    SLOWER = "SLOWER"
    EQUIVALENT = "EQUIVALENT"
    INCONCLUSIVE = "INCONCLUSIVE"
    SCREENED = "SCREENED"
    INVALID = "INVALID"


class LostRuns(Record, frozen=True, kw_only=True):
    """Confirming runs of an arm that are over and have no score.

    Attributes:
        lost: how many.
        runs: out of how many that are over.
        to: why, each once: a failure class, `hang`, or what the trial says.
    """

    lost: int
    runs: int
    to: tuple[Message, ...]

    @property
    def told(self) -> Message:
        """How many, and to what: `2 of 4 runs lost: hang`."""
        if not self.to:
            return say("{lost} of {runs} runs lost", lost=self.lost, runs=self.runs)
        return say("{lost} of {runs} runs lost: {to}", lost=self.lost, runs=self.runs, to=self.to)


class Verdict(Record, frozen=True, kw_only=True):
    """The conclusion on one arm.

    Attributes:
        arm: id of the arm: the profile's where arms are profiles.
        kind: the verdict.
        delta: relative change of TGS against the reference, +0.034 is +3.4 %; of another metric
            that of its figure, or of 1 / figure where less is better; None if unknown.
        ci95: 95 % interval of `delta`, of one that is FASTER with its selection; None at n = 1.
        n: trials behind it.
        tgs: Tokens/s/device: the reference's times the change, where there is one, else the
            geometric mean over those trials; None where another figure is scored.
        step_s: seconds per step, likewise.
        mde80: smallest relative change that would be found with 80 % power; None if unknown.
        method: how it was decided.
        reasons: why this and not another verdict, in order.
        can_run: False where the arm itself cannot run (INVALID and dropped).
        job_ids: the job ids of the trials behind it.
        figure: the scored figure, where it is not TGS.
        lost: the confirming runs that have no score; None where every run has one.
        retries: attempts beyond the first, over all its trials.
        hangs: attempts that stood still, likewise.
        effect: the weakest known of a setting in a trial; None: it has none, or none was looked at.
        unproved: the settings, as people write them, of which no witness says that they were in
            effect, and which the sweep does not declare unseen.
        is_likely_slower: it was measured once, more than three standard deviations below.
        word: what a gate calls the verdict, e.g. `NO REGRESSION`; "" is the kind's own word.
        against: what `delta` is against, where that is not the reference.
        up_to: the last wave that its figures rest on, where the study has later runs; "" is all.
        likely: of one that is FASTER, what `delta` is likely to be and its 95 % interval: `delta`
            is the best of several, so a little too large.
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
    up_to: str = ""
    likely: tuple[Real, Real, Real] | None = None

    @property
    def may_be_nothing(self) -> bool:
        """Whether an interval that is corrected for the choice of the best holds no effect."""
        # +26.4 % [+0.3, +48.3] was recommended beside "likely +0.3 % [-1.9, +2.1]"
        corrected = (self.ci95 and self.ci95[0], self.likely and self.likely[1])
        return any(low is not None and low <= 0 for low in corrected)

    @property
    def wins(self) -> bool:
        """Whether it may be recommended: it is FASTER, and what made it so was in effect.

        Nor may its gain be nothing, once it is corrected for the choice of the best of several.
        """
        is_faster = self.kind is VerdictKind.FASTER
        return is_faster and not self.unproved and not self.may_be_nothing


class StudyRecord(Record, frozen=True, kw_only=True):
    """What a study found besides its verdicts; each study has its own class, told by `kind`.

    A subclass is a frozen, slotted, keyword-only dataclass, found again by its kind.
    """

    kind: ClassVar[str] = ""
    _kinds: ClassVar[dict[str, type[StudyRecord]]] = {}

    def __init_subclass__(cls) -> None:
        cls._kinds[cls.kind] = cls

    @property
    def summary(self) -> tuple[Message, ...]:
        """What a summary says instead of naming a winner; () has it name one."""
        return ()

    @property
    def objection(self) -> tuple[Message, ...]:
        """What the test of the conclusion fails on, beside those of arms; () where it passes."""
        return ()

    @property
    def files(self) -> Mapping[str, str]:
        """Files that later sweeps can take, to be kept in the work directory: name -> text."""
        return {}

    @property
    def setting(self) -> str | None:
        """The setting to deploy, `key=value`; "" without one, None where none is looked for."""
        return None

    @property
    def peak_tflops(self) -> float | None:
        """TFLOP/s that one device can do, as declared; None is unknown."""
        return None

    def shown_name(self, arm: str) -> str:
        """Return how a plot calls an arm: by its id, where the study has no better name."""
        return arm

    def to_json(self) -> dict[str, Json]:
        """Return the record as builtins, its kind among them."""
        return {"kind": self.kind, **super().to_json()}

    @classmethod
    def from_json(cls, data: Json) -> Self:
        """Return the record of the kind that `data` names.

        Raises:
            LedgerError: no class of that kind is loaded, or the data are not one.
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

    class AnyStudyRecord(metaclass=OfOurs):
        """A record of any study, read as the kind that it names."""

        made = StudyRecord
        from_json = StudyRecord.from_json


class NoiseRecord(StudyRecord, frozen=True, kw_only=True):
    """How noisy the jobs of a study were, and what it can see for it.

    Attributes:
        sigma: standard deviation of one job's score between jobs; None if unknown.
        mde80: smallest relative change that is found with 80 % power; None if unknown.
    """

    kind: ClassVar[str] = "noise"
    sigma: Real | None = None
    mde80: Real | None = None


class Needed(StrEnum):
    """Whether settings of a recipe were shown to be needed."""

    NEEDED = "needed"
    NOT_SHOWN = "not shown to be needed"
    NOT_TESTED = "not measured without it"


class RecipePart(Record, frozen=True, kw_only=True):
    """Settings of a recipe, or of what led before it, and what they gain.

    Attributes:
        settings: names of flags (without dashes), variables and keys; measured together if several.
        need: whether they were shown to be needed.
        gain: relative change of the figure with them, against the same without; None if unknown.
        without: the arm without them that stood in the same blocks; "" where none did.
        n: blocks that held both.
        is_deployed: whether the recipe has them; else they were left out of it.
    """

    settings: tuple[str, ...]
    need: Needed
    gain: Real | None = None
    without: str = ""
    n: int = 0
    is_deployed: bool = True


class Recipe(Record, frozen=True, kw_only=True):
    """What a tuning sweep recommends: the smallest set of settings shown to be needed.

    Attributes:
        arm: the confirmed arm that is recommended.
        largest: the confirmed arm of the largest estimate; the recipe is it, or a part of it.
        parts: the settings of both, those of the recipe first.
        ties: other confirmed arms that the recipe is not shown to beat, best first.
    """

    arm: str
    largest: str
    parts: tuple[RecipePart, ...] = ()
    ties: tuple[str, ...] = ()


class TuningRecord(NoiseRecord, frozen=True, kw_only=True):
    """What a tuning sweep found besides its verdicts.

    Attributes:
        finalists: ids of the profiles sent to confirmation, in rank order; () before.
        bound: no profile beats the baseline by more than this, at 95 %; None if unknown.
        recipe: the recommended arm and its settings; None without a winner.
        from_start80: smallest relative change of a single winner that the whole sweep finds with
            80 % power; `mde80` is that of a finalist, which has passed the screen already.
        moved: 95 % interval of an A/A control that excludes 0, relative; None where none does.
            Then no figure of the sweep is to be trusted.
    """

    kind: ClassVar[str] = "tuning"
    finalists: tuple[str, ...] = ()
    bound: Real | None = None
    recipe: Recipe | None = None
    from_start80: Real | None = None
    moved: tuple[Real, Real] | None = None


Found = TypeVar("Found", bound=StudyRecord)


class Conclusion(Record, frozen=True, kw_only=True, dict=True):
    """What a study says of its arms.

    Not slotted: a session asks for the verdict on each arm, and finds it by the arm's id.

    Attributes:
        reference: the line of the arm that the others are compared with; None where there is none.
        verdicts: one per other arm, confirmed ones first, each group by `delta`.
        record: the study's own findings; None where it has none.
        alpha: spent of the sweep's 0.05.
        complete: whether every planned trial is final.
        first_step: of the window of all trials' scores, where it is not the protocol's; else None.
        notes: what a reader should know.
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
        """The line of the reference, for the reports of studies that have one.

        Raises:
            LedgerError: the study compares with none.
        """
        if self.reference is None:
            raise LedgerError("this conclusion has no reference to compare with")
        return self.reference

    @property
    def nothing_in_effect(self) -> bool:
        """Whether arms with settings ran, and of none is it known that they were in effect."""
        known = [verdict for verdict in self.verdicts if verdict.effect is not None]
        return bool(known) and all(verdict.unproved for verdict in known)

    @property
    def facts(self) -> StudyRecord:
        """What was found, as every record tells it; nothing where there is no record."""
        return self.record or StudyRecord()

    def found(self, kind: type[Found]) -> Found:
        """Return the record as the study's own document reads it.

        It says nothing where it is of another kind.
        """
        return self.record if isinstance(self.record, kind) else kind()

    @property
    def noise(self) -> NoiseRecord:
        """What the record says of noise; nothing where it has none."""
        return self.found(NoiseRecord)

    @property
    def tuning(self) -> TuningRecord:
        """What the record says of a tuning sweep; nothing where it is none's."""
        return self.found(TuningRecord)

    @property
    def winner(self) -> Verdict | None:
        """The verdict on the recommended arm: the recipe's, else the first that wins, if any."""
        recipe = self.tuning.recipe
        recommended = self.verdict(recipe.arm) if recipe is not None else None
        if recommended is not None:
            return recommended if recommended.wins else None
        return next((verdict for verdict in self.verdicts if verdict.wins), None)

    @property
    def metric(self) -> Metric:
        """What its arms are scored by; TGS as long as none has a score."""
        lines = (*((self.reference,) if self.reference else ()), *self.verdicts)
        return next((line.figure.metric for line in lines if line.figure), TGS)

    def verdict(self, arm: str) -> Verdict | None:
        """Return the verdict on an arm, None where the study does not know it."""
        if self.reference is not None and arm == self.reference.arm:
            return self.reference
        return self._by_arm.get(arm)

    @cached_property
    def _by_arm(self) -> dict[str, Verdict]:
        return {verdict.arm: verdict for verdict in reversed(self.verdicts)}
