"""The options of the pytest side, as a table, and what they come to.

Command line, then environment, then ini file, then the site's settings file (`settings`); where
none speaks the sweep file decides. All of it is read once, when pytest is configured, so that a
wrong value ends the run before anything is collected. Standard library only: this is loaded with
every pytest run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pytest_xlatune.errors import ConfigError

if TYPE_CHECKING:
    from pytest_xlatune.settings import Settings

Negative = Literal["fail", "xfail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option that takes a value.

    Attributes:
        name: `model` is `--xlatune-model`, the ini key `xlatune_model` and XLATUNE_MODEL.
        metavar: how the value is written in the help.
        help: one phrase, as pytest's own help writes it.
        parse: text to value; raises ValueError.
        choices: the values allowed, if few.
    """

    name: str
    metavar: str
    help: str
    parse: Callable[[str], Any] = str
    choices: tuple[str, ...] = ()

    @property
    def flag(self) -> str:
        """As it is written on the command line."""
        return f"--xlatune-{self.name}"

    @property
    def key(self) -> str:
        """The ini key, and the attribute of pytest's options."""
        return f"xlatune_{self.name.replace('-', '_')}"

    @property
    def attribute(self) -> str:
        """The attribute of `Options`."""
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return self.key.upper()


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("expected a positive integer")
    return number


def _hours(text: str) -> float:
    hours = float(text)
    if not hours > 0:
        raise ValueError("expected more than 0 hours")
    return hours


def _pairs(text: str) -> dict[str, str]:
    """Read `partition=long,qos=high`."""
    pairs = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not key.strip() or not equals:
            raise ValueError("expected key=value,key=value")
        pairs[key.strip()] = value.strip()
    return pairs


def _lists(text: str) -> dict[str, list[str]]:
    """Read `python=/opt/bin/python,mounts=/a,mounts=/b`: each key with all that it is given."""
    lists: dict[str, list[str]] = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not key.strip() or not equals:
            raise ValueError("expected key=value,key=value")
        lists.setdefault(key.strip(), []).append(value)
    return lists


OPTIONS = (
    Option(
        name="config",
        metavar="FILE",
        help="Settings of the site (default: xlatune.toml in the root directory or above it)",
    ),
    Option(name="model", metavar="TAG", help="Model tag of the cell, e.g. deepseek3-671b"),
    Option(name="parallelism", metavar="AXES", help="Parallelism of the cell, e.g. PP=2,FSDP=4"),
    Option(name="config-tag", metavar="TAG", help="Which of the model's configurations"),
    Option(name="pdbs", metavar="N", help="Per-device batch size of the cell", parse=float),
    Option(
        name="image",
        metavar="IMAGE",
        help="Container image of the cell with its digest, NAME@sha256:HEX",
    ),
    Option(name="nodelist", metavar="LIST", help="Pinned nodes, e.g. 'node[001-008]'"),
    Option(name="nodes", metavar="N", help="Number of nodes", parse=_positive),
    Option(name="partition", metavar="NAME", help="Slurm partition"),
    Option(
        name="slurm",
        metavar="KEY=VALUE,...",
        help="Further options for sbatch, e.g. account=a,qos=high",
        parse=_pairs,
    ),
    Option(
        name="launcher",
        metavar="KEY=VALUE,...",
        help="Settings of the sweep's launcher, e.g. python=/opt/venv/bin/python,cwd=/opt/maxtext",
        parse=_lists,
    ),
    Option(
        name="container",
        metavar="KEY=VALUE,...",
        help="Put trials into a container, e.g. runtime=podman,gpus=nvidia,mounts=/data",
        parse=_lists,
    ),
    Option(
        name="executor",
        metavar="NAME",
        help="Where trials run: slurm, or local for this machine",
        choices=("slurm", "local"),
    ),
    Option(
        name="screening",
        metavar="HOW",
        help="Compile profiles before any trial is queued, and leave out what needs no run: "
        "on or off",
        choices=("on", "off"),
    ),
    Option(name="budget", metavar="N", help="Trials that a sweep may cost", parse=_positive),
    Option(
        name="node-hours",
        metavar="H",
        help="Hours of trials times nodes that a sweep may cost in all its runs",
        parse=_hours,
    ),
    Option(
        name="queue-hours",
        metavar="H",
        help="Hours in which trials of a sweep may wait or run, in all its runs",
        parse=_hours,
    ),
    Option(name="seed", metavar="N", help="Seed of the order of the trials", parse=int),
    Option(
        name="workdir",
        metavar="DIR",
        help="Where ledgers and trials are kept (default: .xlatune in the root directory)",
    ),
    Option(
        name="reports",
        metavar="DIR",
        help="Where reports are written (default: reports in the root directory)",
    ),
    Option(
        name="notify-file",
        metavar="FILE",
        help="Whom to tell: Apprise URLs, one a line (or one in XLATUNE_NOTIFY_URL)",
        parse=Path,
    ),
    Option(
        name="notify-variable",
        metavar="NAME",
        help="The environment variable that names whom to tell (default: XLATUNE_NOTIFY_URL)",
    ),
    Option(
        name="negative",
        metavar="HOW",
        help="How a profile that is confirmed slower ends its test: fail or xfail",
        choices=("fail", "xfail"),
    ),
)

# tables of key=value: places add up by key; elsewhere the first place that speaks decides
TABLES = ("slurm", "launcher", "container")
# not to be had for one sweep alone
SESSION_WIDE = frozenset({"workdir", "reports", "notify-file", "notify-variable", "negative"})
# files and directories; in a settings file they are relative to it
PATHS = frozenset({"workdir", "reports", "notify-file"})

# name -> help; switches exist on the command line only
SWITCHES = {
    "no-xlatune": "Deselect all sweeps and do nothing else",
    "xlatune-fresh": "Start over: move the ledger aside and measure everything again",
    "xlatune-new-baseline": "The same: for a cell that moves to other nodes",
    "xlatune-keep-jobs": "Leave running trials alone when the session ends early",
    "xlatune-plan": "Show what would run, and submit nothing",
    "xlatune-zh": "Write the tuning document in Chinese too (<MODEL_TAG>-tuning.zh.md)",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was said, parsed. None: nothing was said.

    The attributes are the names in `OPTIONS` and `SWITCHES`, and what a settings file alone says:

        max_target_length, devices, deployed, overrides: of the cell.
        file: the settings file, as messages name it; "" is none.
        places: option -> where it was said.
        sweeps: name of a sweep -> the options for it, where the file says something of it.
    """

    model: str | None = None
    parallelism: str | None = None
    config_tag: str | None = None
    pdbs: float | None = None
    nodelist: str | None = None
    nodes: int | None = None
    partition: str | None = None
    slurm: Mapping[str, str] | None = None
    image: str | None = None
    launcher: Mapping[str, Any] | None = None
    container: Mapping[str, Any] | None = None
    config: str | None = None
    executor: Literal["slurm", "local"] | None = None
    screening: Literal["on", "off"] | None = None
    budget: int | None = None
    node_hours: float | None = None
    queue_hours: float | None = None
    seed: int | None = None
    workdir: Path
    reports: Path
    notify_file: Path | None = None
    notify_variable: str | None = None
    negative: Negative = "fail"
    is_off: bool = False
    fresh: bool = False
    keep_jobs: bool = False
    plan: bool = False
    zh: bool = False
    max_target_length: int | None = None
    devices: int | None = None
    deployed: Mapping[str, str] = field(default_factory=dict)
    overrides: Mapping[str, str] = field(default_factory=dict)
    file: str = ""
    places: Mapping[str, str] = field(default_factory=dict)
    sweeps: Mapping[str, Options] = field(default_factory=dict)


def resolve_options(
    command_line: Mapping[str, Any],
    environ: Mapping[str, str],
    ini: Mapping[str, str],
    *,
    root: Path,
) -> Options:
    """Return what the three places and the settings file say together.

    Args:
        command_line: by `Option.key`, None where not given; switches by name with underscores.
        environ: the environment.
        ini: by `Option.key`, "" where not set.
        root: what relative directories are relative to.

    Raises:
        ConfigError: a value that cannot be read, with the place where it stands.
    """
    said, places = _said(command_line, environ, ini)
    settings = _settings(said.get("config"), root)
    parts = {} if settings is None else settings.sweeps
    sweeps = {
        name: _options(command_line, said, places, (settings, part), root=root)
        for name, part in parts.items()
    }
    files = () if settings is None else (settings,)
    return _options(command_line, said, places, files, root=root, sweeps=sweeps)


def _options(
    command_line: Mapping[str, Any],
    above: Mapping[str, Any],
    above_places: Mapping[str, str],
    files: Sequence[Settings | None],
    *,
    root: Path,
    sweeps: Mapping[str, Options] | None = None,
) -> Options:
    """Put what was said above the settings file on top of what it says, its last part first."""
    said: dict[str, Any] = {}
    places: dict[str, str] = {}
    tables: dict[str, dict[str, Any]] = {"deployed": {}, "overrides": {}}
    for settings in filter(None, files):
        _drop_slot(settings.scalars, said, places)
        for option in OPTIONS:
            if option.name in settings.scalars:
                text = settings.scalars[option.name]
                said[option.attribute] = _parsed(option, text, f"{settings.place}: {option.name}")
                places[option.name] = settings.place
        for name, number in settings.numbers.items():
            said[name.replace("-", "_")] = number
            places[name] = settings.place
        for name, table in settings.tables.items():
            tables.setdefault(name, {}).update(table)
            places[name] = settings.place
    _drop_slot(above, said, places)
    for name in TABLES:
        if name in above:
            tables.setdefault(name, {}).update(above[name])
    said |= {**above, **tables}
    for name, default in (("workdir", ".xlatune"), ("reports", "reports")):
        said[name] = root / said.get(name, default)
    return Options(
        is_off=bool(command_line.get("no_xlatune")),
        fresh=any(command_line.get(name) for name in ("xlatune_fresh", "xlatune_new_baseline")),
        keep_jobs=bool(command_line.get("xlatune_keep_jobs")),
        plan=bool(command_line.get("xlatune_plan")),
        zh=bool(command_line.get("xlatune_zh")),
        file=next((each.place for each in files if each), ""),
        places={**places, **above_places},
        sweeps=sweeps or {},
        **said,
    )


def _drop_slot(names: Iterable[str], said: dict[str, Any], places: dict[str, str]) -> None:
    """Let whoever names the nodes, or their number, replace both: they are one node slot."""
    if {"nodelist", "nodes"} & set(names):
        for name in ("nodelist", "nodes"):
            said.pop(name, None)
            places.pop(name, None)


def _said(
    command_line: Mapping[str, Any], environ: Mapping[str, str], ini: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return by attribute what the first place that speaks says, and by option where."""
    said, where = {}, {}
    for option in OPTIONS:
        places = (
            (option.flag, command_line.get(option.key)),
            (option.variable, environ.get(option.variable) or None),
            (f"ini key {option.key}", ini.get(option.key) or None),
        )
        for place, text in places:
            if text is not None:
                said[option.attribute] = _parsed(option, text, place)
                where[option.name] = place
                break
    return said, where


def _settings(named: str | None, root: Path) -> Settings | None:
    """Return the settings file that is named, or the nearest from the root directory upward."""
    if named:
        path = root / named
    else:
        found = (each / "xlatune.toml" for each in _upward(root))
        path = next((each for each in found if each.is_file()), root)
        if path == root:
            return None
    from pytest_xlatune.settings import read_settings  # noqa: PLC0415 - only where there is one

    return read_settings(path, root=root)


def _upward(root: Path) -> Iterator[Path]:
    """Give the root directory and those above it, as far as the project's repository goes."""
    for each in (root, *root.parents):
        yield each
        if (each / ".git").exists():
            return


def _parsed(option: Option, text: str, place: str) -> Any:
    if option.choices and text not in option.choices:
        raise ConfigError.unknown("value", text, valid=option.choices, where=place)
    try:
        return option.parse(text)
    except ValueError as error:
        raise ConfigError(f"{place}: found {text!r}, expected {option.metavar} ({error})") from None
