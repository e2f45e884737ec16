"""Write the test file of a commit gate, and the CI job that runs it.

Both are plain files of the user's repository from then on: nothing here reads them again.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from pytest_xlatune.executors.named import class_named, one_of_ours
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import expand
from pytest_xlatune.studies.gate import Gate
from pytest_xlatune.tasks.write_sweep import OF_STEP_LINES

TEST_FILE = "gates/test_gate.py"
CI_FILES = {"github": ".github/workflows/tgs-gate.yml", "gitlab": ".gitlab/tgs-gate.yml"}

_TEST = '''\
"""A commit of this repository is not slower than the deployed one: exit status 0.

    pytest {test_file} --junitxml=gate.xml

1 is a regression, 10 "cannot tell", 4 a broken setup, 11 could not be measured.
"""

import os
from pathlib import Path

from pytest_xlatune import (
    CellSettings,
    CheckoutLauncher,
    CommandLauncher,
    Gate,
    Protocol,
    SiteSettings,
    Sweep,
    candidate,
    standard_tests,
)

REPOSITORY = str(Path(__file__).resolve().parents[1])

SWEEP = Sweep(
    name="gate",
    cell=CellSettings(
        model_tag={model!r},
        parallelism={parallelism!r},
        code=os.environ.get("GATE_BASELINE", {baseline!r}),  # the deployed commit
{of_step_lines}
        protocol=Protocol(steps={steps}),
    ),
    launcher=CheckoutLauncher(
        repository=REPOSITORY,
        inner=CommandLauncher(
            argv={argv},
            cwd=REPOSITORY,
        ),
    ),
    site=SiteSettings(executor={executor!r}{nodelist}),
    gate=Gate(
        margin={margin!r},  # the loss of throughput that is a regression
        blocks={blocks},  # trials of each commit
        candidates=(candidate("head", code=os.environ.get("GATE_CANDIDATE", "HEAD")),),
    ),
)

tests = standard_tests(SWEEP)
'''
_GITHUB = """\
name: tgs-gate
on: pull_request
jobs:
  gate:
    runs-on: {runner}
    steps:
      - uses: actions/checkout@v4  # HEAD is the pull request merged into its base
        with:
          fetch-depth: 0  # the gate needs both commits
      # pytest and pytest-xlatune must be installed here
      - run: python -m pytest {test_file} --junitxml=gate.xml
        env:
          GATE_BASELINE: origin/${{{{ github.base_ref }}}}
      - uses: actions/upload-artifact@v4
        if: always()
        with:
          name: tgs-gate
          path: |
            gate.xml
            reports/
            .xlatune/**/ledger.jsonl
"""
_GITLAB = """\
tgs-gate:
  rules:
    - if: $CI_PIPELINE_SOURCE == "merge_request_event"
{tags}  variables:
    GIT_DEPTH: 0  # the gate needs both commits
    GATE_BASELINE: origin/$CI_MERGE_REQUEST_TARGET_BRANCH_NAME
  script:
    # pytest and pytest-xlatune must be installed here
    - git fetch origin "$CI_MERGE_REQUEST_TARGET_BRANCH_NAME"
    - python -m pytest {test_file} --junitxml=gate.xml
  # "cannot tell" only warns, if you take the # away:
  # allow_failure:
  #   exit_codes: 10
  artifacts:
    when: always
    paths: [reports/, .xlatune/]
    reports:
      junit: gate.xml
"""


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
    """Return the files of a gate; what a sweep would refuse is refused before any is written.

    Raises:
        ConfigError: an argument is malformed, the folder is no repository, or a file is there.
    """
    try:
        argv = tuple(shlex.split(command))
    except ValueError as error:
        raise ConfigError(f"--command {command!r}: {error}") from None
    CommandLauncher(argv=argv)
    if not any("{steps}" in word for word in argv):
        raise ConfigError(
            f"--command {command!r} does not say how many steps a trial runs; put "
            "{steps} where the trainer takes the number"
        )
    Cell(model_tag=model, parallelism=Parallelism.parse(parallelism))
    Protocol(steps=steps).check_window()
    Gate(margin=margin, blocks=blocks)
    nodes = expand(nodelist) if nodelist else ()
    executor = executor or one_of_ours(lambda each: each.is_here)
    runs_by = class_named(executor, where="--executor")
    # the nodes of an allocation are known where it is entered
    if bool(nodes) != runs_by.names_nodes and not runs_by.holds_nodes:
        named = executor if runs_by.names_nodes else one_of_ours(lambda each: each.names_nodes)
        raise ConfigError(
            f"--executor {named} and --nodelist go together: both commits run on the nodes named "
            "there"
        )
    runner = "accelerator" if runs_by.is_here else runs_by.scheduler.lower() or executor
    filled = {
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
    }
    found = {TEST_FILE: _TEST.format(**filled, of_step_lines="\n".join(OF_STEP_LINES))}
    if ci is not None:
        text = {"github": _GITHUB, "gitlab": _GITLAB}[ci]
        found[CI_FILES[ci]] = text.format(**filled)
    if not (repository / ".git").exists():
        raise ConfigError(
            f"{repository} is no git repository: run `git init` there, or name it: --repository DIR"
        )
    there = [name for name in found if (repository / name).exists()]
    if there:
        raise ConfigError(
            f"{repository} has {', '.join(there)} already, perhaps edited by hand, so nothing was "
            "written; move it away first"
        )
    return {repository / name: text for name, text in found.items()}
