"""Decide whether a candidate is not worse than the baseline by more than a margin.

A candidate has other settings, or another commit, image or interpreter, which make another cell.
Candidates and baselines run in blocks in random order, which are compared once, when all are over;
a gate never passes on missing trials. Gates of different candidates have different names, so that a
new commit is compared with baselines of its own blocks and never with last night's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import Message, first, say
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
from pytest_xlatune.studies import Aim, Asked, Candidate, DeclaredStudy, Traits, name_of
from pytest_xlatune.studies.trials import Orders, Past, usable
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

KIND = "gate"
_AGAINST_MARGIN = {
    VerdictKind.FASTER: "no regression: {worst:percent} at worst, the margin is {margin:size}",
    VerdictKind.EQUIVALENT: "no regression: {worst:percent} at worst, the margin is {margin:size}",
    VerdictKind.SLOWER: (
        "regression: {best:percent} at best, {worst:percent} at worst, the margin is {margin:size}"
    ),
    VerdictKind.INCONCLUSIVE: (
        "cannot tell: {worst:percent} at worst, {best:percent} at best, the margin is "
        "{margin:size}; {enough}"
    ),
}


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
        ids = {profile.id for profile in profiles}
        return GateStudy(
            cell=asked.cell,
            profiles=profiles,
            others={name: cell for name, cell in asked.others.items() if name in ids},
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
        where, layout = f"the gate of {self.cell.label}", self.layout
        check_unique(self.profiles, where=where)
        if not self.profiles:
            raise ConfigError(f"{where} has no candidate; declare at least one profile")
        if layout.trials > self.budget:
            raise ConfigError(
                f"{where} needs {layout.trials} jobs, the budget is {self.budget}; raise the "
                "budget, or declare fewer candidates"
            )
        if min(layout.blocks, layout.baselines) < 1 or layout.df < MIN_DF:
            raise ConfigError(
                f"{where}: {layout.blocks} trials of each of {layout.arms} candidates and "
                f"{layout.baselines * layout.blocks} baselines leave "
                f"{layout.df} degrees of freedom, {MIN_DF} are needed; add a block or a baseline"
            )

    @cached_property
    def name(self) -> str:
        """The kind of study and a digest of the candidates, the key and the layout."""
        candidates: list[Json] = sorted(
            [profile.id, profile.settings_text, self.others.get(profile.id, self.cell).digest]
            for profile in self.profiles
        )
        gate = self.gate
        layout: list[Json] = [gate.blocks, gate.block_baselines, self.seed]
        return name_of(KIND, candidates, gate.key, layout)

    @property
    def layout(self) -> GateLayout:
        """The number of its trials."""
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
        layout, margin = self.layout, self.gate.margin
        return (
            say(
                "{trials} trials: {blocks} blocks of {candidates} candidates + {baselines} "
                "baselines; an equal candidate passes at a margin of {margin:size} with 80 % "
                "power up to a job noise of {noise:.2%}",
                trials=layout.trials,
                blocks=layout.blocks,
                candidates=layout.arms,
                baselines=layout.baselines,
                margin=margin,
                noise=layout.noise(margin),
            ),
        )

    @cached_property
    def trials(self) -> tuple[Trial, ...]:
        """All trials that it plans, in order."""
        layout = self.layout
        planned = Orders(cell=self.cell, seed=self.seed, study=self.name).blocks(
            self.profiles,
            range(1, layout.blocks + 1),
            design=ConfirmDesign(
                arms=layout.arms, blocks=layout.blocks, baselines=layout.baselines
            ),
        )
        return tuple(
            replace(trial, cell_digest=self.others.get(trial.arm, self.cell).digest)
            for trial in planned
        )

    def concluded(self, past: Past, planned: Sequence[Trial], due: Sequence[Trial]) -> Conclusion:
        """Return the verdicts in declared order; none passes before all trials are over."""
        names = [profile.id for profile in self.profiles]
        compared = compare_blocks(past.scored_in_blocks(), names, family=len(names))
        progress = say(
            "cannot tell yet: {over} of {trials} trials are over",
            over=len(planned) - len(due),
            trials=len(planned),
        )
        baseline, fit = reference(past), compared.fit
        verdicts = tuple(
            relative_to(self._verdict(name, past, compared, progress if due else None), baseline)
            for name in names
        )
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
            notes=(past.window.note,) if past.window.note else (),
        )

    def _verdict(
        self, name: str, past: Past, compared: BlockComparison, progress: Message | None
    ) -> Verdict:
        """Return the verdict on a candidate: a veto, or the comparison once all trials are over."""
        trials, margin = past.confirms_of(name), self.gate.margin
        base = Verdict(arm=name, kind=VerdictKind.INCONCLUSIVE, job_ids=job_ids_of(trials))
        base = replace(with_figures(base, trials), reasons=score_flags(trials))
        if (veto := arm_veto(past, name, tolerance=self.loss_tolerance)) is not None:
            return veto.verdict_on(base)
        if progress is not None:
            return replace(base, reasons=(progress, *base.reasons))
        if not base.n:
            return replace(base, kind=VerdictKind.INVALID, reasons=(unmeasured(trials),))
        baselines, comparison = past.confirms_of(BASELINE_ID), compared.comparisons[name]
        lost = [result for result in (*trials, *baselines) if usable(result) is None]
        missing = say(
            "{absent} of {trials} trials have no score ({why}); run it again",
            absent=len(lost),
            trials=len(trials) + len(baselines),
            why=first(result.reason for result in lost) or say("no finite score"),
        )
        if isinstance(comparison, NoComparison):
            why = say("cannot tell: {why}", why=comparison.reason)
            return replace(base, reasons=(why, *([missing] if lost else []), *base.reasons))
        kind, (worst, _) = gate(comparison, margin=margin), interval90(comparison)
        doubts = [
            missing if lost else None,
            straggler_veto(comparison, trials, baselines, headroom=worst - math.log1p(-margin)),
            effect_veto(base),
        ]
        why = say(
            _AGAINST_MARGIN[kind],
            worst=relative(worst),
            best=relative(2 * comparison.estimate - comparison.lower),
            margin=margin,
            enough=self._enough(comparison) if kind is VerdictKind.INCONCLUSIVE else None,
        )
        objections = [say("cannot tell: {why}", why=doubt) for doubt in doubts if doubt is not None]
        reasons = [why, *objections]
        if objections and kind in (VerdictKind.FASTER, VerdictKind.EQUIVALENT):
            kind, reasons = VerdictKind.INCONCLUSIVE, [*objections, why]
        decided = with_comparison(base, comparison, kind=kind, reasons=(*reasons, *base.reasons))
        if kind is VerdictKind.EQUIVALENT and not is_within(comparison, margin=margin):
            # A loss is excluded but a gain is not, so it passes without being equivalent.
            decided = replace(decided, word="NO REGRESSION", against=say("{arm}", arm=BASELINE_ID))
        method = say(
            "non-inferiority at {margin:size}; {method}", margin=margin, method=comparison.method
        )
        # `n` counts all scored trials, not only compared ones
        return replace(decided, n=base.n, method=method)

    def _enough(self, comparison: Comparison) -> Message:
        """Return a sentence on how many trials would decide the gate."""
        enough = deciding_layout(comparison, self.layout, margin=self.gate.margin)
        if enough is None:
            return say(
                "at a job noise of {sigma:.2%} no reasonable number of trials would decide it: "
                "the change is too close to the margin",
                sigma=comparison.sigma,
            )
        return say(
            "at the noise seen ({sigma:.2%}) {blocks} blocks would decide it with 80 % power: "
            "{trials} trials, {more} more",
            sigma=comparison.sigma,
            blocks=enough.blocks,
            trials=enough.trials,
            more=max(enough.trials - self.layout.trials, 0),
        )
