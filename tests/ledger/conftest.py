"""A ledger with nothing in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_xlatune.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "cell" / "ledger.jsonl")
