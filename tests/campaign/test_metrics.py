"""Trials are scored by the protocol's metric, and judged and told by it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.cell import Protocol
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.result import Outcome
from pytest_xlatune.report.lines import live_line, paragraph
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.report.render import markdown
from pytest_xlatune.report.study_documents import gate
from pytest_xlatune.studies.gate import GateStudy
from tests.helpers.scripted import CELL, OK, FakeExecutor, campaign, run

PROFILES = (profile("less", "--xla_less=1"), profile("more", "--xla_more=1"))
FIELD = Protocol(
    metric="field:wait/p95",
    metric_is_better="lower",
    metric_unit="ms",
    steps=5,
    first_step=2,
    min_steps=3,
)


def waiting(trial_id: str, _: int) -> tuple[str, Outcome]:
    """A log whose speed is always the same: how long it waits depends on the flags."""
    arm = trial_id.partition("-")[0]
    wait_ms = 20 * {"less": 0.9, "more": 1.1}.get(arm, 1.0)
    wait_ms *= 1 + (sum(trial_id.encode()) % 7 - 3) / 20_000
    line = "completed step: {}, seconds: 1.000, Tokens/s/device: 512.000, wait/p95: {:.4f} ms\n"
    # the field of one step that no score looks at
    return "".join(line.format(n, 100.0 if n == 1 else wait_ms) for n in range(5)), OK


def test_a_program_is_judged_by_the_metric_of_its_protocol(tmp_path: Path) -> None:
    cell = replace(CELL, protocol=FIELD)
    made = campaign(tmp_path, FakeExecutor(waiting), study=GateStudy(cell=cell, profiles=PROFILES))
    run(made)
    history, conclusion = made.view().history, made.conclude()
    verdicts = {each.arm: each for each in conclusion.verdicts}
    less = verdicts["less"]
    assert (less.kind, verdicts["more"].kind) == ("FASTER", "SLOWER")
    assert less.delta == pytest.approx(1 / 0.9 - 1, abs=4e-3)
    assert less.tgs is None
    first = next(each for each in history if each.trial.arm == "less")
    line = live_line(first, verdict=less, progress="")
    measured = MeasuredCell(
        conclusion=conclusion,
        cells=(cell,),
        profiles=PROFILES,
        history=history,
        written_s=datetime(2026, 11, 22, tzinfo=UTC).timestamp(),
    )
    text = " ".join(markdown(gate(measured)).split())
    assert "wait/p95 18" in line
    assert "wait/p95 18" in paragraph(less)
    assert "| wait/p95 (ms) |" in text
    assert "`wait/p95 (ms)` over steps 2 to 4 of 5" in text
    assert "TGS" not in line + text
