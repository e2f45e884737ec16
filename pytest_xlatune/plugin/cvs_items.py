"""`pytest --cvs-config FILE`: one test per cell and metric of a CVS configuration.

A file becomes a collector, each of its cells a module with a sweep and one test for each metric, so
that `-n`, `-k`, junit, the ledger and resuming are those of every sweep. Nothing is shared between
tests: each asks the cell's study for its part.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.plugin.fixtures import OPTIONS_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pytest_xlatune.launchers.cvs import CvsCell, CvsFile
    from pytest_xlatune.studies.thresholds import Demand
    from pytest_xlatune.tasks.answers import Measured

_PROPERTY = "cvs"


def add_options(parser: pytest.Parser) -> None:
    """Add the options of CVS files."""
    group = parser.getgroup("cvs", "configurations of AMD's cluster validation suite")
    group.addoption("--cvs-config", metavar="FILE", help="Run this configuration of CVS")
    group.addoption("--cvs-cluster", metavar="FILE", help="Its cluster file: node names, user")
    group.addoption(
        "--cvs-set",
        metavar="PATH=VALUE",
        action="append",
        default=[],
        help="Fill in a value of the file, e.g. container.env.NCCL_SOCKET_IFNAME=eno1",
    )
    group.addoption(
        "--cvs-jobs", metavar="N", type=int, help="Jobs of each cell (default: 5; 4 at least)"
    )
    group.addoption(
        "--cvs-strict", action="store_true", help="Show CVS' own verdict beside ours, same jobs"
    )
    group.addoption(
        "--cvs-enforce",
        action="store_true",
        help="Fail although the file says enforce_thresholds: false",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Collect the file; where no other is named, it alone."""
    named = config.option.cvs_config
    if not named or hasattr(config, "workerinput"):
        return
    path = str(_absolute(config, named))
    if config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []
    if path not in config.args:
        config.args.append(path)


def _absolute(config: pytest.Config, named: str) -> Path:
    return Path(os.path.normpath(config.invocation_params.dir / Path(named).expanduser()))


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    """Take the file of `--cvs-config`."""
    named = parent.config.option.cvs_config
    if not named or file_path != _absolute(parent.config, named):
        return None
    made: pytest.Collector = CvsConfiguration.from_parent(parent, path=file_path)
    return made


class CvsConfiguration(pytest.File):
    """A CVS configuration: a module for each of its cells."""

    def collect(self) -> Iterator[pytest.Collector]:
        """Read the file and give its cells.

        Raises:
            ConfigError: it is no CVS file, something is open, the nodes are not known.
        """
        from pytest_xlatune.studies.thresholds import JOBS, Thresholds
        from pytest_xlatune.sweep.cvs_files import (
            CvsGiven,
            demands_of,
            given_values,
            read_cvs_file,
        )
        from pytest_xlatune.sweep.declaration import Sweep

        option = self.config.option
        said = self.config.stash[OPTIONS_KEY].said.values
        nodelist = said.get("nodelist") or ()
        nodes = len(nodelist) or said.get("nodes") or None
        cluster = _absolute(self.config, option.cvs_cluster) if option.cvs_cluster else None
        values = given_values(option.cvs_set)
        file = read_cvs_file(self.path, CvsGiven(cluster=cluster, values=values, nodes=nodes))
        if file.kind != "config":
            raise ConfigError(f"{self.path} is a {file.kind} file of CVS: name a configuration")
        if file.mode == "single" and len(nodelist) > 1:
            raise ConfigError(
                f"{self.path} is of one node, and the node list names {len(nodelist)}: "
                f"{','.join(nodelist)}; name one"
            )
        runtimes = dict(said.get("container") or {}).get("runtime", "")
        runtime = runtimes if isinstance(runtimes, str) else runtimes[-1]
        for cell in file.cells:
            demands = demands_of(cell)
            sweep = Sweep.from_cvs(
                self.path,
                cell=cell.name,
                cluster=cluster,
                values=values,
                nodes=nodes,
                runtime=runtime,
                study=Thresholds(demands=demands, jobs=option.cvs_jobs or JOBS),
            )
            module = ModuleType(f"cvs_{sweep.name.replace('-', '_')}")
            vars(module).update(
                __file__=str(self.path),
                SWEEP=sweep,
                CVS=(file, cell, demands),
                test_threshold=_tests([each.metric for each in demands]),
            )
            yield CvsModule.of(self, module=module, name=cell.name)


def _tests(metrics: list[str]) -> FunctionType:
    made = FunctionType(each_metric.__code__, each_metric.__globals__)
    made.__doc__ = each_metric.__doc__
    made.__name__ = made.__qualname__ = "test_threshold"
    return pytest.mark.threshold(pytest.mark.parametrize("metric", metrics)(made))


class CvsModule(pytest.Module):
    """One cell of a CVS configuration, as a test module."""

    @classmethod
    def of(cls, parent: CvsConfiguration, *, module: ModuleType, name: str) -> CvsModule:
        """Return the collector of a cell."""
        nodeid = f"{parent.nodeid}::{name}"
        made: Any = cls.from_parent(parent, path=parent.path, nodeid=nodeid)
        made.name, made.made = name, module
        return made  # type: ignore[no-any-return]

    def _getobj(self) -> ModuleType:
        found: ModuleType = vars(self)["made"]
        return found


def each_metric(
    request: pytest.FixtureRequest,
    measure: Callable[[str], Measured],
    metric: str,
) -> None:
    """Each metric of a cell against its threshold, with its noise over the jobs."""
    __tracebackhide__ = True
    judge(request, measure(metric), metric)


def judge(request: pytest.FixtureRequest, measured: Measured, metric: str) -> None:
    """Tell both verdicts, and fail where ours does not pass and the file enforces it.

    Raises:
        AssertionError: the threshold is not met, or these jobs cannot tell.
    """
    __tracebackhide__ = True
    from pytest_xlatune.tasks.cvs_verdicts import (
        cvs_verdict,
        efficiency_pct,
        loss_curve,
        our_word,
        steps_by_job,
    )

    file: CvsFile
    cell: CvsCell
    demands: tuple[Demand, ...]
    file, cell, demands = request.module.CVS
    config, verdict = request.config, measured.verdict
    demand = next(each for each in demands if each.metric == metric)
    is_gated = demand.value is not None
    word = our_word(verdict) if is_gated else "recorded"
    why = verdict.reasons[0] if verdict.reasons else "no reason is known"
    lines = [f"{cell.name}: {why if is_gated else f'{word}: {why}'}"]
    told = {"metric": metric, "demand": demand.words, "verdict": word}
    campaign = request.getfixturevalue("campaign")
    if config.option.cvs_strict and is_gated:
        jobs = steps_by_job(campaign, file)
        if strict := cvs_verdict(jobs, file=file, cell=cell, verdict=verdict):
            told["strict"] = strict
            lines.append(f"    {strict}")
    if metric == "final_loss":
        jobs = steps_by_job(campaign, file)
        told |= {name: f"{value:.6g}" for name, value in loss_curve(jobs, file=file).items()}
    if metric == "tokens_per_sec_per_gpu":
        found = efficiency_pct(file, cell, verdict.tgs)
        told |= {"scaling_efficiency_pct": f"{found:.1f}"} if found is not None else {}
    properties = [(f"{_PROPERTY}.{name}", text) for name, text in told.items()]
    request.node.user_properties.extend([*properties, (f"{_PROPERTY}.lines", "\n".join(lines))])
    if not is_gated or not (file.enforce or config.option.cvs_enforce):
        return
    claim = dataclasses.replace(measured.no_regression, text=lines[0], holds=word == "pass")
    measured.claims[:] = [dataclasses.replace(claim, is_undecided=word == "cannot tell")]
    if not claim.holds:
        raise AssertionError("\n".join(lines))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show the verdict on each metric, and all that a run of CVS does and this did not."""
    if not config.option.cvs_config:
        return
    reports = [each for some in terminalreporter.stats.values() for each in some]
    said = [
        line
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, text in report.user_properties
        if name == f"{_PROPERTY}.lines"
        for line in text.splitlines()
    ]
    if not said:
        return
    terminalreporter.section("CVS thresholds")
    for line in said:
        terminalreporter.write_line(line)
    terminalreporter.write_line(
        "not run: CVS' smoke test, its checkpoint and resume test, its kernel log (a site's hook)"
    )
