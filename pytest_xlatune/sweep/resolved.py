"""A sweep with nothing left to ask: its cell, where that has its folder, and the studies of it.

Made by `Sweep.resolve`. Nothing is submitted here, and no result is known.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from pytest_xlatune.catalog.context import Context, is_control
from pytest_xlatune.catalog.entries import load
from pytest_xlatune.launchers.checkout import LauncherByCell
from pytest_xlatune.launchers.rotated import Rotates
from pytest_xlatune.model.cell import Cell, folder_of_family, secrets_in
from pytest_xlatune.model.channels import settings_in
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.metric import TGS
from pytest_xlatune.model.profile import NO_ENV_ID, Profile, effective_values, parse_flags
from pytest_xlatune.model.record import canonical
from pytest_xlatune.model.redact import keep_secret
from pytest_xlatune.model.text import same_value
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.design import Refusal
from pytest_xlatune.studies import Aim, Asked, DeclaredStudy, History, Study
from pytest_xlatune.studies.calibration import CalibrationStudy
from pytest_xlatune.studies.derived import Search, Singles, of_kind
from pytest_xlatune.studies.trials import pace_of
from pytest_xlatune.studies.tuning import RotationRule, TuningStudy
from pytest_xlatune.sweep.checkouts import of_commits, same_files
from pytest_xlatune.sweep.deployed import configured, with_sourced
from pytest_xlatune.sweep.registry import kind_of

if TYPE_CHECKING:
    from pytest_xlatune.sweep.declaration import CompileCheck, Sweep


USUAL_BUDGET = 50  # jobs, where none is named; rotations take less of it
_OTHERS = ("rotate", "budget")  # of the design's settings, those that say something else first


def _digest_of(image: str) -> str:
    """Return what an image is, whatever it is called: `a/b@sha256:..` is `sha256:..`."""
    return image.rpartition("@")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSweep:
    """A sweep with nothing left to ask."""

    sweep: Sweep  # its groups hold what the user said over what its file declares
    cell: Cell
    slots: tuple[tuple[str, ...], ...] = ()  # nodes of each slot, the cell's first; () is one
    compile_check: CompileCheck | None = None  # as this run does it
    settings: Mapping[str, str] = field(default_factory=dict)  # name -> where it was said
    no_env: str = ""  # why there is no `baseline-no-env`, where one is asked for
    jaxlib: str = ""  # that earlier trials recorded, where `baseline-no-env` rests on it
    # candidate -> its own cell; short hash and subject -> the cell at a commit that is compared
    others: Mapping[str, Cell] = field(default_factory=dict)
    commits: str = ""  # that are compared, as they were named
    context: Context | None = None  # what the profiles of derived waves are held against

    def __post_init__(self) -> None:
        for cell in self.cells:  # an error of this sweep may quote them
            keep_secret(secrets_in(cell, self.sweep.profiles))

    @property
    def restores(self) -> bool:
        """Whether `baseline-no-env` is among the profiles."""
        return any(profile.id == NO_ENV_ID for profile in self.sweep.profiles)

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cell, then those of candidates that have one of their own."""
        return tuple(dict.fromkeys((self.cell, *self.others.values())))

    @property
    def nodelist(self) -> tuple[str, ...]:
        """The nodes of all its slots, in order; () where none is named."""
        return tuple(name for slot in self.slots for name in slot) or self.cell.nodelist

    @property
    def first_cells(self) -> tuple[Cell, ...]:
        """Those that are measured first: a search of commits may never need the others."""
        if not self.commits:
            return self.cells
        codes = {cell.digest: cell.code for cell in self.study().cells}
        first = {codes[trial.cell_digest] for trial in self.study().decide(()).due}
        return tuple(cell for cell in self.cells if cell.code in first)

    @property
    def folder(self) -> Path:
        """The folder of the cell below the work directory, the same whatever nodes it is pinned to.

        Other nodes are then found in the ledger and refused, not measured beside it in silence.
        """
        return folder_of_family(self.sweep.name, self.cells)

    def study(
        self,
        *,
        selected: frozenset[str] | None = None,
        confirm: bool = True,
        sigma: float | None = None,
        earlier: History = (),
    ) -> Study:
        """Return the study that this sweep declares; without one it is a tuning study.

        Args:
            selected: ids of the arms that are asked about; None is all of them.
            confirm: whether the confirmation of a tuning study is asked for.
            sigma: the job noise that a calibration found.
            earlier: trials of the ledger, where sessions before this one have some.

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
                configured=configured(self.sweep.launcher, self.cell),
            )
        )

    def check(self) -> None:
        """Spell every trial that can be named before anything has run.

        Raises:
            ConfigError: the profiles do not fit the budget, no trial could have a score, the
                launcher cannot start one (here or in another of the model's configurations).
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
        """Refuse a candidate of a gate that equals the baseline: it would pass whatever changed.

        A control may equal it.
        """
        declared = self.sweep.declared
        if declared is None or study.traits.aim is not Aim.GATES:
            return
        by_digest = {cell.digest: cell for cell in study.cells}
        ahead = [trial for trial in reversed(study.outlook(()).ahead) if trial.rotation is None]
        trials = {trial.arm: trial for trial in ahead}
        reference = trials.get(study.reference)
        if reference is None:
            return

        # one without settings passed, exit status 0, while the trainer had become 10 % slower
        checkout = of_commits(self.sweep.launcher)
        same = self._started(reference, self.cell)
        for name, trial in trials.items():
            if name == study.reference or is_control(trial.profile):
                continue
            cell, where = by_digest[trial.cell_digest], f"sweep {self.sweep.name!r}, candidate"
            if self._started(trial, cell) == same or self._is_alike(trial.profile, cell):
                raise ConfigError(
                    f"{where} {name!r} starts exactly what the baseline starts, so it would pass "
                    "whatever has changed. Name the change: settings; a gate also takes a commit, "
                    "an image or an interpreter, as candidate(NAME, code=COMMIT)"
                )
            is_moved = checkout is not None and cell.code != self.cell.code
            at_commit = self._started(trial, replace(cell, code=self.cell.code)) == same
            if (
                checkout
                and is_moved
                and at_commit
                and same_files(checkout, cell.code, self.cell.code)
            ):
                raise ConfigError(
                    f"{where} {name!r}: commit {cell.code[:12]} holds the very same files as the "
                    f"baseline's {self.cell.code[:12]}; name another commit for one of them"
                )

    def _refuse_one_size(self, study: Study) -> None:
        """Refuse values, e.g. batch sizes, that no trial would be told: they are one program."""
        ahead, (first, *others) = study.outlook(()).ahead, study.cells
        # cells on other nodes, or of another commit or model, may well start the same command
        about = attrgetter("nodelist", "code", "model_tag")
        alike = [cell for cell in others if about(cell) == about(first)]
        if not ahead or not alike:
            return

        # a command without the placeholder was measured 11 times, and a size recommended
        if self._started(ahead[0], first) == self._started(ahead[0], alike[0]):
            changed = alike[0].overrides.items() - first.overrides.items()
            key = min((name for name, _ in changed), default="per_device_batch_size")
            raise ConfigError(
                f"sweep {self.sweep.name!r} compares values of {key}, and each of them would start "
                f"the same command: the launcher does not pass {key} on; a CommandLauncher takes "
                f"an argument '{{{key}}}'"
            )

    def _started(self, trial: Trial, cell: Cell) -> str:
        """Return what a trial starts as one text, without what says which trial it is."""
        named = replace(trial.profile, id="any")
        nameless = replace(trial, arm="any", profile=named, block=0, position=0, design=None)
        spec = self.sweep.launcher.launch(nameless, cell)
        # each trial and each cell has its own folder, which is no change
        return canonical(spec.to_json()).replace(nameless.id, "").replace(trial.cell_digest, "")

    def _is_alike(self, profile: Profile, cell: Cell) -> bool:
        """Whether a candidate repeats deployed settings, or names the same thing by other words.

        An image is its digest, an interpreter its folder and the file that it leads to.
        """
        if cell.code != self.cell.code or _digest_of(cell.image) != _digest_of(self.cell.image):
            return False
        if cell.launcher != self.cell.launcher:
            launcher = self.sweep.launcher
            other = launcher.launcher_of(cell) if isinstance(launcher, LauncherByCell) else launcher
            names = [Path(starter.interpreter) for starter in (launcher, other)]
            if not all(path.is_absolute() and path.exists() for path in names):
                return False
            if len({(path.parent.resolve(), path.resolve()) for path in names}) > 1:
                return False
        env = cell.environment
        deployed = effective_values(parse_flags(env.get("XLA_FLAGS", ""), where="XLA_FLAGS"))
        flags = effective_values(profile.flags)
        return (
            all(
                (deployed_value := deployed.get(name)) is not None
                and same_value(deployed_value, value)
                for name, value in flags.items()
            )
            and settings_in(profile.env, "").items() <= settings_in(env, "").items()
            and all(cell.overrides.get(key) == value for key, value in profile.overrides.items())
        )

    def calibration(self, jobs: int) -> CalibrationStudy:
        """Return the study of the cell's noise.

        Raises:
            ConfigError: too few jobs.
        """
        return CalibrationStudy(cell=self.cell, jobs=jobs)

    def elsewhere(self, tag: str, winner: Profile, gate: DeclaredStudy) -> ResolvedSweep:
        """Return the gate of a winner on another of the model's configurations.

        It is another cell, with a ledger and a report of its own.
        """
        sweep = self.sweep
        return dataclasses.replace(
            self,
            sweep=replace(
                sweep,
                name=f"{sweep.name}-{tag}",
                profiles=(winner,),
                derived=(),
                no_env=None,
                config_tags={},
                study=gate,
                gate=None,
            ),
            cell=self._cell_of(tag),
            slots=(),
            compile_check=None,
        )

    def _cell_of(self, tag: str) -> Cell:
        overrides = {**self.cell.overrides, **self.sweep.config_tags[tag]}
        cell = replace(self.cell, config_tag=tag, overrides=overrides, sourced=())
        return with_sourced(cell, self.sweep.launcher)

    @property
    def only_ranks(self) -> str:
        """Why the budget can rank profiles and decides nothing; "" where it decides.

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
        if of_kind(Search, sweep.derived) and not self.rotates:
            place = self.settings.get("rotate", "the sweep file")
            off = f"rotate is {design.rotate} ({place})"
            raise self._not_searched(self.why_not_rotated or off)
        settings = msgspec.structs.asdict(design)
        made = TuningStudy(
            cell=self.cell,
            profiles=sweep.profiles,
            derived=tuple(
                _aimed(rule) if isinstance(rule, Singles) else rule for rule in sweep.derived
            ),
            context=self.context,
            selected=selected,
            confirm=confirm,
            slots=self.slots,
            sigma_prior=sigma,
            rotation=self._rule(earlier),
            budget=design.budget or USUAL_BUDGET,
            **{name: value for name, value in settings.items() if name not in _OTHERS},
        )
        if made.searches and made.why_none_rotates is not None:
            raise self._not_searched(sentence(made.why_none_rotates))
        return made

    def _not_searched(self, why: str) -> ConfigError:
        """Say why a search cannot be: as jobs it would cost more than it finds."""
        return ConfigError(
            f"sweep {self.sweep.name!r}: a Search measures its candidates in rotations, but {why}; "
            "say on, and leave it enough jobs, or leave the Search out"
        )

    def _rule(self, earlier: History) -> RotationRule | None:
        """Return how a sweep rotates; None is off."""
        if not self.rotates:
            return None
        results = [result for result in earlier if result.trial.cell_digest == self.cell.digest]
        # what began with rotations goes on with them, whatever their pace says since
        must_save = self.must_save and not any(result.trial.rotation for result in results)
        pace = pace_of(results) if must_save else None
        is_usual = not self.sweep.design.budget
        return RotationRule(must_save=must_save, pace=pace, is_usual=is_usual)

    @property
    def must_save(self) -> bool:
        """Whether profiles rotate only where that saves time."""
        return self.sweep.design.rotate == "auto"

    @property
    def rotates(self) -> bool:
        """Whether profiles may take turns in one job.

        Raises:
            ConfigError: it is asked for, and cannot be: the message names the part that is missing.
        """
        asked, missing = self.sweep.design.rotate, self.why_not_rotated
        if asked == "on" and missing:
            place = self.settings.get("rotate", "the sweep file")
            raise ConfigError(
                f"sweep {self.sweep.name!r}: rotate is on ({place}), but {missing}; set it to off"
            )
        is_usual = self.sweep.launcher.rotates is Rotates.PYTHON
        return not missing and (asked == "on" or (asked == "auto" and is_usual))

    @property
    def why_not_rotated(self) -> str:
        """What of the sweep keeps its profiles from rotating; "" where nothing does."""
        if self.sweep.launcher.rotates is Rotates.NO:
            name = type(self.sweep.launcher).__name__
            return f"{name} does not start Python itself, so programs cannot take turns in it"
        if self.cell.protocol.scored_by is not TGS or not self.cell.protocol.is_scored:
            metric = self.cell.protocol.metric
            return f"turns are compared by the time of a step, and the metric is {metric!r}"
        return ""


def _aimed(rule: Singles) -> Singles:
    """Return a rule with what its candidates act on: the rule says so, or else the catalog."""
    known = {profile.id: load().aims_of(profile) for profile in rule.every}
    return replace(rule, aims={**known, **rule.aims})


def not_compiled(resolved: ResolvedSweep, study: Study) -> tuple[str, ...]:
    """Say that a sweep asks for a compile check which its study leaves out; () where it is done."""
    kind = kind_of(study.name)
    policy = study.policy
    if resolved.compile_check is None or policy.compiled_stage or study.traits.about_cell:
        return ()
    return (f"no compile check: a {kind.file_name} measures all that it compares",)
