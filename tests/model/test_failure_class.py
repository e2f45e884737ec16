"""Failure classes: one list, which everything that names a class keeps to."""

from __future__ import annotations

from pytest_xlatune.campaign.playbook import CLASS_RULES
from pytest_xlatune.model.failure import Action, Blame, FailureClass, signatures


def test_a_class_is_its_name_and_says_what_it_means() -> None:
    for each in FailureClass:
        assert each.value == each.name.lower().replace("_", "-")
        assert FailureClass(each.value) is each
        assert f"{each}" == each.value
        assert each.meaning
        assert each.advice
        assert not each.meaning.endswith("."), each


def test_no_two_classes_mean_the_same() -> None:
    assert len({each.meaning for each in FailureClass}) == len(FailureClass)


def test_the_table_and_the_playbook_know_no_other_class() -> None:
    assert [*signatures()["class"]] == [*FailureClass]
    assert {*CLASS_RULES} <= set(FailureClass)


def test_a_class_is_a_row_and_no_row_has_an_unknown_word() -> None:
    keys = {"meaning", "advice", "action", "tier", "blame", "digest"}
    for cls, row in signatures()["class"].items():
        assert set(row) <= keys, cls
        assert {*row.get("blame", ())} <= {*Blame}, cls
        assert FailureClass(cls).action in (*Action, None)
