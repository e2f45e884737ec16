"""Read the sweep file that an argument of a command names."""

from __future__ import annotations

from pathlib import Path

from pytest_xlatune.sweep.declaration import load_sweep
from pytest_xlatune.sweep.groups import RunSettings
from pytest_xlatune.sweep.resolved import ResolvedSweep


def resolved_sweep(path: Path, options: RunSettings) -> ResolvedSweep:
    """Return the sweep that a file declares, resolved with options.

    Raises:
        ConfigError: the file declares no sweep, or the sweep does not fit the options.
    """
    return load_sweep(path).resolve(options.for_sweeps, workdir=options.workdir)
