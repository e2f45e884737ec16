"""`xlatune study KIND SWEEP_FILE`: run the study that a sweep file declares, with pytest.

The command becomes `pytest SWEEP_FILE -m KIND`, and each of its options becomes an option of
pytest. This module knows no kind of study by name: the registry lists them.
"""

from __future__ import annotations

import argparse
import os
import sys

from pytest_xlatune.cli.show import Output
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.sweep.declaration import load_sweep
from pytest_xlatune.sweep.groups import FLAG, OPTIONS, SWITCHES
from pytest_xlatune.sweep.registry import KINDS


def run_study(arguments: argparse.Namespace) -> Output:
    """Replace this process by pytest.

    Raises:
        ConfigError: the sweep file declares another kind of study.
    """
    path = arguments.sweep
    kind = load_sweep(path).kind
    if kind != arguments.kind:
        how = f"xlatune study {kind} {path}" if KINDS[kind].is_declared else f"pytest {path}"
        raise ConfigError(
            f"{path} declares a study of kind {kind!r}, not {arguments.kind!r}; run it: {how}"
        )
    ours = {option.flag for option in OPTIONS} | {f"--{switch}" for switch in SWITCHES}
    command = [sys.executable, "-m", "pytest", str(path), "-m", kind]
    for word in arguments.options:
        name, equals, value = word.partition("=")
        flag = name.replace("--", FLAG, 1)
        command.append(f"{flag}{equals}{value}" if flag in ours else word)
    sys.stdout.flush()
    os.execv(sys.executable, command)  # noqa: S606 - pytest replaces this process
