r"""Which nodes are slow: one job on each, all at once; what looks slow again beside controls.

    pytest sweeps/test_nodes.py -m nodes --xlatune-nodelist 'node[001-032]' \
        --xlatune-model llama2-70b --xlatune-parallelism FSDP=8 \
        --xlatune-launcher python=/opt/venv/bin/python,config=/opt/maxtext/configs/base.yml

Any load that fits one node will do, a dense model with synthetic data best. Five waves of jobs at
most, whatever the number of nodes. A sweep takes the nodes that it recommends with
`--xlatune-nodelist=@healthy`. docs/how-to/studies.md says how sure it is.
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
    study=Nodes(),  # floor_tgs=..., reference_tgs=... where you know them
    design=DesignSettings(budget=300),
)

tests = standard_tests(SWEEP)
