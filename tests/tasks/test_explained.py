"""Why a winner wins, from dumps and captures on disk: explained, not shown, or not known."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.ledger import EvidenceRecorded, LedgerEntry, TrialEnded, TrialPlanned
from pytest_xlatune.ledger.state import replay
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.explanation import Explanation
from pytest_xlatune.model.profile import BASELINE, Profile, profile
from pytest_xlatune.model.result import (
    Conclusion,
    TrialResult,
    TrialStatus,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.model.shares import Shares
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.document import Table, Text
from pytest_xlatune.report.language import ENGLISH
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.report.tuning_document import why
from pytest_xlatune.tasks.artifacts import explain

DUMPS = Path(__file__).parents[1] / "data" / "evidence" / "jaxlib-0.12.0"
CELL = Cell(model_tag="tiny", parallelism=Parallelism.parse("FSDP=8"))
WINNER = profile("ag-1g", "--xla_gpu_all_gather_combine_threshold_bytes=1073741824")
STEPS = 3


def dump(folder: Path, name: str) -> str:
    """A dump as XLA leaves it: a real program of the GPU compiler."""
    place = folder / "run" / name / "xla_dump"
    place.mkdir(parents=True, exist_ok=True)
    text = gzip.decompress((DUMPS / f"{name}.txt.gz").read_bytes())
    (place / "module_0001.jit_train_step.sm_9.0_gpu_after_optimizations.txt").write_bytes(text)
    return f"run/{name}/xla_dump"


def capture(folder: Path, name: str, *, compute_us: float, wait_us: float) -> str:
    """A capture of three steps on one device: a fusion, then a collective that nothing hides."""
    events: list[dict[str, object]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
        {"ph": "M", "pid": 1, "tid": 7, "name": "thread_name", "args": {"name": "Stream #7"}},
    ]
    now_us = 0.0
    for _ in range(STEPS):
        for kernel, took_us in (("loop_fusion", compute_us), ("ncclDevKernel_AllGather", wait_us)):
            events.append(
                {"ph": "X", "pid": 1, "tid": 7, "ts": now_us, "dur": took_us, "name": kernel}
            )
            now_us += took_us
    path = folder / "run" / name / "host.trace.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [*events, {}]}).encode()))
    return str(path.relative_to(folder))


def explained(
    folder: Path,
    *,
    dumps: tuple[str, str] | None = None,
    waits_us: tuple[float, float] | None = None,
    traces: tuple[bytes, bytes] | None = None,
    winner: Profile = WINNER,
    lose: bool = False,
) -> Explanation:
    """Record evidence of the baseline and of a winner, and ask what it says."""
    events = []
    for at, each in enumerate((BASELINE, winner)):
        trial = Trial(
            cell_digest=CELL.digest,
            profile=each,
            protocol=replace(CELL.protocol, metric="none", dump=True),
            study="evidence",
            stage="evidence",
        )
        ended = TrialResult(trial=trial, status=TrialStatus.MEASURED, job_ids=(str(70 + at),))
        captures = (
            (capture(folder, str(at), compute_us=800.0, wait_us=waits_us[at]),) if waits_us else ()
        )
        if traces:
            captures = (f"run/{at}/host.xplane.pb",)
            (folder / captures[0]).parent.mkdir(parents=True)
            (folder / captures[0]).write_bytes(traces[at])
        recorded = EvidenceRecorded(
            trial_id=trial.id, dump=dump(folder, dumps[at]) if dumps else "", captures=captures
        )
        events += [TrialPlanned(trial=trial), TrialEnded(result=ended), recorded]
    entries = (
        LedgerEntry(number=at, at_s=0.0, event=event) for at, event in enumerate(events, start=1)
    )
    state = replay(entries)
    for path in (each for each in folder.rglob("*") if lose and each.is_file()):
        path.unlink()
    return explain(state, folder, winner.id)


def covered(found: Explanation, *, delta: float = 0.11) -> MeasuredCell:
    best = Verdict(arm=WINNER.id, kind=VerdictKind.FASTER, delta=delta, n=4)
    baseline = Verdict(arm=BASELINE.id, kind=VerdictKind.SCREENED)
    return MeasuredCell(
        sweep="sweep",
        cell_digest=CELL.digest,
        written_s=0.0,
        cells=(CELL,),
        profiles=(WINNER,),
        conclusion=Conclusion(verdicts=(best,), reference=baseline),
        history=(),
        explanation=found,
    )


def reason(of: MeasuredCell) -> str:
    first = next(why(of, ENGLISH))
    assert isinstance(first, Text)
    return first.text


def test_programs_and_traces_become_facts_with_artifacts_and_jobs(tmp_path: Path) -> None:
    folder = tmp_path / "sweep" / "cell"
    found = explained(folder, dumps=("fsdp", "fsdp-ag"), waits_us=(200.0, 100.0))
    assert found.problems == ()
    assert found.is_identical is False
    assert found.moved == pytest.approx(-0.1)
    kinds = {each.kind for each in found.facts}
    assert kinds == {"HLO", "step", "kernel family", "overlap"}
    assert all(each.jobs == ("70", "71") for each in found.facts)
    hlo = [each for each in found.facts if each.kind == "HLO"]
    assert any("all-gather" in each.text for each in hlo)
    assert hlo[0].artifacts == (
        "sweep/cell/run/fsdp/xla_dump",
        "sweep/cell/run/fsdp-ag/xla_dump",
    )
    families = [each.text for each in found.facts if each.kind == "kernel family"]
    assert any("0.200 -> 0.100 ms per device" in each for each in families)
    said = reason(covered(found))
    assert "show the gain" in said
    assert "by -10" in said
    _, table, *_ = why(covered(found), ENGLISH)
    assert isinstance(table, Table)
    assert len(table.rows) == len(found.facts)


AG, SAME = ("fsdp", "fsdp-ag"), ("fsdp", "fsdp")


@pytest.mark.parametrize(
    ("dumps", "waits_us", "delta", "says"),
    [
        pytest.param(AG, (200, 200), 0.11, "does not explain why", id="traces that do not move"),
        pytest.param(None, (200, 300), 0.11, "do not show the gain", id="a step that is longer"),
        pytest.param(None, (200, 180), 0.11, "do not show the gain", id="2 % of a gain of 11"),
        pytest.param(None, (200, 180), 0.02, "traces show the gain", id="2 % of 2"),
        pytest.param(AG, None, 0.11, "Only traces of both", id="no trace"),
        pytest.param(SAME, None, 0.11, "programs are identical", id="one program"),
    ],
)
def test_what_the_evidence_explains(
    tmp_path: Path,
    dumps: tuple[str, str] | None,
    waits_us: tuple[float, float] | None,
    delta: float,
    says: str,
) -> None:
    found = explained(tmp_path, dumps=dumps, waits_us=waits_us)
    assert says in reason(covered(found, delta=delta))
    assert ("the ledger does not have a trace of each side" in found.problems) == (waits_us is None)
    assert found.is_identical is (None if dumps is None else dumps == SAME)


def test_without_evidence_it_says_what_to_run(tmp_path: Path) -> None:
    nothing = explain(replay(()), tmp_path, WINNER.id)
    assert nothing == Explanation()
    said = reason(covered(nothing))
    assert "`xlatune evidence SWEEP_FILE`" in said


def test_evidence_of_an_earlier_leader_is_not_taken_for_the_winners(tmp_path: Path) -> None:
    found = replace(explained(tmp_path, waits_us=(200.0, 100.0)), profile="another")
    assert "belongs to `another`, which led before" in reason(covered(found))


def test_artifacts_that_are_gone_are_said_and_name_no_host_path(tmp_path: Path) -> None:
    folder = tmp_path / "sweep" / "cell"
    found = explained(folder, dumps=("fsdp", "fsdp-ag"), waits_us=(200.0, 100.0), lose=True)
    assert found.facts == ()
    assert found.profile == ""
    assert len(found.problems) == 2
    assert str(tmp_path) not in " ".join(found.problems)


def test_where_nothing_wins_the_parts_of_a_step_say_what_could_be_won(tmp_path: Path) -> None:
    spent = Shares(of_step={"compute": 0.9, "idle": 0.1}).exposed
    nothing = replace(covered(Explanation()), exposed=spent)
    lost = replace(nothing.conclusion, verdicts=())
    (first, second) = why(replace(nothing, conclusion=lost), ENGLISH)
    assert isinstance(first, Text)
    assert isinstance(second, Text)
    assert "compute, 90.0 % of a step" in second.text
