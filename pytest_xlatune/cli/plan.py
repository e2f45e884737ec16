"""`xlatune plan`: show the trials that a sweep would run, their order, and what they can show."""

from __future__ import annotations

import argparse

from pytest_xlatune.cli.options import options_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.sweep.declaration import load_sweep
from pytest_xlatune.sweep.earlier import read_calibration, recorded_trials
from pytest_xlatune.tasks.plan import plan_of


def run_plan(arguments: argparse.Namespace) -> Output:
    """Return the plan of a sweep."""
    options = options_of(arguments)
    resolved = load_sweep(arguments.sweep).resolve(options.for_sweeps)
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
