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
import os
import tempfile
from pathlib import Path

from costs import COMMAND, apart, used
from evidence_capture import GPUS, STEPS, capture
from tabulate import tabulate

HEADERS = ("xlatune drill of", "least CPU s", "median", "wall s", "of cores", "MB")


def prepare(kernels: int, files: list[Path]) -> None:
    """Write the captures."""
    made = capture(kernels)
    for path in files:
        path.write_bytes(made)


def row(paths: list[Path], runs: int) -> list[str | float]:
    """Return the figures of the command on captures, run so many times."""
    argv = [*COMMAND, "drill", *map(str, paths)]
    used(argv, paths[0].parent)  # compiles the modules
    measured = [used(argv, paths[0].parent) for _ in range(runs)]
    cpu_s = sorted(each.cpu_s for each in measured)
    wall_s = sorted(each.wall_s for each in measured)[runs // 2]
    size = sum(path.stat().st_size for path in paths) / 1e6
    cores = min(len(paths), len(os.sched_getaffinity(0)))
    return [
        f"{len(paths)} of {size:.1f} MB in all",
        cpu_s[0],
        cpu_s[runs // 2],
        wall_s,
        wall_s * cores / cpu_s[runs // 2],
        max(each.peak_mb for each in measured),
    ]


def main() -> None:
    """Print the table: one capture, and many."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=25_000, help="kernels of a GPU and step")
    parser.add_argument("--files", type=int, default=8, help="captures of the last row")
    parser.add_argument("--runs", type=int, default=5, help="runs of the command")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"node{i:03}.xplane.pb" for i in range(options.files)]
        apart(prepare, options.kernels, files)
        print(f"{options.kernels * STEPS * GPUS} kernels in a capture, {options.runs} runs\n")
        inputs = [files[:1], *([files] if files[1:] else [])]
        rows = [row(paths, options.runs) for paths in inputs]
        print(tabulate(rows, headers=HEADERS, floatfmt=("", ".2f", ".2f", ".2f", ".2f", ".0f")))


if __name__ == "__main__":
    main()
