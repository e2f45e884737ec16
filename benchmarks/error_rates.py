"""How often the tuning study is wrong, measured: the simulated cluster against the bars.

    python benchmarks/error_rates.py                     # prints the tables, minutes
    python benchmarks/error_rates.py --only "four waves" # only worlds of this name, no bars
    python benchmarks/error_rates.py --write docs/reference/error_rates.md
    python benchmarks/error_rates.py --keep tallies.json  # goes on where it was stopped

Every sweep goes through study.decide and stats.score.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pages
from simcluster import World, sweep
from simworlds import (
    ALL,
    BOUNDS,
    CHOSEN,
    FAILING,
    FOUR,
    HANGING,
    HARMED,
    HARMFUL,
    LARGE,
    LATE,
    LONG,
    LOSING,
    MORE,
    NOISY,
    NULL,
    NULLS,
    ONE,
    PERIODIC,
    POWERS,
    SLOW_LOST,
    SPARE,
    STACKED,
    STOPS,
    THREE_FOUR,
)

from pytest_xlatune.model.result import TrialResult, VerdictKind

COLUMNS = pages.cells(
    "world | sweeps | false winner | power a winner | any winner | coverage | bias, points"
)
STOP = (
    "{arm} gains {change:percent} and its lower bound is above {excluded:percent}: "
    "you may stop here"
)


def count(world: World, seed: int) -> Counter[str]:
    """Run one sweep and count what came of it; `bias` is a sum of errors of deltas."""
    conclusion, history = sweep(world, seed)
    # an evidence run is a job beside the budget
    jobs = [result for result in history if result.trial.protocol.is_scored]
    # what got no slot could not be found
    screened = (result.trial for result in jobs if result.trial.is_screened)
    singles = {trial.profile.id for trial in screened if not trial.is_baseline}
    counts: Counter[str] = Counter(sweeps=1)
    counts["over budget"] = int(len(jobs) > world.budget)
    counts["winners"] = sum(world.truth_of(arm) > 0 for arm in singles if "+" not in arm)
    bias = 0.0
    for verdict in conclusion.verdicts:
        if verdict.ci95 is None or verdict.delta is None:
            continue
        truth, is_faster = world.truth_of(verdict.arm), verdict.kind is VerdictKind.FASTER
        is_covered = verdict.ci95[0] <= truth <= verdict.ci95[1]
        counts["confirmed"] += 1
        counts["covered"] += is_covered
        lost = _lost_runs(verdict.arm, jobs)
        is_told = verdict.lost is not None and verdict.lost.lost == lost and verdict.n > 2
        counts["wordless"] += is_faster and lost > 0 and not is_told
        if is_faster and truth > 0:
            counts["found"] += 1
            counts["covered winners"] += is_covered
            bias += verdict.delta - truth
        elif is_faster:
            counts["false"] = 1
    counts["bias"] = bias  # type: ignore[assignment]
    counts["any"] = int(counts["found"] > 0)
    counts["stopped"] = int(any(note.text == STOP for note in conclusion.notes))
    if (bound := conclusion.tuning.bound) is not None:
        measured = [world.truth_of(verdict.arm) for verdict in conclusion.verdicts]
        counts["bounded"] = int(bound < 0.02)
        counts["bound is wrong"] = int(bound < max(*measured, 0.0))
    return counts


def _lost_runs(arm: str, jobs: Sequence[TrialResult]) -> int:
    blocks = [result for result in jobs if result.trial.arm == arm and result.trial.block]
    return sum(result.score is None for result in blocks)


class Figure(NamedTuple):
    """A quotient of two counts."""

    counted: str
    of: str = "sweeps"

    def value(self, counts: Mapping[str, float]) -> float:
        """Return the quotient; NaN where there is nothing to divide by."""
        return counts[self.counted] / counts[self.of] if counts[self.of] else math.nan


FALSE, STOPPED, BOUNDED = Figure("false"), Figure("stopped"), Figure("bounded")
POWER, ANY = Figure("found", "winners"), Figure("any")
COVERAGE, HELD = Figure("covered", "confirmed"), Figure("covered winners", "found")
BIAS = Figure("bias", "found")


class Bar(NamedTuple):
    """One demand on one figure of some worlds; every world must pass.

    Attributes:
        number, demand: its first cells.
        errors: by how many Monte-Carlo errors it may be missed.
        is_pooled: whether the worlds count as one.
    """

    number: str
    demand: str
    worlds: tuple[World, ...]
    figure: Figure
    low: float = -math.inf
    high: float = math.inf
    errors: int = 0
    is_pooled: bool = False

    def holds(self, counts: Mapping[str, float]) -> bool:
        """Whether the figure of a world holds."""
        value = self.figure.value(counts)
        error = math.sqrt(max(value * (1 - value), 0.0) / max(counts[self.figure.of], 1))
        return self.low - self.errors * error <= value <= self.high + self.errors * error

    def row(self, counts_of: Mapping[str, Counter[str]]) -> str:
        """Return the row of what the worlds came to."""
        found = [counts_of[world.name] for world in self.worlds]
        found = [pages.total(found)] if self.is_pooled else found
        values = [self.figure.value(counts) for counts in found]
        least, most = self._shown(min(values)), self._shown(max(values))
        limits = [f">= {self._shown(self.low)}"] if math.isfinite(self.low) else []
        limits += [f"<= {self._shown(self.high)}"] if math.isfinite(self.high) else []
        if self.errors:
            sign = ", less" if math.isfinite(self.low) else " +"
            limits[-1] += f"{sign} {self.errors} MC"
        is_held = pages.OK if all(map(self.holds, found)) else pages.MISSED
        shown = most if len(values) == 1 else f"{least} to {most}"
        return pages.line((self.number, self.demand, ", ".join(limits), shown, is_held))

    def _shown(self, value: float) -> str:
        return f"{100 * value:+.2f} points" if self.figure is BIAS else f"{100 * value:.1f} %"


def _number(shown: str) -> float:
    return float(shown.split(maxsplit=1)[0])


# without those whose profiles warm up unlike the baseline: their scores are biased, and it is said
COVERED = tuple(each for each in ALL if each.warming != LATE and each not in (HARMFUL, SLOW_LOST))
QUIET = (*NULLS, *PERIODIC, FOUR, SPARE, LOSING)
BARS = (
    Bar("1", "false winner, every null world", QUIET, FALSE, high=0.055, errors=2),
    Bar("1", "false winner, arms of 2 to 5 times the noise", NOISY, FALSE, high=0.06, errors=2),
    Bar(
        "1",
        "false winner, arms that lose their slower half",
        (SLOW_LOST,),
        FALSE,
        high=0.065,
        errors=2,
    ),
    Bar("2", "false winner, null worlds pooled", NULLS, FALSE, high=0.055, is_pooled=True),
    Bar("3", "false winner, 105 steps a job", (LONG,), FALSE, high=0.08),
    Bar("4", "false winner, 5 % fail", (FAILING,), FALSE, high=0.08),
    Bar("4b", "false winner, stacks", (STACKED,), FALSE, high=0.07),
    Bar("4c", "false winner, slots by evidence", (CHOSEN,), FALSE, high=0.07),
    Bar("5", "power, noise 0.3 %", POWERS[:1], POWER, low=0.99, errors=1),
    Bar("5", "power, noise 0.6 %", POWERS[1:2], POWER, low=0.9, errors=1),
    Bar("5", "power, noise 1.0 %", POWERS[2:3], POWER, low=0.5, errors=1),
    Bar("5", "power, one at +2 %", (ONE,), POWER, low=0.93, errors=1),
    Bar("5", "power, four waves", (THREE_FOUR,), POWER, low=0.875, errors=1),
    Bar("5", "power, flags that harm", HARMED, POWER, low=0.92, errors=1),
    Bar("5", "power, noise 1.0 %, 80 jobs", LARGE[:1], POWER, low=0.84, errors=1),
    Bar("5", "power, noise 1.0 %, 100 jobs", LARGE[1:2], POWER, low=0.9, errors=1),
    Bar("5", "power, noise 1.0 %, 150 jobs", LARGE[2:], POWER, low=0.96, errors=1),
    Bar(
        "5", "FASTER without a word of lost runs", (*HANGING, LOSING), Figure("wordless"), high=0.0
    ),
    Bar("6", "one of three found", POWERS[1:2], ANY, low=0.985),
    Bar("7", "power, step of 3 %", POWERS[3:4], POWER, low=0.58),
    Bar("7", "power, 10 % stragglers", POWERS[4:5], POWER, low=0.76),
    Bar("7", "power, 40 in 65", POWERS[5:6], POWER, low=0.74),
    Bar("8", "power at +5 %, noise 0.6 %", POWERS[7:8], POWER, low=0.99),
    Bar("8", "power at +5 %, noise 1.0 %", POWERS[8:9], POWER, low=0.97),
    # winners' intervals reach further down: see "The winner's own figure"
    Bar("9", "coverage, every world", COVERED, COVERAGE, low=0.93, high=0.985),
    Bar("9", "coverage given FASTER at +2 %", POWERS[1:2], HELD, low=0.93, high=0.975),
    Bar("9", "coverage given FASTER at +1 %", POWERS[6:7], HELD, low=0.9),
    Bar("10", "bias at +2 %, noise 0.6 %", POWERS[1:2], BIAS, low=-0.001, high=0.001),
    Bar("10", "bias at +2 %, noise 1.0 %", POWERS[2:3], BIAS, low=-0.0035, high=0.0035),
    Bar("10", "bias at +1 %, noise 0.6 %", POWERS[6:7], BIAS, low=-0.004, high=0.004),
    Bar("11", "sweeps above the budget, any world", ALL, Figure("over budget"), high=0.0),
    Bar("12", "any FASTER, all at -1 %", (HARMFUL,), FALSE, high=0.005),
    Bar("13", "stop rule at +4 %", STOPS[:1], STOPPED, high=0.045),
    Bar("13", "stop rule at +6 %", STOPS[1:], STOPPED, low=0.95),
    Bar("13", "stop rule, nothing helps", (NULL,), STOPPED, high=0.001),
    Bar("14", "bounded at 2 %, one at +2 %", BOUNDS[:1], BOUNDED, high=0.065),
    Bar("14", "bounded at 2 %, one at +3 %", BOUNDS[1:], BOUNDED, high=0.01),
    Bar("15", "bounded at 2 %, nothing helps, noise 0.3 %", NULLS[2:3], BOUNDED, low=0.9),
    Bar("15", "bounded at 2 %, nothing helps, 65 jobs", (SPARE,), BOUNDED, low=0.6),
    Bar("15", "M said, and below the best", (ONE, POWERS[6]), Figure("bound is wrong"), high=0.05),
)


def run(
    sweeps: int, jobs: int, only: Sequence[str] = (), keep: Path | None = None
) -> dict[str, Counter[str]]:
    """Measure every world with one of `only` in its name; their rows go to standard error.

    The reference gets four times as many sweeps. What `keep` holds of enough sweeps stays, and the
    others are added to it as they end.
    """
    known = json.loads(keep.read_text("utf-8")) if keep and keep.exists() else {}
    counts_of = {}
    with ProcessPoolExecutor(jobs) as pool:
        for world in (*ALL, *MORE) if only else ALL:
            if only and not any(name in world.name for name in only):
                continue
            n = 4 * sweeps if world is NULL else sweeps // 2 if world is LONG else sweeps
            counts = Counter(known.get(world.name, {}))
            if counts["sweeps"] < n:
                counts = pages.total(pool.map(partial(count, world), range(n), chunksize=5))
                known[world.name] = counts
                if keep:
                    keep.write_text(json.dumps(known), encoding="utf-8")
            counts_of[world.name] = counts
            print(row(world, counts), file=sys.stderr, flush=True)
    return counts_of


def row(world: World, counts: Counter[str]) -> str:
    """Return the row of a world."""
    bias = BIAS.value(counts)
    false, power, found, coverage = (
        pages.rate(figure.value(counts), counts[figure.of])
        for figure in (FALSE, POWER, ANY, COVERAGE)
    )
    found = found if counts["winners"] else "-"
    shown = "-" if math.isnan(bias) else f"{100 * bias:+.2f}"
    return pages.line((world.name, str(counts["sweeps"]), false, power, found, coverage, shown))


def main() -> int:
    parser = pages.parser(__doc__)
    parser.add_argument("--sweeps", type=int, default=1000, help="sweeps of every world")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        help="only worlds with this in their name; repeatable",
    )
    parser.add_argument("--keep", type=Path, help="counts so far; a stopped run goes on from here")
    options = parser.parse_args()
    counts_of = run(options.sweeps, options.jobs, options.only, options.keep)
    worlds = [world for world in (*ALL, *MORE) if world.name in counts_of]
    lines = [*pages.head(COLUMNS), *(row(world, counts_of[world.name]) for world in worlds)]
    if options.only:
        print(*lines, sep="\n")
        return 0
    bars = [bar.row(counts_of) for bar in BARS]
    intro = f"{options.sweeps} sweeps a world unless said; in brackets the Monte-Carlo standard"
    head = pages.head(("#", "demand", "bar", "measured", ""))
    text = "\n".join([f"{intro} error.", "", *head, *bars, "", *lines])
    print(text)
    if options.write:
        pages.rewrite(options.write, text)
    return int(any(pages.MISSED in bar for bar in bars))


if __name__ == "__main__":
    raise SystemExit(main())
