"""Where a project lies: what its ledgers, reports and the paths of its cells are relative to."""

from __future__ import annotations

from pathlib import Path

import pytest


def root_of(config: pytest.Config) -> Path:
    """Return the folder of `--rootdir` or of pytest's ini file, else where pytest was started.

    Without either pytest's own root directory follows from the arguments, the value of
    `--xlatune-workdir` among them once it exists: the next run would not find what this one
    measured.
    """
    is_said = config.inipath is not None or config.getoption("rootdir", None)
    return config.rootpath if is_said else config.invocation_params.dir
