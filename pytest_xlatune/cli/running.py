"""What commands that run trials share: they show new results, and end jobs when they stop."""

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
    """Yield the `Runs` of a sweep, and a function that shows new results and is called often.

    After the block, the jobs that no process waits for are ended.
    """
    folder, session = options.workdir / resolved.folder, new_session_id()
    tick = progress_ticker(folder, session, options.reports)
    with ending_jobs(folder), Runs(options, session=session) as runs:
        yield runs, tick


def progress_ticker(folder: Path, session: str, reports: Path) -> Callable[[], None]:
    """Return a function that shows a line for each trial that has ended since the last call.

    The function also rewrites the report in `reports` from time to time.
    """
    feed = LiveLines(folder, session_id=session)
    page = LivePage(folder, reports, feed)

    def tick() -> None:
        is_news = False
        for progress in feed.news():
            is_news = True
            if progress.line:
                show([in_columns(progress.line)])
        trouble = page.refresh(is_news=is_news)
        if trouble:
            show([f"xlatune: {trouble}"])

    return tick


@contextmanager
def ending_jobs(folder: Path) -> Iterator[None]:
    """After the block, end the jobs of a cell that no process waits for.

    An interrupt of the block first gets a message, because ending jobs takes time.
    """
    try:
        yield
    except KeyboardInterrupt:
        message = (
            "interrupted. Jobs that no other session waits for are ended now, which may take a "
            "minute. Ctrl-C again leaves them running: the next run continues with them"
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
        show(["xlatune: jobs that still run are left running; run again to continue"])
    else:
        if ended:
            show([f"xlatune: ended {ended}, because no session waits for them"])
