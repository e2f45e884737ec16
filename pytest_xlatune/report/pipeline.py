"""Say why MaxText refuses to split a model into the stages of a pipeline.

`pyconfig.py` of MaxText refuses layers that do not divide into stages, and microbatches that are
not a multiple of the stages. Pure.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from pytest_xlatune.model.cell import Axis, Cell, DeployedFile
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.text import to_integer
from pytest_xlatune.report._deployed_files import values_of

MICROBATCHES = "num_pipeline_microbatches"
LAYERS_PER_STAGE = "num_layers_per_pipeline_stage"
REPEATS = "num_pipeline_repeats"
PIPELINE_LAYERS = "pipeline_parallel_layers"
LAYERS = ("num_decoder_layers", "base_num_decoder_layers")
_MODEL = "model_name"
# 1 by default; with another scale MaxText computes the number of layers
_SCALE = "global_parameter_scale"
_UNSET = -1


def config_of(files: Iterable[DeployedFile]) -> dict[str, str]:
    """Return key -> scalar value, as text, for the top level of the trainer's configuration."""
    texts = [file.text for file in files if not file.is_shell]
    return {key: value for text in texts for key, value in values_of(text).items()}


def stages_of(cell: Cell) -> int:
    """Return the degree of the pipeline axis; 1 if there is no pipeline."""
    return dict(cell.parallelism.axes).get(Axis.PP.name, 1)


def refused_pipeline(cell: Cell, profile: Profile, config: Mapping[str, str]) -> str:
    """Return why MaxText refuses the pipeline of a profile; "" if it accepts it, or if unknown.

    The overrides of the profile replace those of the cell, and these replace `config`, the
    trainer's configuration. If these settings name a model and no number of layers, MaxText uses
    the model's number of layers, and not that of its base configuration.
    """
    overrides = {**cell.overrides, **profile.overrides}
    model = overrides.get(_MODEL, config.get(_MODEL, "")).replace("{model_tag}", cell.model_tag)
    model_layers = {} if overrides.keys() & {*LAYERS} else _layers_of(model)
    settings = {**config, **model_layers, **overrides}
    in_pipeline = config.get(PIPELINE_LAYERS, str(_UNSET))
    if PIPELINE_LAYERS not in overrides and to_integer(in_pipeline) != _UNSET:
        # the model's number of layers in the pipeline replaces only the default of this key
        settings[PIPELINE_LAYERS] = in_pipeline

    def number(key: str, default: int = _UNSET) -> int:
        value = to_integer(settings.get(key, str(default)))
        return _UNSET if value is None else value

    stages, microbatches = stages_of(cell), number(MICROBATCHES)
    if microbatches != _UNSET and (microbatches < 1 or microbatches % stages):
        return f"{microbatches} microbatches are not a multiple of {stages} stages"
    per_stage, layers = number(LAYERS_PER_STAGE, 1), number(PIPELINE_LAYERS)
    if number(REPEATS) != _UNSET or per_stage == _UNSET:
        return ""  # then MaxText derives nothing from the number of layers
    if layers == _UNSET and settings.get(_SCALE, "1") == "1":
        layers = next((number(key) for key in LAYERS if number(key) != _UNSET), _UNSET)
    if layers == _UNSET or (per_stage > 0 and layers % (stages * per_stage) == 0):
        return ""
    reason = f"{layers} layers do not divide into {stages} stages of {per_stage}"
    inside = layers - layers % (stages * per_stage) if per_stage > 0 else 0
    hint = f", which MaxText refuses: set {PIPELINE_LAYERS}={inside}" if inside > 0 else ""
    return f"{reason}{hint}"


def _layers_of(model_name: str) -> dict[str, str]:
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
