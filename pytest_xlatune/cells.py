"""What is held fixed and what is run: cell, parallelism, protocol, resources, trial, launch spec.

Pure values. A cell is measured on one node list with one protocol; anything that would make two
trials incomparable is part of the cell, and so of its digest. A trial's identity is a digest of
(cell, profile, study, stage, block, position), never a test's node id.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import StrEnum

from pytest_xlatune.errors import ConfigError
from pytest_xlatune.profiles import BASELINE_ID, Profile
from pytest_xlatune.records import Json, Record, digest


class Axis(StrEnum):
    """A parallelism axis; the value is the word in MaxText's `{dcn,ici}_<word>_parallelism`."""

    DP = "data"
    FSDP = "fsdp"
    TP = "tensor"
    PP = "pipeline"
    EP = "expert"
    CP = "context"
    SP = "sequence"


_BETWEEN_SLICES = frozenset({"DP", "FSDP", "PP"})


def axis_variable(axis: str) -> str:
    """Return the variable of an axis, named by where it usually lies: MAXTEXT_DCN_PP."""
    return f"MAXTEXT_{'DCN' if axis in _BETWEEN_SLICES else 'ICI'}_{axis}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism(Record):
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
            match = re.fullmatch(r"\s*([A-Za-z]+)\s*=\s*([0-9]+)\s*", part)
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

    @property
    def size(self) -> int:
        """The product of the degrees: how many devices the axes address."""
        size = 1
        for _, degree in self.axes:
            size *= degree
        return size

    def check_devices(self, devices: int) -> None:
        """Refuse axes that do not multiply to the devices.

        Raises:
            ConfigError: naming the product, the devices and the axes.
        """
        if self.size != devices:
            raise ConfigError(
                f"parallelism {self}: the axes multiply to {self.size}, but the cell has {devices} "
                "devices; change a degree or the devices"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Protocol(Record):
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
    """

    steps: int = 15
    first_step: int = 5
    min_steps: int = 6
    profiler: str = ""
    skip_first_steps: int = 10
    profiler_steps: int = 3
    eval_interval: int = 0
    dataset_type: str = "synthetic"
    deadline_s: int = 2700

    def __post_init__(self) -> None:
        for name in ("steps", "min_steps", "deadline_s"):
            if getattr(self, name) < 1:
                raise ConfigError(f"protocol: {name} is {getattr(self, name)}, expected at least 1")

    @property
    def identity(self) -> Json:
        """What two trials must share to be comparable: all but how long we are willing to wait."""
        return {name: value for name, value in self.to_json().items() if name != "deadline_s"}

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
        if usable < self.min_steps:
            raise ConfigError(
                f"protocol: of {self.steps} steps those from id {self.first_step} on count, "
                f"{max(usable, 0)} of them, and a score needs {self.min_steps}; "
                f"ask for steps={self.first_step + self.min_steps} or more"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience(Record):
    """How long a running trial may make no progress; a step is progress, a line of the log is not.

    Seconds of the watching process without suspended time, 1 at least.

    Attributes:
        before_memstats_s: from the start to `Memstats: After params initialized`.
        compiling_s: from there to the first step; a large model's first compilation takes long.
        training_s: between two steps.
        after_fatal_s: in any phase, after a line that says that the program cannot go on, and three
            times its last step where that is longer.
    """

    before_memstats_s: float = 600.0
    compiling_s: float = 1800.0
    training_s: float = 600.0
    after_fatal_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("before_memstats_s", "compiling_s", "training_s", "after_fatal_s"):
            value = getattr(self, name)
            if not value >= 1:
                raise ConfigError(f"patience: {name} is {value}, expected at least 1 (seconds)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources(Record):
    """What a scheduler is asked for; not part of a cell's identity.

    Attributes:
        nodes: how many nodes; 0 is "as many as the node list names".
        tasks_per_node: ranks per node, 1 for JAX.
        time_limit_s: Slurm's limit for a trial, in seconds.
        queue_limit_s: how long a trial may wait in the queue, in seconds; 0 is for ever.
        patience: how long a running trial may make no progress before it is ended.
        options: anything else for the scheduler by key, e.g. partition, account, qos.
    """

    nodes: int = 0
    tasks_per_node: int = 1
    time_limit_s: int = 2700
    queue_limit_s: int = 0
    patience: Patience = field(default_factory=Patience)
    options: dict[str, str] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.nodes, tuple(sorted(self.options.items()))))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell(Record):
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
    """

    model_tag: str
    parallelism: Parallelism
    config_tag: str = ""
    per_device_batch_size: float | None = None
    max_target_length: int | None = None
    nodelist: tuple[str, ...] = ()
    image: str = ""
    launcher: str = "command"
    deployed: dict[str, str] = field(default_factory=dict)
    overrides: dict[str, str] = field(default_factory=dict)
    devices: int = 0
    protocol: Protocol = field(default_factory=Protocol)

    def __post_init__(self) -> None:
        # a model tag:  llama3.1-405b
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", self.model_tag):
            raise ConfigError(f"model tag {self.model_tag!r}: expected letters, digits and . _ + -")
        if self.per_device_batch_size is not None:
            if not 0 < self.per_device_batch_size < math.inf:
                raise ConfigError(
                    f"cell: per_device_batch_size is {self.per_device_batch_size}, expected a "
                    "number above 0"
                )
            # 7 and 7.0 are one cell, but not one JSON text
            object.__setattr__(self, "per_device_batch_size", float(self.per_device_batch_size))
        if self.devices:
            self.parallelism.check_devices(self.devices)

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def digest(self) -> str:
        """The identity of the cell: 16 hexadecimal digits."""
        return digest(self.to_json() | {"protocol": self.protocol.identity})

    @property
    def label(self) -> str:
        """How the cell is written in a line, e.g. `deepseek3-671b PP=8 sparse pdbs=7`."""
        parts = [self.model_tag, str(self.parallelism), self.config_tag]
        if self.per_device_batch_size is not None:
            parts.append(f"pdbs={self.per_device_batch_size:g}")
        return " ".join(part for part in parts if part)

    @property
    def tokens_per_device_step(self) -> float | None:
        """Tokens one device processes in a step: TGS x seconds of every healthy step."""
        if self.per_device_batch_size is None or self.max_target_length is None:
            return None
        return self.per_device_batch_size * self.max_target_length


@dataclass(frozen=True, slots=True, kw_only=True)
class DeployedFile(Record):
    """A file that deploys a cell, as it was when a sweep began: what a recipe is a patch of.

    Attributes:
        path: below the repository that holds it, e.g. "configs/llama3.1-405b.env.sh".
        text: with the values of secrets hidden; "" where there is no such file yet.
        is_new: whether there is none yet.
        is_shell: whether a shell sources it; else it is the trainer's configuration.
    """

    path: str
    text: str = ""
    is_new: bool = False
    is_shell: bool = True


def differences(before: Cell, after: Cell) -> str:
    """Say in what two cells differ, e.g. `nodelist was [], is ['node001']`."""
    old, new = before.to_json(), after.to_json()
    return "; ".join(
        f"{name} was {old[name]!r}, is {new[name]!r}" for name in old if old[name] != new[name]
    )


class Stage(StrEnum):
    """Where in a study a trial stands."""

    SCREEN = "screen"
    CONFIRM = "confirm"
    EVIDENCE = "evidence"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial(Record):
    """One measured run of one profile in one cell.

    Attributes:
        cell_digest: which cell.
        profile: what is applied on top of the deployed.
        protocol: the cell's, unless the stage asks for another (an evidence run).
        study: the study that proposed it.
        stage: screen, confirm or evidence.
        block: confirm block, or 0.
        position: which one of the trials of this profile in this stage and block, from 0.
        group: the wave of a screened trial, the confirm stage's number, else "".
    """

    cell_digest: str
    profile: Profile
    protocol: Protocol
    study: str
    stage: Stage
    block: int = 0
    position: int = 0
    group: str = ""

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def id(self) -> str:
        """The identity: readable, then 10 hexadecimal digits of everything that matters.

        A profile's note and wave do not: rewording a note re-measures nothing.
        """
        settings = self.profile.to_json() | {"wave": "", "note": ""}
        identity = {"profile": settings, "protocol": self.protocol.identity}
        place = f"{self.stage[:1]}{self.group}{self.block or ''}.{self.position}"
        return f"{self.profile.id}-{place}-{digest(self.to_json() | identity, length=10)}"

    @property
    def is_baseline(self) -> bool:
        """Whether this trial measures the cell as deployed under the baseline's own name."""
        return self.profile.id == BASELINE_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec(Record):
    """What the payload on the node does: plain data, written to `spec.json`.

    Attributes:
        argv: the command; never passed through a shell by us.
        env: variables set for it, byte for byte.
        unset: variables taken away from what it inherits.
        inherit: names of the node's variables that it may inherit; others are not passed on.
        files: name -> text, written into the trial's folder before the start.
        cwd: working directory; "" is the trial's folder.
        metrics_file: MaxText's metrics file inside the trial's folder; "" is none.
        last_step: step id after which the trial is complete.
        deadline_s: wall seconds after which the process group is killed.
    """

    argv: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    unset: tuple[str, ...] = ()
    inherit: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    cwd: str = ""
    metrics_file: str = ""
    last_step: int = 14
    deadline_s: int = 2700
