r"""All models on one commit, or on two of them: which ones run, and which became slower.

    pytest sweeps/test_models.py -m commits --xlatune-commits main,HEAD \
        --xlatune-nodelist 'node[001-008]' --xlatune-budget 80

Each model runs on the same nodes whatever else the table holds; models on 1, 2 and 4 nodes run at
the same time. A model that looks slower runs again in four fresh pairs of both commits.
`XLATUNE_TRAINER` names the repository. docs/how-to/studies.md says how certain the result is.
"""

from __future__ import annotations

import os

from pytest_xlatune import (
    CellSettings,
    CheckoutLauncher,
    CommandLauncher,
    Commits,
    DesignSettings,
    Load,
    Protocol,
    Sweep,
    standard_tests,
)

TRAINER = os.environ.get("XLATUNE_TRAINER", "/shared/maxtext")

# eight devices a node; each model at the node counts that it is run at
LOADS = (
    Load(model="llama2-70b", nodes=1, parallelism="FSDP=8"),
    Load(model="llama2-70b", nodes=2, parallelism="FSDP=16"),
    Load(model="mixtral-8x22b", nodes=4, parallelism="FSDP=32"),
    Load(model="mixtral-8x22b", nodes=8, parallelism="DP=2,FSDP=32"),
    Load(model="grok-1", nodes=8, parallelism="FSDP=64"),
    Load(model="grok-2", nodes=8, parallelism="FSDP=64", overrides={"scan_layers": "false"}),
    Load(model="llama3.1-405b", nodes=8, parallelism="FSDP=64"),
    Load(model="deepseek3-671b", nodes=8, parallelism="FSDP=64"),
    Load(model="kimi-k2-1t", nodes=8, parallelism="FSDP=64"),
    Load(model="qwen3-480b-a35b", nodes=8, parallelism="FSDP=64"),
)

SWEEP = Sweep(
    name="models",
    cell=CellSettings(model_tag="all-models", parallelism="FSDP=64", protocol=Protocol(steps=15)),
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
    study=Commits(loads=LOADS),
    design=DesignSettings(budget=80),
)

tests = standard_tests(SWEEP)
