"""`xlatune drill`: show where the time of a step went, or what differs between variants."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_xlatune.cli.parsers import (
    AGAINST,
    TRIAL,
    add_json,
    add_options,
    options_of,
    positive,
)
from pytest_xlatune.cli.show import Output
from pytest_xlatune.evidence.trace import shipped_families
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow
from pytest_xlatune.tasks.drill import drill_variants, read_families
from pytest_xlatune.tasks.drill_document import NAME, TOP, drill_document, drill_json


def add_drill(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help=f"captures, or folders of them; {TRIAL}"
    )
    parser.add_argument(
        AGAINST,
        nargs="+",
        action="append",
        default=[],
        metavar="PATH",
        help="captures of a further variant, shown in a column of its own; `--` does the same",
    )
    for name in ("gpus", "steps"):
        parser.add_argument(
            f"--{name}",
            type=positive,
            metavar="N",
            help="how many you expect; captures that show another number are refused",
        )
    parser.add_argument(
        "--step-time",
        action="append",
        type=float,
        default=[],
        metavar="SECONDS",
        help="step time of a run without the profiler; give it once for each variant",
    )
    parser.add_argument(
        "--families",
        type=Path,
        metavar="FILE",
        help="your own families of kernels: a JSON list of name, kind, pattern",
    )
    parser.add_argument(
        "--top",
        type=positive,
        default=TOP,
        metavar="N",
        help=f"rows to show in a table of kernels ({TOP})",
    )
    parser.add_argument("--full-names", action="store_true", help="show names of kernels in full")
    parser.add_argument(
        "--force", action="store_true", help="show captures that lost events, under a warning"
    )
    parser.add_argument(
        "--collectives", action="store_true", help="show time and waits of collectives"
    )
    parser.add_argument(
        "--program",
        action="append",
        type=Path,
        default=[],
        metavar="DUMP",
        help="dump of the program, for bytes and bandwidths of collectives; once for each variant",
    )
    add_json(parser)
    add_options(parser, only=("workdir", "config"))
    parser.set_defaults(run=_drill)


def _drill(arguments: argparse.Namespace) -> Output:
    window = CaptureWindow(
        gpus=arguments.gpus,
        steps=arguments.steps,
        families=read_families(arguments.families) if arguments.families else shipped_families(),
        force=arguments.force,
    )
    drilled = drill_variants(
        [arguments.paths, *arguments.against],
        window,
        step_times_s=arguments.step_time,
        workdir=lambda: options_of(arguments).workdir,
        dumps=arguments.program,
        collectives=arguments.collectives,
    )
    width = None if arguments.full_names else NAME
    document = drill_document(drilled, top=arguments.top, width=width)
    collectives = [of_variant.to_json() for of_variant in drilled.collectives]
    talking = {"collectives": collectives} if collectives else {}
    return Output(
        documents=(document,),
        json=lambda: drill_json(*drilled.drills) | talking,
        problems=drilled.problems,
    )
