"""Ask the trainer's own installation which keys it has, before anything is submitted.

A key that a MaxText release does not know costs every trial its start: the job waits in the queue,
imports for half a minute and dies. The release says what it knows in files that are read without
importing it: `configs/base.yml`, and from 0.2 on the fields of `configs/types.py`, which it
validates against. Its interpreter is started once to find them, and runs nothing of MaxText.

This module knows neither a scheduler nor a release; where nobody can be asked, it says so.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol as Interface
from typing import runtime_checkable

from pytest_xlatune.cells import Cell, Stage, Trial
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.preflight.preflight import Preflight
from pytest_xlatune.profiles import BASELINE, Profile
from pytest_xlatune.workers import keys as keys_worker

_TIMEOUT_S = 60.0


@runtime_checkable
class Keyed(Interface):
    """A launcher whose trainer takes `key=value` and refuses a key that it does not know."""

    @property
    def interpreter(self) -> str:
        """The trainer's Python."""
        ...

    @property
    def package(self) -> str:
        """The package that ships `configs/base.yml`; "" where none does."""
        ...

    @property
    def cwd(self) -> str:
        """The directory the trainer runs in; "" is the attempt's folder."""
        ...

    def config_of(self, cell: Cell) -> str:
        """Return the absolute path of a cell's config."""
        ...

    def keys(self, trial: Trial, cell: Cell) -> Mapping[str, str]:
        """Return every key of a trial."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What an installation says of itself.

    Attributes:
        name: e.g. `maxtext 0.2.5`.
        base: path of its base configuration.
        known: the keys that it has.
        said: key, file and line of each key that the cell's config brings itself.
    """

    name: str
    base: str
    known: frozenset[str]
    said: tuple[tuple[str, str, int], ...] = ()


def look_at_keys(
    launcher: Launcher, cell: Cell, profiles: Iterable[Profile], *, environ: Mapping[str, str]
) -> Preflight:
    """Return a fault for each key that the trainer's release does not know.

    Args:
        launcher: one that is not `Keyed` has no keys to look at.
        cell: its overrides, axes and protocol make most keys.
        profiles: each may bring more.
        environ: of this process, for PATH and HOME.
    """
    inside = getattr(launcher, "inner", None)
    if isinstance(inside, Keyed) and inside.package:
        return Preflight(notes=(f"keys were not checked: {inside.package} is in an image",))
    if not isinstance(launcher, Keyed) or not launcher.package:
        return Preflight()
    found = ask(launcher, cell, environ=environ)
    if isinstance(found, str):
        return Preflight(notes=(f"keys were not checked: {found}",))
    faults = [
        _fault(found, key, f"{file}:{line}")
        for key, file, line in found.said
        if key not in found.known and key != keys_worker.BASE_KEY
    ]
    common = launcher.keys(_trial(BASELINE, cell), cell)
    faults += [
        _fault(found, key, f"cell {cell.label!r}, {key}={common[key]}")
        for key in _unknown(common, found)
    ]
    for profile in profiles:
        keys = launcher.keys(_trial(profile, cell), cell)
        faults += [
            _fault(found, key, f"profile {profile.id!r}, {key}={keys[key]}")
            for key in _unknown(keys, found)
            if key not in common
        ]
    return Preflight(faults=tuple(faults))


def ask(launcher: Keyed, cell: Cell, *, environ: Mapping[str, str]) -> Release | str:
    """Return what the trainer's installation says of its keys, or why nobody could be asked."""
    python = shutil.which(launcher.interpreter, path=environ.get("PATH"))
    if python is None:
        return f"{launcher.interpreter} is not on this machine"
    cwd = launcher.cwd or None
    if cwd is not None and not Path(cwd).is_dir():
        return f"{cwd} is not on this machine"
    kept = {name: environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in environ}
    try:
        done = subprocess.run(
            [python, "-c", _worker(), launcher.package, launcher.config_of(cell)],
            env=kept,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=True,
        )
        answer = json.loads(done.stdout)
    except subprocess.CalledProcessError as error:
        return f"{python} said {error.stderr.strip()[-200:]!r}"
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"{python}: {error}"
    if not answer["base"]:
        return f"{python} has no package {launcher.package} with a configs/base.yml"
    said = tuple((str(key), str(file), int(line)) for key, file, line in answer["said"])
    known = frozenset(answer["known"])
    if not answer["strict"]:
        known |= {key for key, _, _ in said}  # such a release takes what a config declares
    return Release(
        name=f"{launcher.package} {answer['version']}".strip(),
        base=answer["base"],
        known=known,
        said=said,
    )


def _worker() -> str:
    return Path(keys_worker.__file__).read_text(encoding="utf-8")


def _trial(profile: Profile, cell: Cell) -> Trial:
    return Trial(
        cell_digest=cell.digest,
        profile=profile,
        protocol=cell.protocol,
        study="keys",
        stage=Stage.SCREEN,
    )


def _unknown(keys: Iterable[str], release: Release) -> list[str]:
    # a field of a nested group is written  lora.rank=8
    return [key for key in keys if key.partition(".")[0] not in release.known]


def _fault(release: Release, key: str, where: str) -> str:
    hint = str(ConfigError.unknown("key", key, valid=release.known, where=where))
    return f"{hint.partition(' Known:')[0]} ({release.name} does not have it: {release.base})"
