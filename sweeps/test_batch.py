r"""Which batch size is fastest, and which is the largest that fits.

    pytest sweeps/test_batch.py -m batch --xlatune-nodelist 'node[001-008]' \
        --xlatune-model llama2-70b --xlatune-parallelism FSDP=8 --xlatune-pdbs 8 \
        --xlatune-launcher python=/opt/venv/bin/python,config=/opt/maxtext/configs/base.yml

The study begins at the given batch size, finds the largest that fits, then the fastest below it.
The recommended setting is in the report, and in `.xlatune/batch.best`. docs/how-to/studies.md says
how certain the result is.
"""

from __future__ import annotations

from pytest_xlatune import (
    BatchSize,
    CellSettings,
    DesignSettings,
    MaxTextLauncher,
    Protocol,
    Sweep,
    standard_tests,
)

SWEEP = Sweep(
    name="batch",
    cell=CellSettings(protocol=Protocol(steps=15)),
    launcher=MaxTextLauncher(config="/opt/maxtext/configs/base.yml"),
    # sizes=(4, 8, 12) if you would deploy only these; sigma=... if a calibration measured it
    study=BatchSize(),
    design=DesignSettings(budget=30),
)

tests = standard_tests(SWEEP)
