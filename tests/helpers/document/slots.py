"""A sweep on several node slots, computed again: where trials lie, and what the slots differ by.

Written from docs/explanation/statistics.md ("Several node slots") and docs/how-to/slurm.md ("Node
slots"). The screen's model is worked out from the covariance of the scores: the package solves
mixed-model equations.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import scipy  # its parts are loaded where they are used

from pytest_xlatune.model.profile import BASELINE_ID as BASELINE
from tests.helpers.document.estimates import ALPHA, ENOUGH_DF, Estimate, weights_in_group
from tests.helpers.document.lines import rounds_to

ROUNDS = 30
SECOND = "again"  # the stage of the second runs
LEAST_RATIO = 1e-3  # of the variance of slots to that of a job


@dataclass(frozen=True, slots=True, kw_only=True)
class Screened:
    """One scored job of the screen: its queue, its place there from 0, its start, its log score."""

    name: str
    queue: Any
    place: int
    start: float
    value: float
    is_baseline: bool
    is_second: bool


def last_laid(trials: Iterable[tuple[tuple[Any, ...], Mapping[str, Any]]]) -> set[tuple[Any, ...]]:
    """The keys of the trials that stand: a trial, or a whole block, that a dead slot left open is
    laid on another slot, and what was laid last counts."""
    found: dict[tuple[Any, ...], tuple[str, list[tuple[Any, ...]]]] = {}
    for key, trial in trials:
        unit, slot = _unit(key, trial), trial["cell_digest"]
        if unit not in found or found[unit][0] != slot:
            found[unit] = slot, []
        found[unit][1].append(key)
    return {key for _, keys in found.values() for key in keys}


def _unit(key: tuple[Any, ...], trial: Mapping[str, Any]) -> tuple[Any, ...]:
    return ("block", trial["study"], trial["block"]) if trial["block"] else key[:-1]


def misplaced(
    planned: Mapping[tuple[Any, ...], Mapping[str, Any]],
    standing: Mapping[tuple[Any, ...], Mapping[str, Any]],
    *,
    ran: Collection[tuple[Any, ...]],
    dead: AbstractSet[str],
) -> list[str]:
    """A complaint for what ran on several slots, and for a slot that lacks a baseline.

    `ran`: the keys of the trials that have a result; `dead`: the slots that lost a trial.
    """
    found = [
        f"{key} ran on {planned[key]['cell_digest']}, which did not die, and lies elsewhere"
        for key in ran
        if key not in standing and planned[key]["cell_digest"] not in dead
    ]
    own = [each for each in standing.values() if each["study"] == "tuning"]
    screened = [each for each in own if not each["block"]]
    with_baseline = {each["cell_digest"] for each in screened if each["profile"]["id"] == BASELINE}
    if len(own) > len(screened):
        bare = {each["cell_digest"] for each in screened} - with_baseline - dead
        # one of eight may lack it
        if len(bare) > len({each["cell_digest"] for each in screened}) // 8:
            found += [f"the screen on {each} has no baseline" for each in sorted(bare)]
    return found


def complaints_of(text: str, books: Any) -> list[str]:
    """A complaint for each sentence on slots that does not follow, and for each that lacks."""
    slots = [*books.slots.values()]
    found = []
    counted = {int(each) for each in COUNTED.findall(text)}
    if counted != ({len(slots)} if slots else set()):
        found.append(f"measured on {counted} node slots, but there are {len(slots)}")
    told = {int(number): change for number, _, change in SLOWER.findall(text)}
    wanted = books.slower_slots if books.fit else {}
    if told.keys() != wanted.keys() or not all(
        rounds_to(-100 * change, told[number]) for number, change in wanted.items()
    ):
        found.append(f"slots {told} are called slower, and {wanted} are")
    dead = {at for at, each in enumerate(books.slots, 1) if each in books.left_slots}
    if not {int(number) for number, _ in DEAD.findall(text)} <= dead:
        found.append(f"of the slots only {dead} lost a trial")
    for number, nodes, *_ in (*SLOWER.findall(text), *DEAD.findall(text)):
        if int(number) > len(slots) or nodes_of(nodes) != slots[int(number) - 1]:
            found.append(f"slot {number} is not on {nodes}")
    return found


def queued(jobs: Sequence[Any]) -> list[Screened]:
    """Jobs in the order in which they began, each with its place in the queue of its slot.

    A slot whose nodes changed on the way is two.
    """
    places: dict[Any, int] = defaultdict(int)
    found = []
    for each in jobs:
        queue = each.slot, each.epoch
        found.append(
            Screened(
                name=each.name,
                queue=queue,
                place=places[queue],
                start=float(each.result["outcome"]["start_s"]),
                value=each.value,
                is_baseline=each.name == BASELINE,
                is_second=each.wave == SECOND,
            )
        )
        places[queue] += 1
    return found


def against_lines(every: Sequence[Screened]) -> list[tuple[str, Estimate]]:
    """Each profile's job against the line of its slot; nothing without a baseline.

    Second runs, which are of the best only, stand against the line of the first.

    score = level + slope x place + (what profiles have in common) + slot + error. Slots vary with a
    variance that restricted likelihood tells: thirty rounds of expectation and maximisation, from
    the variance of a job on. A profile's job off the main group counts less or not. With less than
    ten profiles the slope is that of the baselines.
    """
    jobs = [each for each in every if not each.is_second]
    if not any(each.is_baseline for each in jobs):
        return []
    queues = sorted({each.queue for each in jobs}, key=str)
    y = np.array([each.value for each in jobs])
    y = y - (middle := float(y.mean()))
    place = np.array([float(each.place) for each in jobs])
    centre = float(place.mean())
    profiles = np.array([not each.is_baseline for each in jobs])
    slope, slope_variance, is_few = 0.0, 0.0, int(profiles.sum()) < 10
    if is_few:
        slope, slope_variance = _slope_of_baselines(jobs)
        y = y - slope * (place - centre)
        middle, y = middle + float(y.mean()), y - y.mean()
    x = np.column_stack(
        [
            np.ones(len(jobs)),
            *([] if is_few else [place - centre]),
            *([profiles] if any(profiles) else []),
        ]
    )
    z = np.array([[float(each.queue == queue) for queue in queues] for each in jobs])
    weights, of_slots = _weights(y, profiles), 1.0  # the variance of slots in units of a job's
    for _ in range(ROUNDS):
        precision = np.linalg.inv(np.diag(1 / np.maximum(weights, 1e-12)) + of_slots * z @ z.T)
        spread = np.linalg.pinv(x.T @ precision @ x, hermitian=True)
        fixed = spread @ x.T @ precision @ y
        slots = of_slots * z.T @ precision @ (y - x @ fixed)
        projected = precision - precision @ x @ spread @ x.T @ precision
        left = of_slots * np.eye(len(queues)) - of_slots**2 * z.T @ projected @ z
        both = -of_slots * spread @ x.T @ precision @ z  # errors of fixed effects and of slots
        noise = float(y @ projected @ y) / max(float(weights.sum()) - x.shape[1], 1.0)
        if noise <= 1e-18:
            break
        residuals = y - x @ fixed - z @ slots
        of_slots = (float(slots @ slots) / noise + float(np.trace(left))) / len(queues)
        of_slots = max(of_slots, LEAST_RATIO)
        weights = _weights(residuals, profiles)
    found: list[tuple[Screened, Estimate]] = []
    for each in every:
        if each.is_baseline or each.queue not in queues:
            continue
        at, way = queues.index(each.queue), each.place - centre
        if not is_few:
            slope, slope_variance = float(fixed[1]), float(spread[1, 1])
        line = middle + float(fixed[0] + slots[at]) + slope * way
        level = float(spread[0, 0] + 2 * both[0, at] + left[at, at])
        variance = 1 + level + slope_variance * way**2
        found.append((each, Estimate(value=each.value - line, variance=variance)))
    off = _of_another_session(found)
    return [
        (each.name, replace(one, value=one.value - off) if each.is_second else one)
        for each, one in found
    ]


def _weights(values: Any, profiles: Any) -> Any:
    found = np.ones(len(values))
    found[profiles] = weights_in_group(values[profiles], np.zeros(int(profiles.sum()), dtype=int))
    return found


def _slope_of_baselines(jobs: Sequence[Screened]) -> tuple[float, float]:
    """The slope that the baselines of all queues share, and its variance; (0, 0) of one each."""
    up, spread = 0.0, 0.0
    for queue in {each.queue for each in jobs}:
        own = [each for each in jobs if each.queue == queue and each.is_baseline]
        x = np.array([float(each.place) for each in own])
        y = np.array([each.value for each in own])
        if own:
            up += float((x - x.mean()) @ (y - y.mean()))
            spread += float(np.sum((x - x.mean()) ** 2))
    return (up / spread, 1 / spread) if spread else (0.0, 0.0)


def _of_another_session(found: Sequence[tuple[Screened, Estimate]]) -> float:
    """By what second runs that began late are off, on the mean, from the first of the same."""
    by_slot: dict[Any, list[Screened]] = defaultdict(list)
    for each, _ in found:
        by_slot[each.queue[0]].append(each)
    early: list[float] = []
    late: list[float] = []
    for own in by_slot.values():
        own.sort(key=lambda each: each.start)
        for one, next_one in pairwise(own):
            is_late = next_one.is_second and not one.is_second
            (late if is_late else early).append(next_one.start - one.start)
    if not early or not late or min(late) <= 4 * float(np.median(early)):
        return 0.0
    first = {each.name: one.value for each, one in found if not each.is_second}
    seconds = [(e.name, one.value) for e, one in found if e.is_second and e.name in first]
    return float(np.mean([value - first[name] for name, value in seconds])) if seconds else 0.0


def slower(jobs: Sequence[tuple[str, str, float]]) -> dict[str, float]:
    """The slots slower than all others by more than noise, of (slot, profile, log score).

    Least squares of profile and slot, each slot against the mean of the others, one-sided; all
    slots share 5 %.
    """
    present, names = sorted({slot for slot, _, _ in jobs}), sorted({name for _, name, _ in jobs})
    y = np.array([value for _, _, value in jobs])
    # of the slots the first is left out: its effect is 0
    design = np.array(
        [
            [float(name == each) for each in names] + [float(slot == each) for each in present[1:]]
            for slot, name, _ in jobs
        ]
    )
    found: dict[str, float] = {}
    df = len(jobs) - design.shape[1]
    if len(present) < 2 or np.linalg.matrix_rank(design) < design.shape[1] or df < ENOUGH_DF:
        return found
    effects, *_ = np.linalg.lstsq(design, y - y.mean(), rcond=None)
    noise = float(np.sum((y - y.mean() - design @ effects) ** 2)) / df
    reach = float(scipy.stats.t.ppf(1 - ALPHA / len(present), df))
    for slot in present:
        against = np.array([float(each == slot) for each in present])
        against = np.where(against > 0, 1.0, -1 / (len(present) - 1))[1:]
        contrast = np.concatenate([np.zeros(len(names)), against])
        change = float(contrast @ effects)
        error = math.sqrt(noise * float(contrast @ np.linalg.inv(design.T @ design) @ contrast))
        if change < -reach * error:
            found[slot] = math.expm1(change)
    return found


# slot 3 (node[005-006]) is slower than the others by 6.0 %, more than noise explains
SLOWER = re.compile(r"slot ([0-9]+) \(([^ ]*)\) is slower than the others by ([0-9.]+) %")
# slot 2 (node[003-004]) takes no trial: drained
DEAD = re.compile(r"slot ([0-9]+) \(([^ ]*)\) takes no trial")
# It was measured on 2 node slots side by side; what decides compares trials of one slot.
COUNTED = re.compile(r"on ([0-9]+) node slots side by side")
# node[001-002,007]
HOSTS = re.compile(r"([^,\[]+)(?:\[([^\]]*)\])?,?")


def nodes_of(text: str) -> list[str]:
    """The nodes that a host list names."""
    return [node for prefix, inner in HOSTS.findall(text) for node in _named(prefix, inner)]


def _named(prefix: str, inner: str) -> Iterator[str]:
    for part in inner.split(",") if inner else [""]:
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1) if part else ():
            yield f"{prefix}{number:0{len(first)}d}"
        if not part:
            yield prefix
