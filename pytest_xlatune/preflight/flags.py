"""The settings of a cell and its profiles, looked at before anything is submitted.

The rules of the catalog cost nothing and are held against every campaign; the XLA of the trainer's
interpreter is asked where a test wants the whole preflight. `xlatune flags lint` says the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_xlatune.catalog.ground import Ground, Level, Objection
from pytest_xlatune.catalog.rules import check
from pytest_xlatune.cells import Cell
from pytest_xlatune.deployed import deployed_env
from pytest_xlatune.errors import ConfigError, XlatuneError
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.linting import Target, lint
from pytest_xlatune.preflight.preflight import Preflight
from pytest_xlatune.profiles import Profile, parse_flags

_REFUSED = frozenset({"unknown-flag", "bad-value", "refused"})


def ground_of(cell: Cell, launcher: Launcher) -> Ground:
    """Return what profiles of a cell are applied to, env files that this machine can read included.

    Raises:
        ConfigError: the deployed XLA_FLAGS end early, so that no profile would ever be read.
    """
    deployed, is_complete = dict(cell.deployed), True
    files = [Path(name) for name in launcher.env_files_of(cell)]
    try:
        base = {**cell.parallelism.variables, **deployed}
        deployed |= deployed_env(*files, base=base) if files else {}
    except ConfigError:
        is_complete = False  # made for the nodes; what they set is not known here
    flags = parse_flags(deployed.get("XLA_FLAGS", ""), where="the deployed XLA_FLAGS")
    return Ground(deployed=flags, env=deployed, is_complete=is_complete)


def look_at_rules(profiles: Sequence[Profile], ground: Ground) -> Preflight:
    """Hold profiles and what is deployed against the catalog's rules; no XLA is asked."""
    return _said(check(profiles, ground))


def look_at_flags(
    profiles: Sequence[Profile], ground: Ground, *, python: str, environ: Mapping[str, str]
) -> Preflight:
    """Ask the XLA of the trainer's interpreter what it makes of the flags, beside the rules.

    An unknown flag is a note, since the sweep drops its profile by itself; that no profile's flags
    are known is a fault, since it is no sweep.

    Args:
        profiles: the selected ones.
        ground: what is deployed below them.
        python: the interpreter; "" where the launcher names none.
        environ: of this process, for PATH and HOME.
    """
    flagged = [each for each in profiles if each.flags]
    if not flagged and not ground.deployed:
        return look_at_rules(profiles, ground)
    try:
        if not python:
            raise ConfigError("the launcher names no interpreter")
        linted = lint(profiles, ground, Target(python=python, environ=environ))
    except XlatuneError as error:
        found = look_at_rules(profiles, ground)
        return Preflight(
            faults=found.faults, notes=(*found.notes, f"flags were not checked: {error}")
        )
    found = _said(linted.objections)
    refused = {each.profile for each in linted.objections if each.rule in _REFUSED}
    if flagged and {each.id for each in flagged} <= refused:
        return Preflight(
            faults=(f"{python} knows the flags of no profile", *found.faults, *found.notes)
        )
    return found


def _said(objections: Sequence[Objection]) -> Preflight:
    faults = [str(each) for each in objections if each.level is Level.FAULT]
    notes = [str(each) for each in objections if each.level is not Level.FAULT]
    return Preflight(faults=tuple(faults), notes=tuple(notes))
