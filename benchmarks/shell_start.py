"""CPU time and memory of each `xlatune` command on a small input, compiled modules kept.

    python benchmarks/shell_start.py [--runs 5]

Prints the median of the runs, and the ratio to `python -c pass`. On a machine that does other
things too the ratio is the steadier figure. The modules are compiled in a folder of their own by
a first run, which does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.cli.test_imports import HLO, OF_CELL, STEP, SWEEP  # noqa: E402

COMMANDS = (
    "steps one/0.log",
    "triage one/0.log",
    "compare one two",
    "hlo .",
    "drill h.trace.json",
    "flags list",
    "flags show ag",
    "flags lint --jaxlib 0.8.3 --xla_a=1",
    "flags diff --help",
    f"plan test_small.py {OF_CELL}",
    "jobs",
    "report",
    "history",
    *(f"{each} --help" for each in ("report", "history", "drill", "study", "network", "plan")),
    "--help",
)
RUN = "import sys; from pytest_xlatune.cli import main; sys.exit(main(sys.argv[1:]))"
# CPU seconds of a process and its peak memory, from the process that waits for it alone
MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    with TemporaryDirectory() as folder:
        inputs = Path(folder)
        prepare(inputs)
        env = {name: each for name, each in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        env |= {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(inputs / "compiled")}
        bare_s, bare_mb = measured([sys.executable, "-c", "pass"], inputs, env, runs)
        print(f"{'python -c pass':38} {bare_s:6.3f} s CPU {bare_mb:5.0f} MB")
        for command in COMMANDS:
            argv = [sys.executable, "-c", RUN, *command.split()]
            cpu_s, peak_mb = measured(argv, inputs, env, runs)
            ratio = cpu_s / bare_s
            print(
                f"{command.removesuffix(OF_CELL):38} {cpu_s:6.3f} s CPU {peak_mb:5.0f} MB "
                f"{ratio:6.1f} times"
            )


def prepare(inputs: Path) -> None:
    for side, seconds in (("one", 0.5), ("two", 0.52)):
        (inputs / side).mkdir()
        for job in range(4):
            job_s = seconds * (1 + job / 1000)
            text = "".join(STEP.format(step, job_s, 512 / job_s) for step in range(15))
            (inputs / side / f"{job}.log").write_text(text, encoding="utf-8")
    dump = "module_0001.jit_step.cpu_after_optimizations.txt"
    (inputs / dump).write_text(HLO, encoding="utf-8")
    (inputs / "test_small.py").write_text(SWEEP, encoding="utf-8")
    (inputs / "h.trace.json").write_text(json.dumps({"traceEvents": []}), encoding="utf-8")


def measured(argv: list[str], inputs: Path, env: dict[str, str], runs: int) -> tuple[float, float]:
    """Return the median CPU seconds and the median peak in MB; a first run does not count."""
    found = []
    for _ in range(runs + 1):
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, *argv],
            cwd=inputs, env=env, capture_output=True, text=True, check=True,
        )  # fmt: skip
        cpu, peak = done.stdout.split()
        found.append((float(cpu), int(peak) / 1024))
    return median(each for each, _ in found[1:]), median(each for _, each in found[1:])


if __name__ == "__main__":
    main()
