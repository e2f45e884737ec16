"""The common part of commands that run trials: show new results, and end jobs at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_xlatune.campaign.jobs import cancel_unwaited
from pytest_xlatune.cli.show import complain, show
from pytest_xlatune.report.lines import in_columns
from pytest_xlatune.sweep.groups import RunSettings
from pytest_xlatune.sweep.resolved import ResolvedSweep
from pytest_xlatune.tasks import new_session_id
from pytest_xlatune.tasks.live import LiveLines
from pytest_xlatune.tasks.live_page import LivePage
from pytest_xlatune.tasks.runs import Runs


@contextmanager
def trials_of(
    resolved: ResolvedSweep, options: RunSettings
) -> Iterator[tuple[Runs, Callable[[], None]]]:
    """Yield what runs trials of a sweep, and a function that shows new results; then end jobs."""
    folder, session = options.workdir / resolved.folder, new_session_id()
    tick = ticks(folder, session, options.reports)
    with jobs_of(folder), Runs(options, session=session) as runs:
        yield runs, tick


def ticks(folder: Path, session: str, reports: Path) -> Callable[[], None]:
    """Return a function that shows a line for each trial that has ended since the last call.

    The function also rewrites the report in `reports` from time to time.
    """
    feed = LiveLines(folder, session_id=session)
    page = LivePage(folder, reports, feed)

    def tick() -> None:
        is_news = False
        for landed in feed.landed():
            is_news = True
            show([in_columns(landed.line)] if landed.line else [])
        trouble = page.refresh(is_news=is_news)
        show([f"xlatune: {trouble}"] if trouble else [])

    return tick


@contextmanager
def jobs_of(folder: Path) -> Iterator[None]:
    """After the block, end the jobs of a cell that no process waits for; announce an interrupt."""
    try:
        yield
    except KeyboardInterrupt:
        message = (
            "interrupted. Jobs that no other session waits for are ended now, which may take a "
            "minute. Ctrl-C again leaves them running: the next run goes on with them"
        )
        complain([message])
        raise
    finally:
        end_jobs(folder)


def end_jobs(folder: Path) -> None:
    """End the jobs of a cell that no process waits for; an interrupt leaves them running."""
    try:
        ended = ", ".join(submission.job_id for submission in cancel_unwaited(folder))
    except KeyboardInterrupt:
        show(["xlatune: jobs that still run are left running; run again to go on"])
    else:
        show([f"xlatune: ended {ended}, because no session waits for them"] if ended else [])
