"""A regression gate on the quickstart's cell: may the candidate be deployed?

    pytest sweeps/test_gate.py --junitxml=junit.xml          # exit code 0: it may

The deployed environment lowers the compiler's optimisation level, and the candidate sets it back to
the default. Both are measured side by side in blocks. `key` separates this run of the gate from
earlier ones: with the commit as key, a new commit is never compared with trials of an old one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pytest_xlatune import (
    CellSettings,
    Gate,
    MaxTextLauncher,
    Protocol,
    SiteSettings,
    Sweep,
    deployed_env,
    profile,
    standard_tests,
)

HERE = Path(__file__).parent / "quickstart"

SWEEP = Sweep(
    name="gate",
    cell=CellSettings(
        model_tag="quickstart",
        parallelism="FSDP=2",
        devices=2,
        per_device_batch_size=2,
        max_target_length=64,
        deployed=deployed_env(HERE / "configs" / "quickstart.env.sh", parallelism="FSDP=2"),
        protocol=Protocol(steps=20, first_step=8, deadline_s=300),
    ),
    launcher=MaxTextLauncher(
        python=sys.executable,
        module=str(HERE / "train.py"),
        config=str(HERE / "configs" / "quickstart.yml"),
        axis_prefix={"FSDP": "ici", "PP": "ici"},  # a CPU has no slices
    ),
    profiles=(
        profile(
            "restored",
            "--xla_backend_optimization_level=3",
            note="the compiler's default level",
        ),
    ),
    site=SiteSettings(executor="local"),
    gate=Gate(
        margin=0.05,  # a loss that is accepted, as a share: one machine is noisy
        blocks=4,
        key=os.environ.get("CI_COMMIT_SHA", ""),
    ),
)

tests = standard_tests(SWEEP)
