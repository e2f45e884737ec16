"""What a sweep would run, found out without running anything."""

from __future__ import annotations

from pytest_xlatune.cells import Stage, Trial
from pytest_xlatune.profiles import BASELINE
from pytest_xlatune.report.document import Document
from pytest_xlatune.report.figures import size
from pytest_xlatune.report.plan import plan
from pytest_xlatune.stats.capacity import Plan
from pytest_xlatune.studies import Study
from pytest_xlatune.studies.gate import GateStudy
from pytest_xlatune.studies.tuning import TuningStudy
from pytest_xlatune.sweep import ResolvedSweep

_SIGMAS = (0.003, 0.006, 0.010)  # job noise of a quiet, a usual and a noisy cell


def plan_of(resolved: ResolvedSweep, study: Study) -> Document:
    """Return the plan of a sweep that has measured nothing yet.

    Raises:
        ConfigError: a trial cannot be spelled.
    """
    trials = study.propose(())
    launcher = resolved.sweep.launcher
    profiles = {trial.profile.id: trial.profile for trial in trials} | {BASELINE.id: BASELINE}
    launches = [
        (each, launcher.launch(_trial_of(each.id, trials), resolved.cell))
        for each in sorted(profiles.values(), key=lambda each: not each.is_baseline)
        if any(trial.profile.id == each.id for trial in trials)
    ]
    return plan(
        cell=resolved.cell, trials=trials, launches=launches, capacity=_capacity(study, trials)
    )


def _trial_of(profile_id: str, trials: tuple[Trial, ...]) -> Trial:
    return next(trial for trial in trials if trial.profile.id == profile_id)


def _capacity(study: Study, trials: tuple[Trial, ...]) -> list[str]:
    if isinstance(study, GateStudy):
        design, margin = study.design, study.gate.margin
        block = f"{design.arms} candidates + {design.baselines} baselines"
        power = f"with 80 % power up to a job noise of {100 * design.noise(margin):.2f} %"
        return [
            f"{design.trials} trials: {design.blocks} blocks of {block}",
            f"an equal candidate passes at a margin of {size(margin)} {power}",
        ]
    if not isinstance(study, TuningStudy):
        return [f"{len(trials)} trials of the cell as deployed"]
    screened = sum(trial.stage is Stage.SCREEN for trial in trials)
    layout = study.layout
    if not isinstance(layout, Plan):
        return [f"{screened} trials", f"{layout.what}: {layout.why}"]
    blocks = f"{layout.blocks} blocks of {layout.finalists} + {layout.block_baselines} baselines"
    # of this cell where it is known
    sigmas = _SIGMAS if study.sigma_prior is None else (study.sigma_prior,)
    seen = ", ".join(f"{size(layout.mde80(sigma))} at {size(sigma)} job noise" for sigma in sigmas)
    return [
        f"{screened} trials of the screen, then {blocks}: {layout.jobs} jobs of {study.budget}",
        f"smallest effect confirmed with 80 % power: {seen}",
    ]
