"""How often the tuning study is wrong, measured: the simulated cluster against the bars.

    python benchmarks/error_rates.py                     # prints the tables, minutes
    python benchmarks/error_rates.py --only "four waves" # only worlds of this name, no bars
    python benchmarks/error_rates.py --sweeps 4000 --write docs/reference/error_rates.md
    python benchmarks/error_rates.py --only evidence --write docs/reference/error_rates.md
    python benchmarks/error_rates.py --keep tallies.json  # goes on where it was stopped

Same seeds, same digits. Every sweep goes through study.decide and stats.score.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import pages
from simcluster import World
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
from tallies import Tally, measure

COLUMNS = pages.cells(
    "world | sweeps | false winner | power a winner | any winner | coverage | bias, points"
)


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
    # by how many Monte-Carlo errors it may be missed, and of how many trials they are
    errors: int = 0
    of: Callable[[Tally], int] = lambda tally: tally.sweeps

    def holds(self, value: float, tally: Tally) -> bool:
        """Whether a figure holds."""
        error = math.sqrt(max(value * (1 - value), 0.0) / max(self.of(tally), 1))
        return self.low - self.errors * error <= value <= self.high + self.errors * error


def _winners(tally: Tally) -> int:
    return tally.true_winners


def _false(tally: Tally) -> float:
    return tally.false_rate


# without those whose profiles warm up unlike the baseline: their scores are biased, and it is said
COVERED = tuple(each for each in ALL if each.warming != LATE and each not in (HARMFUL, SLOW_LOST))
_power = partial(Bar, number="5", figure=lambda t: t.power, errors=1, of=_winners)
_found = partial(Bar, number="7", figure=lambda t: t.power)
_quiet = partial(Bar, figure=_false)
_stops = partial(Bar, number="13", figure=lambda t: t.stopped / t.sweeps)
_bounded = partial(Bar, figure=lambda t: t.bounded / t.sweeps)
_bias = partial(Bar, number="10", figure=lambda t: t.mean_bias)
_held = partial(Bar, number="9", figure=lambda t: t.winner_coverage)
BARS = (
    _quiet(number="1", demand="false winner, every null world",
           worlds=(*NULLS, *PERIODIC, FOUR, SPARE, LOSING), high=0.055, errors=2),
    _quiet(number="1", demand="false winner, arms of 2 to 5 times the noise", worlds=NOISY,
           high=0.06, errors=2),
    _quiet(number="1", demand="false winner, arms that lose their slower half",
           worlds=(SLOW_LOST,), high=0.065, errors=2),
    _quiet(number="2", demand="false winner, null worlds pooled", worlds=NULLS, high=0.055,
           pooled=True),
    _quiet(number="3", demand="false winner, 105 steps a job", worlds=(LONG,), high=0.08),
    _quiet(number="4", demand="false winner, 5 % fail", worlds=(FAILING,), high=0.08),
    _quiet(number="4b", demand="false winner, stacks", worlds=(STACKED,), high=0.07),
    _quiet(number="4c", demand="false winner, slots by evidence", worlds=(CHOSEN,), high=0.07),
    _power(demand="power, noise 0.3 %", worlds=POWERS[:1], low=0.99),
    _power(demand="power, noise 0.6 %", worlds=POWERS[1:2], low=0.90),
    _power(demand="power, noise 1.0 %", worlds=POWERS[2:3], low=0.50),
    _power(demand="power, one at +2 %", worlds=(ONE,), low=0.93),
    _power(demand="power, four waves", worlds=(THREE_FOUR,), low=0.875),
    _power(demand="power, flags that harm", worlds=HARMED, low=0.92),
    _power(demand="power, noise 1.0 %, 80 jobs", worlds=LARGE[:1], low=0.84),
    _power(demand="power, noise 1.0 %, 100 jobs", worlds=LARGE[1:2], low=0.90),
    _power(demand="power, noise 1.0 %, 150 jobs", worlds=LARGE[2:], low=0.96),
    Bar(number="5", demand="FASTER without a word of lost runs", worlds=(*HANGING, LOSING),
        figure=lambda t: t.wordless / t.sweeps, high=0.0),
    Bar(number="6", demand="one of three found", worlds=POWERS[1:2], figure=lambda t: t.any_rate,
        low=0.985),
    _found(demand="power, step of 3 %", worlds=POWERS[3:4], low=0.58),
    _found(demand="power, 10 % stragglers", worlds=POWERS[4:5], low=0.76),
    _found(demand="power, 40 in 65", worlds=POWERS[5:6], low=0.74),
    _found(number="8", demand="power at +5 %, noise 0.6 %", worlds=POWERS[7:8], low=0.99),
    _found(number="8", demand="power at +5 %, noise 1.0 %", worlds=POWERS[8:9], low=0.97),
    Bar(number="9", demand="coverage, every world", worlds=COVERED,
        # winners' intervals reach further down: see "The winner's own figure"
        figure=lambda t: t.coverage, low=0.93, high=0.985),
    _held(demand="coverage given FASTER at +2 %", worlds=POWERS[1:2], low=0.93, high=0.975),
    _held(demand="coverage given FASTER at +1 %", worlds=POWERS[6:7], low=0.90),
    _bias(demand="bias at +2 %, noise 0.6 %", worlds=POWERS[1:2], low=-0.001, high=0.001),
    _bias(demand="bias at +2 %, noise 1.0 %", worlds=POWERS[2:3], low=-0.0035, high=0.0035),
    _bias(demand="bias at +1 %, noise 0.6 %", worlds=POWERS[6:7], low=-0.004, high=0.004),
    Bar(number="11", demand="jobs above the budget, any world", worlds=ALL,
        figure=lambda _: 0.0, high=0.0),
    _quiet(number="12", demand="any FASTER, all at -1 %", worlds=(HARMFUL,), high=0.005),
    _stops(demand="stop rule at +4 %", worlds=STOPS[:1], high=0.045),
    _stops(demand="stop rule at +6 %", worlds=STOPS[1:], low=0.95),
    _stops(demand="stop rule, nothing helps", worlds=(NULL,), high=0.001),
    _bounded(number="14", demand="bounded at 2 %, one at +2 %", worlds=BOUNDS[:1], high=0.065),
    _bounded(number="14", demand="bounded at 2 %, one at +3 %", worlds=BOUNDS[1:], high=0.01),
    _bounded(number="15", demand="bounded at 2 %, nothing helps, noise 0.3 %", worlds=NULLS[2:3],
             low=0.90),
    _bounded(number="15", demand="bounded at 2 %, nothing helps, 65 jobs", worlds=(SPARE,),
             low=0.60),
    Bar(number="15", demand="M said, and below the best", worlds=(ONE, POWERS[6]),
        figure=lambda t: (t.with_bound - t.bound_holds) / t.sweeps, high=0.05),
)  # fmt: skip


def run(
    sweeps: int,
    jobs: int,
    only: Sequence[str] = (),
    keep: Path | None = None,
) -> dict[str, Tally]:
    """Measure every world with one of `only` in its name, with progress on standard error.

    The reference gets four times as many sweeps. What `keep` holds of enough sweeps stays, and the
    others are added to it as they end.
    """
    known = json.loads(keep.read_text("utf-8")) if keep and keep.exists() else {}
    tallies = {}
    with ProcessPoolExecutor(jobs) as pool:
        for world in (*ALL, *MORE) if only else ALL:
            if only and not any(each in world.name for each in only):
                continue
            n = 4 * sweeps if world is NULL else sweeps // 2 if world is LONG else sweeps
            if known.get(world.name, {}).get("sweeps", 0) >= n:
                tallies[world.name] = Tally(**known[world.name])
                continue
            begun, total = time.perf_counter(), Tally()
            for part in pool.map(partial(measure, world), pages.chunks(n)):
                total.add(part)
            tallies[world.name] = total
            if keep:
                known[world.name] = asdict(total)
                keep.write_text(json.dumps(known), encoding="utf-8")
            each_ms = 1000 * (time.perf_counter() - begun) / n
            print(
                f"{world.name:38} {n:6} sweeps {each_ms:5.1f} ms each  "
                f"false {total.false_rate:.3f} power {total.power:.3f} "
                f"false SLOWER {total.false_slower / n:.3f} silent on lost runs {total.wordless}",
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


def merged(page: str, tallies: dict[str, Tally], sweeps: int) -> str:
    """Return the measured part of a page with the rows that these worlds make anew.

    The bar of several worlds stays as it is unless all of them were measured, or one misses it.

    Raises:
        SystemExit: the page lacks a row that was not measured now.
    """
    if f"{sweeps} sweeps a world unless said;" not in page:
        raise SystemExit(f"the page is not of {sweeps} sweeps a world: measure as many, or all")
    kept = pages.rows(page, 2)
    by_world = pages.rows(page)
    intro, _, rest = page.partition("\n| # |")
    head = f"| # |{rest}".splitlines()[:2]
    lines = [intro.rstrip(), "", *head]
    for bar in BARS:
        measured = [(each, tallies[each.name]) for each in bar.worlds if each.name in tallies]
        text, holds = _bar(bar, measured) if measured else ("", True)
        is_told = len(measured) == len(bar.worlds) or not (holds or bar.pooled)
        lines.append(text if is_told else _row(kept, (bar.number, bar.demand)))
    by_world |= pages.rows("\n".join(worlds(tallies)))
    lines += ["", *worlds({}), *(_row(by_world, (each.name,)) for each in ALL)]
    return "\n".join(lines) + "\n"


def _row(rows: Mapping[tuple[str, ...], str], key: tuple[str, ...]) -> str:
    if key not in rows:
        raise SystemExit(f"{key} is not on the page and was not measured: measure all")
    return rows[key]


def worlds(tallies: dict[str, Tally]) -> list[str]:
    """Return the lines of the table of worlds, those that were measured."""
    lines = pages.head(COLUMNS)
    for world in (*ALL, *MORE):
        if world.name not in tallies:
            continue
        tally = tallies[world.name]
        cells = [
            world.name,
            str(tally.sweeps),
            pages.rate(tally.false_rate, tally.sweeps),
            pages.rate(tally.power, tally.true_winners),
            pages.rate(tally.any_rate, tally.sweeps),
            pages.rate(tally.coverage, tally.confirmed),
            "-" if math.isnan(tally.mean_bias) else f"{100 * tally.mean_bias:+.2f}",
        ]
        lines.append(pages.line(cells))
    return lines


def _bar(bar: Bar, worlds: Iterable[tuple[World, Tally]]) -> tuple[str, bool]:
    found = list(worlds)
    if bar.number == "11":
        most = max(tally.most_jobs - world.budget for world, tally in found)
        return (
            f"| 11 | {bar.demand} | 0 | {max(most, 0)} | {_ok(most <= 0)} |",
            most <= 0,
        )
    if bar.pooled:
        pool = Tally()
        for _, tally in found:
            pool.add(tally)
        found = [(bar.worlds[0], pool)]
    values = [bar.figure(tally) for _, tally in found]
    holds = all(bar.holds(value, tally) for value, (_, tally) in zip(values, found, strict=True))
    is_bias = bar.number == "10"
    low, high = (_plain(each, is_bias=is_bias) for each in (min(values), max(values)))
    shown = high if len(values) == 1 else f"{low} to {high}"
    limits = [f">= {_plain(bar.low, is_bias=is_bias)}"] if math.isfinite(bar.low) else []
    limits += [f"<= {_plain(bar.high, is_bias=is_bias)}"] if math.isfinite(bar.high) else []
    if bar.errors:
        limits[-1] += f", less {bar.errors} MC" if math.isfinite(bar.low) else f" + {bar.errors} MC"
    text = f"| {bar.number} | {bar.demand} | {', '.join(limits)} | {shown} | {_ok(holds)} |"
    return text, holds


def _ok(holds: bool) -> str:  # noqa: FBT001
    return "ok" if holds else "**missed**"


def _plain(value: float, *, is_bias: bool) -> str:
    return f"{100 * value:+.2f} points" if is_bias else f"{100 * value:.1f} %"


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
    parser.add_argument("--keep", type=Path, help="tallies so far; a stopped run goes on from here")
    options = parser.parse_args()
    found = run(options.sweeps, options.jobs, options.only, options.keep)
    if not options.only:
        text, good = tables(found, options.sweeps)
        pages.publish(text, options.write)
        return 0 if good else 1
    print("\n".join(worlds(found)))
    if options.write:
        before = pages.part(options.write).lstrip()
        pages.rewrite(options.write, merged(before, found, options.sweeps))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
