r"""Which commit of the trainer made it slower.

    pytest sweeps/test_commits.py -m commits --xlatune-commits main..HEAD \
        --xlatune-nodelist 'node[001-008]' --xlatune-model llama3.1-405b \
        --xlatune-parallelism FSDP=64 --xlatune-budget 60

Four pairs of jobs, or eight if four cannot tell, show whether the last commit is slower than the
first at all. Then about one job halves the range each time, and four fresh pairs compare the commit
that was found with its parent. `XLATUNE_TRAINER` names the repository; each trial runs in a
checkout of its commit. docs/how-to/studies.md says how certain the result is.
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
