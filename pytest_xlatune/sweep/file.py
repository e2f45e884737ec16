"""A sweep file to the sweep that it declares: the file is a test module, imported as one."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from pytest_xlatune.errors import ConfigError
from pytest_xlatune.sweep.sweep import Sweep

SWEEP_NAME = "SWEEP"  # what a sweep file calls its sweep


def load_sweep(path: Path) -> Sweep:
    """Import a sweep file and return what it declares.

    Raises:
        ConfigError: there is no such file, it cannot be imported, or it declares no sweep.
    """
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"{path} is not a sweep file; name one such as sweeps/test_quickstart.py")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a user's file may raise anything
        raise ConfigError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, SWEEP_NAME, None)
    if not isinstance(found, Sweep):
        raise ConfigError(f"{path} declares no {SWEEP_NAME} = Sweep(...)")
    return found
