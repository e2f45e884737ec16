"""`xlatune compile-check`: compile a sweep's profiles; nothing is measured."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_xlatune.cli.parsers import (
    OF_A_RUN,
    add_json,
    add_options,
    options_of,
    resolved_sweep,
)
from pytest_xlatune.cli.show import Output, live
from pytest_xlatune.model.channels import CHANNELS
from pytest_xlatune.model.errors import ConfigError

if TYPE_CHECKING:
    from pytest_xlatune.sweep.declaration import CompileCheck
    from pytest_xlatune.sweep.resolved import ResolvedSweep

SCHEMA = 1


def add_compile_check(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "sweep", type=Path, metavar="SWEEP_FILE", help="the test file that declares SWEEP"
    )
    add_compiler(parser)
    parser.add_argument(
        "--without-each",
        metavar="PROFILE",
        help="compile this profile (or several joined by +) as a whole and once without each of "
        "its flags, and show which flags changed the program",
    )
    add_json(parser)
    add_options(parser, leave_out=OF_A_RUN)
    parser.set_defaults(run=_compile_check)


def add_compiler(parser: argparse.ArgumentParser) -> None:
    """Add how profiles are compiled, which `compiler_of` reads."""
    targets = (
        "the device to compile for: h100, h200, b200, cpu, a TPU such as v5e:2x4, or a "
        "gpu_target_config.pbtxt"
    )
    for name, metavar, what in (
        (
            "program",
            "MODULE:FUNCTION",
            "the function to compile instead of the sweep's trainer, or MaxText's train_compile",
        ),
        (
            "target",
            "NAME",
            f"{targets}; with train_compile: cpu, or a name of MaxText's such as v5e-256",
        ),
        ("topology", "PxHxD", "partitions x hosts x devices of the program (1x1x1)"),
        ("python", "PATH", "the interpreter whose JAX compiles it"),
    ):
        parser.add_argument(f"--{name}", metavar=metavar, help=what)
    parser.add_argument(
        "--memory-limit",
        type=float,
        metavar="GIB",
        help="memory of a device, in place of the target's own",
    )
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="a new folder that keeps logs and dumps"
    )


def compiler_of(resolved: ResolvedSweep, arguments: argparse.Namespace) -> CompileCheck:
    """Return how profiles are compiled: as the sweep says, and the command line above it."""
    from pytest_xlatune.sweep.declaration import CPU, CompileCheck

    said = {
        "program": arguments.program,
        "target": arguments.target,
        "topology": arguments.topology,
        "python": arguments.python,
        "memory_limit_gib": arguments.memory_limit,
    }
    how = resolved.sweep.compile_check or CompileCheck()
    if arguments.program and not arguments.target and not how.target:
        asked = {name for each in resolved.sweep.profiles for name in each.env}
        if unread := sorted(CHANNELS.keys() & asked):
            raise ConfigError(
                f"profiles set {unread[0]}, which no compiler of this machine's processor reads; "
                "name the device, e.g. --target v5e:2x4, or say --target cpu"
            )
        said["target"] = CPU
    return dataclasses.replace(
        how, **{name: value for name, value in said.items() if value is not None}
    )


def _compile_check(arguments: argparse.Namespace) -> Output:
    from pytest_xlatune.evidence.hlo.difference import finding_line, summary_lines
    from pytest_xlatune.prepare.compile_check import compiled, without_each
    from pytest_xlatune.report.document import brief, lines

    resolved = resolved_sweep(arguments.sweep, options_of(arguments))
    how, tell = compiler_of(resolved, arguments), live(arguments)
    if arguments.without_each:
        proofs = without_each(resolved, how, arguments.without_each, keep=arguments.keep)
        return Output(
            documents=(brief("Flags that acted", lines(*(each.sentence for each in proofs))),),
            json=lambda: {"schema": SCHEMA, "flags": [each.to_json() for each in proofs]},
        )
    found = []
    width = max(len(each.id) for each in resolved.sweep.profiles)
    for each in compiled(resolved, how, keep=arguments.keep):
        found.append(each)
        tell([finding_line(each, width)])
    return Output(
        documents=(brief("Compiled", lines("", *summary_lines(found))),),
        json=lambda: {"schema": SCHEMA, "profiles": [each.to_json() for each in found]},
    )
