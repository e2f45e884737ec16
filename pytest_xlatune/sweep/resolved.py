"""A sweep with nothing left to ask: its cell, where that has its folder, and the studies of it.

Made by `Sweep.resolve`. Nothing is submitted here, and no result is known.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_xlatune.campaign.limits import Limits
from pytest_xlatune.catalog.entries import load
from pytest_xlatune.catalog.ground import Ground
from pytest_xlatune.cells import Cell, Resources
from pytest_xlatune.profiles import Profile
from pytest_xlatune.records import digest
from pytest_xlatune.screening import Screening
from pytest_xlatune.screening.ways import Compiler, compiler_of
from pytest_xlatune.studies import Study
from pytest_xlatune.studies.calibration import CalibrationStudy
from pytest_xlatune.studies.derived import Around, Stacks
from pytest_xlatune.studies.gate import Gate, GateStudy
from pytest_xlatune.studies.singles import Singles
from pytest_xlatune.studies.tuning import TuningStudy
from pytest_xlatune.sweep.earlier import read_stored
from pytest_xlatune.sweep.inputs import ExecutorName
from pytest_xlatune.sweep.no_env import NO_ENV_ID

if TYPE_CHECKING:
    from pytest_xlatune.sweep.sweep import Sweep


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedSweep:
    """A sweep with nothing left to ask."""

    sweep: Sweep
    cell: Cell
    resources: Resources
    executor: ExecutorName
    budget: int
    seed: int
    limits: Limits = field(default_factory=Limits)
    screening: Screening | None = None
    settings: Mapping[str, str] = field(default_factory=dict)  # name -> where it was said
    no_env: str = ""  # why there is no `baseline-no-env`, where one is asked for
    ground: Ground | None = None  # what the profiles of derived waves are held against

    @property
    def restores(self) -> bool:
        """Whether `baseline-no-env` is among the profiles."""
        return any(each.id == NO_ENV_ID for each in self.sweep.profiles)

    @property
    def folder(self) -> Path:
        """The folder of the cell below the work directory, the same whatever nodes it is pinned to.

        Other nodes are then found in the ledger and refused, not measured beside it in silence.
        """
        cell = self.cell
        identity = {**cell.to_json(), "nodelist": [], "protocol": cell.protocol.identity}
        # from a label:  deepseek3-671b PP=2,FSDP=4 pdbs=7
        label = re.sub(r"[^A-Za-z0-9.=_-]+", "-", cell.label)
        return Path(self.sweep.name) / f"{label}-{digest(identity, length=8)}"

    def study(
        self,
        *,
        selected: frozenset[str] | None = None,
        confirm: bool = True,
        sigma: float | None = None,
    ) -> Study:
        """Return the study that this sweep asks for: of tuning, or its gate.

        Args:
            selected: ids of the profiles that are asked about; None is all of them.
            confirm: whether the confirmation of a tuning study is asked for.
            sigma: the job noise that a calibration found.

        Raises:
            ConfigError: the profiles do not fit the budget, or a stored baseline does not the cell.
        """
        if self.sweep.gate is None:
            return self.tuning(selected=selected, confirm=confirm, sigma=sigma)
        return self._gated(self.sweep.gate, selected)

    def check(self) -> None:
        """Spell every trial that can be named before anything has run.

        Raises:
            ConfigError: the profiles do not fit the budget, no trial could have a score, the
                launcher cannot start one (here or in another of the model's configurations), or
                there is no compiler for them.
        """
        self.cell.protocol.check_window()
        if self.screening is not None:
            self.compiler(self.screening)
        for cell in (self.cell, *map(self._cell_of, self.sweep.config_tags)):
            study = self.study()
            ahead = study.foreseen(()) if isinstance(study, TuningStudy) else study
            for trial in (*study.propose(()), *ahead.propose(())):
                self.sweep.launcher.launch(trial, cell)

    def compiler(self, screening: Screening) -> Compiler:
        """Return how the profiles are compiled without measuring them.

        Raises:
            ConfigError: no such target, or a trainer that would have to run on another machine.
        """
        launcher, cell = self.sweep.launcher, self.cell
        return compiler_of(screening, launcher=launcher, cell=cell, executor=self.executor)

    def calibration(self, jobs: int) -> CalibrationStudy:
        """Return the study of the cell's noise.

        Raises:
            ConfigError: too few jobs.
        """
        return CalibrationStudy(cell=self.cell, jobs=jobs)

    def elsewhere(self, tag: str, winner: Profile, gate: Gate) -> ResolvedSweep:
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
                config_tags={},
                gate=gate,
            ),
            cell=self._cell_of(tag),
            screening=None,
        )

    def _cell_of(self, tag: str) -> Cell:
        overrides = {**self.cell.overrides, **self.sweep.config_tags[tag]}
        return replace(self.cell, config_tag=tag, overrides=overrides)

    def _gated(self, gate: Gate, selected: frozenset[str] | None) -> GateStudy:
        sweep = self.sweep
        return GateStudy(
            cell=self.cell,
            # without one that is selected it is about all, e.g. where a test names its profile
            profiles=tuple(each for each in sweep.profiles if not selected or each.id in selected),
            gate=gate,
            budget=self.budget,
            seed=self.seed,
            stored=read_stored(Path(gate.stored), self.cell) if gate.stored else None,
            loss_tolerance=sweep.loss_tolerance,
        )

    def tuning(
        self,
        *,
        selected: frozenset[str] | None = None,
        confirm: bool = True,
        sigma: float | None = None,
    ) -> TuningStudy:
        """Return the tuning study; arguments and errors are those of `study`."""
        sweep = self.sweep
        return TuningStudy(
            cell=self.cell,
            profiles=sweep.profiles,
            stacks=tuple(rule for rule in sweep.derived if isinstance(rule, Stacks)),
            singles=tuple(_aimed(rule) for rule in sweep.derived if isinstance(rule, Singles)),
            ground=self.ground,
            around=tuple(rule for rule in sweep.derived if isinstance(rule, Around)),
            selected=selected,
            confirm=confirm,
            budget=self.budget,
            seed=self.seed,
            screen_baselines=sweep.screen_baselines,
            finalists=sweep.finalists,
            blocks=sweep.blocks,
            block_baselines=sweep.block_baselines,
            second_blocks=sweep.second_blocks,
            sigma_prior=sigma if sweep.sigma_prior is None else sweep.sigma_prior,
            equivalence=sweep.equivalence,
            loss_tolerance=sweep.loss_tolerance,
        )


def _aimed(rule: Singles) -> Singles:
    """Return a rule with what its candidates act on: the rule says so, or else the catalog."""
    known = {each.id: load().aims_of(each) for each in rule.candidates}
    return replace(rule, aims={**known, **rule.aims})
