r"""Checks of the lab's nodes and of its network, and a sweep beside them: pretending trainers.

The lab's nodes share this machine's cores, so a step says how long it took: on node003 alone 30 %
longer, and on the pair node002 and node003 too. It is no test by itself:
`test_slurm_two_studies.py` runs it with pytest. The reports in reports/example/nodes and
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
import time

from pytest_xlatune import (
    CellSettings,
    CommandLauncher,
    DesignSettings,
    Network,
    Nodes,
    Protocol,
    Resources,
    SiteSettings,
    Sweep,
    profile,
    standard_tests,
)

# ruff: noqa: T201 - a trainer prints

STEP_S = 0.3
STAY_S = 1.0  # of a trainer: two on a node at once are told
PROTOCOL = Protocol(steps=12)
LAUNCHER = CommandLauncher(argv=(sys.executable, __file__, "{trial}"))
SITE = SiteSettings(resources=Resources(time_limit_s=300))


def cell(parallelism: str) -> CellSettings:
    return CellSettings(model_tag="sleeping", parallelism=parallelism, protocol=PROTOCOL)


BESIDE = Sweep(
    name="beside",
    cell=cell("FSDP=8"),
    launcher=LAUNCHER,
    # no line of the trainer shows it
    site=SiteSettings(resources=Resources(time_limit_s=300), unseen=("LAB_PROFILE",)),
    profiles=tuple(profile(f"p{at}", env={"LAB_PROFILE": str(at)}) for at in (1, 2)),
    design=DesignSettings(screen_baselines=2, finalists=1, blocks=4, block_baselines=1, budget=20),
)
SWEEPS = {
    "nodes": Sweep(name="nodes", cell=cell("FSDP=8"), launcher=LAUNCHER, site=SITE, study=Nodes()),
    "network": Sweep(
        name="network", cell=cell("FSDP=16"), launcher=LAUNCHER, site=SITE, study=Network()
    ),
    "beside": BESIDE,
}
SWEEP = SWEEPS[os.environ.get("LAB_CHECK", "nodes")]
if __name__ != "__main__":
    tests = standard_tests(SWEEP)


def train(trial: str) -> None:
    """Print steps as MaxText does; each rank says where and when it ran."""
    is_slow = trial.startswith(("node003-", "node002+node003-"))
    own = hashlib.sha256(trial.rpartition("-")[0].encode()).digest()[0] / 255 - 0.5
    step_s = STEP_S * (1.3 if is_slow else 1.0) * (1 + 0.004 * own)
    print(f"began {time.time():.3f}", flush=True)
    time.sleep(STAY_S)
    if os.environ.get("SLURM_PROCID", "0") == "0":
        for step in range(PROTOCOL.steps):
            print(
                f"completed step: {step}, seconds: {step_s:.6f}, TFLOP/s/device: 0.1, "
                f"Tokens/s/device: {512 / step_s:.3f}, total_weights: 512, loss: 7.1",
                flush=True,
            )
    print(f"ended {time.time():.3f}", flush=True)


if __name__ == "__main__":
    train(sys.argv[1])
