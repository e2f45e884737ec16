"""`xlatune flags list | show`: show the catalog, and all that is known of a setting."""

from __future__ import annotations

import argparse

from pytest_xlatune.catalog.candidates import candidates
from pytest_xlatune.catalog.context import deployed_context
from pytest_xlatune.catalog.entries import load
from pytest_xlatune.cli.show import Output
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.report.document import brief, lines
from pytest_xlatune.tasks.known_settings import entry_line, explain_setting

_CATALOG_HEAD = (
    "axes         setting = values that are tried, or why there are none: control does nothing, "
    "blocked may give wrong results, gone is no longer accepted"
)


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
        lines_of_all = map(entry_line, load().entries)
        return Output(documents=(brief("The catalog", lines(_CATALOG_HEAD, *lines_of_all)),))
    proposed = candidates(arguments.axis, context)
    width = max(len(profile.id) for profile in proposed.profiles)
    texts = [f"{profile.id:{width}}  {profile.shown_text}" for profile in proposed.profiles]
    texts += [f"left out: {omission.profile}: {omission.why}" for omission in proposed.left_out]
    return Output(documents=(brief(f"Candidates of {arguments.axis.upper()}", lines(*texts)),))


def run_show(arguments: argparse.Namespace) -> Output:
    """Show all that is known of each setting that the user names."""
    explained = map(explain_setting, arguments.names)
    return Output(documents=(brief("Settings", *(lines(*texts) for texts in explained)),))
