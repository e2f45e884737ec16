"""squeue, scontrol and scancel of one job, whose state is files in SLURM_STANDIN."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

HERE = Path(os.environ["SLURM_STANDIN"])


def read(name: str) -> str:
    path = HERE / name
    return path.read_text().strip() if path.exists() else ""


def main(name: str, argv: list[str]) -> int:
    with (HERE / "calls").open("a") as file:
        file.write(f"{name} {' '.join(argv)}\n")
    if name == "squeue" and "-n" in argv:
        sys.stdout.write(read("strays") + "\n")
    elif name == "squeue":
        sys.stdout.write(read("state") + "\n")
    elif name == "scontrol":
        code = read("exit_code")
        sys.stdout.write(f"JobId=4711 JobName=x ExitCode={code} NodeList=node[001-002] Other=1\n")
    elif name == "scancel":
        if group := read("group"):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(group), signal.SIGKILL)
        (HERE / "state").write_text("CANCELLED\n")
        (HERE / "exit_code").write_text("0:15\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[0]).name, sys.argv[1:]))
