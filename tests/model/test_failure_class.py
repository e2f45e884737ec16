"""Failure classes: one list, which everything that names a class keeps to."""

from __future__ import annotations

from pytest_xlatune.campaign.playbook import CLASS_RULES, STATE_CLASSES
from pytest_xlatune.model.failure import NODE_CLASSES, FailureClass


def test_a_class_is_its_name_and_says_what_it_means() -> None:
    for each in FailureClass:
        assert each.value == each.name.lower().replace("_", "-")
        assert FailureClass(each.value) is each
        assert f"{each}" == each.value
        assert each.meaning, each
        assert not each.meaning.endswith("."), each


def test_no_two_classes_mean_the_same() -> None:
    assert len({each.meaning for each in FailureClass}) == len(FailureClass)


def test_the_playbook_and_the_campaign_know_no_other_class() -> None:
    named = {*CLASS_RULES, *(cls for cls, _ in STATE_CLASSES.values()), *NODE_CLASSES}
    assert named <= set(FailureClass)
