"""Evidence runs as tests: of the quickstart's trainer, of one that pretends, of a command.

And what they decide: who has a slot in a wave, and XLA's profile of latencies (PGLE). The trainer
of the last one pretends to be the XLA of a GPU: it prints the lines of the CUDA compiler of jaxlib
0.10.2, and is faster where the file that it was given is of its program.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.model.profile import PGLE
from tests.helpers.captures import node
from tests.helpers.hlo_programs import text as hlo_text
from tests.helpers.second_looks import ALONE_AND_WITH_WORKERS
from tests.helpers.words import in_words
from tests.plugin.conftest import HEAD, SWEEP_FILE, Folder
from tests.plugin.test_shipped_sweeps import FLAGSHIP_TRAINER

QUICKSTART = Path(__file__).parents[2] / "sweeps" / "quickstart"
REAL_HEAD = f"""\
import sys
import pytest
from pytest_xlatune import *

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
    design=DesignSettings(screen_baselines=2, budget=40),
)
"""
REAL = f"""{REAL_HEAD}

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
    FLAGSHIP_TRAINER.replace("keys = dict", f"{UNKNOWN}keys = dict", 1)
    .replace('here / "program.txt"', 'here / f"{other}program.txt"')
    .replace('here / "capture.pb"', 'here / f"{other}capture.pb"')
)


@pytest.mark.parametrize(
    ("is_real", "target"),
    [
        (False, "sm_9.0"),
        pytest.param(True, "cpu", marks=[pytest.mark.jax, pytest.mark.part("sweeps")]),
    ],
    ids=["a trainer that pretends", "real JAX"],
)
def test_evidence_is_recorded_once_and_found_by_name(
    folder: Folder, capsys: pytest.CaptureFixture[str], *, is_real: bool, target: str
) -> None:
    for name, program, unit in (("", "fsdp", 10**6), ("other-", "pp", 2 * 10**6)):
        folder.put(f"{name}program.txt", hlo_text("0.12.0", program))
        (folder.path / f"{name}capture.pb").write_bytes(node(unit=unit).data())
    module = folder.put("train.py", PRETENDS)
    real = repr(str(QUICKSTART / "train.py"))
    folder.write(text=REAL if is_real else REAL.replace(real, repr(str(module))))
    done = folder.run("-m", "wave1_5", "-s")
    done.assert_outcomes(passed=2)
    program = f"*jit_train_step for {target}: * instructions, * collectives*"
    step = "*2 devices, ? steps: a step spans * ms: compute *"
    done.stdout.fnmatch_lines(["*baseline-deployed (job *) ran with*", program, step])
    assert len(folder.submitted) == 2
    recorded = folder.events("evidence-recorded")
    cell = next(folder.path.glob(".xlatune/pretend/*/ledger.jsonl")).parent
    for event in recorded:
        assert (cell / event["dump"]).is_dir()
        assert all((cell / capture).is_file() for capture in event["captures"])
        assert not event["problems"]
    assert all(result["score"] is None for result in folder.results)
    folder.run("-m", "wave1_5").assert_outcomes(passed=2)
    assert len(folder.submitted) == len(folder.events("evidence-recorded")) == 2

    capsys.readouterr()  # what pytester printed
    dumps = [str(cell / event["dump"]) for event in recorded]
    assert main(["hlo", *dumps, "--json"]) == 0
    assert '"change": "other program"' in capsys.readouterr().out
    before, after = ([str(cell / path) for path in event["captures"]] for event in recorded)
    assert main(["drill", *before, "--", *after]) == 0
    assert "a step takes" in capsys.readouterr().out

    # what cannot run is said, and keeps the sweep from nothing
    refused = folder.run("-m", "wave2")
    refused.assert_outcomes(failed=1)
    refused.stdout.fnmatch_lines(["*bogus left no evidence: unknown-flag*"])
    assert not [event for event in folder.events("decided") if event["next"] == "stop"]


# --- what the program can feel decides which candidates have a slot -------------------------------

RAGGED = "--xla_gpu_unsupported_use_ragged_all_to_all_one_shot_kernel=false"
# a trainer's first lines: where it is asked for, a program that gathers and does nothing else
GATHERS = """\
import os, pathlib, re
dump = re.search('--xla_dump_to="?([^" ]+)', os.environ["XLA_FLAGS"])
if dump:
    folder = pathlib.Path(dump.group(1)); folder.mkdir(parents=True)
    name = "module_1.jit_train_step.cpu_after_optimizations.txt"
    (folder / name).write_text('''HloModule jit_train_step, is_scheduled=true

ENTRY %main.1 (a: f32[4]) -> f32[8] {
  %a = f32[4]{0} parameter(0)
  ROOT %all-gather.1 = f32[8]{0} all-gather(%a), replica_groups={{0,1}}, dimensions={0}
}
''')
"""
CANDIDATES = f"""\
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
    site="""
ORDERED_TESTS = """


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


@pytest.mark.confirm
def test_why_the_winner_wins(evidence, winner):
    assert evidence(winner).profile == winner.id == "fast"
"""


@pytest.fixture
def ordered(folder: Folder) -> Folder:
    early = '        profile("early", "--xla_early=1", wave="wave1"),\n'
    folder.write(profiles=early, text=HEAD + ORDERED_TESTS)
    folder.edit(
        "test_sweep.py",
        ("FSDP=4", "FSDP=2"),
        ("    site=", CANDIDATES),
        ("finalists=2", "finalists=1"),
        ("block_baselines=1", "block_baselines=2"),
    )
    folder.put("trainer.py", GATHERS + folder.read("trainer.py"))
    return folder


def screened(folder: Folder) -> list[str]:
    trials = [result["trial"] for result in folder.results]
    ids = {trial["profile"]["id"] for trial in trials if trial["stage"] == "wave2"}
    return sorted(ids - {"baseline-deployed"})


@pytest.mark.parametrize("run", ALONE_AND_WITH_WORKERS)
def test_the_program_decides_who_has_a_slot_and_the_winner_leaves_its_evidence(
    ordered: Folder, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = getattr(ordered, run)("-m", "wave2")
    alone.assert_outcomes(passed=2)
    alone.stdout.fnmatch_lines(["*baseline-deployed* ran with*"])
    # declared last, and first of what the program can feel
    assert screened(ordered) == ["fast", "gather"]
    submitted = len(ordered.submitted)
    ordered.run("-m", "wave1_5 or wave2").assert_outcomes(passed=3)
    assert len(ordered.submitted) == submitted, "later waves reuse the evidence"
    ordered.run().assert_outcomes(passed=6)
    assert screened(ordered) == ["fast", "gather"]
    studies = [trial.rpartition("-")[0] for trial in ordered.submitted]
    evidence = [each for each in studies if "-evidence." in each]
    assert evidence == ["baseline-deployed-evidence.0", "fast-evidence.0"]
    recorded, _ = ordered.events("evidence-recorded")
    assert recorded["shares"] == {"of_step": {}, "kinds": ["all-gather"], "kernels": {}}
    board = ordered.json("reports/pretend/leaderboard.json")
    assert not [each for each in board["trials"] if each["trial"]["stage"] == "evidence"]
    notes = in_words(board["conclusion"]["notes"])
    assert "the evidence of baseline-deployed-evidence.0-" in notes
    assert re.search(r"wave2: cut\b[^;]* 2 slots", notes)
    assert "wave2: left out: deployed (the same settings as baseline-deployed)" in notes
    assert "ignored" not in notes
    assert "by the evidence" in ordered.read("reports/pretend-tuning.md")

    # a command cannot be told to profile: its dump alone is evidence, and that is said
    there = ["--workdir", str(ordered.path / ".xlatune")]
    reports = ["--reports", str(ordered.path / "reports")]
    assert main(["evidence", str(ordered.path / "test_sweep.py"), *there, *reports]) == 2
    out, err = capsys.readouterr()
    assert out.index("baseline-deployed: trial") < out.index("fast: trial")
    assert "jit_train_step for cpu: 2 instructions" in out
    assert "no capture among" in err
    assert len(ordered.submitted) == len(studies)


# --- a profile for XLA's scheduler ----------------------------------------------------------------

OURS, OTHER = "70caf7744d6db14c500bc2be2259cefc", "0" * 32
XLA = f"""\
import base64, os, pathlib, re, sys
flags = os.environ.get("XLA_FLAGS", "")
fingerprint = {OURS!r}
dump = re.search('--xla_dump_to="?([^" ]*xla_dump)', flags)
if dump:
    folder = pathlib.Path(dump.group(1)); folder.mkdir(parents=True)
    (folder / "module_1.jit_train_step.sm_9.0_gpu_after_optimizations.txt").write_text(
        'HloModule jit_train_step, is_scheduled=true, frontend_attributes='
        '{{fingerprint_before_lhs="' + fingerprint + '"}}\\n'
        '\\nENTRY %main.1 (a: f32[4]) -> f32[4] {{\\n'
        '  ROOT %a = f32[4]{{0}} parameter(0)\\n}}\\n')
    capture = folder.parent / "plugins" / "profile" / "1"; capture.mkdir(parents=True)
    (capture / "n.xplane.pb").write_bytes(base64.b85decode({base64.b85encode(node().data())!r}))
named = re.search('--{PGLE}=([^" ]+)', flags)
if named and not dump:
    file = pathlib.Path(named.group(1))
    names = re.findall('costs {{ name: "([^"]*)" cost_us: [0-9.]+ }}', file.read_text())
    own = [each for each in names if "::" not in each or each.startswith(fingerprint + "::")]
    at = "1127 16:36:10.700590   25644 profile_guided_latency_estimator.cc"
    for some in (own, []):  # another program is always there: that of the parameters
        print(f"W{{at}}:192] Found {{len(some)}} instructions from the profile.")
        print(f"W{{at}}:194] Missing 1 instructions from the profile.")
    if own:
        os.environ["XLA_FLAGS"] = flags + " --xla_fast=1"
"""


@pytest.fixture
def guided(folder: Folder) -> Folder:
    """A sweep whose one candidate is the profile of its own evidence run."""
    folder.write(profiles="", text=SWEEP_FILE.replace("test_flag", "test_single"))
    folder.edit(
        "test_sweep.py",
        ("    site=", "    derived=(Singles(slots=1, pgle=True),),\n    site="),
        ("block_baselines=1", "block_baselines=2"),
        ("(measure, profile)", "(measure, derived)"),
        ("(profile)", "(derived)"),
    )
    folder.put("trainer.py", XLA + folder.read("trainer.py"))
    return folder


def test_the_file_of_an_evidence_run_wins_and_is_no_recipe_of_another_place(
    guided: Folder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    guided.run()
    (recorded,) = guided.events("evidence-recorded")
    head, *costs = Path(recorded["pgle"]).read_text(encoding="utf-8").splitlines()
    assert head == "# of jit_train_step for sm_9.0"
    # the shortest operation is left out, so that XLA says how many it found
    operations = ("input_scatter_fusion_2.kd", "ncclDevKernel_AllGather", "nvjet_gemm")
    assert {line.split('"')[1] for line in costs} == {f"{OURS}::{name}" for name in operations}
    (verdict,) = guided.json("reports/pretend/leaderboard.json")["conclusion"]["verdicts"]
    assert (verdict["arm"], verdict["kind"]) == ("pgle-profile", "FASTER")

    # the file is of the program that was measured: another place makes its own
    monkeypatch.chdir(guided.path)
    asked = ["recipe", "apply", "reports/pretend-tuning.json", "--to", "test_sweep.py"]
    assert main(asked) == 2
    assert "Singles(..., pgle=True) makes" in capsys.readouterr().err
    assert not [*guided.path.glob("test_sweep_recipe*")]


def test_a_profile_that_xla_did_not_take_is_invalid(guided: Folder) -> None:
    other = f"fingerprint = fingerprint if dump else {OTHER!r}\nif named and not dump:"
    guided.edit("trainer.py", ("if named and not dump:", other))
    guided.run("-m", "wave2").assert_outcomes(xfailed=1)
    (verdict,) = guided.json("reports/pretend/leaderboard.json")["conclusion"]["verdicts"]
    assert (verdict["arm"], verdict["kind"]) == ("pgle-profile", "INVALID")
    assert "belongs to another program" in in_words(verdict["reasons"])
