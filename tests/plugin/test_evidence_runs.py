"""Evidence runs as tests: of the quickstart's trainer, of one that pretends, of a command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main
from tests.helpers.captures import node
from tests.helpers.hlo_programs import text as hlo_text
from tests.helpers.words import in_words
from tests.plugin.test_flagship_sweeps import TRAINER

QUICKSTART = Path(__file__).parents[2] / "sweeps" / "quickstart"


REAL = f"""\
import sys

import pytest

from pytest_xlatune import (
    CellSettings,
    DesignSettings,
    MaxTextLauncher,
    Protocol,
    SiteSettings,
    Sweep,
    profile,
)

SWEEP = Sweep(
    name="pretend",
    cell=CellSettings(
        model_tag="tiny",
        parallelism="FSDP=2",
        deployed={{"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}},
        overrides={{
            "base_emb_dim": "32", "base_num_decoder_layers": "2", "base_mlp_dim": "64",
            "head_dim": "8", "vocab_size": "64",
        }},
        per_device_batch_size=2,
        max_target_length=16,
        devices=2,
        # slow steps of a busy machine are spared
        protocol=Protocol(steps=60, min_steps=5, skip_first_steps=3, profiler_steps=2),
    ),
    launcher=MaxTextLauncher(
        python=sys.executable,
        module={str(QUICKSTART / "train.py")!r},
        config={str(QUICKSTART / "configs" / "quickstart.yml")!r},
        axis_prefix={{"FSDP": "ici", "PP": "ici"}},
    ),
    profiles=(
        profile("unfused", "--xla_disable_hlo_passes=fusion"),
        profile("bogus", "--xla_cpu_enable_warp_drive=true"),
    ),
    site=SiteSettings(executor="local"),
    design=DesignSettings(
        screen_baselines=2,
        budget=40,
    ),
)


@pytest.mark.wave1_5(profiles=["baseline-deployed", "unfused"])
def test_why(evidence, profile):
    seen = evidence(profile)
    assert seen.dump and seen.captures, seen.problems
    print(*seen.facts, sep="\\n")


@pytest.mark.wave2
def test_of_what_cannot_run(evidence):
    evidence("bogus")
"""


# a flag that no XLA knows ends it; without fusion it is another program, and slower
UNKNOWN = """\
if "warp_drive" in flags:
    sys.exit("F1120 09:03:25.888154 1 parse_flags_from_env.cc:234] "
             "Unknown flag in XLA_FLAGS: --xla_cpu_enable_warp_drive=true")
other = "other-" if "passes=fusion" in flags else ""
"""
PRETENDS = (
    TRAINER.replace("keys = dict", f"{UNKNOWN}keys = dict", 1)
    .replace('here / "program.txt"', 'here / f"{other}program.txt"')
    .replace('here / "capture.pb"', 'here / f"{other}capture.pb"')
)


@pytest.mark.parametrize(
    ("is_real", "target", "steps"),
    [
        pytest.param(False, "sm_9.0", "2 devices, 3 steps", id="a trainer that pretends"),
        pytest.param(
            True, "cpu", "2 devices, 2 steps", id="real JAX",
            marks=[pytest.mark.jax, pytest.mark.part("sweeps")],
        ),
    ],
)  # fmt: skip
def test_evidence_is_recorded_once_and_found_by_name(
    folder: Any, capsys: pytest.CaptureFixture[str], *, is_real: bool, target: str, steps: str
) -> None:
    module = str(folder.path / "train.py")
    for name, text, unit in (("", "fsdp", 10**6), ("other-", "pp", 2 * 10**6)):
        program, capture = folder.path / f"{name}program.txt", folder.path / f"{name}capture.pb"
        program.write_text(hlo_text("0.12.0", text), encoding="utf-8")
        capture.write_bytes(node(unit=unit).data())
    Path(module).write_text(PRETENDS, encoding="utf-8")
    real = repr(str(QUICKSTART / "train.py"))
    folder.write(text=REAL if is_real else REAL.replace(real, repr(module)))
    done = folder.run("-m", "wave1_5", "-s")
    done.assert_outcomes(passed=2)
    done.stdout.fnmatch_lines(
        [
            "*baseline-deployed (job *) ran with*",
            f"*jit_train_step for {target}: * instructions, * collectives*",
            f"*{steps}: a step spans * ms: compute *",
        ]
    )
    assert len(folder.submitted) == 2
    recorded = folder.events("evidence-recorded")
    cell = next(folder.path.glob(".xlatune/pretend/*/ledger.jsonl")).parent
    for each in recorded:
        assert (cell / each["dump"]).is_dir()
        assert all((cell / capture).is_file() for capture in each["captures"])
        assert not each["problems"]
    assert all(each["result"]["score"] is None for each in folder.events("trial-ended"))

    folder.run("-m", "wave1_5").assert_outcomes(passed=2)
    assert len(folder.submitted) == 2
    assert len(folder.events("evidence-recorded")) == 2

    there = ["--workdir", str(folder.path / ".xlatune")]
    capsys.readouterr()  # what pytester printed
    assert main(["hlo", "pretend:baseline-deployed", "pretend:unfused", "--json", *there]) == 0
    assert json.loads(capsys.readouterr().out)["difference"]["change"] == "other program"
    trial = recorded[0]["trial_id"]
    assert main(["drill", trial, "--", "pretend:unfused", *there]) == 0
    assert "a step takes" in capsys.readouterr().out
    assert main(["hlo", "pretend:unfusd", *there]) == 2
    assert "recorded are baseline-deployed, unfused" in capsys.readouterr().err

    # what cannot run is said, and keeps the sweep from nothing
    refused = folder.run("-m", "wave2")
    refused.assert_outcomes(failed=1)
    refused.stdout.fnmatch_lines(["*bogus left no evidence: unknown-flag*"])
    assert not [each for each in folder.events("decided") if each["next"] == "stop"]


DUMPING = """\
import os, pathlib, re
dump = re.search('--xla_dump_to="?([^" ]+)', os.environ["XLA_FLAGS"])
if dump:
    folder = pathlib.Path(dump.group(1)); folder.mkdir(parents=True)
    name = "module_1.jit_train_step.cpu_after_optimizations.txt"
    (folder / name).write_text('''HloModule jit_train_step, is_scheduled=true

ENTRY %main.1 (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  ROOT %add.1 = f32[4]{0} add(%a, %a)
}
''')
"""
TESTS = """

@pytest.mark.wave1_5
def test_evidence(evidence):
    assert evidence("baseline-deployed").dump is not None


@pytest.mark.confirm
def test_why_the_winner_wins(evidence, winner):
    assert evidence(winner).profile == winner.id == "fast"
"""


def test_the_winner_leaves_its_evidence_and_no_score_is_touched(
    folder: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.write()
    (folder.path / "trainer.py").write_text(DUMPING + folder.read("trainer.py"), encoding="utf-8")
    text = folder.read("test_sweep.py")
    (folder.path / "test_sweep.py").write_text(text + TESTS, encoding="utf-8")
    folder.run().assert_outcomes(passed=7, xfailed=1)
    studies = [trial.rpartition("-")[0] for trial in folder.submitted]
    assert sorted(each for each in studies if "-evidence." in each) == [
        "baseline-deployed-evidence.0",
        "fast-evidence.0",
    ]
    board = json.loads(folder.read("reports/pretend/leaderboard.json"))
    assert not [each for each in board["trials"] if each["trial"]["stage"] == "evidence"]
    assert "ignored" not in in_words(board["conclusion"]["notes"])

    # a command cannot be told to profile: its dump alone is evidence, and that is said
    there = ["--workdir", str(folder.path / ".xlatune")]
    assert main(["drill", "pretend:fast", *there]) == 2
    assert "left no capture: no capture among" in capsys.readouterr().err
    swept = [str(folder.path / "test_sweep.py"), *there]
    assert main(["evidence", *swept, "--reports", str(folder.path / "reports")]) == 2
    out, err = capsys.readouterr()
    assert out.index("baseline-deployed: trial") < out.index("fast: trial")
    assert "jit_train_step for cpu: 2 instructions" in out
    assert "identical" in out
    assert "no capture among" in err
    assert len(folder.submitted) == len(studies)
    measured = next(each for each in folder.submitted if each.startswith("fast-wave2"))
    assert main(["hlo", measured, *there]) == 2
    assert "left no dump" in capsys.readouterr().err
