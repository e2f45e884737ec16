"""An outcome that cannot be read fails its attempt: the others go on, and it is run again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from pytest_xlatune.executors.folder import read_outcomes
from pytest_xlatune.ledger import Decided
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import Outcome, Submission, TrialStatus
from tests.helpers.scripted import FakeExecutor, campaign, run


class Damaging(FakeExecutor):
    """Tells the outcome that stands in the folder of an attempt, where one stands there."""

    def __init__(self, content: str, *, times: int) -> None:
        super().__init__()
        self._content, self._times = content, times

    def poll(self, submissions: Sequence[Submission], *, root: Path) -> Mapping[str, Outcome]:
        found = dict(super().poll(submissions, root=root))
        for each in submissions:
            if each.trial_id.startswith("fast-wave2") and each.attempt <= self._times:
                path = root / each.folder / "outcome.json"
                if not path.with_name("outcome.json.unreadable").exists():
                    path.write_text(self._content, encoding="utf-8")
                found[each.job_id] = read_outcomes(root / each.folder)[0]
        return found


@pytest.mark.parametrize("content", ["", "[" * 100_000, '{"state": "completed", "end_s": NaN}'],
                         ids=["empty", "brackets", "NaN"])  # fmt: skip
def test_it_is_told_and_retried_and_the_file_is_kept(tmp_path: Path, content: str) -> None:
    made = campaign(tmp_path, Damaging(content, times=1))
    run(made)
    state = made.view().state
    (told,) = [each for each in state.decisions if each.cls]
    assert (told.cls, told.next) == (FailureClass.OUTCOME_UNREADABLE, Next.RETRY)
    assert sentence(told.why).startswith("what it wrote of its end cannot be read: ")
    assert "outcome.json" in sentence(told.why)
    assert sentence(told.why).endswith(": retried on the same nodes")
    assert all(each.result.status is TrialStatus.MEASURED for each in state.trials.values())
    (aside,) = made.folder.rglob("outcome.json.unreadable")
    assert aside.read_text(encoding="utf-8") == content
    assert made.conclude().complete


def test_where_it_comes_again_the_others_are_measured(tmp_path: Path) -> None:
    made = campaign(tmp_path, Damaging("torn", times=9))
    run(made)
    state = made.view().state
    lost = [each.result for each in state.trials.values() if each.trial.arm == "fast"]
    assert lost[0].status is TrialStatus.UNMEASURED
    assert "2 times in a row: not measured" in sentence(lost[0].reason)
    others = [each.result for each in state.trials.values() if each.trial.arm != "fast"]
    assert all(each.status is TrialStatus.MEASURED for each in others)
    assert isinstance(state.decisions[-1], Decided)
