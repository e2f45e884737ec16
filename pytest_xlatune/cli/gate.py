"""`xlatune gate init`: write the test file of a commit gate, and the CI job that runs it."""

from __future__ import annotations

import argparse

from pytest_xlatune.cli.show import Output
from pytest_xlatune.model.text import counted
from pytest_xlatune.report.document import brief, lines
from pytest_xlatune.tasks.write_gate import CI_FILES, TEST_FILE, gate_files


def run_init(arguments: argparse.Namespace) -> Output:
    """Return the files of a gate, and what to do with them."""
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
