"""Which software measured: kept in the ledger with every session. This module decides nothing."""

from __future__ import annotations

import importlib.metadata
import platform
import sys

_PACKAGES = ("pytest-xlatune", "pytest", "submitit", "numpy", "scipy")


def versions() -> dict[str, str]:
    """Return the versions of what takes part, by name."""
    found = {"python": platform.python_version(), "platform": sys.platform}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:  # run from a checkout
            found[package] = "not installed"
    return found
