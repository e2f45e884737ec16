"""Everything that is held fixed: cell, parallelism, protocol, and the files that deploy a cell.

Pure values. A cell is measured on one node list with one protocol. Whatever would make two trials
incomparable is part of the cell, and so of its digest. The cells of one study form a family, which
is named by what no arm varies: another arm (a batch size, a node list, a commit) belongs to the
same ledger and folder. A tuning study has one cell, which is its whole family.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from pathlib import Path, PurePosixPath

import msgspec
from msgspec.structs import replace

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.metric import METRICS, TGS, Metric
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.record import Json, Record, digest, without_empty
from pytest_xlatune.model.redact import (
    command_text_without_secrets,
    secrets_of,
    secrets_of_command,
    without_secrets,
)
from pytest_xlatune.model.written import Written, check_least


class Axis(StrEnum):
    """A parallelism axis; the value is the word in MaxText's `{dcn,ici}_<word>_parallelism`."""

    DP = "data"
    FSDP = "fsdp"
    TP = "tensor"
    PP = "pipeline"
    EP = "expert"
    CP = "context"
    SP = "sequence"


# Where an axis usually lies: between the slices (dcn) or inside one (ici). A CPU has no slices.
AXIS_PREFIX: Mapping[str, str] = {
    **dict.fromkeys(("DP", "FSDP", "PP"), "dcn"),
    **dict.fromkeys(("TP", "EP", "CP", "SP"), "ici"),
}


def axis_variable(axis: str) -> str:
    """Return the variable that has the degree of an axis in its usual place: MAXTEXT_DCN_PP."""
    return f"MAXTEXT_{AXIS_PREFIX[axis].upper()}_{axis}"


# variable with the config tag, by which an env file with several recipes chooses one
CONFIG_TAG_VARIABLE = "MAXTEXT_CONFIG_TAG"


class Parallelism(Record, frozen=True, kw_only=True):
    """The axes of a cell with their degrees, in the order given, e.g. PP=2,FSDP=4."""

    axes: tuple[tuple[str, int], ...]

    @classmethod
    def parse(cls, text: str) -> Parallelism:
        """Parse `PP=8` or `PP=2,FSDP=4`.

        Raises:
            ConfigError: an axis is unknown or given twice, or a degree is no positive integer.
        """
        axes: list[tuple[str, int]] = []
        for part in text.split(","):
            # one axis:  FSDP=8
            match = re.fullmatch(r"\s*([A-Za-z]+)\s*=\s*([0-9]{1,9})\s*", part)
            if match is None or int(match.group(2)) < 1:
                raise ConfigError(
                    f"parallelism {text!r}: found {part.strip()!r}, expected AXIS=DEGREE such as "
                    "FSDP=8 or PP=2,FSDP=4"
                )
            name = match.group(1).upper()
            if name not in Axis.__members__:
                raise ConfigError.unknown(
                    "axis", name, valid=Axis.__members__, where=f"parallelism {text!r}"
                )
            if name in dict(axes):
                raise ConfigError(f"parallelism {text!r}: axis {name} is given twice")
            axes.append((name, int(match.group(2))))
        return cls(axes=tuple(axes))

    def __str__(self) -> str:
        return ",".join(f"{name}={degree}" for name, degree in self.axes)

    @property
    def variables(self) -> dict[str, str]:
        """The variables that tell an env file the axes, e.g. MAXTEXT_DCN_PP=8.

        The `if` lines of a recommended env file read them; no trainer does.
        """
        return {axis_variable(axis): str(degree) for axis, degree in self.axes}


_NO_METRIC = "none"  # `Protocol.metric` of trials without a score
# the smallest value of each number of a protocol
_LEAST = {
    **dict.fromkeys(("steps", "min_steps", "deadline_s"), 1),
    **dict.fromkeys(("first_step", "skip_first_steps", "profiler_steps", "eval_interval"), 0),
}


class Protocol(Written, frozen=True, kw_only=True):
    """How a trial is run and scored.

    Attributes:
        steps: number of steps of a trial; ids are 0 .. steps-1.
        first_step: first step id of the window.
        min_steps: number of usable steps below which there is no score.
        profiler: MaxText's name of a profiler, e.g. "xplane"; "" for none.
        skip_first_steps: id of the first profiled step, if there is a profiler.
        profiler_steps: number of profiled steps, if there is a profiler.
        eval_interval: number of steps between evaluations; 0 means never.
        dataset_type: "synthetic" in every tuning study.
        deadline_s: seconds of wall time after which a trial is killed.
        metric: the scored figure. "tgs": Tokens/s/device. "busbw": the bus bandwidth in GB/s that a
            test of collectives prints for one size. "none": the trial has no score.
        dump: whether XLA's dump of the compiled program is kept.
        step_pattern: the name or pattern of the trainer's step lines; "" for MaxText's.
        autotune_cache: absolute path of a folder that all nodes see. It keeps the GPU kernels that
            the cell's first trial chooses, and later trials use them; "": each trial chooses.
    """

    steps: int = 15
    # MaxText's first steps print e.g. 16896, 2759 and 204147 tokens a second where 7800 is true
    first_step: int = 5
    min_steps: int = 6
    profiler: str = ""
    skip_first_steps: int = 10
    profiler_steps: int = 3
    eval_interval: int = 0
    dataset_type: str = "synthetic"
    deadline_s: int = 2700
    metric: str = "tgs"
    dump: bool = False
    step_pattern: str = ""
    autotune_cache: str = ""

    def __post_init__(self) -> None:
        path = self.autotune_cache
        if path and not PurePosixPath(path).is_absolute():
            raise ConfigError(
                f"protocol: autotune_cache is {path!r}, expected an absolute path that every node "
                "sees: a trial runs in a folder of its own"
            )
        check_least(self, what="protocol", least=_LEAST)
        if self.metric not in (*METRICS, _NO_METRIC):
            raise ConfigError(
                f"protocol: metric is {self.metric!r}, which cannot be scored; expected 'tgs' "
                "(Tokens/s/device), 'busbw' (bus bandwidth, GB/s) or 'none' (the trial runs and "
                "has no score)"
            )

    @property
    def identity(self) -> Mapping[str, Json]:
        """The fields that comparable trials must share: no deadline and no pattern."""
        return _identity(self)

    def with_labels_of(self, other: Protocol) -> Protocol:
        """Return this protocol with the deadline and the step pattern of another one.

        They are no part of its identity.
        """
        return replace(self, deadline_s=other.deadline_s, step_pattern=other.step_pattern)

    @property
    def is_scored(self) -> bool:
        """Whether a trial has a score."""
        return self.metric != _NO_METRIC

    @property
    def scored_by(self) -> Metric:
        """The figure that a trial is scored by; TGS also if it has no score."""
        return METRICS.get(self.metric, TGS)

    @property
    def needs_window(self) -> bool:
        """Whether a trial counts only with `min_steps` steps in the window."""
        return self.scored_by is TGS

    @property
    def last_step(self) -> int:
        """The id of the last step of a complete trial."""
        return self.steps - 1

    def check_window(self) -> None:
        """Raise ConfigError if no trial of this protocol can have a score.

        Raises:
            ConfigError: there are fewer than `min_steps` steps from `first_step` on.
        """
        usable = self.steps - self.first_step
        if self.needs_window and usable < self.min_steps:
            raise ConfigError(
                f"protocol: of {self.steps} steps {max(usable, 0)} have an id from "
                f"{self.first_step} on, and a score needs {self.min_steps} of them; set "
                f"steps={self.first_step + self.min_steps} or more"
            )


@functools.lru_cache(maxsize=64)  # all trials of a sweep share one protocol
def _identity(protocol: Protocol) -> Mapping[str, Json]:
    fields = protocol.to_json()
    for name in ("deadline_s", "step_pattern"):
        del fields[name]
    if protocol.metric == TGS.name:
        del fields["metric"]
    return without_empty(fields, "dump", "autotune_cache")


def check_model_tag(tag: str) -> None:
    """Raise ConfigError if a text is no model tag.

    Raises:
        ConfigError: it contains a blank or another character that is not allowed.
    """
    # a model tag:  llama3.1-405b
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", tag):
        raise ConfigError(f"model tag {tag!r}: expected letters, digits and . _ + -")


# not slotted, because its digest is cached
class Cell(Record, frozen=True, kw_only=True, dict=True, gc=True):
    """Everything that is held fixed while profiles are compared.

    Attributes:
        model_tag: e.g. "deepseek3-671b".
        parallelism: the axes and degrees.
        config_tag: one of several comparable configurations of the model; "" for the primary one.
        per_device_batch_size: sequences per device and step; None for the model's default.
        max_target_length: tokens per sequence; None for the model's default.
        nodelist: the pinned nodes, expanded; () for this machine.
        image: container image or name of the environment; "" for none.
        launcher: how the trainer is started, as the launcher describes itself.
        deployed: the deployed environment variables, including XLA_FLAGS.
        overrides: `key=value` for the launcher that belong to the cell (model config, config tag).
        devices: total number of devices; 0 if unknown.
        protocol: how each trial is run and scored.
        code: commit hash or digest of the trained code; "" if it is not part of the identity.
        sourced: names and values of variables that the launcher's env files export on top of
            `deployed`, without secrets and without values that a command computes; () if this
            machine does not have the files.
    """

    model_tag: str
    parallelism: Parallelism
    config_tag: str = ""
    per_device_batch_size: float | None = None
    max_target_length: int | None = None
    nodelist: tuple[str, ...] = ()
    image: str = ""
    launcher: str = "command"
    deployed: dict[str, str] = msgspec.field(default_factory=dict)
    overrides: dict[str, str] = msgspec.field(default_factory=dict)
    devices: int = 0
    protocol: Protocol = msgspec.field(default_factory=Protocol)
    code: str = ""
    sourced: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        check_model_tag(self.model_tag)
        if self.per_device_batch_size is not None:
            if not 0 < self.per_device_batch_size < math.inf:
                raise ConfigError(
                    f"cell: per_device_batch_size is {self.per_device_batch_size}, expected a "
                    "number above 0"
                )
            # 7 and 7.0 are the same cell, but not the same JSON text
            msgspec.structs.force_setattr(
                self, "per_device_batch_size", float(self.per_device_batch_size)
            )
        axes = dict(self.parallelism.axes)
        size = math.prod(axes.values())
        # `PP=8` alone means 8 slices; the model's configuration shards within a slice
        counts_slices = axes.keys() == {"PP"} and self.devices % size == 0
        if self.devices and size != self.devices and not counts_slices:
            raise ConfigError(
                f"parallelism {self.parallelism}: the axes multiply to {size}, but the cell has "
                f"{self.devices} devices; change a degree or the devices"
            )

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Cell({self.label!r}, digest={self.digest!r})"  # pytest shows it when a test fails

    def to_json(self) -> dict[str, Json]:
        """Return the record as it is stored: with secrets hidden, also in the identity."""
        return {
            **Record.to_json(self),
            "launcher": command_text_without_secrets(self.launcher),
            "deployed": without_secrets(self.deployed),
            "overrides": without_secrets(self.overrides),
        }

    @cached_property
    def digest(self) -> str:
        """The identity of the cell: 16 hexadecimal digits."""
        return digest(self._identity)

    @property
    def _identity(self) -> dict[str, Json]:
        return without_empty(self.to_json(), "code", "sourced") | {
            "protocol": self.protocol.identity
        }

    @property
    def guard_variables(self) -> dict[str, str]:
        """The variables that the `if` lines of a recommended env file read; no trainer does."""
        tag = {CONFIG_TAG_VARIABLE: self.config_tag} if self.config_tag else {}
        return {**self.parallelism.variables, **tag}

    @property
    def environment(self) -> dict[str, str]:
        """All deployed variables that are known, including those of env files."""
        return {**self.deployed, **dict(self.sourced)}

    @property
    def label(self) -> str:
        """The cell in one line, e.g. `deepseek3-671b PP=8 sparse pdbs=7`."""
        return f"{self.model_tag} {self.variant}"

    @property
    def variant(self) -> str:
        """The label without the model, for a document about one model."""
        parts = (str(self.parallelism), self.config_tag, self.batch_text)
        return " ".join(part for part in parts if part)

    @property
    def batch_text(self) -> str:
        """The batch size in a label, e.g. `pdbs=7`; "" for the model's default."""
        size = self.per_device_batch_size
        return "" if size is None else f"pdbs={size:g}"

    @property
    def tokens_per_device_step(self) -> float | None:
        """Tokens of a device in a step, which is TGS x seconds of a step; None if unknown."""
        if self.per_device_batch_size is None or self.max_target_length is None:
            return None
        return self.per_device_batch_size * self.max_target_length


class DeployedFile(Record, frozen=True, kw_only=True):
    """A file that deploys a cell, as it was when a sweep began. A recipe is written as its patch.

    Attributes:
        path: relative to its repository, e.g. "configs/llama3.1-405b.env.sh".
        text: the text, with secrets hidden; "" if there is no such file yet.
        is_new: whether there is no such file yet.
        is_shell: whether a shell sources the file; otherwise it is the trainer's configuration.
    """

    path: str
    text: str = ""
    is_new: bool = False
    is_shell: bool = True


def secrets_in(cell: Cell, profiles: Sequence[Profile]) -> frozenset[str]:
    """Return the values that no text about a cell may show."""
    settings = (table for profile in profiles for table in (profile.env, profile.overrides))
    in_command = secrets_of_command(cell.launcher)
    return secrets_of(cell.deployed, cell.overrides, *settings) | in_command


def varied_fields(cells: Sequence[Cell]) -> frozenset[str]:
    """Return the names of the fields in which the cells differ."""
    first, *others = (cell.to_json() for cell in cells)
    return frozenset(name for name in first for other in others if other.get(name) != first[name])


def shared_label(cells: Sequence[Cell]) -> str:
    """Return the label of a study's cells, without the batch size if it varies."""
    sizes = {cell.per_device_batch_size for cell in cells}
    first = cells[0] if len(sizes) == 1 else replace(cells[0], per_device_batch_size=None)
    return first.label


def folder_of_family(sweep: str, cells: Sequence[Cell]) -> Path:
    """Return the folder of a study below the work directory, whatever nodes it runs on.

    Its name has only what no arm varies, and no nodes. So a changed node list leads to the same
    ledger, which refuses it, and is not silently measured in a new folder.
    """
    cell, varied = cells[0], varied_fields(cells)
    parts = {
        "model_tag": cell.model_tag,
        "parallelism": str(cell.parallelism),
        "config_tag": cell.config_tag,
        "per_device_batch_size": cell.batch_text,
    }
    label = " ".join(text for name, text in parts.items() if text and name not in varied)
    identity = {**cell._identity, "nodelist": []}  # noqa: SLF001 - of this module
    common = {name: value for name, value in identity.items() if name not in varied}
    # a label is made safe for a folder:  deepseek3-671b PP=2,FSDP=4 pdbs=7
    safe = re.sub(r"[^A-Za-z0-9.=_-]+", "-", label)
    return Path(sweep) / f"{safe}-{digest(common, length=8)}"


def family_differences(before: Sequence[Cell], after: Sequence[Cell]) -> str:
    """Return how two families differ, e.g. `image was 'a', is 'b'`; "" if they are the same.

    For two single cells it compares all of their identity, including the node list.
    """
    varied = varied_fields(before) | varied_fields(after)
    old, new = (
        {**cells[0].to_json(), "protocol": cells[0].protocol.identity} for cells in (before, after)
    )
    return "; ".join(
        f"{name} was {old[name]!r}, is {new[name]!r}"
        for name in old
        if name not in varied and old[name] != new[name]
    )
