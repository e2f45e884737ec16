"""How often the tuning study is wrong, measured: the simulated cluster against the bars.

    python benchmarks/error_rates.py                     # prints the tables, minutes
    python benchmarks/error_rates.py --only "two stages" # only worlds of this name, no bars
    python benchmarks/error_rates.py --sweeps 4000 --write docs/statistics.md

Same seeds, same digits. Every sweep goes through study.propose, stats.score and study.conclude.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path

from simcluster import World, sweep

from pytest_xlatune.results import VerdictKind
from pytest_xlatune.stats.warmup import Window
from pytest_xlatune.studies import one_window

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
CHUNK = 50
COLUMNS = (
    "world",
    "sweeps",
    "false winner",
    "power a winner",
    "any winner",
    "coverage",
    "bias, points",
    "window moved",
    "warm-ups differ",
)

NULL = World(name="reference")
LATE = dict.fromkeys(range(25), 2.5)  # every profile warms up longer than the baseline
THREE = replace(NULL, effects=(0.02,) * 3)
NULLS = (
    NULL,
    replace(NULL, name="no drift", drift="none"),
    replace(NULL, name="job noise 0.3 %", sigma_job=0.003),
    replace(NULL, name="job noise 1.0 %", sigma_job=0.010),
    replace(NULL, name="linear drift 3 %", drift_size=0.03),
    replace(NULL, name="step of 3 %", drift="step", drift_size=0.03),
    replace(NULL, name="random walk 3 %", drift="walk", drift_size=0.03),
    replace(NULL, name="sine 1.5 %", drift="sine", drift_size=0.015),
    replace(NULL, name="t(4) job tails", heavy_tails=True),
    replace(NULL, name="3 % bad jobs", bad_jobs=0.03),
    replace(NULL, name="phi 0.9", phi=0.9),
    replace(NULL, name="first of block 0.5 % slow", cold_first=0.005),
    replace(NULL, name="10 % stragglers", stragglers=0.10),
    replace(NULL, name="3 % host pauses", pauses=0.03),
    replace(NULL, name="long warm-up in 10 %", long_warm=0.10),
    replace(NULL, name="long warm-up in all", long_warm=1.0),
    replace(NULL, name="long warm-up by profile, 25 steps", warming=LATE, steps=25),
    replace(NULL, name="profiled, 25 steps", profiler=True, steps=25),
    replace(NULL, name="40 profiles, 65 jobs", profiles=40, budget=65),
)
LONG = replace(NULL, name="105 steps a job", steps=105)
FAILING = replace(NULL, name="5 % of jobs fail", failed=0.05)
# 0.04 at four blocks, 0.01 for four more of the same arms where the first look cannot tell
TWICE = replace(NULL, name="two stages, 70 jobs", second_blocks=4, budget=70)
# four slots for stacks of what led, and 25 profiles, in the same 50 jobs
STACKED = replace(NULL, name="stacks of what led", stacks=4)
HARMFUL = replace(NULL, name="all at -1 %", other=-0.01)
POWERS = (
    replace(THREE, name="three at +2 %, noise 0.3 %", sigma_job=0.003),
    replace(THREE, name="three at +2 %, noise 0.6 %"),
    replace(THREE, name="three at +2 %, noise 1.0 %", sigma_job=0.010),
    replace(THREE, name="three at +2 %, step of 3 %", drift="step", drift_size=0.03),
    replace(THREE, name="three at +2 %, 10 % stragglers", stragglers=0.10),
    replace(THREE, name="three at +2 %, 40 in 65", profiles=40, budget=65),
    replace(NULL, name="three at +1 %", effects=(0.01,) * 3),
    replace(NULL, name="one at +5 %", effects=(0.05,)),
    replace(NULL, name="one at +5 %, noise 1.0 %", effects=(0.05,), sigma_job=0.010),
    replace(THREE, name="three at +2 %, long warm-up in all", long_warm=1.0),
    replace(THREE, name="three at +2 %, long warm-up by profile", warming=LATE),
    replace(THREE, name="three at +2 %, long warm-up by profile, 25 steps", warming=LATE, steps=25),
    replace(TWICE, name="three at +1 %, two stages, 70 jobs", effects=(0.01,) * 3),
    replace(STACKED, name="three at +2 %, stacks of what led", effects=(0.02,) * 3),
)
STOPS = (
    replace(NULL, name="one at +4 %", effects=(0.04,)),
    replace(NULL, name="one at +6 %", effects=(0.06,)),
)
BOUNDS = (
    replace(NULL, name="one at +2 %, noise 0.3 %", effects=(0.02,), sigma_job=0.003),
    replace(NULL, name="one at +3 %, noise 0.3 %", effects=(0.03,), sigma_job=0.003),
)
STRAGGLING = replace(
    NULL, name="one at +2 % that straggles 15 %", effects=(0.02,), straggling={0: 0.15}
)
ALL = (*NULLS, LONG, FAILING, TWICE, STACKED, HARMFUL, *POWERS, *STOPS, *BOUNDS, STRAGGLING)


@dataclass(kw_only=True)
class Tally:
    """Counts over sweeps of one world."""

    sweeps: int = 0
    false_sweeps: int = 0
    true_winners: int = 0
    found: int = 0
    any_found: int = 0
    confirmed: int = 0
    covered: int = 0
    covered_winners: int = 0
    bias: list[float] = field(default_factory=list)
    most_jobs: int = 0
    stopped: int = 0
    bounded: int = 0
    bound_holds: int = 0
    with_bound: int = 0
    slower: int = 0
    moved: int = 0
    flagged: int = 0

    def add(self, other: Tally) -> None:
        """Add the counts of another part of the same world."""
        for each in fields(self):
            mine, theirs = getattr(self, each.name), getattr(other, each.name)
            merged = max(mine, theirs) if each.name == "most_jobs" else mine + theirs
            setattr(self, each.name, merged)

    @property
    def false_rate(self) -> float:
        """Share of sweeps with at least one false winner."""
        return self.false_sweeps / self.sweeps

    @property
    def power(self) -> float:
        """Share of true winners that are found."""
        return self.found / self.true_winners if self.true_winners else math.nan

    @property
    def any_rate(self) -> float:
        """Share of sweeps that find at least one."""
        return self.any_found / self.sweeps if self.true_winners else math.nan

    @property
    def coverage(self) -> float:
        """Share of 95 % intervals of confirmed deltas that hold the truth."""
        return self.covered / self.confirmed if self.confirmed else math.nan

    @property
    def winner_coverage(self) -> float:
        """The same, given that it was found."""
        return self.covered_winners / self.found if self.found else math.nan

    @property
    def mean_bias(self) -> float:
        """Mean error of the delta of those found."""
        return math.fsum(self.bias) / len(self.bias) if self.bias else math.nan


def measure(world: World, seeds: range) -> Tally:
    """Run the sweeps of these seeds and count."""
    tally = Tally()
    for seed in seeds:
        conclusion, history = sweep(world, seed)
        tally.sweeps += 1
        tally.most_jobs = max(tally.most_jobs, len(history))
        truths = [world.truth(at) for at in range(world.profiles)]
        tally.true_winners += sum(truth > 0 for truth in truths)
        false, found = 0, 0
        for verdict in conclusion.verdicts:
            if verdict.ci95 is None or verdict.delta is None:
                continue
            truth = world.truth_of(verdict.profile)
            is_covered = verdict.ci95[0] <= truth <= verdict.ci95[1]
            tally.confirmed += 1
            tally.covered += is_covered
            tally.slower += verdict.kind is VerdictKind.SLOWER
            if verdict.kind is VerdictKind.FASTER and truth > 0:
                found += 1
                tally.covered_winners += is_covered
                tally.bias.append(verdict.delta - truth)
            elif verdict.kind is VerdictKind.FASTER:
                false += 1
        tally.false_sweeps += false > 0
        tally.found += found
        tally.any_found += found > 0
        tally.moved += conclusion.first_step is not None
        tally.flagged += any(note.startswith("profiles differ") for note in conclusion.notes)
        tally.stopped += any(note.startswith("stop rule") for note in conclusion.notes)
        if conclusion.bound is not None:
            tally.with_bound += 1
            tally.bounded += conclusion.bound < 0.02
            measured = [world.truth_of(each.profile) for each in conclusion.verdicts]
            tally.bound_holds += conclusion.bound >= max(*measured, 0.0)
    return tally


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One demand on one figure of some worlds; every world must pass."""

    number: str
    demand: str
    worlds: tuple[World, ...]
    figure: Callable[[Tally], float]
    low: float = -math.inf
    high: float = math.inf
    pooled: bool = False


def _false(tally: Tally) -> float:
    return tally.false_rate


BARS = (
    Bar(number="1", demand="false winner, every null world", worlds=NULLS, figure=_false,
        high=0.07),
    Bar(number="1a", demand="false winner, reference", worlds=(NULL,), figure=_false, high=0.055),
    Bar(number="2", demand="false winner, null worlds pooled", worlds=NULLS, figure=_false,
        high=0.06, pooled=True),
    Bar(number="3", demand="false winner, 105 steps a job", worlds=(LONG,), figure=_false,
        high=0.08),
    Bar(number="4", demand="false winner, 5 % fail", worlds=(FAILING,), figure=_false, high=0.08),
    Bar(number="4a", demand="false winner, two stages", worlds=(TWICE,), figure=_false, high=0.07),
    Bar(number="4b", demand="false winner, stacks", worlds=(STACKED,), figure=_false, high=0.07),
    Bar(number="5", demand="power, noise 0.3 %", worlds=POWERS[:1], figure=lambda t: t.power,
        low=0.975),
    Bar(number="5", demand="power, noise 0.6 %", worlds=POWERS[1:2], figure=lambda t: t.power,
        low=0.80),
    Bar(number="5", demand="power, noise 1.0 %", worlds=POWERS[2:3], figure=lambda t: t.power,
        low=0.43),
    Bar(number="6", demand="one of three found", worlds=POWERS[1:2], figure=lambda t: t.any_rate,
        low=0.985),
    Bar(number="7", demand="power, step of 3 %", worlds=POWERS[3:4], figure=lambda t: t.power,
        low=0.58),
    Bar(number="7", demand="power, 10 % stragglers", worlds=POWERS[4:5], figure=lambda t: t.power,
        low=0.76),
    Bar(number="7", demand="power, 40 in 65", worlds=POWERS[5:6], figure=lambda t: t.power,
        low=0.74),
    Bar(number="8", demand="power at +5 %, noise 0.6 %", worlds=POWERS[7:8],
        figure=lambda t: t.power, low=0.99),
    Bar(number="8", demand="power at +5 %, noise 1.0 %", worlds=POWERS[8:9],
        figure=lambda t: t.power, low=0.97),
    Bar(number="9", demand="coverage, confirmed", worlds=(NULL, *POWERS[:3]),
        figure=lambda t: t.coverage, low=0.93, high=0.97),
    Bar(number="9", demand="coverage given FASTER at +2 %", worlds=POWERS[1:2],
        figure=lambda t: t.winner_coverage, low=0.93, high=0.975),
    Bar(number="9", demand="coverage given FASTER at +1 %", worlds=POWERS[6:7],
        figure=lambda t: t.winner_coverage, low=0.90),
    Bar(number="10", demand="bias at +2 %, noise 0.6 %", worlds=POWERS[1:2],
        figure=lambda t: t.mean_bias, low=-0.001, high=0.001),
    Bar(number="10", demand="bias at +2 %, noise 1.0 %", worlds=POWERS[2:3],
        figure=lambda t: t.mean_bias, low=-0.0035, high=0.0035),
    Bar(number="10", demand="bias at +1 %, noise 0.6 %", worlds=POWERS[6:7],
        figure=lambda t: t.mean_bias, low=-0.004, high=0.004),
    Bar(number="11", demand="jobs over budget", worlds=ALL, figure=lambda _: 0.0, high=0.0),
    Bar(number="12", demand="any FASTER, all at -1 %", worlds=(HARMFUL,), figure=_false,
        high=0.005),
    Bar(number="13", demand="stop rule at +4 %", worlds=STOPS[:1],
        figure=lambda t: t.stopped / t.sweeps, high=0.045),
    Bar(number="13", demand="stop rule at +6 %", worlds=STOPS[1:],
        figure=lambda t: t.stopped / t.sweeps, low=0.95),
    Bar(number="13", demand="stop rule, nothing helps", worlds=(NULL,),
        figure=lambda t: t.stopped / t.sweeps, high=0.001),
    Bar(number="14", demand="bounded at 2 %, one at +2 %", worlds=BOUNDS[:1],
        figure=lambda t: t.bounded / t.sweeps, high=0.065),
    Bar(number="14", demand="bounded at 2 %, one at +3 %", worlds=BOUNDS[1:],
        figure=lambda t: t.bounded / t.sweeps, high=0.01),
    Bar(number="15", demand="bounded at 2 %, nothing helps, noise 0.3 %", worlds=NULLS[2:3],
        figure=lambda t: t.bounded / t.sweeps, low=0.90),
    Bar(number="15", demand="M covers the best, +2 % at noise 0.3 %", worlds=BOUNDS[:1],
        figure=lambda t: t.bound_holds / max(t.with_bound, 1), low=0.935),
)  # fmt: skip


def hold_window() -> None:
    """Never move the window in this process: what moving it is worth is the difference."""
    one_window.common_window = lambda _, protocol: Window(protocol=protocol)


def run(sweeps: int, jobs: int, only: str = "", *, is_held: bool = False) -> dict[str, Tally]:
    """Measure every world with `only` in its name, with progress on standard error.

    The reference gets four times as many sweeps.
    """
    tallies = {}
    with ProcessPoolExecutor(jobs, initializer=hold_window if is_held else None) as pool:
        for world in ALL:
            if only not in world.name:
                continue
            n = 4 * sweeps if world is NULL else sweeps // 2 if world is LONG else sweeps
            begun, total = time.perf_counter(), Tally()
            chunks = [range(at, min(at + CHUNK, n)) for at in range(0, n, CHUNK)]
            for part in pool.map(partial(measure, world), chunks):
                total.add(part)
            tallies[world.name] = total
            each_ms = 1000 * (time.perf_counter() - begun) / n
            print(
                f"{world.name:38} {n:6} sweeps {each_ms:5.1f} ms each  "
                f"false {total.false_rate:.3f} power {total.power:.3f}",
                file=sys.stderr,
                flush=True,
            )
    return tallies


def tables(tallies: dict[str, Tally], sweeps: int) -> tuple[str, bool]:
    """Return the two markdown tables, and whether every bar holds."""
    lines = [
        f"{sweeps} sweeps a world unless said; in brackets the Monte-Carlo standard error.",
        "",
        "| # | demand | bar | measured | |",
        "|---|---|---|---|---|",
    ]
    good = True
    for bar in BARS:
        text, holds = _bar(bar, [(each, tallies[each.name]) for each in bar.worlds])
        good &= holds
        lines.append(text)
    lines += ["", *worlds(tallies)]
    return "\n".join(lines) + "\n", good


def worlds(tallies: dict[str, Tally]) -> list[str]:
    """Return the lines of the table of worlds, those that were measured."""
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{'---|' * len(COLUMNS)}"]
    for world in ALL:
        if world.name not in tallies:
            continue
        tally = tallies[world.name]
        cells = [
            _rate(tally.false_rate, tally.sweeps),
            _rate(tally.power, tally.true_winners),
            _rate(tally.any_rate, tally.sweeps),
            _rate(tally.coverage, tally.confirmed),
            "-" if math.isnan(tally.mean_bias) else f"{100 * tally.mean_bias:+.2f}",
            f"{100 * tally.moved / tally.sweeps:.1f}",
            f"{100 * tally.flagged / tally.sweeps:.1f}",
        ]
        lines.append(f"| {world.name} | {tally.sweeps} | {' | '.join(cells)} |")
    return lines


def _bar(bar: Bar, worlds: Iterable[tuple[World, Tally]]) -> tuple[str, bool]:
    found = list(worlds)
    if bar.number == "11":
        most = max(tally.most_jobs - world.budget for world, tally in found)
        return (
            f"| 11 | jobs above the budget, any world | 0 | {max(most, 0)} | {_ok(most <= 0)} |",
            most <= 0,
        )
    if bar.pooled:
        pool = Tally()
        for _, tally in found:
            pool.add(tally)
        values = [bar.figure(pool)]
    else:
        values = [bar.figure(tally) for _, tally in found]
    holds = all(bar.low <= value <= bar.high for value in values)
    is_bias = bar.number == "10"
    low, high = (_plain(each, is_bias=is_bias) for each in (min(values), max(values)))
    shown = high if len(values) == 1 else f"{low} to {high}"
    limits = [f">= {_plain(bar.low, is_bias=is_bias)}"] if math.isfinite(bar.low) else []
    limits += [f"<= {_plain(bar.high, is_bias=is_bias)}"] if math.isfinite(bar.high) else []
    text = f"| {bar.number} | {bar.demand} | {', '.join(limits)} | {shown} | {_ok(holds)} |"
    return text, holds


def _ok(holds: bool) -> str:  # noqa: FBT001
    return "ok" if holds else "**missed**"


def _plain(value: float, *, is_bias: bool) -> str:
    return f"{100 * value:+.2f} points" if is_bias else f"{100 * value:.1f} %"


def _rate(value: float, n: int) -> str:
    if math.isnan(value):
        return "-"
    return f"{100 * value:.1f} ({100 * math.sqrt(value * (1 - value) / n):.1f})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--sweeps", type=int, default=1000, help="sweeps of every world")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", default="", help="worlds with this in their name; no bars")
    parser.add_argument("--hold-window", action="store_true", help="never move it; no bars")
    parser.add_argument("--write", type=Path, help="file whose measured part is rewritten")
    options = parser.parse_args()
    begun = time.perf_counter()
    if options.only or options.hold_window:
        held = options.hold_window
        print("\n".join(worlds(run(options.sweeps, options.jobs, options.only, is_held=held))))
        return 0
    text, good = tables(run(options.sweeps, options.jobs), options.sweeps)
    print(text)
    print(f"{time.perf_counter() - begun:.0f} s", file=sys.stderr)
    if options.write:
        page = options.write.read_text(encoding="utf-8")
        head, rest = page.split(BEGIN)
        tail = rest.split(END)[1]
        options.write.write_text(f"{head}{BEGIN}\n{text}{END}{tail}", encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
