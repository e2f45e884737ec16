"""Single settings of known gains, and a cluster whose speed is the sum of those that are set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from pytest_xlatune.model.cell import Parallelism
from pytest_xlatune.model.profile import Profile, profile, settings_of
from pytest_xlatune.model.result import TrialResult
from pytest_xlatune.studies.tuning import TuningStudy
from tests.helpers import history
from tests.helpers.history import Answer, measured, noise

CELL = replace(history.CELL, parallelism=Parallelism.parse("PP=8"))
GIB = 1 << 30
AG = "xla_gpu_all_gather_combine_threshold_bytes"
LIMIT = "xla_gpu_experimental_parallel_collective_overlap_limit"

SINGLES = (
    profile("overlap-2", f"--{LIMIT}=2"),
    profile("overlap-4", f"--{LIMIT}=4"),
    profile("ag-1g", f"--{AG}={GIB}"),
    profile("double", "--xla_gpu_enable_while_loop_double_buffering=true"),
    profile("tree", env={"NCCL_ALGO": "Tree"}),
    profile("default", "--xla_gpu_autotune_level=4"),
    *(profile(f"hurts-{at}", f"--xla_gpu_knob={at}") for at in range(4)),
)
GAINS = {"overlap-2": 0.03, "overlap-4": 0.022, "ag-1g": 0.025, "double": 0.015, "tree": 0.01}


def effect(settings: Profile, gains: Mapping[str, float]) -> float:
    """Log gain of a profile: that of each single whose settings it has."""
    own = settings_of(settings).items()
    return sum(
        gains.get(each.id, 0.0) if each.id in gains else -0.05 * each.id.startswith("hurts")
        for each in SINGLES
        if settings_of(each).items() <= own
    )


def cluster(gains: Mapping[str, float] = GAINS, *, sigma: float = 0.001) -> Answer:
    return lambda trial: measured(trial, 6.9 + effect(trial.profile, gains) + noise(trial, sigma))


def of_wave(history: Sequence[TrialResult], wave: str) -> set[str]:
    return {
        each.trial.profile.id
        for each in history
        if each.trial.stage == wave and not each.trial.is_baseline
    }


def slots_of(sweep: TuningStudy, done: Sequence[TrialResult]) -> dict[str, str]:
    """Return the profile of each slot of the derived waves that are filled."""
    return {name: each.id for name, each in sweep.state(done).ranked.arms.slots.items()}
