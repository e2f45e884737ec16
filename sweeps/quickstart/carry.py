"""Does the quickstart's gain carry to a wider model? On this machine, some minutes.

    pytest sweeps/quickstart/carry.py

The small cell is the quickstart's own: its gain is that of the committed report. The cell here is
the same trainer with a model of twice the width, which spends more of a step in library code that
no flag of the compiler changes.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pytest_xlatune import Carry, DesignSettings, Protocol, load_sweep, standard_tests

QUICKSTART = load_sweep(Path(__file__).parents[1] / "test_quickstart.py")

SWEEP = replace(
    QUICKSTART,
    name="carry",
    cell=replace(
        QUICKSTART.cell,
        config_tag="wide",
        overrides={"base_emb_dim": "256", "base_mlp_dim": "1024"},
        protocol=Protocol(steps=16, first_step=6, deadline_s=600),
    ),
    profiles=(QUICKSTART.find("opt-level-1"),),
    study=Carry(small="reports/example/quickstart/leaderboard.json"),
    design=DesignSettings(budget=16),
)

tests = standard_tests(SWEEP)
