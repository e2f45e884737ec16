"""All waves over the lab's four nodes: interrupted, resumed, and a document that can be checked."""

from __future__ import annotations

import math
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.test_tuning_document import table_rows

Project = Any  # of conftest.py, which cannot be imported from here

LAB_WAVES = str(Path(__file__).with_name("lab_waves.py"))
OPTIONS = ("-n", "4", "--xlatune-nodelist", "node[001-004]")


@pytest.mark.timeout(1500)  # forty jobs
def test_all_waves_are_run_by_their_markers_and_the_document_adds_up(
    project: Project, lab: ModuleType, wait_until: Callable[..., None]
) -> None:
    first = project.start(LAB_WAVES, "-m", "wave1 or wave1_5 or wave2", *OPTIONS)
    wait_until(lambda: len(project.measured) >= 3, timeout_s=180)
    os.killpg(first.pid, signal.SIGKILL)  # the controller and its workers
    first.wait()
    said = project.run(LAB_WAVES, "-m", "wave3 or wave4 or wave5", *OPTIONS)
    assert "2 passed" in said or "3 passed" in said, said
    said = project.run(LAB_WAVES, *OPTIONS, timeout_s=900)
    assert not re.search(r"[0-9]+ error", said), said
    assert len(project.submitted) == len(set(project.submitted)) == project.jobs(lab)

    text = (project.path / "reports" / "labwaves-tuning.md").read_text(encoding="utf-8")
    ended = [line["result"] for line in project.events("trial-ended")]
    results = [each for each in ended if each["trial"]["study"] == "tuning"]
    appendix = {row[0]: row for row in table_rows(text, "Job")}
    for result in results:
        for job_id in result["job_ids"]:
            row = appendix[job_id]
            assert row[2] == f"`{result['trial']['profile']['id']}`"
            if result["score"]:
                assert row[6] == f"{result['score']['tgs']:.1f}"
    groups = {each["trial"]["group"] for each in results}
    assert {"wave1", "wave2", "wave3", "wave4", "wave5", "confirm"} <= groups
    fresh = [
        (each["trial"]["profile"]["id"], each["score"]["tgs"])
        for each in results
        if each["score"] and each["trial"]["stage"] == "confirm"
    ]
    assert len(fresh) == 8  # four blocks of the finalist and the baseline
    board = table_rows(text.split("## Tuning leaderboard")[1].split("\n## ")[0], "Profile")
    finalist = next(name for name, _ in fresh if name != "baseline-deployed")
    row = next(row for row in board if re.sub(r"[★ `]", "", row[0]) == finalist)
    logs = [math.log(tgs) for name, tgs in fresh if name == finalist]
    assert row[2] == f"{math.exp(sum(logs) / len(logs)):.1f}"
