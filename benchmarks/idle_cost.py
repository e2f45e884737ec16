"""What the harness costs a trial on this machine.

    python benchmarks/idle_cost.py --trials 20

So many trials of a trainer that does nothing (`sleep`) run one after the other, without and with
the question what each ran on: medians of the CPU seconds of all that was started, and what it
leaves in its folder.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import resource
import statistics
import sys
import tempfile
from pathlib import Path

from msgspec.structs import replace
from tabulate import tabulate

from pytest_xlatune.executors import Request, payload
from pytest_xlatune.executors.folder import (
    read_environments,
    read_outcomes,
    with_probe,
)
from pytest_xlatune.executors.local import LocalExecutor
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import State
from pytest_xlatune.model.trial import LaunchSpec

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def used_s() -> float:
    """CPU seconds of all that this process has started, and that has ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def trial_cost(root: Path, *, asks: bool) -> tuple[float, int, float]:
    """Run one trial; return its CPU seconds, how many files it leaves, and their kilobytes."""
    executor, folder, before_s = LocalExecutor(lock=root / "lock"), root / "trial", used_s()
    spec = LaunchSpec(argv=("sleep", "0.5"), inherit=("PATH", "HOME"))
    if asks:
        here = f"{{xlatune.folder}}/{payload.PROBE}"
        program = str(Path(__file__).parents[1] / "sweeps" / "quickstart" / "train.py")
        spec = replace(spec, probe=(sys.executable, here, "trainer", program))
        spec = with_probe(spec, devices=False)
    request = Request(folder=folder, job_name="t", comment="t", resources=Resources())
    executor.submit(spec, request)
    with contextlib.suppress(ChildProcessError):  # until the job is over too
        while True:
            os.waitpid(-1, 0)
    outcome = read_outcomes(folder)[0]
    if outcome.state is not State.COMPLETED or asks != bool(read_environments(folder)):
        sys.exit(f"the trial did not run as it should: {outcome}")
    sizes = [each.stat().st_size for each in folder.rglob("*") if each.is_file()]
    return used_s() - before_s, len(sizes), sum(sizes) / 1e3


def measure_trials(count: int) -> None:
    # jobs without a parent come back to us, so that their CPU seconds are counted
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    found: dict[str, list[tuple[float, int, float]]] = {"payload": [], "payload and question": []}
    for _ in range(count + 1):  # the first one compiles the modules
        for asks, rows in enumerate(found.values()):
            with tempfile.TemporaryDirectory() as root:
                rows.append(trial_cost(Path(root), asks=bool(asks)))
    table = [
        (name, *(statistics.median(each) for each in zip(*rows[1:], strict=True)))
        for name, rows in found.items()
    ]
    header = ("what of ours is started", "CPU s", "files", "kB")
    print(tabulate(table, headers=header, floatfmt=("", ".3f", ".0f", ".1f"), tablefmt="github"))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=20)
    measure_trials(parser.parse_args().trials)


if __name__ == "__main__":
    main()
