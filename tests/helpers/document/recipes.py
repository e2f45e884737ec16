"""Which arm a sweep recommends, and what of its settings is needed: statistics.md, again.

An arm is compared with its parts in the blocks that hold both, one-sided at 5 %, by Holm over all
such pairs. The recipe is the smallest confirmed set that is not shown to be worse than the largest.
What recipes were measured to be at a noise is a table of that page.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from tests.helpers.document.estimates import ALPHA, ENOUGH_DF, Fit, t_quantile

Setting = tuple[str, str, str]  # kind, name, value
NEEDED, NOT_SHOWN, NOT_TESTED = "needed", "not shown to be needed", "not measured without it"

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "error_rates.md"
PROMISE = (
    "The noise of a job is {sigma} % here. At {noise} %, as measured in simulated sweeps of 25 "
    "profiles and eight stacks in 65 jobs, {least} to {most} % of the recipes held all settings "
    "that help where one or three profiles gain 2 %, and none did where six do. Up to {useless} % "
    "held a setting that does nothing, and up to {misled} % called one needed "
    "(docs/explanation/how_sure.md)."
)
BEYOND = "More noise than that was not measured: expect less where a gain is small beside it."


@dataclass(frozen=True, slots=True, kw_only=True)
class Promised:
    """What the page has of one noise, in percent: the worst of its worlds, and the best whole."""

    noise: float
    least: float
    most: float
    useless: float
    misled: float


def promises() -> list[Promised]:
    """Return the rows of the page by noise, least first; where six help none is whole."""
    head, _, rest = PAGE.read_text("utf-8").partition("<!-- recipes by noise: begin -->\n")
    assert head
    groups: dict[str, list[list[float]]] = {}
    for line in rest.partition("<!-- recipes by noise: end -->")[0].splitlines()[2:]:
        cells = [each.strip().partition(" ")[0] for each in line.strip("|").split("|")]
        assert int(cells[3]) >= 1000
        figures = [float(cells[at]) for at in (1, 5, 6, 7)]
        groups.setdefault(cells[0], []).append(figures)
    found = []
    for one, three, six in groups.values():
        assert six[1] == 0, "a recipe held six settings"
        noise, _, useless, misled = map(max, zip(one, three, six, strict=True))
        whole = one[1], three[1]
        found.append(
            Promised(noise=noise, least=min(whole), most=max(whole), useless=useless, misled=misled)
        )
    return found


def promised_at(sigma: float) -> tuple[Promised, bool]:
    """Return what is told at a noise, in percent, and whether it is more than was measured."""
    known = promises()
    near = [each for each in known if sigma <= 1.25 * each.noise]
    return (near or known[-1:])[0], not near


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Settings, and what an arm gains with them over the same without."""

    names: tuple[str, ...]
    need: str
    is_deployed: bool = True
    gain: float | None = None
    without: str = ""
    blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pair:
    arm: str
    part: str
    gain: float
    error: float
    blocks: int

    @property
    def t(self) -> float:
        return self.gain / self.error


def settings_of(profile: Mapping[str, Any]) -> frozenset[Setting]:
    """All that a profile sets; of a flag that it has twice the last."""
    flags = {each["name"]: str(each["value"]) for each in profile["flags"]}
    kinds = {"flag": flags, "env": profile["env"], "override": profile["overrides"]}
    return frozenset(
        (kind, name, value) for kind, own in kinds.items() for name, value in own.items()
    )


@dataclass(frozen=True, kw_only=True)
class Recipes:
    """The arms of the blocks, with what is known of each.

    Attributes:
        sets: profile -> its settings.
        kinds: profile -> its verdict.
        deltas: of the profiles that are confirmed to be faster.
        scores: profile -> block -> log of its figure.
        fit: of the blocks.
    """

    sets: Mapping[str, frozenset[Setting]]
    kinds: Mapping[str, str]
    deltas: Mapping[str, float]
    scores: Mapping[str, Mapping[Any, float]]
    fit: Fit = field(repr=False)

    def _parts(self, arm: str, among: AbstractSet[str]) -> list[str]:
        own = self.sets[arm]
        return sorted(each for each in among if self.sets[each] and self.sets[each] < own)

    @cached_property
    def _inside(self) -> frozenset[str]:
        told = {name for name, kind in self.kinds.items() if kind not in ("INVALID", "SCREENED")}
        return frozenset(told & self.scores.keys())

    @cached_property
    def _pairs(self) -> Sequence[_Pair]:
        found = []
        for arm in sorted(self._inside):
            for part in self._parts(arm, self._inside):
                both = self.scores[arm].keys() & self.scores[part].keys()
                gains = [self.scores[arm][block] - self.scores[part][block] for block in both]
                if gains:
                    own = stdev(gains) if len(gains) > 2 else 0.0
                    error = max(self.fit.sigma * math.sqrt(2), own) / math.sqrt(len(gains))
                    found.append(
                        _Pair(arm=arm, part=part, gain=fmean(gains), error=error, blocks=len(gains))
                    )
        return sorted(found, key=lambda each: -each.t)

    @cached_property
    def _shown(self) -> Sequence[_Pair]:
        for at, each in enumerate(self._pairs):
            if each.t <= t_quantile(1 - ALPHA / (len(self._pairs) - at), self.fit.df):
                return self._pairs[:at]
        return self._pairs

    @cached_property
    def largest(self) -> str:
        """The best arm that has its parts beside it, or none that was measured; "" without one."""
        valid = {name for name, kind in self.kinds.items() if kind != "INVALID"}
        able = [
            name
            for name in self.deltas
            if self._parts(name, self._inside) or not self._parts(name, valid)
        ]
        if self.fit.df < ENOUGH_DF:
            return ""
        return max(able or self.deltas, key=lambda name: self.deltas[name], default="")

    @cached_property
    def arm(self) -> str:
        """The profile that is recommended; "" where none is."""
        if not self.largest:
            return ""
        beaten = {each.part for each in self._shown if each.arm == self.largest}
        parts = self._parts(self.largest, self._inside & self.deltas.keys() - beaten)
        return min(
            (self.largest, *parts), key=lambda name: (len(self.sets[name]), -self.deltas[name])
        )

    def parts(self, baseline: str) -> list[Part]:
        """The rows of the recipe's table."""
        own = self.sets[self.arm]
        if len(own) == 1:
            names = tuple(name for _, name, _ in own)
            gain = self.deltas[self.arm]
            rows = [Part(names=names, need=NEEDED, gain=gain, without=baseline)]
        else:
            rows = self._of_many(own)
        beyond = (e for e in self._pairs if (e.arm, e.part) == (self.largest, self.arm))
        return rows + [self._row(each, NOT_SHOWN, is_deployed=False) for each in beyond]

    def _of_many(self, own: frozenset[Setting]) -> list[Part]:
        rows: list[Part] = []
        told: frozenset[Setting] = frozenset()
        pairs = [each for each in self._pairs if each.arm == self.arm]
        # the fewest settings of which it is told say most
        for each in sorted(pairs, key=lambda each: len(own - self.sets[each.part])):
            lacks = own - self.sets[each.part]
            if not lacks <= told:
                told |= lacks
                rows.append(self._row(each, NEEDED if each in self._shown else NOT_SHOWN))
        rest = tuple(name for _, name, _ in own - told)
        return [*rows, *([Part(names=rest, need=NOT_TESTED)] if rest else [])]

    def _row(self, pair: _Pair, need: str, *, is_deployed: bool = True) -> Part:
        return Part(
            names=tuple(name for _, name, _ in self.sets[pair.arm] - self.sets[pair.part]),
            need=need,
            is_deployed=is_deployed,
            gain=math.expm1(pair.gain),
            without=pair.part,
            blocks=pair.blocks,
        )
