"""`xlatune gate init`: write the test file of a commit gate, and the CI job that runs it."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_xlatune.cli.parsers import add_commands
from pytest_xlatune.cli.show import Output
from pytest_xlatune.model.text import counted
from pytest_xlatune.report.document import brief, lines
from pytest_xlatune.tasks.write_gate import CI_FILES, TEST_FILE, gate_files


def add_gate(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    lines = {"init": "write the test file of a commit gate, and a CI job that runs it"}
    init = add_commands(parser, lines, metavar="COMMAND")["init"]
    init.description = (
        f"{init.description} Example: xlatune gate init --model mine --parallelism "
        "FSDP=8 --command '/opt/venv/bin/python train.py --steps={steps}' --ci github"
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
        "--repository",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="git repository of the trainer (this folder)",
    )
    init.add_argument(
        "--baseline",
        default="origin/main",
        metavar="COMMIT",
        help="commit that is deployed (origin/main)",
    )
    init.add_argument(
        "--margin",
        type=float,
        default=0.01,
        metavar="N",
        help="how much slower is still accepted; 0.01 is 1 %%",
    )
    init.add_argument(
        "--blocks", type=int, default=4, metavar="N", help="trials of each commit (4)"
    )
    init.add_argument("--steps", type=int, default=15, metavar="N", help="steps of each trial (15)")
    init.add_argument(
        "--executor",
        metavar="NAME",
        help="local, slurm, or allocation: the salloc or sbatch that pytest is started in (local)",
    )
    init.add_argument(
        "--nodelist", default="", metavar="LIST", help="nodes in Slurm, e.g. 'node[001-008]'"
    )
    init.add_argument("--ci", choices=tuple(CI_FILES), help="write a CI job that runs it too")
    init.set_defaults(run=_init)


def _init(arguments: argparse.Namespace) -> Output:
    trials = 2 * arguments.blocks
    next_steps = [
        f"try it: pytest {TEST_FILE} --xlatune-plan",
        f"run it: pytest {TEST_FILE}   ({counted(trials, 'trial')})",
    ]
    if arguments.ci == "gitlab":
        next_steps.append(f"add to .gitlab-ci.yml:  include: [{{local: {CI_FILES['gitlab']}}}]")
    names = ("command", "model", "parallelism", "baseline", "margin", "blocks", "steps", "executor",
            "nodelist", "ci")  # fmt: skip
    named = {name: getattr(arguments, name) for name in names}
    return Output(
        files=gate_files(arguments.repository.resolve(), **named),
        documents=(brief("What to do next", lines(*next_steps)),),
    )
