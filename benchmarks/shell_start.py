"""CPU time and memory of each `xlatune` command on a small input, compiled modules kept.

    python benchmarks/shell_start.py [--runs 5] [--only WORD]

Before each run of a command `python -c pass` runs: printed is the median of the ratios of such
pairs, beside the medians of seconds and of peak memory. On a machine that does other things too the
ratio is the steadier figure. The modules are compiled in a folder of their own by a first run,
which does not count; a command that this run refuses is told and not measured. A command is to take
at most 10 times the CPU of bare Python, its `--help` 5.

`loading` is the ratio of a process that only imports the modules that the command had at its end:
the start. The rest is work on the input. `w` is an imported table of 8 jobs, `measured` a sweep of
20 profiles by a simulated cluster.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from report_cost import ledger_of  # noqa: E402

from pytest_xlatune.cli import COMMANDS as OURS  # noqa: E402
from tests.cli.test_imports import OF_CELL, SWEEP, prepare  # noqa: E402

COMMANDS = (
    "steps one/0.log",
    "triage one/0.log",
    "compare one two",
    "hlo .",
    "drill steps.trace.json.gz",
    "network h.xplane.pb",
    "megascale one/0.log",
    "flags list",
    "flags show ag",
    "flags lint --jaxlib 0.8.3 --xla_a=1",
    f"flags lint --jaxlib 0.8.3 test_small.py {OF_CELL}",
    f"plan test_small.py {OF_CELL} --executor local",
    f"study nodes test_nodes.py --plan {OF_CELL},n2,n3,n4 --executor local",
    *(
        f"{each} --workdir {folder}{' --once' if each == 'watch' else ''}"
        for folder in ("w", "measured/.xlatune")
        for each in ("jobs", "report", "history", "watch")
    ),
    f"import jobs.csv {OF_CELL} --workdir w --name TABLE",  # a new one in each run
    *(f"{each} --help" for each in (*OURS, "network", "megascale", "cvs")),
    "--help",
)
TRACE = ROOT / "tests/data/evidence/jaxlib-0.11.2/launches.trace.json.gz"
NODES = SWEEP.replace("import Sweep,", "import Nodes, Sweep,").replace(
    SWEEP[SWEEP.index("    profiles=") :], "    study=Nodes(),\n)\n"
)
RUN = """
import sys
from pytest_xlatune.cli import main
try:
    sys.exit(main())
finally:
    if "SHELL_START" in __import__("os").environ:
        open(__import__("os").environ["SHELL_START"], "w").write("\\n".join(sys.modules))
"""
LOAD = """
import importlib, sys
for name in open("loaded").read().split("\\n"):
    try:
        importlib.import_module(name)
    except ImportError:  # a sweep file, what another library made
        pass
"""
TABLES = itertools.count()
REFUSED = (2, 4)  # statuses of a command line or a setup that is no good
# CPU seconds of a process, its peak memory and its exit status, from the process that waits for it
MEASURE = """
import resource, subprocess, sys
done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(used.ru_utime + used.ru_stime, used.ru_maxrss, done.returncode)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="", metavar="WORD", help="commands that hold it alone")
    said = parser.parse_args()
    with TemporaryDirectory() as folder:
        inputs = Path(folder)
        prepare(inputs)
        (inputs / "test_nodes.py").write_text(NODES, encoding="utf-8")
        (inputs / "measured").mkdir()
        ledger_of(20, inputs / "measured")
        (inputs / "steps.trace.json.gz").symlink_to(TRACE)
        env = {name: each for name, each in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        env |= {"PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(inputs / "compiled")}
        imported = [sys.executable, "-c", RUN, *f"import jobs.csv {OF_CELL} --workdir w".split()]
        subprocess.run(imported, cwd=inputs, env=env, check=True, stdout=subprocess.DEVNULL)
        for command in COMMANDS:
            if said.only not in command:
                continue
            argv = [sys.executable, "-c", RUN, *command.split()]
            if measured(argv, inputs, env | {"SHELL_START": "loaded"})[2] in REFUSED:
                print(f"{command}: refused")
                continue
            bare, found, loading = [], [], []
            for _ in range(said.runs):
                bare.append(measured([sys.executable, "-c", "pass"], inputs, env)[0])
                found.append(measured(argv, inputs, env))
                loading.append(measured([sys.executable, "-c", LOAD], inputs, env)[0])
            ratio = median(each[0] / of_s for each, of_s in zip(found, bare, strict=True))
            start = median(each_s / of_s for each_s, of_s in zip(loading, bare, strict=True))
            print(
                f"{command.replace(OF_CELL, '...'):58} {median(each[0] for each in found):6.3f} s "
                f"CPU {median(each[1] for each in found):5.0f} MB {ratio:6.1f} times "
                f"{median(bare):.3f} s, loading {start:5.1f}",
                flush=True,
            )


def measured(argv: list[str], inputs: Path, env: dict[str, str]) -> tuple[float, float, int]:
    """Return CPU seconds, peak in MB and exit status of one run."""
    words = [f"table-{next(TABLES)}" if each == "TABLE" else each for each in argv]
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, *words],
        cwd=inputs, env=env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    cpu_s, peak, status = done.stdout.split()
    return float(cpu_s), int(peak) / 1024, int(status)


if __name__ == "__main__":
    main()
