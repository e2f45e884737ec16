"""`xlatune gate init`: write the test file of a commit gate, and the CI job that runs it.

Both are then plain files of the user's repository, which no later command reads or changes. A
session of pytest checks the settings when it loads the gate.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from pytest_xlatune.cli.show import Output
from pytest_xlatune.executors import LOCAL
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import expand
from pytest_xlatune.model.text import counted
from pytest_xlatune.report.document import brief, lines
from pytest_xlatune.tasks.files import filled_in

_TEST_FILE = "gates/test_gate.py"
_CI_FILES = {"github": ".github/workflows/tgs-gate.yml", "gitlab": ".gitlab/tgs-gate.yml"}


def run_init(arguments: argparse.Namespace) -> Output:
    """Return the files of a gate, and what to do with them.

    Raises:
        ConfigError: the command has no {steps}, the folder is no repository, or a file exists.
    """
    command, ci, repository = arguments.command, arguments.ci, arguments.repository.resolve()
    try:
        argv = tuple(shlex.split(command))
    except ValueError as error:
        raise ConfigError(f"--command {command!r}: {error}") from None
    if not any("{steps}" in word for word in argv):
        raise ConfigError(
            f"--command {command!r} does not say how many steps a trial runs; put "
            "{steps} where the trainer takes the number"
        )
    nodes = expand(arguments.nodelist) if arguments.nodelist else ()
    executor = arguments.executor or LOCAL
    # the label of the machines that run the CI job
    runner = executor if nodes else "accelerator"
    values: dict[str, object] = {
        **{name: getattr(arguments, name) for name in ("model", "parallelism", "baseline")},
        **{name: getattr(arguments, name) for name in ("margin", "blocks", "steps")},
        "executor": executor,
        "test_file": _TEST_FILE,
        "argv": "(" + "".join(f"{word!r}, " for word in argv).rstrip() + ")",
        "nodelist": f", nodelist={nodes!r}" if nodes else "",
        "runner": f"[self-hosted, {runner}]",
        "tags": f"  tags: [{runner}]\n",
    }
    texts = {_TEST_FILE: filled_in("gate.py.txt", **values)}
    next_steps = [
        f"try it: pytest {_TEST_FILE} --xlatune-plan",
        f"run it: pytest {_TEST_FILE}   ({counted(2 * arguments.blocks, 'trial')})",
    ]
    if ci is not None:
        texts[_CI_FILES[ci]] = filled_in(f"gate.{ci}.yml", **values)
    if ci == "gitlab":
        next_steps.append(f"add to .gitlab-ci.yml:  include: [{{local: {_CI_FILES['gitlab']}}}]")
    if not (repository / ".git").exists():
        raise ConfigError(
            f"{repository} is no git repository: run `git init` there, or name it: --repository DIR"
        )
    if existing := [name for name in texts if (repository / name).exists()]:
        raise ConfigError(
            f"{repository} has {', '.join(existing)} already, perhaps edited by hand, so nothing "
            "was written; move it away first"
        )
    return Output(
        files={Path(repository / name): text for name, text in texts.items()},
        documents=(brief("What to do next", lines(*next_steps)),),
    )
