"""Results to one document, and the document to markdown, a terminal and JSON. Pure.

    Subject -> leaderboard(), gate() ... -> Document        the same -> leaderboard_json()
    MeasuredCell... -> tuning() -> Document                 Document -> markdown(), terminal()
    verdict -> lines.words(), lines.paragraph()             a landed trial -> lines.live_line()

Every number is one of the arguments. Nothing here computes a delta, an interval or a verdict, and
`model.text` turns a figure into text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from statistics import fmean

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.environment import RunRecord
from pytest_xlatune.model.message import Message
from pytest_xlatune.model.pairs import CellsRecord
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.record import Real, Record
from pytest_xlatune.model.result import Conclusion, Score, TrialResult


class DeviceUse(Record, frozen=True, kw_only=True):
    """What an arm takes of a device, by the logs of its runs.

    Attributes:
        tflops: TFLOP/s, the mean over the runs that print it; None likewise of the others.
        mfu: percent of the stated peak; without one, as the logs print it.
        memory_gb: of the compiled step, the largest of any run, 2^30 bytes.
    """

    tflops: Real | None = None
    mfu: Real | None = None
    memory_gb: Real | None = None


Slots = tuple[tuple[str, str], ...]


def slot_numbers(slots: Slots) -> dict[str, int]:
    """Return the number of each slot, from 1, by the identity of the cell on it."""
    return {name: number for number, (name, _) in enumerate(slots, start=1)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a document of a conclusion is made of.

    Attributes:
        conclusion: the conclusion of the study.
        cells: as measured, the nodes that the scheduler picked included.
        profiles: what was compared with the baseline.
        history: the results, every score in the window of all trials.
        now: when, as the ledger says.
        stopped: why the sweep was stopped; "" where it was not.
        figures: of a calibration that is kept for later plans, one line each.
        evidence: each evidence run with what was read of it, one line each.
        record: what the figures rest on besides the settings; None of an imported table.
        patch: that deploys the recommended setting; "" where no file that was read has to change.
        slots: identity of the cell on each node slot -> its nodes as a host list; () is one slot.
        exposed: where a step of the baseline goes, by an evidence run of it.
        remarks: job id -> why it has no score, where no result says so.
        alone: of nodes that ran in pairs, how each did alone, and when; "" where that is unknown.
    """

    conclusion: Conclusion
    cells: tuple[Cell, ...]
    profiles: tuple[Profile, ...] = ()
    history: tuple[TrialResult, ...] = ()
    now: datetime
    stopped: str = ""
    figures: tuple[str, ...] = ()
    evidence: tuple[tuple[TrialResult, tuple[str, ...]], ...] = ()
    record: RunRecord | None = None
    patch: str = ""
    slots: Slots = ()
    exposed: Message | None = None
    remarks: Mapping[str, str] = field(default_factory=dict)
    alone: str = ""

    @property
    def uses(self) -> Mapping[str, DeviceUse]:
        """Arm -> what it takes of a device, of a study whose arms are cells."""
        facts = self.conclusion.facts
        if not isinstance(facts, CellsRecord):
            return {}
        scores: dict[str, list[Score]] = {}
        for result in self.history:
            if result.score is not None:
                scores.setdefault(result.trial.arm, []).append(result.score)
        return {
            arm: use
            for arm, own in sorted(scores.items())
            if (use := _use_of(own, facts.peak_tflops)) != DeviceUse()
        }

    @property
    def cell(self) -> Cell:
        """The cell, or the first of several."""
        return self.cells[0]


def _use_of(scores: list[Score], peak_tflops: float | None) -> DeviceUse:
    def printed(of: Callable[[Score], float | None]) -> list[float]:
        return [value for score in scores if (value := of(score)) is not None]

    tflops = printed(lambda each: each.tflops)
    mfu = printed(lambda each: each.mfu)
    if tflops and peak_tflops:
        mfu = [100 * fmean(tflops) / peak_tflops]
    return DeviceUse(
        tflops=fmean(tflops) if tflops else None,
        mfu=fmean(mfu) if mfu else None,
        memory_gb=max(printed(lambda each: each.memory_gb), default=None),
    )
