"""`xlatune calibrate`: run the baseline against itself, and show the noise."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from pytest_xlatune.cli.parsers import (
    OF_A_SESSION,
    add_options,
    add_yes,
    options_of,
    positive,
    resolved_sweep,
)
from pytest_xlatune.cli.running import trials_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.model.errors import ConfigError


def add_calibrate(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "sweep", type=Path, metavar="SWEEP_FILE", help="the test file that declares SWEEP"
    )
    parser.add_argument("--jobs", type=int, default=12, metavar="N", help="jobs to run (12)")
    parser.add_argument(
        "--allocations",
        type=positive,
        metavar="N",
        help="measure how alike the trials of one allocation are: N allocations of --starts trials "
        "each; with --slots N, how much slots differ and slow each other down: --starts "
        "rounds of all slots",
    )
    parser.add_argument(
        "--starts",
        type=positive,
        metavar="N",
        help="trials in each allocation, or rounds of all slots (3)",
    )
    parser.add_argument(
        "--rotations",
        type=positive,
        metavar="N",
        help="measure how alike the programs of one process are: N jobs, in which copies of the "
        "baseline take turns; replaces --jobs",
    )
    add_yes(parser)
    add_options(parser, leave_out=OF_A_SESSION)
    parser.set_defaults(run=_calibrate)


def _calibrate(arguments: argparse.Namespace) -> Output:
    from pytest_xlatune.prepare.compilers import check_sweep
    from pytest_xlatune.studies.calibration import STARTS
    from pytest_xlatune.sweep.earlier import CALIBRATION
    from pytest_xlatune.tasks.runs import calibrate, document_of, ways_document

    options = options_of(arguments)
    resolved = asked = resolved_sweep(arguments.sweep, options)
    on_slots = arguments.xlatune_slots not in (None, "1")
    allocations, starts = arguments.allocations or 0, arguments.starts or STARTS
    if arguments.starts and not (allocations or on_slots):
        raise ConfigError(
            "--starts counts the trials of --allocations or the rounds of --slots: add one of "
            "them, or leave --starts out"
        )
    study = resolved.calibration(
        arguments.jobs,
        allocations=allocations,
        starts=starts,
        on_slots=on_slots,
        rotations=arguments.rotations or 0,
    )
    if allocations:
        resolved = resolved.held(starts)
    check_sweep(resolved)
    with trials_of(resolved, options) as (runs, tick):
        campaign = runs.open(resolved, study)
        found = calibrate(campaign, tick)
    folder = options.workdir / resolved.folder
    documents = [document_of(campaign, found)]
    if allocations or on_slots:
        documents.append(ways_document(asked, found, folder=folder))
    from pytest_xlatune.report.document import brief, lines

    written = brief("Files", lines(f"written: {os.path.relpath(folder / CALIBRATION)}"))
    return Output(documents=(*documents, written))
