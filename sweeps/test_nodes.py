r"""Which nodes are slow.

    pytest sweeps/test_nodes.py -m nodes --xlatune-nodelist 'node[001-032]' \
        --xlatune-model llama2-70b --xlatune-parallelism FSDP=8 \
        --xlatune-launcher python=/opt/venv/bin/python,config=/opt/maxtext/configs/base.yml

One job runs on each node, all at once, and a node that looks slow runs again beside control nodes:
at most five waves of jobs, whatever the number of nodes. Any load that fits one node will do; a
dense model with synthetic data is best. docs/how-to/studies.md says how certain the result is.
"""

from __future__ import annotations

from pytest_xlatune import (
    CellSettings,
    DesignSettings,
    MaxTextLauncher,
    Nodes,
    Protocol,
    Sweep,
    standard_tests,
)

SWEEP = Sweep(
    name="nodes",
    cell=CellSettings(protocol=Protocol(steps=15)),
    launcher=MaxTextLauncher(config="/opt/maxtext/configs/base.yml"),
    study=Nodes(),  # floor_tgs=..., reference_tgs=... if you know them
    design=DesignSettings(budget=300),
)

tests = standard_tests(SWEEP)
