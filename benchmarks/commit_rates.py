"""How often a study of commits is right: simulated searches and tables.

    python benchmarks/commit_rates.py --write docs/reference/error_rates.md

Drives the production study (decide) over worlds of known truth: jobs differ by `sigma`,
and in worlds with bad jobs 3 % of all jobs are 2 to 5 % slow. Random numbers repeat.
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pages
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.result import Score, TrialResult, TrialStatus, VerdictKind
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies.commit_check import (
    Commits,
    CommitsRecord,
    CommitStudy,
    Load,
)


@dataclass(frozen=True, kw_only=True)
class World:
    """The noise: fractions."""

    sigma: float = 0.006
    bad_jobs: float = 0.0

    @property
    def words(self) -> str:
        """As the tables say it."""
        return f"{100 * self.sigma:.1f} %" + (", 3 % bad jobs" if self.bad_jobs else "")


WORLDS = (World(), World(bad_jobs=0.03), World(sigma=0.010, bad_jobs=0.03))
QUIET = World(sigma=0.001)
LEAST = 0.01  # a search takes up no smaller change
TRUTHS = (
    *((loss, world) for loss in (0.02, 0.03, 0.05, 0.10, 0.0) for world in WORLDS),
    *((loss, QUIET) for loss in (0.02, 0.005, 0.002, 0.0)),
)
CELL = Cell(model_tag="simulated", parallelism=Parallelism.parse("FSDP=8"), protocol=Protocol())
LOADS = tuple(Load(model=f"model-{at}") for at in range(10))


def run(trial: Trial, value: float, world: World, random: np.random.Generator) -> TrialResult:
    """Return the result of a job of this mean log score."""
    value += 7.5 + random.normal(0, world.sigma)
    if random.random() < world.bad_jobs:
        value += math.log1p(-random.uniform(0.02, 0.05))
    score = Score(value=float(value), tgs=math.exp(value), step_s=1.0, n_steps=10, window=(5, 14))
    return TrialResult(trial=trial, status=TrialStatus.MEASURED, score=score)


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


def search(world: World, seed: int, study: CommitStudy, loss: float) -> Counter[str]:
    """Run one search and count what came of it."""
    random = np.random.default_rng([seed, 20261124])
    first = int(random.integers(1, len(study.cells)))
    history: list[TrialResult] = []
    while trials := study.decide(history).due:
        for trial in trials:
            is_slow = loss > 0 and study.places[trial.cell_digest] >= first
            history.append(run(trial, math.log1p(-loss) if is_slow else 0.0, world, random))
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


def table(world: World, seed: int, study: CommitStudy, loss: float) -> Counter[str]:
    """Run one table of loads on two commits, the first of which one commit slows."""
    random = np.random.default_rng([seed, 20261125])
    history: list[TrialResult] = []
    while trials := study.decide(history).due:
        for trial in trials:
            at = study.places[trial.cell_digest]
            history.append(run(trial, math.log1p(-loss) if at == 1 else 0.0, world, random))
    said = {each.arm: each.kind for each in study.decide(history).conclusion.verdicts}
    slow = {arm for arm, kind in said.items() if kind is VerdictKind.SLOWER}
    truth = {study.ids[1]} if loss else set()
    return Counter(
        {
            "jobs": len(history),
            "found": len(slow & truth),
            "false": int(bool(slow - truth)),
            "faster": int(VerdictKind.FASTER in said.values()),
        }
    )


def searches(count: int, runs: int) -> list[str]:
    study = of_commits(count)
    lines = [
        (
            f"| {count} commits: job noise | truth | right | wrong commit | NO CHANGE | RANGE | "
            "ranges that hold it | jobs, mean |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    for loss, world in TRUTHS:
        total: Counter[str] = Counter()
        for seed in range(runs):
            total += search(world, seed, study, loss)
        rate = {name: f"{100 * total[name] / runs:.1f}" for name in total | Counter(wrong=1)}
        held = total["range holds it"], total["range"]
        truth = f"-{100 * loss:g} %" if loss else "no change"
        lines.append(
            f"| {world.words} | {truth} | {rate.get('right', '0.0') if loss >= LEAST else '-'} | "
            f"{rate['wrong']} | {rate.get('no change', '0.0')} | {rate.get('range', '0.0')} | "
            f"{f'{held[0]} of {held[1]}' if loss and held[1] else '-'} | "
            f"{total['jobs'] / runs:.0f} |"
        )
        print(lines[-1], flush=True)
    return lines


def tables(runs: int) -> list[str]:
    study = of_commits(2, loads=LOADS)
    lines = [
        (
            "| 10 models, 2 commits: job noise | truth | found | tables that accuse falsely | "
            "tables that call one FASTER | jobs, mean |"
        ),
        "|---|---|---|---|---|---|",
    ]
    for loss in (0.05, 0.03, 0.0):
        for world in WORLDS:
            total: Counter[str] = Counter()
            for seed in range(runs):
                total += table(world, seed, study, loss)
            found = f"{100 * total['found'] / runs:.1f}" if loss else "-"
            truth = f"1 x -{100 * loss:.0f} %" if loss else "no change"
            lines.append(
                f"| {world.words} | {truth} | {found} | {100 * total['false'] / runs:.1f} | "
                f"{100 * total['faster'] / runs:.1f} | {total['jobs'] / runs:.0f} |"
            )
            print(lines[-1], flush=True)
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--only", choices=("search", "table"))
    parser.add_argument("--write", type=Path, help="a page with the two comments to write between")
    arguments = parser.parse_args()
    began = time.process_time()
    lines = [f"{arguments.runs} studies a row; rates in percent.", ""]
    if arguments.only != "search":
        lines += [*tables(arguments.runs), ""]
    if arguments.only != "table":
        lines += [*searches(64, arguments.runs), "", *searches(16, arguments.runs)]
    text = "\n".join(lines)
    print(f"{time.process_time() - began:.0f} s of processor time")
    if arguments.write:
        pages.rewrite(arguments.write, text, "commits")


if __name__ == "__main__":
    main()
