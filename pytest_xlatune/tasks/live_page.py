"""Write the report of a sweep while it runs: after trials, at most every 30 seconds.

A failure to write must not end the sweep. It is reported once, and writing is tried again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from pytest_xlatune.model.errors import XlatuneError
from pytest_xlatune.report.page import Live
from pytest_xlatune.tasks.live import LiveLines
from pytest_xlatune.tasks.reports import write_so_far

_LOG = logging.getLogger("pytest_xlatune.tasks")
_PAUSE_S = 30.0  # seconds between two writes; a write for a large ledger takes seconds
# seconds until the report is written without news, to show readers that the session is alive
_RENEWED_S = 60.0


class LivePage:
    """The report of one ledger in a session; it is first written 30 seconds after the start."""

    def __init__(
        self, folder: Path, reports: Path, feed: LiveLines, *, now: Callable[[], float] = time.time
    ) -> None:
        self._folder, self._reports, self._feed, self._now = folder, reports, feed, now
        self._written_s = now()
        self._has_news = False
        self._last_problem = ""

    def refresh(self, *, is_news: bool) -> str:
        """Write the report if it is due; `is_news` if something happened since the last call.

        Return why it cannot be written; "" if it can be, or if the last call said the same.
        """
        self._has_news |= is_news
        began_s = self._now()
        pause_s = _PAUSE_S if self._has_news else _RENEWED_S
        if began_s - self._written_s < pause_s:
            return ""
        progress, running = self._feed.progress_and_jobs()
        live = Live(at_s=began_s, progress=progress, running=running)
        problem = ""
        try:
            write_so_far(self._folder, self._reports, live, self._feed.cell_report())
        except XlatuneError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - a fault of a page must not end a sweep
            _LOG.exception("the report of %s cannot be made while it runs", self._folder)
            problem = f"the report of {self._folder} cannot be made while the sweep runs: {error!r}"
        self._has_news, self._written_s = False, self._now()
        is_new = problem != self._last_problem
        self._last_problem = problem or self._last_problem
        return problem if is_new else ""
