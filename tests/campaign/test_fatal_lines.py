"""A line after which a program cannot go on may quote a secret; the ledger does not."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pytest_xlatune.ledger import AttemptCutShort
from pytest_xlatune.ledger.now import read_now
from pytest_xlatune.model.errors import SubmissionError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.redact import HIDDEN
from pytest_xlatune.model.result import Outcome, State
from tests.helpers.scripted import CELL, OK, UNKNOWN_FLAG, FakeExecutor, campaign, log

HUSH = "hush-hush-9"
SECRETIVE = msgspec.structs.replace(CELL, deployed={**CELL.deployed, "HF_TOKEN": HUSH})


def test_the_line_that_an_attempt_is_ended_for_is_written_without_the_secret(
    tmp_path: Path,
) -> None:
    text = log(steps=2, last=f"{UNKNOWN_FLAG} {HUSH}")
    executor = FakeExecutor(lambda *_: (text, OK))
    executor.holds = True
    ticks = [0.0]
    made = campaign(tmp_path, executor, cell=SECRETIVE, clocks={"ticks": lambda: ticks[0]})
    for _ in range(4):
        made.turn()
        ticks[0] += 100.0
    (cut,) = [each.event for each in made.ledger.__class__(made.ledger.path).refresh()
              if isinstance(each.event, AttemptCutShort)]  # fmt: skip
    assert cut.fatal is not None
    assert HIDDEN in cut.fatal.text
    executor.holds = False
    executor.cancelled.clear()
    made.turn()
    (told,) = [each for each in made.view().state.decisions if each.cls][:1]
    assert told.cls == FailureClass.UNKNOWN_FLAG, "the same line, hidden on both sides"
    assert HUSH not in made.ledger.path.read_text(encoding="utf-8")


def test_neither_a_schedulers_refusal_nor_its_word_of_a_job_shows_one(tmp_path: Path) -> None:
    executor = FakeExecutor()
    executor.holds = True
    waits = Outcome(state=State.PENDING, reason=f"held: comment {HUSH}")
    executor.poll = lambda these, **_: {each.job_id: waits for each in these}  # type: ignore[method-assign]
    made = campaign(tmp_path, executor, cell=SECRETIVE)
    made.turn()
    made.turn()
    (job,) = read_now(made.folder).jobs.values()
    assert job.reason == f"held: comment {HIDDEN}"
    assert str(SubmissionError(f"sbatch: {HUSH}")) == f"sbatch: {HIDDEN}"
