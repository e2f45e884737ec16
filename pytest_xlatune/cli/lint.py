"""`xlatune flags lint`: find the faults of profiles."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from pytest_xlatune.catalog.context import deployed_context
from pytest_xlatune.cli.parsers import add_json, add_options, options_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.cli.sweep_file import resolved_sweep
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.text import counted
from pytest_xlatune.prepare.lint import Linted
from pytest_xlatune.report.document import brief, lines
from pytest_xlatune.tasks.lint_profiles import lint_sweep, lint_words

SCHEMA = 1


def add_lint(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `lint`."""
    parser.add_argument(
        "what", nargs="+", metavar="SWEEP_FILE|TEXT", help="a sweep file; or flags and NAME=value"
    )
    parser.add_argument("--python", metavar="PATH", help="the interpreter whose XLA is asked")
    parser.add_argument(
        "--dump",
        type=Path,
        metavar="DUMP",
        help="dump of the program as deployed: finds flags that do nothing to it",
    )
    add_context(parser)
    add_json(parser)
    add_options(parser)
    parser.set_defaults(run=_lint)


def add_context(parser: argparse.ArgumentParser) -> None:
    """Add options for what profiles run on: the deployed settings, the release, the device."""
    parser.add_argument(
        "--deployed",
        metavar="TEXT",
        default="",
        help="deployed settings below the profiles: flags and NAME=value",
    )
    parser.add_argument(
        "--jaxlib",
        metavar="VERSION",
        default="",
        help="jaxlib's version on the target; the catalog's tables answer, and no XLA is asked",
    )
    parser.add_argument(
        "--device",
        metavar="NAME",
        default="",
        help="device of the target, e.g. sm_90, gfx942, v5e, cpu",
    )


def _lint(arguments: argparse.Namespace) -> Output:
    first, *more = arguments.what
    if arguments.python and arguments.jaxlib:
        raise ConfigError(
            "--python asks the XLA of that interpreter, --jaxlib only the catalog's tables; give "
            "one of the two"
        )
    said = deployed_context(arguments.deployed, jaxlib=arguments.jaxlib, device=arguments.device)
    if not first.strip().endswith(".py"):
        found, profiles = lint_words(
            arguments.what, said, python=arguments.python or "", dump=arguments.dump
        )
    elif more:
        raise ConfigError(
            f"{first} is a sweep file, whose own profiles are linted; leave out {more[0].strip()!r}"
        )
    else:
        resolved = resolved_sweep(Path(first), options_of(arguments))
        found, profiles = lint_sweep(
            resolved, said, python=arguments.python or "", dump=arguments.dump
        )
    ids = [profile.id for profile in profiles]
    return Output(
        documents=(brief("Faults of profiles", lines(*_objections(found, len(ids)))),),
        json=lambda: {"schema": SCHEMA, "profiles": ids, **found.to_json()},
        status=1 if found.objections else 0,
    )


def _objections(found: Linted, count: int) -> Iterator[str]:
    yield from (f"{objection.level}: {objection}" for objection in found.objections)
    yield from (f"unchecked: {each}" for each in found.unchecked)
    asked = f"jaxlib {found.jaxlib}" if found.jaxlib else "no jaxlib"
    objections = counted(len(found.objections), "objection") if found.objections else "no objection"
    yield f"{counted(count, 'profile')}, {objections}, {asked}"
