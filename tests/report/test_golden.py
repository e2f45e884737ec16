"""Every rendered artefact against its golden file, which XLATUNE_UPDATE_GOLDEN=1 rewrites."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.result import TrialResult, TrialStatus
from pytest_xlatune.report.cell_documents import cell_document
from pytest_xlatune.report.deployment import patch_of
from pytest_xlatune.report.language import Language
from pytest_xlatune.report.leaderboard import leaderboard, leaderboard_json
from pytest_xlatune.report.lines import in_columns, live_line, paragraph, progress_text, words
from pytest_xlatune.report.render import markdown, terminal
from pytest_xlatune.report.tuning_document import tuning
from tests.helpers import cells, golden
from tests.helpers.finished import (
    BEGUN,
    BEGUN_SUBJECT,
    CONCLUSION,
    COVERED,
    EXPLAINED,
    FINISHED,
    HISTORY,
    STOPPED,
    other_parallelism,
)

GOLDEN = Path(__file__).parents[1] / "data" / "golden"


def live_lines() -> str:
    """One line for each kind of landing."""
    planned = [TrialResult(trial=each.trial, status=TrialStatus.PLANNED) for each in HISTORY]
    lines = []
    for at in (0, 10, 14, 17, 18, len(HISTORY) - 1):
        done = HISTORY[: at + 1]
        left = len(HISTORY) - len(done)
        progress = progress_text([*done, *planned[at + 1 :]], left=(left, left), trial_s=190.0)
        verdict = CONCLUSION.verdict(done[-1].trial.profile.id)
        lines.append(in_columns(live_line(done[-1], verdict=verdict, progress=progress)))
    return "\n".join(lines) + "\n"


def all_paragraphs() -> str:
    verdicts = (CONCLUSION.baseline, *CONCLUSION.verdicts, *BEGUN.verdicts)
    return "".join(f"[{words(each)}]\n{paragraph(each)}\n\n" for each in verdicts)


def in_terminal(width: int) -> str:
    return "\n".join(terminal(leaderboard(FINISHED), width=width)) + "\n"


def study(name: str) -> str:
    """The document of a study of cells whose jobs print what they use."""
    subject = cells.subject(name)
    record: Any = subject.conclusion.record
    conclusion = replace(subject.conclusion, record=replace(record, peak_tflops=500.0))
    history = cells.scored_with(subject.history, tflops=200.0, memory_gb=71.3)
    subject = replace(subject, history=history, conclusion=conclusion)
    return markdown(cell_document(subject))


# a figure with more digits than all processors agree on:  0.030129384712093
_LONG_FRACTION = re.compile(r"-?\d+\.\d{10,}(?:e-?\d+)?")
ARTEFACTS: Mapping[str, Callable[[], str]] = {
    "leaderboard.md": lambda: markdown(leaderboard(FINISHED)),
    "leaderboard-begun.md": lambda: markdown(leaderboard(BEGUN_SUBJECT)),
    # Every seventh trial says all that a file of 80 kB would. Processors differ in the last digits.
    "leaderboard.json": lambda: _LONG_FRACTION.sub(
        lambda match: f"{float(match[0]):.9g}",
        leaderboard_json(replace(FINISHED, history=FINISHED.history[1::7])),
    ),
    "leaderboard-80.txt": lambda: in_terminal(80),
    "leaderboard-160.txt": lambda: in_terminal(160),
    "tuning.md": lambda: markdown(tuning([replace(COVERED, explanation=EXPLAINED)])),
    "tuning.zh.md": lambda: markdown(
        tuning([replace(COVERED, explanation=EXPLAINED)], Language.CHINESE)
    ),
    "tuning-two.md": lambda: markdown(tuning([other_parallelism(), COVERED])),
    "tuning-two.patch": lambda: patch_of([other_parallelism(), COVERED]).text,
    "tuning-stopped.md": lambda: markdown(tuning([STOPPED])),
    **{f"{name}.md": partial(study, name) for name in cells.WORLDS},
    "live-lines.txt": live_lines,
    "paragraphs.txt": all_paragraphs,
}


@pytest.mark.parametrize("name", ARTEFACTS)
def test_artefact_is_as_recorded(name: str) -> None:
    text = ARTEFACTS[name]()
    assert "do-not-print-me" not in text
    assert "None" not in text, "Python's word for absent"
    golden.check(GOLDEN / name, text)


def test_every_golden_file_belongs_to_an_artefact() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == ARTEFACTS.keys()
