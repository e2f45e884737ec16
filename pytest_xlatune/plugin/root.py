"""Where a project lies: what its ledgers, reports and the paths of its cells are relative to."""

from __future__ import annotations

from pathlib import Path

import pytest


def root_of(config: pytest.Config) -> Path:
    """Return the folder of pytest's ini file, or without one that in which pytest was started.

    Without an ini file pytest's own root directory follows from the arguments, the value of
    `--xlatune-workdir` among them once it exists: the next run would not find what this one
    measured.
    """
    return config.rootpath if config.inipath is not None else config.invocation_params.dir
