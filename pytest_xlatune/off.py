"""Say that the plugin is off if `-p no:xlatune` is used with a sweep file, and skip the sweep.

It is a separate plugin, because a plugin that is off cannot say so, and each test of a sweep would
be an error about missing fixtures. It must stay small, because every pytest run loads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

_PLUGIN = "xlatune"


def pytest_configure(config: pytest.Config) -> None:
    """Register the helper if the plugin itself is off."""
    if not config.pluginmanager.hasplugin(_PLUGIN):
        config.pluginmanager.register(_Off(), "xlatune-is-off")


class _Off:
    """Removes the tests of sweeps from a session that cannot run them."""

    def __init__(self) -> None:
        self._files: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        """Leave out the tests of a module with a sweep."""
        report = yield
        if report.passed and isinstance(collector, pytest.Module) and _has_sweep(collector.obj):
            self._files.append(collector.nodeid)
            report.result = []
        return report

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say in one line which files did not run."""
        if self._files:
            terminalreporter.write_line(
                f"xlatune: the plugin is off, so {', '.join(self._files)} did not run: leave out "
                "`-p no:xlatune` to run the sweep"
            )


def _has_sweep(module: object) -> bool:
    kind = type(vars(module).get("SWEEP"))
    return (kind.__module__, kind.__name__) == ("pytest_xlatune.sweep.declaration", "Sweep")
