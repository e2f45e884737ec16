"""Ledgers and reports of schema 2 had a text where a reason is now: they are read, and say it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.ledger import Decided, EpochBegan, EpochCause, Ledger, TrialEnded
from pytest_xlatune.model.environment import RunRecord
from pytest_xlatune.model.reason import Reason, Why, verbatim
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import (
    Action,
    Conclusion,
    Finding,
    StudyRecord,
    TrialResult,
    TrialSetting,
)
from pytest_xlatune.report.words import joined, sentence
from pytest_xlatune.studies.batch_size import BatchRecord
from tests.helpers.finished import CONCLUSION, HISTORY


def as_text(told: Any) -> Any:
    """Return JSON as schema 2 had it: a text in the place of each reason, "" where there is none.

    A profile's origin was a part of its note.
    """
    if isinstance(told, list):
        return [as_text(each) for each in told]
    if not isinstance(told, dict):
        return told
    if told.get("kind") in {*Why}:
        return sentence(Reason.from_json(told))
    kept = {name: as_text(each) for name, each in told.items() if name != "origin"}
    absent = {"reason", "method"} & {name for name, each in kept.items() if each is None}
    return {**kept, **dict.fromkeys(absent, "")}


def test_a_ledger_of_schema_2_is_read_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    lost = next(each for each in HISTORY if each.reason is not None)
    kept = next(each for each in HISTORY if each.reason is None)
    lines = [
        {"schema": 2, "at": at, "event": "trial-ended", "result": as_text(each.to_json())}
        for at, each in enumerate((lost, kept), start=1)
    ]
    assert [isinstance(each["result"]["reason"], str) for each in lines] == [True, True]
    path.write_text("".join(f"{json.dumps(each, separators=(',', ':'))}\n" for each in lines))
    ledger = Ledger(path)
    read = [entry.event for entry in ledger.refresh()]
    found = [each.result for each in read if isinstance(each, TrialEnded)]
    assert [sentence(each.reason) for each in found] == [sentence(lost.reason), ""]
    assert found[1].reason is None
    assert found[0].trial.id == lost.trial.id
    ledger.append(TrialEnded(result=lost), at_s=3.0)
    (again,) = ledger.refresh()
    assert again.event == TrialEnded(result=lost)


def test_a_conclusion_of_schema_2_says_what_it_said() -> None:
    old = as_text(CONCLUSION.to_json())
    assert all(isinstance(why, str) for each in old["verdicts"] for why in each["reasons"])
    read = Conclusion.from_json(old)
    for one, other in zip(read.verdicts, CONCLUSION.verdicts, strict=True):
        assert joined(one.reasons) == joined(other.reasons)
        assert sentence(one.method) == sentence(other.method)
        assert one.against is other.against is None
    assert joined(read.notes) == joined(CONCLUSION.notes)


def test_a_field_that_has_another_name_now_is_found() -> None:
    old = BatchRecord(value="8").to_json() | {"sentence": "recommended: per_device_batch_size=8"}
    del old["answer"]
    read = StudyRecord.from_json(old)
    assert isinstance(read, BatchRecord)
    assert read.answer == verbatim("recommended: per_device_batch_size=8")


# a text of an older version, as the ledger holds it, and where it is read
OLDER = [
    pytest.param(
        Decided.from_json(
            {"trial_id": "t", "attempt": 1, "next": "retry", "cls": "killed",
             "evidence": "the last step is 2 of 15; local: signal 9",
             "detail": "signal 9; its log: w/log.0.txt"}
        ).proof,
        "the last step is 2 of 15; local: signal 9",
        id="how far an attempt came",
    ),
    pytest.param(
        Finding.from_json(
            {"cls": "no-score", "action": "retry", "text": "no step was logged"}
        ).said,
        "no step was logged",
        id="a finding that no line of a log shows",
    ),
    pytest.param(
        TrialSetting.from_json(
            {"name": "a", "kind": "flag", "asked": "1", "effect": "contradicted",
             "witness": "the log", "seen": "not set, for XLA stops reading at 'b'"}
        ).said,
        "not set, for XLA stops reading at 'b'",
        id="what a witness shows of a setting",
    ),
    pytest.param(
        EpochBegan.from_json(
            {"cause": "changed", "nodes": ["n1"],
             "changes": ["jaxlib 0.9 -> 0.10", "driver 1 -> 2"]}
        ).why,
        "on n1 changed: jaxlib 0.9 -> 0.10; driver 1 -> 2",
        id="what changed on a node",
    ),
    pytest.param(
        RunRecord.from_json({"changes": ["on n1 changed: jaxlib 0.9 -> 0.10"]}).changes[0],
        "on n1 changed: jaxlib 0.9 -> 0.10",
        id="the same in the JSON of a document",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("read", "said"), OLDER)
def test_a_text_of_an_older_version_is_said_as_it_stands(read: Reason | None, said: str) -> None:
    assert sentence(read) == said
    assert "{" not in sentence(read)


@pytest.mark.parametrize(
    ("event", "why", "said"),
    [
        pytest.param(
            Decided(trial_id="t", attempt=1, next=Next.RETRY, evidence="local: signal 9",
                    shown=Reason(Why.LAST_STEP, step=2, steps=15)),
            "proof", "local: signal 9; the last step is 2 of 15",
            id="a scheduler's words, and how far it came",
        ),
        pytest.param(
            Decided(trial_id="t", attempt=1, next=Next.STOP, cls="node-drain", revived=2),
            "why", "node-drain: resumed 2 times without a measured trial since: the sweep stops",
            id="nodes that were resumed in vain",
        ),
        pytest.param(
            EpochBegan(cause=EpochCause.HOOK, cls="nic-fault", nodes=("n1",), action=Action.HOOK,
                       faults=("n1 is down",)),
            "said",
            "nic-fault: the site did hook; after scontrol update State=RESUME: n1 is down: scores "
            "before and after are not compared",
            id="what a site did",
        ),
        pytest.param(
            EpochBegan(cause=EpochCause.SWAPPED, nodes=("n2",), were=("n1",)),
            "why", "nodes are n2, were n1", id="other nodes",
        ),
    ],
)  # fmt: skip
def test_an_event_tells_reasons_and_is_the_same_after_a_way_through_json(
    event: Decided | EpochBegan, why: str, said: str
) -> None:
    again = type(event).from_json(json.loads(json.dumps(event.to_json())))
    assert again == event
    assert sentence(getattr(again, why)) == said


@pytest.mark.parametrize("result", HISTORY[:3])
def test_todays_results_are_the_same_after_a_way_through_json(result: TrialResult) -> None:
    text = json.dumps(result.to_json())
    assert TrialResult.from_json(json.loads(text)) == result
