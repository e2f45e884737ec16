"""How noisy a cell is: the baseline against itself, a dozen times.

An A/A study. It compares nothing, so it spends no alpha; its trials are its own, and no sweep takes
them for baselines measured beside its profiles. With several node slots it measures what these
differ by, and what a trial loses while all of them run. This module must not know of executors or
logs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import compress
from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.result import Conclusion, NoiseRecord, TrialResult
from pytest_xlatune.model.text import counted
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.design import outlook
from pytest_xlatune.stats.noise import (
    MIN_SCORES,
    Noise,
    SlotNoise,
    SlotTrial,
    estimate_noise,
    slot_noise,
)
from pytest_xlatune.studies import (
    Decision,
    History,
    OnNodeFailure,
    Outlook,
    Policy,
    Study,
    Traits,
    remembered,
)
from pytest_xlatune.studies.look import not_over
from pytest_xlatune.studies.trials import Past, read, usable
from pytest_xlatune.studies.verdicts import OneCell, deployed, reference

KIND = "calibration"
JOBS = 12  # gives the noise to within a quarter
STARTS = 3  # rounds with all slots busy
_PAIR = 2
_ALONE, _BUSY = "alone", "busy"  # stages on several slots


class CalibrationStudy(OneCell, frozen=True, kw_only=True, dict=True):
    """So many jobs of a cell as deployed.

    Attributes:
        cell: whose noise.
        jobs: where it has one slot.
        starts: rounds in which all slots run.
        slots: the nodes of each node slot, the cell's own first; () is the cell's alone.
    """

    traits: ClassVar[Traits] = Traits(about_cell=True)
    cell: Cell
    jobs: int = JOBS
    starts: int = 0
    slots: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        if self.jobs < MIN_SCORES:
            raise ConfigError(
                f"a calibration of {self.jobs} jobs is too small: {MIN_SCORES} are the least, "
                f"{JOBS} give the noise to within a quarter"
            )
        if self.slots and self.starts < _PAIR:
            raise ConfigError(
                f"{counted(self.starts, 'start')} of each slot: two are the least, three are usual"
            )

    @property
    def name(self) -> str:
        """The study's word."""
        return KIND

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """The cell on each of its node slots."""
        return tuple(replace(self.cell, nodelist=nodes) for nodes in self.slots) or (self.cell,)

    @property
    def policy(self) -> Policy:
        """A slot that cannot run is told; the others go on."""
        is_told = OnNodeFailure.VERDICT if self.slots else OnNodeFailure.STOP
        return Policy(on_node_failure=is_told)

    @remembered
    def decide(self, history: History) -> Decision:
        """Return the trials of the first step that is not over, and the noise so far."""
        past = self.past(history)
        due = next(filter(None, (not_over(past, step) for step in self.steps)), ())
        return Decision(
            due=due,
            arms=(deployed(self.cell),),
            concluded=lambda: conclusion(self, past, is_over=not due),
        )

    @remembered
    def outlook(self, history: History) -> Outlook:
        """Return what is still to come: of a round all slots run at once."""
        past = self.past(history)
        steps = [not_over(past, step) for step in self.steps]
        ahead = tuple(trial for step in steps for trial in step)
        count = len(self._trials)
        line = say("{trials:+trial} of the cell as deployed", trials=count)
        if self.slots:
            line = say(
                "{trials:+trial} ({alone} alone, the others in {rounds} rounds of all "
                "slots) of the cell as deployed",
                trials=count,
                alone=sum(each.stage == _ALONE for each in self._trials),
                rounds=self.starts,
            )
        return Outlook(
            ahead=ahead,
            left=len(ahead),
            at_most=len(ahead),
            rounds=sum(map(bool, steps)) if self.slots else len(ahead),
            told=lambda: (line,),
        )

    def past(self, history: History) -> Past:
        """Return its own trials: of those that measured something else, none."""
        own = tuple(result for result in history if self._is_own(result.trial.stage))
        protocols = {cell.digest: cell.protocol for cell in self.cells}
        return read(own, protocols=protocols, declared={}, study=KIND, slots=bool(self.slots))

    def _is_own(self, stage: str) -> bool:
        if self.slots:
            return stage in (_ALONE, _BUSY)
        return stage == KIND

    @cached_property
    def steps(self) -> tuple[tuple[Trial, ...], ...]:
        """The trials by step: a round of all slots, or a trial that runs alone."""
        if not self.slots:
            return (tuple(map(self._trial, range(self.jobs))),)
        # each slot runs alone once at least, and two do in each round, so that time is balanced
        count = len(self.slots)
        in_round = max(_PAIR, math.ceil(count / self.starts))
        steps: list[tuple[Trial, ...]] = []
        for at in range(self.starts):
            alone = [
                (self._trial(number, stage=_ALONE, slot=number % count),)
                for number in range(at * in_round, (at + 1) * in_round)
            ]
            busy = tuple(
                self._trial(at * count + slot, stage=_BUSY, slot=slot) for slot in range(count)
            )
            steps += [*alone[: in_round // 2], busy, *alone[in_round // 2 :]]
        return tuple(steps)

    @cached_property
    def _trials(self) -> tuple[Trial, ...]:
        return tuple(trial for step in self.steps for trial in step)

    def _trial(self, position: int, *, stage: str = KIND, slot: int = 0) -> Trial:
        return Trial(
            cell_digest=self.cells[slot].digest,
            profile=BASELINE,
            protocol=self.cell.protocol,
            study=KIND,
            stage=stage,
            position=position,
        )


def conclusion(study: CalibrationStudy, past: Past, *, is_over: bool) -> Conclusion:
    """Return the baseline's line, the job noise, and what budgets could see with it."""
    noise, window = _noise(past, study.cells), past.window
    return Conclusion(
        verdicts=(),
        reference=reference(past),
        record=NoiseRecord(sigma=noise.sigma_job if noise else None),
        complete=is_over,
        first_step=window.moved_to,
        notes=(
            *((outlook(noise.sigma_job),) if noise else ()),
            *(_told(study, past) if is_over else ()),
            *filter(None, [window.note]),
        ),
    )


def _told(study: CalibrationStudy, past: Past) -> tuple[Message, ...]:
    """Return what slots differ by; () where that was not asked for."""
    if not study.slots:
        return ()
    found = _slots(past, study.cells)
    if found is None:
        return (
            say("cannot tell what slots differ by: a slot has no score, or too few trials have"),
        )
    return found.found([compress(slot) for slot in study.slots])


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibrated:
    """What a calibration found; None where it cannot be told, or was not asked for."""

    jobs: tuple[TrialResult, ...]  # that have a score, in the order they ran
    noise: Noise | None = None
    slots: SlotNoise | None = None
    told: tuple[Message, ...] = ()  # of slots


def found_by(study: Study, history: History) -> Calibrated:
    """Return what a calibration found so far.

    Raises:
        TypeError: it is another study.
    """
    if not isinstance(study, CalibrationStudy):
        raise TypeError(f"{study.name} is no calibration")
    past = study.past(history)
    return Calibrated(
        jobs=tuple(scored(tuple(past.screen.values()))),
        noise=_noise(past, study.cells),
        slots=_slots(past, study.cells) if study.slots else None,
        told=_told(study, past),
    )


def _slots(past: Past, cells: Sequence[Cell]) -> SlotNoise | None:
    number = {cell.digest: at for at, cell in enumerate(cells)}
    times = [
        (result, score.value, result.outcome.start_s, result.outcome.end_s)
        for result in past.screen.values()
        if (score := usable(result)) is not None and result.outcome is not None
    ]
    first_s = min((start_s for _, _, start_s, _ in times if start_s is not None), default=0.0)
    trials = [
        SlotTrial(
            slot=number[result.trial.cell_digest],
            start_s=start_s - first_s,
            end_s=end_s - first_s,
            value=value,
        )
        for result, value, start_s, end_s in times
        if start_s is not None and end_s is not None
    ]
    return slot_noise(trials, slots=len(cells))


def scored(history: History) -> list[TrialResult]:
    """Return the jobs of a calibration that have a score, in the order they ran."""
    found = [
        result for result in history if result.trial.study == KIND and usable(result) is not None
    ]
    starts = [result.outcome.start_s if result.outcome else None for result in found]
    if None in starts:
        return sorted(found, key=lambda each: each.trial.position)
    return [result for _, result in sorted(zip(starts, found, strict=True), key=_start)]


def _start(pair: tuple[float | None, TrialResult]) -> tuple[float, int]:
    start_s, result = pair
    return start_s or 0.0, result.trial.position


def _noise(past: Past, cells: Sequence[Cell]) -> Noise | None:
    """Estimate the noise; what slots differ by, and what they cost each other, is none."""
    jobs = scored(tuple(past.screen.values()))
    scores = [(result.trial, score) for result in jobs if (score := usable(result)) is not None]
    if len(cells) == 1:
        return estimate_noise([score for _, score in scores])
    found = _slots(past, cells)
    if found is None:
        return None
    number = {cell.digest: at for at, cell in enumerate(cells)}
    among = (len(cells) - 1) / len(cells)  # an effect is against the mean of the others
    return estimate_noise(
        [
            replace(
                score,
                value=score.value
                - found.effects[number[trial.cell_digest]] * among
                - (found.busy or 0.0) * (trial.stage == _BUSY),
            )
            for trial, score in scores
        ]
    )
