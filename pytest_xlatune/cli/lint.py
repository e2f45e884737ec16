"""`xlatune flags lint`: show the faults of profiles, by the rules and by the XLA of the target.

The exit code is 0 if all is well, 1 if there is an objection, and 2 for wrong input.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from pytest_xlatune.catalog.context import deployed_context
from pytest_xlatune.catalog.effect import Examined
from pytest_xlatune.cli.options import options_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.text import counted
from pytest_xlatune.report.document import brief, lines
from pytest_xlatune.sweep.declaration import load_sweep
from pytest_xlatune.tasks.lint_profiles import lint_sweep, lint_words

SCHEMA = 1


def run_lint(arguments: argparse.Namespace) -> Output:
    """Show the faults of the profiles of a sweep file, or of the settings of the command line."""
    first, *more = arguments.what
    if arguments.python and arguments.jaxlib:
        raise ConfigError(
            "--python asks the XLA of that interpreter, --jaxlib only the catalog's tables; give "
            "one of the two"
        )
    context = deployed_context(arguments.deployed, jaxlib=arguments.jaxlib, device=arguments.device)
    if not first.strip().endswith(".py"):
        linted, profiles = lint_words(arguments.what, context, python=arguments.python or "")
    elif more:
        raise ConfigError(
            f"{first} is a sweep file, which has its own profiles; leave out {more[0].strip()!r}"
        )
    else:
        options = options_of(arguments)
        resolved = load_sweep(Path(first)).resolve(options.for_sweeps)
        linted, profiles = lint_sweep(resolved, context, python=arguments.python or "")
    ids = [profile.id for profile in profiles]
    return Output(
        documents=(brief("Faults of profiles", lines(*_objections(linted, len(ids)))),),
        json=lambda: {"schema": SCHEMA, "profiles": ids, **linted.to_json()},
        status=1 if linted.objections else 0,
    )


def _objections(linted: Examined, count: int) -> Iterator[str]:
    """Yield the objections, what was not checked, and a line with the counts."""
    yield from (f"{objection.level}: {objection}" for objection in linted.objections)
    yield from (f"unchecked: {unchecked}" for unchecked in linted.unchecked)
    checked_by = f"jaxlib {linted.jaxlib}" if linted.jaxlib else "no jaxlib asked"
    objections = (
        counted(len(linted.objections), "objection") if linted.objections else "no objection"
    )
    yield f"{counted(count, 'profile')}, {objections}, {checked_by}"
