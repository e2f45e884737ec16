"""What the tests cost, by kind: printed at the end of every run, held to a budget in `make test`.

The kind of a test is what it was seen to do: it starts sessions of pytest, or other processes, or
nothing. CPU seconds are those of the test's process and of all children that it waited for. Trials
have a parent of their own (the payload, a slurmd): their CPU is only in the last line, with all
else that the machine did meanwhile. This module knows nothing of the product.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

MOST_SESSIONS = 100
MOST_CPU_S = 1_000
_COST = "cost"  # of a report, on xdist's wire too
_CPU = "cpu_s"  # of a worker's whole life
_DEAREST = 15
_LAB = "tests/slurm/"
# a kind is told by a mark or by what was started; the first that applies
KINDS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "real Slurm": lambda cost: bool(cost["is_on_slurm"]),
    "real browser": lambda cost: "browser" in cost["marks"],
    "real JAX": lambda cost: "jax" in cost["marks"],
    "sessions of their own": lambda cost: cost["sessions"] > 0,
    "sessions in process": lambda cost: cost["inside"] > 0,
    "other processes": lambda cost: cost["processes"] > 0,
    "in process": lambda _: True,
}
_started = {"sessions": 0, "processes": 0, "inside": 0}


def note_session_inside() -> None:
    """Count a session of pytest that runs in the process of its test."""
    _started["inside"] += 1


def _note_process(event: str, args: tuple[Any, ...]) -> None:
    if event == "subprocess.Popen":
        words = args[1] if isinstance(args[1], Sequence) and not isinstance(args[1], str) else []
        first = [os.fsdecode(word) for word in words[:4]]
        is_session = any(Path(word).name in ("pytest", "-mpytest") for word in first)
        _started["sessions" if is_session else "processes"] += 1
    elif event == "os.fork":
        _started["processes"] += 1


@functools.cache  # a hook of this kind stays
def _listen() -> None:
    sys.addaudithook(_note_process)


def machine_s() -> float:
    """Return the CPU seconds of all programs of this machine since it started; 0 if it says none.

    From the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, in ticks.
    """
    try:
        words = Path("/proc/stat").read_text(encoding="ascii").split(maxsplit=8)[1:8]
    except OSError:
        return 0.0
    user, nice, system, _, _, irq, softirq = map(int, words)
    return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")


def cpu_s() -> float:
    """Return the CPU seconds of this process and of all children that it has waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


@dataclass(slots=True, kw_only=True)
class _Kind:
    cases: int = 0
    sessions: int = 0
    processes: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0


class Costs:
    """Measures each test, and sums up in the process that has the terminal."""

    def __init__(self, config: pytest.Config, *, is_bound: bool) -> None:
        """Print the table; with `is_bound` the run also fails where it costs more than it may."""
        self._config = config
        self._is_bound = is_bound
        self._is_worker = hasattr(config, "workerinput")
        self._began = time.perf_counter(), cpu_s(), dict(_started)
        self._begin_s = time.perf_counter()
        self._machine_s = machine_s()
        self._tests: list[tuple[str, dict[str, Any]]] = []
        self._workers_s = 0.0
        _listen()

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self._began = time.perf_counter(), cpu_s(), dict(_started)
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "teardown":
            wall_s, used_s, started = self._began
            vars(report)[_COST] = {
                "wall_s": time.perf_counter() - wall_s,
                "cpu_s": cpu_s() - used_s,
                "is_on_slurm": item.nodeid.startswith(_LAB),
                "marks": sorted({mark.name for mark in item.iter_markers()}),
                **{name: count - started[name] for name, count in _started.items()},
            }
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not self._is_worker and (cost := vars(report).get(_COST)) is not None:
            self._tests.append((report.nodeid, cost))

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._is_worker:
            self._config.workeroutput[_CPU] = cpu_s()  # type: ignore[attr-defined]
        elif self._is_bound and self._over() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self._workers_s += getattr(node, "workeroutput", {}).get(_CPU, 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._is_worker or not self._tests:
            return
        terminalreporter.section("what the tests cost")
        for line in table(self._tests, all_cpu_s=self._cpu_s, wall_s=self._wall_s):
            terminalreporter.write_line(line)
        busy_s = machine_s() - self._machine_s
        terminalreporter.write_line(f"the machine, all programs: {busy_s:.0f} CPU s meanwhile")
        if self._is_bound and (over := self._over()):
            terminalreporter.write_line(f"over the budget of make test: {over}", red=True)
            for line in dearest(self._tests):
                terminalreporter.write_line(line)

    @property
    def _cpu_s(self) -> float:
        """Of this process and of xdist's workers, which have ended when it asks."""
        return cpu_s() if not self._workers_s else max(cpu_s(), self._workers_s)

    @property
    def _wall_s(self) -> float:
        return time.perf_counter() - self._begin_s

    def _over(self) -> str:
        sessions = sum(cost["sessions"] for _, cost in self._tests)
        found = []
        if sessions > MOST_SESSIONS:
            found.append(f"{sessions} sessions of pytest were started, {MOST_SESSIONS} may be")
        if self._cpu_s > MOST_CPU_S:
            found.append(f"{self._cpu_s:.0f} CPU s were used, {MOST_CPU_S} may be")
        return "; ".join(found)


def kind_of(cost: dict[str, Any]) -> str:
    """Return the kind of a test by what it was seen to do."""
    return next(name for name, applies in KINDS.items() if applies(cost))


def table(
    tests: Iterable[tuple[str, dict[str, Any]]], *, all_cpu_s: float, wall_s: float
) -> list[str]:
    """Return the lines of a table in Markdown: kind, cases, what was started, CPU and wall seconds.

    Wall seconds are summed over the tests, which run side by side; the last row has the run's own.
    """
    from tabulate import tabulate

    kinds = {name: _Kind() for name in KINDS}
    for _, cost in tests:
        kind = kinds[kind_of(cost)]
        kind.cases += 1
        kind.sessions += cost["sessions"]
        kind.processes += cost["processes"]
        kind.cpu_s += cost["cpu_s"]
        kind.wall_s += cost["wall_s"]
    found = [
        (name, kind.cases, kind.sessions, kind.processes, kind.cpu_s, kind.wall_s)
        for name, kind in kinds.items()
        if kind.cases
    ]
    sums = [sum(column) for column in list(zip(*found, strict=True))[1:]]
    rest_s = max(all_cpu_s - sums[3], 0.0)
    rows = [
        *found,
        ("collection, xdist", "", "", "", rest_s, ""),
        ("the whole run", *sums[:3], sums[3] + rest_s, wall_s),
    ]
    names = ("kind of test", "cases", "sessions", "other processes", "CPU s", "wall s")
    return tabulate(rows, headers=names, tablefmt="github", floatfmt=".0f").splitlines()


def dearest(tests: Iterable[tuple[str, dict[str, Any]]]) -> list[str]:
    """Return a line for each of the tests that used most CPU."""
    by_cpu = sorted(tests, key=lambda test: -test[1]["cpu_s"])[:_DEAREST]
    return [
        f"{cost['cpu_s']:7.1f} CPU s, {cost['wall_s']:5.0f} s, {cost['sessions']} sessions: {name}"
        for name, cost in by_cpu
    ]
