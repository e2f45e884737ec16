"""Predict how settings change the bubble of a pipeline: the share of iterations without work.

No XLA flag changes the bubble. The shape of the pipeline does: its stages, microbatches and
repeats. This module derives the shape from settings as MaxText does, and says which shapes MaxText
refuses. `pyconfig.py` computes repeats and microbatches; `layers/pipeline.py` runs M V iterations
with work and d (S-1) in the bubble (see `Pipeline`). Pure.
"""

from __future__ import annotations

import functools
import io
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pytest_xlatune.model.cell import Axis, Cell, DeployedFile
from pytest_xlatune.model.profile import BASELINE, Profile
from pytest_xlatune.model.text import ABSENT, points, size, to_integer
from pytest_xlatune.report.document import Section, Table, Text, columns, literal, plain, section

MICROBATCHES = "num_pipeline_microbatches"
LAYERS_PER_STAGE = "num_layers_per_pipeline_stage"
REPEATS = "num_pipeline_repeats"
PIPELINE_LAYERS = "pipeline_parallel_layers"
DELAY = "pipeline_delay_activation_forwarding"
LAYERS = ("num_decoder_layers", "base_num_decoder_layers")
_NUMBERS = frozenset({MICROBATCHES, LAYERS_PER_STAGE, REPEATS, PIPELINE_LAYERS, *LAYERS})
_MODEL = "model_name"
# the model's scale, 1 by default; from another, MaxText computes the number of layers
_SCALE = "global_parameter_scale"
_UNSET = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """The shape of a pipeline.

    Attributes:
        stages: S, the degree of the pipeline axis.
        microbatches: M, the number of microbatches in a step.
        repeats: V, how often a microbatch passes each stage; None if it is not known.
        delay: d, the iterations from one stage to the next; 2 with delayed forwarding.
        refused: why MaxText refuses this shape; "" if it accepts it.
    """

    stages: int
    microbatches: int
    repeats: int | None
    delay: int = 1
    refused: str = ""

    @property
    def bubble(self) -> float | None:
        """The share of iterations in the bubble, d (S-1) / (M V + d (S-1)); None if not known."""
        if self.repeats is None or self.refused:
            return None
        idle = self.delay * (self.stages - 1)
        return idle / (self.microbatches * self.repeats + idle)


def config_of(files: Iterable[DeployedFile]) -> dict[str, str]:
    """Return key -> scalar value, as text, for the top level of the trainer's configuration.

    A value has no quotes, and is "" if it is empty. A file that is no YAML table has no values.
    """
    values: dict[str, str] = {}
    for file in files:
        try:
            content = None if file.is_shell else YAML(typ="base").load(io.StringIO(file.text))
        except (YAMLError, ValueError):
            continue
        table = content if isinstance(content, dict) else {}
        scalars = ((key, value or "") for key, value in table.items())
        values |= {str(key): value for key, value in scalars if isinstance(value, str)}
    return values


def stages_of(cell: Cell) -> int:
    """Return S, the degree of the pipeline axis; 1 if there is no pipeline."""
    return dict(cell.parallelism.axes).get(Axis.PP.name, 1)


def pipeline_of(cell: Cell, profile: Profile, config: Mapping[str, str]) -> Pipeline:
    """Return the pipeline of a profile in a cell.

    The overrides of the profile replace those of the cell, and these replace `config`, the
    trainer's configuration. If these settings name a model and no number of layers, MaxText uses
    the model's number of layers, and not that of its base configuration.
    """
    overrides = {**cell.overrides, **profile.overrides}
    model = overrides.get(_MODEL, config.get(_MODEL, "")).replace("{model_tag}", cell.model_tag)
    named = {} if overrides.keys() & {*LAYERS} else _layers_of(model)
    settings = {**config, **named}
    if to_integer(config.get(PIPELINE_LAYERS, str(_UNSET))) != _UNSET:
        settings[PIPELINE_LAYERS] = config[PIPELINE_LAYERS]  # it wins over that of the model
    settings |= overrides
    numbers = {key: to_integer(settings[key]) for key in _NUMBERS & settings.keys()}

    def number(key: str, default: int = _UNSET) -> int:
        value = numbers.get(key, default)
        return _UNSET if value is None else value

    stages, microbatches, repeats = stages_of(cell), number(MICROBATCHES), number(REPEATS)
    delay = 2 if settings.get(DELAY, "false").lower() == "true" else 1
    refused = ""
    if microbatches == _UNSET:
        microbatches = delay * stages
    elif microbatches < 1 or microbatches % stages:
        refused = f"{microbatches} microbatches are not a multiple of {stages} stages"
    known_repeats: int | None = repeats if repeats > 0 else None
    if None in numbers.values():
        known_repeats = None
    elif repeats == _UNSET:
        per_stage, layers = number(LAYERS_PER_STAGE, 1), number(PIPELINE_LAYERS)
        if layers == _UNSET and settings.get(_SCALE, "1") == "1":
            layers = next((number(key) for key in LAYERS if number(key) != _UNSET), _UNSET)
        in_a_round = stages * per_stage
        if per_stage == _UNSET:
            known_repeats = 1  # a microbatch passes a stage once, through all layers of the stage
        elif layers != _UNSET and per_stage > 0 and layers % in_a_round == 0:
            known_repeats = layers // in_a_round
        elif layers != _UNSET and not refused:
            refused = f"{layers} layers do not divide into {stages} stages of {per_stage}"
            if per_stage > 0 and layers > in_a_round:
                inside = layers - layers % in_a_round
                refused += f", which MaxText refuses: set {PIPELINE_LAYERS}={inside}"
    return Pipeline(
        stages=stages,
        microbatches=microbatches,
        repeats=known_repeats,
        delay=delay,
        refused=refused,
    )


@functools.cache
def _layers_of(model_name: str) -> Mapping[str, str]:
    """Return the keys for the number of layers of a model of MaxText; {} if the model is unknown.

    The source is `layers.toml` in this folder.
    """
    table = tomllib.loads(Path(__file__).with_name("layers.toml").read_text(encoding="utf-8"))
    if model_name not in table["layers"]:
        return {}
    layers = table["layers"][model_name]
    inside = layers - table["before_the_pipeline"].get(model_name, 0)
    return {LAYERS[1]: str(layers), PIPELINE_LAYERS: str(inside)}


def bubbles(
    cell: Cell, profiles: Sequence[Profile], *, files: Sequence[DeployedFile] = ()
) -> Section | None:
    """Return a plan's section on bubbles; None if no profile changes the shape of a pipeline.

    `files` should have the trainer's configuration, if it is known.
    """
    shaping = [profile for profile in profiles if profile.overrides.keys() & {*_NUMBERS, DELAY}]
    if not shaping or stages_of(cell) == 1:
        return None
    config = config_of(files)
    base = pipeline_of(cell, BASELINE, config).bubble
    rows = []
    for profile in (BASELINE, *shaping):
        shape = pipeline_of(cell, profile, config)
        bubble, delta = shape.bubble, ABSENT
        if bubble is not None and base is not None and profile is not BASELINE:
            delta = points((1 - bubble) / (1 - base) - 1)
        numbers = (shape.stages, shape.microbatches, shape.repeats or ABSENT)
        remark = plain(shape.refused) or ABSENT
        rows.append((literal(profile.id), *map(str, numbers), size(bubble), delta, remark))
    titles = columns("~Profile", ">S", ">M", ">V", ">bubble", ">predicted delta %", "~refused")
    return section(
        "Pipeline bubble",
        Table(columns=titles, rows=tuple(rows)),
        Text(
            text="S stages, M microbatches and V repeats leave a bubble of (S-1)/(M V + S-1), "
            "with twice S-1 in place of S-1 if activations are forwarded with a delay. The "
            "predicted delta is that of the bubble alone; smaller microbatches have other costs."
        ),
    )
