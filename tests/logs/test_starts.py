"""Which rank is read and which start counts."""

from __future__ import annotations

import pytest

from pytest_xlatune.logs import Phase
from pytest_xlatune.model.result import Action
from tests.helpers.log_lines import read_every_way, step, text_of

EIGHT = [step(each, 1.0) for each in range(8)]
NEW = [step(each, 2.0) for each in range(3)]
MEMSTATS = "Memstats: After params initialized:"
OF_NEW = [(0, 2.0), (1, 2.0), (2, 2.0)]
# lines -> (step, TGS) of each step that counts, number of starts, and a part of the notes
LOGS: dict[str, tuple[list[str], list[tuple[int, float]], int, str]] = {
    "rank 0 by its label, even if it prints late": (
        [f"{rank}: {step(at, 2.0 + rank)}" for at in range(3) for rank in (1, 0)],
        OF_NEW, 1, "2 origins"),
    "of Ray's actors the head's own": (
        [f"0: (A pid={pid}{ip}) {step(at, tgs)}" for at in range(3)
         for pid, ip, tgs in ((5, ", ip=10.0.0.2", 1.0), (4, "", 2.0))],
        OF_NEW, 1, "2 origins"),
    "without labels the first line of a step": (
        [step(at, tgs) for at in range(3) for tgs in (2.0, 3.0, 4.0)], OF_NEW, 1, "several ranks"),
    "a slower rank is no new start": (
        [step(at, 1.0) for at in (0, 1, 2, 0, 3, 1, 2, 4, 3)],
        [(at, 1.0) for at in range(5)], 1, "several ranks"),
    "requeued after settings": (
        [f"0: {line}" for line in (*EIGHT, "XLA_FLAGS=--xla_new=1", *NEW)], OF_NEW, 2, "2 starts"),
    "requeued without a word": ([*EIGHT, *NEW], OF_NEW, 2, "2 starts"),
    "restarted before the third step, after Memstats": (
        [EIGHT[0], MEMSTATS, *NEW], OF_NEW, 2, "2 starts"),
    "a resumed start": (
        ["Config param steps: 20", *EIGHT, "Config param steps: 30", MEMSTATS, step(8, 2.0)],
        [(8, 2.0)], 2, "2 starts"),
    "a second start that hangs": ([*EIGHT, MEMSTATS], [], 2, "2 starts"),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "steps", "starts", "note"), LOGS.values(), ids=LOGS)
def test_one_rank_and_the_last_start_count(
    lines: list[str], steps: list[tuple[int, float]], starts: int, note: str
) -> None:
    report = read_every_way(text_of(lines))
    assert [(each.step, each.tgs) for each in report.steps] == steps
    assert {each.start for each in report.steps} <= {starts - 1}
    assert report.starts == starts
    assert note in " ".join(report.notes)
    assert report.phase is (Phase.TRAINING if steps else Phase.COMPILING)
    assert report.config in ({}, {"steps": "30"})


def test_findings_of_an_earlier_start_ask_for_nothing() -> None:
    failed = "slurmstepd: error: Detected 1 oom_kill event in StepId=4.0"
    report = read_every_way(text_of([step(0), failed, "JAX_PLATFORMS=cpu", step(0)]))
    assert [(each.cls, each.action) for each in report.findings] == [("oom-host", Action.NONE)]
