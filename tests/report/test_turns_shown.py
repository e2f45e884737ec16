"""Reports of a sweep that rotated: what ranked is told apart, and the turns drawn."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from pytest_xlatune.model.result import TrialResult
from pytest_xlatune.report.leaderboard import leaderboard, leaderboard_json
from pytest_xlatune.report.lines import live_line, progress_text
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.report.render import markdown
from tests.helpers.history import CELL, history
from tests.helpers.turn_answers import Machine, mixed, turning

EFFECTS = {"p3": 0.04, "p5": 0.05, "channels": 0.03, "p9": -0.2}


@pytest.fixture(scope="module")
def subject() -> MeasuredCell:
    sweep = mixed()
    done = history(Machine(EFFECTS, deployed={"p5": 0.0}, sigma=0.002), of=sweep)
    return MeasuredCell(
        conclusion=sweep.decide(done).conclusion,
        cells=(CELL,),
        profiles=sweep.profiles,
        history=tuple(done),
        written_s=datetime(2026, 11, 26, tzinfo=UTC).timestamp(),
    )


def test_a_figure_is_that_of_ordinary_jobs(subject: MeasuredCell) -> None:
    """`p5` is fast in turns and not as it is deployed: no figure of its turns stands anywhere."""
    text = markdown(leaderboard(subject))
    rows = {line.split("|")[1].strip(" ★`"): line for line in text.splitlines() if "|" in line}
    assert "FASTER" in rows["p3"]
    assert "FASTER" in rows["channels"]
    assert "EQUIVALENT" in rows["p5"]
    assert "+5." not in rows["p5"]
    assert "screened" in rows["p6"]
    assert "jobs of the same block" in text
    assert "took turns" in text


def test_a_sweep_of_jobs_has_no_word_of_rotations() -> None:
    sweep = mixed(rotation=None)
    done = history(Machine(EFFECTS), of=sweep)
    found = MeasuredCell(
        conclusion=sweep.decide(done).conclusion,
        cells=(CELL,),
        profiles=sweep.profiles,
        history=tuple(done),
        written_s=datetime(2026, 11, 26, tzinfo=UTC).timestamp(),
    )
    assert "rotation" not in markdown(leaderboard(found))
    assert "| measured in |" not in markdown(leaderboard(found))


def test_a_program_gets_everything_as_json(subject: MeasuredCell) -> None:
    document = json.loads(leaderboard_json(subject))
    turns = [each for each in document["trials"] if each.get("rotation")]
    assert [TrialResult.from_json({n: v for n, v in e.items() if n != "id"}) for e in turns]


def test_the_line_of_a_rotation_names_it_and_what_it_came_to() -> None:
    sweep = turning(12)
    done = history(Machine({"p3": 0.04}, sigma=0.002), of=sweep)
    lines = [
        live_line(each, verdict=None, progress=progress_text(done, left=(0, 2)))
        for each in done
        if each.trial.rotation
    ]
    over = f"{len(done)} of {len(done)} to {len(done) + 2} jobs"
    assert lines[0].startswith("look (job ")
    assert lines[0].endswith(f"can take turns | {over}")
    assert lines[1].startswith("rotation 1 (job ")
    assert "of 12 profiles, best p3 +" in lines[1]
    assert not [each for each in lines if "not measured" in each or "screened" in each]


def test_tgs_and_seconds_of_a_row_belong_together(subject: MeasuredCell) -> None:
    found = subject.conclusion
    shown = [*found.verdicts, *([found.reference] if found.reference else [])]
    tokens = {round(e.tgs * e.step_s) for e in shown if e.tgs and e.step_s}
    assert len(tokens) == 1
