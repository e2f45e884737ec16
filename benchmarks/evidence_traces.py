"""How fast a capture is drilled: 600,000 kernels on 8 GPUs, by the command that a user types.

    python benchmarks/evidence_traces.py [--kernels 25000] [--files 8] [--runs 5]
    python benchmarks/evidence_traces.py --kernels 142000 --files 1    one of 469 MB
    python benchmarks/evidence_traces.py --kernels 12000               ranks of 46 MB

`of cores` is the wall time over the CPU time that each core would have: 1 is as fast as can be.

CPU seconds and peak memory are the operating system's, with the interpreter's start and imports.
Modules are compiled once before, as an installation compiles them, into a folder of the benchmark's
own.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from evidence_capture import GPUS, STEPS, capture
from tabulate import tabulate

COMMAND = "import sys; from pytest_xlatune.cli import main; sys.exit(main(sys.argv[1:]))"
HEADERS = ("xlatune drill of", "least CPU s", "median", "wall s", "of cores", "MB")


def run(*files: Path) -> tuple[float, float, float]:
    """Drill captures; return CPU seconds, wall seconds and peak MB."""
    compiled = {
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONPYCACHEPREFIX": str(files[0].parent / "compiled"),
    }
    begin = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", COMMAND, "drill", *map(str, files)],
        stdout=subprocess.DEVNULL,
        env=os.environ | compiled,
    ) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"xlatune drill: exit status {process.returncode}")
    wall = time.perf_counter() - begin
    return used.ru_utime + used.ru_stime, wall, used.ru_maxrss / 1e3


def prepare(kernels: int, files: list[Path], small: Path) -> None:
    """Write the captures."""
    made = capture(kernels_per_step=kernels)
    for path in files:
        path.write_bytes(made.data)
    small.write_bytes(capture(kernels_per_step=40, frames=1_000, tables=0.02).data)


def row(paths: list[Path], runs: int) -> list[str | float]:
    """Return the figures of the command on captures, run so many times."""
    run(*paths)  # compiles the modules
    measured = [run(*paths) for _ in range(runs)]
    cpu, wall = (sorted(figures[column] for figures in measured) for column in (0, 1))
    size = sum(path.stat().st_size for path in paths) / 1e6
    cores = min(len(paths), len(os.sched_getaffinity(0)))
    middle_cpu, middle_wall = cpu[runs // 2], wall[runs // 2]
    return [
        f"{len(paths)} of {size:.1f} MB in all",
        cpu[0],
        middle_cpu,
        middle_wall,
        middle_wall * cores / middle_cpu,
        max(peak for _, _, peak in measured),
    ]


def main() -> None:
    """Print the table: one capture, a small one, and many."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=25_000, help="kernels of a GPU and step")
    parser.add_argument("--files", type=int, default=8, help="captures of the last row")
    parser.add_argument("--runs", type=int, default=5, help="runs of the command")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"node{i:03}.xplane.pb" for i in range(options.files)]
        small = Path(folder) / "small.xplane.pb"
        # in a process of its own: a child's peak memory counts from that of its parent
        context = multiprocessing.get_context("spawn")
        writer = context.Process(target=prepare, args=(options.kernels, files, small))
        writer.start()
        writer.join()
        print(f"{options.kernels * STEPS * GPUS} kernels in a capture, {options.runs} runs\n")
        inputs = [files[:1], [small], *([files] if files[1:] else [])]
        rows = [row(paths, options.runs) for paths in inputs]
        print(tabulate(rows, headers=HEADERS, floatfmt=("", ".2f", ".2f", ".2f", ".2f", ".0f")))


if __name__ == "__main__":
    main()
