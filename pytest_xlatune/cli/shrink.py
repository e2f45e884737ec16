"""`xlatune shrink`: reduce a profile that fails to the settings that matter."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from pytest_xlatune.cli.compile_check import add_compiler, compiler_of
from pytest_xlatune.cli.parsers import (
    OF_A_RUN,
    add_json,
    add_options,
    options_of,
    positive,
    resolved_sweep,
)
from pytest_xlatune.cli.show import Output
from pytest_xlatune.model.errors import ConfigError

if TYPE_CHECKING:
    from pytest_xlatune.tasks.shrink import Shrunk

SCHEMA = 1


def add_shrink(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("profile", metavar="SWEEP_FILE:PROFILE")
    parser.add_argument(
        "--trials",
        type=positive,
        metavar="N",
        help="where compiling does not show the failure, run the trainer (N times at most; on "
        "Slurm if the sweep runs there)",
    )
    parser.add_argument(
        "--tries", type=positive, default=64, metavar="N", help="compilations at most (64)"
    )
    add_compiler(parser)
    add_json(parser)
    add_options(parser, leave_out=OF_A_RUN)
    parser.set_defaults(run=_shrink)


def _shrink(arguments: argparse.Namespace) -> Output:
    from pytest_xlatune.report.document import brief, lines
    from pytest_xlatune.tasks.shrink import shrink_profile

    file, _, name = arguments.profile.rpartition(":")
    if not file:
        raise ConfigError(
            f"{arguments.profile}: expected SWEEP_FILE:PROFILE, e.g. sweeps/test_mine.py:overlap-2"
        )
    resolved = resolved_sweep(Path(file), options_of(arguments))
    site = resolved.sweep.site
    if arguments.trials and not site.runs_by.is_here and arguments.keep is None:
        raise ConfigError(
            f"trials that run by {site.runs_by.scheduler or site.executor} need a folder that the "
            "nodes see too: name one with --keep"
        )
    with TemporaryDirectory() as scratch:
        found = shrink_profile(
            resolved,
            name,
            compiler_of(resolved, arguments),
            folder=arguments.keep or Path(scratch),
            tries=arguments.tries,
            trials=arguments.trials,
        )
    return Output(
        documents=(brief("Shrunk", lines(*_told(found))),),
        json=lambda: {"schema": SCHEMA, "shrunk": found.to_json()},
    )


def _told(found: Shrunk) -> Iterator[str]:
    yield f"{found.profile}: {found.symptom.cls}: {found.symptom.said}"
    yield (
        f"  {len(found.settings)} of {found.of} settings still fail so, found by {found.by} in "
        f"{found.tries} tries"
        + ("" if found.is_minimal else "; not all sets could be tried: a smaller one may fail too")
    )
    yield from (f"  {each}" for each in found.settings)
