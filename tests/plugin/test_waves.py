"""The standard tests of all waves, and the slots of derived profiles."""

from __future__ import annotations

import pytest

from tests.plugin.conftest import STANDARD, Folder

PROFILES = """\
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


@pytest.fixture
def waves(folder: Folder) -> Folder:
    folder.write(profiles=PROFILES, text=STANDARD)
    folder.edit(
        "test_sweep.py",
        ("FSDP=4", "PP=4"),
        ("    site=", WAVES),
        ("protocol=", OVERRIDES),
        ('"{trial}")', '"{trial}", "{overrides}")'),
        ("budget=40", "budget=60"),
    )
    return folder


def test_slots_are_planned_and_skipped_where_they_stay_empty(waves: Folder) -> None:
    waves.run("--xlatune-plan").stdout.fnmatch_lines(
        [
            "*wave3: 3 slots for stacks of 2 or 3*",
            "*wave4: 3 slots for values beside*xla_width*",
            "*Pipeline bubble*",
            "*more * 4 * 16 * 1 * 15.8 % * +47.4*",
        ]
    )
    assert not waves.submitted
    done = waves.run("-m", "wave3 or wave4", "-rs")
    done.assert_outcomes(skipped=6)
    done.stdout.fnmatch_lines(["*SKIPPED*stack-1 stayed empty*"])


TWO = """\
        profile("early", "--xla_early=1", wave="wave1"),
        profile("fast", "--xla_fast=1"),
"""


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
