"""Every file of `sweeps/` runs to its report, by pretended runs; real ones are of other tests."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from tests.helpers.repositories import Repository
from tests.helpers.second_looks import BESIDE_THE_LAB
from tests.helpers.sessions import run_inside
from tests.helpers.words import in_words
from tests.launchers.test_maxtext_slurm_jobs import READY
from tests.maxtext.test_real_maxtext import SWEEP_FILE as OF_MAXTEXT
from tests.plugin.conftest import TRAINER, Folder
from tests.plugin.test_studies_of_cells import EVERY_NODE

SWEEPS = Path(__file__).parents[2] / "sweeps"
CELL = "--xlatune-model llama2-70b --xlatune-parallelism"
NODES = "--xlatune-nodelist node[001-004]"
# how a file is run as its first lines say, and the report that it leaves
HERE = {
    "batch": (f"-m batch {CELL} FSDP=8 --xlatune-pdbs 4", "batch/batch.md"),
    "nodes": (f"-m nodes {CELL} FSDP=8 {NODES}", "nodes/nodes.md"),
    "network": (f"-m network {CELL} FSDP=16 {NODES}", "network/network.md"),
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
