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
from pytest_xlatune.tasks.runs import Runs


@contextmanager
def trials_of(
    resolved: ResolvedSweep, options: RunSettings
) -> Iterator[tuple[Runs, Callable[[], None]]]:
    """Yield the `Runs` of a sweep, and a function that shows new results and is called often.

    The function also rewrites the report from time to time. After the block, the jobs that no
    process waits for are ended.
    """
    folder, session = options.workdir / resolved.folder, new_session_id()
    feed = LiveLines(folder, options.reports, session_id=session)

    def tick() -> None:
        show(in_columns(progress.line) for progress in feed.news() if progress.line)
        if trouble := feed.write_page():
            show([f"xlatune: {trouble}"])

    with ending_jobs(folder), Runs(options, session=session) as runs:
        yield runs, tick


@contextmanager
def ending_jobs(folder: Path) -> Iterator[None]:
    """After the block, end the jobs of a cell that no process waits for.

    An interrupt of the block first gets a message, because ending jobs takes time. A second one
    leaves the jobs running.
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
        try:
            if ended := ", ".join(job.job_id for job in cancel_unwaited(folder)):
                show([f"xlatune: ended {ended}, because no session waits for them"])
        except KeyboardInterrupt:
            show(["xlatune: jobs that still run are left running; run again to continue"])
