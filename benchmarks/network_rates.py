"""How often a check of a network names the right fault, and accuses in error: simulated checks.

    python benchmarks/network_rates.py --write docs/reference/error_rates.md

Drives the production study (decide) over worlds of known truth: jobs differ as `cellworlds.py`
says, nodes differ for good by `spread`; a pair is as fast as its slower node. A bad node slows all
its pairs, a bad link one pair, a bad uplink all pairs of two racks. Random numbers
repeat. Rates are in percent.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from dataclasses import dataclass
from functools import cache

import numpy as np
import pages
from cellworlds import CELL, Noise, drive
from msgspec.structs import replace

from pytest_xlatune.model.cell import Parallelism
from pytest_xlatune.model.hosts import waves_in
from pytest_xlatune.model.result import TrialResult, VerdictKind
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies.cell_arms import ACCUSED
from pytest_xlatune.studies.network_check import Network, NetworkStudy

NODE, LINK, UPLINK = "node", "link", "uplink"


@dataclass(frozen=True, kw_only=True)
class World(Noise):
    """The truth: sizes are fractions."""

    nodes: int = 8
    spread: float = 0.0
    fault: str = ""
    loss: float = 0.0
    racks: int = 0
    across: float = 0.0  # what a pair of two racks loses for good

    @property
    def words(self) -> str:
        """The noise, as the table says it."""
        spread = f", nodes differ by {100 * self.spread:.1f} %" if self.spread else ""
        return super().words + spread

    @property
    def truth(self) -> str:
        """The fault, as the table says it."""
        return f"{self.fault} -{100 * self.loss:.0f} %" if self.fault else "none"


NOISES = (
    World(sigma=0.006),
    World(sigma=0.006, bad_jobs=0.03),
    World(sigma=0.010, bad_jobs=0.03),
)
TRUTHS = (("", 0.0), (NODE, 0.05), (NODE, 0.03), (LINK, 0.05), (LINK, 0.10))
COLUMNS = pages.cells(
    "nodes | job noise | truth | checks | right | an innocent node or link is accused | "
    "cannot tell | said healthy, but is not | jobs, mean | waves: mean, most | 95 % intervals of "
    "right accusations that hold the truth"
)


@cache
def study_of(world: World) -> NetworkStudy:
    """Return the study of a world's nodes."""
    names = [f"node{at:03d}" for at in range(world.nodes)]
    size = world.nodes // world.racks if world.racks else 0
    racks = {f"rack{r}": ",".join(names[r * size : (r + 1) * size]) for r in range(world.racks)}
    cell = replace(CELL, parallelism=Parallelism.parse("FSDP=16"), nodelist=tuple(names))
    return NetworkStudy(cell=cell, asked=Network(racks=racks), budget=10_000)


def check(world: World, seed: int) -> Counter[str]:
    """Run one check and count what came of it."""
    study = study_of(world)
    random = np.random.default_rng([seed, 20261123])
    names = study.cell.nodelist
    level = dict(zip(names, random.normal(0, world.spread, len(names)), strict=True))
    rack = study.rack_of
    lost = math.log1p(-world.loss)
    # the fault is anywhere
    first, second = (names[at] for at in random.choice(len(names), 2, replace=False))
    if world.fault == UPLINK or (world.racks and world.fault == LINK):
        others = [n for n in names if (rack[n] == rack[first]) is (world.fault == LINK)]
        second = str(random.choice([n for n in others if n != first]))
    pair, racks = {first, second}, {rack[first], rack[second]}

    def run(trial: Trial) -> TrialResult:
        a, b = nodes = study.pair_of(trial)
        effect = min(level[a], level[b])
        if study.is_across(nodes):
            effect += math.log1p(-world.across)
        if (
            (world.fault == NODE and first in nodes)
            or (world.fault == LINK and pair == set(nodes))
            or (world.fault == UPLINK and racks == {rack[a], rack[b]})
        ):
            effect += lost
        return world.measured(trial, effect, random)

    history, waves = drive(study, run, lambda trials: waves_in(map(study.pair_of, trials)))
    verdicts = study.decide(history).conclusion.verdicts
    accused = [verdict for verdict in verdicts if verdict.kind in ACCUSED]
    is_link = any("+" in verdict.arm for verdict in accused)
    named = {name for verdict in accused for name in verdict.arm.split("+")}
    places = {rack[name] for name in named} if world.fault == UPLINK and is_link else named
    truth = {NODE: {first}, LINK: pair, UPLINK: racks}.get(world.fault, set())
    right = places == truth and (not truth or is_link is (world.fault != NODE))
    is_open = not accused and any(v.kind is VerdictKind.INCONCLUSIVE for v in verdicts)
    counts = Counter(
        jobs=len(history),
        waves=waves,
        right=int(right and not is_open),
        accusing=int(bool(accused) and not right),
        open=int(is_open),
        healthy=int(bool(truth) and not accused and not is_open),
    )
    if right and accused and (interval := accused[0].ci95):
        counts["intervals"] += 1
        counts["held"] += interval[0] <= math.expm1(lost) <= interval[1]
    return counts


def label(world: World) -> tuple[str, ...]:
    """Return the first cells of a row."""
    nodes = f"{world.nodes} in {world.racks} racks" if world.racks else f"{world.nodes}"
    return nodes, world.words, world.truth


def row(_: World, results: list[Counter[str]]) -> list[str]:
    """Return the other cells of a row."""
    total, checks = pages.total(results), len(results)
    most = max(counts["waves"] for counts in results)
    return [
        *pages.percents(total, ("right", "accusing", "open", "healthy"), checks),
        f"{total['jobs'] / checks:.0f}",
        f"{total['waves'] / checks:.0f}, {most}",
        f"{100 * total['held'] / total['intervals']:.1f}" if total["intervals"] else "-",
    ]


LOST = 0.05
GROUPS = (  # worlds, with the faults of each, and their losses
    *((dataclasses.replace(noise, nodes=n), TRUTHS) for noise in NOISES for n in (8, 16, 32)),
    (dataclasses.replace(NOISES[0], nodes=4), (*TRUTHS[:2], (LINK, LOST), (LINK, 0.30))),
    *(
        (dataclasses.replace(NOISES[1], nodes=n, spread=0.003), (*TRUTHS[:2], (LINK, LOST)))
        for n in (9, 16)
    ),
    *(
        (
            dataclasses.replace(NOISES[1], nodes=n, racks=racks, across=0.02),
            (*TRUTHS[:2], (LINK, LOST), (UPLINK, LOST)),
        )
        for n, racks in ((32, 4), (128, 8))
    ),
)
TABLE = pages.Table(
    part="network",
    columns=COLUMNS,
    worlds=tuple(
        dataclasses.replace(world, fault=fault, loss=loss)
        for world, faults in GROUPS
        for fault, loss in faults
    ),
    label=label,
    simulate=check,
    row=row,
)

if __name__ == "__main__":
    raise SystemExit(pages.measure(__doc__, TABLE))
