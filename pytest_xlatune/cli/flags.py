"""`xlatune flags list | show | lint`: the catalog, all that is known of a setting, its faults."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from pytest_xlatune.catalog.candidates import candidates
from pytest_xlatune.catalog.context import (
    TEXT_ID,
    Level,
    Objection,
    deployed_context,
    text_profile,
)
from pytest_xlatune.catalog.effect import Examined
from pytest_xlatune.catalog.entries import load
from pytest_xlatune.cli.options import options_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.model.channels import on_top
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.text import counted
from pytest_xlatune.prepare.preflight import Target, lint
from pytest_xlatune.report.document import brief, lines
from pytest_xlatune.sweep.declaration import load_sweep
from pytest_xlatune.sweep.deployed import context_of
from pytest_xlatune.tasks.known_settings import entry_line, explain_setting

SCHEMA = 1
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


def run_lint(arguments: argparse.Namespace) -> Output:
    """Show the faults of the profiles of a sweep file, or of the settings of the command line.

    The exit status is 1 if there is an objection.
    """
    first, *more = arguments.what
    if arguments.python and arguments.jaxlib:
        raise ConfigError(
            "--python asks the XLA of that interpreter, --jaxlib only the catalog's tables; give "
            "one of the two"
        )
    context = deployed_context(arguments.deployed, jaxlib=arguments.jaxlib, device=arguments.device)
    if not first.strip().endswith(".py"):
        interpreter, profiles = sys.executable, _profile_of(arguments.what)
    elif more:
        raise ConfigError(
            f"{first} is a sweep file, which has its own profiles; leave out {more[0].strip()!r}"
        )
    else:
        resolved = load_sweep(Path(first)).resolve(options_of(arguments).for_sweeps)
        interpreter = resolved.sweep.launcher.interpreter
        profiles = resolved.sweep.named_profiles
        of_sweep = context_of(resolved.cell, resolved.sweep.launcher)
        context = replace(
            of_sweep,
            deployed=(*of_sweep.deployed, *context.deployed),
            env=on_top(of_sweep.env, context.env),
            jaxlib=context.jaxlib,
            device=context.device,
        )
    if isinstance(profiles, Objection):
        linted, profiles = Examined(objections=(profiles,)), ()
    else:
        python = arguments.python or interpreter
        # if a release of jaxlib is named, the catalog's tables are used and no XLA is asked
        is_asked = python and not context.jaxlib
        target = Target(python=python, environ=os.environ) if is_asked else None
        linted = lint(profiles, context, target)
    ids = [profile.id for profile in profiles]
    return Output(
        documents=(brief("Faults of profiles", lines(*_objections(linted, len(ids)))),),
        json=lambda: {"schema": SCHEMA, "profiles": ids, **linted.to_json()},
        status=1 if linted.objections else 0,
    )


def _profile_of(words: Sequence[str]) -> tuple[Profile, ...] | Objection:
    """Return the profile that flags and NAME=value make, or that a word has bad syntax."""
    try:
        return (text_profile(words),)
    except ConfigError as error:
        return Objection(rule="syntax", level=Level.FAULT, profile=TEXT_ID, text=str(error))


def _objections(linted: Examined, count: int) -> Iterator[str]:
    """Yield the objections, what was not checked, and a line with the counts."""
    yield from (f"{objection.level}: {objection}" for objection in linted.objections)
    yield from (f"unchecked: {unchecked}" for unchecked in linted.unchecked)
    checked_by = f"jaxlib {linted.jaxlib}" if linted.jaxlib else "no jaxlib asked"
    objections = (
        counted(len(linted.objections), "objection") if linted.objections else "no objection"
    )
    yield f"{counted(count, 'profile')}, {objections}, {checked_by}"
