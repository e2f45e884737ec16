"""The waves by their markers: each reads what earlier ones found; and the standard tests of all."""

from __future__ import annotations

import pytest

from tests.helpers.second_looks import ALONE_AND_WITH_WORKERS
from tests.plugin.conftest import HEAD, STANDARD, Folder

# what a flag is worth stands behind its name:  --xla_gain_30=1  is +3.0 %
GAINS = """\
import re
keys = dict(each.split("=", 1) for each in sys.argv[3:])
for gain in dict.fromkeys(re.findall(r"--xla_gain_(\\d+)=", flags)):
    speed *= 1 + int(gain) / 1000
width = re.findall(r"--xla_width=(\\d+)", flags)
speed *= 1 + {"1": 0.01, "2": 0.02, "4": 0.04, "8": 0.0}.get(width[-1], 0.0) if width else 1.0
if keys.get("mode") == "dense" and "--xla_gain_30=" in flags:
    speed *= 0.9
"""
PROFILES = """\
        profile("good", "--xla_gain_30=1"),
        profile("fair", "--xla_gain_20=1"),
        profile("wide", "--xla_width=2"),
        profile("idle", "--xla_idle=1"),
        profile("more", overrides={"num_pipeline_microbatches": "16"}, wave="wave5"),
"""
WAVES = """\
    no_env=NoEnv(defaults={"xla_deployed": "0"}),
    derived=(
        Stacks(wave="wave3", slots=3),
        Around(wave="wave4", slots=3, ladders={"xla_width": ("1", "2", "4", "8")}),
    ),
    config_tags={"dense": {"mode": "dense"}, "long": {"mode": "long"}},
    site="""
OVERRIDES = 'overrides={"mode": "plain", "num_pipeline_repeats": "1"},\n        protocol='
TESTS = """


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
def waves(folder: Folder) -> Folder:
    folder.write(profiles=PROFILES, text=HEAD + TESTS)
    folder.edit(
        "test_sweep.py",
        ("FSDP=4", "PP=4"),
        ("    site=", WAVES),
        ("protocol=", OVERRIDES),
        ('"{trial}")', '"{trial}", "{overrides}")'),
        ("budget=40", "budget=60"),
    )
    folder.edit(
        "trainer.py", ("# the same for every folder", f"{GAINS}# the same for every folder")
    )
    return folder


def of_wave(folder: Folder, wave: str) -> set[str]:
    trials = [result["trial"] for result in folder.results]
    ids = {trial["profile"]["id"] for trial in trials if trial["stage"] == wave}
    return ids - {"baseline-deployed"}


@pytest.mark.part("sweeps")
def test_all_waves_by_their_markers(waves: Folder) -> None:
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
    conclusion = waves.json("reports/pretend/leaderboard.json")["conclusion"]
    first = conclusion["verdicts"][0]
    assert (conclusion["complete"], first["kind"]) == (True, "FASTER")
    assert first["arm"] == "good+fair+wide.4"
    assert "--xla_width=4" in waves.read("reports/pretend/leaderboard.md")
    assert "SLOWER" in waves.read("reports/pretend-dense/gate.md")
    assert "good+fair+wide.4" in waves.read("reports/pretend-long/gate.md")
    document = waves.read("reports/pretend-tuning.md")
    assert "with `dense` it is slower" in document
    assert "were not measured there together" not in document
    assert "exclude a loss with `long`" in document
    assert "### Recipe: `good+fair+wide.4`" in document
    # everything is reused, whichever process asks
    waves.run().assert_outcomes(passed=17, failed=1)
    assert len(waves.submitted) == SCREEN + BLOCKS


def test_slots_are_collected_and_planned_and_skipped_where_they_stay_empty(waves: Folder) -> None:
    collected = waves.run("--collect-only", "-q")
    collected.stdout.fnmatch_lines(["*test_derived?stack-1?", "*test_derived?around-3?"])
    waves.run("--xlatune-plan").stdout.fnmatch_lines(
        [
            "*wave3: 3 slots for stacks of 2 or 3*",
            "*wave4: 3 slots for values beside*xla_width;*",
            "*Pipeline bubble*",
            "*more * 4 * 16 * 1 * 15.8 % * +47.4*",
        ]
    )
    assert not waves.submitted
    waves.edit("test_sweep.py", ("--xla_gain_20", "--xla_other"), ("width=2", "idle=2"))
    done = waves.run("-m", "wave3 or wave4", "-rs")
    done.assert_outcomes(skipped=6)
    done.stdout.fnmatch_lines(["*SKIPPED*stack-1 stayed empty*"])


# --- the standard tests ---------------------------------------------------------------------------

GATE = ("    site=", "    gate=Gate(margin=0.01, blocks=4, block_baselines=1),\n    site=")
TWO = """\
        profile("early", "--xla_early=1", wave="wave1"),
        profile("fast", "--xla_fast=1"),
"""
SLOW = '        profile("slow", "--xla_slow=1"),\n'


def collected(folder: Folder, *options: str) -> list[str]:
    lines = folder.run("--collect-only", "-q", *options).outlines
    return [line.partition("::")[2] for line in lines if "::" in line]


def test_each_wave_is_a_test_that_names_wave_and_profile(folder: Folder) -> None:
    folder.write(profiles=TWO, text=STANDARD)
    finalists = ["test_finalist[finalist-1]", "test_finalist[finalist-2]"]
    plain = ["test_baseline", "test_wave1[early]", "test_wave2[fast]", *finalists]
    assert collected(folder) == plain
    assert collected(folder, "-m", "wave1") == ["test_baseline", "test_wave1[early]"]
    assert collected(folder, "-k", "fast") == ["test_wave2[fast]"]
    declared = WAVES.replace("slots=3", "slots=1").replace(', "long": {"mode": "long"}', "")
    folder.edit(
        "test_sweep.py",
        ("    site=", declared),
        ('"{trial}")', '"{trial}", "{overrides}")'),
        ("tests(SWEEP)", "tests(SWEEP, evidence=True)"),
    )
    assert collected(folder) == [
        *("test_baseline", "test_without_env", "test_wave1[early]", "test_evidence"),
        *("test_wave2[fast]", "test_wave3_derived[stack-1]", "test_wave4_derived[around-1]"),
        *(*finalists, "test_why_the_winner_wins", "test_elsewhere[dense]"),
    ]
    assert collected(folder, "-m", "wave1_5") == ["test_evidence"]


def test_a_gate_has_the_test_of_a_gate_which_fails_with_its_claim(folder: Folder) -> None:
    folder.write(profiles=TWO, text=STANDARD)
    folder.edit("test_sweep.py", GATE)
    regressions = ["test_no_regression[early]", "test_no_regression[fast]"]
    assert collected(folder, "-m", "gate") == regressions
    folder.write(profiles=SLOW, text=STANDARD)
    folder.edit("test_sweep.py", GATE)
    done = folder.run()
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*Failed: regression: slow*"])
    for line in ("def no_regression*", "*Captured log*"):  # the verdict alone
        done.stdout.no_fnmatch_line(line)


@pytest.mark.parametrize("run", ALONE_AND_WITH_WORKERS)
def test_the_standard_tests_end_as_written_ones(folder: Folder, run: str) -> None:
    # the flags of a pretending trainer are none of XLA's
    look = "import pytest\nfrom pytest_xlatune import Preflight\n"
    look += "@pytest.fixture(scope='module')\ndef preflight():\n    return Preflight()\n"
    folder.put("conftest.py", look)
    profiles = '        profile("fast", "--xla_fast=1"),\n        profile("no", "--xla_bogus=1"),\n'
    folder.write(profiles=profiles, text=STANDARD)
    getattr(folder, run)().assert_outcomes(passed=3, xfailed=1, skipped=1)
