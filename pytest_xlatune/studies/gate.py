"""Whether a candidate (a commit, an image, a flag) is no worse than the baseline by a margin.

No screen and no ranking: candidates and baselines in mirrored randomised blocks, looked at once,
when all are over. Pure and deterministic. What tells one gate from another is in the study's name,
so a new commit is compared with baselines measured beside it and never with those of last night,
unless the user names a stored baseline and with it accepts the drift.
This module must not know of executors, ledgers, clocks or logs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property

from pytest_xlatune.cells import Cell, Stage, Trial
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.profiles import BASELINE_ID, Profile, check_unique
from pytest_xlatune.records import Record, digest
from pytest_xlatune.results import Conclusion, TrialResult
from pytest_xlatune.stats.capacity import MIN_DF
from pytest_xlatune.stats.gates import Design
from pytest_xlatune.studies import History
from pytest_xlatune.studies.gate_verdicts import Gated, conclusion
from pytest_xlatune.studies.one_window import moved
from pytest_xlatune.studies.tuning_history import Past, median_loss, read
from pytest_xlatune.studies.tuning_layout import Orders

KIND = "gate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate(Record):
    """What a gate demands.

    Attributes:
        margin: relative loss of TGS that is a regression; 0.01 is 1 %.
        floor_tgs: Tokens/s/device that a candidate must exceed; None demands nothing.
        blocks: trials of each candidate.
        block_baselines: baselines beside them in each block.
        key: what tells this run of the gate from the last, e.g. the commit, where the candidates'
            settings do not; trials of another key are never used.
        stored: a `leaderboard.json` or `gate.json` whose baseline trials are used instead of fresh
            ones; "" is none. Whoever names it accepts that a drift since then is not excluded.
    """

    margin: float = 0.01
    floor_tgs: float | None = None
    blocks: int = 4
    block_baselines: int = 1
    key: str = ""
    stored: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.margin < 1:
            raise ConfigError(
                f"gate: the margin is {self.margin}, expected a fraction such as 0.01 for 1 %"
            )
        if self.floor_tgs is not None and not 0 < self.floor_tgs < math.inf:
            raise ConfigError(
                f"gate: the floor is {self.floor_tgs} TGS, expected a positive number"
            )
        if self.floor_tgs is not None and self.blocks <= MIN_DF:
            raise ConfigError(
                f"gate: {self.blocks} trials of a candidate cannot be held against a floor, "
                f"{MIN_DF + 1} are needed; raise `blocks`"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBaseline(Record):
    """Baseline trials of an earlier time: where they stand, when that was written, the trials."""

    source: str
    written: str
    trials: tuple[TrialResult, ...]


@dataclass(frozen=True, kw_only=True)
class GateStudy(Record):
    """One run of a gate over one cell.

    Not slotted, for what is derived from the fields is computed once.

    Attributes:
        cell: what is held fixed, and what the baseline is.
        profiles: the candidates that are asked about, on top of it.
        gate: what is demanded.
        budget: jobs that it may cost.
        seed: of the random orders.
        stored: the baseline, where it is not measured beside the candidates.
        loss_tolerance: relative distance from the baseline's loss that makes a trial invalid.
    """

    cell: Cell
    profiles: tuple[Profile, ...]
    gate: Gate = field(default_factory=Gate)
    budget: int = 50
    seed: int = 0
    stored: StoredBaseline | None = None
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
        if min(design.blocks, design.baselines + design.stored) < 1 or design.df < MIN_DF:
            raise ConfigError(
                f"{where}: {design.blocks} trials of each of {design.arms} candidates and "
                f"{design.baselines * design.blocks + design.stored} baselines leave "
                f"{design.df} degrees of freedom, {MIN_DF} are needed; add a block or a baseline"
            )

    @cached_property
    def name(self) -> str:
        """The study's word and which gate it is: candidates, key and layout, in any order."""
        settings = sorted([each.id, each.settings_text] for each in self.profiles)
        stored = [each.trial.id for each in self.stored.trials] if self.stored else []
        layout = [self.gate.blocks, self.design.baselines, self.seed]
        return f"{KIND}-{digest([settings, self.gate.key, layout, stored], length=8)}"

    @property
    def design(self) -> Design:
        """How many trials it rests on."""
        stored = len(self.stored.trials) if self.stored else 0
        return Design(
            arms=len(self.profiles),
            blocks=self.gate.blocks,
            baselines=0 if self.stored else self.gate.block_baselines,
            stored=stored,
        )

    def whole(self) -> GateStudy:
        """Return itself: who asks about fewer candidates asks another gate."""
        return self

    def left(self, history: History) -> int:
        """Return how many trials are still to come."""
        return len(self.propose(history))

    def propose(self, history: History) -> tuple[Trial, ...]:
        """Return the trials that are not over; none of a candidate that cannot run."""
        return self._gated(history).pending

    def conclude(self, history: History) -> Conclusion:
        """Return the candidates' verdicts; none passes before all trials are over."""
        return conclusion(self._gated(history))

    @cached_property
    def _trials(self) -> tuple[Trial, ...]:
        orders = Orders(
            cell=self.cell, cell_digest=self.cell.digest, seed=self.seed, study=self.name
        )
        design = self.design
        return orders.blocks(
            self.profiles,
            range(1, design.blocks + 1),
            baselines=design.baselines,
            group=f"k{design.arms}r{design.blocks}c{design.baselines}",
        )

    def _gated(self, history: History) -> Gated:
        return Gated(
            profiles=self.profiles,
            trials=self._trials,
            past=self._past(history),
            design=self.design,
            margin=self.gate.margin,
            floor_tgs=self.gate.floor_tgs,
            stored=f"{self.stored.source} of {self.stored.written}" if self.stored else "",
            loss_tolerance=self.loss_tolerance,
        )

    def _past(self, history: History) -> Past:
        past = read(
            history,
            cell_digest=self.cell.digest,
            protocol=self.cell.protocol,
            declared={profile.id: profile for profile in self.profiles},
            study=self.name,
        )
        if self.stored is None:
            return past
        # scored in one window with the candidates beside which they are held
        stored = tuple(moved(each, past.window) for each in self.stored.trials)
        return replace(
            past,
            runs={**past.runs, (Stage.CONFIRM, BASELINE_ID): stored},
            baseline_loss=median_loss(stored),
        )
