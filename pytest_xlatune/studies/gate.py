"""Decide whether a candidate is not worse than the baseline by more than a margin.

A candidate has other settings, or another commit, image or interpreter, which make another cell.

Validity comes first, then the margin. A gate never passes on missing trials: every planned trial
must have a score. There is no screen and no ranking: candidates and baselines run in randomised
blocks, which are compared once when all are over. Gates of different candidates have different
names, so that a new commit is compared with baselines of its own blocks and never with last
night's. The study is pure and deterministic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.profile import BASELINE_ID, Profile, check_unique
from pytest_xlatune.model.profile import profile as profile_of
from pytest_xlatune.model.record import Json, Real
from pytest_xlatune.model.result import (
    Comparison,
    Conclusion,
    NoiseRecord,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.model.sentences import SETTINGS_CHANGED
from pytest_xlatune.model.trial import Arm, ConfirmDesign, Trial
from pytest_xlatune.stats.compare import (
    GateLayout,
    NoComparison,
    deciding_layout,
    gate,
    interval90,
    is_within,
)
from pytest_xlatune.stats.design import MIN_DF, SWEEP_ALPHA
from pytest_xlatune.studies import (
    Aim,
    Asked,
    Candidate,
    DeclaredStudy,
    Traits,
    name_of,
)
from pytest_xlatune.studies.trials import (
    Orders,
    Past,
    usable,
)
from pytest_xlatune.studies.verdicts import (
    BlockComparison,
    PlannedStudy,
    arm_veto,
    compare_blocks,
    deployed,
    effect_veto,
    job_ids_of,
    reference,
    relative_to,
    score_flags,
    straggler_veto,
    unmeasured,
    with_comparison,
    with_figures,
)

_CANNOT_TELL_FOR = "cannot tell: {why}"

KIND = "gate"
NO_REGRESSION = "NO REGRESSION"


class Gate(DeclaredStudy, frozen=True, kw_only=True):
    """What a gate demands.

    Attributes:
        margin: relative loss of TGS that counts as a regression; 0.01 is 1 %.
        blocks: number of trials of each candidate.
        block_baselines: baselines in each block.
        key: a name for this run of the gate, e.g. the commit, if the candidates' settings do not
            differ from those of the last run. Trials with another key are never used.
        candidates: what is compared with the cell in addition to the profiles of the sweep.
    """

    kind: ClassVar[str] = KIND
    margin: Real = 0.01
    blocks: int = 4
    block_baselines: int = 1
    key: str = ""
    candidates: tuple[Candidate, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1:
            raise ConfigError(
                f"gate: the margin is {self.margin}, expected a fraction such as 0.01 for 1 %"
            )

    def study(self, asked: Asked) -> GateStudy:
        """Return the gate of the selected candidates; of all if no test selects one."""
        profiles = tuple(
            profile
            for profile in asked.profiles
            if not asked.selected or profile.id in asked.selected
        )
        return GateStudy(
            cell=asked.cell,
            profiles=profiles,
            others={
                profile.id: asked.others[profile.id]
                for profile in profiles
                if profile.id in asked.others
            },
            gate=self,
            budget=asked.budget,
            seed=asked.seed,
            loss_tolerance=asked.loss_tolerance,
        )


def candidate(
    name: str,
    flags: str = "",
    *,
    env: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
    note: str = "",
    code: str = "",
    image: str = "",
    python: str = "",
) -> Candidate:
    """Return a candidate of a gate: `candidate("head", code="HEAD")`.

    Args:
        name: a slug.
        flags: XLA flags in one text.
        env: environment variables on top of the deployed ones.
        overrides: `key=value` for the trainer.
        note: a note for readers.
        code: a commit of the trainer's repository; needs a `CheckoutLauncher`.
        image: replaces the cell's image; needs a `ContainerLauncher`.
        python: an interpreter that replaces the launcher's.

    Raises:
        ConfigError: a malformed name or flag.
    """
    settings = profile_of(name, flags, env=env or {}, overrides=overrides or {}, note=note)
    return Candidate(profile=settings, code=code, image=image, python=python)


class GateStudy(PlannedStudy, frozen=True, kw_only=True, dict=True):
    """One run of a gate; other candidates make another gate.

    Attributes:
        cell: the cell that is held fixed; as deployed it is the baseline.
        profiles: the candidates that are compared, on top of the cell.
        others: id of a candidate -> the cell that it is measured in, if that is not `cell`.
        gate: the demands.
        budget: how many jobs it may cost.
        seed: the seed of the random orders.
        loss_tolerance: relative distance from the baseline's loss that makes a trial invalid.
    """

    traits: ClassVar[Traits] = Traits(aim=Aim.GATES, compares_settings=True)
    cell: Cell
    profiles: tuple[Profile, ...]
    others: dict[str, Cell] = msgspec.field(default_factory=dict)
    gate: Gate = msgspec.field(default_factory=Gate)
    budget: int = 50
    seed: int = 0
    loss_tolerance: float = 0.02

    def __post_init__(self) -> None:
        where = f"the gate of {self.cell.label}"
        check_unique(self.profiles, where=where)
        if not self.profiles:
            raise ConfigError(f"{where} has no candidate; declare at least one profile")
        design = self.design
        if design.trials > self.budget:
            raise ConfigError(
                f"{where} needs {design.trials} jobs, the budget is {self.budget}; raise the "
                "budget, or declare fewer candidates"
            )
        if min(design.blocks, design.baselines) < 1 or design.df < MIN_DF:
            raise ConfigError(
                f"{where}: {design.blocks} trials of each of {design.arms} candidates and "
                f"{design.baselines * design.blocks} baselines leave "
                f"{design.df} degrees of freedom, {MIN_DF} are needed; add a block or a baseline"
            )

    @cached_property
    def name(self) -> str:
        """The kind of study and a digest of the candidates, the key and the layout."""
        candidates: list[list[str]] = []
        for profile in self.profiles:
            cell = self.others.get(profile.id)
            cell_digest = [cell.digest] if cell else []
            candidates.append([profile.id, profile.settings_text, *cell_digest])
        settings: list[Json] = [*sorted(candidates)]
        layout: list[Json] = [self.gate.blocks, self.gate.block_baselines, self.seed]
        return name_of(KIND, settings, self.gate.key, layout)

    @property
    def _orders(self) -> Orders:
        return Orders(cell=self.cell, seed=self.seed, study=self.name)

    @property
    def design(self) -> GateLayout:
        """The layout of its trials."""
        gate = self.gate
        return GateLayout(
            arms=len(self.profiles), blocks=gate.blocks, baselines=gate.block_baselines
        )

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The baseline's cell, then those of candidates that have one of their own."""
        return tuple(dict.fromkeys((self.cell, *self.others.values())))

    @property
    def arms(self) -> tuple[Arm, ...]:
        """The cell as deployed, then the candidates."""
        cells = ((profile, self.others.get(profile.id, self.cell)) for profile in self.profiles)
        return (deployed(self.cell), *(deployed(cell, profile) for profile, cell in cells))

    def lines(self, due: Sequence[Trial]) -> tuple[Message, ...]:
        """Return the lines of a plan about it: its layout, and what it can detect."""
        del due
        design, margin = self.design, self.gate.margin
        return (
            say(
                "{trials} trials: {blocks} blocks of {candidates} candidates + {baselines} "
                "baselines",
                trials=design.trials,
                blocks=design.blocks,
                candidates=design.arms,
                baselines=design.baselines,
            ),
            say(
                "an equal candidate passes at a margin of {margin:size} with 80 % power up to a "
                "job noise of {noise:.2%}",
                margin=margin,
                noise=design.noise(margin),
            ),
        )

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """All trials that it plans, in order."""
        design = self.design
        planned = self._orders.blocks(
            self.profiles,
            range(1, design.blocks + 1),
            design=ConfirmDesign(
                arms=design.arms, blocks=design.blocks, baselines=design.baselines
            ),
        )
        return tuple(
            replace(trial, cell_digest=self.others[trial.arm].digest)
            if trial.arm in self.others
            else trial
            for trial in planned
        )

    def concluded(self, past: Past, planned: Sequence[Trial], due: Sequence[Trial]) -> Conclusion:
        """Return the verdicts in declared order; none passes before all trials are over."""
        names = [profile.id for profile in self.profiles]
        block_comparison = compare_blocks(past.scored_in_blocks(), names, family=len(names))
        gated = Gated(
            study=self, past=past, planned=planned, due=due, block_comparison=block_comparison
        )
        baseline, fit = reference(past), block_comparison.fit
        verdicts = tuple(relative_to(_verdict(gated, name), baseline) for name in names)
        detectable = [verdict.mde80 for verdict in verdicts if verdict.mde80 is not None]
        return Conclusion(
            verdicts=verdicts,
            reference=baseline,
            record=NoiseRecord(
                mde80=max(detectable, default=None),
                sigma=fit.sigma if fit is not None and fit.df >= MIN_DF else None,
            ),
            alpha=SWEEP_ALPHA if past.confirm else 0.0,
            complete=not due,
            first_step=past.window.moved_to,
            notes=tuple(_notes(gated)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gated:
    """One run of a gate, finished or not.

    Attributes:
        study: the gate.
        past: the trials of the gate that have begun.
        planned: all trials of the gate, except those of candidates that cannot run.
        due: the planned trials that are not over.
        block_comparison: the comparison of the candidates with the baselines.
    """

    study: GateStudy
    past: Past
    planned: Sequence[Trial]
    due: Sequence[Trial]
    block_comparison: BlockComparison


def _verdict(gated: Gated, candidate: str) -> Verdict:
    """Return the verdict on a candidate: a veto, or the comparison once all trials are over."""
    trials = gated.past.confirms_of(candidate)
    base = Verdict(arm=candidate, kind=VerdictKind.INCONCLUSIVE, job_ids=job_ids_of(trials))
    base = with_figures(base, trials)
    veto = arm_veto(gated.past, candidate, tolerance=gated.study.loss_tolerance)
    if veto is not None and not veto.can_run:
        return veto.verdict_on(base)
    base = replace(base, reasons=score_flags(trials))
    if veto is not None:
        return veto.verdict_on(base)
    if gated.due:
        planned = len(gated.planned)
        return _with_reasons(
            base,
            say(
                "cannot tell yet: {over} of {trials} trials are over",
                over=planned - len(gated.due),
                trials=planned,
            ),
        )
    if not base.n:
        return replace(base, kind=VerdictKind.INVALID, reasons=(unmeasured(trials),))
    return _compared(gated, base)


def _compared(gated: Gated, base: Verdict) -> Verdict:
    """Return the verdict on a candidate that has a score, when all trials are over."""
    comparison, margin = gated.block_comparison.comparisons[base.arm], gated.study.gate.margin
    missing = _missing(gated, base.arm)
    if isinstance(comparison, NoComparison):
        return _with_reasons(base, say(_CANNOT_TELL_FOR, why=comparison.reason), *missing)
    trials, baselines = (gated.past.confirms_of(arm) for arm in (base.arm, BASELINE_ID))
    headroom = interval90(comparison)[0] - math.log1p(-margin)
    doubts = [
        *missing,
        straggler_veto(comparison, trials, baselines, headroom=headroom),
        effect_veto(base),
    ]
    kind, why = _margin(gated, comparison)
    objections = [say(_CANNOT_TELL_FOR, why=doubt) for doubt in doubts if doubt is not None]
    reasons = [why, *objections]
    if objections and kind in (VerdictKind.FASTER, VerdictKind.EQUIVALENT):
        kind, reasons = VerdictKind.INCONCLUSIVE, [*objections, why]
    method = say(
        "non-inferiority at {margin:size}; {method}", margin=margin, method=comparison.method
    )
    decided = with_comparison(base, comparison, kind=kind, reasons=(*reasons, *base.reasons))
    if kind is VerdictKind.EQUIVALENT and not is_within(comparison, margin=margin):
        # A loss is excluded but a gain is not, so the candidate passes without being equivalent.
        decided = replace(decided, word=NO_REGRESSION, against=say("{arm}", arm=BASELINE_ID))
    # `n` counts all scored trials, not only compared ones
    return replace(decided, n=base.n, method=method)


def _with_reasons(verdict: Verdict, *reasons: Message) -> Verdict:
    return replace(verdict, reasons=(*reasons, *verdict.reasons))


_AGAINST_MARGIN = {
    VerdictKind.FASTER: "no regression: faster by at least {least:percent}",
    VerdictKind.EQUIVALENT: "no regression: {worst:percent} at worst, the margin is {margin:size}",
    VerdictKind.SLOWER: (
        "regression: {best:percent} at best, {worst:percent} at worst, the margin is {margin:size}"
    ),
    VerdictKind.INCONCLUSIVE: (
        "cannot tell: {worst:percent} at worst, {best:percent} at best, the margin is "
        "{margin:size}; {enough}"
    ),
}


def _margin(gated: Gated, comparison: Comparison) -> tuple[VerdictKind, Message]:
    """Return the kind of verdict by the margin alone, and the reason."""
    margin = gated.study.gate.margin
    kind = gate(comparison, margin=margin)
    return kind, say(
        _AGAINST_MARGIN[kind],
        least=relative(comparison.lower),
        worst=relative(interval90(comparison)[0]),
        best=relative(2 * comparison.estimate - comparison.lower),
        margin=margin,
        enough=_enough(gated, comparison) if kind is VerdictKind.INCONCLUSIVE else None,
    )


def _enough(gated: Gated, comparison: Comparison) -> Message:
    """Return a sentence on how many trials would decide the gate."""
    design, sigma = gated.study.design, comparison.sigma
    enough = deciding_layout(comparison, design, margin=gated.study.gate.margin)
    if enough is None:
        text = (
            "at a job noise of {sigma:.2%} no reasonable number of trials would decide it: "
            "the change is too close to the margin"
        )
        return say(text, sigma=sigma)
    return say(
        "at the noise seen ({sigma:.2%}) {blocks} blocks would decide it with 80 % power: "
        "{trials} trials, {more} more",
        sigma=sigma,
        blocks=enough.blocks,
        trials=enough.trials,
        more=max(enough.trials - design.trials, 0),
    )


def _missing(gated: Gated, candidate: str) -> list[Message]:
    """Return the reasons why trials of the candidate or the baseline have no score."""
    compared_trials = [
        trial for trial in gated.study.trials if trial.arm in (candidate, BASELINE_ID)
    ]
    results = [gated.past.result_of(trial) for trial in compared_trials]
    without_score = [result for result in results if result is None or usable(result) is None]
    if not without_score:
        return []
    reason = without_score[0].reason if without_score[0] else None
    return [
        say(
            "{absent} of {trials} trials have no score ({why}); run it again",
            absent=len(without_score),
            trials=len(results),
            why=reason or say("no finite score"),
        )
    ]


def _notes(gated: Gated) -> list[Message]:
    """Return notes on steady state, and on settings that were edited since."""
    notes = [gated.past.window.note] if gated.past.window.note else []
    if gated.past.changed:
        notes.append(say(SETTINGS_CHANGED, arms=sorted(gated.past.changed)))
    return notes
