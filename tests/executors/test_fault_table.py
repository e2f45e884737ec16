"""The table of `make slurm-faults` names tests that there are; running it takes the lab."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_fault_of_the_table_has_its_test() -> None:
    path = ROOT / "tests" / "slurm" / "faults.py"
    spec = importlib.util.spec_from_file_location("xlatune_fault_table", path)
    assert spec is not None
    assert spec.loader is not None
    table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    for name in table.FAULTS:
        file, _, test = name.partition("::")
        assert f"def {test}(" in (ROOT / file).read_text(encoding="utf-8"), name
