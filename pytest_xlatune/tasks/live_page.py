"""Write the report of a sweep while it runs: after trials, at most every ten seconds.

Nothing is measured or decided here, so nothing that fails here may end a sweep. A failure is
reported once, and writing is tried again.
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
_PAUSE_S = 10.0  # seconds between two writes
# seconds after which it is written in any case, so that a reader sees that the session is alive
_RENEWED_S = 60.0
_SHARE = 20  # writing takes at most this fraction (1/20) of the time, since a ledger may be large


class LivePage:
    """The report of one ledger in a session, written first ten seconds after the start."""

    def __init__(
        self, folder: Path, reports: Path, feed: LiveLines, *, now: Callable[[], float] = time.time
    ) -> None:
        self._folder, self._reports, self._feed, self._now = folder, reports, feed, now
        self._written_s = now()
        self._pause_s = _PAUSE_S
        self._is_old = False
        self._last_problem = ""

    def refresh(self, *, is_news: bool) -> str:
        """Write the report if it is due; `is_news` if something happened since the last call.

        Return, once, why it cannot be written; "" if it can be.
        """
        self._is_old |= is_news
        began_s = self._now()
        passed_s = began_s - self._written_s
        is_due = passed_s >= (self._pause_s if self._is_old else max(_RENEWED_S, self._pause_s))
        if not is_due:
            return ""
        if self._feed.is_idle:  # the report is written when the session ends
            self._written_s = began_s
            return ""
        progress, running = self._feed.progress_and_jobs()
        live = Live(
            written_s=began_s, alive_s=began_s, event_s=began_s, progress=progress, running=running
        )
        problem = ""
        try:
            write_so_far(self._folder, self._reports, live, self._feed.known())
        except XlatuneError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001 - a fault of a page must not end a night
            _LOG.exception("the report of %s cannot be made while it runs", self._folder)
            problem = f"the report of {self._folder} cannot be made while the sweep runs: {error!r}"
        self._is_old, self._written_s = False, self._now()
        self._pause_s = max(_PAUSE_S, _SHARE * (self._written_s - began_s))
        is_new = problem != self._last_problem
        self._last_problem = problem or self._last_problem
        return problem if is_new else ""
