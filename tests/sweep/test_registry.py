"""One session has one study: what it concluded for its tests it does not conclude again."""

from __future__ import annotations

import json

from pytest_xlatune.model.profile import profile
from pytest_xlatune.sweep.registry import KINDS, put_in_use, study_of
from tests.helpers.history import study


def test_the_study_of_a_campaign_is_that_of_its_ledger() -> None:
    own = study(3, seed=7)
    assert study_of(own.name, own.to_json()) is not own
    put_in_use(own, own.to_json())
    assert study_of(own.name, json.loads(json.dumps(own.to_json()))) is own


def test_one_with_a_secret_that_no_ledger_has_is_not() -> None:
    own = study(profiles=(profile("token", env={"MY_TOKEN": "hunter2-long-and-secret"}),), seed=7)
    put_in_use(own, own.to_json())
    found = study_of(own.name, own.to_json())
    assert found is not own
    assert "hunter2" not in repr(found)


def test_what_a_sweep_file_can_ask_for_is_told_without_an_import_as_the_classes_tell() -> None:
    for name, kind in KINDS.items():
        assert kind.in_sweep_file is not None, name
        assert kind.is_declared == kind._replace(in_sweep_file=None).is_declared, name
