"""What a log that a person has tells of the sweep that would run its job again."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from pytest_xlatune.logs.patterns import step_pattern
from pytest_xlatune.model.text import whole
from pytest_xlatune.tasks.read_logs import UnreadableLogError, fitting, log_of, read_one

# a cell's axis -> MaxText's name of it
_AXES = {
    "PP": "pipeline",
    "DP": "data",
    "FSDP": "fsdp",
    "TP": "tensor",
    "CP": "context",
    "SP": "sequence",
    "EP": "expert",
}


def log_tells(path: Path) -> dict[str, str]:
    """Return answers of `xlatune init` that a log tells, and what a sweep file says beside them.

    Raises:
        UnreadableLogError: it cannot be read, or it is the log of no trainer that is known.
    """
    fit = ""
    try:
        read = read_one(path)
    except UnreadableLogError:
        fit = fitting(log_of(path)) if log_of(path).is_file() else ""
        if not fit:
            raise
        read = read_one(path, pattern=step_pattern(fit))
    report = read.report
    if not report.steps and not fit:
        fit = fitting(read.path)
    config = {**report.asked, **report.config}
    found = {
        "kind": "maxtext-slurm" if report.asked else "maxtext" if report.config else "trainer",
        "model": config.get("model_name", ""),
        "parallelism": _parallelism(config),
        "step_pattern": fit,
        "per_device_batch_size": _figure(config.get("per_device_batch_size", "")),
        "max_target_length": _figure(config.get("max_target_length", "")),
        "xla_flags": report.xla_flags or "",
    }
    return {name: said for name, said in found.items() if said}


def _figure(said: str) -> str:
    """Return a number as a sweep file has it; "" where it is none."""
    try:
        number = float(said)
    except ValueError:
        return ""
    return f"{number:g}" if 0 < number < math.inf else ""


def _parallelism(config: Mapping[str, str]) -> str:
    """Return the axes of more than one part; "" where one is left to MaxText (-1), or none is."""
    sizes: dict[str, int] = {}
    for axis, name in _AXES.items():
        parts = [whole(config.get(f"{net}_{name}_parallelism", "1")) for net in ("dcn", "ici")]
        if any(each is None or each < 1 for each in parts):
            return ""
        sizes[axis] = math.prod(each or 1 for each in parts)
    return ",".join(f"{axis}={size}" for axis, size in sizes.items() if size > 1)
