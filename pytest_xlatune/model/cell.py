"""All that is held fixed: cell, parallelism, protocol, the files that deploy a cell.

Pure values. A cell is measured on one node list with one protocol; anything that would make two
trials incomparable is part of the cell, and so of its digest. The cells of one study are a family:
what no arm varies, so that another arm (a batch size, a node list, a commit) goes into the same
ledger and its folder. In tuning there is one cell, and its family is all of it.
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
from pytest_xlatune.model.record import Json, Record, digest, used
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
    """Return the variable of an axis, named by where it usually lies: MAXTEXT_DCN_PP."""
    return f"MAXTEXT_{AXIS_PREFIX[axis].upper()}_{axis}"


# it names the configuration of a model, where an env file deploys a recipe for each of several
CONFIG_TAG_VARIABLE = "MAXTEXT_CONFIG_TAG"


class Parallelism(Record, frozen=True, kw_only=True):
    """The axes of a cell and their degrees, in the order written, e.g. PP=2,FSDP=4."""

    axes: tuple[tuple[str, int], ...]

    @classmethod
    def parse(cls, text: str) -> Parallelism:
        """Parse `PP=8` or `PP=2,FSDP=4`.

        Raises:
            ConfigError: an unknown axis, a degree that is no positive integer, an axis twice.
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
        """The variables by which an env file can ask for the axes, e.g. MAXTEXT_DCN_PP=8.

        No trainer reads them: the guards of recommended deployments do.
        """
        return {axis_variable(axis): str(degree) for axis, degree in self.axes}


_FIELD, _NO_METRIC = "field", "none"  # words of Protocol.metric
_HIGHER, _LOWER = "higher", "lower"
# the numbers of a protocol, and the least value that each may have
_LEAST = {
    **dict.fromkeys(("steps", "min_steps", "deadline_s"), 1),
    **dict.fromkeys(("first_step", "skip_first_steps", "profiler_steps", "eval_interval"), 0),
}


class Protocol(Written, frozen=True, kw_only=True):
    """How a trial is run and scored.

    Attributes:
        steps: steps of a trial, ids 0 .. steps-1.
        first_step: first step id of the window.
        min_steps: usable steps below which there is no score.
        profiler: "" or MaxText's profiler name, e.g. "xplane".
        skip_first_steps: first profiled step id, when a profiler is on.
        profiler_steps: profiled steps, when a profiler is on.
        eval_interval: an eval after every so many steps; 0 is never.
        dataset_type: "synthetic" in every tuning study.
        deadline_s: wall seconds after which a trial is killed.
        metric: the scored figure: "tgs" (Tokens/s/device); "busbw", the bus bandwidth in GB/s that
            a test of collectives prints for one size; "field:NAME", a number that the log prints
            as `NAME: 12.3`: the median over the steps of the window, or of all such lines where
            none is a step's; "none" for a trial without a score.
        metric_is_better: "higher" or "lower", for a field of your own only.
        metric_unit: how documents write the unit of a field of your own.
        dump: whether XLA's dump of the compiled program is kept.
        step_pattern: how the trainer prints a step, by name or as a pattern; "" is as MaxText does.
        autotune_cache: absolute folder, seen by the nodes, by which every trial of a cell runs the
            GPU kernels that its first one chose; "" lets each trial choose its own.
        compile_cache: absolute folder, seen by the nodes, of the programs that the first trial of
            an arm on its nodes compiles and the later ones load; "" lets each trial compile.
    """

    steps: int = 15
    # MaxText's first steps tell 16896, 2759 and 204147 tokens a second where 7800 is true
    first_step: int = 5
    min_steps: int = 6
    profiler: str = ""
    skip_first_steps: int = 10
    profiler_steps: int = 3
    eval_interval: int = 0
    dataset_type: str = "synthetic"
    deadline_s: int = 2700
    metric: str = "tgs"
    metric_is_better: str = ""
    metric_unit: str = ""
    dump: bool = False
    step_pattern: str = ""
    autotune_cache: str = ""
    compile_cache: str = ""

    def __post_init__(self) -> None:
        for name in ("autotune_cache", "compile_cache"):
            path = getattr(self, name)
            if path and not PurePosixPath(path).is_absolute():
                raise ConfigError(
                    f"protocol: {name} is {path!r}, expected an absolute path that every node "
                    "sees: a trial runs in a folder of its own"
                )
        if self.compile_cache and not self.autotune_cache:
            raise ConfigError(
                "protocol: compile_cache is set and autotune_cache is not. A program that is kept "
                "has the GPU kernels that its one compilation happened to choose, so arms would "
                "differ by chance. Set autotune_cache too"
            )
        check_least(self, what="protocol", least=_LEAST)
        self._check_metric()

    def _check_metric(self) -> None:
        kind, _, field_name = self.metric.partition(":")
        is_field = kind == _FIELD and bool(field_name)
        if not is_field and self.metric not in (*METRICS, _NO_METRIC):
            raise ConfigError(
                f"protocol: metric is {self.metric!r}, which cannot be scored; expected 'tgs' "
                "(Tokens/s/device), 'busbw' (bus bandwidth, GB/s), 'field:NAME' (a number in the "
                "log) or 'none' (the trial runs and has no score)"
            )
        if is_field and self.metric_is_better not in (_HIGHER, _LOWER):
            raise ConfigError(
                f"protocol: metric is {self.metric!r} and metric_is_better is "
                f"{self.metric_is_better!r}; say which is better, 'higher' or 'lower'"
            )
        if not is_field and (self.metric_is_better or self.metric_unit):
            raise ConfigError(
                "protocol: metric_is_better and metric_unit belong to 'field:NAME'. The metric is "
                f"{self.metric!r}, of which both are known: leave them out"
            )

    @property
    def identity(self) -> Mapping[str, Json]:
        """What two trials must share to be comparable: all but how we wait and read, and words."""
        return _identity(self)

    def waiting_as(self, other: Protocol) -> Protocol:
        """Return this one with how another waits and reads, which is no part of its identity."""
        unit = other.metric_unit if other.metric == self.metric else self.metric_unit
        return replace(
            self,
            deadline_s=other.deadline_s,
            metric_unit=unit,
            step_pattern=other.step_pattern,
        )

    @property
    def is_scored(self) -> bool:
        """Whether a trial has a score at all."""
        return self.metric != _NO_METRIC

    @property
    def scored_by(self) -> Metric:
        """The figure that a trial is scored by, where it has a score."""
        kind, _, field_name = self.metric.partition(":")
        if kind != _FIELD:
            return METRICS.get(self.metric, TGS)
        return Metric(
            name=self.metric,
            title=field_name,
            unit=self.metric_unit,
            is_lower_better=self.metric_is_better == _LOWER,
            field=field_name,
        )

    @property
    def needs_window(self) -> bool:
        """Whether a trial without `min_steps` steps in the window is useless."""
        return self.scored_by is TGS

    @property
    def last_step(self) -> int:
        """The id of the last step of a complete trial."""
        return self.steps - 1

    def check_window(self) -> None:
        """Refuse a protocol under which no trial can have a score.

        Raises:
            ConfigError: fewer steps from `first_step` to the last than `min_steps`.
        """
        usable = self.steps - self.first_step
        if self.needs_window and usable < self.min_steps:
            raise ConfigError(
                f"protocol: {self.steps} steps leave {max(usable, 0)} to score, those from id "
                f"{self.first_step} on, and a score needs {self.min_steps}; ask for "
                f"steps={self.first_step + self.min_steps} or more"
            )


@functools.lru_cache(maxsize=64)  # all trials of a sweep have one
def _identity(protocol: Protocol) -> Mapping[str, Json]:
    fields = protocol.to_json()
    for name in ("deadline_s", "metric_unit", "step_pattern"):
        del fields[name]
    if protocol.metric == TGS.name:
        del fields["metric"]
    return used(fields, "metric_is_better", "dump", "autotune_cache", "compile_cache")


def check_model_tag(tag: str) -> None:
    """Refuse a text that is no model tag.

    Raises:
        ConfigError: it holds a blank or another sign that no tag has.
    """
    # llama3.1-405b
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", tag):
        raise ConfigError(f"model tag {tag!r}: expected letters, digits and . _ + -")


# it has no slots, because they leave no place for a digest that is worked out once
class Cell(Record, frozen=True, kw_only=True, dict=True):
    """Everything that is held fixed while profiles are compared.

    Attributes:
        model_tag: e.g. "deepseek3-671b".
        parallelism: the axes and degrees.
        config_tag: one of several comparable configurations of the model; "" is its primary one.
        per_device_batch_size: sequences per device and step; None is the model's own setting.
        max_target_length: tokens per sequence; None is the model's own setting.
        nodelist: the pinned nodes, expanded; () is this machine.
        image: container image or environment name; "" is none.
        launcher: how the trainer is started, by the launcher's own description of itself.
        deployed: the environment that is deployed, XLA_FLAGS included.
        overrides: `key=value` for the launcher that make this cell (model config, config tag).
        devices: devices of the cell in all; 0 is unknown.
        protocol: how each trial is run and scored.
        code: commit hash or digest of the trained code; "" is not told apart.
        sourced: name and value of what the launcher's env files export on top of `deployed`, where
            this machine has them; without secrets and without values that a command makes.
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
            # 7 and 7.0 are one cell, but not one JSON text
            msgspec.structs.force_setattr(
                self, "per_device_batch_size", float(self.per_device_batch_size)
            )
        axes = dict(self.parallelism.axes)
        size = math.prod(axes.values())
        # `PP=8` alone counts slices, whose devices the model's configuration shares out
        of_slices = axes.keys() == {"PP"} and self.devices % size == 0
        if self.devices and size != self.devices and not of_slices:
            raise ConfigError(
                f"parallelism {self.parallelism}: the axes multiply to {size}, but the cell has "
                f"{self.devices} devices; change a degree or the devices"
            )

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Cell({self.label!r}, digest={self.digest!r})"  # pytest shows it in a failure

    def to_json(self) -> dict[str, Json]:
        """Return the record as it is kept: secrets hidden, and so no part of the identity."""
        return {
            **Record.to_json(self),
            "launcher": command_text_without_secrets(self.launcher),
            "deployed": without_secrets(self.deployed),
            "overrides": without_secrets(self.overrides),
        }

    @cached_property
    def digest(self) -> str:
        """The identity: 16 hexadecimal digits."""
        return digest(self._identity)

    @property
    def _identity(self) -> dict[str, Json]:
        return used(self.to_json(), "code", "sourced") | {"protocol": self.protocol.identity}

    @property
    def guard_variables(self) -> dict[str, str]:
        """The variables that the guards of recommended deployments read; no trainer reads them."""
        tag = {CONFIG_TAG_VARIABLE: self.config_tag} if self.config_tag else {}
        return {**self.parallelism.variables, **tag}

    @property
    def environment(self) -> dict[str, str]:
        """All variables that are deployed, as far as they are known: those of env files too."""
        return {**self.deployed, **dict(self.sourced)}

    @property
    def label(self) -> str:
        """How the cell is written in a line, e.g. `deepseek3-671b PP=8 sparse pdbs=7`."""
        return f"{self.model_tag} {self.variant}"

    @property
    def variant(self) -> str:
        """The label without the model: a document of one model names its cells so."""
        parts = (str(self.parallelism), self.config_tag, self.batch_text)
        return " ".join(part for part in parts if part)

    @property
    def batch_text(self) -> str:
        """How the batch is written in a label, e.g. `pdbs=7`; "" is the model's own."""
        size = self.per_device_batch_size
        return "" if size is None else f"pdbs={size:g}"

    @property
    def tokens_per_device_step(self) -> float | None:
        """Tokens one device processes in a step: TGS x seconds of every healthy step."""
        if self.per_device_batch_size is None or self.max_target_length is None:
            return None
        return self.per_device_batch_size * self.max_target_length


class DeployedFile(Record, frozen=True, kw_only=True):
    """A file that deploys a cell, as it was when a sweep began: what a recipe is a patch of.

    Attributes:
        path: below the repository that holds it, e.g. "configs/llama3.1-405b.env.sh".
        text: with the values of secrets hidden; "" where there is no such file yet.
        is_new: whether there is none yet.
        is_shell: whether a shell sources it; else it is the trainer's configuration.
        cvs_cell: of a CVS file, which is neither: the name of its cell.
    """

    path: str
    text: str = ""
    is_new: bool = False
    is_shell: bool = True
    cvs_cell: str = ""

    @property
    def launcher(self) -> str:
        """The launcher whose own file it is; "" of a shell's or a trainer's."""
        return "cvs" if self.cvs_cell else ""


def secrets_in(cell: Cell, profiles: Sequence[Profile]) -> frozenset[str]:
    """Return the values that no text about a cell may show."""
    settings = (table for profile in profiles for table in (profile.env, profile.overrides))
    of_command = secrets_of_command(cell.launcher)
    return secrets_of(cell.deployed, cell.overrides, *settings) | of_command


def varied_fields(cells: Sequence[Cell]) -> frozenset[str]:
    """Return the names of the fields in which cells differ from each other."""
    first, *others = (cell.to_json() for cell in cells)
    return frozenset(name for name in first for other in others if other.get(name) != first[name])


def folder_of_family(sweep: str, cells: Sequence[Cell]) -> Path:
    """Return the folder of a study below the work directory, the same on whatever nodes.

    It is named by what no arm varies. Other nodes are then found in the ledger and refused, not
    measured beside it in silence.
    """
    cell, varied = cells[0], varied_fields(cells)
    named = {
        "model_tag": cell.model_tag,
        "parallelism": str(cell.parallelism),
        "config_tag": cell.config_tag,
        "per_device_batch_size": cell.batch_text,
    }
    label = " ".join(text for name, text in named.items() if text and name not in varied)
    # the nodes do not count, because the scheduler may pick others
    identity = {**cell._identity, "nodelist": []}  # noqa: SLF001 - of this module
    common = {name: value for name, value in identity.items() if name not in varied}
    # from a label:  deepseek3-671b PP=2,FSDP=4 pdbs=7
    safe = re.sub(r"[^A-Za-z0-9.=_-]+", "-", label)
    return Path(sweep) / f"{safe}-{digest(common, length=8)}"


def family_differences(before: Sequence[Cell], after: Sequence[Cell]) -> str:
    """Say in what two families differ, e.g. `image was 'a', is 'b'`; "" where they are one.

    For two single cells that is all that makes them two: the node list too.
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
