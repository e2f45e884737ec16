"""`xlatune gate init`: write the test file of a commit gate, and the CI job that runs it.

Both are plain files of the user's repository from then on: nothing here reads them again.
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from pytest_xlatune.cli.parsers import add_commands
from pytest_xlatune.cli.show import show, write_files
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.text import counted

_TEST_FILE = "gates/test_gate.py"
_CI_FILES = {"github": ".github/workflows/tgs-gate.yml", "gitlab": ".gitlab/tgs-gate.yml"}

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


def add_gate(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    lines = {"init": "write the test file of a commit gate, and a CI job that runs it"}
    init = add_commands(parser, lines, metavar="COMMAND")["init"]
    init.description = (
        f"{init.description} Example: xlatune gate init --model mine --parallelism "
        "FSDP=8 --command 'python train.py --steps={steps}' --ci github"
    )
    need = init.add_argument_group("needed")
    need.add_argument("--model", required=True, metavar="TAG", help="model tag of the cell")
    need.add_argument("--parallelism", required=True, metavar="AXES", help="e.g. PP=2,FSDP=4")
    need.add_argument(
        "--command",
        required=True,
        metavar="TEXT",
        help="what starts the trainer in the repository; {steps} is the number of steps",
    )
    init.add_argument(
        "--repository", type=Path, default=Path(), metavar="DIR", help="of the trainer (here)"
    )
    init.add_argument(
        "--baseline", default="origin/main", metavar="COMMIT", help="the deployed one (origin/main)"
    )
    init.add_argument("--margin", type=float, default=0.01, metavar="N", help="0.01 is 1 %%")
    init.add_argument("--blocks", type=int, default=4, metavar="N", help="trials of each commit")
    init.add_argument("--steps", type=int, default=15, metavar="N", help="of each trial")
    init.add_argument(
        "--executor",
        choices=("local", "slurm", "allocation"),
        default="local",
        help="allocation: the salloc or sbatch that pytest is started in",
    )
    init.add_argument("--nodelist", default="", metavar="LIST", help="of Slurm: 'node[001-008]'")
    init.add_argument("--ci", choices=tuple(_CI_FILES), help="write a job for it too")
    init.set_defaults(run=_init)


def _init(arguments: argparse.Namespace) -> int:
    repository = arguments.repository.resolve()
    texts = _texts(arguments)
    if not (repository / ".git").exists():
        raise ConfigError(
            f"{repository} is no git repository: run `git init` there, or name it: --repository DIR"
        )
    there = [name for name in texts if (repository / name).exists()]
    if there:
        raise ConfigError(
            f"{', '.join(there)} of {repository}: there already, and may be edited; nothing was "
            "written. Move it away first"
        )
    write_files({repository / name: text for name, text in texts.items()})
    trials = 2 * arguments.blocks
    show(
        [
            f"try it: pytest {_TEST_FILE} --xlatune-plan",
            f"run it: pytest {_TEST_FILE}   ({counted(trials, 'trial')})",
        ]
    )
    if arguments.ci == "gitlab":
        show([f"add to .gitlab-ci.yml:  include: [{{local: {_CI_FILES['gitlab']}}}]"])
    return 0


def _texts(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the files by name; what a sweep would refuse is refused before any is written."""
    from pytest_xlatune.launchers.command import CommandLauncher
    from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
    from pytest_xlatune.model.hosts import expand
    from pytest_xlatune.studies.gate import Gate

    try:
        argv = tuple(shlex.split(arguments.command))
    except ValueError as error:
        raise ConfigError(f"--command {arguments.command!r}: {error}") from None
    CommandLauncher(argv=argv)
    if not any("{steps}" in word for word in argv):
        raise ConfigError(
            f"--command {arguments.command!r} does not say how many steps a trial runs; put "
            "{steps} where the trainer takes the number"
        )
    Cell(model_tag=arguments.model, parallelism=Parallelism.parse(arguments.parallelism))
    Protocol(steps=arguments.steps).check_window()
    Gate(margin=arguments.margin, blocks=arguments.blocks)
    nodes = expand(arguments.nodelist) if arguments.nodelist else ()
    is_slurm = arguments.executor != "local"
    # the nodes of an allocation are known where it is entered
    if bool(nodes) != is_slurm and arguments.executor != "allocation":
        raise ConfigError(
            "--executor slurm and --nodelist go together: both commits run on the nodes named there"
        )
    filled = {
        **vars(arguments),
        "test_file": _TEST_FILE,
        "argv": "(" + "".join(f"{word!r}, " for word in argv).rstrip() + ")",
        "nodelist": f", nodelist={nodes!r}" if nodes else "",
        "runner": "[self-hosted, slurm]" if is_slurm else "[self-hosted, accelerator]",
        "tags": f"  tags: [{'slurm' if is_slurm else 'accelerator'}]\n",
    }
    found = {_TEST_FILE: _TEST.format(**filled)}
    if arguments.ci is not None:
        text = {"github": _GITHUB, "gitlab": _GITLAB}[arguments.ci]
        found[_CI_FILES[arguments.ci]] = text.format(**filled)
    return found
