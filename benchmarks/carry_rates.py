"""How often a study of gains is wrong, what it tells, and what it costs: simulated studies.

    python benchmarks/carry_rates.py --write docs/reference/error_rates.md

Drives the production study (propose, conclude) over worlds of known truth: jobs of a cell differ by
`small` or `full`, blocks by 1 %; in worlds with bad jobs 3 % of all jobs are 2 to 5 % slow. The
gain of the small cell is measured by the study itself, or decided before by a simulated tuning
sweep of 25 profiles, three of them at the gain and the rest at 0, whose winner is then asked about.
Random numbers repeat.
"""

from __future__ import annotations

import argparse
import functools
import math
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace
from multiprocessing import Pool
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import pages
import simcluster

from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.profile import Profile, profile
from pytest_xlatune.model.result import Score, TrialResult, TrialStatus, VerdictKind
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies.carry import CarryRecord, CarryStudy, SmallCell
from pytest_xlatune.studies.gate import Gate

FULL = Cell(model_tag="simulated", parallelism=Parallelism.parse("FSDP=64"), protocol=Protocol())
SMALL = replace(FULL, parallelism=Parallelism.parse("FSDP=8"))
HARM = -0.01


@dataclass(frozen=True, kw_only=True)
class World:
    """The truth: changes are fractions.

    Attributes:
        gain: in the small cell.
        share: of it that is in the full one; a number below 0 is a harm of 1 %.
        small, full: noise of a job in each cell.
        bad_jobs: share of jobs that are slow.
        blocks, profiles: of the study.
        is_selected: whether the small cell's gain is that of a sweep's winner.
        lost: share of jobs that are lost.
    """

    gain: float = 0.02
    share: float = 1.0
    small: float = 0.006
    full: float = 0.006
    bad_jobs: float = 0.0
    blocks: int = 8
    profiles: int = 1
    is_selected: bool = False
    lost: float = 0.0

    @property
    def change(self) -> float:
        """The true change in the full cell, as a log ratio."""
        return math.log1p(self.gain * self.share if self.share >= 0 else HARM)

    @property
    def words(self) -> str:
        """The noise, as the table says it."""
        both = f"{100 * self.small:.1f} / {100 * self.full:.1f} %"
        bad = ", 3 % bad jobs" if self.bad_jobs else ""
        lost = ", 2 % of jobs lost" if self.lost else ""
        return both + bad + lost

    @property
    def truth(self) -> str:
        """What is left of the gain, as the table says it."""
        return f"{100 * HARM:.0f} %" if self.share < 0 else f"{100 * self.share:.0f} % of it"

    @property
    def source(self) -> str:
        """Where the gain of the small cell comes from."""
        return "winner of a sweep" if self.is_selected else "measured"

    def is_wrong(self, word: str) -> bool:
        """Whether a word says what is not so."""
        share = self.share if self.share >= 0 else HARM / self.gain
        return {
            "CARRIES": share < 0.5,
            "SMALLER": not 0 < share < 1,
            "LOST": share >= 0.5,
        }.get(word, False)


WINNERS: dict[tuple[float, float], list[SmallCell]] = {}  # by gain and noise


def winner(gain: float, noise: float, seed: int) -> SmallCell | None:
    """Return what a tuning sweep says of its winner; None where it has no right one."""
    world = simcluster.World(name="small", effects=(gain,) * 3, sigma_job=noise, budget=50)
    conclusion, _ = simcluster.sweep(world, seed)
    best = conclusion.winner
    if best is None or int(best.arm[1:]) >= len(world.effects):
        return None
    verdict = replace(best, arm="p0", reasons=(), job_ids=())
    sigma = conclusion.noise.sigma
    return SmallCell(cell=SMALL, digest="s", source="x", verdicts=(verdict,), sigma=sigma)


@functools.cache
def study_of(world: World, number: int) -> CarryStudy:
    """Return the study as a sweep file declares it, by the winner of this number."""
    small = SmallCell(cell=SMALL, digest=SMALL.digest)
    if world.is_selected:
        small = WINNERS[world.gain, world.small][number]
    declared: tuple[Profile, ...] = tuple(
        profile(f"p{at}", f"--xla_gpu_simulated_knob={at}") for at in range(world.profiles)
    )
    return CarryStudy(
        cell=FULL,
        profiles=declared,
        gate=Gate(blocks=world.blocks, block_baselines=1),
        small=small,
        budget=1000,
    )


def study(world: World, seed: int) -> Counter[str]:
    """Run one study and count what came of it."""
    random = np.random.default_rng([seed, 20261127])
    many = len(WINNERS[world.gain, world.small]) if world.is_selected else 1
    asked = study_of(world, seed % many)
    level: dict[tuple[str, int], float] = {}

    def run(trial: Trial) -> TrialResult:
        is_small = trial.cell_digest == SMALL.digest
        if random.random() < world.lost:
            return TrialResult(trial=trial, status=TrialStatus.UNMEASURED)
        block = level.setdefault((trial.cell_digest, trial.block), random.normal(0, 0.01))
        value = 7.5 + block + random.normal(0, world.small if is_small else world.full)
        if random.random() < world.bad_jobs:
            value += math.log1p(-random.uniform(0.02, 0.05))
        if not trial.is_baseline:
            value += math.log1p(world.gain) if is_small else world.change
        value = float(value)
        score = Score(value=value, tgs=math.exp(value), step_s=1.0, n_steps=10, window=(5, 14))
        return TrialResult(trial=trial, status=TrialStatus.MEASURED, score=score)

    history: list[TrialResult] = []
    while trials := asked.propose(history):
        history += map(run, trials)
    concluded = asked.conclude(history)
    said = [each.word for each in concluded.verdicts]
    found = Counter(said)
    found["wrong"] = any(map(world.is_wrong, said))
    found["kept away"] = sum(each.n == 0 for each in concluded.verdicts)
    found["jobs"] = sum(each.trial.cell_digest == FULL.digest for each in history)
    found["harm told"] = sum(
        each.kind is VerdictKind.SLOWER and each.ci95 is not None and each.ci95[1] < 0
        for each in concluded.verdicts
    )
    for each in concluded.found(CarryRecord).changes:
        apart = math.expm1(world.change - math.log1p(world.gain))
        found["intervals"] += 1
        found["held"] += each.apart[1] <= apart <= each.apart[2]
    return found


def row(world: World, studies: int) -> str:
    total: Counter[str] = Counter()
    for seed in range(studies):
        total += study(world, seed)
    arms = studies * world.profiles
    shares = (
        f"{100 * total[word] / arms:.1f}" for word in ("CARRIES", "SMALLER", "LOST", "CANNOT TELL")
    )
    held = f"{100 * total['held'] / total['intervals']:.1f}" if total["intervals"] else "-"
    return (
        f"| {world.source} | +{100 * world.gain:.0f} % | {world.truth} | {world.words} | "
        f"{world.blocks} | {world.profiles} | {' | '.join(shares)} | "
        f"{100 * total['wrong'] / studies:.1f} | {total['jobs'] / studies:.1f} | {held} |"
    )


SHARES = (1.0, 0.75, 0.5, 0.25, 0.0, -1.0)
NOISES = ((0.003, 0.003), (0.010, 0.010), (0.003, 0.010), (0.010, 0.003))


def worlds() -> list[World]:
    few, whole = (1.0, 0.5, 0.0), World()
    found = [replace(whole, share=share) for share in SHARES]
    found += [World(small=small, full=full, share=s) for small, full in NOISES for s in few]
    others = (
        World(is_selected=True),
        World(is_selected=True, small=0.010),
        World(blocks=16),
        World(profiles=3),
        World(bad_jobs=0.03),
        World(lost=0.02),
    )
    return found + [replace(each, share=share) for each in others for share in few]


def table(studies: int, swept: int, jobs: int, only: str) -> str:
    lines = [
        f"{studies} studies a row; words in percent of the profiles.",
        "",
        (
            "| gain of the small cell | its truth | here | job noise, small / here | blocks | "
            "profiles | CARRIES | SMALLER | LOST | CANNOT TELL | studies with a wrong word, % | "
            "jobs here, mean | 95 % intervals of the difference that hold the truth |"
        ),
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    chosen = [each for each in worlds() if only in f"{each.source}/{each.truth}/{each.words}"]
    asked = dict.fromkeys((each.gain, each.small) for each in chosen if each.is_selected)
    every = [(*each, seed) for each in asked for seed in range(swept)]
    with Pool(jobs) as pool:
        for (gain, noise, _), found in zip(every, pool.starmap(winner, every), strict=True):
            if found is not None:
                WINNERS.setdefault((gain, noise), []).append(found)
    one = functools.partial(row, studies=studies)
    with Pool(jobs) as pool:  # forked, so that it has the winners
        for line in pool.imap(one, chosen):
            lines.append(line)
            print(line, flush=True)
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=1000)
    parser.add_argument("--sweeps", type=int, default=300, help="of the small cell, each used anew")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", default="", help="a part of SOURCE/TRUTH/NOISE of a row")
    parser.add_argument("--write", type=Path, help="a page with the two comments to write between")
    arguments = parser.parse_args()
    began = time.process_time()
    text = table(arguments.studies, arguments.sweeps, arguments.jobs, arguments.only)
    print(f"{time.process_time() - began:.0f} s of processor time")
    if arguments.write:
        pages.rewrite(arguments.write, text, "gains")


if __name__ == "__main__":
    main()
