"""`xlatune flags list | show | lint`: show settings, and the faults of profiles.

    list    show the catalog or, with --axis, the profiles that a wave would take
    show    show everything that is known of a flag or a variable
    lint    show the faults of profiles, by the rules and by the XLA of the target

The exit code is 0 if all is well, 1 if `lint` has an objection, and 2 for wrong input.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from pytest_xlatune.catalog.candidates import candidates
from pytest_xlatune.catalog.context import deployed_context
from pytest_xlatune.catalog.entries import load
from pytest_xlatune.cli.options import options_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.cli.sweep_file import resolved_sweep
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.text import counted
from pytest_xlatune.prepare.lint import Linted
from pytest_xlatune.report.document import brief, lines
from pytest_xlatune.tasks.known_settings import entry_json, entry_line, known_of
from pytest_xlatune.tasks.lint_profiles import lint_sweep, lint_words

SCHEMA = 1


def run_list(arguments: argparse.Namespace) -> Output:
    """Show the catalog or, for an axis, which profiles a wave would try and which it leaves out."""
    context = deployed_context(arguments.deployed, jaxlib=arguments.jaxlib, device=arguments.device)
    if arguments.axis is None:
        for name in ("deployed", "jaxlib", "device"):
            if getattr(arguments, name):
                raise ConfigError(
                    f"--{name} chooses among the profiles of an axis; say which one, e.g. "
                    f"--axis FSDP, or leave --{name} out for the whole catalog"
                )
        entries = load().entries
        return Output(
            documents=(brief("The catalog", lines(*map(entry_line, entries))),),
            json=lambda: {"schema": SCHEMA, "entries": [entry_json(entry) for entry in entries]},
        )
    proposed = candidates(arguments.axis, context)
    width = max(len(profile.id) for profile in proposed.profiles)
    texts = [f"{profile.id:{width}}  {profile.shown_text}" for profile in proposed.profiles]
    texts += [f"left out: {omission.profile}: {omission.why}" for omission in proposed.left_out]
    return Output(
        documents=(brief(f"Candidates of {arguments.axis.upper()}", lines(*texts)),),
        json=lambda: {
            "schema": SCHEMA,
            "axis": arguments.axis.upper(),
            "jaxlib": context.jaxlib,
            "profiles": [profile.to_json() for profile in proposed.profiles],
            "left_out": [omission.to_json() for omission in proposed.left_out],
        },
    )


def run_show(arguments: argparse.Namespace) -> Output:
    """Show all that is known of each setting that the user names."""
    known = [known_of(name) for name in arguments.names]
    values = [value for entries, _ in known for value in entries]
    return Output(
        documents=(brief("Settings", *(lines(*texts) for _, texts in known)),),
        json=lambda: {"schema": SCHEMA, "entries": values},
    )


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
        linted, profiles = lint_words(
            arguments.what, context, python=arguments.python or "", dump=arguments.dump
        )
    elif more:
        raise ConfigError(
            f"{first} is a sweep file, which has its own profiles; leave out {more[0].strip()!r}"
        )
    else:
        resolved = resolved_sweep(Path(first), options_of(arguments))
        linted, profiles = lint_sweep(
            resolved, context, python=arguments.python or "", dump=arguments.dump
        )
    ids = [profile.id for profile in profiles]
    return Output(
        documents=(brief("Faults of profiles", lines(*_objections(linted, len(ids)))),),
        json=lambda: {"schema": SCHEMA, "profiles": ids, **linted.to_json()},
        status=1 if linted.objections else 0,
    )


def _objections(linted: Linted, count: int) -> Iterator[str]:
    """Yield the objections, what was not checked, and a line with the counts."""
    yield from (f"{objection.level}: {objection}" for objection in linted.objections)
    yield from (f"unchecked: {unchecked}" for unchecked in linted.unchecked)
    checked_by = f"jaxlib {linted.jaxlib}" if linted.jaxlib else "no jaxlib asked"
    objections = (
        counted(len(linted.objections), "objection") if linted.objections else "no objection"
    )
    yield f"{counted(count, 'profile')}, {objections}, {checked_by}"
