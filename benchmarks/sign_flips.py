"""What a patch does to two cells of a model, where settings gain on one and lose on the other.

    python benchmarks/sign_flips.py --write docs/reference/error_rates.md

Both cells, PP=8 and FSDP=8, are swept on simulated clusters whose truth is known. The patch of both
recipes is made, given to `git apply`, and the file sourced on either parallelism, all by the code
that runs in production. A cell is harmed where a setting is active that has a negative true effect
there.
"""

from __future__ import annotations

import math
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import pages
from simcluster import Cluster, World, drive, study_of

from pytest_xlatune.model.cell import DeployedFile
from pytest_xlatune.model.profile import effective_values, parse_flags
from pytest_xlatune.report.deployment import patch_of
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.sweep.deployed import deployed_env

ENV = "simulated.env.sh"
DEPLOYED = 'export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_deployed=1"\n'
KNOB = "xla_gpu_simulated_knob_"
MOST_HARMED = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two cells of a model: the effects of the first settings on either, those of others nil."""

    name: str
    pp: tuple[float, ...]
    fsdp: tuple[float, ...]
    plain: World

    def worlds(self) -> tuple[World, World]:
        """Return the worlds of the two cells."""
        pp = replace(self.plain, parallelism="PP=8", effects=self.pp)
        return pp, replace(self.plain, parallelism="FSDP=8", effects=self.fsdp)


# one that gains on PP and loses on FSDP, one the other way, one on both, one on PP alone
SINGLES = World(name="", is_apart=True)
STACKED = World(name="", stacks=8, budget=65)
# the project's own profile of two settings, measured on both
DECLARED = World(name="", profiles=24, together=((0, 1),))
PAIRS = (
    Pair(name="flips of 2 %, 50 jobs", plain=SINGLES,
         pp=(0.02, -0.02, 0.02, 0.02), fsdp=(-0.02, 0.02, 0.02, 0.0)),
    Pair(name="flips of 2 %, stacks, 65 jobs", plain=STACKED,
         pp=(0.02, -0.02, 0.02, 0.02), fsdp=(-0.02, 0.02, 0.02, 0.0)),
    Pair(name="+4 % on both, and a flip of 2 % with it, 50 jobs", plain=DECLARED,
         pp=(0.04, 0.02), fsdp=(0.04, -0.02)),
    Pair(name="+4 % on both, and +2 % here, -1 % there with it, 50 jobs", plain=DECLARED,
         pp=(0.04, 0.02), fsdp=(0.04, -0.01)),
)  # fmt: skip
COLUMNS = pages.cells(
    "pair of cells | pairs | a recipe on both | a cell is harmed | gain on PP | gain on FSDP | "
    "jobs | |"
)


class Deployed(NamedTuple):
    """What the patch of one pair of sweeps does."""

    recipes: int  # cells that have one
    is_harmed: bool  # a setting with a negative effect is active on either
    gains: tuple[float, float]  # the true ones, on PP and on FSDP
    jobs: int  # the most of a sweep


def covered_by(world: World, seed: int) -> MeasuredCell:
    """Sweep a cell and return its part of the tuning document."""
    study = study_of(world, seed)
    conclusion, history = drive(study, Cluster(world, seed), seed)
    return MeasuredCell(
        sweep="simulated",
        cell_digest=study.cell.digest,
        written_s=1e9 + seed,
        cells=(study.cell,),
        profiles=study.decide(history).profiles,
        conclusion=conclusion,
        history=tuple(history),
        files=(DeployedFile(path=ENV, text=DEPLOYED),),
    )


def active(cells: tuple[MeasuredCell, MeasuredCell]) -> tuple[frozenset[int], frozenset[int]]:
    """Apply the patch of both cells and return the settings that either then has."""
    patch = patch_of(cells)
    if patch.missing:
        raise AssertionError(f"a recipe is in no patch: {patch.missing}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, ENV)
        file.write_text(DEPLOYED, encoding="utf-8")
        if patch.text:
            words = ["git", "apply", "-"]
            subprocess.run(words, cwd=folder, check=True, input=patch.text.encode(), timeout=240)
        pp, fsdp = (
            deployed_env(file, parallelism=str(each.cell.parallelism))["XLA_FLAGS"]
            for each in cells
        )
    return knobs(pp), knobs(fsdp)


def knobs(flags: str) -> frozenset[int]:
    """Return the indices of the simulated settings among flags."""
    found = effective_values(parse_flags(flags))
    return frozenset(int(each.removeprefix(KNOB)) for each in found if each.startswith(KNOB))


def simulate(pair: Pair, seed: int) -> Deployed:
    """Sweep both cells, apply the patch of both on both."""
    worlds = pair.worlds()
    cells = (covered_by(worlds[0], 2 * seed), covered_by(worlds[1], 2 * seed + 1))
    has = active(cells)
    return Deployed(
        recipes=sum(cell.recipe is not None for cell in cells),
        is_harmed=any(
            world.truth(at) < 0
            for world, settings in zip(worlds, has, strict=True)
            for at in settings
        ),
        gains=(_gain(worlds[0], has[0]), _gain(worlds[1], has[1])),
        jobs=max(len(cell.history) for cell in cells),
    )


def _gain(world: World, settings: Iterable[int]) -> float:
    return math.expm1(math.fsum(math.log1p(world.truth(at)) for at in settings))


def row(pair: Pair, results: list[Deployed]) -> list[str]:
    """Return the other cells of a row."""
    n = len(results)
    harmed = sum(deployed.is_harmed for deployed in results)
    gains = []
    for at, world in enumerate(pair.worlds()):
        mean, error = pages.mean([deployed.gains[at] for deployed in results])
        best = _gain(world, (k for k, effect in enumerate(world.effects) if effect > 0))
        gains.append(f"{100 * mean:+.2f} ({100 * error:.2f}) of {100 * best:+.1f}")
    return [
        pages.share(sum(deployed.recipes == 2 for deployed in results), n),
        pages.share(harmed, n),
        *gains,
        str(max(deployed.jobs for deployed in results)),
        pages.OK if harmed / n <= MOST_HARMED else pages.MISSED,
    ]


TABLE = pages.Table(
    part="sign flips",
    columns=COLUMNS,
    worlds=PAIRS,
    label=lambda pair: (pair.name,),
    simulate=simulate,
    row=row,
    bar=pages.cells(f"bar | | | <= {100 * MOST_HARMED:.0f} | | | | "),
)

if __name__ == "__main__":
    raise SystemExit(pages.measure(__doc__, TABLE))
