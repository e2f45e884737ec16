"""What a CVS file says, as plain values: leaves and their classes, open items, cells.

Pure values. A *leaf* is a scalar, or an empty object or list; each has one class, so that the
classes sum to the number of leaves.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Any

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.record import Json, dataclass
from pytest_xlatune.model.redact import without_secrets

Path = tuple[str | int, ...]

USED, DIFFERENT, IGNORED, COMMENT, UNKNOWN = "used", "different", "ignored", "comment", "unknown"
CLASSES = (USED, DIFFERENT, IGNORED, COMMENT, UNKNOWN)

SINGLE, DISTRIBUTED = "single", "distributed"

# what CVS gates; a metric may stand with or without the first word
PREFIX = "training."
TFLOPS, TOKENS = "tflops_per_sec_per_gpu", "tokens_per_sec_per_gpu"
TOKENS_TOTAL = "tokens_per_sec_total"
EFFICIENCY = "scaling_efficiency_pct"
# metrics that only the steps of a job's log tell; the slope of the loss is no metric of CVS by name
SLOPE = "loss_slope"
OF_LOGS = ("steps_to_target", "time_to_target_seconds", SLOPE)
# the metrics of CVS' trainings
METRICS = (
    *(TFLOPS, TOKENS, TOKENS_TOTAL, EFFICIENCY),
    *("step_time_seconds", "step_time_mean_ms", "step_time_p50_ms", "step_time_p95_ms"),
    *("final_loss", "loss_decreased", "eval_loss", "steps_to_target", "time_to_target_seconds"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One leaf: where it stands, its value, its class, and as what it is used or why not.

    `reaches` says whether its value has an effect in a run: what the launcher sets has none.
    """

    path: Path
    value: Json
    cls: str
    text: str
    reaches: bool = True

    @property
    def name(self) -> str:
        """The path as it is written: `container.env.NCCL_IB_HCA`."""
        return written(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenItem:
    """What the user must fill in before this file can run.

    Attributes:
        path: of the leaf, as it is written.
        sample: what the file offers, "" where it offers nothing.
        wanted: in a phrase.
    """

    path: str
    sample: str
    wanted: str

    @property
    def how(self) -> str:
        """What to type."""
        return f"--cvs-set '{self.path}={self.sample or 'VALUE'}'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A demand on one metric, as CVS writes it.

    Attributes:
        kind: `min`, `max`, `max_ms`, `min_tok_s`, `within`, `min_ratio` or `info`.
        value: the number; None where the file gives none.
        path: where it stands, for messages.
        tolerance_pct: of `within`.
        reference: of `min_ratio`: a number, or the name of another metric.
    """

    kind: str
    value: float | None
    path: str = ""
    tolerance_pct: float | None = None
    reference: float | str | None = None

    def to_json(self) -> Json:
        """Return what a threshold file holds."""
        more = {"tolerance_pct": self.tolerance_pct, "reference": self.reference}
        own = {name: each for name, each in more.items() if each is not None}
        return {"kind": self.kind, "value": self.value, **own}

    @property
    def words(self) -> str:
        """The demand as `show` prints it: `within 40 by 5 %`."""
        text = self.kind if self.value is None else f"{self.kind} {self.value:g}"
        text += f" by {self.tolerance_pct:g} %" if self.tolerance_pct is not None else ""
        return f"{text} of {self.reference}" if self.reference is not None else text


@dataclass(frozen=True, slots=True, kw_only=True)
class CvsCell:
    """One combination that the file runs: a sweep of it, or the file as it stands.

    Attributes:
        name: the sweep's name; `default` where the file has none.
        model, gpu: which of the file's.
        maxtext: every MaxText key that reaches the trainer, typed.
        steps: of a run.
        nodes: how many; None where the file does not say.
        gpus_per_node: devices of a node.
        parallelism: e.g. `FSDP=16`; "" where it takes the number of nodes, which is not known.
        thresholds: metric -> demand.
    """

    name: str
    model: str
    gpu: str
    maxtext: Mapping[str, Json]
    steps: int | None
    nodes: int | None
    gpus_per_node: int = 8
    parallelism: str = ""
    thresholds: Mapping[str, Threshold] = field(default_factory=dict)

    @property
    def per_device_batch_size(self) -> float | None:
        """Sequences per device and step."""
        found = self.maxtext.get("per_device_batch_size")
        return _plain(found) if isinstance(found, int | float) else None

    @property
    def max_target_length(self) -> int | None:
        """Tokens per sequence."""
        found = self.maxtext.get("max_target_length")
        return int(found) if isinstance(found, int | float) else None

    @property
    def precision(self) -> str:
        """The quantization, or else the type of the numbers."""
        return str(self.maxtext.get("quantization") or self.maxtext.get("dtype") or "bfloat16")

    @property
    def demands(self) -> dict[str, Json]:
        """The entry of a threshold file, which says nothing of what runs."""
        found = {name: each.to_json() for name, each in self.thresholds.items()}
        return {"name": self.name, "thresholds": found}

    def to_json(self) -> Json:
        """Return the entry of the document."""
        return {
            "name": self.name,
            "per_device_batch_size": self.per_device_batch_size,
            "max_target_length": self.max_target_length,
            "precision": self.precision,
            "parallelism": self.parallelism or None,
            "nodes": self.nodes,
            "thresholds": {name: each.to_json() for name, each in self.thresholds.items()},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """How the file starts its container; `dropped` is what has no place with us."""

    runtime: str = "docker"
    mounts: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    shm_size: str = ""
    args: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CvsFile:
    """All that one file says.

    Attributes:
        where: how messages call the file.
        generation: `1` or `4`.
        kind: `config`, `threshold` or `cluster`.
        cells: what runs, of a threshold file what it has thresholds of.
        xla_flags: name -> value.
        env: the environment that the file sets and that reaches the trainer.
        added: the environment that CVS adds to it in every run of this mode.
        scripts: the trainer's script; the first that exists is started.
        enforce: whether a threshold that is not met fails a run.
        threshold_name: of the file of thresholds, where it names one.
        baseline: of the file's `scaling_baseline`: tokens/s in total, and on how many nodes.
        patterns: name -> regular expression; a line of a job's log that matches is its failure.
        max_slope: what the slope of the loss must stay below; None where the file does not say.
        enforce_slope: whether a slope above it fails a run.
        target: the loss of `convergence`; None where the file does not say.
        nodes: of a cluster file: names of its nodes.
        username: of a cluster file.
        token_file: of Hugging Face; a path, never read here.
        data: the file's own objects, with what the user gave in their place.
    """

    where: str
    generation: str
    kind: str
    model: str = ""
    mode: str = SINGLE
    gpu: str = ""
    image: str = ""
    steps: int | None = None
    cells: tuple[CvsCell, ...] = ()
    xla_flags: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    added: Mapping[str, str] = field(default_factory=dict)
    scripts: tuple[str, ...] = ()
    container: Container = field(default_factory=Container)
    enforce: bool = True
    threshold_name: str = ""
    baseline: Mapping[str, Json] = field(default_factory=dict)
    patterns: Mapping[str, str] = field(default_factory=dict)
    max_slope: float | None = None
    enforce_slope: bool = False
    target: float | None = None
    nodes: tuple[str, ...] = ()
    username: str = ""
    token_file: str = ""
    leaves: tuple[Leaf, ...] = ()
    open_items: tuple[OpenItem, ...] = ()
    notes: tuple[str, ...] = ()
    data: Mapping[str, Json] = field(default_factory=dict)

    @property
    def accounting(self) -> dict[str, int]:
        """The leaves of each class; `leaves` is their sum."""
        found = dict.fromkeys(CLASSES, 0)
        for leaf in self.leaves:
            found[leaf.cls] += 1
        return {**found, "leaves": len(self.leaves)}

    def to_json(self) -> dict[str, Json]:
        """Return the document of `xlatune cvs show --json`."""
        return {
            "schema": 1,
            "generation": self.generation,
            "kind": self.kind,
            "model": self.model or None,
            "mode": self.mode if self.kind == "config" else None,
            "gpu": self.gpu or None,
            "image": self.image or None,
            "steps": self.steps,
            "cells": [
                each.to_json() if self.kind == "config" else each.demands for each in self.cells
            ],
            "xla_flags": [f"--{name}={value}" for name, value in self.xla_flags.items()],
            "env": dict(without_secrets(self.env)),
            "open_items": [each.path for each in self.open_items],
            "accounting": dict(self.accounting),
        }


def written(path: Path) -> str:
    """Write a path: keys joined by dots, a place in a list in brackets."""
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


def leaves_of(value: Json, path: Path = ()) -> Iterator[tuple[Path, Json]]:
    """Yield every leaf below a value: a scalar, an empty object, an empty list."""
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from leaves_of(each, (*path, key))
    elif isinstance(value, list) and value:
        for index, each in enumerate(value):
            yield from leaves_of(each, (*path, index))
    else:
        yield path, value


_DEEPEST = 40  # of nested objects; the files have 8


def objects_of(text: str, *, where: str) -> tuple[dict[str, Json], tuple[str, ...]]:
    """Return the objects of a JSON file, and notes of keys that stand twice.

    Raises:
        ConfigError: it is no JSON object; with line and column.
    """
    notes: list[str] = []

    def pairs(found: list[tuple[str, Json]]) -> dict[str, Json]:
        made = dict(found)
        # a published cluster file has one key three times
        if len(made) != len(found):
            names = [name for name, _ in found]
            twice = sorted({name for name in names if names.count(name) > 1})
            notes.append(f"{', '.join(twice)} stands more than once in one object: the last counts")
        return made

    def refuse(word: str) -> Json:
        raise ConfigError(f"{where}: {word} is no number of JSON; write a number or a text")

    try:
        data = json.loads(text, object_pairs_hook=pairs, parse_constant=refuse)
    # a published cluster file lacks a comma: line and column find it
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{where}, line {error.lineno}, column {error.colno}: this is not JSON: {error.msg}"
        ) from None
    except RecursionError:
        raise ConfigError(f"{where}: objects are nested too deeply to be a CVS file") from None
    except ValueError as error:  # a number of more digits than Python reads
        raise ConfigError(f"{where}: a number cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise ConfigError(
            f"{where}, line 1: this is {'a list' if isinstance(data, list) else repr(data)[:40]}, "
            "and a CVS file is an object {...}"
        )
    for path, value in _bounded(data, where):
        if isinstance(value, float) and value in (float("inf"), float("-inf")):
            raise ConfigError(f"{where}: {written(path)} is larger than any number")
    return data, tuple(notes)


def _bounded(data: Json, where: str) -> list[tuple[tuple[str | int, ...], Json]]:
    try:
        found = list(leaves_of(data))
    except RecursionError:
        found = [(("",) * (_DEEPEST + 1), None)]
    if any(len(path) > _DEEPEST for path, _ in found):
        raise ConfigError(f"{where}: objects are nested too deeply to be a CVS file")
    return found


# an item to fill in:  "eno0 <changeme>"   "<change>"   "X.X.X.X"
OPEN = re.compile(r"<change(?:me)?>|\bX\.X\.X\.X\b", re.IGNORECASE)


def is_open(value: object) -> bool:
    """Whether a text waits to be filled in."""
    return isinstance(value, str) and OPEN.search(value) is not None


def sample_of(value: str) -> str:
    """Return what stands in front of the mark: the file's own example."""
    found = OPEN.search(value)
    return value[: found.start()].strip() if found else value


_NUMBER = re.compile(r"[+-]?(?:\d[\d_]*(?:\.[\d_]*)?|\.\d[\d_]*)(?:[eE][+-]?\d+)?")
_DIGITS = 300  # more are no number that a file means


def typed(value: Json) -> Json:
    """Return a text as the number or truth that it spells: "500_000" is 500000, "False" is false.

    Others are returned as they are.
    """
    if isinstance(value, float):
        return _plain(value)
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    if len(text) < _DIGITS and _NUMBER.fullmatch(text):
        try:
            number = float(text.replace("_", ""))
        except ValueError:
            return text
        if re.fullmatch(r"[+-]?[\d_]+", text):
            return int(text.replace("_", ""))
        return _plain(number) if abs(number) != float("inf") else text
    return text


def _plain(number: float) -> float | int:
    """Return a whole number without its point: 2.0 is 2, in JSON and in a digest."""
    return int(number) if number == int(number) and abs(number) < 1e15 else number  # noqa: PLR2004


def setting_text(value: Json) -> str:
    """Write a value as an argument of MaxText or a variable: true, 500000, ["a","b"]."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


class Source:
    """The objects of one file, read with the path in every message."""

    def __init__(self, data: dict[str, Json], *, where: str) -> None:
        self.data = data
        self.where = where

    def wrong(self, path: Path, value: object, expected: str) -> ConfigError:
        """Return the error for a value of another kind than CVS takes there."""
        shown = f"{value!r:.60}" if not isinstance(value, dict | list) else type(value).__name__
        return ConfigError(f"{self.where}: {written(path)} is {shown}, expected {expected}")

    def get(self, *path: str | int) -> Any:
        """Return the value at a path; None where a key is missing."""
        found: Any = self.data
        for depth, key in enumerate(path):
            if found is None:
                return None
            if not isinstance(found, dict):
                raise self.wrong(path[:depth], found, "an object")
            found = found.get(str(key))
        return found

    def table(self, *path: str | int) -> dict[str, Any]:
        """Return an object, without its comments; {} where it is missing."""
        found = self.get(*path)
        if found is None:
            return {}
        if not isinstance(found, dict):
            raise self.wrong(path, found, "an object")
        return {key: each for key, each in found.items() if not is_comment(key)}

    def items(self, *path: str | int) -> list[Any]:
        """Return a list; [] where it is missing."""
        found = self.get(*path)
        if found is None:
            return []
        if not isinstance(found, list):
            raise self.wrong(path, found, "a list")
        return found

    def text(self, *path: str | int) -> str:
        """Return a text or a number as text; "" where it is missing."""
        found = self.get(*path)
        if found is None:
            return ""
        if isinstance(found, dict | list):
            raise self.wrong(path, found, "a text")
        return setting_text(found)

    def number(self, *path: str | int) -> float | None:
        """Return a number; None where it is missing or open."""
        return self.as_number(path, self.get(*path))

    def as_number(self, path: Path, value: Json) -> float | None:
        """Return a value as a number; None where it is missing or open."""
        if value is None or is_open(value) or value == "":
            return None
        found = typed(value)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise self.wrong(path, value, "a number")
        if abs(found) > 1e18:  # noqa: PLR2004 - a byte count of the largest machine is below
            raise self.wrong(path, value, "a number below 1e18")
        return found

    def whole(self, *path: str | int) -> int | None:
        """Return a whole number from 1; None where it is missing or open."""
        return self.as_whole(path, self.get(*path))

    def as_whole(self, path: Path, value: Json) -> int | None:
        """Return a value as a whole number from 1; None where it is missing or open."""
        found = self.as_number(path, value)
        if found is None:
            return None
        if found != int(found) or found < 1:
            raise self.wrong(path, value, "a whole number, at least 1")
        return int(found)

    def truth(self, *path: str | int, default: bool = False) -> bool:
        """Return a truth, which may be spelled "True" or "1"."""
        found = self.get(*path)
        if found is None or is_open(found) or found == "":
            return default
        value = typed(found)  # "1" is 1, and 1 equals True
        if isinstance(value, dict | list) or value not in (True, False):
            raise self.wrong(path, found, "true or false")
        return bool(value)


# a comment without "_" in front:  1__container_image   ex__nccl_ib_hca_list
_COMMENT = re.compile(r"_|_*ex_+|\d+__")


def is_comment(key: str, siblings: object = ()) -> bool:
    """Whether a key is a remark: it begins with `_`, `ex_`, `1__`, or ends in `__` and a key."""
    if _COMMENT.match(key):
        return True
    _, mark, rest = key.rpartition("__")
    return bool(mark) and isinstance(siblings, dict) and rest in siblings and rest != key
