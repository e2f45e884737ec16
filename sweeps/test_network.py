r"""Which node or link slows the network.

    pytest sweeps/test_network.py -m network --xlatune-nodelist 'node[001-016]' \
        --xlatune-model llama2-70b --xlatune-parallelism FSDP=16 \
        --xlatune-launcher python=/opt/venv/bin/python,config=/opt/maxtext/configs/base.yml

Disjoint pairs of nodes run in rounds, and what looks slow runs again in fresh pairs. Choose a model
and a parallelism for two nodes, and at least eight steps, of which five count.
docs/how-to/studies.md has the bandwidth test too, racks, and how certain the result is. The command
`xlatune network` does something else: it reads a TPU's Megascale traces.
"""

from __future__ import annotations

from pytest_xlatune import (
    CellSettings,
    DesignSettings,
    MaxTextLauncher,
    Network,
    Protocol,
    Sweep,
    standard_tests,
)

SWEEP = Sweep(
    name="network",
    cell=CellSettings(protocol=Protocol(steps=10, first_step=3, min_steps=5)),  # two may be slow
    launcher=MaxTextLauncher(config="/opt/maxtext/configs/base.yml"),
    study=Network(),  # racks={"rack1": "node[001-008]", ...} beyond 16 nodes
    design=DesignSettings(budget=600),
)

tests = standard_tests(SWEEP)
