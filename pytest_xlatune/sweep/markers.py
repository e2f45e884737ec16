"""The markers of our studies: kind -> marker -> phrase on what it selects.

Every pytest run registers them, so this module imports hardly anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

MARKERS: dict[str, dict[str, str]] = {
    "tuning": {
        "wave1": "the baseline, and the speed of the image alone",
        "wave2": "single flags of the dominant axis",
        "wave3": "stacks of the leading flags",
        "wave4": "values around the leaders, flags of the second axis",
        "wave5": "keys of the trainer: pipeline, remat, attention, quantization, scan",
        "wave5_5": "the best flags with the best pipeline shape",
        "confirm": "the finalists in fresh randomised blocks",
    },
    "gate": {
        "gate": "a regression gate on TGS",
        "wave6": "the best two on the other config tags, in a gate; takes margin=0.01, blocks=4",
    },
    "network": {
        "network": "which node or link slows the network: rounds of pairs, then fresh pairs"
    },
    "nodes": {"nodes": "which nodes are slow: one job a node, suspects again beside controls"},
    "batch": {"batch": "which batch size is fastest, and which is the largest that fits"},
    "commits": {"commits": "which commit made it slower, or which models a commit breaks or slows"},
    "calibration": {
        "calibrate": "the baseline against itself: the noise of the cell; takes jobs=12"
    },
    "evidence": {"wave1_5": "an evidence run with profiler and dump"},
}


def registered_as(markers: Iterable[Mapping[str, str]]) -> list[str]:
    """Return the lines with which pytest registers markers, sorted by name."""
    pairs = sorted(pair for by_name in markers for pair in by_name.items())
    return [f"{name}: {text} (pytest-xlatune)" for name, text in pairs]
