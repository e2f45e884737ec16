"""What a tuning study may take from a history: its own trials, each once, and why others not.

Order and repetition of the history do not matter. This module decides no verdicts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from pytest_xlatune.cells import Protocol, Stage, Trial
from pytest_xlatune.profiles import BASELINE, Profile
from pytest_xlatune.results import Score, TrialResult, TrialStatus
from pytest_xlatune.stats.warmup import Window
from pytest_xlatune.studies import History
from pytest_xlatune.studies.one_window import moved, window_of
from pytest_xlatune.studies.tuning_layout import ALIAS, STUDY

Place = tuple[str, int, str, int]  # group, block, profile id, position


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """The usable history.

    Attributes:
        screen: the screen's trials by place.
        confirm: the confirmation's trials by place, those of undeclared profiles included.
        undeclared: ids of profiles in the history that are no longer declared.
        changed: ids whose settings differ from what was measured under that id.
        foreign: trials of another cell, protocol or study.
        runs: the same trials by stage and profile id, in the order of their places.
        baseline_loss: median loss of the scored baselines; None where none was printed.
        window: in which all of them are scored.
        epochs: in how many their scores lie.
    """

    screen: Mapping[Place, TrialResult]
    confirm: Mapping[Place, TrialResult]
    runs: Mapping[tuple[Stage, str], Sequence[TrialResult]]
    baseline_loss: float | None
    window: Window
    epochs: int
    undeclared: frozenset[str]
    changed: frozenset[str]
    foreign: int

    def of(self, trial: Trial) -> TrialResult | None:
        """Return what is known of a planned trial."""
        return self._stage(trial.stage).get(place(trial))

    def is_final(self, trial: Trial) -> bool:
        """Whether a planned trial is over."""
        result = self.of(trial)
        return result is not None and result.status.is_final

    def of_profile(self, profile_id: str, stage: Stage) -> Sequence[TrialResult]:
        """Return the trials of a profile in one stage, in the order of their places."""
        return self.runs.get((stage, profile_id), ())

    def _stage(self, stage: Stage) -> Mapping[Place, TrialResult]:
        return self.screen if stage is Stage.SCREEN else self.confirm


def read(
    history: History,
    *,
    cell_digest: str,
    protocol: Protocol,
    declared: Mapping[str, Profile],
    study: str = STUDY,
) -> Past:
    """Sort a history into what this study planned and what it did not."""
    known = {BASELINE.id: BASELINE, ALIAS.id: ALIAS, **declared}
    stages: dict[Stage, dict[Place, TrialResult]] = {Stage.SCREEN: {}, Stage.CONFIRM: {}}
    undeclared: set[str] = set()
    changed: set[str] = set()
    foreign = 0
    for result in history:
        trial = result.trial
        if trial.stage is Stage.EVIDENCE:
            continue  # it has no score, and nobody takes it for one that has
        ours = is_ours(trial, cell_digest=cell_digest, protocol=protocol, study=study)
        if not ours or trial.stage not in stages:
            foreign += 1
            continue
        profile = known.get(trial.profile.id)
        if profile is None:
            undeclared.add(trial.profile.id)
        elif not _same_settings(profile, trial.profile):
            changed.add(trial.profile.id)
            continue
        kept = stages[trial.stage]
        key = place(trial)
        if key not in kept or _standing(result) > _standing(kept[key]):
            kept[key] = result
    screen = {key: r for key, r in stages[Stage.SCREEN].items() if key[2] in known}
    confirm = stages[Stage.CONFIRM]
    window = window_of(_scores(screen), _scores(confirm), protocol)
    if window.is_moved:
        screen = {key: moved(each, window) for key, each in screen.items()}
        confirm = {key: moved(each, window) for key, each in confirm.items()}
    runs: dict[tuple[Stage, str], list[TrialResult]] = defaultdict(list)
    for stage, trials in ((Stage.SCREEN, screen), (Stage.CONFIRM, confirm)):
        for key in sorted(trials):
            runs[stage, key[2]].append(trials[key])
    baselines = [each for stage in stages for each in runs.get((stage, BASELINE.id), ())]
    return Past(
        screen=screen,
        confirm=confirm,
        runs=runs,
        baseline_loss=median_loss(baselines),
        window=window,
        epochs=len({each.epoch for each in (*screen.values(), *confirm.values()) if usable(each)}),
        undeclared=frozenset(undeclared),
        changed=frozenset(changed),
        foreign=foreign,
    )


def is_ours(trial: Trial, *, cell_digest: str, protocol: Protocol, study: str = STUDY) -> bool:
    """Whether a trial is of this study, and of a cell and protocol that compare."""
    is_same = trial.cell_digest == cell_digest and trial.study == study
    return is_same and _same_protocol(trial, protocol)


def median_loss(results: Sequence[TrialResult]) -> float | None:
    """Return the median loss of the scored trials; None where none was printed."""
    losses = [s.loss for each in results if (s := usable(each)) and s.loss is not None]
    return median(losses) if losses else None


def place(trial: Trial) -> Place:
    """Return where in the sweep a trial stands."""
    return trial.group, trial.block, trial.profile.id, trial.position


def usable(result: TrialResult) -> Score | None:
    """Return the score of a measured trial; None where there is none or it is not finite."""
    score = result.score
    if result.status is not TrialStatus.MEASURED or score is None:
        return None
    return score if math.isfinite(score.value) else None


def _scores(results: Mapping[Place, TrialResult]) -> list[Score]:
    return [score for key in sorted(results) if (score := usable(results[key])) is not None]


def _same_protocol(trial: Trial, protocol: Protocol) -> bool:
    """Whether a trial was run and scored like the others: profiled ones never mix with plain."""
    return trial.protocol == protocol or trial.protocol.identity == protocol.identity


def _same_settings(one: Profile, other: Profile) -> bool:
    return one is other or (
        (one.flags, one.env, one.overrides) == (other.flags, other.env, other.overrides)
    )


def _standing(result: TrialResult) -> tuple[bool, bool, tuple[str, ...], float]:
    """Order two records of one trial: a final one over a running one, never by a better score."""
    value = 0.0 if result.score is None else -result.score.value
    return (
        result.status.is_final,
        result.status is TrialStatus.MEASURED,
        result.job_ids,
        value,
    )
