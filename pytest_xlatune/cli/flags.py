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
from pytest_xlatune.cli.parsers import add_commands, add_json, add_options, options_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.cli.sweep_file import resolved_sweep
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.text import counted
from pytest_xlatune.prepare.lint import Linted
from pytest_xlatune.report.document import brief, lines
from pytest_xlatune.tasks.known_settings import entry_json, entry_line, known_of
from pytest_xlatune.tasks.lint_profiles import lint_sweep, lint_words

SCHEMA = 1


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    help_of = {
        "list": "list the catalog, or with --axis the profiles that a wave would try",
        "show": "show everything known of settings",
        "lint": "show the faults of profiles; exit code 1 if there are any",
    }
    parsers = add_commands(parser, help_of, metavar="KIND")

    list_parser = parsers["list"]
    list_parser.add_argument(
        "--axis", metavar="AXIS", help="e.g. FSDP or PP=4,FSDP=2: the settings worth a trial there"
    )
    _add_context(list_parser)
    add_json(list_parser)
    list_parser.set_defaults(run=_list)

    show_parser = parsers["show"]
    show_parser.add_argument(
        "names", nargs="+", metavar="NAME", help="a flag, a variable, or its slug"
    )
    add_json(show_parser)
    show_parser.set_defaults(run=_show)

    _add_lint(parsers["lint"])


def _list(arguments: argparse.Namespace) -> Output:
    """Show the catalog or, for an axis, the profiles that a wave takes and those it leaves out."""
    context = deployed_context(arguments.deployed, jaxlib=arguments.jaxlib, device=arguments.device)
    if arguments.axis is None:
        for name in ("deployed", "jaxlib", "device"):
            if getattr(arguments, name):
                raise ConfigError(
                    f"--{name} chooses among the profiles of an axis; say which one, e.g. "
                    "--axis FSDP, or leave {name} out for the whole catalog"
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


def _show(arguments: argparse.Namespace) -> Output:
    """Show all that is known of each setting that the user names."""
    known = [known_of(name) for name in arguments.names]
    values = [value for entries, _ in known for value in entries]
    return Output(
        documents=(brief("Settings", *(lines(*texts) for _, texts in known)),),
        json=lambda: {"schema": SCHEMA, "entries": values},
    )


def _add_lint(parser: argparse.ArgumentParser) -> None:
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
    _add_context(parser)
    add_json(parser)
    add_options(parser)
    parser.set_defaults(run=_lint)


def _add_context(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe the target: deployed settings, jaxlib's release, device."""
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
    asked = f"jaxlib {linted.jaxlib}" if linted.jaxlib else "no jaxlib asked"
    objections = (
        counted(len(linted.objections), "objection") if linted.objections else "no objection"
    )
    yield f"{counted(count, 'profile')}, {objections}, {asked}"
