"""What `sweeps/` and `tests/` share."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

SWEEPS = Path(__file__).parent / "sweeps"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore sweeps that are not named if the plugin is off: then they have no fixtures."""
    is_left_out = SWEEPS in collection_path.parents and not _has_plugin(config)
    named = {Path(argument.partition("::")[0]).resolve() for argument in config.args}
    return True if is_left_out and collection_path not in named else None


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers of sweeps if the plugin is off, so that a named sweep is collected."""
    if not _has_plugin(config):
        from pytest_xlatune.sweep.registry import markers

        for name in markers():
            config.addinivalue_line("markers", f"{name}: pytest-xlatune's, which is not loaded")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the tests of sweeps if the plugin is off: their fixtures are missing."""
    if _has_plugin(config):
        return
    left_out = [item for item in items if SWEEPS in item.path.parents]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


def _has_plugin(config: pytest.Config) -> bool:
    return config.pluginmanager.hasplugin("xlatune")
