"""What a CVS configuration says, as plain values: the same of both generations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_xlatune.guests.cvs.keys import CLASSES, Leaf
from pytest_xlatune.guests.cvs.source import plain
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.record import Json
from pytest_xlatune.model.redact import without_secrets

SINGLE, DISTRIBUTED = "single", "distributed"
NO_CONTAINER = "none"  # the runtime of a run without a container
# what CVS gates; a metric may stand with or without the first word
PREFIX = "training."
TFLOPS, TOKENS = "tflops_per_sec_per_gpu", "tokens_per_sec_per_gpu"


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
    def words(self) -> str:
        """The wish, and the option that meets it."""
        sample = f" (the file's sample: {self.sample})" if self.sample else ""
        typed = f"--cvs-set '{self.path}={self.sample or 'VALUE'}'"
        return f"{self.path}: {self.wanted}{sample}: {typed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Threshold:
    """A demand on one metric: `min`, `max`, `max_ms`, or `info`, which is recorded only."""

    kind: str
    value: float | None

    def to_json(self) -> Json:
        """Return what a threshold file holds."""
        return {"kind": self.kind, "value": self.value}

    @property
    def words(self) -> str:
        """The demand as `show` prints it: `min 380`."""
        return self.kind if self.value is None else f"{self.kind} {self.value:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CvsCell:
    """One combination that the file runs: a sweep of it, or the file as it stands.

    Attributes:
        name: the sweep's name; `default` where the file has none.
        model, gpu: which of the file's.
        maxtext: every MaxText key that reaches the trainer, typed.
        steps: of a run; None where the file does not say.
        nodes: how many; None where neither the file nor the user says.
        gpus_per_node: devices of a node.
        parallelism: e.g. `FSDP=16`; "" where it takes the number of nodes, which is not known.
        xla_flags: name -> value.
        thresholds: metric -> demand.
    """

    name: str
    model: str
    gpu: str
    maxtext: Mapping[str, Json]
    steps: int | None
    nodes: int | None
    gpus_per_node: int
    parallelism: str
    xla_flags: Mapping[str, str]
    thresholds: Mapping[str, Threshold]

    @property
    def per_device_batch_size(self) -> float | None:
        """Sequences per device and step."""
        size = self.maxtext.get("per_device_batch_size")
        return plain(size) if isinstance(size, int | float) else None

    @property
    def max_target_length(self) -> int | None:
        """Tokens per sequence."""
        length = self.maxtext.get("max_target_length")
        return int(length) if isinstance(length, int | float) else None

    @property
    def precision(self) -> str:
        """The quantization, or else the type of the numbers."""
        return str(self.maxtext.get("quantization") or self.maxtext.get("dtype") or "bfloat16")

    def to_json(self) -> Json:
        """Return the entry of the document."""
        return {
            "name": self.name,
            "per_device_batch_size": self.per_device_batch_size,
            "max_target_length": self.max_target_length,
            "precision": self.precision,
            "parallelism": self.parallelism or None,
            "nodes": self.nodes,
            "steps": self.steps,
            "xla_flags": [f"--{name}={value}" for name, value in self.xla_flags.items()],
            "thresholds": {
                name: threshold.to_json() for name, threshold in self.thresholds.items()
            },
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """How the file starts its container."""

    runtime: str
    mounts: tuple[str, ...]
    devices: tuple[str, ...]
    shm_size: str
    args: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CvsFile:
    """All that one configuration says.

    Attributes:
        where: how messages call the file.
        generation: `1` or `4`.
        cells: what runs; one at least.
        env: the environment that the file sets and that reaches the trainer.
        added: the environment that CVS adds to it in every run of this mode.
        scripts: the trainer's script; the first that exists is started.
        enforce: whether a threshold that is not met fails a run.
        threshold_name: of the file of thresholds, where it names one.
        token_file: of Hugging Face; a path, never read here.
        data: the file's own objects, with what the user gave in their place.
    """

    where: str
    generation: str
    mode: str
    image: str
    cells: tuple[CvsCell, ...]
    env: Mapping[str, str]
    added: Mapping[str, str]
    scripts: tuple[str, ...]
    container: Container
    enforce: bool = True
    threshold_name: str = ""
    token_file: str = ""
    leaves: tuple[Leaf, ...] = ()
    open_items: tuple[OpenItem, ...] = ()
    notes: tuple[str, ...] = ()
    data: Mapping[str, Json] = field(default_factory=dict)

    def refuse_open(self) -> None:
        """Refuse a file in which something is open.

        Raises:
            ConfigError: it says every item, and what fills it in.
        """
        if self.open_items:
            lines = "".join(f"\n  {item.words}" for item in self.open_items)
            raise ConfigError(
                f"{self.where}: {len(self.open_items)} open items, fill them in:{lines}"
            )

    @property
    def accounting(self) -> dict[str, int]:
        """The leaves of each class."""
        counts = dict.fromkeys(CLASSES, 0)
        for leaf in self.leaves:
            counts[leaf.cls] += 1
        return counts

    def to_json(self) -> dict[str, Json]:
        """Return the document of `xlatune cvs show --json`."""
        return {
            "schema": 1,
            "generation": self.generation,
            "model": self.cells[0].model or None,
            "mode": self.mode,
            "gpu": self.cells[0].gpu or None,
            "image": self.image or None,
            "cells": [cell.to_json() for cell in self.cells],
            "env": dict(without_secrets(self.env)),
            "open_items": [item.path for item in self.open_items],
            "accounting": {**self.accounting, "leaves": len(self.leaves)},
        }
