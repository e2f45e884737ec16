"""The bubble of a pipeline: the share of its iterations in which a stage has nothing to do.

No XLA flag changes it, only the shape of the pipeline does: stages, microbatches, repeats. What
MaxText makes of its settings is repeated here (`pyconfig.py`: how repeats and microbatches follow
from the rest; `layers/pipeline.py`: M V iterations that work, d (S-1) in the bubble). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pytest_xlatune.cells import Axis, Cell, DeployedFile
from pytest_xlatune.profiles import Profile
from pytest_xlatune.records import Record

MICROBATCHES = "num_pipeline_microbatches"
LAYERS_PER_STAGE = "num_layers_per_pipeline_stage"
REPEATS = "num_pipeline_repeats"
PIPELINE_LAYERS = "pipeline_parallel_layers"
DELAY = "pipeline_delay_activation_forwarding"
LAYERS = ("num_decoder_layers", "base_num_decoder_layers")
SHAPING = (MICROBATCHES, LAYERS_PER_STAGE, REPEATS, PIPELINE_LAYERS, DELAY, *LAYERS)
_SCALE = "global_parameter_scale"  # of 1; another one changes the layers by rules of its own
_UNSET = -1

# a top-level key of a yml, its value, a comment:  num_pipeline_microbatches: 16  # two a stage
_YML = re.compile(r"([A-Za-z_]\w*):[ \t]*[\"']?([^#\"'\n]*?)[\"']?[ \t]*(?:#.*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline(Record):
    """The shape of a pipeline.

    Attributes:
        stages: S, the product of the pipeline axes.
        microbatches: M of a step.
        repeats: V, how often a microbatch comes by each stage.
        delay: iterations from one stage to the next, 2 with delayed forwarding.
    """

    stages: int
    microbatches: int
    repeats: int
    delay: int = 1

    @property
    def bubble(self) -> float:
        """The share of iterations in the bubble: d (S-1) / (M V + d (S-1))."""
        idle = self.delay * (self.stages - 1)
        return idle / (self.microbatches * self.repeats + idle)

    def over(self, other: Pipeline) -> float:
        """Return the relative change of throughput against `other` if the bubble alone changed."""
        return (1 - self.bubble) / (1 - other.bubble) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPipeline(Record):
    """Why a bubble cannot be told."""

    reason: str


def config_of(files: Iterable[DeployedFile]) -> dict[str, str]:
    """Return the plain top-level keys of the trainer's configuration, as text."""
    lines = [line for file in files if not file.is_shell for line in file.text.splitlines()]
    return {
        match.group(1): match.group(2) for line in lines if (match := _YML.fullmatch(line.rstrip()))
    }


def stages_of(cell: Cell) -> int:
    """Return S, the degree of the pipeline axis; 1 is no pipeline."""
    return dict(cell.parallelism.axes).get(Axis.PP.name, 1)


def pipeline_of(
    cell: Cell, profile: Profile, config: Mapping[str, str] | None = None
) -> Pipeline | NoPipeline:
    """Return the pipeline of a profile in a cell.

    Args:
        cell: its parallelism has the stages; its overrides go on top of `config`.
        profile: its overrides go on top of the cell's.
        config: settings of the trainer's configuration.
    """
    said = {**(config or {}), **cell.overrides, **profile.overrides}
    stages = stages_of(cell)
    if stages == 1:
        return NoPipeline(reason=f"{cell.parallelism} has no pipeline")
    wrong = [f"{key}={said[key]}" for key in SHAPING if key in said and _is_odd(key, said[key])]
    if wrong:
        return NoPipeline(reason=f"{wrong[0]} is no number")
    delay = 2 if said.get(DELAY, "false").lower() == "true" else 1
    repeats = _repeats(said, stages)
    if isinstance(repeats, NoPipeline):
        return repeats
    microbatches = _number(said, MICROBATCHES)
    if microbatches == _UNSET:
        microbatches = delay * stages
    if microbatches < 1 or microbatches % stages:
        reason = f"{microbatches} microbatches are no multiple of {stages} stages"
        return NoPipeline(reason=reason)
    return Pipeline(stages=stages, microbatches=microbatches, repeats=repeats, delay=delay)


def _repeats(said: Mapping[str, str], stages: int) -> int | NoPipeline:
    repeats = _number(said, REPEATS)
    per_stage = _number(said, LAYERS_PER_STAGE, otherwise=1)
    if repeats != _UNSET:
        return repeats if repeats > 0 else NoPipeline(reason=f"{REPEATS} is {repeats}")
    if per_stage == _UNSET:
        return 1  # as many layers as there are, all of a stage at once
    layers = _number(said, PIPELINE_LAYERS)
    if layers == _UNSET and said.get(_SCALE, "1") != "1":
        return NoPipeline(reason=f"{_SCALE} is {said[_SCALE]}: name {REPEATS} in the overrides")
    for key in LAYERS:
        layers = layers if layers != _UNSET else _number(said, key)
    if layers == _UNSET:
        return NoPipeline(
            reason=f"the layers are not known here: name {LAYERS[1]} or {REPEATS} in the overrides"
        )
    if per_stage < 1 or layers % (stages * per_stage):
        reason = f"{layers} layers do not divide into {stages} stages of {per_stage}"
        return NoPipeline(reason=reason)
    return layers // (stages * per_stage)


def _is_odd(key: str, text: str) -> bool:
    return key != DELAY and re.fullmatch(r"-?[0-9]+", text) is None


def _number(said: Mapping[str, str], key: str, *, otherwise: int = _UNSET) -> int:
    return int(said[key]) if key in said else otherwise
