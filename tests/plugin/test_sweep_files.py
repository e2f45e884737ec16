"""Every file of `sweeps/`, studies of cells and evidence runs, through pytest to their reports."""

from __future__ import annotations

import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.model.profile import PGLE
from tests.helpers.repositories import Repository
from tests.helpers.second_looks import ALONE_AND_WITH_WORKERS, BESIDE_THE_LAB
from tests.helpers.sessions import run_inside
from tests.helpers.words import in_words
from tests.launchers.test_maxtext_slurm_jobs import READY
from tests.maxtext.test_real_maxtext import SWEEP_FILE as OF_MAXTEXT
from tests.plugin.conftest import SWEEP_FILE, TRAINER, Folder, declaring

SWEEPS = Path(__file__).parents[2] / "sweeps"


@pytest.mark.jax
def test_real_jax_leaves_evidence_and_the_record_of_what_it_ran_on(
    folder: Folder,
) -> None:
    done = folder.pytester.runpytest_subprocess(
        *("-p", "xlatune", str(SWEEPS / "test_quickstart.py"), f"--rootdir={folder.path}"),
        *("-k", "test_baseline or test_evidence", "--xlatune-rotate=off", "--xlatune-yes"),
        timeout=240,
    )
    done.assert_outcomes(passed=2, deselected=12)
    (recorded,) = folder.events("evidence-recorded", sweep="quickstart")
    assert recorded["problems"] == []
    program, step = recorded["facts"]
    assert re.match(r"jit_train_step for cpu: \d+ instructions, \d+ collectives", program)
    assert re.match(r"2 devices, \d steps: a step spans .* ms: compute ", step)

    told = folder.json("reports/quickstart/leaderboard.json")["record"]
    (node,) = told["nodes"]
    assert node["packages"].keys() >= {"python", "jax", "jaxlib", "numpy"}
    assert node["devices"]["devices"] == "2 x cpu", "as many as the cell's flag forces"
    assert (node["problems"], list(node["code"])) == ([], [str(SWEEPS / "quickstart")])
    argv = ["git", "-C", str(SWEEPS), "rev-parse", "HEAD"]
    head = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    assert [text[:40] for text in node["repositories"].values()] == [head]
    assert told["commands"][0].endswith(" --xlatune-rotate=off --xlatune-yes")
    assert 0 < told["node_hours"] * 3600 < told["ended_s"] - told["started_s"]
    assert len(folder.events("environment-seen", sweep="quickstart")) == 1, "both told the same"
    words = (f"jax {node['packages']['jax']}", f"kernel {platform.release()}", head, "Command: ")
    report = folder.read("reports/quickstart/leaderboard.md")
    assert [word for word in words if word not in report] == []


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
    assert re.search(r"wave2: cut\b[^;]* 2 slots", notes)
    assert "wave2: left out: deployed (the same name or settings as baseline-deployed)" in notes
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


def test_the_file_of_an_evidence_run_wins_where_xla_takes_it_and_is_no_recipe_of_another_place(
    folder: Folder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one profile of the sweep has the file of an evidence run."""

    def verdict() -> dict[str, Any]:
        board = folder.json("reports/pretend/leaderboard.json")
        (found,) = board["conclusion"]["verdicts"]
        assert found["arm"] == "pgle-profile"
        return dict(found)

    text = f"{BASELINE}\n\ntests = standard_tests(SWEEP, evidence=True)\n"
    folder.write(text=text)
    folder.put_evidence("fsdp")
    folder.run("-m", "wave1_5").assert_outcomes(passed=1)
    (recorded,) = folder.events("evidence-recorded")
    head, *costs = Path(recorded["pgle"]).read_text(encoding="utf-8").splitlines()
    assert head == "# of jit_train_step for sm_9.0"
    # the shortest operation is left out, so that XLA says how many it found
    operations = ("input_scatter_fusion_2.kd", "ncclDevKernel_AllGather", "nvjet_gemm")
    assert {line.split('"')[1] for line in costs} == {f"{OURS}::{name}" for name in operations}

    flag = f'        profile("pgle-profile", "--{PGLE}={recorded["pgle"]}"),\n'
    folder.write(profiles=flag, text=text)
    folder.edit("test_sweep.py", ("block_baselines=1", "block_baselines=2"))
    folder.edit("trainer.py", ("speed = 1000.0\n", XLA.replace(OURS, OTHER)))
    folder.run("-m", "wave2").assert_outcomes(xfailed=1)
    invalid = verdict()
    assert invalid["kind"] == "INVALID"
    assert "belongs to another program" in in_words(invalid["reasons"])

    folder.edit("trainer.py", (OTHER, OURS))
    folder.run("--xlatune-fresh")
    assert verdict()["kind"] == "FASTER"

    # the file is of the program that was measured: another place makes its own
    monkeypatch.chdir(folder.path)
    asked = ["recipe", "apply", "reports/pretend-tuning.json", "--to", "test_sweep.py"]
    assert main(asked) == 2
    assert "xlatune evidence` writes" in capsys.readouterr().err
    assert not [*folder.path.glob("test_sweep_recipe*")]


# this machine stands for every node
EVERY_NODE = """\
import msgspec
from pytest_xlatune.executors.local import LocalExecutor

real = LocalExecutor.submit

def submit(self, spec, request):
    resources = msgspec.structs.replace(request.resources, nodes=1)
    return real(self, spec, msgspec.structs.replace(request, nodelist=(), resources=resources))

LocalExecutor.submit = submit
"""
NODES = ("--xlatune-nodelist", "node[001-004]")
# saturates, falls above 6, and has no memory for more than 9 sequences
OF_ITS_SIZE = """\
size = float(sys.argv[3])
if size > 9:
    print("Memstats: After params initialized:")
    print("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying "
          f"to allocate {size / 2:.2f}GiB.", flush=True)
    sys.exit(1)
print(f"Total memory size: {2 + size / 2:.3f} GB, Output size: 1.0 GB", flush=True)
speed = 1500.0 * size / (size + 2) * (1 - 0.05 * max(0, size - 6))
"""
OF_SIZES = (
    ('"{trial}")', '"{trial}", "{per_device_batch_size}")'),
    ('parallelism="FSDP=4",', 'parallelism="FSDP=4", per_device_batch_size=4,'),
)
Write = Callable[..., None]


@pytest.fixture
def write(folder: Folder) -> Write:
    """Return what writes a sweep file of a study, with edits, and the speed of its trainer."""
    folder.put("conftest.py", EVERY_NODE)

    def write(study: str, *edits: tuple[str, str], speed: str = "speed = 1000.0\n") -> None:
        folder.write(text=declaring(f"study={study}"))
        folder.edit("test_sweep.py", *edits)
        folder.edit("trainer.py", ("speed = 1000.0\n", speed))

    return write


def test_a_slow_node_fails_its_test_and_a_sweep_takes_the_others(
    folder: Folder, write: Write
) -> None:
    write("Nodes()", speed='speed = 700.0 if "node002" in sys.argv[2] else 1000.0\n')
    done = folder.run("-m", "nodes", "-v", *NODES)
    done.assert_outcomes(passed=4, failed=1)
    done.stdout.fnmatch_lines(["*test_arm?node002?*SLOWER*"])
    done.stdout.fnmatch_lines(["*4 nodes: slower: node002 -*% (-*"])
    assert len(folder.submitted) == 4 + 4 * 4, "a run of each, then four rounds"
    report = folder.read("reports/pretend/nodes.md")
    assert "| `node002` | SLOWER | " in report
    assert folder.read(".xlatune/healthy.nodes").splitlines()[-1] == "node001,node003,node004"
    profiles = "".join(f'        profile("{name}", "--xla_{name}=1"),\n' for name in ("a", "b"))
    folder.write(profiles=profiles, text=SWEEP_FILE.replace("FSDP=4", "FSDP=3"))
    healthy = f"--xlatune-nodelist={folder.read('.xlatune/healthy.nodes').splitlines()[-1]}"
    swept = folder.run(healthy, "-m", "wave1 or wave2", "-v")
    swept.assert_outcomes(passed=3)
    assert len(folder.submitted) == 20 + 4, "two baselines, two profiles"
    nodes = "Nodes: `node001`, `node003`, `node004`"
    assert nodes in folder.read("reports/pretend/leaderboard.md")


def test_a_search_has_one_test_and_says_size_and_ceiling(folder: Folder, write: Write) -> None:
    write("BatchSize(start=4, sigma=0.003)", *OF_SIZES, speed=OF_ITS_SIZE)
    done = folder.run("-m", "batch", "-v", "--junitxml=junit.xml")
    done.assert_outcomes(passed=1)
    recommended = "recommended: per_device_batch_size=6"
    done.stdout.fnmatch_lines(["*test_conclusion*", f"*{recommended} with * TGS*"])
    done.stdout.fnmatch_lines(["*pdbs-10*dropped*"])
    assert recommended in folder.read("junit.xml")
    record = folder.json("reports/pretend/batch.json")["conclusion"]["record"]
    assert (record["value"], record["largest"], record["unfit"]) == ("6", "9", "10")
    report = folder.read("reports/pretend/batch.md")
    software = "* Software of the trainer: "  # by a size that ran: 1 did not
    for words in ("| `pdbs-6` | ", software, "| `pdbs-10` | dropped | ", "5.00 GiB", "(GB)"):
        assert words in report
    assert folder.read(".xlatune/batch.best") == "per_device_batch_size=6\n"
    before = folder.submitted
    folder.run("-m", "batch").assert_outcomes(passed=1)
    assert folder.submitted == before, "what was measured is reused, also what does not fit"
    assert "\nper_device_batch_size=6\n" in report.split("## To deploy")[1]


CELL = "--xlatune-model llama2-70b --xlatune-parallelism"
ON_NODES = "--xlatune-nodelist node[001-004]"
# how a file is run as its first lines say, and the report that it leaves
HERE = {
    "batch": (f"-m batch {CELL} FSDP=8 --xlatune-pdbs 4", "batch/batch.md"),
    "nodes": (f"-m nodes {CELL} FSDP=8 {ON_NODES}", "nodes/nodes.md"),
    "network": (f"-m network {CELL} FSDP=16 {ON_NODES}", "network/network.md"),
    "commits": (
        f"-m commits --xlatune-commits main~3..main {CELL} FSDP=64", "commits/commits.md"),
    "models": (
        "-m commits --xlatune-commits main~1,main --xlatune-nodelist node[001-008]",
        "models/commits.md"),
    "gate": ("", "gate/gate.md"),
    "tpu": (
        "-k 'test_baseline or tpu-cf' --xlatune-rotate off --xlatune-model llama2-7b",
        "tpu/leaderboard.md"),
    "quickstart": ("-m 'wave1 or wave2'", "quickstart/leaderboard.md"),
}  # fmt: skip
# name -> the real program that its evidence run dumps, a profile of its own
FLAGSHIPS = {
    "pp8": ("pp", "overlap-2"),
    "fsdp8": ("fsdp", "ag-1g"),
    "tp8": ("fsdp", "windowed-einsum"),
    "hybrid": ("pp", "ag-1g-overlap-2"),
}


def test_every_sweep_file_is_run_to_its_report_by_a_test() -> None:
    run = {SWEEPS / f"test_{name}.py" for name in (*HERE, *FLAGSHIPS)}
    run |= {SWEEPS / "maxtext_slurm" / f"test_{name}_jobs.py" for name in READY}
    assert set(SWEEPS.rglob("test_*.py")) == run | {OF_MAXTEXT}


def run_file(folder: Folder, name: str, *options: str) -> pytest.RunResult:
    file = SWEEPS / f"test_{name}.py"
    text = file.read_text("utf-8")
    folder.put("base.yml", "base_num_decoder_layers: 56\n")
    launcher = f"python={sys.executable},module=trainer.py,config=base.yml,cwd={folder.path}"
    named = ["--xlatune-launcher", launcher]
    if "CheckoutLauncher" in text:  # its interpreter stands in the file
        file = folder.put(file.name, text.replace("/opt/venv/bin/python", sys.executable))
        named = []
    return run_inside(
        folder.pytester,
        *("-p", "no:cacheprovider", "-n0", f"--rootdir={folder.path}", str(file)),
        *("--xlatune-executor", "local", *named, *options),
    )


@pytest.mark.parametrize(
    # that of commits has the same launcher and study, with one model
    "name",
    [pytest.param(name, marks=BESIDE_THE_LAB if name == "models" else ()) for name in HERE],
)
def test_a_sweep_file_runs_to_its_report(
    name: str, folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    folder.pytester.syspathinsert()
    folder.put("elsewhere.py", EVERY_NODE)
    repository = Repository(folder.path / "repository")
    monkeypatch.setenv("XLATUNE_TRAINER", str(repository.path))
    (repository.path / "MaxText" / "configs").mkdir(parents=True)
    (repository.path / "MaxText" / "configs" / "base.yml").write_text("{}\n", encoding="utf-8")
    for number in range(5):  # equally fast
        repository.commit(f"commit {number}", **{"MaxText/train": f"# {number}\n{TRAINER}"})
    options, report = HERE[name]
    outcomes = run_file(folder, name, "-p", "elsewhere", *shlex.split(options)).parseoutcomes()
    assert outcomes.get("passed", 0) > 0
    assert not {"errors", "failed"} & outcomes.keys()
    assert folder.read(f"reports/{report}").startswith("# ")


DEPLOYED = '[deployed]\nXLA_FLAGS = "--xla_gpu_enable_latency_hiding_scheduler=true"\n'


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "hybrid" else BESIDE_THE_LAB) for name in FLAGSHIPS],
)
def test_a_flagship_sweep_runs_to_its_report(name: str, folder: Folder) -> None:
    program, own = FLAGSHIPS[name]
    folder.put_evidence(program)
    folder.put("xlatune.toml", DEPLOYED)
    chosen = f"test_baseline or test_evidence or [{own}] or [async-priority-off]"
    options = ("--xlatune-model", "mixtral-8x22b", "-m", "wave1 or wave1_5 or wave2", "-k", chosen)
    run_file(folder, name, *options).assert_outcomes(passed=4)
    (evidence,) = folder.events("evidence-recorded", sweep=name)
    assert evidence["captures"]
    assert not evidence["problems"]
    measured = [event["result"] for event in folder.events("trial-ended", sweep=name)]
    assert {result["status"] for result in measured if result["score"]} == {"measured"}
    assert not [result for result in measured if result["status"] == "invalid"]
    board = folder.read(f"reports/{name}/leaderboard.md")
    for text in (board, folder.read("reports/mixtral-8x22b-tuning.md")):
        assert f"`{own}`" in text
