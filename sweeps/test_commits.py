r"""Which commit of the trainer made it slower.

    pytest sweeps/test_commits.py -m commits --xlatune-commits main..HEAD \
        --xlatune-nodelist 'node[001-008]' --xlatune-model llama3.1-405b \
        --xlatune-parallelism FSDP=64 --xlatune-budget 60

First whether the last commit is slower than the first at all: four pairs of jobs, eight where they
cannot tell. Then about one job for each halving of the range, and four fresh pairs of the commit
that is found and its parent. `XLATUNE_TRAINER` names the repository; a trial runs in a checkout of
its own. docs/how-to/studies.md says how sure it is.
"""

from __future__ import annotations

import os

from pytest_xlatune import (
    CellSettings,
    CheckoutLauncher,
    CommandLauncher,
    Commits,
    DesignSettings,
    Protocol,
    Sweep,
    standard_tests,
)

TRAINER = os.environ.get("XLATUNE_TRAINER", "/shared/maxtext")

SWEEP = Sweep(
    name="commits",
    cell=CellSettings(protocol=Protocol(steps=15)),
    launcher=CheckoutLauncher(
        repository=TRAINER,
        inner=CommandLauncher(
            argv=(
                "/opt/venv/bin/python",
                "-m",
                "MaxText.train",
                f"{TRAINER}/MaxText/configs/base.yml",
                "model_name={model_tag}",
                "steps={steps}",
                "dataset_type={dataset_type}",
                "{overrides}",
            ),
            cwd=TRAINER,
        ),
    ),
    study=Commits(),
    design=DesignSettings(budget=60),
)

tests = standard_tests(SWEEP)
