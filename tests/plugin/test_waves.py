"""All waves by their markers: each reads what earlier ones found, in each process, how often."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.helpers.tell_options import TELL_OPTIONS

# what a flag is worth stands behind its name:  --xla_gain_30=1  is +3.0 %
TRAINER = """\
import hashlib, os, re, sys, time
flags = os.environ.get("XLA_FLAGS", "")
print("Show all environment variables:")
print(f"XLA_FLAGS={flags}", flush=True)
"""
TRAINER += TELL_OPTIONS
TRAINER += """\
time.sleep(float(os.environ.get("SLEEP_S", "0")))
keys = dict(each.split("=", 1) for each in sys.argv[3:])
speed = 1000.0
for gain in dict.fromkeys(re.findall(r"--xla_gain_(\\\\d+)=", flags)):
    speed *= 1 + int(gain) / 1000
width = re.findall(r"--xla_width=(\\\\d+)", flags)
speed *= 1 + {"1": 0.01, "2": 0.02, "4": 0.04, "8": 0.0}.get(width[-1], 0.0) if width else 1.0
if keys.get("mode") == "dense" and "--xla_gain_30=" in flags:
    speed *= 0.9
# the same for every folder that a test runs in: a trial's id without the digest at its end
trial = sys.argv[2].rpartition("-")[0]
noise = int(hashlib.sha256(trial.encode()).hexdigest()[:8], 16) / 2**32 - 0.5
speed *= 1 + 0.002 * noise
for step in range(int(sys.argv[1])):
    print(f"completed step: {step}, seconds: {512 / speed:.6f}, TFLOP/s/device: 0.1, "
          f"Tokens/s/device: {speed:.3f}, total_weights: 512, loss: 7.1", flush=True)
"""

SWEEP_FILE = """\
import sys
from pathlib import Path

import pytest

from pytest_xlatune import (
    Around,
    CellSettings,
    CommandLauncher,
    DesignSettings,
    NoEnv,
    Protocol,
    SiteSettings,
    Stacks,
    Sweep,
    profile,
)

SWEEP = Sweep(
    name="pretend",
    cell=CellSettings(
        model_tag="pretend",
        parallelism="PP=4",
        deployed={"XLA_FLAGS": "--xla_leftover=1"},
        overrides={"mode": "plain", "num_pipeline_repeats": "1"},
        protocol=Protocol(steps=12),
    ),
    launcher=CommandLauncher(
        argv=(sys.executable, str(Path(__file__).parent / "trainer.py"), "{steps}", "{trial}",
              "{overrides}")
    ),
    profiles=(
        profile("good", "--xla_gain_30=1"),
        profile("fair", "--xla_gain_20=1"),
        profile("wide", "--xla_width=2"),
        profile("idle", "--xla_idle=1"),
        profile("more", overrides={"num_pipeline_microbatches": "16"}, wave="wave5"),
    ),
    no_env=NoEnv(defaults={"xla_leftover": "0"}),
    derived=(
        Stacks(wave="wave3", slots=3),
        Around(wave="wave4", slots=3, ladders={"xla_width": ("1", "2", "4", "8")}),
    ),
    config_tags={"dense": {"mode": "dense"}, "long": {"mode": "long"}},
    site=SiteSettings(executor="local"),
    design=DesignSettings(
        screen_baselines=2,
        finalists=2,
        blocks=3,
        block_baselines=1,
        budget=60,
    ),
)


@pytest.mark.wave1
def test_without_env(measure, baseline_no_env, baseline_deployed):
    assert baseline_deployed.n >= 2
    assert measure(baseline_no_env).n == 2


@pytest.mark.wave1
def test_pair_elsewhere(no_env_elsewhere):
    assert no_env_elsewhere.n == 2


@pytest.mark.wave2
@pytest.mark.wave5
def test_profile(measure, profile):
    measured = measure(profile)
    assert measured.not_slower, measured.paragraph


@pytest.mark.wave3
@pytest.mark.wave4
def test_derived(measure, derived):
    measured = measure(derived)
    assert measured.not_slower, measured.paragraph


@pytest.mark.confirm
def test_finalist(measure, finalist):
    measured = measure(finalist)
    assert measured.not_slower, measured.paragraph


@pytest.mark.wave6(blocks=4)
def test_elsewhere(winner_elsewhere):
    assert winner_elsewhere.no_regression, winner_elsewhere.paragraph
"""
STACKS = ["good+fair", "good+fair+wide", "good+wide"]
SCREEN = (2 + 2) + (4 + 2) + (3 + 2) + (3 + 2) + (1 + 2)
BLOCKS = 3 * 3


@pytest.fixture
def waves(folder: Any) -> Any:
    (folder.path / "trainer.py").write_text(TRAINER.replace("\\\\", "\\"), encoding="utf-8")
    (folder.path / "test_sweep.py").write_text(SWEEP_FILE, encoding="utf-8")
    return folder


def of_wave(folder: Any, wave: str) -> set[str]:
    return {
        line["result"]["trial"]["profile"]["id"]
        for line in folder.events("trial-ended")
        if line["result"]["trial"]["stage"] == wave
    } - {"baseline-deployed"}


@pytest.mark.part("sweeps")
def test_all_waves_by_their_markers(waves: Any) -> None:
    waves.run("-m", "wave1").assert_outcomes(passed=3)
    assert "### PP=4 dense" in waves.read("reports/pretend-tuning.md")
    waves.run("-m", "wave2").assert_outcomes(passed=4)
    before = len(waves.submitted)
    waves.run_with_workers("-m", "wave3", "-v").assert_outcomes(passed=3)
    assert of_wave(waves, "wave3") == set(STACKS)
    assert len(waves.submitted) == before + 3 + 2  # what waves 1 and 2 have is there
    waves.run("-m", "wave4").assert_outcomes(passed=3)
    assert "good+fair+wide.4" in of_wave(waves, "wave4")
    waves.run("-m", "wave5").assert_outcomes(passed=1)
    early = waves.run("-m", "wave6", "-rs")
    early.assert_outcomes(skipped=2)
    early.stdout.fnmatch_lines(["*SKIPPED*no profile is confirmed*"])
    assert len(waves.submitted) == SCREEN
    waves.run("-m", "confirm").assert_outcomes(passed=2)
    late = waves.run("-m", "wave6")
    late.assert_outcomes(passed=1, failed=1)
    late.stdout.fnmatch_lines(["*FAILED*test_elsewhere?dense?*"])
    assert len(waves.submitted) == len(set(waves.submitted)) == SCREEN + BLOCKS
    report = json.loads(waves.read("reports/pretend/leaderboard.json"))
    assert report["conclusion"]["complete"]
    assert report["conclusion"]["verdicts"][0]["arm"] == "good+fair+wide.4"
    assert report["conclusion"]["verdicts"][0]["kind"] == "FASTER"
    assert "--xla_width=4" in waves.read("reports/pretend/leaderboard.md")
    assert "FASTER" in waves.read("reports/pretend-tuning.md")
    assert "SLOWER" in waves.read("reports/pretend-dense/gate.md")
    document = waves.read("reports/pretend-tuning.md")
    assert "with `dense` it is slower" in document
    assert "were not measured there together" not in document
    assert "exclude a loss with `long`" in document
    assert "good+fair+wide.4" in waves.read("reports/pretend-long/gate.md")
    # everything is reused, whichever process asks
    again = waves.run()
    again.assert_outcomes(passed=17, failed=1)
    assert len(waves.submitted) == SCREEN + BLOCKS
    assert "### Recipe: `good+fair+wide.4`" in document


def test_slots_that_stay_empty_are_skipped_with_their_reason(waves: Any) -> None:
    text = (
        waves.read("test_sweep.py")
        .replace("--xla_gain_20", "--xla_other")
        .replace("width=2", "idle=2")
    )
    (waves.path / "test_sweep.py").write_text(text, encoding="utf-8")
    done = waves.run("-m", "wave3 or wave4", "-rs")
    done.assert_outcomes(skipped=6)
    done.stdout.fnmatch_lines(["*SKIPPED*stack-1 stayed empty*"])


def test_what_is_collected_and_planned_names_the_slots(waves: Any) -> None:
    collected = waves.run("--collect-only", "-q")
    collected.stdout.fnmatch_lines(["*test_derived?stack-1?", "*test_derived?around-3?"])
    plan = waves.run("--xlatune-plan")
    plan.stdout.fnmatch_lines(
        [
            "*wave3: 3 slots for stacks of 2 or 3*",
            "*wave4: 3 slots for values beside*xla_width;*",
            "*Pipeline bubble*",
            "*more * 4 * 16 * 1 * 15.8 % * +47.4*",
        ]
    )
    assert not waves.submitted


def test_a_test_of_nothing_derived_says_so(waves: Any) -> None:
    text = waves.read("test_sweep.py").replace(
        "@pytest.mark.wave3\n@pytest.mark.wave4", "@pytest.mark.wave2"
    )
    (waves.path / "test_sweep.py").write_text(text, encoding="utf-8")
    done = waves.run()
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stdout.fnmatch_lines(["*derives nothing in wave2*"])
