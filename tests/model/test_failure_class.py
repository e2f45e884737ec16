"""Failure classes: one list, which everything that names a class keeps to."""

from __future__ import annotations

from pytest_xlatune.campaign.playbook import CLASS_RULES
from pytest_xlatune.model.failure import Action, Blame, FailureClass, signatures


def test_the_table_and_the_playbook_know_no_other_class() -> None:
    assert [*signatures()["class"]] == [*FailureClass]
    assert {*CLASS_RULES} <= set(FailureClass)


def test_a_class_is_a_row_and_no_row_has_an_unknown_word() -> None:
    keys = {"meaning", "advice", "action", "tier", "blame", "digest"}
    for cls, row in signatures()["class"].items():
        assert set(row) <= keys, cls
        assert {*row.get("blame", ())} <= {*Blame}, cls
        assert FailureClass(cls).action in (*Action, None)
