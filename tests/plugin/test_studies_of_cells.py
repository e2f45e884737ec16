"""The studies of cells through pytest: their tests, reports and files, and a second run."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from pytest_xlatune.executors.slurm.nodes import OnSlurm
from tests.helpers.repositories import Repository
from tests.plugin.conftest import STANDARD, SWEEP_FILE, Folder

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
OF_ITS_COMMIT = """\
from speed import SPEED as speed
"""
OF_CHECKOUTS = """\
TRAINER = str(Path(__file__).parent / "trainer")

def of_checkouts(argv):
    inner = CommandLauncher(argv=(argv[0], "train.py", *argv[2:]), cwd=TRAINER)
    return CheckoutLauncher(repository=TRAINER, inner=inner)

SWEEP = """
COMMITS = (("launcher=CommandLauncher", "launcher=of_checkouts"), ("SWEEP = ", OF_CHECKOUTS))
Write = Callable[..., None]


@pytest.fixture
def write(folder: Folder) -> Write:
    """Return what writes a sweep file of a study, with edits, and the speed of its trainer."""
    folder.put("conftest.py", EVERY_NODE)

    def write(study: str, *edits: tuple[str, str], speed: str = "speed = 1000.0\n") -> None:
        profiles = "profiles=(\n        PROFILES\n    )"
        folder.write(text=STANDARD.replace(profiles, f"study={study}"))
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
    write("Commits()", *COMMITS, speed=OF_ITS_COMMIT)
    repository = Repository(folder.path / "trainer")
    train = folder.read("trainer.py")
    hashes = [
        repository.commit(f"change {at}", train=train, speed=f"# {at}\nSPEED = {speed}\n")
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
