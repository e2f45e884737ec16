"""Every file of `sweeps/` runs to its report by pretended runs, and so do studies of cells."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_xlatune.executors.slurm.nodes import OnSlurm
from tests.helpers.repositories import Repository
from tests.helpers.second_looks import BESIDE_THE_LAB
from tests.helpers.sessions import run_inside
from tests.helpers.words import in_words
from tests.launchers.test_maxtext_slurm_jobs import READY
from tests.maxtext.test_real_maxtext import SWEEP_FILE as OF_MAXTEXT
from tests.plugin.conftest import OF_ITS_COMMIT, SWEEP_FILE, TRAINER, Folder, declaring

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
CONFIGURED = """\
class Configured(CommandLauncher):
    def files(self, cell):
        return (*CommandLauncher.files(self, cell), str(Path(__file__).parent / "pretend.yml"))

SWEEP = """
Write = Callable[..., None]


@pytest.fixture
def write(folder: Folder) -> Write:
    """Return what writes a sweep file of a study, with edits, and the speed of its trainer."""
    folder.put("conftest.py", EVERY_NODE)

    def write(study: str, *edits: tuple[str, str], speed: str = "speed = 1000.0\n") -> None:
        folder.write(text=declaring(f"study={study}", commits=study == "Commits()"))
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
    assert "--xlatune-nodelist=@healthy" in report
    assert folder.read(".xlatune/healthy.nodes").splitlines()[-1] == "node001,node003,node004"
    again = folder.run("-k", "node003", "--xlatune-nodelist=@healthy", "--collect-only", "-q")
    again.stdout.fnmatch_lines(["*test_arm?node003?"])
    again.stdout.no_fnmatch_line("*node002*")

    profiles = "".join(f'        profile("{name}", "--xla_{name}=1"),\n' for name in ("a", "b"))
    folder.write(profiles=profiles, text=SWEEP_FILE.replace("FSDP=4", "FSDP=3"))
    swept = folder.run("--xlatune-nodelist=@healthy", "-m", "wave1 or wave2", "-v")
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

    # a list has a test a size, and its best is a patch
    configured = (("launcher=CommandLauncher", "launcher=Configured"), ("SWEEP = ", CONFIGURED))
    study = "BatchSize(sizes=(2, 6, 10, 12), sigma=0.003)"
    write(study, *OF_SIZES, *configured, speed=OF_ITS_SIZE)
    config = folder.put("pretend.yml", "steps: 9\nper_device_batch_size: 4\n")
    subprocess.run(["git", "init", "-q"], cwd=folder.path, check=True, timeout=240)
    done = folder.run("-m", "batch", "-v", "-rxs")
    done.assert_outcomes(passed=3, xfailed=1, skipped=1)
    done.stdout.fnmatch_lines(["*test_arm?pdbs-10? XFAIL*"])
    done.stdout.fnmatch_lines(["*larger than 10, which did not fit*"])
    assert len(folder.submitted) == len(before) + 1, "6 and 10 were measured by the search"
    assert folder.read("reports/pretend/batch.patch") in folder.read("reports/pretend/batch.md")
    apply = ["git", "apply", "reports/pretend/batch.patch"]
    subprocess.run(apply, cwd=folder.path, check=True, timeout=240)
    assert config.read_text("utf-8") == "steps: 9\nper_device_batch_size: 6\n"


def test_the_slow_one_of_nine_commits_is_found(folder: Folder, write: Write) -> None:
    write("Commits()")
    repository = Repository(folder.path / "trainer")
    hashes = [
        repository.commit(f"change {at}", train=OF_ITS_COMMIT, speed=f"# {at}\nSPEED = {speed}\n")
        for at, speed in enumerate([1000.0] * 6 + [950.0] * 3)
    ]
    slow, span = hashes[6][:12], ("--xlatune-commits", f"{hashes[0]}..HEAD")
    plan = folder.run(*span, "--xlatune-plan")
    plan.stdout.fnmatch_lines(["*8 jobs: 4 alternating pairs*of 9*"])
    assert not folder.submitted
    done = folder.run(*span, "-m", "commits", "-v", "--junitxml=junit.xml")
    done.assert_outcomes(passed=1, failed=2)
    done.stdout.fnmatch_lines([f"*{slow} change 6, -[45]*%*"])
    record = folder.json("reports/pretend/commits.json")["conclusion"]["record"]
    assert (record["found"], record["first"]) == ("FIRST", slow)
    assert 8 + 3 + 8 <= len(folder.submitted) <= 8 + 6 + 8
    assert "the first slower commit" in folder.read("junit.xml")
    assert f"| `{slow}` change 6 | SLOWER |" in folder.read("reports/pretend/commits.md")


# this machine stands for Slurm, too, and answers for its nodes
AS_SLURM = f"""\
{EVERY_NODE}
from pytest_xlatune.executors import ProbeResult
from pytest_xlatune.executors.slurm.nodes import OnSlurm
from pytest_xlatune.tasks import runs

runs.class_named = lambda *_, **__: LocalExecutor
OnSlurm.node_faults, OnSlurm.busy_note = (lambda *_, **__: ()), (lambda *_: "")
OnSlurm.probe = lambda _, __, nodelist, options: ProbeResult(
    unseen={{}}, why_not=f"on {{','.join(nodelist)}}"
)
"""
TWO = (*NODES, "--xlatune-slots", "2")


def test_a_sweep_runs_on_two_node_slots_and_says_so(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("node_faults", "busy_note", "probe"):
        monkeypatch.setattr(OnSlurm, name, getattr(OnSlurm, name))  # put back behind the test
    folder.put("conftest.py", AS_SLURM)
    names = ("fast", "same", "third", "fourth")
    profiles = "".join(f'        profile("{name}", "--xla_{name}=1"),\n' for name in names)
    folder.write(profiles=profiles)
    slurm = ('executor="local"', 'executor="slurm"')
    folder.edit("test_sweep.py", slurm, ("FSDP=4", "FSDP=2"), ("blocks=3", "blocks=4"))
    done = folder.run(*TWO)
    done.assert_outcomes(passed=1 + 4 + 2)
    nodes = "*node001,node002,node003,node004*"
    done.stdout.fnmatch_lines(["*whether they see the files*", nodes])
    blocks: dict[int, set[str]] = {}
    for result in folder.results:
        blocks.setdefault(result["trial"]["block"], set()).add(result["trial"]["cell_digest"])
    assert len(blocks.pop(0)) == 2, "the screen lies on both"
    assert all(len(cells) == 1 for cells in blocks.values())
    assert len(set.union(*blocks.values())) == 2
    board = folder.read("reports/pretend/leaderboard.md")
    assert "* Node slots: 1: node[001-002]; 2: node[003-004]" in board
    slots = folder.json("reports/pretend/leaderboard.json")["slots"]
    assert {slot["cell_digest"] for slot in slots} == set.union(*blocks.values())
    before = folder.submitted
    folder.run(*TWO).assert_outcomes(passed=7)
    refused = folder.run(*NODES)
    refused.stdout.fnmatch_lines(["*2 node slots (node*001-002*; node*003-004*), *on *slot*"])
    assert refused.ret != 0
    assert folder.submitted == before


SWEEPS = Path(__file__).parents[2] / "sweeps"
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
    notes = folder.json(f"reports/{name}/leaderboard.json")["conclusion"]["notes"]
    assert f"the evidence of {evidence['trial_id']}" in in_words(notes)
    specs = [path.read_text() for path in folder.path.glob(f".xlatune/{name}/**/spec.json")]
    assert specs
    assert not [spec for spec in specs if "jax_distributed_heartbeat" in spec]
