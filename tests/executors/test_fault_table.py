"""`make slurm-faults` and the sample of `make test` name tests that there are."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SLURM = ROOT / "tests" / "slurm"


def table(file: str) -> Iterable[str]:
    """Return the tests that a file of `tests/slurm/` names."""
    spec = importlib.util.spec_from_file_location("xlatune_table", SLURM / f"{file}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found: Iterable[str] = vars(module)[f"{file.upper()}"]
    return found


@pytest.mark.parametrize(("file", "folder"), [("faults", ROOT), ("sample", SLURM)])
def test_every_test_that_is_named_is_there(file: str, folder: Path) -> None:
    for name in table(file):
        path, _, test = name.partition("[")[0].partition("::")
        assert f"def {test}(" in (folder / path).read_text(encoding="utf-8"), name
