"""What the harness costs a trial on this machine: itself, and while its trainer runs.

    python benchmarks/idle_cost.py [--seconds 20] [--waiters 4] [--trainer burn]
    python benchmarks/idle_cost.py --trials 20

With `--trials` so many trials of a trainer that does nothing (`sleep`) run one after the other,
without and with the question what each ran on: medians of the CPU seconds of all that was started,
and what it leaves in its folder. Without, it is percent of one core:

A trial runs under the local executor; beside it waiting processes look at the ledger four times a
second, as a campaign's do, and one of them also polls the executor and follows the log. The time
on a core of every process but the trainer's is read from the kernel before and after. On a small
machine the harness is the noise, so all of it together is to stay below 2 %.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from msgspec.structs import replace
from tabulate import tabulate

from pytest_xlatune.executors import Request, payload
from pytest_xlatune.executors.folder import (
    read_claim,
    read_environments,
    read_outcomes,
    read_started,
    with_probe,
)
from pytest_xlatune.executors.local import LocalExecutor
from pytest_xlatune.ledger import AttemptSubmitted, CampaignOpened, Ledger
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import State, Submission
from pytest_xlatune.model.trial import LaunchSpec

TARGET_PERCENT = 2.0
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
TRAINERS = {
    "sleep": "import time; time.sleep(600)",
    "burn": "import time; e = time.time() + 600\nwhile time.time() < e: sum(range(10000))",
    "log": "import time\nfor n in range(6000): print('step', n, flush=True); time.sleep(0.1)",
}
WAITER = """
import sys, time
from pathlib import Path
from pytest_xlatune.executors.folder import log_files
from pytest_xlatune.executors.local import LocalExecutor
from pytest_xlatune.ledger import AttemptSubmitted, Ledger
root, polls = Path(sys.argv[1]), sys.argv[2] == "polls"
ledger, executor = Ledger(root / "ledger.jsonl"), LocalExecutor()
flying = [e.event.submission for e in ledger.refresh() if isinstance(e.event, AttemptSubmitted)]
offset_bytes = 0
print("ready", flush=True)
while True:
    ledger.refresh()
    if polls:
        executor.poll(flying, root=root)
        with log_files(root / flying[0].folder)[0].open("rb") as log:
            log.seek(offset_bytes)
            offset_bytes += len(log.read())
    time.sleep(0.25)
"""


def core_s(pid: int) -> float:
    """Seconds on a core, of all threads: the first figure of schedstat is in nanoseconds."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def status(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise LookupError(name)


def start_trial(root: Path, trainer: str) -> tuple[LocalExecutor, Submission]:
    executor = LocalExecutor(lock=root / "lock")
    spec = LaunchSpec(argv=(sys.executable, "-S", "-c", TRAINERS[trainer]))
    request = Request(folder=root / "trial", job_name="idle", comment="idle", resources=Resources())
    job_id = executor.submit(spec, request)
    job = Submission(trial_id="t", attempt=1, executor="local", job_id=job_id, folder="trial")
    cell = Cell(model_tag="idle", parallelism=Parallelism.parse("DP=1"))
    opened = CampaignOpened(cells=(cell,), study="tuning")
    while read_started(root / "trial") is None:
        time.sleep(0.05)
    # no trial is planned: only the reading of the file is measured, and it is read, not replayed
    Ledger(root / "ledger.jsonl").append(opened, AttemptSubmitted(submission=job), at_s=time.time())
    return executor, job


def measure(root: Path, *, seconds: float, waiters: int, trainer: str) -> None:
    executor, job = start_trial(root, trainer)
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WAITER, str(root), "looks" if number else "polls"],
            stdout=subprocess.PIPE,
        )
        for number in range(waiters)
    ]
    try:
        for each in started:
            each.stdout.readline()
        claim = read_claim(root / "trial")
        pids = {
            "payload": claim.pid,
            **{
                f"waiting process {number}{'' if number else ' (polls)'}": each.pid
                for number, each in enumerate(started)
            },
        }
        time.sleep(1)
        before = {
            pid: (core_s(pid), status(pid, "voluntary_ctxt_switches")) for pid in pids.values()
        }
        began_s = time.monotonic()
        time.sleep(seconds)
        wall_s = time.monotonic() - began_s
        rows = []
        for name, pid in pids.items():
            used_s = core_s(pid) - before[pid][0]
            wakes = status(pid, "voluntary_ctxt_switches") - before[pid][1]
            rss_mib = status(pid, "VmRSS") / 1024
            rows.append((name, used_s * 1e3, 100 * used_s / wall_s, wakes / wall_s, rss_mib))
    finally:
        executor.cancel([job], root=root)
        for each in started:
            each.kill()
            each.communicate()
    total = ("all together", *(sum(row[column] for row in rows) for column in range(1, 5)))
    header = ("process", "on a core, ms", "% of a core", "wakes per s", "RSS, MiB")
    print(f"\ntrainer {trainer!r}, {wall_s:.0f} s, {waiters} waiting processes")
    print(tabulate([*rows, total], headers=header, floatfmt=("", ".1f", ".3f", ".1f", ".0f")))
    print(f"target: below {TARGET_PERCENT} %; ratio to it {total[2] / TARGET_PERCENT:.2f}")
    while not executor.poll([job], root=root)[job.job_id].state.is_final:
        time.sleep(0.1)


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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--waiters", type=int, default=4)
    parser.add_argument("--trainer", choices=[*TRAINERS, "all"], default="all")
    parser.add_argument("--trials", type=int, default=0, help="measure so many trials instead")
    options = parser.parse_args()
    if options.trials:
        measure_trials(options.trials)
        return
    for trainer in TRAINERS if options.trainer == "all" else [options.trainer]:
        with tempfile.TemporaryDirectory() as root:
            measure(Path(root), seconds=options.seconds, waiters=options.waiters, trainer=trainer)


if __name__ == "__main__":
    main()
