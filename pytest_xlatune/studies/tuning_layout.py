"""The order of a tuning sweep: queues of the screen, blocks of the confirmation.

Orders are random to the cluster and the same for everyone: an item's place comes from a digest of
the seed and of what the item *is*, so that adding, renaming or deselecting a profile moves no other
relative to its neighbours. This module knows no history and no scores.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_xlatune.cells import Cell, Stage, Trial
from pytest_xlatune.profiles import BASELINE, Profile
from pytest_xlatune.records import digest

STUDY = "tuning"
ALIAS = Profile(
    id="baseline-aa", wave="confirm", note="the baseline under an alias: an A/A control"
)
SCREENED_PER_BASELINE = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """The queue of one wave: trials in order, a baseline first and last."""

    wave: str
    trials: tuple[Trial, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """Where the random orders of one sweep come from, and which study they belong to."""

    cell: Cell
    cell_digest: str
    seed: int
    study: str = STUDY

    def segment(self, wave: str, profiles: Sequence[Profile], *, baselines: int) -> Segment:
        """Lay out the queue of a wave: shuffled profiles, baselines at equal spacing."""
        queue = self._shuffled([(profile, 0) for profile in profiles], scope=wave)
        last = len(queue) + baselines - 1
        places = [round(at * last / max(baselines - 1, 1)) for at in range(baselines)]
        for position, place in enumerate(places):
            queue.insert(place, (BASELINE, position))
        return Segment(
            wave=wave,
            trials=tuple(
                self._trial(profile, Stage.SCREEN, group=wave, position=position)
                for profile, position in queue
            ),
        )

    def blocks(
        self, arms: Sequence[Profile], numbers: Iterable[int], *, baselines: int, group: str
    ) -> tuple[Trial, ...]:
        """Lay out complete blocks: random order inside, every second the mirror of the one before.

        Mirrored, a drift or a cold first place falls on all arms alike.
        """
        cells = [(arm, 0) for arm in arms] + [(BASELINE, at) for at in range(baselines)]
        trials: list[Trial] = []
        for number in numbers:
            mirrored = number % 2 == 0
            order = self._shuffled(cells, scope=f"block {number - mirrored}")
            trials += [
                self._trial(profile, Stage.CONFIRM, group=group, block=number, position=position)
                for profile, position in (reversed(order) if mirrored else order)
            ]
        return tuple(trials)

    def _shuffled(
        self, items: Sequence[tuple[Profile, int]], *, scope: str
    ) -> list[tuple[Profile, int]]:
        def key(item: tuple[Profile, int]) -> str:
            profile, position = item
            # what it sets, not what it is called; only the alias sets nothing under a name
            alias = profile.id == ALIAS.id
            return digest(
                [self.seed, self.cell_digest, scope, alias, profile.settings_text, position]
            )

        return sorted(items, key=key)

    def _trial(
        self, profile: Profile, stage: Stage, *, group: str, block: int = 0, position: int = 0
    ) -> Trial:
        return Trial(
            cell_digest=self.cell_digest,
            profile=profile,
            protocol=self.cell.protocol,
            study=self.study,
            stage=stage,
            block=block,
            position=position,
            group=group,
        )


def wave_order(wave: str) -> tuple[bool, list[int], str]:
    """Return the key by which waves run: wave1, wave1_5, wave2, ..., wave10, then other names."""
    # a wave:  wave1_5
    numbered = re.fullmatch(r"wave[0-9]+(_[0-9]+)?", wave) is not None
    return not numbered, [int(part) for part in re.findall(r"[0-9]+", wave)], wave


def wave_baselines(profiles: int) -> int:
    """Return the baselines of one wave of several: first and last, and one per six profiles."""
    return max(2, round(profiles / SCREENED_PER_BASELINE))
