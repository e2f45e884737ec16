"""A trial in MaxText's `key=value`: what every launcher of MaxText has to say, however it says it.

What a trial is (steps, synthetic data, batch, length, profiler, where it writes) comes from the
protocol and the cell and cannot be overridden; it would not be the trial that the study planned.
Everything else may come from the cell's overrides and then the profile's, last wins. This module
must not know a MaxText release: what keys it has is asked elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping

from pytest_xlatune.cells import Axis, Cell, Protocol, Trial
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.launchers.program import number

# Where an axis usually lies: between the slices (dcn) or inside one (ici). A CPU has no slices.
AXIS_PREFIX: Mapping[str, str] = {
    **dict.fromkeys(("DP", "FSDP", "PP"), "dcn"),
    **dict.fromkeys(("TP", "EP", "CP", "SP"), "ici"),
}
# Model configs ship with a degree for one of these; naming another must take that one back.
_EXCLUSIVE = ("FSDP", "PP")

# what a trial is made of -> where a user says it
_OWNED: Mapping[str, str] = {
    "steps": "Protocol(steps=...)",
    "dataset_type": "Protocol(dataset_type=...)",
    "eval_interval": "Protocol(eval_interval=...)",
    "profiler": "Protocol(profiler=...)",
    "skip_first_n_steps_for_profiler": "Protocol(skip_first_steps=...)",
    "profiler_steps": "Protocol(profiler_steps=...)",
    "per_device_batch_size": "Cell(per_device_batch_size=...)",
    "max_target_length": "Cell(max_target_length=...)",
    "run_name": "nothing: it is the trial's id",
    "metrics_file": "nothing: it is in the attempt's folder",
}


def check_axis_prefix(axis_prefix: Mapping[str, str]) -> None:
    """Refuse an axis or a prefix that does not exist.

    Raises:
        ConfigError: naming the nearest that does.
    """
    for axis, prefix in axis_prefix.items():
        if axis not in AXIS_PREFIX:
            raise ConfigError.unknown("axis", axis, valid=AXIS_PREFIX, where="axis_prefix")
        if prefix not in ("dcn", "ici"):
            raise ConfigError.unknown(
                "prefix", prefix, valid=("dcn", "ici"), where=f"axis_prefix of {axis}"
            )


def trial_keys(
    trial: Trial,
    cell: Cell,
    *,
    axis_prefix: Mapping[str, str],
    owned: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return batch, length, axes, overrides and protocol of a trial, each key once.

    Args:
        trial: of this cell.
        cell: what is held fixed.
        axis_prefix: axis -> "dcn" or "ici", where it differs from `AXIS_PREFIX`.
        owned: further keys that a launcher sets itself -> where a user says them.

    Raises:
        ConfigError: an override of a key that the protocol or the cell sets.
    """
    axes = _axes(cell, axis_prefix)
    owned = {**_OWNED, **(owned or {})}
    _check_overrides(cell.overrides, f"cell {cell.label!r}", owned)
    _check_overrides(
        trial.profile.overrides,
        f"profile {trial.profile.id!r}",
        {**owned, **dict.fromkeys(axes, "the cell's parallelism")},
    )
    return {
        **_shape(cell),
        **axes,
        **cell.overrides,
        **trial.profile.overrides,
        **_protocol_keys(trial.protocol),
    }


def _axes(cell: Cell, axis_prefix: Mapping[str, str]) -> dict[str, str]:
    named = dict(cell.parallelism.axes)
    if named.keys() & {"DP", *_EXCLUSIVE}:
        named |= {axis: 1 for axis in _EXCLUSIVE if axis not in named}
    prefix = {**AXIS_PREFIX, **axis_prefix}
    return {
        f"{prefix[axis]}_{Axis[axis]}_parallelism": str(degree) for axis, degree in named.items()
    }


def _shape(cell: Cell) -> dict[str, str]:
    shape = {
        "per_device_batch_size": cell.per_device_batch_size,
        "max_target_length": cell.max_target_length,
    }
    return {key: number(value) for key, value in shape.items() if value is not None}


def _protocol_keys(protocol: Protocol) -> dict[str, str]:
    keys = {"steps": str(protocol.steps), "dataset_type": protocol.dataset_type}
    if protocol.eval_interval:
        keys["eval_interval"] = str(protocol.eval_interval)
    # an empty `profiler=` is refused by MaxText
    if protocol.profiler:
        keys |= {
            "profiler": protocol.profiler,
            "skip_first_n_steps_for_profiler": str(protocol.skip_first_steps),
            "profiler_steps": str(protocol.profiler_steps),
        }
    return keys


def _check_overrides(overrides: Mapping[str, str], where: str, owned: Mapping[str, str]) -> None:
    for key, value in overrides.items():
        if key in owned:
            raise ConfigError(
                f"{where} overrides {key}={value}, which would make it another measurement; it is "
                f"set by {owned[key]}"
            )
