"""How often a study of commits is right: simulated searches and tables.

    python benchmarks/commit_rates.py --write docs/reference/error_rates.md

Drives the production study (decide) over worlds of known truth: jobs differ as `cellworlds.py`
says. Random numbers repeat; rates are in percent.
"""

from __future__ import annotations

import math
from collections import Counter
from functools import cache
from typing import NamedTuple

import numpy as np
import pages
from cellworlds import CELL, Noise, drive
from msgspec.structs import replace

from pytest_xlatune.model.result import TrialResult, VerdictKind
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies.commit_check import Commits, CommitsRecord, CommitStudy, Load


class World(NamedTuple):
    """The commits of a study, and the truth: the share that one of them loses."""

    commits: int
    loss: float
    noise: Noise


NOISES = (Noise(), Noise(bad_jobs=0.03), Noise(sigma=0.010, bad_jobs=0.03))
QUIET = Noise(sigma=0.001)
SEARCH_COLUMNS = pages.cells(
    "commits | job noise | truth | searches | right | wrong commit | NO CHANGE | RANGE | ranges "
    "that hold it | jobs, mean"
)
TABLE_COLUMNS = pages.cells(
    "10 models, 2 commits: job noise | truth | tables | found | tables that accuse falsely | "
    "tables that call one FASTER | jobs, mean"
)
LEAST = 0.01  # a search takes up no smaller change
SEARCHES = tuple(
    World(commits, loss, noise)
    for commits in (64, 16)
    for loss, noise in (
        *((loss, noise) for loss in (0.02, 0.03, 0.05, 0.10, 0.0) for noise in NOISES),
        *((loss, QUIET) for loss in (0.02, 0.005, 0.002, 0.0)),
    )
)
BY_MODEL = tuple(World(2, loss, noise) for loss in (0.05, 0.03, 0.0) for noise in NOISES)
LOADS = tuple(Load(model=f"model-{at}") for at in range(10))


@cache
def study_of(count: int, *, is_search: bool) -> CommitStudy:
    """Return the study of so many commits: a search, or a table of loads."""
    loads = () if is_search else LOADS
    cells = tuple(replace(CELL, code=f"{at + 1:012x}{0:028x}") for at in range(count))
    return CommitStudy(
        cells=tuple(load.cell(cell) for load in loads for cell in cells) or cells,
        labels=tuple(f"{at + 1:012x} commit" for at in range(count)),
        asked=Commits(loads=loads),
        is_search=is_search,
        budget=500,
    )


def history_of(
    study: CommitStudy, world: World, first: int, random: np.random.Generator
) -> list[TrialResult]:
    """Run a study to its end, whose commits are slow from this one on."""

    def run(trial: Trial) -> TrialResult:
        is_slow = study.places[trial.cell_digest] >= first
        return world.noise.measured(trial, math.log1p(-world.loss) if is_slow else 0.0, random)

    return drive(study, run)[0]


def search(world: World, seed: int) -> Counter[str]:
    """Run one search and count what came of it."""
    study, loss = study_of(world.commits, is_search=True), world.loss
    random = np.random.default_rng([seed, 20261124])
    first = int(random.integers(1, len(study.cells)))
    history = history_of(study, world, first, random)
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


def table(world: World, seed: int) -> Counter[str]:
    """Run one table of loads on two commits, the first of which one commit slows."""
    study = study_of(world.commits, is_search=False)
    history = history_of(study, world, 1, np.random.default_rng([seed, 20261125]))
    kinds = {each.arm: each.kind for each in study.decide(history).conclusion.verdicts}
    slow = {arm for arm, kind in kinds.items() if kind is VerdictKind.SLOWER}
    truth = {study.ids[1]} if world.loss else set()
    return Counter(
        {
            "jobs": len(history),
            "found": len(slow & truth),
            "false": int(bool(slow - truth)),
            "faster": int(VerdictKind.FASTER in kinds.values()),
        }
    )


def words(world: World) -> tuple[str, str]:
    """Return the noise and the truth, as the tables say them."""
    return world.noise.words, f"-{100 * world.loss:g} %" if world.loss else "no change"


def search_row(world: World, results: list[Counter[str]]) -> list[str]:
    """Return the other cells of a row of searches."""
    total, runs = pages.total(results), len(results)
    right, *others = pages.percents(total, ("right", "wrong", "no change", "range"), runs)
    held = total["range holds it"], total["range"]
    return [
        right if world.loss >= LEAST else "-",
        *others,
        f"{held[0]} of {held[1]}" if world.loss and held[1] else "-",
        f"{total['jobs'] / runs:.0f}",
    ]


def table_row(world: World, results: list[Counter[str]]) -> list[str]:
    """Return the other cells of a row of tables."""
    total, runs = pages.total(results), len(results)
    found, *others = pages.percents(total, ("found", "false", "faster"), runs)
    return [found if world.loss else "-", *others, f"{total['jobs'] / runs:.0f}"]


TABLES = (
    pages.Table(
        part="commits by model",
        columns=TABLE_COLUMNS,
        worlds=BY_MODEL,
        label=words,
        simulate=table,
        row=table_row,
    ),
    pages.Table(
        part="commits",
        columns=SEARCH_COLUMNS,
        worlds=SEARCHES,
        label=lambda world: (str(world.commits), *words(world)),
        simulate=search,
        row=search_row,
    ),
)

if __name__ == "__main__":
    raise SystemExit(pages.measure(__doc__, *TABLES))
