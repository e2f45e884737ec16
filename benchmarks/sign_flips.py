"""What a patch does to two cells of a model, where settings gain on one and lose on the other.

    python benchmarks/sign_flips.py --keep pairs.json --write docs/reference/error_rates.md

Both cells, PP=8 and FSDP=8, are swept on simulated clusters whose truth is known. The patch of both
recipes is made, given to `git apply`, and the file sourced on either parallelism, all by the code
that runs in production. A cell is harmed where a setting is active that has a negative true effect
there. A recipe is guarded needlessly where none of its settings has one in the other cell.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import pages
from simcluster import Cluster, World, drive, study_of

from pytest_xlatune.model.cell import DeployedFile
from pytest_xlatune.model.profile import effective_values, parse_flags
from pytest_xlatune.report.deployment import patch_of
from pytest_xlatune.report.guards import conflicts
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.sweep.deployed import deployed_env

PART = "sign flips"  # of the page
ENV = "simulated.env.sh"
DEPLOYED = 'export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_deployed=1"\n'
KNOB = "xla_gpu_simulated_knob_"
MOST_HARMED = 0.02
CHUNK = 50


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

    @property
    def shared(self) -> frozenset[int]:
        """The settings that gain on both."""
        both = enumerate(zip(self.pp, self.fsdp, strict=True))
        return frozenset(at for at, effects in both if min(effects) > 0)


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
    "pair of cells | pairs | a recipe on both | a cell is harmed | guarded needlessly | a "
    "shared winner misses a cell | gain on PP | gain on FSDP | jobs | |"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployed:
    """What the patch of one pair of sweeps does.

    Attributes:
        recipes: cells that have one.
        is_harmed: whether a setting with a negative effect is active on either.
        harmless: recipes without a setting that loses on the other cell.
        needless: those of them with a guard.
        won: settings that gain on both and are in a recipe.
        missed: those of them that are not active on both.
        gains: the true gain on PP and on FSDP.
        jobs: the most of a sweep.
    """

    recipes: int
    is_harmed: bool
    harmless: int
    needless: int
    won: int
    missed: int
    gains: tuple[float, float]
    jobs: int


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


def one(pair: Pair, seed: int) -> Deployed:
    """Sweep both cells, apply the patch of both on both."""
    worlds = pair.worlds()
    cells = (covered_by(worlds[0], 2 * seed), covered_by(worlds[1], 2 * seed + 1))
    has = active(cells)
    recipes = [
        frozenset(map(int, effective_values(each.recipe.flags).values())) if each.recipe else None
        for each in cells
    ]
    harmless = [
        cell
        for cell, recipe, there in zip(cells, recipes, reversed(worlds), strict=True)
        if recipe is not None and all(there.truth(at) >= 0 for at in recipe)
    ]
    won = pair.shared & frozenset().union(*filter(None, recipes))
    return Deployed(
        recipes=sum(each is not None for each in recipes),
        is_harmed=any(
            world.truth(at) < 0 for world, own in zip(worlds, has, strict=True) for at in own
        ),
        harmless=len(harmless),
        needless=sum(bool(conflicts(each, cells)) for each in harmless),
        won=len(won),
        missed=len(won - (has[0] & has[1])),
        gains=(_gain(worlds[0], has[0]), _gain(worlds[1], has[1])),
        jobs=max(len(cell.history) for cell in cells),
    )


def _gain(world: World, settings: Iterable[int]) -> float:
    return math.expm1(math.fsum(math.log1p(world.truth(at)) for at in settings))


def row(pair: Pair, found: list[Deployed]) -> tuple[str, bool]:
    """Return a line of the table, and whether the bar holds."""
    n = len(found)
    harmed = sum(each.is_harmed for each in found)
    gains = []
    for at, world in enumerate(pair.worlds()):
        own = [each.gains[at] for each in found]
        mean = math.fsum(own) / n
        error = math.sqrt(math.fsum((each - mean) ** 2 for each in own) / max(n - 1, 1) / n)
        best = _gain(world, (k for k, effect in enumerate(world.effects) if effect > 0))
        gains.append(f"{100 * mean:+.2f} ({100 * error:.2f}) of {100 * best:+.1f}")
    holds = harmed / n <= MOST_HARMED
    cells = (
        pair.name,
        str(n),
        pages.share(sum(each.recipes == 2 for each in found), n),
        pages.share(harmed, n),
        pages.share(sum(each.needless for each in found), sum(each.harmless for each in found)),
        pages.share(sum(each.missed for each in found), sum(each.won for each in found)),
        *gains,
        str(max(each.jobs for each in found)),
        "ok" if holds else "**missed**",
    )
    return pages.line(cells), holds


def run(pairs: int, jobs: int, of: Sequence[Pair], keep: Path | None) -> dict[str, list[Deployed]]:
    """Measure so many of every pair, in turns; `keep` holds those so far, and gets the others."""
    kept = json.loads(keep.read_text("utf-8")) if keep and keep.exists() else {}
    found = {each.name: [Deployed(**one) for one in kept.get(each.name, ())] for each in of}
    with ProcessPoolExecutor(jobs) as pool:
        for until in range(CHUNK, pairs + CHUNK, CHUNK):
            for pair in of:
                done = found[pair.name]
                more = range(len(done), min(until, pairs))
                if not more:
                    continue
                done += pool.map(partial(one, pair), more, chunksize=5)
                kept[pair.name] = [asdict(each) for each in done]
                if keep:
                    keep.write_text(json.dumps(kept), encoding="utf-8")
                print(row(pair, done)[0], file=sys.stderr, flush=True)
    return found


def table(found: Mapping[str, list[Deployed]]) -> tuple[str, bool]:
    """Return the table in percent, Monte-Carlo standard errors in brackets."""
    rows = [row(each, found[each.name]) for each in PAIRS if found.get(each.name)]
    bar = f"| bar | | | <= {100 * MOST_HARMED:.0f} | | | | | | |"
    lines = [*pages.head(COLUMNS), *(text for text, _ in rows), bar]
    return "\n".join(lines) + "\n", all(ok for _, ok in rows)


def main() -> int:
    parser = pages.parser(__doc__)
    parser.add_argument("--pairs", type=int, default=1000, help="pairs of sweeps of every row")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", default="", help="only rows with this in their name")
    parser.add_argument("--keep", type=Path, help="pairs so far; a stopped run goes on from here")
    options = parser.parse_args()
    chosen = [each for each in PAIRS if options.only in each.name]
    text, good = table(run(options.pairs, options.jobs, chosen, options.keep))
    pages.publish(text, None if options.only else options.write, PART)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
