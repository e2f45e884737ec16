"""Before the first job: what a sweep would run, and how much there is to win.

`xlatune plan` shows the trials, their order, and what they could see; `xlatune ceiling`, from the
captures of one run, how much any setting of a kind could win at most.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_xlatune.cli.parsers import (
    OF_A_RUN,
    TRIAL,
    above_zero,
    add_json,
    add_options,
    options_of,
    positive,
    resolved_sweep,
    without_threads,
)
from pytest_xlatune.cli.show import Output


def add_plan(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "sweep", type=Path, metavar="SWEEP_FILE", help="the test file that declares SWEEP"
    )
    add_options(parser, leave_out=OF_A_RUN - {"ask-above"})
    parser.set_defaults(run=_plan)


def _plan(arguments: argparse.Namespace) -> Output:
    from pytest_xlatune.sweep.earlier import read_calibration, recorded_trials
    from pytest_xlatune.tasks.plan import plan_of

    options = options_of(arguments)
    resolved = resolved_sweep(arguments.sweep, options)
    resolved.check()
    known = read_calibration(options.workdir / resolved.folder, resolved.cell)
    is_held = resolved.sweep.site.runs_by.holds_nodes
    sigma = known.sigma_for(is_held=is_held) if known else None
    share, folder = known.share if known else None, options.workdir / resolved.folder
    earlier = recorded_trials(folder) if resolved.may_rotate else ()
    study = resolved.study(sigma=sigma, share=share, earlier=earlier)
    plan = plan_of(resolved, study, workdir=options.workdir)
    return Output(documents=(plan,))


def add_ceiling(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help=f"captures, or folders of them; {TRIAL}"
    )
    parser.add_argument(
        "--program",
        type=Path,
        metavar="DUMP",
        help="dump of the program, which tells the FLOP of a step",
    )
    parser.add_argument(
        "--peak-tflops",
        type=above_zero,
        metavar="N",
        help="what the device multiplies at most, in TFLOP/s of bfloat16 without sparsity",
    )
    parser.add_argument(
        "--step-time",
        type=above_zero,
        metavar="SECONDS",
        help="step time of a run without the profiler",
    )
    parser.add_argument(
        "--steps", type=positive, metavar="N", help="how many you expect in the captures"
    )
    parser.add_argument(
        "--sees",
        type=above_zero,
        metavar="PERCENT",
        help="the smallest gain that your sweep finds, as `xlatune plan` tells it",
    )
    add_json(parser)
    add_options(parser, only=("workdir", "config"))
    parser.set_defaults(run=_ceiling)


def _ceiling(arguments: argparse.Namespace) -> Output:
    with without_threads():
        from pytest_xlatune.tasks.ceiling import CeilingAsked, ceiling_document, read_ceilings

    found, problems = read_ceilings(
        arguments.paths,
        CeilingAsked(
            program=arguments.program,
            steps=arguments.steps,
            step_s=arguments.step_time,
            tflops=arguments.peak_tflops,
        ),
        workdir=lambda: options_of(arguments).workdir,
    )
    sees = None if arguments.sees is None else arguments.sees / 100
    return Output(
        documents=(ceiling_document(found, problems, sees=sees),),
        json=found.to_json,
        source="traces",
        problems=problems,
    )
