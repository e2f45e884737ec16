"""Find the faults of the profiles of a sweep file, or of settings typed on the command line."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import msgspec

from pytest_xlatune.catalog.context import (
    TEXT_ID,
    Context,
    Level,
    Objection,
    text_profile,
)
from pytest_xlatune.catalog.effect import Examined
from pytest_xlatune.model.channels import on_top
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.prepare.lint import Target, lint
from pytest_xlatune.sweep.deployed import context_of
from pytest_xlatune.sweep.resolved import ResolvedSweep


def lint_words(
    words: Sequence[str], context: Context, *, python: str = ""
) -> tuple[Examined, tuple[Profile, ...]]:
    """Lint the profile that words make, and return it too, unless a word has bad syntax.

    Args:
        words: flags, and variables as NAME=value.
        context: what the profile comes on top of. If it names a release of jaxlib, the catalog's
            tables are used and no XLA is asked.
        python: the interpreter whose XLA is asked; "" is the running one.
    """
    try:
        profiles = (text_profile(words),)
    except ConfigError as error:
        fault = Objection(rule="syntax", level=Level.FAULT, profile=TEXT_ID, text=str(error))
        return Examined(objections=(fault,)), ()
    return _linted(profiles, context, python=python or sys.executable), profiles


def lint_sweep(
    resolved: ResolvedSweep, requested: Context, *, python: str = ""
) -> tuple[Examined, tuple[Profile, ...]]:
    """Lint the profiles of a sweep, and return them too.

    The context is that of the sweep's cell, with the settings of `requested` on top.
    """
    sweep_context = context_of(resolved.cell, resolved.sweep.launcher)
    context = msgspec.structs.replace(
        sweep_context,
        deployed=(*sweep_context.deployed, *requested.deployed),
        env=on_top(sweep_context.env, requested.env),
        jaxlib=requested.jaxlib,
        device=requested.device,
    )
    profiles = resolved.sweep.named_profiles
    python = python or resolved.sweep.launcher.interpreter
    return _linted(profiles, context, python=python), profiles


def _linted(profiles: Sequence[Profile], context: Context, *, python: str) -> Examined:
    is_asked = python and not context.jaxlib
    return lint(profiles, context, Target(python=python, environ=os.environ) if is_asked else None)
