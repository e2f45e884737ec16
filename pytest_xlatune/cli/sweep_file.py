"""Read the sweep file of a command; `plan`, `flags lint` and commands that run trials use it."""

from __future__ import annotations

from pathlib import Path

from pytest_xlatune.sweep.declaration import load_sweep
from pytest_xlatune.sweep.groups import RunSettings
from pytest_xlatune.sweep.resolved import ResolvedSweep


def resolved_sweep(path: Path, options: RunSettings) -> ResolvedSweep:
    """Return the sweep that a file declares, resolved with options.

    Raises:
        ConfigError: there is no such sweep, or it does not fit the options.
    """
    return load_sweep(path).resolve(options.said, workdir=options.workdir)
