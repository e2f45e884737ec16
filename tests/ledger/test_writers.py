"""The ledger loses nothing: not to a kill, not to another writer, not to a full disk."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_xlatune.ledger import Ledger, Noted
from pytest_xlatune.model.errors import LedgerError
from tests.helpers.stories import STORY, write_story
from tests.helpers.waiting import LIMIT_S

WRITER = """
import sys
from pathlib import Path
from pytest_xlatune.ledger import Ledger, Noted
ledger = Ledger(Path(sys.argv[1]))
for number in range(int(sys.argv[3])):
    ledger.append(Noted(text=f"{sys.argv[2]}:{number}:" + "x" * 3000), at_s=float(number))
    print(number, flush=True)
"""


def test_what_is_appended_is_on_the_disk_before_anyone_acts_on_it(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill loses nothing that was written; a power cut loses what was not synced."""
    synced: list[tuple[int, int]] = []

    def sync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        synced.append((found.st_ino, found.st_size))

    monkeypatch.setattr(os, "fsync", sync)
    for count, event in enumerate(STORY[:3], 1):
        ledger.append(event, at_s=0.0)
        found = ledger.path.stat()
        assert synced[-1] == (found.st_ino, found.st_size)
        assert len(synced) == count


def test_four_processes_append_at_once_and_no_line_is_lost(ledger: Ledger) -> None:
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(ledger.path), name, "40"], stdout=subprocess.DEVNULL
        )
        for name in "abcd"
    ]
    assert [writer.wait(LIMIT_S) for writer in writers] == [0] * 4
    texts = [entry.event.text for entry in ledger.refresh() if isinstance(entry.event, Noted)]
    for name in "abcd":
        mine = [int(text.split(":")[1]) for text in texts if text.startswith(name)]
        assert mine == list(range(40))


def test_a_writer_killed_at_any_moment_loses_nothing_that_it_was_told_is_written(
    ledger: Ledger,
) -> None:
    for round_ in range(5):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(ledger.path), str(round_), "100000"],
            stdout=subprocess.PIPE,
        )
        assert writer.stdout is not None
        for _ in range(3 + 2 * round_):
            writer.stdout.readline()
        writer.kill()
        said = writer.stdout.read().splitlines()
        writer.stdout.close()
        assert writer.wait() == -signal.SIGKILL
        acknowledged = 3 + 2 * round_ + len(said)
        texts = [entry.event.text for entry in ledger.refresh() if isinstance(entry.event, Noted)]
        mine = [int(text.split(":")[1]) for text in texts if text.startswith(f"{round_}:")]
        assert mine == list(range(len(mine)))
        assert len(mine) - acknowledged in (0, 1)


def test_a_full_disk_names_the_file_and_the_ledger_goes_on_later(ledger: Ledger) -> None:
    write_story(ledger)
    limit_bytes = ledger.path.stat().st_size + 40
    code = (
        "import sys; from pathlib import Path; from pytest_xlatune.ledger import Ledger, Noted\n"
        "Ledger(Path(sys.argv[1])).append(Noted(text='x' * 100), at_s=0.0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(ledger.path)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes)),
    )
    assert done.returncode == 1
    assert f"LedgerError: {ledger.path} cannot be written" in done.stderr
    ledger.append(Noted(text="space again"), at_s=0.0)
    assert [entry.event for entry in ledger.refresh()] == [*STORY, Noted(text="space again")]


def test_an_unwritable_directory_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    ledger = Ledger(tmp_path / "file" / "ledger.jsonl")
    with pytest.raises(LedgerError, match=r"cannot be locked: .*must be writable"):
        ledger.append(Noted(text="x"), at_s=0.0)


def test_a_lock_that_another_process_holds_is_named(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger.append(Noted(text="x"), at_s=0.0)
    monkeypatch.setattr("pytest_xlatune.ledger._LOCK_TIMEOUT_S", 0.05)
    hold = (
        "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, 2); "
        "print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, f"{ledger.path}.lock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(LedgerError, match="locked by another"):
            ledger.append(Noted(text="y"), at_s=0.0)


def test_archiving_moves_the_ledger_aside_and_deletes_nothing(ledger: Ledger) -> None:
    assert ledger.archive(at_s=0.0) is None
    content = write_story(ledger)
    aside = ledger.archive(at_s=0.0)
    assert aside is not None
    assert (aside.name, aside.read_bytes()) == ("ledger-19700101T000000Z.jsonl", content)
    assert ledger.refresh() == ()
    ledger.append(Noted(text="afresh"), at_s=0.0)
    again = ledger.archive(at_s=0.0)
    assert again is not None
    assert again.name == "ledger-19700101T000000Z-2.jsonl"
    assert aside.read_bytes() == content


def test_a_reader_of_a_ledger_that_was_moved_aside_is_told(ledger: Ledger) -> None:
    reader = Ledger(ledger.path)
    ledger.append(*STORY, at_s=0.0)
    reader.refresh()
    ledger.archive(at_s=0.0)
    with pytest.raises(LedgerError, match="cannot be read"):
        reader.refresh()
    ledger.append(Noted(text="afresh"), at_s=0.0)
    for _ in range(2):  # a shorter one; then one that has outgrown what was read
        with pytest.raises(LedgerError, match="was replaced while"):
            reader.refresh()
        ledger.append(*STORY, at_s=0.0)
