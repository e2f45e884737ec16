"""`xlatune study KIND SWEEP_FILE`: run the study that a sweep file declares, with pytest.

The command becomes `pytest SWEEP_FILE -m KIND`, and each of its options becomes an option of
pytest. This module knows no kind of study by name: the registry lists them.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pytest_xlatune.cli.options import add_options, options_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.sweep.declaration import load_sweep
from pytest_xlatune.sweep.groups import FLAG, OPTIONS, SWITCHES, is_in_brief_help
from pytest_xlatune.sweep.registry import KINDS, kind_names

_TUNING_SWITCHES = frozenset(
    {"no-xlatune", "xlatune-zh"}
)  # switches that act only on sweeps of flags


def add_study(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    # Some of our kinds are not declared in a sweep file. A kind of another distribution always is,
    # so it is listed without being loaded.
    undeclared = {name for name, kind in KINDS.items() if not kind.is_declared}
    kinds = [name for name in kind_names() if name not in undeclared]
    parser.add_argument("kind", metavar="KIND", choices=kinds, help=", ".join(kinds))
    parser.add_argument(
        "sweep", type=Path, metavar="SWEEP_FILE", help="the test file that declares SWEEP"
    )
    for name, (_, text) in SWITCHES.items():
        if name not in _TUNING_SWITCHES:
            parser.add_argument(
                f"--{name.removeprefix('xlatune-')}",
                dest=name,
                action="store_true",
                help=text if is_in_brief_help(f"--{name}") else argparse.SUPPRESS,
            )
    add_options(parser)
    parser.set_defaults(run=_study)


def _study(arguments: argparse.Namespace) -> Output:
    path, values, settings = arguments.sweep, vars(arguments), options_of(arguments)
    kind = load_sweep(path).resolve(settings.for_sweeps).sweep.kind
    if kind != arguments.kind:
        how = f"xlatune study {kind} {path}" if KINDS[kind].is_declared else f"pytest {path}"
        raise ConfigError(
            f"{path} declares a study of kind {kind!r}, not {arguments.kind!r}; run it: {how}"
        )
    options = [
        f"{FLAG}{option.name}={values[option.key]}"
        for option in OPTIONS
        if values[option.key] is not None
    ]
    switches = [f"--{name}" for name in SWITCHES if values.get(name)]
    command = [sys.executable, "-m", "pytest", str(path), "-m", kind, *options, *switches]
    sys.stdout.flush()
    os.execv(sys.executable, command)  # noqa: S606 - pytest replaces this process
