"""The settings of a sweep, each declared once: its name, default, unit, help, where it may be said.

A field below is the declaration. From it come the option, the environment variable, the ini key and
the key of `xlatune.toml` (`OPTIONS`), the table of docs/reference/settings.md, and the keyword of a
sweep file. `settings.py` reads what was said and puts it over a group, field by field.

Standard library only, and nothing of ours but errors: every pytest run loads this module.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import importlib
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, dataclass_transform, get_args

from pytest_xlatune.model.errors import ConfigError

if TYPE_CHECKING:
    from pytest_xlatune.executors import Executor
    from pytest_xlatune.model.cell import Protocol
    from pytest_xlatune.model.resources import Resources, RetryPolicy

T = TypeVar("T")
Negative = Literal["fail", "xfail"]
LogLevel = Literal["debug", "info", "warning"]
Access = Literal["owner", "group", "all"]

# where a setting may be said besides the sweep file
SWEEP = "the sweep file"  # nowhere else
TABLE = "xlatune.toml"  # in the settings file, for all sweeps or for one
OPTION = "option"  # on the command line, in the environment, the ini file and the settings file
SESSION = "option of the session"  # the same, but not for one sweep alone
ABOVE = "option, not in xlatune.toml"
SWITCH = "switch"  # on the command line alone
_OPTIONS = (OPTION, SESSION, ABOVE)
FLAG = "--xlatune-"  # before the name of an option, on pytest's command line
_MISSING = dataclasses.MISSING


class Rule(abc.ABC):
    """How a setting is read from a text, and which values it takes, wherever it is said."""

    @abc.abstractmethod
    def __call__(self, text: str) -> Any:
        """Read a text; raises ValueError or ConfigError."""

    @abc.abstractmethod
    def fault(self, value: object) -> str:
        """Return what was expected instead of a value; "" where it fits."""


class _Number(Rule):
    """A number in a range."""

    def __init__(
        self, kind: type[int | float], expected: str, fits: Callable[[float], bool]
    ) -> None:
        self.kind, self.expected, self.fits = kind, expected, fits

    def __call__(self, text: str) -> Any:
        value: object = text
        with contextlib.suppress(ValueError):
            value = self.kind(text)
        if self.fault(value):
            raise ValueError(f"expected {self.expected}")
        return value

    def fault(self, value: object) -> str:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return self.expected
        is_kind = self.kind is float or isinstance(value, int)
        return "" if is_kind and self.fits(value) else self.expected


class _Nodes(Rule):
    """Names of nodes: what a host list gives."""

    def __call__(self, text: str) -> tuple[str, ...] | None:
        from pytest_xlatune.model.hosts import expand

        if text.startswith("@"):  # a list that a study left: `resolve_options` reads it
            return (text,)
        return expand(text) if text else None

    def fault(self, value: object) -> str:
        if not isinstance(value, tuple | list) or not all(isinstance(each, str) for each in value):
            return ""  # of another kind, which the sweep refuses
        from pytest_xlatune.model.hosts import expand

        if len(value) == 1 and value[0].startswith("@"):
            return ""
        try:
            names = expand(",".join(value)) if value else ()
        except ConfigError as error:
            return f"names of nodes ({error})"
        return "" if names == tuple(value) else f"each node by itself: {names}"


class _Command(Rule):
    """A command line as a shell reads it, started without one."""

    def __call__(self, text: str) -> str:
        if expected := self.fault(text):
            raise ValueError(f"expected {expected}")
        return text

    def fault(self, value: object) -> str:
        import shlex

        from pytest_xlatune.model.redact import command_without_secrets

        try:
            words = shlex.split(value) if isinstance(value, str) else []
        except ValueError:
            words = []
        if not words:
            return "a command line such as 'sudo -n /opt/site/node-health'"
        is_open = list(command_without_secrets(words)) != words
        return "a command without a secret in it: let it read that from a file" if is_open else ""


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Declared:
    """A frozen dataclass of keywords that says where an unknown keyword belongs.

    `dataclasses` compiles each method that it makes, in every pytest run of every project that has
    us installed. The few methods here serve all classes.
    """

    # name, rule and default of each field that has a rule; the default itself always fits
    _rules: ClassVar[tuple[tuple[str, Rule, Any], ...]]

    def __init_subclass__(cls) -> None:
        dataclasses.dataclass(init=False, eq=False, repr=False)(cls)
        cls._rules = tuple(
            (name, rule, each.default)
            for name, each in cls.__dict__["__dataclass_fields__"].items()
            if isinstance(rule := each.metadata.get("parse"), Rule)
        )

    def __init__(self, **said: Any) -> None:
        cls, declared = type(self), type(self).__dict__["__dataclass_fields__"]
        for name in said:
            if name not in declared:
                # a dataclass said TypeError for `buget=30`, and not which group has the keyword
                raise _unknown(cls, name, frozenset(declared))
        for name, each in declared.items():
            if name in said:
                value = said[name]
            elif each.default_factory is not _MISSING:
                value = each.default_factory()
            elif each.default is not _MISSING:
                value = each.default
            else:
                raise ConfigError(f"{cls.__name__}(...): {name} is missing; write {name}=...")
            self.__dict__[name] = value
        for name, rule, default in cls._rules:
            value = self.__dict__[name]
            if value is not default and value != default and (expected := rule.fault(value)):
                sort = f" ({type(value).__name__})" if isinstance(value, str) else ""
                other = f", or {default}" if rule.fault(default) else ""
                raise ConfigError(
                    f"{cls.__name__}: {name} is {value!r:.80}{sort}, expected {expected}{other}"
                )
        self.__post_init__()

    def __post_init__(self) -> None:
        """Refuse values that do not fit; a subclass may."""

    def __setattr__(self, name: str, _: object) -> None:
        raise dataclasses.FrozenInstanceError(f"{type(self).__name__}: {name} cannot be changed")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        from pytest_xlatune.model.redact import shown_value

        shown = {name: shown_value(value) for name, value in vars(self).items()}
        said = ", ".join(f"{name}={value!r}" for name, value in shown.items())
        return f"{type(self).__name__}({said})"


def key_of(name: str) -> str:
    """Return the ini key of an option, which is the attribute of pytest's options too."""
    return f"xlatune_{name.replace('-', '_')}"


class Option(Declared):
    """One field of a group, as the places outside the sweep file know it.

    Attributes:
        field: the keyword in a sweep file.
        group: the class that has it.
        name: `model` is `--xlatune-model`, the ini key `xlatune_model` and XLATUNE_MODEL.
        help: one phrase, as pytest's own help writes it.
        unit: of the value, where it is a quantity.
        where: one of the constants above.
        metavar: how the value is written in the help; N is a number.
        parse: text to value; raises ValueError.
        choices: the values allowed, if few; or a function that finds them.
    """

    field: str
    group: type
    name: str
    help: str
    unit: str = ""
    where: str = SWEEP
    metavar: str = "N"
    parse: Callable[[str], Any] = str
    choices: Collection[str] | Callable[[], Collection[str]] = ()

    @property
    def is_path(self) -> bool:
        """Whether it is a file or a directory: in a settings file relative to that file."""
        return self.parse is Path

    @property
    def flag(self) -> str:
        """As it is written on the command line."""
        return f"{FLAG}{self.name}"

    @property
    def key(self) -> str:
        """The ini key, and the attribute of pytest's options."""
        return key_of(self.name)

    @property
    def variable(self) -> str:
        """The environment variable."""
        return self.key.upper()


def _setting(default: Any, help: str, **told: Any) -> Any:  # noqa: A002 - pytest's and argparse's word
    """Declare a field; `told` are the other attributes of its `Option`, where it has them.

    A default that is made (a mapping, a class that is imported then) is a function.
    """
    metadata = {"help": help, **told}
    if callable(default):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def _option(default: Any, help: str, **told: Any) -> Any:  # noqa: A002 - as above
    return _setting(default, help, where=OPTION, **told)


def _of_session(default: Any, help: str, **told: Any) -> Any:  # noqa: A002 - as above
    return _setting(default, help, where=SESSION, **told)


def _switch(**flags: str) -> Any:
    """Declare what a flag of the command line sets: flag with underscores -> its help."""
    return dataclasses.field(
        default=False, metadata={"help": "", "where": SWITCH, "flags": tuple(flags.items())}
    )


def _unknown(cls: type, name: str, names: frozenset[str]) -> ConfigError:
    for keyword, group in GROUPS.items():
        if name in group.__dataclass_fields__ and group is not cls:
            return ConfigError(
                f"{cls.__name__}({name}=...): {name} belongs to {group.__name__}; "
                f"write Sweep({keyword}={group.__name__}({name}=...))"
            )
    others = {each: "" for group in GROUPS.values() for each in group.__dataclass_fields__}
    valid = names if cls in GROUPS.values() else {*names, *others}
    return ConfigError.unknown("keyword", name, valid=valid, where=f"{cls.__name__}(...)")


# --- how texts are read ---------------------------------------------------------------------------


# nan fits none of these; hours may be inf, which lifts the limit of a sweep file
_WHOLE = _Number(int, "a whole number", lambda _: True)
_POSITIVE = _Number(int, "a whole number above 0", lambda number: number > 0)
_ABOVE_0 = _Number(float, "a number above 0", lambda number: 0 < number < math.inf)
_NOT_NEGATIVE = _Number(float, "a number of 0 or more", lambda number: 0 <= number < math.inf)
_HOURS = _Number(float, "more than 0 hours", lambda hours: hours > 0)


def _pairs(text: str) -> dict[str, str]:
    """Read `partition=long,qos=high`."""
    return {key: values[-1].strip() for key, values in _lists(text).items()}


def _lists(text: str) -> dict[str, list[str]]:
    """Read `python=/opt/bin/python,mounts=/a,mounts=/b`: each key with all that it is given."""
    lists: dict[str, list[str]] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not key.strip() or not equals:
            raise ValueError("expected key=value,key=value")
        lists.setdefault(key.strip(), []).append(value)
    return lists


def _axes(text: str) -> str:
    """Read `PP=2,FSDP=4`; the sweep takes the text."""
    from pytest_xlatune.model.cell import Parallelism

    Parallelism.parse(text)
    return text


def _step_pattern(text: str) -> str:
    """Read `torchtitan`, or a pattern; the protocol takes the text."""
    from pytest_xlatune.logs.patterns import step_pattern

    step_pattern(text)
    return text


def _model_tag(text: str) -> str:
    """Read `deepseek3-671b`."""
    from pytest_xlatune.model.cell import Cell, Parallelism

    return Cell(model_tag=text, parallelism=Parallelism.parse("FSDP=1")).model_tag


# --- defaults that would load more than the plugin may -------------------------------------------


def _default(home: str, name: str) -> Callable[[], Any]:
    """Return a function that makes the default of a class, or finds the value, of this name."""

    def made() -> Any:
        found = getattr(importlib.import_module(f"pytest_xlatune.{home}"), name)
        return found() if isinstance(found, type) else found

    return made


# --- the groups -----------------------------------------------------------------------------------


class CellSettings(Declared):
    """The cell, which stays fixed; the model and the parallelism are never guessed."""

    model_tag: str | None = _option(
        None,
        "Model tag of the cell, e.g. deepseek3-671b",
        name="model",
        metavar="TAG",
        parse=_model_tag,
    )
    parallelism: str | None = _option(
        None, "Parallelism of the cell, e.g. PP=2,FSDP=4", metavar="AXES", parse=_axes
    )
    config_tag: str = _option("", "Which of the model's configurations", metavar="TAG")
    per_device_batch_size: float | None = _option(
        None, "Per-device batch size of the cell", name="pdbs", unit="sequences", parse=_ABOVE_0
    )
    max_target_length: int | None = _setting(
        None, "Length of a sequence", unit="tokens", where=TABLE, parse=_POSITIVE
    )
    image: str = _option(
        "", "Container image of the cell with its digest, NAME@sha256:HEX", metavar="IMAGE"
    )
    deployed: Mapping[str, str] = _setting(
        dict, "Environment variables that are deployed, XLA_FLAGS among them", where=TABLE
    )
    overrides: Mapping[str, str] = _setting(
        dict, "Arguments key=value of the trainer that belong to the cell", where=TABLE
    )
    devices: int = _setting(
        0, "Devices of the cell in all; 0 is unknown", unit="devices", where=TABLE, parse=_POSITIVE
    )
    code: str = _setting("", "Commit of the trainer's code; '' where commits are not told apart")
    commits: str = _option(
        "",
        "Commits of the trainer that a study of commits compares: main..HEAD, or v1,v2",
        metavar="RANGE",
    )
    step_pattern: str = _option(
        "",
        "How the trainer prints a step, where it is not as MaxText does: torchtitan, megatron-lm, "
        "nemo, axlearn, levanter, lightning, hf-trainer, tqdm, json, or a Python pattern with the "
        "groups step, and seconds (or ms, rate), tgs, tflops, mfu, loss, total",
        metavar="PATTERN",
        parse=_step_pattern,
    )
    protocol: Protocol = _setting(
        _default("model.cell", "Protocol"), "How a trial is run and scored: steps, window, deadline"
    )


class DesignSettings(Declared):
    """How many trials of what, in which order, and what counts as a difference."""

    budget: int = _option(50, "Trials that a sweep may cost", unit="trials", parse=_POSITIVE)
    seed: int = _option(0, "Seed of the order of the trials", parse=_WHOLE)
    screen_baselines: int = _setting(
        0,
        "Baselines in each wave's queue; 0 is what the budget allows",
        unit="trials",
        parse=_POSITIVE,
    )
    finalists: int = _setting(
        0,
        "Profiles of block 1, or of rotations that decide; 0 is what the budget allows",
        unit="profiles",
        parse=_POSITIVE,
    )
    blocks: int = _setting(
        0,
        "Blocks of the confirmation, or rotations that decide; 0 is what the budget allows",
        parse=_POSITIVE,
    )
    block_baselines: int = _setting(
        0, "Baselines in each block; 0 is what the budget allows", unit="trials", parse=_POSITIVE
    )
    pair: Literal["on", "off"] = _option(
        "off",
        "Decide in the blocks whether the deployed settings beat those of the image alone: on or "
        "off",
        metavar="HOW",
        choices=("on", "off"),
    )
    rotate: Literal["auto", "on", "off"] = _option(
        "auto",
        "Let profiles that differ in flags only take turns in one job: on, off, or auto (on where "
        "the launcher starts Python itself, and turns need fewer jobs and no more time)",
        metavar="HOW",
        choices=("auto", "on", "off"),
    )
    loss_tolerance: float = _setting(
        0.02,
        "Relative distance from the baseline's loss that makes a trial invalid",
        unit="fraction",
        parse=_NOT_NEGATIVE,
    )


class SiteSettings(Declared):
    """Where trials run, and how they get there."""

    executor: str = _option(
        _default("executors.named", "DEFAULT"),
        "Where trials run: slurm, allocation (steps of the salloc or sbatch around the session), "
        "local (this machine)",
        metavar="NAME",
        choices=_default("executors.named", "EXECUTORS"),
    )
    nodelist: tuple[str, ...] | None = _option(
        None,
        "Pinned nodes, e.g. 'node[001-008]'; @healthy are those that a node study recommends",
        metavar="LIST",
        parse=_Nodes(),
    )
    nodes: int = _option(
        0, "Number of nodes; 0 is as many as the node list names", unit="nodes", parse=_POSITIVE
    )
    slots: int = _option(
        1,
        "Equal parts (slots) to split the node list into, in its order; trials run on all of them "
        "side by side",
        unit="slots",
        parse=_POSITIVE,
    )
    partition: str = _option("", "Slurm partition", metavar="NAME")
    queue_depth: int = _option(
        2,
        "Trials of a node that may wait in Slurm's queue behind the one that runs there",
        unit="trials",
        parse=_POSITIVE,
    )
    slurm: Mapping[str, str] = _option(
        dict,
        "Further options for sbatch, e.g. account=a,qos=high",
        metavar="KEY=VALUE,...",
        parse=_pairs,
    )
    launcher: Mapping[str, Any] = _option(
        dict,
        "Settings of the sweep's launcher, e.g. python=/opt/venv/bin/python,cwd=/opt/maxtext",
        metavar="KEY=VALUE,...",
        parse=_lists,
    )
    container: Mapping[str, Any] = _option(
        dict,
        "Put trials into a container, e.g. runtime=podman,gpus=nvidia,mounts=/data",
        metavar="KEY=VALUE,...",
        parse=_lists,
    )
    resources: Resources = _setting(
        _default("model.resources", "Resources"),
        "Time limits, patience and ranks per node of a trial",
    )
    retry_policy: RetryPolicy = _setting(
        _default("model.resources", "RetryPolicy"), "The site's retry rules on top of the playbook"
    )
    env_file: str = _setting(
        "",
        "File that the patch of a recipe changes, absolute or below the directory that pytest "
        "starts in; '' is the launcher's last env file",
    )
    unseen: tuple[str, ...] = _setting(
        (),
        "Settings (names, or patterns like HSA_*) whose effect nothing here can show: a winner "
        "may rest on them although they were only asked for",
    )
    node_health: str = _setting(
        "",
        "Command that a check of nodes runs on each node after each job; it prints what kernel "
        "log and ECC counters say, `hard: ...` for a hard error",
        where=TABLE,
        parse=_Command(),
    )

    @property
    def runs_by(self) -> Executor:
        """The executor of that name, for questions; it has submitted nothing.

        Raises:
            ConfigError: there is none, or it cannot be loaded.
        """
        from pytest_xlatune.executors.named import executor_named

        return executor_named(self.executor)


class Limits(Declared):
    """The most that a sweep may cost beside its trials; None is no limit."""

    node_hours: float | None = _option(
        None,
        "Node-hours (hours of trials times nodes) that a sweep may cost in all its runs",
        unit="hours",
        metavar="H",
        parse=_HOURS,
    )


SLOT = frozenset({"nodelist", "nodes"})  # two ways to name one node slot


class Said(Declared):
    """What the user said outside the sweep file.

    Attributes:
        values: field -> value, as the groups have it; a field that is absent was not said.
        places: option -> where it was said.
        file: the settings file, as messages name it; "" is none.
        root: of the project: paths below it are named relative to it.
        sweeps: name of a sweep -> all that is said for it, where the file speaks of it.
        passed_over: which settings file was found and not read, and why; "" is none.
    """

    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    places: Mapping[str, str] = dataclasses.field(default_factory=dict)
    file: str = ""
    root: Path | None = None
    sweeps: Mapping[str, Said] = dataclasses.field(default_factory=dict)
    passed_over: str = ""

    def of(self, sweep: str) -> Said:
        """Return what was said for one sweep."""
        return self.sweeps.get(sweep, self)

    def unread(self, sweeps: Collection[str]) -> list[str]:
        """Return a line for each table of the settings file that is of none of these sweeps."""
        import difflib

        lines = []
        for name in sorted(self.sweeps.keys() - set(sweeps)):
            near = difflib.get_close_matches(name, sweeps, n=1)
            hint = f"; did you mean [sweeps.{near[0]}]?" if near else ""
            lines.append(f"{self.file} [sweeps.{name}]: no sweep of this run has that name{hint}")
        return lines

    def over(self, group: T) -> T:
        """Return a group of settings with what was said in place of its own; mappings add up.

        Who says how many nodes, or which, says all of the node slot.
        """
        changes: dict[str, Any] = {}
        if any(self.values.get(name) is not None for name in SLOT):
            own_fields = group.__dataclass_fields__  # type: ignore[attr-defined]
            changes = {name: own_fields[name].default for name in SLOT & own_fields.keys()}
        for name in group.__dataclass_fields__:  # type: ignore[attr-defined]
            value = self.values.get(name)
            if value is not None:
                own = getattr(group, name)
                changes[name] = {**own, **value} if isinstance(own, Mapping) else value
        return dataclasses.replace(group, **changes) if changes else group  # type: ignore[type-var]


NOTHING = Said()


class RunSettings(Declared):
    """What one run does besides measuring, and where it writes; no part of a sweep."""

    config: str = _setting(
        "",
        "Settings of the site (default: xlatune.toml in the root directory or above it)",
        where=ABOVE,
        metavar="FILE",
    )
    compile_check: Literal["on", "off"] | None = _option(
        None,
        "Compile profiles before any trial is queued, and leave out what needs no run: on or off",
        metavar="HOW",
        choices=("on", "off"),
    )
    workdir: Path = _of_session(
        Path(".xlatune"),
        "Where ledgers and trials are kept (default: .xlatune in the root directory)",
        metavar="DIR",
        parse=Path,
    )
    reports: Path = _of_session(
        Path("reports"),
        "Where reports are written (default: reports in the root directory)",
        metavar="DIR",
        parse=Path,
    )
    export: tuple[str, ...] = _of_session(
        (),
        "Further formats of the reports: github-benchmark, csv, mlflow, wandb",
        metavar="FORMAT,...",
        parse=lambda text: _default("report.exports", "formats")()(text),  # noqa: PLW0108 - late
    )
    notify_file: Path | None = _of_session(
        None,
        "Whom to tell: Apprise URLs, one a line (or one in XLATUNE_NOTIFY_URL)",
        metavar="FILE",
        parse=Path,
    )
    negative: Negative = _of_session(
        "fail",
        "How a profile that is confirmed slower ends its test: fail or xfail",
        metavar="HOW",
        choices=("fail", "xfail"),
    )
    log_level: LogLevel = _of_session(
        "info",
        "How much xlatune.log beside each ledger says: debug, info or warning",
        metavar="LEVEL",
        choices=get_args(LogLevel),
    )
    access: Access = _of_session(
        "owner",
        "Who may read ledgers and logs: owner, group (members may go on with a sweep) or all",
        metavar="WHO",
        choices=get_args(Access),
    )
    ask_above: float | None = _of_session(
        None,
        "Node-hours above which a run needs --xlatune-yes",
        unit="hours",
        metavar="H",
        parse=_HOURS,
    )
    is_off: bool = _switch(no_xlatune="Deselect all sweeps and do nothing else")
    fresh: bool = _switch(
        xlatune_fresh="Start over, on other nodes too: move the ledger aside, measure all again",
    )
    rebuild: bool = _switch(
        xlatune_rebuild="Begin a new ledger where one was lost, out of the attempts' own files"
    )
    keep_jobs: bool = _switch(
        xlatune_keep_jobs="Leave running trials alone when the session ends early"
    )
    yes: bool = _switch(
        xlatune_yes="Run although it costs more than --xlatune-ask-above, or can only rank profiles"
    )
    plan: bool = _switch(xlatune_plan="Show what would run, and submit nothing")
    rewrite: bool = _switch(
        xlatune_rewrite="Let the patch remove comments that its changes make untrue"
    )
    zh: bool = _switch(
        xlatune_zh="Write the tuning document in Chinese too (<MODEL_TAG>-tuning.zh.md)"
    )
    said: Said = dataclasses.field(default_factory=lambda: NOTHING)  # of the sweeps


def is_daily(flag: str) -> bool:
    """Whether help shows an option of pytest: `--xlatune-budget`."""
    return flag.removeprefix(FLAG) in DAILY


def saying_executor(which: Callable[[type[Executor]], bool]) -> str:
    """Return the option with the first executor of ours of which a fact holds, for messages."""
    from pytest_xlatune.executors.named import one_of_ours

    return f"{FLAG}executor {one_of_ours(which)}"


# keyword of `Sweep` -> what it takes
GROUPS: Mapping[str, Any] = {
    "cell": CellSettings,
    "design": DesignSettings,
    "site": SiteSettings,
    "limits": Limits,
}


def _options_of(group: Any) -> list[Option]:
    return [
        Option(
            field=each.name, group=group, **{"name": each.name.replace("_", "-"), **each.metadata}
        )
        for each in dataclasses.fields(group)
        if each.metadata and each.metadata.get("where") != SWITCH
    ]


# every field that is no switch, and those of them that are options
FIELDS = tuple(each for group in (*GROUPS.values(), RunSettings) for each in _options_of(group))
OPTIONS = tuple(each for each in FIELDS if each.where in _OPTIONS)

# flag without dashes in front -> (field of RunSettings, help)
SWITCHES: Mapping[str, tuple[str, str]] = {
    flag.replace("_", "-"): (each.name, text)
    for each in dataclasses.fields(RunSettings)
    for flag, text in each.metadata.get("flags", ())
}

# what a day at a cluster needs: help shows these, and says where the others are
DAILY = (
    *("model", "budget", "executor", "nodelist", "partition", "workdir"),
    *("negative", "plan", "fresh", "yes"),
)
EVERY = "pytest -v --help"  # shows all
