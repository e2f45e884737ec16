"""`pytest --cvs-config FILE`: one test for each cell and metric of a CVS configuration.

The file is a collector. Each of its cells is a module, with a sweep and a test for each metric. So
`-n`, `-k`, junit, the ledger and resuming work as in every sweep. Tests share nothing: each test
waits only for its own part of the study of the cell.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_xlatune.guests.cvs.entry_study import THRESHOLDS
from pytest_xlatune.guests.cvs.launcher_file import demands_of
from pytest_xlatune.guests.cvs.reading import given_values, read_cvs_file, run_options
from pytest_xlatune.guests.cvs.thresholds import JOBS, Demand, Thresholds, threshold_word
from pytest_xlatune.guests.cvs.values import SINGLE
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.text import printable
from pytest_xlatune.plugin.hooks import OPTIONS_KEY
from pytest_xlatune.sweep.declaration import Sweep
from pytest_xlatune.tasks.answers import Measured

_LINE_PROPERTY = "cvs.lines"  # the property of a test with its line for the summary


def pytest_configure(config: pytest.Config) -> None:
    """Collect the file; if the command line names no other file, collect only this one."""
    for name, text in THRESHOLDS.markers.items():
        config.addinivalue_line("markers", f"{name}: {text} (pytest-xlatune)")
    if hasattr(config, "workerinput"):
        return
    path = str(_absolute_path(config, config.option.cvs_config))
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []
    if path not in config.args:
        config.args.append(path)


def _absolute_path(config: pytest.Config, named: str) -> Path:
    """Return the absolute path of a file that the command line names."""
    return Path(os.path.normpath(config.invocation_params.dir / Path(named).expanduser()))


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Return a collector for the file of `--cvs-config`; None for other files."""
    if file_path != _absolute_path(parent.config, parent.config.option.cvs_config):
        return None
    collector: pytest.Collector = CvsConfiguration.from_parent(parent, path=file_path)
    return collector


class CvsConfiguration(pytest.File):
    """A CVS configuration, which has a module for each of its cells."""

    def collect(self) -> Iterator[pytest.Collector]:
        """Read the file and yield a module for each cell.

        Raises:
            ConfigError: it is not a CVS file, has an open item, or the nodes are not known.
        """
        option = self.config.option
        options = self.config.stash[OPTIONS_KEY].for_sweeps.values
        nodes, stated_runtime, needs_digest = run_options(options)
        cluster = option.cvs_cluster
        arguments: dict[str, Any] = {
            "cluster": _absolute_path(self.config, cluster) if cluster else None,
            "values": given_values(option.cvs_set),
            "nodes": nodes,
        }
        file = read_cvs_file(self.path, **arguments, needs_digest=needs_digest)
        if file.mode == SINGLE and (nodes or 1) > 1:
            raise ConfigError(f"{self.path} is for one node, but the run has {nodes}")
        file.refuse_open()
        for cell in file.cells:
            demands = demands_of(cell)
            study = Thresholds(demands=demands, jobs=option.cvs_jobs or JOBS)
            sweep = Sweep.from_cvs(
                self.path, cell=cell.name, runtime=stated_runtime, study=study, **arguments
            )
            module = ModuleType(f"cvs_{sweep.name.replace('-', '_')}")
            vars(module).update(
                __file__=str(self.path),
                SWEEP=sweep,
                CVS=(file, cell, demands),
                test_threshold=test_threshold,
            )
            yield CvsModule.of(self, module=module, name=cell.name)


class CvsModule(pytest.Module):
    """One cell of a CVS configuration, as a test module."""

    @classmethod
    def of(cls, parent: CvsConfiguration, *, module: ModuleType, name: str) -> CvsModule:
        """Return the collector of a cell."""
        nodeid = f"{parent.nodeid}::{name}"
        collector: Any = cls.from_parent(parent, path=parent.path, nodeid=nodeid)
        collector.name, collector.cell_module = name, module
        collector.add_marker("threshold")
        return collector  # type: ignore[no-any-return]

    def _getobj(self) -> ModuleType:
        """Return the module that `of` was given, because there is no file to import."""
        module: ModuleType = vars(self)["cell_module"]
        return module


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize the test of a cell with each of its metrics."""
    if metafunc.function is test_threshold:
        _, _, demands = metafunc.module.CVS
        metafunc.parametrize("demand", demands, ids=[demand.metric for demand in demands])


def test_threshold(
    request: pytest.FixtureRequest, measure: Callable[[str], Measured], demand: Demand
) -> None:
    """Compare a metric of a cell with its threshold, given the noise between jobs.

    Raises:
        AssertionError: the threshold is not met, or these jobs cannot decide it.
    """
    __tracebackhide__ = True
    file, cell, _ = request.module.CVS
    measured = measure(demand.metric)
    is_recorded = demand.value is None
    word = "recorded" if is_recorded else threshold_word(measured.verdict)
    reasons = [sentence(message) for message in measured.verdict.reasons]
    reason = reasons[0] if reasons else "no reason is known"
    line = f"{cell.name}: {'recorded: ' if is_recorded else ''}{reason}"
    facts = {"metric": demand.metric, "demand": demand.words, "verdict": word}
    properties = [(f"cvs.{name}", text) for name, text in facts.items()]
    request.node.user_properties.extend([*properties, (_LINE_PROPERTY, line)])
    if is_recorded or not file.enforce:
        return
    claim = dataclasses.replace(measured.no_regression, text=line, holds=word == "pass")
    measured.claims[:] = [dataclasses.replace(claim, is_undecided=word == "cannot tell")]
    if not claim.holds:
        raise AssertionError(line)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Show the verdict on each metric, and which parts of CVS this run has not run."""
    lines: list[str] = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                properties = dict(report.user_properties)
                lines += properties.get(_LINE_PROPERTY, "").splitlines()
    if not lines:
        return
    terminalreporter.section("CVS thresholds")
    for line in lines:
        terminalreporter.write_line(printable(line))
    terminalreporter.write_line(
        "not run: the smoke test of CVS, its test of checkpoint and resume, its checks of the loss "
        "curve and of error patterns, its check of the kernel log (see node_health)"
    )
