"""`xlatune flags list | show | lint | diff`: settings, and the faults of profiles.

    list    the catalog; of an axis, the profiles that a wave would take
    show    everything known of a flag or a variable
    lint    the faults of profiles, by the rules and by the target's own XLA

Exit codes: 0 clean, 1 where something was found, 2 for wrong input.
"""

from __future__ import annotations

import argparse

from pytest_xlatune.catalog.candidates import candidates
from pytest_xlatune.catalog.context import deployed_context
from pytest_xlatune.catalog.entries import load
from pytest_xlatune.cli.lint import SCHEMA, add_context, add_lint
from pytest_xlatune.cli.parsers import add_commands, add_json
from pytest_xlatune.cli.show import Output
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.report.document import brief, lines
from pytest_xlatune.tasks.known_settings import entry_json, entry_line, known_of


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    lines_of = {
        "list": "list the catalog, or with --axis the profiles that a wave would try",
        "show": "show everything known of settings",
        "lint": "show the faults of profiles; exit code 1 if there are any",
    }
    kinds = add_commands(parser, lines_of, metavar="KIND")

    listed = kinds["list"]
    listed.add_argument(
        "--axis", metavar="AXIS", help="e.g. FSDP or PP=4,FSDP=2: the settings worth a trial there"
    )
    add_context(listed)
    add_json(listed)
    listed.set_defaults(run=_list)

    shown = kinds["show"]
    shown.add_argument("names", nargs="+", metavar="NAME", help="a flag, a variable, or its slug")
    add_json(shown)
    shown.set_defaults(run=_show)

    add_lint(kinds["lint"])


def _list(arguments: argparse.Namespace) -> Output:
    """Show the catalog; of an axis, the profiles that a wave would take, and what it leaves out."""
    context = deployed_context(arguments.deployed, jaxlib=arguments.jaxlib, device=arguments.device)
    if arguments.axis is None:
        for name in ("deployed", "jaxlib", "device"):
            if getattr(arguments, name):
                raise ConfigError(
                    f"--{name} chooses among the profiles of an axis; say which one, e.g. "
                    "--axis FSDP, or leave it out for the whole catalog"
                )
        entries = load().entries
        return Output(
            documents=(brief("The catalog", lines(*map(entry_line, entries))),),
            json=lambda: {"schema": SCHEMA, "entries": [entry_json(entry) for entry in entries]},
        )
    found = candidates(arguments.axis, context)
    width = max(len(profile.id) for profile in found.profiles)
    told = [f"{profile.id:{width}}  {profile.shown_text}" for profile in found.profiles]
    told += [f"left out: {out.profile}: {out.why}" for out in found.left_out]
    return Output(
        documents=(brief(f"Candidates of {arguments.axis.upper()}", lines(*told)),),
        json=lambda: {
            "schema": SCHEMA,
            "axis": arguments.axis.upper(),
            "jaxlib": context.jaxlib,
            "profiles": [profile.to_json() for profile in found.profiles],
            "left_out": [out.to_json() for out in found.left_out],
        },
    )


def _show(arguments: argparse.Namespace) -> Output:
    found = [known_of(name) for name in arguments.names]
    values = [value for each, _ in found for value in each]
    return Output(
        documents=(brief("Settings", *(lines(*told) for _, told in found)),),
        json=lambda: {"schema": SCHEMA, "entries": values},
    )
