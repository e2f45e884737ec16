"""A sweep that is ready to run: its cell, the folder of the cell, and its studies.

`Sweep.resolve` makes it. Nothing is submitted here, and no result is known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from pytest_xlatune.catalog.context import Context, is_control
from pytest_xlatune.launchers import Rotates
from pytest_xlatune.model.cell import Cell, folder_of_family, secrets_in
from pytest_xlatune.model.channels import settings_in
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.metric import TGS
from pytest_xlatune.model.profile import NO_ENV_ID, Profile, effective_values, parse_flags
from pytest_xlatune.model.record import canonical
from pytest_xlatune.model.redact import keep_secret
from pytest_xlatune.model.result import TrialResult
from pytest_xlatune.model.text import same_value
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.bubble import config_of
from pytest_xlatune.stats.design import Plan, Refusal
from pytest_xlatune.stats.rotations import JobPace
from pytest_xlatune.studies import Aim, Asked, DeclaredStudy, History, Study
from pytest_xlatune.studies.calibration import CalibrationStudy
from pytest_xlatune.studies.derived import Search
from pytest_xlatune.studies.trials import STUDY, pace_of
from pytest_xlatune.studies.tuning import RotationRule, TuningStudy
from pytest_xlatune.sweep.deployed import NoEnv, deployed_files, with_sourced

if TYPE_CHECKING:
    from pytest_xlatune.sweep.declaration import CompileCheck, Sweep


USUAL_BUDGET = 50  # jobs if no budget is given; rotations need fewer
_HANDLED = ("rotate", "budget")  # settings of the design that `tuning` does not pass on as they are


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSweep:
    """A sweep that is ready to run.

    Attributes:
        sweep: the declaration, with the user's settings in its groups.
        cell: the cell.
        slots: the nodes of each slot, those of the cell first; () if there is one slot.
        compile_check: the compile check of this run; None if there is none.
        no_env: why there is no `baseline-no-env` although it was declared; "" otherwise.
        others: id of a candidate -> its cell, or label of a compared commit -> the cell at it.
        commits: the compared commits as the user named them; "" if none.
        context: what the profiles of derived waves are checked against; None without such waves.
    """

    sweep: Sweep
    cell: Cell
    slots: tuple[tuple[str, ...], ...] = ()
    compile_check: CompileCheck | None = None
    no_env: str = ""
    others: Mapping[str, Cell] = field(default_factory=dict)
    commits: str = ""
    context: Context | None = None

    def __post_init__(self) -> None:
        for cell in self.cells:  # errors of this sweep may quote the secrets of its cells
            keep_secret(secrets_in(cell, self.sweep.profiles))

    @property
    def has_no_env(self) -> bool:
        """Whether `baseline-no-env` is one of the profiles."""
        return any(profile.id == NO_ENV_ID for profile in self.sweep.profiles)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cell, then the cells of candidates that have their own."""
        return tuple(dict.fromkeys((self.cell, *self.others.values())))

    @property
    def nodelist(self) -> tuple[str, ...]:
        """The nodes of all slots, in order; () if none are named."""
        return tuple(name for slot in self.slots for name in slot) or self.cell.nodelist

    @property
    def first_cells(self) -> tuple[Cell, ...]:
        """The cells that are measured first; a search of commits may never need the others."""
        if not self.commits:
            return self.cells
        codes = {cell.digest: cell.code for cell in self.study().cells}
        first = {codes[trial.cell_digest] for trial in self.study().decide(()).due}
        return tuple(cell for cell in self.cells if cell.code in first)

    @property
    def folder(self) -> Path:
        """The folder of the cell below the work directory; see `folder_of_family`."""
        return folder_of_family(self.sweep.name, self.cells)

    def study(
        self,
        *,
        selected: frozenset[str] | None = None,
        confirm: bool = True,
        sigma: float | None = None,
        earlier: History = (),
    ) -> Study:
        """Return the study that this sweep declares; a tuning study if it declares none.

        Args:
            selected: ids of the arms that the selected tests need; None for all.
            confirm: whether the selected tests need the confirmation of a tuning study.
            sigma: the job noise from a calibration; None if unknown.
            earlier: trials of earlier sessions in the ledger.

        Raises:
            ConfigError: the profiles do not fit the budget.
        """
        declared, design = self.sweep.declared, self.sweep.design
        if declared is None:
            return self.tuning(selected=selected, confirm=confirm, sigma=sigma, earlier=earlier)
        return declared.study(
            Asked(
                cell=self.cell,
                variants={tag: self._cell_of(tag) for tag in self.sweep.config_tags},
                profiles=self.sweep.profiles,
                others=self.others,
                selected=selected,
                budget=design.budget or USUAL_BUDGET,
                seed=design.seed,
                loss_tolerance=design.loss_tolerance,
                commits=self.commits,
                asks_compiler=self.compile_check is not None,
                configured=config_of(
                    deployed_files(self.sweep.launcher, self.cell, env_file="", root=Path.cwd())
                ),
            )
        )

    def check(self) -> None:
        """Build the launch of every trial that is known before the first has run, to find errors.

        Raises:
            ConfigError: the profiles do not fit the budget, no trial could have a score, or the
                launcher cannot start one (here or in another configuration of the model).
        """
        self.cell.protocol.check_window()
        study = self.study()
        self._refuse_no_change(study)
        self._refuse_one_size(study)
        cells = {cell.digest: cell for cell in study.cells}
        tagged = [self._cell_of(tag) for tag in self.sweep.config_tags]
        for trial in study.outlook(()).ahead:
            for cell in (cells[trial.cell_digest], *tagged):
                self.sweep.launcher.launch(trial, cell)

    def _refuse_no_change(self, study: Study) -> None:
        """Refuse a candidate of a gate that equals the baseline: it would always pass.

        A control may be equal.
        """
        declared = self.sweep.declared
        if declared is None or study.traits.aim is not Aim.GATES:
            return
        by_digest = {cell.digest: cell for cell in study.cells}
        # reversed, so that the first trial of each arm stays in the dictionary
        ahead = [trial for trial in reversed(study.outlook(()).ahead) if trial.rotation is None]
        trials = {trial.arm: trial for trial in ahead}
        reference = trials.get(study.reference)
        if reference is None:
            return
        baseline_launch = self._launch_text(reference, self.cell)
        for name, trial in trials.items():
            if name == study.reference or is_control(trial.profile):
                continue
            cell = by_digest[trial.cell_digest]
            is_same = self._launch_text(trial, cell) == baseline_launch
            if is_same or (cell == self.cell and self._is_deployed(trial.profile)):
                is_same_commit = cell.code and cell.code == self.cell.code
                both = f" (both are commit {cell.code[:12]})" if is_same_commit else ""
                raise ConfigError(
                    f"sweep {self.sweep.name!r}, candidate {name!r} starts exactly what the "
                    f"baseline starts{both}, so it would pass whatever has changed. Name the "
                    "change: settings; a gate also takes a commit, an image or an interpreter, as "
                    "candidate(NAME, code=COMMIT)"
                )

    def _refuse_one_size(self, study: Study) -> None:
        """Refuse values, e.g. batch sizes, that the command does not contain.

        All sizes would run one program, and one of them would be recommended.
        """
        ahead, (first, *others) = study.outlook(()).ahead, study.cells
        # cells that differ in these fields may start the same command
        fields = attrgetter("nodelist", "code", "model_tag")
        other_sizes = [cell for cell in others if fields(cell) == fields(first)]
        if not ahead or not other_sizes:
            return
        other = other_sizes[0]
        if self._launch_text(ahead[0], first) == self._launch_text(ahead[0], other):
            changed = other.overrides.items() - first.overrides.items()
            key = min((name for name, _ in changed), default="per_device_batch_size")
            raise ConfigError(
                f"sweep {self.sweep.name!r} compares values of {key}, and each of them would start "
                f"the same command: the launcher does not pass {key} on; a CommandLauncher takes "
                f"an argument '{{{key}}}'"
            )

    def _launch_text(self, trial: Trial, cell: Cell) -> str:
        """Return what a trial starts as one text, without the names of the trial."""
        nameless_profile = replace(trial.profile, id="any")
        nameless = replace(
            trial, arm="any", profile=nameless_profile, block=0, position=0, design=None
        )
        spec = self.sweep.launcher.launch(nameless, cell)
        # names of folders have the ids of trials and cells
        return canonical(spec.to_json()).replace(nameless.id, "").replace(trial.cell_digest, "")

    def _is_deployed(self, profile: Profile) -> bool:
        """Return whether all settings of a profile are deployed, compared by value."""
        env = self.cell.environment
        deployed = effective_values(parse_flags(env.get("XLA_FLAGS", ""), where="XLA_FLAGS"))
        return (
            all(
                name in deployed and same_value(deployed[name], value)
                for name, value in effective_values(profile.flags).items()
            )
            and settings_in(profile.env, "").items() <= settings_in(env, "").items()
            and profile.overrides.items() <= self.cell.overrides.items()
        )

    def calibration(self, jobs: int) -> CalibrationStudy:
        """Return the study that measures the cell's noise.

        Raises:
            ConfigError: there are too few jobs.
        """
        return CalibrationStudy(cell=self.cell, jobs=jobs, slots=self.slots)

    def elsewhere(
        self, tag: str, profiles: Sequence[Profile], gate: DeclaredStudy | None = None
    ) -> ResolvedSweep:
        """Return a sweep of some profiles on another configuration of the model.

        It is another cell, with its own ledger and report. None for `gate` makes it a tuning sweep
        whose screen has two baselines.
        """
        design = self.sweep.design
        if gate is None:  # no block follows, so the stated blocks need not fit so few profiles
            design = replace(design, screen_baselines=2, finalists=0, blocks=0, block_baselines=0)
        sweep = replace(
            self.sweep,
            name=f"{self.sweep.name}-{tag}",
            profiles=tuple(profiles),
            design=design,
            derived=(),
            no_env=None,
            config_tags={},
            study=gate,
            gate=None,
        )
        cell = self._cell_of(tag)
        return dataclasses.replace(self, sweep=sweep, cell=cell, slots=(), compile_check=None)

    def no_env_on(self, tag: str) -> Profile:
        """Return `baseline-no-env` of a configuration; an empty profile says why there is none."""
        no_env = self.sweep.no_env or NoEnv()
        return no_env.profile(self.sweep.launcher, self._cell_of(tag))

    def _cell_of(self, tag: str) -> Cell:
        overrides = {**self.cell.overrides, **self.sweep.config_tags[tag]}
        cell = replace(self.cell, config_tag=tag, overrides=overrides, sourced=())
        return with_sourced(cell, self.sweep.launcher)

    @property
    def finalist_count(self) -> int:
        """The planned number of profiles that enter the confirmation; 0 if there is none.

        Raises:
            ConfigError: the profiles do not fit the budget.
        """
        layout, sweep = self.tuning().layout, self.sweep
        arms = len(sweep.profiles) + len(sweep.slots())
        return min(layout.finalists, arms) if isinstance(layout, Plan) else 0

    @property
    def only_ranks(self) -> str:
        """Why the budget can only rank profiles; "" if it can decide.

        Raises:
            ConfigError: the profiles do not even fit the budget.
        """
        layout = self.tuning().layout if self.sweep.declared is None else None
        return sentence(layout.why) if isinstance(layout, Refusal) else ""

    def tuning(
        self,
        *,
        selected: frozenset[str] | None = None,
        confirm: bool = True,
        sigma: float | None = None,
        earlier: History = (),
    ) -> TuningStudy:
        """Return the tuning study; arguments and errors are those of `study`."""
        sweep, design = self.sweep, self.sweep.design
        if any(isinstance(rule, Search) for rule in sweep.derived) and not self.rotates:
            raise self._no_search(self.why_not_rotated or f"rotate is {design.rotate}")
        settings = msgspec.structs.asdict(design)
        study = TuningStudy(
            cell=self.cell,
            profiles=sweep.profiles,
            derived=sweep.derived,
            context=self.context,
            selected=selected,
            confirm=confirm,
            slots=self.slots,
            sigma_prior=sigma,
            rotation=self._rotation_rule(earlier),
            budget=design.budget or USUAL_BUDGET,
            **{name: value for name, value in settings.items() if name not in _HANDLED},
        )
        if study.searches and study.why_none_rotates is not None:
            raise self._no_search(sentence(study.why_none_rotates))
        return study

    def _no_search(self, why: str) -> ConfigError:
        """Return the error for a search without rotations: as jobs it would cost too much."""
        return ConfigError(
            f"sweep {self.sweep.name!r}: a Search measures its candidates in rotations, but {why}; "
            "set rotate to on with a large enough budget, or leave the Search out"
        )

    def _rotation_rule(self, earlier: History) -> RotationRule | None:
        """Return how the sweep rotates; None if it does not."""
        if not self.rotates:
            return None
        results = [result for result in earlier if result.trial.cell_digest == self.cell.digest]
        # A sweep that began with rotations continues with them, whatever their pace. A sweep that
        # was interrupted among the jobs of its screen, or has blocks, continues with jobs.
        has_rotated = any(result.trial.rotation for result in results)
        must_save = self.sweep.design.rotate == "auto" and not has_rotated
        if must_save and any(map(_keeps_to_jobs, results)):
            return None
        pace, trial_s = pace_of(results) if must_save else None, self.sweep.site.trial_s
        if must_save and pace is None and trial_s:
            pace = JobPace.guessed(trial_s, self.cell.protocol.steps)
        has_budget = bool(self.sweep.design.budget)
        return RotationRule(must_save=must_save, pace=pace, is_usual=not has_budget)

    @property
    def rotates(self) -> bool:
        """Whether profiles may take turns in one job.

        Raises:
            ConfigError: rotation is required but impossible; the message names what is missing.
        """
        rotate, missing = self.sweep.design.rotate, self.why_not_rotated
        if rotate == "on" and missing:
            raise ConfigError(
                f"sweep {self.sweep.name!r}: rotate is on, but {missing}; set it to off"
            )
        is_automatic = rotate == "auto" and self.sweep.launcher.rotates is Rotates.PYTHON
        return not missing and (rotate == "on" or is_automatic)

    @property
    def why_not_rotated(self) -> str:
        """Why the sweep's profiles cannot rotate; "" if they can."""
        if self.sweep.launcher.rotates is Rotates.NO:
            name = type(self.sweep.launcher).__name__
            return f"{name} does not start Python itself, so programs cannot take turns"
        if self.cell.protocol.scored_by is not TGS or not self.cell.protocol.is_scored:
            metric = self.cell.protocol.metric
            return f"turns are compared by the time of a step, and the metric is {metric!r}"
        return ""


def _keeps_to_jobs(result: TrialResult) -> bool:
    """Return whether a trial is a profile's job in a block, or an open one in a screen."""
    trial = result.trial
    if trial.study != STUDY or trial.is_baseline:
        return False
    return not (trial.is_screened and result.status.is_final)
