"""`xlatune calibrate`: run the baseline against itself, and show the noise."""

from __future__ import annotations

import argparse
import os

from pytest_xlatune.cli.options import options_of
from pytest_xlatune.cli.running import trials_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.report.document import brief, lines
from pytest_xlatune.sweep.declaration import load_sweep
from pytest_xlatune.sweep.earlier import CALIBRATION
from pytest_xlatune.tasks.runs import calibrate, document_of


def run_calibrate(arguments: argparse.Namespace) -> Output:
    """Run the trials; return the noise that they show."""
    options = options_of(arguments)
    resolved = load_sweep(arguments.sweep).resolve(options.for_sweeps)
    study = resolved.calibration(arguments.jobs)
    resolved.check()
    with trials_of(resolved, options) as (runs, tick):
        campaign = runs.open(resolved, study)
        calibration = calibrate(campaign, tick)
    folder = options.workdir / resolved.folder
    written = brief("Files", lines(f"written: {os.path.relpath(folder / CALIBRATION)}"))
    return Output(documents=(document_of(campaign, calibration), written))
