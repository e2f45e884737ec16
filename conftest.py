"""What `sweeps/` and `tests/` share."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

SWEEPS = Path(__file__).parent / "sweeps"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Without the plugin (`-p no:xlatune`) a sweep has no fixtures and no markers: leave it out."""
    if SWEEPS in collection_path.parents and not config.pluginmanager.hasplugin("xlatune"):
        return True
    return None
