"""Which parts are worth another stack: none that gain nothing, none that spoil each other.

What a confirmation showed to gain nothing is in no new stack. A stack that ran and fell short of
its parts is in none either: half of the slots of a wave wait until the first half has run. Spends
no error rate, for all this is read off the screen, or off blocks that are over.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.result import VerdictKind
from pytest_xlatune.studies.trials import Past
from pytest_xlatune.studies.tuning._stages import begun, frozen_arms, is_spare, look_at
from pytest_xlatune.studies.tuning.derived import Key, is_part, settings_of


def without_gain(past: Past, *, equivalence: float) -> frozenset[str]:
    """Return the arms that a confirmation showed to be level with the baseline, or slower.

    None of them before all blocks of its last look are over.
    """
    known = begun(past)
    first = known.get(1)
    own = {key: each for key, each in past.confirm.items() if not is_spare(each.trial)}
    last = max((key.block for key in own), default=0)
    if first is None or last < sum(each.blocks for each in known.values()):
        return frozenset()
    if not all(each.status.is_final for each in own.values()):
        return frozenset()
    kept = frozen_arms(past, after=last - 1)
    look = look_at(past, tuple(known.values()), kept, equivalence)
    level = (VerdictKind.EQUIVALENT, VerdictKind.SLOWER)
    return frozenset(arm for arm, kind in look.kinds.items() if kind in level)


_ADDS = 0.5  # of what the other parts promise: less, and a stack falls short of its parts


def falls_short(whole: float, parts: Sequence[float]) -> bool:
    """Whether a stack gains less over its best part than half of what the others promise.

    All are log ratios to the baseline. Half lies in the middle between parts that add up and parts
    of which the others do nothing beside the best.
    """
    if not parts:
        return False
    best = max(parts)
    return whole - best < _ADDS * (math.fsum(parts) - best)


def short_of(
    stacks: Sequence[Profile], pool: Sequence[Profile], estimates: Mapping[str, float]
) -> dict[str, Mapping[Key, str]]:
    """Return the settings of the stacks that fell short of their parts, by id.

    Args:
        stacks: that ran.
        pool: the profiles that parts are taken from.
        estimates: log ratios to the baseline, by id; a stack without all of its own is not judged.
    """
    settings = {each.id: settings_of(each) for each in (*pool, *stacks)}
    single = [
        each.id
        for each in pool
        if not any(is_part(settings[other.id], settings[each.id]) for other in pool)
    ]
    found: dict[str, Mapping[Key, str]] = {}
    for each in stacks:
        parts = [name for name in single if is_part(settings[name], settings[each.id])]
        if estimates.keys() >= {each.id, *parts} and falls_short(
            estimates[each.id], [estimates[name] for name in parts]
        ):
            found[each.id] = settings[each.id]
    return found
