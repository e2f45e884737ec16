"""A gate as a pytest run: pass, regression, cannot tell, cannot run; and a calibration."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from tests.helpers.words import in_words
from tests.plugin.conftest import HEAD, SWEEP_FILE, Folder

TESTS = """


@pytest.mark.gate
def test_gate(measure, profile):
    assert measure(profile).no_regression


@pytest.mark.calibrate(jobs=4)
def test_noise(calibration):
    assert calibration.noise.jobs == 4
"""
CANDIDATES = """\
        profile("good", "--xla_other=1"),
        profile("slow", "--xla_slow=1"),
        profile("wild", "--xla_wild=1"),
"""
# one candidate whose jobs scatter by a fifth
WILD = 'speed *= 1 + (0.2 if "--xla_wild" in flags else 0.002) * noise'


@pytest.fixture
def gate(folder: Folder) -> Folder:
    design = HEAD[HEAD.index("    design=") : HEAD.rindex(")")]
    declared = "    gate=Gate(margin=0.01, blocks=4, block_baselines=1),\n"
    folder.write(text=HEAD.replace(design, declared) + TESTS, profiles=CANDIDATES)
    folder.edit("trainer.py", ("speed *= 1 + 0.002 * noise", WILD))
    return folder


@pytest.mark.part("sweeps")
def test_each_candidate_has_its_own_end(gate: Folder) -> None:
    done = gate.run("-m", "gate", "-k", "good or slow", "--xlatune-negative=xfail")
    done.assert_outcomes(passed=1, failed=1, deselected=2)
    assert done.ret == 1
    assert len(gate.submitted) == 12
    done.stdout.fnmatch_lines(["E * assert regression: slow, delta -*", "1 pass, 1 regression"])
    again = gate.run_with_workers("-m", "gate", "-k", "good or slow")
    again.assert_outcomes(passed=1, failed=1)
    assert len(gate.submitted) == 12, "a gate that was run is not run again"

    # by itself: its noise is not that of the others
    wild = gate.run("-m", "gate", "-k", "wild", "--junitxml=junit.xml")
    assert wild.ret == 10
    assert len(gate.submitted) == 12 + 8, "baselines are measured beside it, not taken from before"
    wild.stdout.fnmatch_lines(
        [
            "E * assert cannot tell: wild, delta *",
            "1 cannot tell",
            "* wild INCONCLUSIVE: cannot tell: *",
        ]
    )
    assert "Captured log" not in wild.stdout.str(), "it lies beside the ledger, without secrets"
    (case,) = ET.parse(gate.path / "junit.xml").iter("testcase")
    told = {each.attrib["name"]: each.attrib["value"] for each in case.iter("property")}
    assert told["xlatune.verdict"] == "INCONCLUSIVE"
    (failure,) = case.iter("failure")
    assert "cannot tell: wild" in failure.attrib["message"]
    (verdict,) = gate.json("reports/pretend/gate.json")["conclusion"]["verdicts"]
    assert verdict["kind"] == "INCONCLUSIVE"
    assert "would decide it" in in_words(verdict["reasons"])
    assert not (gate.path / "reports/pretend-tuning.md").exists()


def test_a_calibration_is_kept_for_the_next_plan(gate: Folder) -> None:
    done = gate.run("-m", "calibrate")
    done.assert_outcomes(passed=1, deselected=3)
    (path,) = gate.path.glob(".xlatune/pretend/*/calibration.json")
    noise = gate.json(str(path))["noise"]
    assert 0 < noise["sigma_job"] < 0.01
    assert (noise["jobs"], noise["straggler_rate"]) == (4, 0)
    assert len(gate.submitted) == 4
    done.stdout.fnmatch_lines(["*job noise: * % (95 % interval *", "*65 jobs: *"])
    gate.write(text=SWEEP_FILE, profiles=CANDIDATES)
    planned = " ".join(gate.run("--xlatune-plan").stdout.str().split())
    assert f"{100 * noise['sigma_job']:.2f} % job noise" in planned
    assert "is assumed" not in planned
