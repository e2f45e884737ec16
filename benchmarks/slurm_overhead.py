"""What does the harness cost on a cluster? 40 one-second jobs through it, and as a plain chain.

    python benchmarks/slurm_overhead.py [--trials 40] --write docs/reference/slurm_jobs.md

It needs root, and starts the lab of the tests. What is compared, in turn, on the same two nodes:

* the plain chain, what a person would do: a loop of `sbatch` queues all jobs at once, each an
  `srun` of the program, with the submitter's environment, secrets and all; nothing reads a log;
* the same with `--export=NONE`: the submitter's environment stays out, Slurm logs in on the node;
* the harness: the program as the trials of a sweep, by pytest with two workers. Its environment is
  that of a login on the node too, and it ends when the reports are written.

Total is from the first command to the end of the last; of a plain chain the end is looked for once
a second. The program itself notes when it began and ended, so an idle gap is the time from one
program's end to the next one's begin on the same nodes, whatever lies between. Controller requests
are counted by `sdiag`: those that ask, and those that submit. Processor time is that of everything
that was started here, Slurm's commands included, its daemons and the jobs not.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

import pages
from filelock import FileLock
from tabulate import tabulate

sys.path.append(str(Path(__file__).parents[1] / "tests" / "slurm"))
lab = importlib.import_module("lab")
NODES = "node[001-002]"
QUESTIONS = re.compile(r"REQUEST_(?:JOB|NODE|PARTITION|STATS|STEP|FED)_\w*INFO\w*|REQUEST_PING")
PROGRAM = """\
#!/bin/bash
if [ "$SLURM_PROCID" = 0 ]; then date +%s.%N > "$1/$SLURM_JOB_ID.$SLURM_STEP_ID.begin"; fi
sleep 1
if [ "$SLURM_PROCID" != 0 ]; then exit; fi
for step in 0 1 2 3 4 5 6 7 8 9 10 11; do
  echo "completed step: $step, seconds: 0.512, TFLOP/s/device: 0.1, Tokens/s/device: 1000.$step," \
    "total_weights: 512, loss: 7.1"
done
date +%s.%N > "$1/$SLURM_JOB_ID.$SLURM_STEP_ID.end"
"""
SWEEP = """\
from pathlib import Path
import pytest
from pytest_xlatune import (
    CellSettings,
    CommandLauncher,
    DesignSettings,
    Protocol,
    Resources,
    SiteSettings,
    Sweep,
    profile,
)

HERE = Path(__file__).parent
SWEEP = Sweep(
    name="overhead",
    launcher=CommandLauncher(argv=("bash", str(HERE / "program.sh"), str(HERE / "times"))),
    profiles=tuple(profile(f"p{k}", f"--xla_p{k}=1") for k in range(TRIALS - 2)),
    cell=CellSettings(
        model_tag="pretend", parallelism="FSDP=2", protocol=Protocol(steps=12)
    ),
    # no XLA runs that could show them
    site=SiteSettings(resources=Resources(time_limit_s=300), unseen=("xla_p*",)),
    design=DesignSettings(
        screen_baselines=2, budget=500, finalists=2, blocks=4, block_baselines=1,
    ),
)

@pytest.mark.wave2
def test_flag(measure, profile):
    measure(profile)
"""


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


def processor_s() -> float:
    """Return the processor time of all processes that we started and that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def plain(folder: Path, trials: int, *, options: Sequence[str] = ()) -> float:
    script = folder / "job.sh"
    script.write_text(f"#!/bin/bash\nsrun --export=ALL bash {folder}/program.sh {folder}/times\n")
    for _ in range(trials):
        call("sbatch", f"--nodelist={NODES}", "--nodes=2", "--ntasks-per-node=1", "--exclusive",
             f"--chdir={folder}", "--output=/dev/null", *options, str(script))  # fmt: skip
    while call("squeue", "-h"):
        time.sleep(1)
    return 0.0


def harness(folder: Path, trials: int) -> float:
    """Run pytest to its end; return its largest memory in MB, that of all below it included."""
    (folder / "test_overhead.py").write_text(SWEEP.replace("TRIALS", str(trials)))
    argv = [sys.executable, "-m", "pytest", "test_overhead.py", "-q", "-n", "2", "-p",
            "no:cacheprovider", "--xlatune-nodelist", NODES]  # fmt: skip
    peak_mb = 0.0
    with (folder / "said.txt").open("wb") as said:
        process = subprocess.Popen(argv, cwd=folder, stdout=said, stderr=subprocess.STDOUT)
        while process.poll() is None:
            peak_mb = max(peak_mb, memory_mb(process.pid))
            time.sleep(0.5)
    if process.returncode:
        raise SystemExit((folder / "said.txt").read_text())
    return peak_mb


# the second has the environment that the harness asks for as well
WAYS: dict[str, Callable[[Path, int], float]] = {
    "plain chain": plain,
    "plain chain, `--export=NONE`": partial(plain, options=("--export=NONE",)),
    "harness, `-n 2`": harness,
}


def measure(way: Callable[[Path, int], float], trials: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="xlatune-overhead-") as name:
        folder = Path(name)
        (folder / "times").mkdir()
        (folder / "program.sh").write_text(PROGRAM)
        asked, submitted = requests()
        used_s, begin = processor_s(), time.monotonic()
        peak_mb = way(folder, trials)
        total_s, used_s = time.monotonic() - begin, processor_s() - used_s
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
        "processor_s": used_s,
        "peak_mb": peak_mb,
    }


def report(found: dict[str, dict[str, float]], *, trials: int, load: float) -> str:
    """Return what was measured by each way, the harness last, as markdown."""
    ours = [*found.values()][-1]
    rows, compared = [], []
    for name, each in found.items():
        compared.append((ours["total_s"] / each["total_s"], ours["gap_s"] - each["gap_s"]))
        times = [f"{each[key]:.2f}" for key in ("total_s", "chain_s", "gap_s")]
        counts = [f"{each[key]:.0f}" for key in ("asked", "submitted")]
        peak = f"{each['peak_mb']:.0f}" if each["peak_mb"] else ""
        ratio, gap_s = compared[-1]
        more = ["", ""] if each is ours else [f"{ratio:.2f}", f"{gap_s:+.2f}"]
        rows.append([name, *times, *counts, f"{each['processor_s']:.1f}", peak, *more])
    heads = ("", "total (s)", "first begin to last end (s)", "median idle gap (s)",
             "controller asked", "submitted", "processor (s)", "peak memory (MB)",
             "total, harness : this", "gap (s), harness - this")  # fmt: skip
    total, gap_s = compared[0]
    version = call("sbatch", "--version").strip()
    return f"""\
{trials} trials of a one-second program on two nodes of the lab ({version}). Slurm's daemons,
the jobs and whatever starts them share {os.cpu_count()} CPUs; load average before: {load:.1f}.

{tabulate(rows, heads, tablefmt="github", disable_numparse=True)}

Against the plain chain, in one run: total {total:.2f} times as long (bar: 1.10), median idle gap
{gap_s:+.2f} s (bar: +1.00 s)."""


def main() -> None:
    parser = pages.parser(__doc__)
    parser.add_argument("--trials", type=int, default=40)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    with FileLock(f"{lab.FOLDER}.test.lock"):
        was_up = lab.is_up()
        if not was_up:
            lab.start()
        os.environ.update(lab.environment())
        trials = arguments.trials
        try:
            found = {name: measure(way, trials) for name, way in WAYS.items()}
            text = report(found, trials=trials, load=load)
        finally:
            if not was_up:
                lab.stop()
    print(text)
    if arguments.write:
        pages.rewrite(arguments.write, text, "overhead")


if __name__ == "__main__":
    main()
