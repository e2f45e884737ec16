"""An outcome that cannot be read fails its attempt: the others go on, and it is run again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pytest_xlatune.executors.folder import read_outcomes
from pytest_xlatune.ledger import Decided
from pytest_xlatune.model.message import sentence
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
