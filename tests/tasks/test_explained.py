"""What the ledger explains: why a winner wins, and the record of a run."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.ledger import (
    EvidenceRecorded,
    LedgerEntry,
    TrialEnded,
    TrialPlanned,
)
from pytest_xlatune.ledger.state import LedgerState, replay
from pytest_xlatune.model.environment import NodeEnvironment
from pytest_xlatune.model.explanation import Explanation
from pytest_xlatune.model.profile import BASELINE, profile
from pytest_xlatune.model.result import Conclusion, TrialResult, TrialStatus, Verdict, VerdictKind
from pytest_xlatune.report.document import Table, Text
from pytest_xlatune.report.language import ENGLISH
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.report.tuning_document import why
from pytest_xlatune.studies.evidence_run import EvidenceStudy
from pytest_xlatune.tasks.artifacts import explain
from pytest_xlatune.tasks.run_record import record_of_study
from tests.helpers.hlo_programs import write_dump
from tests.helpers.scripted import CELL, CellsStudy, Cluster, campaign, on, run

WINNER = profile("ag-1g", "--xla_gpu_all_gather_combine_threshold_bytes=1073741824")


def capture(folder: Path, name: str, wait_us: float) -> str:
    """A capture of three steps on one device: a fusion, then a collective that nothing hides."""
    events: list[dict[str, object]] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}},
        {"ph": "M", "pid": 1, "tid": 7, "name": "thread_name", "args": {"name": "Stream #7"}},
    ]
    now_us = 0.0
    for kernel, took_us in (("loop_fusion", 800.0), ("ncclDevKernel_AllGather", wait_us)) * 3:
        events.append({"ph": "X", "pid": 1, "tid": 7, "ts": now_us, "dur": took_us, "name": kernel})
        now_us += took_us
    path = folder / "run" / name / "host.trace.json.gz"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": [*events, {}]}).encode()))
    return str(path.relative_to(folder))


Dumps = tuple[str, str]
Waits = tuple[float, float]


def explained(
    folder: Path, dumps: Dumps | None, waits_us: Waits | None, *, is_lost: bool = False
) -> Explanation:
    """Record evidence of the baseline and of a winner, and ask what it says."""
    entries: list[LedgerEntry] = []
    for at, arm in enumerate((BASELINE, WINNER)):
        trial = EvidenceStudy(cell=CELL, profile=arm).trial
        ended = TrialResult(trial=trial, status=TrialStatus.MEASURED, job_ids=(str(70 + at),))
        captures = (capture(folder, str(at), waits_us[at]),) if waits_us else ()
        place = f"run/{dumps[at]}/xla_dump" if dumps else ""
        if dumps:
            write_dump(folder / place, dumps[at])
        recorded = EvidenceRecorded(trial_id=trial.id, dump=place, captures=captures)
        for event in (TrialPlanned(trial=trial), TrialEnded(result=ended), recorded):
            entries.append(LedgerEntry(number=len(entries) + 1, at_s=0.0, event=event))
    for path in (path for path in folder.rglob("*") if is_lost and path.is_file()):
        path.unlink()
    return explain(replay(entries), folder, WINNER.id)


def section(found: Explanation) -> tuple[str, Table | None]:
    """What a document says of why the winner wins, and its table of facts."""
    subject = MeasuredCell(
        sweep="sweep",
        cell_digest=CELL.digest,
        written_s=0.0,
        cells=(CELL,),
        profiles=(WINNER,),
        conclusion=Conclusion(
            verdicts=(Verdict(arm=WINNER.id, kind=VerdictKind.FASTER, delta=0.11, n=4),),
            reference=Verdict(arm=BASELINE.id, kind=VerdictKind.SCREENED),
        ),
        history=(),
        explanation=found,
    )
    first, *others = why(subject, ENGLISH)
    assert isinstance(first, Text)
    return first.text, next((part for part in others if isinstance(part, Table)), None)


AG, SAME = ("fsdp", "fsdp-ag"), ("fsdp", "fsdp")


def test_programs_and_traces_become_facts_with_artifacts_and_jobs(tmp_path: Path) -> None:
    folder = tmp_path / "sweep" / "cell"
    found = explained(folder, AG, (200.0, 100.0))
    assert found.problems == ()
    assert found.moved == pytest.approx(-0.1)
    assert {fact.kind for fact in found.facts} == {"HLO", "step", "kernel family", "overlap"}
    assert all(fact.jobs == ("70", "71") for fact in found.facts)
    hlo = next(fact for fact in found.facts if fact.kind == "HLO")
    assert hlo.artifacts == ("sweep/cell/run/fsdp/xla_dump", "sweep/cell/run/fsdp-ag/xla_dump")
    families = [fact.text for fact in found.facts if fact.kind == "kernel family"]
    assert any("0.200 -> 0.100 ms per device" in text for text in families)
    table = section(found)[1]
    assert table is not None
    assert len(table.rows) == len(found.facts)
    # evidence of an earlier leader is not taken for the winner's
    earlier = replace(found, profile="another")
    assert "There is no readable evidence" in section(earlier)[0]
    assert section(earlier)[1] is None
    lost = explained(tmp_path / "lost" / "cell", AG, (200.0, 100.0), is_lost=True)
    assert (lost.facts, lost.profile, len(lost.problems)) == ((), "", 2)
    assert str(tmp_path) not in " ".join(lost.problems)
    assert "`xlatune evidence SWEEP_FILE`" in section(Explanation())[0]


@pytest.mark.parametrize(
    ("dumps", "waits_us", "says"),
    [
        pytest.param(AG, (200, 100), "show the gain", id="traces that move"),
        pytest.param(AG, (200, 200), "does not explain why", id="traces that do not move"),
        pytest.param(None, (200, 180), "do not show the gain", id="2 % of a gain of 11"),
        pytest.param(AG, None, "Only traces of both", id="no trace"),
        pytest.param(SAME, None, "programs are identical", id="one program"),
        pytest.param(None, None, "There is no readable evidence", id="neither is there"),
    ],
)
def test_what_the_evidence_explains(
    tmp_path: Path, dumps: Dumps | None, waits_us: Waits | None, says: str
) -> None:
    found = explained(tmp_path, dumps, waits_us)
    assert says in section(found)[0]
    assert found.is_identical is (None if dumps is None else dumps == SAME)
    if dumps or waits_us:
        missing = "the ledger does not have a trace of each side"
        assert (missing in found.problems) == (waits_us is None)


def ran(folder: Path, study: CellsStudy, node: NodeEnvironment) -> LedgerState:
    """A trial of 360 s of each cell, whose nodes tell this of themselves."""
    cluster = Cluster()
    cluster.took_s = 360.0
    cluster.tells = lambda trial: (replace(node, name=trial.rpartition("-round")[0]),)
    made = campaign(folder, cluster, study)
    run(made, cluster)
    return made.view().state


def test_a_study_of_several_nodes_counts_the_hours_and_the_dates_of_all(tmp_path: Path) -> None:
    study = CellsStudy(cells=(on("node001"), on("node002")))
    state = ran(tmp_path, study, NodeEnvironment(name=""))
    record = record_of_study(state, study)
    assert record.node_hours == pytest.approx(0.2), "360 s of each node"
    assert record.started_s is not None
    assert record.ended_s is not None
    assert 360 <= record.ended_s - record.started_s < 720
    hours = [record_of_study(state, study, cell).node_hours for cell in study.cells]
    assert hours == pytest.approx([0.1, 0.1])


GPU = {"platform": "gpu"}
CACHE = "xla_gpu_per_fusion_autotune_cache_dir"


AUTOTUNED = {
    "a GPU": ("", {"devices": GPU}, "not pinned"),
    "switched off": ("--xla_gpu_autotune_level=0", {"devices": GPU}, "off"),
    "pinned by a folder": (f"--{CACHE}=/shared", {"devices": GPU}, f"pinned (--{CACHE})"),
    "a GPU that its driver shows": ("", {"node": {"GPUs": "8 x gfx942"}}, "not pinned"),
    "a CPU, which tunes none": ("", {"devices": {"platform": "cpu"}}, ""),
}


@pytest.mark.parametrize(("flags", "told", "autotuning"), AUTOTUNED.values(), ids=AUTOTUNED)
def test_autotuning_is_recorded(
    tmp_path: Path, flags: str, told: dict[str, dict[str, str]], autotuning: str
) -> None:
    study = CellsStudy(cells=(replace(CELL, deployed={"XLA_FLAGS": flags}),))
    state = ran(tmp_path, study, NodeEnvironment(name="", **told))  # type: ignore[arg-type]
    found = record_of_study(state, study).autotuning
    assert found.startswith(autotuning)
    assert bool(found) == bool(autotuning)
