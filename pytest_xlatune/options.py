"""The options of the pytest side, as a table, and what they come to.

Command line, then environment, then ini file; where none speaks the sweep file decides. All of it
is read once, when pytest is configured, so that a wrong value ends the run before anything is
collected. Standard library only: this is loaded with every pytest run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pytest_xlatune.errors import ConfigError

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
    def variable(self) -> str:
        """The environment variable."""
        return self.key.upper()


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError("expected a positive integer")
    return number


def _pairs(text: str) -> dict[str, str]:
    """Read `partition=long,qos=high`."""
    pairs = {}
    for part in text.split(","):
        key, equals, value = part.partition("=")
        if not key.strip() or not equals:
            raise ValueError("expected key=value,key=value")
        pairs[key.strip()] = value.strip()
    return pairs


OPTIONS = (
    Option(name="model", metavar="TAG", help="Model tag of the cell, e.g. deepseek3-671b"),
    Option(name="parallelism", metavar="AXES", help="Parallelism of the cell, e.g. PP=2,FSDP=4"),
    Option(name="config-tag", metavar="TAG", help="Which of the model's configurations"),
    Option(name="pdbs", metavar="N", help="Per-device batch size of the cell", parse=float),
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
        name="executor",
        metavar="NAME",
        help="Where trials run: slurm, or local for this machine",
        choices=("slurm", "local"),
    ),
    Option(name="budget", metavar="N", help="Trials that a sweep may cost", parse=_positive),
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
        name="negative",
        metavar="HOW",
        help="How a profile that is confirmed slower ends its test: fail or xfail",
        choices=("fail", "xfail"),
    ),
)

# name -> help; switches exist on the command line only
SWITCHES = {
    "no-xlatune": "Deselect all sweeps and do nothing else",
    "xlatune-fresh": "Start over: move the ledger aside and measure everything again",
    "xlatune-new-baseline": "The same: for a cell that moves to other nodes",
    "xlatune-keep-jobs": "Leave running trials alone when the session ends early",
    "xlatune-plan": "Show what would run, and submit nothing",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What was said, parsed. None: nothing was said.

    The attributes are the names in `OPTIONS` and `SWITCHES`.
    """

    model: str | None = None
    parallelism: str | None = None
    config_tag: str | None = None
    pdbs: float | None = None
    nodelist: str | None = None
    nodes: int | None = None
    partition: str | None = None
    slurm: Mapping[str, str] | None = None
    executor: Literal["slurm", "local"] | None = None
    budget: int | None = None
    seed: int | None = None
    workdir: Path
    reports: Path
    notify_file: Path | None = None
    negative: Negative = "fail"
    is_off: bool = False
    fresh: bool = False
    keep_jobs: bool = False
    plan: bool = False


def resolve_options(
    command_line: Mapping[str, Any],
    environ: Mapping[str, str],
    ini: Mapping[str, str],
    *,
    root: Path,
) -> Options:
    """Return what the three places say together.

    Args:
        command_line: by `Option.key`, None where not given; switches by name with underscores.
        environ: the environment.
        ini: by `Option.key`, "" where not set.
        root: what relative directories are relative to.

    Raises:
        ConfigError: a value that cannot be read, with the place where it stands.
    """
    said: dict[str, Any] = {}
    for option in OPTIONS:
        places = (
            (option.flag, command_line.get(option.key)),
            (option.variable, environ.get(option.variable) or None),
            (f"ini key {option.key}", ini.get(option.key) or None),
        )
        for place, text in places:
            if text is not None:
                said[option.name.replace("-", "_")] = _parsed(option, text, place)
                break
    for name, default in (("workdir", ".xlatune"), ("reports", "reports")):
        said[name] = root / said.get(name, default)
    return Options(
        is_off=bool(command_line.get("no_xlatune")),
        fresh=any(command_line.get(name) for name in ("xlatune_fresh", "xlatune_new_baseline")),
        keep_jobs=bool(command_line.get("xlatune_keep_jobs")),
        plan=bool(command_line.get("xlatune_plan")),
        **said,
    )


def _parsed(option: Option, text: str, place: str) -> Any:
    if option.choices and text not in option.choices:
        raise ConfigError.unknown("value", text, valid=option.choices, where=place)
    try:
        return option.parse(text)
    except ValueError as error:
        raise ConfigError(f"{place}: found {text!r}, expected {option.metavar} ({error})") from None
