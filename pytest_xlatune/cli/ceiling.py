"""`xlatune ceiling`: how much any setting of a kind could win at most, from captures of one run."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_xlatune.cli.parsers import (
    TRIAL,
    above_zero,
    add_json,
    add_options,
    options_of,
    positive,
    without_threads,
)
from pytest_xlatune.cli.show import Output


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
