"""The study of thresholds for the registry; an entry point names this module."""

from __future__ import annotations

from pytest_xlatune.sweep.registry import StudyKind

THRESHOLDS = StudyKind(
    f"{__package__}.thresholds:ThresholdStudy",
    f"{__package__}.document:thresholds",
    "thresholds",
    {"threshold": "a cell as deployed against the thresholds of a CVS file"},
)
