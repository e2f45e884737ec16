"""The settings of a sweep, each declared once with name, default, unit, help and places.

Each annotated field below is a declaration. The option, the environment variable, the ini key, the
key of `xlatune.toml` (`OPTIONS`), the table in docs/reference/settings.md and the keyword of a
sweep file are made from it. `settings.py` reads the user's values and puts them over a group.

The annotations are evaluated, so there is no `from __future__ import annotations`.
"""

import enum
import functools
import shlex
import sys
import types
import typing
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar, dataclass_transform

import msgspec
from msgspec import Meta, Struct, field, structs

from pytest_xlatune.executors import DEFAULT, EXECUTORS, Executor, class_named
from pytest_xlatune.logs.patterns import step_pattern
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import expand
from pytest_xlatune.model.redact import command_without_secrets, without_secrets
from pytest_xlatune.model.resources import Resources, RetryPolicy
from pytest_xlatune.model.written import CheckedStruct
from pytest_xlatune.report.exports import formats

T = TypeVar("T", bound=Struct)
FLAG = "--xlatune-"  # prefix of an option on pytest's command line


class Where(enum.Enum):
    """The places besides the sweep file where a setting may be given."""

    SWEEP_FILE = "none"
    SETTINGS_FILE = "the settings file"
    OPTION = "the command line, the environment, the ini file and the settings file"
    NOT_SETTINGS_FILE = "the places of OPTION without the settings file"


class Name(str):
    """The name of the option if it is not the field's; for a switch, the flag without `xlatune-`.

    The name of a switch may also be the whole flag, e.g. `no-xlatune`.
    """

    __slots__ = ()


class Metavar(str):
    """The value in the help text; N stands for a number."""

    __slots__ = ()


def _lists(text: str) -> dict[str, list[str]]:
    """Parse `python=/opt/bin/python,mounts=/a,mounts=/b` into key -> all its values."""
    lists: dict[str, list[str]] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not key.strip() or not equals:
            raise ValueError("expected key=value,key=value")
        lists.setdefault(key.strip(), []).append(value)
    return lists


def _pairs(text: str) -> dict[str, str]:
    return {key: values[-1].strip() for key, values in _lists(text).items()}


def _nodes(text: str) -> tuple[str, ...] | None:
    """Parse a host list."""
    return expand(text) if text else None


def _command(text: str) -> str:
    """Check that a text is a command line in shell syntax; it is started without a shell."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = []
    if not words:
        raise ValueError("expected a command line such as 'sudo -n /opt/site/node-health'")
    if list(command_without_secrets(words)) != words:
        raise ValueError("expected a command without a secret: let it read the secret from a file")
    return text


def _axes(text: str) -> str:
    """Check a text such as `PP=2,FSDP=4`; `Sweep.resolve` parses it."""
    Parallelism.parse(text)
    return text


def _step_pattern(text: str) -> str:
    """Check a text such as `torchtitan`, or a pattern; the log reader parses it."""
    step_pattern(text)
    return text


def _model_tag(text: str) -> str:
    return Cell(model_tag=text, parallelism=Parallelism.parse("FSDP=1")).model_tag


# Messages quote the description as the expected value. Defaults are not checked, because 0 and None
# mean unknown, or that the budget decides. Hours may be inf, which removes a sweep file's limit.
_FINITE = sys.float_info.max
Whole = Annotated[int, Meta(description="a whole number")]
Count = Annotated[int, Meta(ge=1, description="a whole number above 0")]
Above0 = Annotated[float, Meta(gt=0, le=_FINITE, description="a number above 0")]
NotNegative = Annotated[float, Meta(ge=0, le=_FINITE, description="a number of 0 or more")]
Hours = Annotated[float, Meta(gt=0, description="more than 0 hours"), Metavar("H")]
Table = Annotated[Mapping[str, str], Metavar("KEY=VALUE,..."), _pairs]
Lists = Annotated[Mapping[str, Any], Metavar("KEY=VALUE,..."), _lists]
File = Annotated[Path, Metavar("FILE"), Path]
Folder = Annotated[Path, Metavar("DIR"), Path]
Negative = Annotated[Literal["fail", "xfail"], Metavar("HOW")]
Access = Annotated[Literal["owner", "group", "all"], Metavar("WHO")]


class Option(Struct, frozen=True, kw_only=True):
    """One setting, as the places outside the sweep file know it.

    Attributes:
        field: the keyword in a sweep file.
        group: the class with the field.
        kind: the type of the value without None; for a number with its bounds.
        expected: the expected value in messages, for a number; "" for other types.
        name: the name, e.g. `model` of `--xlatune-model`, the ini key `xlatune_model` and the
            variable XLATUNE_MODEL.
        help: the help text.
        where: the places in which it may be given.
        metavar: the placeholder for the value in the help.
        read: function that parses a text, which raises ValueError or ConfigError; None if the type
            is enough to parse it.
    """

    field: str
    group: type[Struct]
    kind: Any
    expected: str
    name: str
    help: str
    where: Where
    metavar: str
    read: Callable[[str], Any] | None

    @property
    def flag(self) -> str:
        """The option on the command line."""
        return f"{FLAG}{self.name}"

    @property
    def key(self) -> str:
        """The ini key, and the name among pytest's options."""
        return f"xlatune_{self.name.replace('-', '_')}"

    @property
    def variable(self) -> str:
        """The environment variable."""
        return self.key.upper()

    @property
    def choices(self) -> Collection[str]:
        """The allowed values; empty if they cannot be listed."""
        if self.field == "executor":
            return EXECUTORS
        return typing.get_args(self.kind) if typing.get_origin(self.kind) is Literal else ()

    def parse(self, text: str) -> Any:
        """Return the value for a text.

        Raises:
            ValueError, ConfigError: the text is not valid.
        """
        if self.read is not None:
            return self.read(text)
        try:
            return msgspec.convert(text, self.kind, strict=False)
        except msgspec.ValidationError:
            raise ValueError(f"expected {self.expected}") from None


def _unwrapped(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the type of a field without `| None`, and the metadata of its annotation."""
    is_annotated = typing.get_origin(hint) is typing.Annotated
    kind, *metadata = typing.get_args(hint) if is_annotated else (hint,)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        kind, inner_metadata = _unwrapped(typing.get_args(kind)[0])
        metadata += inner_metadata
    return kind, tuple(metadata)


def _option(group: type[Struct], name: str, hint: Any) -> Option:
    kind, metadata = _unwrapped(hint)
    by_type = {type(annotation): annotation for annotation in reversed(metadata)}
    bounds = by_type.get(Meta)
    return Option(
        field=name,
        group=group,
        kind=Annotated[kind, bounds] if bounds else kind,
        expected=bounds.description if bounds else "",
        name=by_type.get(Name, name.replace("_", "-")),
        help=by_type.get(str, ""),
        where=by_type.get(Where, Where.OPTION),
        metavar=by_type.get(Metavar, "N"),
        read=by_type.get(types.FunctionType, by_type.get(type)),
    )


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
class _Keywords(CheckedStruct):
    """A metaclass whose error for an unknown keyword names the group that has it."""

    def __new__(cls, *definition: Any, **struct_options: Any) -> Any:
        return super().__new__(cls, *definition, **{"kw_only": True, **struct_options})

    def __call__(cls, **keywords: Any) -> Any:  # noqa: N805 - of a metaclass
        for name in keywords:
            if name not in cls.__struct_fields__:
                raise _unknown(cls, name)
        return super().__call__(**keywords)


class SettingsGroup(Struct, frozen=True, kw_only=True, metaclass=_Keywords):
    """Settings that a user gives by keyword; the annotations of its fields define the values."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a number out of its range; a subclass may check more."""
        for name, option in _numbers(type(self)).items():
            value = getattr(self, name)
            if value == _defaults(type(self))[name]:
                continue
            try:
                msgspec.convert(value, option.kind)
            except msgspec.ValidationError:
                self._refuse(name, option.expected)

    def _refuse(self, name: str, expected: str) -> NoReturn:
        value, default = getattr(self, name), _defaults(type(self))[name]
        kind = f" ({type(value).__name__})" if isinstance(value, str) else ""
        or_default = f", or {default}" if default in (0, None) else ""
        raise ConfigError(
            f"{type(self).__name__}: {name} is {value!r:.80}{kind}, expected {expected}{or_default}"
        )

    def __repr__(self) -> str:
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        for name, value in values.items():
            if isinstance(value, Mapping):
                texts = {key: text for key, text in value.items() if isinstance(text, str)}
                values[name] = {**value, **without_secrets(texts)}
        fields = (f"{name}={value!r}" for name, value in values.items())
        return f"{type(self).__name__}({', '.join(fields)})"


@functools.cache
def _defaults(cls: Any) -> dict[str, Any]:
    defaults = cls.__struct_defaults__  # msgspec lists those of the last fields
    return dict(zip(cls.__struct_fields__[-len(defaults) :], defaults, strict=True))


@functools.cache
def _numbers(cls: Any) -> dict[str, Option]:
    """Return name -> option of the fields that are numbers."""
    options = {name: _option(cls, name, hint) for name, hint in cls.__annotations__.items()}
    return {name: option for name, option in options.items() if option.expected}


def _unknown(cls: Any, name: str) -> ConfigError:
    for keyword, group in GROUPS.items():
        if name in group.__struct_fields__ and group is not cls:
            return ConfigError(
                f"{cls.__name__}({name}=...): {name} belongs to {group.__name__}; "
                f"write Sweep({keyword}={group.__name__}({name}=...))"
            )
    names = set(cls.__struct_fields__)
    if cls not in GROUPS.values():
        names.update(*(group.__struct_fields__ for group in GROUPS.values()))
    return ConfigError.unknown("keyword", name, valid=names, where=f"{cls.__name__}(...)")


class CellSettings(SettingsGroup):
    """The cell, which stays fixed; the model and the parallelism are never guessed."""

    model_tag: Annotated[
        str | None,
        "Model tag of the cell, e.g. deepseek3-671b",
        Name("model"),
        Metavar("TAG"),
        _model_tag,
    ] = None
    parallelism: Annotated[
        str | None, "Parallelism of the cell, e.g. PP=2,FSDP=4", Metavar("AXES"), _axes
    ] = None
    config_tag: Annotated[str, "Which of the model's configurations", Metavar("TAG")] = ""
    per_device_batch_size: Annotated[
        Above0 | None, "Per-device batch size of the cell in sequences", Name("pdbs")
    ] = None
    max_target_length: Annotated[
        Count | None, "Length of a sequence in tokens", Where.SETTINGS_FILE
    ] = None
    image: Annotated[
        str, "Container image of the cell with its digest, NAME@sha256:HEX", Metavar("IMAGE")
    ] = ""
    deployed: Annotated[
        Table, "Environment variables that are deployed, XLA_FLAGS among them", Where.SETTINGS_FILE
    ] = field(default_factory=dict)
    overrides: Annotated[
        Table, "Arguments key=value of the trainer that belong to the cell", Where.SETTINGS_FILE
    ] = field(default_factory=dict)
    devices: Annotated[Count, "Devices of the cell in all; 0 is unknown", Where.SETTINGS_FILE] = 0
    code: Annotated[
        str, "Commit of the trainer's code; '' if it is not part of the cell", Where.SWEEP_FILE
    ] = ""
    commits: Annotated[
        str,
        "Commits of the trainer that a study of commits compares: main..HEAD, or v1,v2",
        Metavar("RANGE"),
    ] = ""
    step_pattern: Annotated[
        str,
        "How the trainer prints a step, if not as MaxText does: torchtitan, "
        "megatron-lm, nemo, axlearn, levanter, tqdm, or a "
        "Python pattern with the groups step, and seconds (or ms, rate), tgs, tflops, mfu, "
        "loss, total",
        Metavar("PATTERN"),
        _step_pattern,
    ] = ""
    protocol: Annotated[
        Protocol, "How a trial is run and scored: steps, window, deadline", Where.SWEEP_FILE
    ] = field(default_factory=Protocol)


class DesignSettings(SettingsGroup):
    """How many trials of each kind, in which order, and what counts as a difference."""

    budget: Annotated[Count, "Trials that a sweep may cost; 0 means 50, or 22 with rotations"] = 0
    seed: Annotated[Whole, "Seed of the order of the trials"] = 0
    screen_baselines: Annotated[
        Count, "Baselines in each wave's queue; 0 is what the budget allows", Where.SWEEP_FILE
    ] = 0
    finalists: Annotated[
        Count,
        "Profiles of block 1; 0 is what the budget allows",
        Where.SWEEP_FILE,
    ] = 0
    blocks: Annotated[
        Count,
        "Blocks of the confirmation; 0 is what the budget allows",
        Where.SWEEP_FILE,
    ] = 0
    block_baselines: Annotated[
        Count, "Baselines in each block; 0 is what the budget allows", Where.SWEEP_FILE
    ] = 0
    rotate: Annotated[
        Literal["auto", "on", "off"],
        "Let profiles that differ in flags only take turns in one job, to be ranked: on, off, or "
        "auto (on if the launcher starts Python itself, and turns need fewer jobs and no more "
        "time)",
        Metavar("HOW"),
    ] = "auto"
    loss_tolerance: Annotated[
        NotNegative,
        "Relative distance from the baseline's loss that makes a trial invalid",
        Where.SWEEP_FILE,
    ] = 0.02


class SiteSettings(SettingsGroup):
    """Where trials run, and how they get there."""

    executor: Annotated[
        str,
        "Where trials run: slurm, allocation (steps of the salloc or sbatch around the "
        "session), local (this machine)",
        Metavar("NAME"),
    ] = DEFAULT
    nodelist: Annotated[
        tuple[str, ...] | None,
        "Pinned nodes, e.g. 'node[001-008]'",
        Metavar("LIST"),
        _nodes,
    ] = None
    nodes: Annotated[Count, "Number of nodes; 0 is as many as the node list names"] = 0
    slots: Annotated[
        Count,
        "Number of equal parts (slots) into which the node list is split in its order; trials run "
        "on all slots at the same time",
    ] = 1
    partition: Annotated[str, "Slurm partition", Metavar("NAME")] = ""
    queue_depth: Annotated[
        Count, "Trials that may wait in Slurm's queue for a node while a trial runs on it"
    ] = 2
    slurm: Annotated[Table, "Further options for sbatch, e.g. account=a,qos=high"] = field(
        default_factory=dict
    )
    launcher: Annotated[
        Lists, "Settings of the sweep's launcher, e.g. python=/opt/venv/bin/python,cwd=/opt/maxtext"
    ] = field(default_factory=dict)
    container: Annotated[
        Lists, "Put trials into a container, e.g. runtime=podman,gpus=nvidia,mounts=/data"
    ] = field(default_factory=dict)
    resources: Annotated[
        Resources, "Time limits, patience and ranks per node of a trial", Where.SWEEP_FILE
    ] = field(default_factory=Resources)
    retry_policy: Annotated[
        RetryPolicy, "The site's retry rules on top of the playbook", Where.SWEEP_FILE
    ] = field(default_factory=RetryPolicy)
    env_file: Annotated[
        str,
        "File that the patch of a recipe changes, absolute or below the directory that "
        "pytest starts in; '' is the launcher's last env file",
        Where.SWEEP_FILE,
    ] = ""
    unseen: Annotated[
        tuple[str, ...],
        "Settings (names, or patterns like HSA_*) whose effect nothing can show: a profile may win "
        "by them although they were only asked for",
        Where.SWEEP_FILE,
    ] = ()
    trial_s: Annotated[
        NotNegative,
        "Seconds of a trial, as `xlatune init --try` measures it: a plan uses it until trials have "
        "ended; 0 means unknown",
        Where.SWEEP_FILE,
    ] = 0.0
    node_health: Annotated[
        str,
        "Command that a node study runs on each node after each job; it prints lines from the "
        "kernel log and ECC counters, as `hard: ...` for a hard error",
        Where.SETTINGS_FILE,
        _command,
    ] = ""

    def __post_init__(self) -> None:
        """Raise ConfigError for names that no node can have, and for invalid texts."""
        super().__post_init__()
        if self.node_health and isinstance(self.node_health, str):
            try:
                _command(self.node_health)
            except ValueError as error:
                self._refuse("node_health", str(error).removeprefix("expected "))
        if not isinstance(self.nodelist, tuple | list):
            return
        nodes = tuple(self.nodelist)
        if nodes and all(isinstance(node, str) for node in nodes):
            try:
                names = expand(",".join(nodes))
            except ConfigError as error:
                self._refuse("nodelist", f"names of nodes ({error})")
            if names != nodes:
                self._refuse("nodelist", f"one node in each text: {names}")

    @property
    def chosen_executor(self) -> "Executor":
        """The executor that `executor` names, for questions about its class alone.

        Raises:
            ConfigError: there is no such executor, or it cannot be loaded.
        """
        return class_named(self.executor)()


class Limits(SettingsGroup):
    """The most that a sweep may cost, beside the budget of trials; None means no limit."""

    node_hours: Annotated[
        Hours | None,
        "Node-hours (hours of trials times nodes) that a sweep may cost in all its runs",
    ] = None
    hours: Annotated[
        Hours | None,
        "Hours of wall time that a sweep's trials may be with the scheduler in all its runs, "
        "including the time in the queue",
    ] = None


# setting that gives the nodes of a slot -> its value if it is not given
NODE_SETTINGS: Mapping[str, Any] = {"nodelist": None, "nodes": 0}


class UserOptions(SettingsGroup):
    """The settings that the user gave outside the sweep file.

    Attributes:
        values: field -> value; a missing field was not given.
        file: the settings file as messages name it; "" if none.
        root: the root of the project; paths below it are made relative. None: paths stay.
        ignored_file: which settings file was found but not read, and why; "" if none.
    """

    values: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""
    root: Path | None = None
    ignored_file: str = ""

    def applied_to(self, group: T) -> T:
        """Return a group with the user's values in place of its own; mappings are merged.

        A number of nodes, or their names, replaces both in the group.
        """
        declared = structs.asdict(group)
        values = {name: value for name, value in self.values.items() if value is not None}
        changes: dict[str, Any] = {}
        if NODE_SETTINGS.keys() & values:
            changes |= {
                name: NODE_SETTINGS[name] for name in NODE_SETTINGS.keys() & declared.keys()
            }
        for name in values.keys() & declared.keys():
            is_table = isinstance(declared[name], Mapping)
            changes[name] = {**declared[name], **values[name]} if is_table else values[name]
        return structs.replace(group, **changes) if changes else group


NOTHING = UserOptions()


class RunSettings(SettingsGroup):
    """What a run does besides measuring, and where it writes; not part of a sweep."""

    config: Annotated[
        str,
        "Settings of the site (default: xlatune.toml in the root directory or above it)",
        Where.NOT_SETTINGS_FILE,
        Metavar("FILE"),
    ] = ""
    workdir: Annotated[
        Folder,
        "Where ledgers and trials are kept (default: .xlatune in the root directory)",
    ] = Path(".xlatune")
    reports: Annotated[
        Folder, "Where reports are written (default: reports in the root directory)"
    ] = Path("reports")
    export: Annotated[
        tuple[str, ...],
        "Further formats of the reports: github-benchmark, csv, mlflow, wandb",
        Metavar("FORMAT,..."),
        formats,
    ] = ()
    notify_file: Annotated[
        File | None,
        "File with addresses for notifications: Apprise URLs, one a line (or one URL in "
        "XLATUNE_NOTIFY_URL)",
    ] = None
    negative: Annotated[
        Negative,
        "How a profile that is confirmed slower ends its test: fail or xfail",
    ] = "fail"
    access: Annotated[
        Access,
        "Who may read ledgers and logs: owner, group or all",
    ] = "owner"
    is_off: Annotated[bool, "Deselect all sweeps and do nothing else", Name("no-xlatune")] = False
    fresh: Annotated[
        bool,
        "Start over, also on other nodes: move the ledger aside and measure all again",
    ] = False
    keep_jobs: Annotated[bool, "Leave running trials alone when the session ends early"] = False
    yes: Annotated[
        bool,
        "Run although it can only rank profiles",
    ] = False
    plan: Annotated[bool, "Show what would run, and submit nothing"] = False
    zh: Annotated[
        bool,
        "Write the tuning document in Chinese too (<MODEL_TAG>-tuning.zh.md)",
    ] = False
    for_sweeps: UserOptions = NOTHING  # the user's settings for sweeps


# keyword of `Sweep` -> class of its value
GROUPS: Mapping[str, Any] = {
    "cell": CellSettings,
    "design": DesignSettings,
    "site": SiteSettings,
    "limits": Limits,
}


_DECLARED = tuple(
    _option(group, name, hint)
    for group in (*GROUPS.values(), RunSettings)
    for name, hint in group.__annotations__.items()
    if typing.get_origin(hint) is Annotated
)
# all settings except for switches
FIELDS = tuple(option for option in _DECLARED if option.kind is not bool)
# the settings that are also options of the command line
OPTIONS = tuple(
    option for option in FIELDS if option.where not in (Where.SWEEP_FILE, Where.SETTINGS_FILE)
)

# flag of a switch without dashes -> (field of RunSettings, help)
SWITCHES: Mapping[str, tuple[str, str]] = {
    option.name if option.name.endswith("xlatune") else f"xlatune-{option.name}": (
        option.field,
        option.help,
    )
    for option in _DECLARED
    if option.kind is bool
}
