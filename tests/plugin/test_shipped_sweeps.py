"""Every file of `sweeps/` runs to its report, by pretended runs; real ones are of other tests."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest

from tests.helpers.captures import node
from tests.helpers.hlo_programs import text as hlo_text
from tests.helpers.repositories import Repository
from tests.helpers.second_looks import BESIDE_THE_LAB
from tests.helpers.sessions import run_inside
from tests.helpers.tell_options import TELL_OPTIONS
from tests.helpers.words import in_words
from tests.launchers.test_maxtext_slurm_jobs import READY
from tests.maxtext.test_real_maxtext import SWEEP_FILE as OF_MAXTEXT
from tests.plugin.conftest import Folder
from tests.plugin.test_studies_of_cells import EVERY_NODE

SWEEPS = Path(__file__).parents[2] / "sweeps"
# MaxText's words and lines
HEAD = """\
import hashlib, os, pathlib, re, shutil, sys
here = pathlib.Path(__file__).parent
flags = os.environ.get("XLA_FLAGS", "")
keys = dict(each.split("=", 1) for each in sys.argv[2:])
print("Show all environment variables:")
print(f"XLA_FLAGS={flags}", flush=True)
for key in sorted(keys):
    print(f"Config param {key}: {keys[key]}")
if os.environ.get("NCCL_DEBUG") == "INFO":
    for name in sorted(os.environ):
        if name.startswith("NCCL_"):
            print(f"n1:7:7 [0] NCCL INFO {name} set by environment to {os.environ[name]}")
"""
HEAD += TELL_OPTIONS
TAIL = """\
# the same for every folder that a test runs in, where a run has a name
run = keys.get("run_name", str(os.getpid())).rpartition("-")[0] or str(os.getpid())
noise = int(hashlib.sha256(run.encode()).hexdigest()[:8], 16) / 2**32 - 0.5
speed *= 1 + 0.004 * noise
for step in range(int(keys["steps"])):
    print(f"completed step: {step}, seconds: {tokens / speed:.6f}, TFLOP/s/device: 0.1, "
          f"Tokens/s/device: {speed:.3f}, total_weights: 512, loss: 7.1", flush=True)
"""
# eight sequences fill a device
TRAINER = f"""\
{HEAD}
size = float(keys.get("per_device_batch_size", "4"))
if size > 8:
    print("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 123456 bytes.", flush=True)
    sys.exit(1)
speed = 1000.0 * size / (size + 1)
tokens = size * float(keys.get("max_target_length", "128"))
{TAIL}"""
# what a setting is worth to this trainer; all others are worth nothing
FLAGSHIP_TRAINER = f"""\
{HEAD}
if keys.get("profiler") == "xplane":
    dump = re.search('--xla_dump_to="?([^" ]+)', flags).group(1)
    os.makedirs(dump, exist_ok=True)
    program = "module_0001.jit_train_step.sm_9.0_gpu_after_optimizations.txt"
    shutil.copy(here / "program.txt", pathlib.Path(dump, program))
    to = pathlib.Path(keys["base_output_directory"], keys["run_name"], "tensorboard", "plugins",
                      "profile", "2026_11_23_10_00_00")
    to.mkdir(parents=True)
    shutil.copy(here / "capture.pb", to / "n1.xplane.pb")
if "xla_gpu_enable_pipelined_p2p=true" in flags:
    print("F1120 09:03:25.888154 14479 hlo.cc:234] Check failed: schedule.size() == 1", flush=True)
    os.abort()
speed, tokens = 1000.0, 512
for setting, gain in (
    ("collective_overlap_limit=2", 0.03), ("all_gather_combine_threshold_bytes=1073741824", 0.04),
    ("threshold_for_windowed_einsum_mib=0", 0.05), ("double_buffering=true", -0.03),
):
    speed *= 1 + gain * (setting in flags)
speed *= 1 + 0.06 * ("num_pipeline_microbatches" in keys) + 0.02 * ("remat_policy" in keys)
{TAIL}"""

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
    monkeypatch.setenv("XLATUNE_TRAINER", str(folder.path / "repository"))
    folder.put("elsewhere.py", EVERY_NODE)
    folder.put("trainer.py", TRAINER)
    folder.put("base.yml", "base_num_decoder_layers: 56\n")
    commits(folder.path / "repository")
    options, report = HERE[name]
    file = SWEEPS / f"test_{name}.py"
    text = file.read_text("utf-8")
    launcher = f"python={sys.executable},module=trainer.py,config=base.yml,cwd={folder.path}"
    named = ["--xlatune-launcher", launcher]
    if "CheckoutLauncher" in text:  # its interpreter stands in the file
        file = folder.put(file.name, text.replace("/opt/venv/bin/python", sys.executable))
        named = []
    done = run_inside(
        folder.pytester,
        *("-p", "no:cacheprovider", "-p", "elsewhere", "-n0", f"--rootdir={folder.path}"),
        *(str(file), "--xlatune-executor", "local", *named, *shlex.split(options)),
    )
    outcomes = done.parseoutcomes()
    assert outcomes.get("passed", 0) > 0
    assert not {"errors", "failed"} & outcomes.keys()
    assert folder.read(f"reports/{report}").startswith("# ")


def commits(path: Path) -> None:
    """Make a repository of the trainer with five commits that are equally fast."""
    repository = Repository(path)
    (path / "MaxText" / "configs").mkdir(parents=True)
    (path / "MaxText" / "configs" / "base.yml").write_text("{}\n", encoding="utf-8")
    for number in range(5):
        repository.commit(f"commit {number}", **{"MaxText/train": f"# {number}\n{TRAINER}"})


SITE = """\
model = "mixtral-8x22b"
executor = "local"

[launcher]
python = "{python}"
module = "{folder}/trainer.py"
config = "{folder}/model.yml"
cwd = "{folder}"

[deployed]
XLA_FLAGS = "--xla_gpu_enable_latency_hiding_scheduler=true"
"""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "hybrid" else BESIDE_THE_LAB) for name in FLAGSHIPS],
)
def test_a_flagship_sweep_runs_to_its_report(name: str, folder: Folder) -> None:
    program, own = FLAGSHIPS[name]
    folder.put("trainer.py", FLAGSHIP_TRAINER)
    folder.put("model.yml", "base_num_decoder_layers: 56\n")
    (folder.path / "capture.pb").write_bytes(node().data())
    folder.put("program.txt", hlo_text("0.12.0", program))
    folder.put("xlatune.toml", SITE.format(python=sys.executable, folder=folder.path))
    chosen = f"test_baseline or test_evidence or [{own}] or [async-priority-off]"
    done = run_inside(
        folder.pytester,
        *("-p", "no:cacheprovider", str(SWEEPS / f"test_{name}.py")),
        *("--rootdir", str(folder.path), "--xlatune-config", "xlatune.toml"),
        *("-m", "wave1 or wave1_5 or wave2", "-k", chosen),
    )
    done.assert_outcomes(passed=4)
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
