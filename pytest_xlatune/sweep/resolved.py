"""A sweep with nothing left to ask: its cell, where that has its folder, and the studies of it.

Made by `Sweep.resolve`. Nothing is submitted here, and no result is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_xlatune.catalog.context import Context
from pytest_xlatune.catalog.entries import load
from pytest_xlatune.model.cell import Cell, folder_of_family
from pytest_xlatune.model.profile import NO_ENV_ID, Profile
from pytest_xlatune.studies import Asked, DeclaredStudy, Study
from pytest_xlatune.studies.calibration import CalibrationStudy
from pytest_xlatune.studies.tuning import TuningStudy
from pytest_xlatune.studies.tuning.derived import Around, Singles, Stacks
from pytest_xlatune.sweep.earlier import read_baselines
from pytest_xlatune.sweep.registry import kind_of

if TYPE_CHECKING:
    from pytest_xlatune.sweep.declaration import CompileCheck, Sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSweep:
    """A sweep with nothing left to ask."""

    sweep: Sweep  # its groups hold what the user said over what its file declares
    cell: Cell
    compile_check: CompileCheck | None = None  # as this run does it
    settings: Mapping[str, str] = field(default_factory=dict)  # name -> where it was said
    no_env: str = ""  # why there is no `baseline-no-env`, where one is asked for
    context: Context | None = None  # what the profiles of derived waves are held against

    @property
    def restores(self) -> bool:
        """Whether `baseline-no-env` is among the profiles."""
        return any(each.id == NO_ENV_ID for each in self.sweep.profiles)

    @property
    def folder(self) -> Path:
        """The folder of the cell below the work directory, the same whatever nodes it is pinned to.

        Other nodes are then found in the ledger and refused, not measured beside it in silence.
        """
        return folder_of_family(self.sweep.name, (self.cell,))

    def study(
        self,
        *,
        selected: frozenset[str] | None = None,
        confirm: bool = True,
        sigma: float | None = None,
    ) -> Study:
        """Return the study that this sweep declares; without one it is a tuning study.

        Args:
            selected: ids of the arms that are asked about; None is all of them.
            confirm: whether the confirmation of a tuning study is asked for.
            sigma: the job noise that a calibration found.

        Raises:
            ConfigError: the profiles do not fit the budget, or a stored baseline does not the cell.
        """
        declared, design = self.sweep.declared, self.sweep.design
        if declared is None:
            return self.tuning(selected=selected, confirm=confirm, sigma=sigma)
        return declared.study(
            Asked(
                cell=self.cell,
                variants={tag: self._cell_of(tag) for tag in self.sweep.config_tags},
                profiles=self.sweep.profiles,
                selected=selected,
                budget=design.budget,
                seed=design.seed,
                loss_tolerance=design.loss_tolerance,
                read_baselines=lambda path: read_baselines(Path(path), self.cell),
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
        own = {each.digest: each for each in study.cells}
        tagged = [self._cell_of(tag) for tag in self.sweep.config_tags]
        for trial in study.ahead(()):
            for cell in (own[trial.cell_digest], *tagged):
                self.sweep.launcher.launch(trial, cell)

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
        return replace(
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
            compile_check=None,
        )

    def _cell_of(self, tag: str) -> Cell:
        overrides = {**self.cell.overrides, **self.sweep.config_tags[tag]}
        return replace(self.cell, config_tag=tag, overrides=overrides)

    def tuning(
        self,
        *,
        selected: frozenset[str] | None = None,
        confirm: bool = True,
        sigma: float | None = None,
    ) -> TuningStudy:
        """Return the tuning study; arguments and errors are those of `study`."""
        sweep, design = self.sweep, self.sweep.design
        if design.sigma_prior is None:
            design = replace(design, sigma_prior=sigma)
        return TuningStudy(
            cell=self.cell,
            profiles=sweep.profiles,
            stacks=tuple(rule for rule in sweep.derived if isinstance(rule, Stacks)),
            singles=tuple(_aimed(rule) for rule in sweep.derived if isinstance(rule, Singles)),
            context=self.context,
            around=tuple(rule for rule in sweep.derived if isinstance(rule, Around)),
            selected=selected,
            confirm=confirm,
            **asdict(design),
        )


def _aimed(rule: Singles) -> Singles:
    """Return a rule with what its candidates act on: the rule says so, or else the catalog."""
    known = {each.id: load().aims_of(each) for each in rule.candidates}
    return replace(rule, aims={**known, **rule.aims})


def not_compiled(resolved: ResolvedSweep, study: Study) -> tuple[str, ...]:
    """Say that a sweep asks for a compile check which its study leaves out; () where it is done."""
    kind = kind_of(study.name)
    if resolved.compile_check is None or study.policy.compiles_first or kind.about_cell:
        return ()
    return (f"no compile check: a {kind.file_name} measures all that it compares",)
