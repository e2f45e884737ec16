"""What does the harness cost on a cluster? 40 one-second jobs through it, and as a plain chain.

    python benchmarks/slurm_overhead.py [TRIALS] [ROUNDS]    default 40 1; needs root, on the lab

The plain chain is what a person would do: 40 `sbatch` calls of `srun` of the same program on the
same two nodes; it hands the submitter's environment on, secrets and all. With `--export=NONE`, as
the harness asks for, Slurm first logs in on the node, which is the site's time. The harness runs
the same 40 as trials of a sweep, by pytest with two workers. Both come in one run, in turn. The
program itself notes when it began and ended, so an idle gap is the time from one program's end to
the next one's begin on the same nodes, whatever lies between.
Controller requests are counted by `sdiag`: those that ask, and those that submit.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

from filelock import FileLock
from tabulate import tabulate

LAB = Path(__file__).parents[1] / "tests" / "slurm" / "lab.py"
NODES = "node[001-002]"
NAMES = ("plain chain", "plain chain, --export=NONE", "harness")
QUESTIONS = re.compile(r"REQUEST_(?:JOB|NODE|PARTITION|STATS|STEP|FED)_\w*INFO\w*|REQUEST_PING")
PROGRAM = """\
#!/bin/bash
if [ "$SLURM_PROCID" = 0 ]; then date +%s.%N > "$1/$SLURM_JOB_ID.begin"; fi
sleep 1
if [ "$SLURM_PROCID" != 0 ]; then exit; fi
for step in 0 1 2 3 4 5 6 7 8 9 10 11; do
  echo "completed step: $step, seconds: 0.512, TFLOP/s/device: 0.1, Tokens/s/device: 1000.$step," \
    "total_weights: 512, loss: 7.1"
done
date +%s.%N > "$1/$SLURM_JOB_ID.end"
"""
SWEEP = """\
from pathlib import Path
import pytest
from pytest_xlatune import Protocol, Resources, Sweep, profile
from pytest_xlatune.launchers.command import CommandLauncher

HERE = Path(__file__).parent
SWEEP = Sweep(
    name="overhead", model_tag="pretend", parallelism="FSDP=2",
    launcher=CommandLauncher(argv=("bash", str(HERE / "program.sh"), str(HERE / "times"))),
    profiles=tuple(profile(f"p{k}", f"--xla_p{k}=1") for k in range(TRIALS - 2)),
    protocol=Protocol(steps=12), resources=Resources(time_limit_s=300),
    screen_baselines=2, budget=500, finalists=2, blocks=4, block_baselines=1,
)

@pytest.mark.wave2
def test_flag(measure, profile):
    measure(profile)
"""


def load_lab() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lab", LAB)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{LAB} is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout


def requests() -> tuple[int, int]:
    """Return questions and submissions that the controller has answered."""
    text = call("sdiag").partition("by message type")[2].partition("by user")[0]
    # REQUEST_JOB_INFO_SINGLE   ( 2021) count:12     ave_time:122    total_time:1467
    counts = {name: int(n) for name, n in re.findall(r"(\w+)\s+\(\s*\d+\)\s+count:(\d+)", text)}
    asked = sum(count for name, count in counts.items() if QUESTIONS.fullmatch(name))
    return asked, counts.get("REQUEST_SUBMIT_BATCH_JOB", 0)


def memory_mb(pid: int) -> float:
    """Return the resident memory of a process and all below it."""
    total, todo = 0.0, [pid]
    while todo:
        each = todo.pop()
        with contextlib.suppress(OSError, StopIteration):
            status = Path(f"/proc/{each}/status").read_text(encoding="ascii")
            total += int(next(re.finditer(r"VmRSS:\s+(\d+)", status))[1]) / 1024
            children = Path(f"/proc/{each}/task/{each}/children").read_text(encoding="ascii")
            todo += [int(child) for child in children.split()]
    return total


def plain(folder: Path, trials: int, *options: str) -> float:
    script = folder / "job.sh"
    script.write_text(f"#!/bin/bash\nsrun --export=ALL bash {folder}/program.sh {folder}/times\n")
    for _ in range(trials):
        call("sbatch", f"--nodelist={NODES}", "--nodes=2", "--ntasks-per-node=1", "--exclusive",
             f"--chdir={folder}", "--output=/dev/null", *options, str(script))  # fmt: skip
    while call("squeue", "-h"):
        time.sleep(1)
    return 0.0


def plain_clean(folder: Path, trials: int) -> float:
    """Do the same as `plain`, with the environment that the harness asks for as well."""
    return plain(folder, trials, "--export=NONE")


def harness(folder: Path, trials: int) -> float:
    (folder / "test_overhead.py").write_text(SWEEP.replace("TRIALS", str(trials)))
    argv = [sys.executable, "-m", "pytest", "test_overhead.py", "-q", "-n", "2", "-p",
            "no:cacheprovider", "--xlatune-nodelist", NODES]  # fmt: skip
    peak_mb = 0.0
    with (folder / "said.txt").open("wb") as said:
        session = subprocess.Popen(argv, cwd=folder, stdout=said, stderr=subprocess.STDOUT)
        while session.poll() is None:
            peak_mb = max(peak_mb, memory_mb(session.pid))
            time.sleep(0.5)
    if session.returncode:
        raise SystemExit((folder / "said.txt").read_text())
    return peak_mb


def measure(way: Any, trials: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="xlatune-overhead-") as name:
        folder = Path(name)
        (folder / "times").mkdir()
        (folder / "program.sh").write_text(PROGRAM)
        asked, submitted = requests()
        begin = time.monotonic()
        peak_mb = way(folder, trials)
        total_s = time.monotonic() - begin
        asked_now, submitted_now = requests()
        runs = sorted(
            tuple(float(path.with_suffix(kind).read_text()) for kind in (".begin", ".end"))
            for path in (folder / "times").glob("*.end")
        )
    if len(runs) != trials:
        raise SystemExit(f"{len(runs)} programs ran, expected {trials}")
    return {
        "total_s": total_s,
        "chain_s": runs[-1][1] - runs[0][0],
        "gap_s": median(after[0] - before[1] for before, after in itertools.pairwise(runs)),
        "asked": asked_now - asked,
        "submitted": submitted_now - submitted,
        "peak_mb": peak_mb,
    }


def main() -> None:
    trials, rounds = (*map(int, sys.argv[1:]), *(40, 1)[len(sys.argv) - 1 :])
    lab = load_lab()
    with FileLock(f"{lab.FOLDER}.test.lock"):
        was_up = lab.is_up()
        if not was_up:
            lab.start()
        os.environ.update(lab.environment())
        try:
            rows = []
            for _ in range(rounds):
                found = [measure(way, trials) for way in (plain, plain_clean, harness)]
                rows += [
                    [name, *shown(each), *ratios(found[-1], each)]
                    for name, each in zip(NAMES, found, strict=True)
                ]
        finally:
            if not was_up:
                lab.stop()
    heads = ("", "total (s)", "first begin to last end (s)", "median idle gap (s)",
             "controller asked", "submitted", "peak memory (MB)", "harness : this, total",
             "harness - this, gap (s)")  # fmt: skip
    print(
        f"{trials} trials of a one-second program on two nodes; {json.dumps(os.cpu_count())} CPUs"
    )
    print(tabulate(rows, heads, tablefmt="github", disable_numparse=True))


def shown(found: dict[str, float]) -> list[str]:
    times = [f"{found[key]:.2f}" for key in ("total_s", "chain_s", "gap_s")]
    return [*times, *(f"{found[key]:.0f}" for key in ("asked", "submitted", "peak_mb"))]


def ratios(ours: dict[str, float], other: dict[str, float]) -> list[str]:
    return [
        f"{ours['total_s'] / other['total_s']:.2f}",
        f"{ours['gap_s'] - other['gap_s']:+.2f}",
    ]


if __name__ == "__main__":
    main()
