"""Wave 2 out of many candidates: what the evidence of the baseline shows decides who has a slot."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.helpers.second_looks import ALONE_AND_WITH_WORKERS
from tests.helpers.words import in_words
from tests.plugin.test_evidence_runs import DUMPING

RAGGED = "--xla_gpu_unsupported_use_ragged_all_to_all_one_shot_kernel=false"
# a program that gathers and does nothing else between devices
PROGRAM = """ENTRY %main.1 (a: f32[4]) -> f32[8] {
  %a = f32[4]{0} parameter(0)
  ROOT %all-gather.1 = f32[8]{0} all-gather(%a), replica_groups={{0,1}}, dimensions={0}
}
"""
SWEEP_FILE = f"""\
import sys
from pathlib import Path

import pytest

from pytest_xlatune import (
    CellSettings,
    CommandLauncher,
    DesignSettings,
    Protocol,
    Singles,
    SiteSettings,
    Sweep,
    profile,
)

SWEEP = Sweep(
    name="pretend",
    cell=CellSettings(
        model_tag="pretend",
        parallelism="FSDP=2",
        deployed={{"XLA_FLAGS": "--xla_deployed=1"}},
        protocol=Protocol(steps=12),
    ),
    launcher=CommandLauncher(
        argv=(sys.executable, str(Path(__file__).parent / "trainer.py"), "{{steps}}", "{{trial}}")
    ),
    profiles=(profile("early", "--xla_early=1", wave="wave1"),),
    derived=(
        Singles(
            slots=2,
            candidates=(
                profile("ragged-off", "{RAGGED}"),
                profile("permute", "--xla_gpu_collective_permute_combine_threshold_bytes=9"),
                profile("deployed", "--xla_deployed=1"),
                profile("fast", "--xla_fast=1"),
                profile("gather", "--xla_gpu_all_gather_combine_threshold_bytes=9"),
            ),
        ),
    ),
    site=SiteSettings(executor="local"),
    design=DesignSettings(
        screen_baselines=2,
        finalists=1,
        blocks=3,
        block_baselines=2,
        budget=40,
    ),
)


@pytest.mark.wave1
def test_declared(measure, profile):
    assert measure(profile).not_slower


@pytest.mark.wave1_5
def test_evidence(evidence):
    assert evidence("baseline-deployed").dump


@pytest.mark.wave2
def test_single(measure, derived):
    assert measure(derived).n == 1


@pytest.mark.confirm
def test_finalist(measure, finalist):
    assert measure(finalist).not_slower
"""
SCREENED = ["fast", "gather"]  # declared last, and first of what the program can feel


@pytest.fixture
def ordered(folder: Any) -> Any:
    head, _, tail = DUMPING.partition("ENTRY")
    dumping = head + PROGRAM + tail[tail.index("'''") :]
    (folder.path / "trainer.py").write_text(dumping + folder.read("trainer.py"), encoding="utf-8")
    (folder.path / "test_sweep.py").write_text(SWEEP_FILE, encoding="utf-8")
    return folder


def screened(folder: Any) -> list[str]:
    return sorted(
        line["result"]["trial"]["profile"]["id"]
        for line in folder.events("trial-ended")
        if line["result"]["trial"]["stage"] == "wave2"
        and line["result"]["trial"]["profile"]["id"] != "baseline-deployed"
    )


def evidence_runs(folder: Any) -> int:
    return sum("-evidence." in trial for trial in folder.submitted)


def test_the_program_decides_which_candidates_have_a_slot(ordered: Any) -> None:
    ordered.run().assert_outcomes(passed=5)
    assert screened(ordered) == SCREENED
    assert evidence_runs(ordered) == 1  # the wave's, and the test of wave 1.5 has the same
    (recorded,) = ordered.events("evidence-recorded")
    assert recorded["shares"] == {"of_step": {}, "kinds": ["all-gather"], "kernels": {}}
    board = json.loads(ordered.read("reports/pretend/leaderboard.json"))
    notes = in_words(board["conclusion"]["notes"])
    assert "the evidence of baseline-deployed-evidence.0-" in notes
    assert re.search(r"wave2: cut\b[^;]* 2 slots", notes)
    assert "ragged-off (the program has no all-to-all)" in notes
    assert "wave2: left out: deployed (the same settings as baseline-deployed)" in notes
    assert "ignored" not in notes
    document = ordered.read("reports/pretend-tuning.md")
    assert "by the evidence" in document


@pytest.mark.parametrize("run", ALONE_AND_WITH_WORKERS)
def test_a_wave_alone_runs_the_evidence_that_it_needs_and_later_waves_reuse_it(
    ordered: Any, run: str
) -> None:
    done = getattr(ordered, run)("-m", "wave2")
    done.assert_outcomes(passed=2)
    done.stdout.fnmatch_lines(["*baseline-deployed* ran with*"])
    assert screened(ordered) == SCREENED
    submitted = len(ordered.submitted)
    ordered.run("-m", "wave1_5 or wave2").assert_outcomes(passed=3)
    assert len(ordered.submitted) == submitted
    ordered.run("-k", "single-2", "-m", "wave2").assert_outcomes(passed=1)
    assert len(ordered.submitted) == submitted
