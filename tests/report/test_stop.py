"""What people are told at night: the stop message, word for word, and the end of a session."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.result import (
    Conclusion,
    TrialResult,
    TrialStatus,
    TuningRecord,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.report.language import ENGLISH
from pytest_xlatune.report.lines import ending_text, stop_message
from tests.helpers import golden
from tests.helpers.history import trial_of

RECORDED = Path(__file__).parents[1] / "data" / "stop.txt"
NODES = ("node001", "node002")
CELL = Cell(model_tag="deepseek3-671b", parallelism=Parallelism.parse("PP=8"), nodelist=NODES)


def verdict(name: str, tgs: float | None, delta: float | None, kind: VerdictKind) -> Verdict:
    return Verdict(arm=name, kind=kind, tgs=tgs, delta=delta, n=int(tgs is not None))


CONCLUSION = Conclusion(
    reference=verdict("baseline-deployed", 962.2, None, VerdictKind.SCREENED),
    verdicts=(
        verdict("slow", 900.0, -0.0647, VerdictKind.SCREENED),
        verdict("overlap-2", 994.9, 0.034, VerdictKind.SCREENED),
        verdict("ag-1g", 970.0, 0.0081, VerdictKind.SCREENED),
        verdict("priority", 960.0, -0.0023, VerdictKind.SCREENED),
        verdict("other-nodes", 2000.0, 1.0, VerdictKind.INVALID),
        verdict("mem-95", None, None, VerdictKind.INCONCLUSIVE),
    ),
)


def result(name: str, status: TrialStatus, *job_ids: str) -> TrialResult:
    trial = trial_of(CELL, profile(name, "--xla_a=1"))
    return TrialResult(trial=trial, status=status, job_ids=job_ids)


HISTORY = (
    result("overlap-2", TrialStatus.MEASURED, "14638"),
    result("ag-1g", TrialStatus.MEASURED, "14640", "14641"),
    result("mem-95", TrialStatus.PLANNED),
)


def stopped(reason: str, **changes: Any) -> str:
    values: dict[str, Any] = {
        "cell": CELL,
        "reason": reason,
        "conclusion": CONCLUSION,
        "history": HISTORY,
        "artifacts": ".xlatune/pp8/cell",
    }
    return stop_message(**values | changes)


def test_the_stop_message_has_all_that_a_decision_needs() -> None:
    said = stopped(
        "node-drain: node002 is drained: bad nic",
        nodes=("node002",),
        evidence="PENDING (ReqNodeNotAvail)",
        recovery=("node-drain: resumed node002",),
    )
    golden.check(RECORDED, f"{said}\n")
    said = stopped(
        "submission-refused: Invalid account",
        cell=replace(CELL, nodelist=()),
        conclusion=replace(CONCLUSION, verdicts=()),
        history=(),
    )
    assert "Failing node(s): not known; recovery attempted: none; outcome: no evidence" in said
    assert "- Profiles tested so far: 0\n- Pending profiles in queue: none\n" in said
    assert "Failing node" not in stopped("budget: it is spent", is_failure=False)
    # the decision names the node, whatever other nodes its sentence holds
    said = stopped("node-drain: gpu12 is drained (asked by gpu1's owner)", nodes=("gpu12",))
    assert "Failing node(s): gpu12; recovery" in said


def test_a_sweep_without_a_winner_never_rules_out_a_gain_that_is_a_loss() -> None:
    bound, words = -0.142, "every setting that was decided is slower, by 14.2 % at least (95 %)."
    over = replace(CONCLUSION, complete=True, record=TuningRecord(bound=bound))
    assert ending_text(ENGLISH, over, stopped="").endswith(words)
