"""The bubble of a pipeline: the share of its iterations in which a stage is idle.

No XLA flag changes it. The shape of the pipeline does: stages, microbatches, repeats. This module
repeats how MaxText derives that shape from its settings (`pyconfig.py`: repeats and microbatches
follow from the rest; `layers/pipeline.py`: M V iterations that work, d (S-1) in the bubble), and
shows the predicted change beside the measured one. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pytest_xlatune.model.cell import Axis, Cell, DeployedFile
from pytest_xlatune.model.profile import BASELINE, Profile
from pytest_xlatune.model.record import Record
from pytest_xlatune.model.result import Conclusion
from pytest_xlatune.model.text import ABSENT, points, size
from pytest_xlatune.report._trainer_config import values_of
from pytest_xlatune.report.document import (
    Section,
    Table,
    Text,
    columns,
    literal,
    plain,
    section,
)
from pytest_xlatune.report.language import ENGLISH, Say
from pytest_xlatune.report.lines import words

MICROBATCHES = "num_pipeline_microbatches"
LAYERS_PER_STAGE = "num_layers_per_pipeline_stage"
REPEATS = "num_pipeline_repeats"
PIPELINE_LAYERS = "pipeline_parallel_layers"
DELAY = "pipeline_delay_activation_forwarding"
LAYERS = ("num_decoder_layers", "base_num_decoder_layers")
SHAPING = (MICROBATCHES, LAYERS_PER_STAGE, REPEATS, PIPELINE_LAYERS, DELAY, *LAYERS)
_SCALE = "global_parameter_scale"  # of 1; another one changes the layers by rules of its own
_UNSET = -1


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
    """Why the bubble of a profile is unknown."""

    reason: str


def config_of(files: Iterable[DeployedFile]) -> dict[str, str]:
    """Return the scalars at the top of the trainer's configuration, as text."""
    texts = [file.text for file in files if not file.is_shell]
    return {key: value for text in texts for key, value in values_of(text).items()}


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
        return NoPipeline(reason=f"{wrong[0]} is not a number")
    delay = 2 if said.get(DELAY, "false").lower() == "true" else 1
    repeats = _repeats(said, stages)
    if isinstance(repeats, NoPipeline):
        return repeats
    microbatches = _number(said, MICROBATCHES)
    if microbatches == _UNSET:
        microbatches = delay * stages
    if microbatches < 1 or microbatches % stages:
        reason = f"{microbatches} microbatches are not a multiple of {stages} stages"
        return NoPipeline(reason=reason)
    return Pipeline(stages=stages, microbatches=microbatches, repeats=repeats, delay=delay)


def _repeats(said: Mapping[str, str], stages: int) -> int | NoPipeline:
    repeats = _number(said, REPEATS)
    per_stage = _number(said, LAYERS_PER_STAGE, otherwise=1)
    if repeats != _UNSET:
        return repeats if repeats > 0 else NoPipeline(reason=f"{REPEATS} is {repeats}")
    if per_stage == _UNSET:
        return 1  # a stage holds all its layers at once
    layers = _number(said, PIPELINE_LAYERS)
    if layers == _UNSET and said.get(_SCALE, "1") != "1":
        return NoPipeline(reason=f"{_SCALE} is {said[_SCALE]}: name {REPEATS} in the overrides")
    for key in LAYERS:
        layers = layers if layers != _UNSET else _number(said, key)
    if layers == _UNSET:
        return NoPipeline(
            reason=f"the number of layers is unknown: set {LAYERS[1]} or {REPEATS} as an override"
        )
    if per_stage < 1 or layers % (stages * per_stage):
        reason = f"{layers} layers do not divide into {stages} stages of {per_stage}"
        return NoPipeline(reason=reason)
    return layers // (stages * per_stage)


def _is_odd(key: str, text: str) -> bool:
    return key != DELAY and re.fullmatch(r"-?[0-9]+", text) is None


def _number(said: Mapping[str, str], key: str, *, otherwise: int = _UNSET) -> int:
    return int(said[key]) if key in said else otherwise


TITLE = "Pipeline bubble"
_COLUMNS = columns("~Profile", ">S", ">M", ">V", ">bubble", ">predicted delta %")
_MEASURED = columns(">measured delta %", "~verdict")


def bubbles(
    cell: Cell,
    profiles: Sequence[Profile],
    *,
    files: Sequence[DeployedFile] = (),
    conclusion: Conclusion | None = None,
    say: Say = ENGLISH,
) -> Section | None:
    """Return the section; None where no profile changes the shape of a pipeline.

    Args:
        cell: whose pipeline.
        profiles: those that change its shape are shown.
        files: deployed files, with the trainer's configuration where it is known.
        conclusion: the verdicts; None before a sweep.
        say: the language of the prose.
    """
    shaping = [each for each in profiles if each.overrides.keys() & set(SHAPING)]
    config = config_of(files)
    base = pipeline_of(cell, BASELINE, config)
    found = [(each, pipeline_of(cell, each, config)) for each in shaping]
    if not found or stages_of(cell) == 1:
        return None
    shown = _COLUMNS if conclusion is None else (*_COLUMNS, *_MEASURED)
    rows = [_row(each, its, base, conclusion) for each, its in ((BASELINE, base), *found)]
    whys = dict.fromkeys(
        say("{profile}: {reason}.", profile=plain(each.id), reason=plain(its.reason))
        for each, its in ((BASELINE, base), *found)
        if isinstance(its, NoPipeline)
    )
    texts = (
        Text(text=each)
        for each in (
            say(
                "S stages, M microbatches and V repeats leave a bubble of (S-1)/(M V + "
                "S-1), twice the S-1 where activations are forwarded with a delay. The "
                "predicted delta counts the bubble alone; smaller microbatches have "
                "costs of their own."
            ),
            *whys,
        )
    )
    return section(TITLE, Table(columns=shown, rows=tuple(rows)), *texts)


def _row(
    profile: Profile,
    its: Pipeline | NoPipeline,
    base: Pipeline | NoPipeline,
    conclusion: Conclusion | None,
) -> tuple[str, ...]:
    shape = [ABSENT] * 5
    if isinstance(its, Pipeline):
        is_told = isinstance(base, Pipeline) and profile is not BASELINE
        predicted = its.over(base) if is_told and isinstance(base, Pipeline) else None
        shape = [
            str(its.stages),
            str(its.microbatches),
            str(its.repeats),
            size(its.bubble),
            points(predicted),
        ]
    if conclusion is None:
        return literal(profile.id), *shape
    verdict = conclusion.verdict(profile.id)
    is_measured = verdict is not None and profile is not BASELINE
    measured = points(verdict.delta) if verdict and is_measured else ABSENT
    said = words(verdict) if verdict and is_measured else ABSENT
    return literal(profile.id), *shape, measured, said
