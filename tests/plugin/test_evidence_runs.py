"""Evidence runs as tests: of the quickstart's trainer, and of one that pretends to be XLA's.

And what they decide: who has a slot in a wave, and XLA's profile of latencies (PGLE).
"""

from __future__ import annotations

import platform
import re
import subprocess
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.model.profile import PGLE
from tests.helpers.second_looks import ALONE_AND_WITH_WORKERS
from tests.helpers.words import in_words
from tests.plugin.conftest import SWEEP_FILE, Folder

SWEEPS = Path(__file__).parents[2] / "sweeps"


@pytest.mark.jax
def test_real_jax_leaves_evidence_and_the_record_of_what_it_ran_on(
    folder: Folder, capsys: pytest.CaptureFixture[str]
) -> None:
    done = folder.pytester.runpytest_subprocess(
        *("-p", "xlatune", str(SWEEPS / "test_quickstart.py"), f"--rootdir={folder.path}"),
        *("-k", "test_baseline or test_evidence", "--xlatune-rotate=off", "--xlatune-yes"),
        timeout=240,
    )
    done.assert_outcomes(passed=2, deselected=12)
    (recorded,) = folder.events("evidence-recorded", sweep="quickstart")
    cell = next(folder.path.glob(".xlatune/quickstart/*/ledger.jsonl")).parent
    assert recorded["problems"] == []
    program, step = recorded["facts"]
    assert re.match(r"jit_train_step for cpu: \d+ instructions, \d+ collectives", program)
    assert re.match(r"2 devices, \d steps: a step spans .* ms: compute ", step)
    capsys.readouterr()  # what pytester printed
    assert main(["hlo", str(cell / recorded["dump"])]) == 0
    assert "jit_train_step for cpu" in capsys.readouterr().out
    assert main(["drill", *(str(cell / path) for path in recorded["captures"])]) == 0

    told = folder.json("reports/quickstart/leaderboard.json")["record"]
    (node,) = told["nodes"]
    assert node["packages"].keys() >= {"python", "jax", "jaxlib", "numpy"}
    assert node["devices"]["devices"] == "2 x cpu", "as many as the cell's flag forces"
    assert (node["problems"], list(node["code"])) == ([], [str(SWEEPS / "quickstart")])
    argv = ["git", "-C", str(SWEEPS), "rev-parse", "HEAD"]
    head = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    assert [text[:40] for text in node["repositories"].values()] == [head]
    assert told["commands"][0].endswith(" --xlatune-rotate=off --xlatune-yes")
    assert told["seed"] == 0
    assert 0 < told["node_hours"] * 3600 < told["ended_s"] - told["started_s"]
    assert len(folder.events("environment-seen", sweep="quickstart")) == 1, "both told the same"
    jax, kernel = f"jax {node['packages']['jax']}", f"kernel {platform.release()}"
    words = (jax, "devices 2 x cpu", kernel, head, "Random seed of the", "node-hours", "Command: ")
    for name in ("quickstart/leaderboard.md", "quickstart-tuning.md"):
        text = folder.read(f"reports/{name}")
        assert [word for word in words if word not in text] == []


# test_baseline of the plain sweep file: the standard one asks a real XLA, which knows no such flag
BASELINE = SWEEP_FILE.partition("\n\n@pytest.mark.wave2")[0]


# --- what the program can feel decides which candidates have a slot -------------------------------

RAGGED = "--xla_gpu_unsupported_use_ragged_all_to_all_one_shot_kernel=false"
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
OF_WHAT_CANNOT_RUN = """

@pytest.mark.wave1
def test_of_what_cannot_run(evidence):
    evidence("bogus")
"""


def screened(folder: Folder) -> list[str]:
    trials = [result["trial"] for result in folder.results]
    ids = {trial["profile"]["id"] for trial in trials if trial["stage"] == "wave2"}
    return sorted(ids - {"baseline-deployed"})


@pytest.mark.parametrize("run", ALONE_AND_WITH_WORKERS)
def test_the_program_decides_who_has_a_slot_and_the_winner_leaves_its_evidence(
    folder: Folder, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    early = '        profile("early", "--xla_early=1", wave="wave1"),\n'
    standard = "tests = standard_tests(SWEEP, evidence=True)\n"
    folder.write(profiles=early, text=f"{BASELINE}\n\n{standard}")
    one = (("finalists=2", "finalists=1"), ("block_baselines=1", "block_baselines=2"))
    folder.edit("test_sweep.py", ("FSDP=4", "FSDP=2"), ("    site=", CANDIDATES), *one)
    folder.put_evidence("fsdp")
    alone = getattr(folder, run)("-m", "wave2")
    alone.assert_outcomes(passed=2)
    alone.stdout.fnmatch_lines(["*baseline-deployed* ran with*"])
    # declared last, and first of what the program can feel
    assert screened(folder) == ["fast", "gather"]
    submitted = len(folder.submitted)
    folder.run("-m", "wave1_5 or wave2").assert_outcomes(passed=3)
    assert len(folder.submitted) == submitted, "later waves reuse the evidence"
    folder.run().assert_outcomes(passed=7)
    assert screened(folder) == ["fast", "gather"]
    studies = [trial.rpartition("-")[0] for trial in folder.submitted]
    evidence = [each for each in studies if "-evidence." in each]
    assert evidence == ["baseline-deployed-evidence.0", "fast-evidence.0"]
    recorded, _ = folder.events("evidence-recorded")
    assert "all-gather" in recorded["shares"]["kinds"]
    board = folder.json("reports/pretend/leaderboard.json")
    assert not [each for each in board["trials"] if each["trial"]["stage"] == "evidence"]
    notes = in_words(board["conclusion"]["notes"])
    assert "the evidence of baseline-deployed-evidence.0-" in notes
    assert re.search(r"wave2: cut\b[^;]* 2 slots", notes)
    assert "wave2: left out: deployed (the same settings as baseline-deployed)" in notes
    assert "ignored" not in notes
    assert "by the evidence" in folder.read("reports/pretend-tuning.md")

    capsys.readouterr()
    there = ["--workdir", str(folder.path / ".xlatune")]
    reports = ["--reports", str(folder.path / "reports")]
    assert main(["evidence", str(folder.path / "test_sweep.py"), *there, *reports]) == 0
    out = capsys.readouterr().out
    assert out.index("baseline-deployed: trial") < out.index("fast: trial")
    assert "jit_train_step for sm_9.0: " in out
    assert len(folder.submitted) == len(studies)

    # what cannot run is said, and keeps the sweep from nothing
    bogus = early.replace("early", "bogus")
    folder.write(profiles=bogus, text=f"{BASELINE}{OF_WHAT_CANNOT_RUN}")
    folder.edit("test_sweep.py", *one)
    refused = folder.run("-k", "cannot")
    refused.assert_outcomes(failed=1, deselected=1)
    refused.stdout.fnmatch_lines(["*bogus left no evidence: unknown-flag*"])
    assert not [event for event in folder.events("decided") if event["next"] == "stop"]


# --- a profile for XLA's scheduler ----------------------------------------------------------------

# of the kept program
OURS, OTHER = "70caf7744d6db14c500bc2be2259cefc", "0" * 32
# the lines of the CUDA compiler of jaxlib 0.10.2, and a gain where the file is of its program
XLA = f"""\
named = re.search('--{PGLE}=([^" ]+)', flags)
if named and not dump:
    text = pathlib.Path(named[1]).read_text()
    names = re.findall('costs {{ name: "([^"]*)" cost_us: [0-9.]+ }}', text)
    own = [each for each in names if "::" not in each or each.startswith({OURS!r} + "::")]
    at = "1127 16:36:10.700590   25644 profile_guided_latency_estimator.cc"
    for some in (own, []):  # another program is always there: that of the parameters
        print(f"W{{at}}:192] Found {{len(some)}} instructions from the profile.")
        print(f"W{{at}}:194] Missing 1 instructions from the profile.")
    flags += " --xla_fast=1" * bool(own)
speed = 1000.0
"""


@pytest.fixture
def guided(folder: Folder) -> Folder:
    """A sweep whose one candidate is the profile of its own evidence run."""
    folder.write(profiles="", text=f"{BASELINE}\n\ntests = standard_tests(SWEEP)\n")
    slot = ("    site=", "    derived=(Singles(slots=1, pgle=True),),\n    site=")
    folder.edit("test_sweep.py", slot, ("block_baselines=1", "block_baselines=2"))
    folder.put_evidence("fsdp")
    folder.edit("trainer.py", ("speed = 1000.0\n", XLA))
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
    guided.edit("trainer.py", (f"{OURS!r} +", f"{OTHER!r} +"))
    guided.run("-m", "wave2").assert_outcomes(xfailed=1)
    (verdict,) = guided.json("reports/pretend/leaderboard.json")["conclusion"]["verdicts"]
    assert (verdict["arm"], verdict["kind"]) == ("pgle-profile", "INVALID")
    assert "belongs to another program" in in_words(verdict["reasons"])
