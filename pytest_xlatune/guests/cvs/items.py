"""`pytest --cvs-config FILE`: one test per cell and metric of a CVS configuration, and its logs.

A file becomes a collector, each of its cells a module with a sweep and one test for each metric, so
that `-n`, `-k`, junit, the ledger and resuming are those of every sweep. Nothing is shared between
tests: each asks the cell's study for its part.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.guests.cvs.entry_study import THRESHOLDS
from pytest_xlatune.guests.cvs.files import (
    demands_of,
    dropped_of,
    efficiency_factor,
    given_of,
    given_values,
    read_cvs_file,
)
from pytest_xlatune.guests.cvs.logs import (
    ERRORS,
    log_demands,
    log_verdict,
    sights,
    sights_verdict,
    steps_by_job,
)
from pytest_xlatune.guests.cvs.reading import SLOPE, CvsCell, CvsFile
from pytest_xlatune.guests.cvs.thresholds import JOBS, Demand, Thresholds, our_word
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.text import printable
from pytest_xlatune.plugin.fixtures import MEASURED_KEY, guarded
from pytest_xlatune.plugin.hooks import OPTIONS_KEY
from pytest_xlatune.report.words import sentence
from pytest_xlatune.sweep.declaration import Sweep
from pytest_xlatune.tasks.answers import Measured

_PROPERTY = "cvs"
DROPPED_KEY: pytest.StashKey[list[str]] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    """Collect the file; where no other is named, it alone."""
    for name, text in THRESHOLDS.markers.items():
        config.addinivalue_line("markers", f"{name}: {text} (pytest-xlatune)")
    named = config.option.cvs_config
    if hasattr(config, "workerinput"):
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
        option = self.config.option
        said = self.config.stash[OPTIONS_KEY].said.values
        nodelist = said.get("nodelist") or ()
        cluster = _absolute(self.config, option.cvs_cluster) if option.cvs_cluster else None
        values = given_values(option.cvs_set)
        given, runtime = given_of(said, cluster=cluster, values=values)
        file = read_cvs_file(self.path, given)
        if file.kind != "config":
            raise ConfigError(f"{self.path} is a {file.kind} file of CVS: name a configuration")
        if file.mode == "single" and len(nodelist) > 1:
            raise ConfigError(
                f"{self.path} is of one node, and the node list names {len(nodelist)}: "
                f"{','.join(nodelist)}; name one"
            )
        for cell in file.cells:
            demands = demands_of(file, cell)
            self.config.stash[DROPPED_KEY] = dropped_of(file, runtime)
            sweep = Sweep.from_cvs(
                self.path,
                cell=cell.name,
                cluster=cluster,
                values=values,
                nodes=given.nodes,
                runtime=runtime,
                study=Thresholds(demands=demands, jobs=option.cvs_jobs or JOBS),
            )
            module = ModuleType(f"cvs_{sweep.name.replace('-', '_')}")
            vars(module).update(
                __file__=str(self.path),
                SWEEP=sweep,
                CVS=(file, cell, demands),
                test_threshold=_tests(each_metric, [each.metric for each in demands]),
            )
            of_logs = [*([ERRORS] if file.patterns else []), *log_demands(file, cell)]
            if of_logs:
                vars(module).update(test_log=_tests(each_log, of_logs))
            yield CvsModule.of(self, module=module, name=cell.name)


def _tests(function: Callable[..., None], metrics: list[str]) -> FunctionType:
    """Return a function of its own as a test of each metric, under its test's name."""
    found: Any = function
    made = FunctionType(found.__code__, found.__globals__)
    made.__doc__ = found.__doc__
    made.__name__ = made.__qualname__ = _NAMES[found.__name__]
    return pytest.mark.threshold(pytest.mark.parametrize("metric", metrics)(made))


_NAMES = {"each_metric": "test_threshold", "each_log": "test_log"}


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
    """Tell the verdict, and fail where ours does not pass and the file enforces it.

    Raises:
        AssertionError: the threshold is not met, or these jobs cannot tell.
    """
    __tracebackhide__ = True
    file: CvsFile
    cell: CvsCell
    demands: tuple[Demand, ...]
    file, cell, demands = request.module.CVS
    verdict = measured.verdict
    demand = next(each for each in demands if each.metric == metric)
    is_gated = demand.value is not None
    word = our_word(verdict) if is_gated else "recorded"
    why = sentence(verdict.reasons[0]) if verdict.reasons else "no reason is known"
    lines = [f"{cell.name}: {why if is_gated else f'{word}: {why}'}"]
    told = {"metric": metric, "demand": demand.words, "verdict": word}
    if metric == "tokens_per_sec_per_gpu":
        factor = efficiency_factor(file, cell)
        if factor is not None and verdict.tgs is not None:
            told["scaling_efficiency_pct"] = f"{factor * verdict.tgs:.1f}"
    is_enforced = is_gated and (file.enforce or request.config.option.cvs_enforce)
    _end(request, measured, told, lines, is_enforced=is_enforced)


def each_log(request: pytest.FixtureRequest, campaign: Campaign, metric: str) -> None:
    """What the jobs' logs tell beside their score: the file's error patterns, the loss."""
    __tracebackhide__ = True
    judge_log(request, campaign, metric)


def judge_log(request: pytest.FixtureRequest, campaign: Campaign, metric: str) -> None:
    """Tell what the logs of all jobs say of one thing, once they are over; fail where it is bad.

    Raises:
        AssertionError: a job's log has a line of an error pattern, a limit that the file enforces
            is not kept, or these jobs cannot tell.
    """
    __tracebackhide__ = True
    file: CvsFile
    cell: CvsCell
    file, cell, _ = request.module.CVS
    guarded(request, lambda tick: campaign.wait(lambda view: not view.pending, on_turn=tick))
    jobs = steps_by_job(campaign)
    if metric == ERRORS:
        found = sights(campaign, file)
        verdict, lines = sights_verdict(found, jobs=len(jobs))
        demand, word, is_enforced = "no line before the last step", our_word(verdict), True
    else:
        asked = log_demands(file, cell)[metric]
        verdict = log_verdict(asked, jobs, file=file)
        is_gated = asked.value is not None
        demand, word = asked.words, our_word(verdict) if is_gated else "recorded"
        why = sentence(verdict.reasons[0])
        lines = [why if is_gated else f"{word}: {why}"]
        says = file.enforce_slope if metric == SLOPE else file.enforce
        is_enforced = is_gated and (says or request.config.option.cvs_enforce)
    told = {"metric": metric, "demand": demand, "verdict": word}
    measured = Measured(verdict)
    request.node.user_properties.extend(measured.properties())
    request.node.stash.setdefault(MEASURED_KEY, []).append(measured)
    lines[0] = f"{cell.name}: {lines[0]}"
    _end(request, measured, told, lines, is_enforced=is_enforced)


def _end(
    request: pytest.FixtureRequest,
    measured: Measured,
    told: dict[str, str],
    lines: list[str],
    *,
    is_enforced: bool,
) -> None:
    """Give junit the properties and the summary its lines; fail where ours does not pass."""
    __tracebackhide__ = True
    properties = [(f"{_PROPERTY}.{name}", text) for name, text in told.items() if text]
    request.node.user_properties.extend([*properties, (f"{_PROPERTY}.lines", "\n".join(lines))])
    if not is_enforced:
        return
    word = told["verdict"]
    claim = dataclasses.replace(measured.no_regression, text=lines[0], holds=word == "pass")
    measured.claims[:] = [dataclasses.replace(claim, is_undecided=word == "cannot tell")]
    if not claim.holds:
        raise AssertionError("\n".join(lines))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show the verdict on each metric, and all that a run of CVS does and this did not."""
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
        terminalreporter.write_line(printable(line))
    if dropped := config.stash.get(DROPPED_KEY, []):
        terminalreporter.write_line(
            f"not taken from the file's container, for the runtime has no such option: "
            f"{' '.join(dropped)}"
        )
    terminalreporter.write_line(
        "not run: CVS' smoke test, its checkpoint and resume test, its kernel log (a site's hook)"
    )
