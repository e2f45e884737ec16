"""What `xlatune report` and `xlatune history` cost, by the number of profiles of the sweep.

    python benchmarks/report_cost.py [--profiles 200 800] [--steps 15]

A ledger of 100 MB has `--profiles 200 --steps 13000`.

A simulated cluster measures a sweep, its ledger is written as a campaign writes it, and the command
that a user types runs on it in a process of its own. CPU seconds and peak memory are the operating
system's, with the interpreter's start; `of bare Python` is the ratio to `python -c pass`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from costs import COMMAND, used
from msgspec.structs import replace
from reuse_cost import lines_of, study_of, world_of
from simcluster import Cluster, drive
from tabulate import tabulate

from pytest_xlatune.ledger import LEDGER, CampaignOpened, Ledger
from pytest_xlatune.model.result import TrialResult


def longer(result: TrialResult, steps: int) -> TrialResult:
    """Return a result as that of a longer job: its last steps all took what its steady ones did."""
    score = result.score
    if score is None or score.step_s is None:
        return result
    more = tuple((at, score.step_s) for at in range(len(score.timings), steps))
    return replace(result, score=replace(score, timings=(*score.timings, *more)))


def ledger_of(profiles: int, folder: Path, *, steps: int = 0) -> Path:
    """Leave the ledger of a measured sweep below a work directory."""
    study = study_of(profiles)
    _, history = drive(study, Cluster(world_of(profiles), 1), 1)
    opened = CampaignOpened(
        cells=(study.cell,), study=study.name, sweep="reported", session="s",
        declared=study.to_json(),
    )  # fmt: skip
    path = folder / ".xlatune" / "reported" / "cell" / LEDGER
    path.parent.mkdir(parents=True)
    Ledger(path).append(opened, *lines_of([longer(each, steps) for each in history]), at_s=1e9)
    return path


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profiles", type=int, nargs="+", default=[200, 800])
    parser.add_argument("--steps", type=int, default=0, help="of each job; 15 at least")
    options, rows = parser.parse_args(), []
    for profiles in options.profiles:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            size = ledger_of(profiles, folder, steps=options.steps).stat().st_size / 1e6
            used([*COMMAND, "report"], folder)  # compiles the modules
            bare = used([sys.executable, "-c", "pass"], folder)
            cost = used([*COMMAND, "report"], folder)
            history = used([*COMMAND, "history", "."], folder)
            written = sum(each.stat().st_size for each in folder.glob("reports/**/*.*")) / 1e6
        ratio = cost.cpu_s / bare.cpu_s
        rows.append([profiles, size, cost.cpu_s, ratio, cost.peak_mb, written, history.cpu_s])
    headers = ["profiles", "ledger, MB", "CPU s", "of bare Python", "peak MB", "reports, MB"]
    headers.append("history, CPU s")
    print(tabulate(rows, headers=headers, floatfmt=("", ".1f", ".2f", ".0f", ".0f", ".1f", ".2f")))


if __name__ == "__main__":
    main()
