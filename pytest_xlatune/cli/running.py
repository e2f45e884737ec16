"""Commands that run trials: they show new results, and end jobs when they stop.

xlatune calibrate    run the baseline against itself, and show the noise
xlatune evidence     record a dump and a capture of profiles, in trials without a score
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_xlatune.campaign.jobs import cancel_unwaited
from pytest_xlatune.cli.options import options_of
from pytest_xlatune.cli.show import Output, complain, show
from pytest_xlatune.report.document import brief, lines
from pytest_xlatune.report.lines import in_columns
from pytest_xlatune.sweep.declaration import load_sweep
from pytest_xlatune.sweep.earlier import CALIBRATION
from pytest_xlatune.sweep.groups import RunSettings
from pytest_xlatune.sweep.resolved import ResolvedSweep
from pytest_xlatune.tasks import new_session_id
from pytest_xlatune.tasks.live import LiveLines
from pytest_xlatune.tasks.runs import (
    Runs,
    calibrate,
    document_of,
    profiles_to_record,
    record,
    study_of_profile,
)


def run_calibrate(arguments: argparse.Namespace) -> Output:
    """Run the trials; return the noise that they show."""
    options = options_of(arguments)
    resolved = load_sweep(arguments.sweep).resolve(options.for_sweeps)
    study = resolved.calibration(arguments.jobs)
    resolved.check()
    with trials_of(resolved, options) as (runs, tick):
        campaign = runs.open(resolved, study)
        calibration = calibrate(campaign, tick)
    path = os.path.relpath(options.workdir / resolved.folder / CALIBRATION)
    written = brief("Files", lines(f"written: {path}"))
    return Output(documents=(document_of(campaign, calibration), written))


def run_evidence(arguments: argparse.Namespace) -> Output:
    """Record profiles one after another, and show their files."""
    options = options_of(arguments)
    resolved = load_sweep(arguments.sweep).resolve(options.for_sweeps)
    profile_ids = list(dict.fromkeys(arguments.profiles))
    profiles = profiles_to_record(resolved, options.workdir / resolved.folder, profile_ids)
    # build all studies first, so that a misspelt id is refused before anything runs
    studies = [study_of_profile(resolved, profile) for profile in profiles]
    resolved.check()
    problems: list[str] = []
    with trials_of(resolved, options) as (runs, tick):
        for study in studies:
            recorded = record(runs.open(resolved, study), tick)
            paths = filter(None, [recorded.dump, *recorded.captures, recorded.pgle])
            show([f"{recorded.profile}: trial {recorded.trial_id}"])
            show(f"  {line}" for line in (*recorded.facts, *map(os.path.relpath, paths)))
            problems += recorded.problems
    return Output(problems=problems)


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
