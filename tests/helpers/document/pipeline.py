"""The shape of a pipeline and its bubble, by the settings of MaxText."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

LAYERS = ("pipeline_parallel_layers", "num_decoder_layers", "base_num_decoder_layers")
SHAPING = {
    "num_pipeline_microbatches",
    "num_pipeline_repeats",
    "num_layers_per_pipeline_stage",
    "pipeline_delay_activation_forwarding",
    *LAYERS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """S, M and V, and the iterations in which a stage has nothing to do."""

    stages: int
    micro: int
    repeats: int
    idle: int

    @property
    def bubble(self) -> float:
        return self.idle / (self.micro * self.repeats + self.idle)


def shape_of(said: Mapping[str, str], *, stages: int) -> Shape | None:
    """The shape that settings make; None where they make none."""
    per_stage = int(said.get("num_layers_per_pipeline_stage", 1))
    said = {key: value for key, value in said.items() if value != "-1"}  # as unset elsewhere
    delay = 2 if said.get("pipeline_delay_activation_forwarding", "").lower() == "true" else 1
    micro = int(said.get("num_pipeline_microbatches", delay * stages))
    layers = next((int(said[each]) for each in LAYERS if each in said), None)
    if "num_pipeline_repeats" in said:
        repeats = int(said["num_pipeline_repeats"])
    elif per_stage == -1:
        repeats = 1  # a stage has all its layers at once
    elif layers is None or layers % (stages * per_stage):
        return None
    else:
        repeats = layers // (stages * per_stage)
    if micro % stages:
        return None
    return Shape(stages=stages, micro=micro, repeats=repeats, idle=delay * (stages - 1))
