"""The options, as a table, and what they come to.

What each place says of them is put together in `resolving`. Standard library only: this is loaded
with every pytest run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

Negative = Literal["fail", "xfail"]


# compared and shown nowhere; every method that is made costs each pytest run a little
@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
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


def _above_0(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise ValueError("expected a number above 0")
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
    Option(name="pdbs", metavar="N", help="Per-device batch size of the cell", parse=_above_0),
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
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
