"""How often a study of commits is right: simulated searches and tables.

    python benchmarks/commit_rates.py --write docs/reference/error_rates.md

Drives the production study (decide) over worlds of known truth: jobs differ as `cellworlds.py`
says. Random numbers repeat.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import partial

import numpy as np
import pages
from cellworlds import CELL, Noise, drive
from msgspec.structs import replace

from pytest_xlatune.model.result import TrialResult, VerdictKind
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies.commit_check import Commits, CommitsRecord, CommitStudy, Load

WORLDS = (Noise(), Noise(bad_jobs=0.03), Noise(sigma=0.010, bad_jobs=0.03))
QUIET = Noise(sigma=0.001)
SEARCH_COLUMNS = pages.cells(
    "truth | right | wrong commit | NO CHANGE | RANGE | ranges that hold it | jobs, mean"
)
TABLE_COLUMNS = pages.cells(
    "10 models, 2 commits: job noise | truth | found | tables that accuse falsely | tables "
    "that call one FASTER | jobs, mean"
)
LEAST = 0.01  # a search takes up no smaller change
TRUTHS = (
    *((loss, world) for loss in (0.02, 0.03, 0.05, 0.10, 0.0) for world in WORLDS),
    *((loss, QUIET) for loss in (0.02, 0.005, 0.002, 0.0)),
)
LOADS = tuple(Load(model=f"model-{at}") for at in range(10))


def of_commits(count: int, *, loads: tuple[Load, ...] = (), budget: int = 500) -> CommitStudy:
    """Return the study of so many commits: a search, or a table of loads."""
    cells = tuple(replace(CELL, code=f"{at + 1:012x}{0:028x}") for at in range(count))
    return CommitStudy(
        cells=tuple(load.cell(cell) for load in loads for cell in cells) or cells,
        labels=tuple(f"{at + 1:012x} commit" for at in range(count)),
        asked=Commits(loads=loads),
        is_search=not loads,
        budget=budget,
    )


def search(world: Noise, seed: int, study: CommitStudy, loss: float) -> Counter[str]:
    """Run one search and count what came of it."""
    random = np.random.default_rng([seed, 20261124])
    first = int(random.integers(1, len(study.cells)))

    def run(trial: Trial) -> TrialResult:
        is_slow = loss > 0 and study.places[trial.cell_digest] >= first
        return world.measured(trial, math.log1p(-loss) if is_slow else 0.0, random)

    history, _ = drive(study, run)
    record = study.decide(history).conclusion.record
    assert isinstance(record, CommitsRecord)
    is_right = loss >= LEAST and record.first == study.ids[first]
    low, high = (study.ids.index(each) if each else -1 for each in (record.first, record.last))
    return Counter(
        {
            "jobs": len(history),
            "right": int(record.found == "FIRST" and is_right),
            "wrong": int(record.found == "FIRST" and not is_right),
            "no change": int(record.found == "NO CHANGE"),
            "range": int(record.found == "RANGE"),
            "range holds it": int(record.found == "RANGE" and low < first <= high),
        }
    )


def table(world: Noise, seed: int, study: CommitStudy, loss: float) -> Counter[str]:
    """Run one table of loads on two commits, the first of which one commit slows."""
    random = np.random.default_rng([seed, 20261125])

    def run(trial: Trial) -> TrialResult:
        is_slow = study.places[trial.cell_digest] == 1
        return world.measured(trial, math.log1p(-loss) if is_slow else 0.0, random)

    history, _ = drive(study, run)
    kinds = {each.arm: each.kind for each in study.decide(history).conclusion.verdicts}
    slow = {arm for arm, kind in kinds.items() if kind is VerdictKind.SLOWER}
    truth = {study.ids[1]} if loss else set()
    return Counter(
        {
            "jobs": len(history),
            "found": len(slow & truth),
            "false": int(bool(slow - truth)),
            "faster": int(VerdictKind.FASTER in kinds.values()),
        }
    )


def searches(count: int, runs: int) -> list[str]:
    study = of_commits(count)
    lines = pages.head((f"{count} commits: job noise", *SEARCH_COLUMNS))
    for loss, world in TRUTHS:
        total = pages.summed(partial(search, world, study=study, loss=loss), runs)
        right, *others = pages.percents(total, ("right", "wrong", "no change", "range"), runs)
        held = total["range holds it"], total["range"]
        cells = (
            world.words,
            f"-{100 * loss:g} %" if loss else "no change",
            right if loss >= LEAST else "-",
            *others,
            f"{held[0]} of {held[1]}" if loss and held[1] else "-",
            f"{total['jobs'] / runs:.0f}",
        )
        lines.append(pages.line(cells))
    return lines


def tables(runs: int) -> list[str]:
    study = of_commits(2, loads=LOADS)
    lines = pages.head(TABLE_COLUMNS)
    for loss in (0.05, 0.03, 0.0):
        for world in WORLDS:
            total = pages.summed(partial(table, world, study=study, loss=loss), runs)
            found, *others = pages.percents(total, ("found", "false", "faster"), runs)
            cells = (
                world.words,
                f"1 x -{100 * loss:.0f} %" if loss else "no change",
                found if loss else "-",
                *others,
                f"{total['jobs'] / runs:.0f}",
            )
            lines.append(pages.line(cells))
    return lines


def main() -> None:
    parser = pages.parser(__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    runs = (options := parser.parse_args()).runs
    lines = [f"{runs} studies a row; rates in percent.", "", *tables(runs), ""]
    lines += [*searches(64, runs), "", *searches(16, runs)]
    pages.publish("\n".join(lines), options.write, "commits")


if __name__ == "__main__":
    main()
