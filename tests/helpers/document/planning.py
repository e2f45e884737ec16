"""What a sweep that has confirmed nothing yet could confirm: the layouts of statistics.md."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_xlatune.stats.design import selected80
from tests.helpers.document.estimates import dunnett, t_quantile

ASSUMED_SIGMA = 0.006
# baselines of the screen, arms of each block, baselines per block: the first that fits
TABLE: Sequence[tuple[int, tuple[int, ...], int]] = (
    (3, (6, 4, 3, 3, 3), 2),
    (3, (5, 3, 3, 3), 2),
    (3, (4, 3, 3, 3), 2),
    (3, (4, 3, 3), 2),
    (2, (4, 3, 3), 2),
    (3, (3, 3, 3), 2),
    (3, (2, 2, 2), 2),
    (1, (2, 2, 2), 1),
)
# on several node slots, after the first row: all blocks begin at once
WIDE = (3, (6, 6, 6, 6), 2)
# before all, with slots for all blocks and profiles for two times as many second runs
TWICE, AGAIN = (3, (4, 4, 4, 4, 4), 1), 8
# on one slot, first of all, where the budget is large: of so many profiles this share runs twice,
# or where no share is given eight up to half of them
LARGE: Sequence[tuple[float | None, tuple[int, ...]]] = (
    (1.0, (12, 8, 6, 5, 4, 3, 3, 3, 3, 3, 3, 3, 3)),
    (2 / 3, (6, 5, 5, 3, 3, 3, 3, 3, 3)),
    (None, (6, 5, 4, 3, 3, 3, 3)),
    (None, (5, 5, 4, 3, 3, 3)),
)
MOST = 20  # blocks
QUIET: Sequence[tuple[int, tuple[int, ...], int]] = ((3, (6, 6, 6), 2), (3, (5, 5, 5), 2))
_RULES = ("stacks", "around", "singles")


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The blocks of a plan of so many profiles, and the jobs of all of it."""

    count: int
    widths: tuple[int, ...]
    controls: int
    jobs: int
    again: int = 0

    @property
    def df(self) -> int:
        cells = sum(self.widths) + len(self.widths) * self.controls
        return cells - len(self.widths) - self.widths[0]

    def mde80(self, sigma: float) -> float:
        reach = dunnett(self.widths[0], self.df, weight=self.controls) + t_quantile(0.8, self.df)
        return math.expm1(reach * sigma * math.sqrt((1 + 1 / self.controls) / len(self.widths)))


def layout_of(declared: Mapping[str, Any], *, slots: int = 1) -> Layout | None:
    """The layout of a tuning study as it was declared; None where it only ranks."""
    waves = Counter(each["wave"] for each in declared["profiles"])
    for rule in (each for kind in _RULES for each in declared[kind]):
        waves[rule["wave"]] += rule["slots"]
    count, settled = sum(waves.values()), declared["screen_baselines"] * len(waves)
    sigma = declared["sigma_prior"]
    is_stated = any(declared[key] for key in ("finalists", "block_baselines", "blocks"))
    found = _fitting(
        count,
        declared["budget"],
        settled,
        waves=len(waves),
        sigma=sigma,
        slots=slots,
        may_repeat=not is_stated,
    )
    if not is_stated:
        return found
    found = found or _fitting(
        max(count, 1),
        count + 40,
        0,
        waves=1,
        sigma=None,
        slots=slots,
        may_repeat=False,
    )
    if found is None:
        return None
    blocks = declared["blocks"] or len(found.widths)
    widths = (found.widths + found.widths[-1:] * blocks)[:blocks]
    if declared["finalists"]:
        widths = (min(declared["finalists"], max(count, 1)),) * blocks
    controls = declared["block_baselines"] or found.controls
    jobs = count + (settled or max(3, len(waves))) + sum(widths) + blocks * controls
    return Layout(count=count, widths=widths, controls=controls, jobs=jobs)


def _fitting(
    count: int,
    budget: int,
    settled: int,
    *,
    waves: int,
    sigma: float | None,
    slots: int,
    may_repeat: bool,
) -> Layout | None:
    is_quiet = sigma is not None and sigma <= 0.004
    # each slot that the screen uses has a baseline, and is used for two profiles or more; one slot
    # of eight may lack it where that makes the screen shorter
    used = min(slots, max(count // 2, 1))
    spared = [each for each in range(used // 8 + 1) if (count + used - each) % used == 0]
    of_slots = used - max(spared, default=0)
    rows = [(*each, 0) for each in (*(QUIET if is_quiet else ()), *TABLE)]
    if slots > 1:
        rows.insert(rows.index((*TABLE[0], 0)) + 1, (*WIDE, 0))
    is_repeated = may_repeat and count >= 2 * AGAIN
    if is_repeated and slots >= len(TWICE[1]):
        rows.insert(0, (*TWICE, AGAIN))
    if is_repeated and slots == 1:
        rows[:0] = [
            (3, arms, 2, second)
            for share, arms in LARGE
            for second in (
                range(count // 2, AGAIN - 1, -1) if share is None else [int(share * count)]
            )
        ]
    for of_screen, arms, controls, again in rows:
        # as many blocks as there are slots begin at once, before any cut
        widths = tuple(
            min(arms[0] if at < slots else each, max(count, 1)) for at, each in enumerate(arms)
        )
        screened = settled or max(of_screen, waves, of_slots)
        before = count + screened + again
        found = Layout(count=count, widths=widths, controls=controls, jobs=0)
        left = budget - before - sum(widths) - len(widths) * controls
        if left >= 0 and found.df >= 3:
            left -= 8 if arms == TABLE[0][1] else 0  # they stay for a spare block
            most = min(slots, 6) if again and slots > 1 else MOST if again else 6
            is_plain = slots == 1 and not is_repeated
            if arms == TABLE[0][1] and is_plain and budget > 65:
                most = MOST
            more = min(left // (widths[-1] + controls), most - len(widths))
            widths += widths[-1:] * max(more, 0)
            jobs = before + sum(widths) + len(widths) * controls
            return Layout(count=count, widths=widths, controls=controls, jobs=jobs, again=again)
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """The noise that a sweep plans with, and the smallest effect that its layout confirms."""

    jobs: int
    sigma: float
    mde80: float
    from_start: float


def planned(declared: Mapping[str, Any], seen: float | None, *, slots: int = 1) -> Planned | None:
    """What a study plans with once its screen has `seen` some noise; None where it only ranks."""
    layout = layout_of(declared, slots=slots)
    if layout is None:
        return None
    before = declared["sigma_prior"] or ASSUMED_SIGMA
    sigma = max(before, seen or 0.0)
    return Planned(
        jobs=layout.jobs,
        sigma=sigma,
        mde80=layout.mde80(sigma),
        from_start=max(
            from_start80(layout.count, layout.widths, layout.controls, sigma, again=layout.again),
            layout.mde80(sigma),
        ),
    )


SWEEPS = 8000
SIMULATED = 0.05


def from_start80(
    count: int, widths: Sequence[int], controls: int, sigma: float, *, again: int = 0
) -> float:
    """The change of one of `count` profiles that 80 % of simulated sweeps find.

    The best of the screen run `again`, and the mean of both runs counts.

    Halves an interval of effects; every effect meets the same noise. A simulation has no last
    digit: that of the package is returned, once both agree.
    """
    random, beside = np.random.default_rng(3), 1 + 1 / controls
    df = sum(widths) + len(widths) * controls - len(widths) - widths[0]
    noise = random.standard_normal((SWEEPS, count))
    inside = random.standard_normal((SWEEPS, len(widths), count))
    inside -= random.standard_normal((SWEEPS, len(widths), 1)) / math.sqrt(controls)
    second = random.standard_normal((SWEEPS, count))
    reach = max(dunnett(widths[0], df, weight=controls), t_quantile(0.975, df))
    error = np.sqrt(random.chisquare(df, SWEEPS) / df * beside / len(widths))

    def found(effect: float) -> float:
        truth = np.where(np.arange(count) == 0, effect, 0.0)
        screen, alive = noise + truth, np.ones((SWEEPS, count), dtype=bool)
        if again:
            alive = screen >= np.sort(screen, axis=1)[:, [-again]]
            screen = (screen + second + truth) / 2
        promise = screen
        for at, width in enumerate(widths):
            if at:
                gains = (inside[:, :at] + truth).mean(axis=1)
                runs = 2 if again else 1
                promise = (runs * screen + gains * at / beside) / (runs + at / beside)
            if width < (widths[at - 1] if at else count):
                last = np.sort(np.where(alive, promise, -np.inf), axis=1)[:, -width]
                alive &= promise >= last[:, None]
        passed = (inside[:, :, 0] + effect).mean(axis=1) > reach * error
        return float(np.mean(alive[:, 0] & passed))

    low, high = 0.0, 20.0
    for _ in range(14):
        middle = (low + high) / 2
        low, high = (middle, high) if found(middle) < 0.825 else (low, middle)
    told = selected80(count, tuple(widths), controls, again=again)
    if abs(told / high - 1) > SIMULATED:
        raise ValueError(f"{told} standard deviations are said to be found, and {high} are")
    return math.expm1(told * sigma)
