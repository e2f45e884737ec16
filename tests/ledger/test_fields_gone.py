"""Ledgers of versions that had a field more: read where it said what holds today, else refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.ledger import CampaignOpened, Ledger
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.studies.tuning import TuningStudy
from pytest_xlatune.sweep.registry import study_of
from tests.helpers.answers import study

# what a study of a sweep wrote while it had these settings, each at its default
BEFORE = {"early_end": "off", "equivalence": 0.01, "second_blocks": 0}


def declared_in(path: Path, **written: Any) -> dict[str, Any]:
    """The study of the first line of a ledger, as an older version wrote it."""
    own = study(3)
    opened = CampaignOpened(
        cells=own.cells, study=own.name, sweep="pp8", session="s", declared=own.to_json() | written
    )
    line = {"schema": 2, "at": 1.0, "event": CampaignOpened.kind, **opened.to_json()}
    path.write_text(json.dumps(line) + "\n", encoding="utf-8")
    (entry,) = Ledger(path).refresh()
    assert isinstance(entry.event, CampaignOpened)
    return entry.event.declared


def test_the_settings_that_are_gone_are_those_of_the_test() -> None:
    assert TuningStudy.gone == BEFORE


def test_a_ledger_with_settings_that_are_gone_is_read(tmp_path: Path) -> None:
    found = declared_in(tmp_path / "ledger.jsonl", **BEFORE)
    assert study_of("tuning", found) == study(3)


@pytest.mark.parametrize("name", BEFORE)
def test_a_study_that_used_one_is_refused_with_a_way_on(tmp_path: Path, name: str) -> None:
    found = declared_in(tmp_path / "ledger.jsonl", **BEFORE | {name: "used"})
    with pytest.raises(LedgerError) as told:
        study_of("tuning", found)
    assert str(told.value) == (
        f"TuningStudy: {name} is 'used', and this version knows {BEFORE[name]!r} alone; read it "
        "with the version that wrote it"
    )
