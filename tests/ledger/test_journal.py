"""The journal comes back as it was written, from any prefix, and says what it cannot trust."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_xlatune.ledger import Ledger, Noted
from pytest_xlatune.ledger.state import LedgerState, replay
from pytest_xlatune.model.errors import LedgerError
from tests.helpers.stories import STORY, write_story


def test_a_reader_gets_only_what_is_new(ledger: Ledger) -> None:
    reader = Ledger(ledger.path)
    assert reader.refresh() == ()
    ledger.append(*STORY[:2], at_s=1.0)
    assert [entry.event for entry in reader.refresh()] == list(STORY[:2])
    assert reader.refresh() == ()
    ledger.append(STORY[2], at_s=2.0)
    assert [entry.event for entry in reader.refresh()] == [STORY[2]]


def test_a_line_that_was_read_before_is_no_memory_of_its_file(ledger: Ledger) -> None:
    ledger.append(Noted(text="one"), Noted(text="two"), Noted(text="one"), at_s=1.0)
    assert [entry.number for entry in Ledger(ledger.path).refresh()] == [1, 2, 3]
    before = ledger.path.read_bytes()
    one, two = before.splitlines(keepends=True)[:2]
    for text, numbers in ((two + one, [1, 2]), (before[:-1], [1, 2]), (two + two + one, [1, 2, 3])):
        ledger.path.write_bytes(text)  # cut in place, and grown again: the same file to `stat`
        entries = Ledger(ledger.path).refresh()
        assert [entry.number for entry in entries] == numbers
        assert [entry.event for entry in entries] == [
            Noted(text=json.loads(line)["text"]) for line in text.splitlines(True)[: len(numbers)]
        ]
    damaged = one.replace(b"noted", b"nosed")
    for text, where in ((damaged, ":1: "), (one + damaged, ":2: ")):
        ledger.path.write_bytes(text)
        with pytest.raises(LedgerError, match=f"{ledger.path}{where}nosed: no event"):
            Ledger(ledger.path).refresh()


@given(data=st.data())
def test_any_prefix_is_readable_and_can_be_gone_on_with(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = write_story(Ledger(tmp_path_factory.mktemp("whole") / "ledger.jsonl"))
    cut = data.draw(st.integers(0, len(whole)))
    path = tmp_path_factory.mktemp("prefix") / "ledger.jsonl"
    path.write_bytes(whole[:cut])
    complete = whole[:cut].count(b"\n")
    reader = Ledger(path)
    assert tuple(entry.event for entry in reader.refresh()) == STORY[:complete]
    replay(Ledger(path).refresh())

    Ledger(path).append(Noted(text="after the kill"), at_s=9.0)
    assert [entry.event for entry in reader.refresh()] == [Noted(text="after the kill")]
    events = tuple(entry.event for entry in Ledger(path).refresh())
    assert events == (*STORY[:complete], Noted(text="after the kill"))


@given(splits=st.lists(st.integers(0, len(STORY)), max_size=4))
def test_replaying_in_parts_is_the_same_as_in_one_go(
    tmp_path_factory: pytest.TempPathFactory, splits: list[int]
) -> None:
    ledger = Ledger(tmp_path_factory.mktemp("parts") / "ledger.jsonl")
    write_story(ledger)
    entries = ledger.refresh()
    state: LedgerState | None = None
    at = [0, *sorted(splits), len(entries)]
    for begin, end in itertools.pairwise(at):
        state = replay(entries[begin:end], onto=state)
    assert state == replay(entries)


LINE = b'{"schema":4,"at":1.0,"event":"noted","text":"fine"}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (LINE + LINE[:20] + b"\n" + LINE, r":2: unreadable line .* Restore the file"),
        (LINE + LINE[:20] + LINE, r":2: unreadable line"),
        (LINE.replace(b'"schema":4', b'"schema":3'), r":1: found schema 3, written by another ver"),
        (b"step: 4, loss: 3.1\n", r"is not a ledger: .*found b'step: 4"),
        (b"step: 4", r"is not a ledger"),
        (LINE + LINE.replace(b"noted", b"sung"), r":2: sung: no event"),
        (LINE.replace(b"text", b"words"), r":1: noted: .*nknown field `words`"),
        (LINE.replace(b"1.0", b'"noon"'), r":1: unreadable line "),
    ],
    ids=[
        "a torn inner line that no writer marked",
        "two lines glued together",
        "another schema",
        "a log",
        "a log without a newline",
        "an unknown event",
        "an unknown field",
        "a time that is none",
    ],
)
def test_a_file_that_cannot_be_trusted_is_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(content)
    reader = Ledger(path)
    for _ in range(2):  # and not swallowed by asking again
        with pytest.raises(LedgerError, match=message):
            reader.refresh()
    assert path.read_bytes() == content


def test_a_torn_line_is_marked_by_the_next_writer_and_skipped(ledger: Ledger) -> None:
    ledger.append(Noted(text="a"), at_s=0.0)
    with ledger.path.open("ab") as file:
        file.write(LINE[:30])
    ledger.append(Noted(text="b"), at_s=0.0)
    lines = ledger.path.read_bytes().splitlines()
    assert lines[1].startswith(LINE[:30])
    assert b"# torn" in lines[1]
    assert [(entry.number, entry.event) for entry in ledger.refresh()] == [
        (1, Noted(text="a")),
        (3, Noted(text="b")),
    ]


def test_a_line_is_json_with_schema_time_and_event_first(ledger: Ledger) -> None:
    ledger.append(Noted(text="hello"), at_s=12.5)
    line = ledger.path.read_text(encoding="ascii")
    assert list(json.loads(line)) == ["schema", "at", "event", "about", "text", "why"]
    assert os.linesep not in line[:-1]
