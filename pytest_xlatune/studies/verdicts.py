"""What all studies share in verdicts and answers: figures, vetoes, the reference, one cell.

Validity comes before statistics. An arm that could not run, or that computed other numbers, is
compared with nothing. A claim is withdrawn if lost runs, slow steps or settings without effect may
explain it. Each veto gives its reason, which the verdict repeats. No function plans a trial.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import Message, MessageCode, coded, first, say
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, Profile
from pytest_xlatune.model.result import (
    MIN_TRIALS,
    Comparison,
    Conclusion,
    LostRuns,
    Score,
    TrialResult,
    TrialStatus,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.model.sentences import THE_REFERENCE
from pytest_xlatune.model.trial import Arm, Trial
from pytest_xlatune.stats.blocks import BlockFit, BlockScore
from pytest_xlatune.stats.compare import (
    EQUIVALENCE,
    VETO_P,
    NoComparison,
    compare,
    decide,
    straggler_p,
    winners,
)
from pytest_xlatune.stats.design import SWEEP_ALPHA
from pytest_xlatune.stats.validity import different_loss
from pytest_xlatune.studies import (
    NEVER,
    NOT_YET,
    Answer,
    Answered,
    Ask,
    Decision,
    History,
    Outlook,
    Question,
    Study,
    remembered,
)
from pytest_xlatune.studies.trials import ALIAS, Past, fitted, losses_of, read, usable

NO_SCORE = say("no score")
NOT_YET_MEASURED = say("not measured yet")
_CANNOT_RUN = say("it cannot run")
NOT_FINITE = say("its score is not finite")
_CLASS = "{cls}"
_HANGS = (FailureClass.HANG_INIT, FailureClass.HANG_SILENT_OOM, FailureClass.HANG_MID_TRAINING)
_SURVIVORS_P = 0.20  # Fisher's exact p below which lost runs forbid a claim
_LEAST_SURVIVORS = 3  # with fewer scored runs, lost runs always forbid it


def unmeasured(trials: Sequence[TrialResult]) -> Message:
    """Return why an arm could not be measured, given its trials that are over without a score."""
    return say(
        "it could not be measured: {why}",
        why=first(result.reason for result in trials) or NOT_FINITE,
    )


def verdict_without_figures(arm: str, trials: Sequence[TrialResult]) -> Verdict:
    """Return an INCONCLUSIVE verdict on an arm, with its jobs, retries and hangs only.

    Of a rotation's attempts, only those count for which the arm is blamed.
    """
    jobs = [result for result in trials if result.rotation is None]
    blamed = [
        blame
        for result in trials
        for blame in (result.rotation.blamed if result.rotation else ())
        if blame.program == arm
    ]
    return Verdict(
        arm=arm,
        kind=VerdictKind.INCONCLUSIVE,
        job_ids=job_ids_of(trials),
        retries=sum(max(len(result.job_ids) - 1, 0) for result in jobs) + len(blamed),
        hangs=sum(finding.cls in _HANGS for result in jobs for finding in result.findings)
        + sum(blame.cls in _HANGS for blame in blamed),
    )


def verdict_with_figures(arm: str, trials: Sequence[TrialResult]) -> Verdict:
    """Return an INCONCLUSIVE verdict on an arm, with the figures of its scored trials too.

    Its jobs are those of all trials.
    """
    base = verdict_without_figures(arm, trials)
    scored = [result for result in trials if usable(result)]
    return replace(with_figures(base, scored), job_ids=base.job_ids)


def values_of(results: Sequence[TrialResult]) -> list[float]:
    """Return the log scores of the trials that have one."""
    return [score.value for result in results if (score := usable(result))]


def with_effect(base: Verdict, trials: Sequence[TrialResult]) -> Verdict:
    """Return the verdict with the evidence that the arm's settings were in effect."""
    settings = [setting for trial in trials for setting in trial.own_settings]
    unproved = dict.fromkeys(setting.label for setting in settings if not setting.is_proved)
    weakest = max(
        (setting.effect for setting in settings), key=lambda effect: effect.rank, default=None
    )
    return replace(base, effect=weakest, unproved=tuple(unproved))


def with_figures(base: Verdict, trials: Sequence[TrialResult]) -> Verdict:
    """Return the verdict with means, jobs and settings in effect from the scored trials."""
    base = with_effect(base, trials)
    scored = [(result, score) for result in trials if (score := usable(result))]
    if not scored:
        return base
    mean, figure = fmean(score.value for _, score in scored), scored[0][1].figure
    steps_s = [score.step_s for _, score in scored if score.step_s is not None]
    return replace(
        base,
        n=len(scored),
        tgs=None if figure else math.exp(mean),
        step_s=math.exp(fmean(map(math.log, steps_s))) if steps_s else None,
        figure=replace(figure, value=math.exp(mean)) if figure else None,
        job_ids=job_ids_of([result for result, _ in scored]),
    )


def as_screened(base: Verdict, how: Message) -> Verdict:
    """Return a SCREENED verdict; `how` says how its figures were measured."""
    return replace(base, kind=VerdictKind.SCREENED, method=how)


def with_change(base: Verdict, change: float, ends: tuple[float, float] | None = None) -> Verdict:
    """Return a verdict with a change and the ends of its interval, which are given as log ratios.

    The verdict stores fractions. Without `ends` its interval does not change.
    """
    if ends is None:
        return replace(base, delta=relative(change))
    return replace(base, delta=relative(change), ci95=(relative(ends[0]), relative(ends[1])))


def relative_to(base: Verdict, reference: Verdict | None) -> Verdict:
    """Return a verdict whose figures are those of the reference times its change.

    The arm and the reference ran at different times, so their plain means may differ by more than
    the change. This way the figures agree with the change; the list of jobs has their own figures.
    """
    if reference is None or not (reference.n and base.n):
        return base
    if reference.figure is not None:
        return at_level(base, math.log(reference.figure.value))
    return base if reference.tgs is None else at_level(base, math.log(reference.tgs))


def at_level(base: Verdict, level: float) -> Verdict:
    """Return a verdict whose figures follow from its change and a reference score of `level`."""
    if base.delta is None or base.delta <= -1:
        return base
    value = level + math.log1p(base.delta)
    if base.figure is not None:
        figure = replace(base.figure, value=math.exp(value))
        return replace(base, figure=figure)
    if base.tgs is None:
        return base
    tgs = math.exp(value)
    # The tokens in a step belong to the arm: they differ between batch sizes.
    step_s = None if base.step_s is None else base.step_s * base.tgs / tgs
    return replace(base, tgs=tgs, step_s=step_s)


def level_kind(verdict: Verdict) -> VerdictKind:
    """Return the kind for an arm that is not accused: EQUIVALENT if its interval shows that.

    Otherwise it is SCREENED: it was measured and is not slow. It is not INCONCLUSIVE, because there
    is no suspicion that the trials could not decide.
    """
    if verdict.n < MIN_TRIALS or verdict.ci95 is None:
        return VerdictKind.SCREENED
    is_inside = verdict.ci95[0] > -EQUIVALENCE and verdict.ci95[1] < EQUIVALENCE
    return VerdictKind.EQUIVALENT if is_inside else VerdictKind.SCREENED


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockComparison:
    """A comparison of arms on complete blocks.

    Attributes:
        family: the number of arms that entered the blocks.
        fit: least squares over the blocks; None if no block has a baseline and another arm.
        comparisons: arm -> its comparison with the baseline, including the alias, without arms that
            a cut has dropped.
        kinds: arm -> the kind of its verdict.
    """

    family: int
    fit: BlockFit | None
    comparisons: Mapping[str, Comparison | NoComparison]
    kinds: Mapping[str, VerdictKind]


def compare_blocks(
    scored: Sequence[BlockScore], arms: Sequence[str], *, family: int
) -> BlockComparison:
    """Compare the arms that no cut has dropped with the baselines of complete blocks, once.

    The `family` arms that entered share alpha. A dropped arm can never win, so a cut spends no
    alpha of the arms that stay.
    """
    fit = fitted(scored)
    comparisons = {arm: compare(fit, arm, family=family, alpha=SWEEP_ALPHA) for arm in sorted(arms)}
    compared = {
        arm: comparison
        for arm, comparison in comparisons.items()
        if isinstance(comparison, Comparison)
    }
    kinds = dict.fromkeys(comparisons, VerdictKind.INCONCLUSIVE)
    kinds |= {arm: decide(comparison) for arm, comparison in compared.items()}
    if fit is not None:
        compared.pop(ALIAS.id, None)
        faster = winners(fit, compared, family=family, alpha=SWEEP_ALPHA)
        kinds |= dict.fromkeys(faster, VerdictKind.FASTER)
    return BlockComparison(family=family, fit=fit, comparisons=comparisons, kinds=kinds)


def with_comparison(
    base: Verdict, comparison: Comparison, *, kind: VerdictKind, reasons: Sequence[Message]
) -> Verdict:
    """Return a verdict with the figures of a comparison, as fractions."""
    return replace(
        with_change(base, comparison.estimate, comparison.ci95),
        kind=kind,
        n=comparison.n,
        mde80=relative(comparison.mde80),
        method=comparison.method,
        reasons=tuple(reasons),
    )


def job_ids_of(trials: Sequence[TrialResult]) -> tuple[str, ...]:
    """Return the job ids of all attempts."""
    return tuple(job_id for result in trials for job_id in result.job_ids)


def score_flags(trials: Sequence[TrialResult]) -> tuple[Message, ...]:
    """Return each flag of the scored trials with the number of trials that carry it."""
    scores: list[Score] = [score for result in trials if (score := usable(result))]
    names = list(dict.fromkeys(flag for score in scores for flag in score.flags))
    counts = {name: sum(name in score.flags for score in scores) for name in names}
    return tuple(
        say("{flag} in {count} of {trials} trials", flag=name, count=count, trials=len(scores))
        for name, count in counts.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Veto:
    """Why an arm is compared with nothing.

    Attributes:
        why: the reason, as the verdict gives it.
        can_run: True if the arm ran, but computed something else; False if it cannot run.
    """

    why: Message
    can_run: bool = True

    def verdict_on(self, base: Verdict) -> Verdict:
        """Return the INVALID verdict on the arm, with `why` before its earlier reasons."""
        return replace(
            base,
            kind=VerdictKind.INVALID,
            can_run=self.can_run,
            reasons=(self.why, *base.reasons),
        )


def arm_veto(past: Past, arm: str, *, tolerance: float) -> Veto | None:
    """Return the veto on an arm that cannot run, or computes something else; None if there is none.

    A loss that is farther from the baseline's than `tolerance`, relative to it, counts as another
    computation.
    """
    trials = past.trials_of(arm)
    for result in trials:
        if result.status is TrialStatus.DROPPED:
            return Veto(why=result.reason or _CANNOT_RUN, can_run=False)
    others, first_loss = past.baseline_losses
    losses = losses_of(trials) if others else []
    why = first(
        different_loss(loss, median(others), tolerance=tolerance, others=others, first=first_loss)
        for loss in losses
    )
    return None if why is None else Veto(why=why)


def effect_veto(base: Verdict) -> Message | None:
    """Return that nothing shows the settings of a verdict to be in effect; None if all are."""
    if not base.unproved:
        return None
    return say(
        "nothing shows that {names} was in effect ({effect})",
        names=base.unproved,
        effect=base.effect,
    )


def lost_runs(trials: Sequence[TrialResult]) -> LostRuns | None:
    """Return the runs of an arm that are over without a score; None if there are none."""
    over = [result for result in trials if result.status.is_final]
    lost = [result for result in over if usable(result) is None]
    if not lost:
        return None
    return LostRuns(lost=len(lost), runs=len(over), to=tuple(dict.fromkeys(map(_cause, lost))))


def _cause(result: TrialResult) -> Message:
    """Return what a run was lost to: its failure class if it has one."""
    if result.actionable:
        cls = result.actionable[-1].cls
        return say("hang") if cls in _HANGS else say(_CLASS, cls=cls)
    why = result.reason or NOT_FINITE
    return say(_CLASS, cls=why.values["cls"]) if "cls" in why.values else why


def survivor_veto(
    trials: Sequence[TrialResult], references: Sequence[TrialResult]
) -> Message | None:
    """Return why lost runs forbid to call an arm faster; None if they do not.

    The runs with a score may be the fast ones: without this veto, a profile without a gain is
    FASTER if its slow runs are lost, and a profile at +4 % that hangs in half of its runs is FASTER
    in 205 of 300 sweeps. A claim is forbidden if fewer than three runs have a score, or if Fisher's
    exact test at 20 % shows that the arm loses more runs than the reference.
    """
    lost, reference_lost = lost_runs(trials), lost_runs(references)
    if lost is None:
        return None
    reference_runs = sum(result.status.is_final for result in references)
    baselines_lost = reference_lost.lost if reference_lost else 0
    p = straggler_p(lost.lost, lost.runs, baselines_lost, reference_runs)
    if p >= _SURVIVORS_P and lost.runs - lost.lost >= _LEAST_SURVIVORS:
        return None
    return coded(
        MessageCode.SURVIVORS,
        "{runs}, {baselines_lost} of {baselines} of the baselines: those that ended may be "
        "the fast ones",
        runs=lost.message,
        baselines_lost=baselines_lost,
        baselines=reference_runs,
    )


def straggler_veto(
    comparison: Comparison,
    trials: Sequence[TrialResult],
    baselines: Sequence[TrialResult],
    *,
    headroom: float,
    level: float = VETO_P,
) -> Message | None:
    """Return why slow steps that the score leaves out forbid a claim; None if they do not.

    They do if there are significantly more of them than in the baselines, unless their cost over
    the window is below the headroom of the claim.

    `comparison` and `trials` are those of the arm; `headroom` is the log ratio by which the claim
    exceeds its limit, `level` Fisher's exact p below which the number of slow steps is significant.
    """
    (slow, steps, cost), (base_slow, base_steps, base_cost) = map(_stragglers, (trials, baselines))
    p = straggler_p(slow, steps, base_slow, base_steps)
    extra = cost - base_cost if math.isfinite(base_cost) else math.inf
    if p >= level or headroom > extra:
        return None
    is_known = math.isfinite(extra)
    return say(
        "{slow} of its {steps} steps straggle against {baselines_slow} of {baselines_steps} "
        "of the baselines (p = {p:.3f}); with them the change is {change:percent}",
        slow=slow,
        steps=steps,
        baselines_slow=base_slow,
        baselines_steps=base_steps,
        p=p,
        change=relative(comparison.estimate - extra) if is_known else say("unknown"),
    )


def _stragglers(trials: Sequence[TrialResult]) -> tuple[int, int, float]:
    """Return the number of slow steps, that of all steps of the windows, and what they cost.

    The cost is the mean log ratio of the score to the TGS of the whole window, infinite if that is
    unknown. A program in a rotation has no slow steps, so only ordinary jobs count.
    """
    jobs = (result for result in trials if result.rotation is None)
    scores = [score for result in jobs if (score := usable(result))]
    costs = [
        score.value - math.log(score.window_tgs) if score.window_tgs else math.inf
        for score in scores
    ]
    return (
        sum(score.stragglers for score in scores),
        sum(score.n_steps + len(score.dropped) for score in scores),
        fmean(costs) if costs else math.inf,
    )


def reference(past: Past) -> Verdict:
    """Return the verdict line of the baseline, from all its trials but not from its alias."""
    results = past.trials_of(BASELINE_ID)
    base = Verdict(arm=BASELINE_ID, kind=VerdictKind.INVALID, job_ids=job_ids_of(results))
    scored = [result for result in results if usable(result)]
    if scored:
        kind, method = VerdictKind.EQUIVALENT, say(THE_REFERENCE)
        flags = score_flags(scored)
        return replace(
            with_figures(base, scored), kind=kind, delta=0.0, method=method, reasons=flags
        )
    final = [result for result in results if result.status.is_final]
    if not final:
        return replace(base, kind=VerdictKind.INCONCLUSIVE, reasons=(NOT_YET_MEASURED,))
    can_run = all(result.status is not TrialStatus.DROPPED for result in final)
    return replace(base, can_run=can_run, reasons=(final[0].reason or NO_SCORE,))


def deployed(cell: Cell, profile: Profile = BASELINE) -> Arm:
    """Return the arm of a profile on top of a deployed cell; by default of the cell itself."""
    return Arm(id=profile.id, cell_digest=cell.digest, profile=profile)


def as_answer(verdict: Verdict | None) -> Answer:
    """Return the answer that a verdict gives; `verdict` is None if the study has no such arm.

    An INVALID verdict is an answer if the arm itself is at fault: it cannot run, or it was measured
    and computes something else.
    """
    if verdict is None:
        return NEVER
    if verdict.kind is VerdictKind.INVALID and verdict.can_run and not verdict.n:
        return Answer(state=Answered.UNMEASURED, verdict=verdict)
    return Answer(state=Answered.YES, verdict=verdict)


def winner_answer(decision: Decision, number: int) -> Answer:
    """Return the arm that is recommended, number 0, or the next best of those that win.

    The answer is YES without an arm if there is none.
    """
    conclusion = decision.conclusion
    best = conclusion.winner
    others = (verdict for verdict in conclusion.verdicts if verdict.wins and verdict is not best)
    winners = [best, *others] if best is not None else []
    return arm_answer(winners[number].arm if number < len(winners) else "", decision.arms)


def arm_answer(arm: str, arms: Sequence[Arm]) -> Answer:
    """Return the arm with this id as an answer; YES without an arm if there is none."""
    match = next((candidate for candidate in arms if candidate.id == arm), None)
    return Answer(state=Answered.YES, arm=match)


class OneCell(Study, frozen=True, kw_only=True):
    """A study of profiles in one cell, compared with that cell as deployed."""

    cell: Cell

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The one cell."""
        return (self.cell,)

    @property
    def reference(self) -> str:
        """The cell as deployed."""
        return BASELINE_ID

    def answer(self, history: History, question: Question) -> Answer:
        """Return the answer to a waiting test: all verdicts come at once, with the last trial.

        A gate fails on a candidate that was measured but is not valid, e.g. with another loss.
        """
        decision = self.decide(history)
        if question.about is not Ask.PROVEN and decision.due:
            return NOT_YET
        if question.about in (Ask.SLOT, Ask.RANKED):
            return Answer(state=Answered.YES)
        if question.about in (Ask.BEST, Ask.PROVEN):
            return winner_answer(decision, question.number)
        arm = self.reference if question.about is Ask.REFERENCE else question.name
        return as_answer(decision.conclusion.verdict(arm))


class PlannedStudy(OneCell, frozen=True, kw_only=True):
    """A study of one cell that plans all of its trials before anything has run."""

    @property
    @abstractmethod
    def trials(self) -> tuple[Trial, ...]:
        """All trials of the study, in order."""

    @property
    @abstractmethod
    def arms(self) -> tuple[Arm, ...]:
        """All arms that are compared, the cell as deployed first."""

    @abstractmethod
    def lines(self, due: Sequence[Trial]) -> tuple[Message, ...]:
        """Return the lines of a plan about the study."""

    @abstractmethod
    def concluded(self, past: Past, planned: Sequence[Trial], due: Sequence[Trial]) -> Conclusion:
        """Return what follows from the trials so far.

        `planned` are all trials, except those of arms that cannot run; those in `due` are not over.
        """

    @remembered
    def decide(self, history: History) -> Decision:
        """Return the trials that are not over, and what follows from the others."""
        past = self.past(history)
        planned = tuple(trial for trial in self.trials if trial.arm not in past.dropped)
        due = past.not_over(planned)
        return Decision(
            due=due, arms=self.arms, concluded=lambda: self.concluded(past, planned, due)
        )

    def outlook(self, history: History) -> Outlook:
        """Return what is still to come."""
        due = self.decide(history).due
        return Outlook.of(due, lines=self.lines(due))

    def past(self, history: History) -> Past:
        """Return the trials of the study in a history, scored in one window."""
        return read(
            history,
            protocols={cell.digest: cell.protocol for cell in self.cells},
            declared={arm.profile.id: arm.profile for arm in self.arms},
            study=self.name,
        )
