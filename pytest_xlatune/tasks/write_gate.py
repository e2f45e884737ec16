"""Write the test file of a commit gate, and the CI job that runs it.

Both are then plain files of the user's repository, which no later command reads or changes.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from pytest_xlatune.executors import LOCAL
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import expand
from pytest_xlatune.tasks.files import filled_in
from pytest_xlatune.tasks.write_sweep import STEP_LINE_SETTINGS

TEST_FILE = "gates/test_gate.py"
CI_FILES = {"github": ".github/workflows/tgs-gate.yml", "gitlab": ".gitlab/tgs-gate.yml"}


def gate_files(
    repository: Path,
    *,
    command: str,
    model: str,
    parallelism: str,
    baseline: str,
    margin: float,
    blocks: int,
    steps: int,
    executor: str | None,
    nodelist: str,
    ci: str | None,
) -> dict[Path, str]:
    """Return path -> text of a gate's files, and write none of them.

    The arguments are the options of `xlatune gate init`, which `commands.toml` explains.

    A session of pytest checks them when it loads the gate.

    Raises:
        ConfigError: the command has no {steps}, the folder is no repository, or a file exists.
    """
    try:
        argv = tuple(shlex.split(command))
    except ValueError as error:
        raise ConfigError(f"--command {command!r}: {error}") from None
    if not any("{steps}" in word for word in argv):
        raise ConfigError(
            f"--command {command!r} does not say how many steps a trial runs; put "
            "{steps} where the trainer takes the number"
        )
    nodes = expand(nodelist) if nodelist else ()
    executor = executor or LOCAL
    # the label of the machines that run the CI job
    runner = executor if nodes else "accelerator"
    values: dict[str, object] = {
        "model": model,
        "parallelism": parallelism,
        "baseline": baseline,
        "margin": margin,
        "blocks": blocks,
        "steps": steps,
        "executor": executor,
        "test_file": TEST_FILE,
        "argv": "(" + "".join(f"{word!r}, " for word in argv).rstrip() + ")",
        "nodelist": f", nodelist={nodes!r}" if nodes else "",
        "runner": f"[self-hosted, {runner}]",
        "tags": f"  tags: [{runner}]\n",
        "step_line_settings": "\n".join(STEP_LINE_SETTINGS),
    }
    texts = {TEST_FILE: filled_in("gate.py.txt", **values)}
    if ci is not None:
        texts[CI_FILES[ci]] = filled_in(f"gate.{ci}.yml", **values)
    if not (repository / ".git").exists():
        raise ConfigError(
            f"{repository} is no git repository: run `git init` there, or name it: --repository DIR"
        )
    existing = [name for name in texts if (repository / name).exists()]
    if existing:
        raise ConfigError(
            f"{repository} has {', '.join(existing)} already, perhaps edited by hand, so nothing "
            "was written; move it away first"
        )
    return {repository / name: text for name, text in texts.items()}
