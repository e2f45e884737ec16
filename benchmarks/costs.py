"""What a command costs in a process of its own, by the operating system's account."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

# a user's command, by the interpreter that runs the benchmark
COMMAND = [
    sys.executable,
    "-c",
    "import sys; from pytest_xlatune.cli import main; sys.exit(main(sys.argv[1:]))",
]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """CPU seconds with the interpreter's start and imports, wall seconds, peak memory."""

    cpu_s: float
    wall_s: float
    peak_mb: float


def apart(write: Callable[..., None], *arguments: object) -> None:
    """Call a function that writes files in a process of its own.

    A child's peak memory counts from that of its parent, which therefore writes nothing itself.
    """
    writer = multiprocessing.get_context("spawn").Process(target=write, args=arguments)
    writer.start()
    writer.join()


def used(argv: Sequence[str], folder: Path) -> Cost:
    """Return what a command costs in a folder; end the benchmark where it fails."""
    # the modules are kept compiled, as in an installation
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environ["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
    began_s = time.perf_counter()
    with subprocess.Popen(argv, cwd=folder, env=environ, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{argv}: exit status {process.returncode}")
    return Cost(
        cpu_s=usage.ru_utime + usage.ru_stime,
        wall_s=time.perf_counter() - began_s,
        peak_mb=usage.ru_maxrss / 1e3,
    )
