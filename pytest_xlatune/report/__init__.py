"""Results to one document, and the document to markdown, a terminal and JSON. Pure.

    Subject -> leaderboard(), gate() ... -> Document        the same -> leaderboard_json()
    Covered... -> tuning() -> Document                      Document -> markdown(), terminal()
    verdict -> lines.words(), lines.paragraph()             a landed trial -> lines.live_line()

Every number is one of the arguments. Nothing here computes a delta, an interval or a verdict, and
`model.text` turns a figure into text.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.environment import RunRecord
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.result import Conclusion, TrialResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What a document of a conclusion is made of.

    Attributes:
        conclusion: of the study.
        cells: as measured, the nodes that the scheduler picked included.
        profiles: what was compared with the baseline.
        history: the results, every score in the window of all trials.
        now: when, as the ledger says.
        stopped: why the sweep was stopped; "" where it was not.
        figures: of a calibration that is kept for later plans, one line each.
        evidence: each evidence run with what was read of it, one line each.
        record: what the figures rest on besides the settings; None of an imported table.
        patch: that deploys the recommended setting; "" where no file that was read has to change.
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

    @property
    def cell(self) -> Cell:
        """The cell, or the first of several."""
        return self.cells[0]
