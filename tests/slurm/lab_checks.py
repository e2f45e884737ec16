r"""Checks of the lab's nodes and of its network, by trainers that pretend.

The lab's nodes share this machine's cores, so a step says how long it took: on node003 alone 30 %
longer, and on the pair node002 and node003 too. The reports in reports/example/nodes and
reports/example/network are made by

    python tests/slurm/lab.py start && eval "$(python tests/slurm/lab.py env)"
    for LAB_CHECK in nodes network; do
        export LAB_CHECK
        pytest tests/slurm/lab_checks.py -m $LAB_CHECK --xlatune-nodelist 'node[001-004]' \
            --xlatune-reports reports/example --xlatune-workdir .xlatune/example --xlatune-fresh
    done

In the committed ones the paths of that machine are written as /opt/venv and /shared/xlatune.
"""

from __future__ import annotations

import hashlib
import os
import sys

from pytest_xlatune import (
    CellSettings,
    CommandLauncher,
    Network,
    Nodes,
    Protocol,
    Resources,
    SiteSettings,
    Sweep,
    standard_tests,
)

# ruff: noqa: T201 - a trainer prints

STEP_S = 0.3
PROTOCOL = Protocol(steps=12)
LAUNCHER = CommandLauncher(argv=(sys.executable, __file__, "{trial}"))
SITE = SiteSettings(resources=Resources(time_limit_s=300))


def cell(parallelism: str) -> CellSettings:
    return CellSettings(model_tag="sleeping", parallelism=parallelism, protocol=PROTOCOL)


SWEEPS = {
    "nodes": Sweep(name="nodes", cell=cell("FSDP=8"), launcher=LAUNCHER, site=SITE, study=Nodes()),
    "network": Sweep(
        name="network", cell=cell("FSDP=16"), launcher=LAUNCHER, site=SITE, study=Network()
    ),
}
SWEEP = SWEEPS[os.environ.get("LAB_CHECK", "nodes")]
if __name__ != "__main__":
    tests = standard_tests(SWEEP)


def train(trial: str) -> None:
    is_slow = trial.startswith(("node003-", "node002+node003-"))
    own = hashlib.sha256(trial.rpartition("-")[0].encode()).digest()[0] / 255 - 0.5
    step_s = STEP_S * (1.3 if is_slow else 1.0) * (1 + 0.004 * own)
    if os.environ.get("SLURM_PROCID", "0") == "0":
        for step in range(PROTOCOL.steps):
            print(
                f"completed step: {step}, seconds: {step_s:.6f}, TFLOP/s/device: 0.1, "
                f"Tokens/s/device: {512 / step_s:.3f}, total_weights: 512, loss: 7.1",
                flush=True,
            )


if __name__ == "__main__":
    train(sys.argv[1])
