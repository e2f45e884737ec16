"""`xlatune plan`: show the trials that a sweep would run, their order, and what they can show."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_xlatune.cli.parsers import (
    OF_A_RUN,
    add_all,
    add_options,
    options_of,
)
from pytest_xlatune.cli.show import Output
from pytest_xlatune.cli.sweep_file import resolved_sweep
from pytest_xlatune.sweep.earlier import read_calibration, recorded_trials
from pytest_xlatune.tasks.plan import plan_of


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "sweep", type=Path, metavar="SWEEP_FILE", help="the test file that declares SWEEP"
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="compile the profiles on this machine, by one step of the trainer each, and show "
        "the results",
    )
    add_all(parser, "show the script of a job too, and the files that each command needs")
    add_options(parser, leave_out=OF_A_RUN - {"ask-above"})
    parser.set_defaults(run=_plan)


def _plan(arguments: argparse.Namespace) -> Output:
    options = options_of(arguments)
    resolved = resolved_sweep(arguments.sweep, options)
    resolved.check()
    known = read_calibration(options.workdir / resolved.folder, resolved.cell)
    sigma = known.noise.sigma_job if known else None
    earlier = recorded_trials(options.workdir / resolved.folder)
    study = resolved.study(sigma=sigma, earlier=earlier)
    plan = plan_of(
        resolved,
        study,
        workdir=options.workdir,
        compiles=arguments.compile,
        shows_all=arguments.all,
    )
    return Output(documents=(plan,))
