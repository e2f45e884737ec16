"""Which rank is read and which start counts."""

from __future__ import annotations

import pytest

from pytest_xlatune.logs import Phase
from pytest_xlatune.model.result import Action
from tests.helpers.log_lines import read_every_way, step, text_of


def test_rank_0_is_read_by_its_label_even_when_it_prints_late() -> None:
    lines = [
        f"{rank}: {step(number, 100.0 * (rank + 1))}" for number in range(3) for rank in (1, 0)
    ]
    report = read_every_way(text_of(lines))
    assert [(each.step, each.tgs) for each in report.steps] == [(0, 100.0), (1, 100.0), (2, 100.0)]
    assert report.starts == 1
    assert any("2 origins" in note for note in report.notes)


def test_of_ray_actors_the_head_s_own_is_read() -> None:
    lines = [
        f"0: (A pid={pid}{ip}) {step(number, tgs)}"
        for number in range(3)
        for pid, ip, tgs in ((5, ", ip=10.0.0.2", 200.0), (4, "", 100.0))
    ]
    report = read_every_way(text_of(lines))
    assert [each.tgs for each in report.steps] == [100.0, 100.0, 100.0]


def test_without_labels_the_first_line_of_a_step_counts_and_is_noted() -> None:
    lines = [step(number, tgs) for number in range(6) for tgs in (100.0, 200.0, 300.0)]
    report = read_every_way(text_of(lines))
    assert [each.tgs for each in report.steps] == [100.0] * 6
    assert report.starts == 1
    assert any("several ranks" in note for note in report.notes)


def test_a_slower_rank_is_no_new_start() -> None:
    lines = [step(0), step(1), step(2), step(0), step(3), step(1), step(2), step(4), step(3)]
    report = read_every_way(text_of(lines))
    assert [each.step for each in report.steps] == [0, 1, 2, 3, 4]
    assert report.starts == 1


STARTS = {
    "requeued after settings": [
        *(f"0: {step(each, 1.0)}" for each in range(8)),
        "0: XLA_FLAGS=--xla_new=1",
        *(f"0: {step(each, 2.0)}" for each in range(3)),
    ],
    "requeued without a word": [
        *(step(each, 1.0) for each in range(8)),
        *(step(each, 2.0) for each in range(3)),
    ],
    "restarted before the third step, after Memstats": [
        step(0, 1.0),
        "Memstats: After params initialized:",
        *(step(each, 2.0) for each in range(3)),
    ],
}


@pytest.mark.parametrize("lines", STARTS.values(), ids=STARTS.keys())
def test_the_last_start_counts(lines: list[str]) -> None:
    report = read_every_way(text_of(lines))
    assert [(each.step, each.tgs, each.start) for each in report.steps] == [
        (0, 2.0, 1),
        (1, 2.0, 1),
        (2, 2.0, 1),
    ]
    assert report.starts == 2


def test_a_resumed_start_keeps_its_own_steps_and_settings() -> None:
    lines = [
        "Config param steps: 20",
        *(step(each, 1.0) for each in range(9)),
        "Config param steps: 30",
        "Memstats: After params initialized:",
        *(step(each, 2.0) for each in range(9, 12)),
    ]
    report = read_every_way(text_of(lines))
    assert [(each.step, each.tgs) for each in report.steps] == [(9, 2.0), (10, 2.0), (11, 2.0)]
    assert report.config == {"steps": "30"}


def test_a_second_start_that_hangs_shows_its_own_phase() -> None:
    lines = [*(step(each) for each in range(9)), "Memstats: After params initialized:"]
    report = read_every_way(text_of(lines))
    assert (report.last_step, report.phase, report.starts) == (None, Phase.COMPILING, 2)


def test_findings_of_an_earlier_start_ask_for_nothing() -> None:
    failed = "slurmstepd: error: Detected 1 oom_kill event in StepId=4.0"
    report = read_every_way(text_of([step(0), failed, "JAX_PLATFORMS=cpu", step(0)]))
    assert [(each.cls, each.action) for each in report.findings] == [("oom-host", Action.NONE)]
