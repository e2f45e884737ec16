"""`sweeps/test_tp8.py` through a checkout of maxtext-slurm: tensor parallelism in a node.

    pytest sweeps/maxtext_slurm/test_tp8_jobs.py --xlatune-config xlatune.toml

`site.py` beside this file says what the settings file holds.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from pytest_xlatune import load_sweep, standard_tests

SITE = load_sweep(Path(__file__).with_name("site.py"))
WHOLE = load_sweep(Path(__file__).parents[1] / "test_tp8.py")

SWEEP = replace(
    WHOLE,
    name=f"{WHOLE.name}-jobs",
    cell=replace(WHOLE.cell, overrides=SITE.cell.overrides),
    launcher=SITE.launcher,
    site=SITE.site,
)

tests = standard_tests(SWEEP, evidence=True)
