"""Predict how settings change the bubble of a pipeline: the share of iterations without work.

No XLA flag changes the bubble. The shape of the pipeline does: its stages, microbatches and
repeats. This module derives the shape from settings as MaxText does. `pyconfig.py` has repeats and
microbatches; `layers/pipeline.py` has M V iterations with work and d (S-1) in the bubble. Pure.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_xlatune.model.cell import Axis, Cell, DeployedFile
from pytest_xlatune.model.profile import BASELINE, Profile
from pytest_xlatune.model.text import ABSENT, points, size, to_integer
from pytest_xlatune.report._deployed_files import values_of
from pytest_xlatune.report.document import Section, Table, Text, columns, literal, plain, section

MICROBATCHES = "num_pipeline_microbatches"
LAYERS_PER_STAGE = "num_layers_per_pipeline_stage"
REPEATS = "num_pipeline_repeats"
PIPELINE_LAYERS = "pipeline_parallel_layers"
DELAY = "pipeline_delay_activation_forwarding"
LAYERS = ("num_decoder_layers", "base_num_decoder_layers")
_NUMBERS = (MICROBATCHES, LAYERS_PER_STAGE, REPEATS, PIPELINE_LAYERS, *LAYERS)
_MODEL = "model_name"
# 1 by default; with another scale MaxText computes the number of layers
_SCALE = "global_parameter_scale"
_UNSET = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The shape of a pipeline.

    Attributes:
        stages: S, the product of the pipeline axes.
        microbatches: M, the number of microbatches in a step.
        repeats: V, how often a microbatch passes each stage.
        delay: d, the iterations from one stage to the next; 2 with delayed forwarding.
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
        """Return the relative change of throughput against `other` if only the bubble changed."""
        return (1 - self.bubble) / (1 - other.bubble) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class NoPipeline:
    """The bubble of a profile is unknown.

    Attributes:
        reason: why it is unknown.
        is_refused: whether MaxText refuses these settings at its start.
    """

    reason: str
    is_refused: bool = False


def config_of(files: Iterable[DeployedFile]) -> dict[str, str]:
    """Return key -> scalar value, as text, for the top level of the trainer's configuration."""
    texts = [file.text for file in files if not file.is_shell]
    return {key: value for text in texts for key, value in values_of(text).items()}


def stages_of(cell: Cell) -> int:
    """Return S, the degree of the pipeline axis; 1 if there is no pipeline."""
    return dict(cell.parallelism.axes).get(Axis.PP.name, 1)


def pipeline_of(
    cell: Cell, profile: Profile, config: Mapping[str, str] | None = None
) -> Pipeline | NoPipeline:
    """Return the pipeline of a profile in a cell, or why it is unknown.

    The overrides of the profile replace those of the cell, and these replace `config`, the
    trainer's configuration. If these settings name a model and no number of layers, MaxText uses
    the model's number of layers, and not that of its base configuration.
    """
    config = config or {}
    overrides = {**cell.overrides, **profile.overrides}
    model = overrides.get(_MODEL, config.get(_MODEL, "")).replace("{model_tag}", cell.model_tag)
    model_layers = {} if overrides.keys() & {*LAYERS} else layers_of(model)
    settings = {**config, **model_layers, **overrides}
    in_pipeline = config.get(PIPELINE_LAYERS, str(_UNSET))
    if PIPELINE_LAYERS not in overrides and to_integer(in_pipeline) != _UNSET:
        # the model's number of layers in the pipeline replaces only the default of this key
        settings[PIPELINE_LAYERS] = in_pipeline
    stages = stages_of(cell)
    if stages == 1:
        return NoPipeline(reason=f"{cell.parallelism} has no pipeline")
    numbers = {key: settings[key] for key in _NUMBERS if key in settings}
    known: dict[str, int] = {}
    for key, text in numbers.items():
        if (value := to_integer(text)) is None:
            return NoPipeline(reason=f"{key}={text:.40} is not a number")
        known[key] = value
    repeats = _repeats(known, stages, scale=settings.get(_SCALE, "1"))
    if isinstance(repeats, NoPipeline):
        return repeats
    delay = 2 if settings.get(DELAY, "false").lower() == "true" else 1
    microbatches = known.get(MICROBATCHES, _UNSET)
    if microbatches == _UNSET:
        microbatches = delay * stages
    if microbatches < 1 or microbatches % stages:
        reason = f"{microbatches} microbatches are not a multiple of {stages} stages"
        return NoPipeline(reason=reason, is_refused=True)
    return Pipeline(stages=stages, microbatches=microbatches, repeats=repeats, delay=delay)


def layers_of(model_name: str) -> dict[str, str]:
    """Return the keys for the number of layers of a model of MaxText; {} if the model is unknown.

    The source is `layers.toml` in this folder.
    """
    table = _models()
    if model_name not in table["layers"]:
        return {}
    layers = table["layers"][model_name]
    inside = layers - table["before_the_pipeline"].get(model_name, 0)
    return {LAYERS[1]: str(layers), PIPELINE_LAYERS: str(inside)}


@functools.cache
def _models() -> dict[str, dict[str, int]]:
    text = Path(__file__).with_name("layers.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _repeats(known: Mapping[str, int], stages: int, *, scale: str) -> int | NoPipeline:
    repeats = known.get(REPEATS, _UNSET)
    per_stage = known.get(LAYERS_PER_STAGE, 1)
    if repeats != _UNSET:
        return repeats if repeats > 0 else NoPipeline(reason=f"{REPEATS} is {repeats}")
    if per_stage == _UNSET:
        return 1  # a microbatch passes a stage once, through all layers of the stage
    layers = known.get(PIPELINE_LAYERS, _UNSET)
    if layers == _UNSET and scale != "1":
        return NoPipeline(reason=f"{_SCALE} is {scale}: name {REPEATS} in the overrides")
    for key in LAYERS:
        layers = layers if layers != _UNSET else known.get(key, _UNSET)
    if layers == _UNSET:
        return NoPipeline(
            reason=f"the number of layers is unknown: set {LAYERS[1]} or {REPEATS} as an override"
        )
    if per_stage < 1 or layers % (stages * per_stage):
        reason = f"{layers} layers do not divide into {stages} stages of {per_stage}"
        inside = layers - layers % (stages * per_stage) if per_stage > 0 else 0
        hint = f", which MaxText refuses: set {PIPELINE_LAYERS}={inside}" if inside > 0 else ""
        return NoPipeline(reason=f"{reason}{hint}", is_refused=True)
    return layers // (stages * per_stage)


_COLUMNS = columns("~Profile", ">S", ">M", ">V", ">bubble", ">predicted delta %")


def bubbles(
    cell: Cell, profiles: Sequence[Profile], *, files: Sequence[DeployedFile] = ()
) -> Section | None:
    """Return the section of a plan; None if no profile changes the shape of a pipeline.

    `files` should have the trainer's configuration, if it is known.
    """
    shaping = [profile for profile in profiles if profile.overrides.keys() & {*_NUMBERS, DELAY}]
    if not shaping or stages_of(cell) == 1:
        return None
    config = config_of(files)
    shapes = [(profile, pipeline_of(cell, profile, config)) for profile in (BASELINE, *shaping)]
    base = shapes[0][1]
    whys = dict.fromkeys(
        f"{plain(profile.id)}: {plain(shape.reason)}."
        for profile, shape in shapes
        if isinstance(shape, NoPipeline)
    )
    return section(
        "Pipeline bubble",
        Table(
            columns=_COLUMNS, rows=tuple(_row(profile, shape, base) for profile, shape in shapes)
        ),
        Text(
            text="S stages, M microbatches and V repeats leave a bubble of (S-1)/(M V + S-1), "
            "with twice S-1 in place of S-1 if activations are forwarded with a delay. The "
            "predicted delta is that of the bubble alone; smaller microbatches have other costs."
        ),
        *(Text(text=why) for why in whys),
    )


def _row(
    profile: Profile, shape: Pipeline | NoPipeline, base: Pipeline | NoPipeline
) -> tuple[str, ...]:
    if isinstance(shape, NoPipeline):
        return (literal(profile.id), *[ABSENT] * 5)
    delta = ABSENT
    if isinstance(base, Pipeline) and profile is not BASELINE:
        delta = points(shape.over(base))
    return (
        literal(profile.id),
        str(shape.stages),
        str(shape.microbatches),
        str(shape.repeats),
        size(shape.bubble),
        delta,
    )
