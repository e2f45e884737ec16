"""A damaged ledger: no process goes on with a part of it, and starting over keeps the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.message import sentence
from tests.helpers.resolved import again
from tests.helpers.scripted import FakeExecutor, campaign, run


def without_an_intention(content: bytes) -> bytes:
    """Cut out one line: an attempt is submitted that no process intended."""
    lines = content.splitlines(keepends=True)
    at = [n for n, line in enumerate(lines) if b"attempt-intended" in line][3]
    return b"".join((*lines[:at], *lines[at + 1 :]))


@pytest.fixture
def whole(tmp_path: Path) -> Campaign:
    """A campaign that came to its end."""
    made = campaign(tmp_path, FakeExecutor())
    run(made)
    return made


def test_no_campaign_goes_on_with_a_part_of_a_damaged_ledger(whole: Campaign) -> None:
    path = whole.ledger.path
    path.write_bytes(without_an_intention(path.read_bytes()))
    executor = FakeExecutor()
    more = again(whole, whole.study, session="second", executor=executor)
    for ask in (more.open, more.open, more.view, more.turn, more.conclude):
        with pytest.raises(LedgerError, match="attempt-submitted cannot follow"):
            ask()
    assert executor.submitted == []


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "an inner line is torn": lambda content: content.replace(b'"event":"trial-planned"', b"\n", 1),
    "an attempt that no process intended": without_an_intention,
    "the same file twice": lambda content: content * 2,
    "binary": lambda _: bytes(range(256)) * 2,
    "a newline and no more": lambda _: b"\n",
    "a byte order mark": lambda content: b"\xef\xbb\xbf" + content,
    "a line without a schema": lambda content: content.replace(b'{"schema":4,', b"{"),
    "an unknown event": lambda content: content.replace(b'"trial-planned"', b'"trial-dreamt"'),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_starting_over_moves_a_damaged_ledger_aside(whole: Campaign, damage: str) -> None:
    path, work_dir = whole.ledger.path, whole.folder.parent.parent
    content = DAMAGES[damage](path.read_bytes())
    path.write_bytes(content)
    executor = FakeExecutor()
    with pytest.raises(LedgerError, match=rf"^{path}[: ]") as error:
        campaign(work_dir, executor, session="second")
    assert str(error.value).endswith(
        "start over with --xlatune-fresh, which moves the file aside and deletes nothing"
    )
    assert path.read_bytes() == content

    again = campaign(work_dir, executor, session="second", fresh=True)
    (aside,) = path.parent.glob("ledger-*.jsonl")
    assert aside.read_bytes() == content
    assert any(
        "cannot read its job ids" in note for note in map(sentence, again.view().state.notes)
    )
    run(again)
    assert again.conclude().complete
    assert campaign(work_dir, executor, session="second", fresh=True).view().pending == ()
