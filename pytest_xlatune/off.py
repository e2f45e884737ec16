"""Says that the plugin is off where `-p no:xlatune` is over a sweep file, and lets the sweep be.

A plugin of its own, for the one that is off says nothing: without it each test of a sweep ended as
an error, as its fixtures were not found. It must stay as light as this: each pytest run loads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

_PLUGIN = "xlatune"


def pytest_configure(config: pytest.Config) -> None:
    """Look on where the plugin itself is not there."""
    if not config.pluginmanager.hasplugin(_PLUGIN):
        config.pluginmanager.register(_Off(), "xlatune-is-off")


class _Off:
    """Takes the tests of sweeps out of a session that cannot run them."""

    def __init__(self) -> None:
        self._files: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Leave out what a module with a sweep has."""
        report = yield
        if report.passed and isinstance(collector, pytest.Module) and _has_sweep(collector.obj):
            self._files.append(collector.nodeid)
            report.result = []
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say it in one line."""
        if self._files:
            terminalreporter.write_line(
                f"xlatune: the plugin is off, so {', '.join(self._files)} did not run: leave out "
                "`-p no:xlatune` to run the sweep"
            )


def _has_sweep(module: object) -> bool:
    found = type(vars(module).get("SWEEP"))
    return (found.__module__, found.__name__) == ("pytest_xlatune.sweep.declaration", "Sweep")
