"""Every file of `sweeps/` runs to its report; here those of the studies, by pretended runs."""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.second_looks import BESIDE_THE_LAB
from tests.helpers.sessions import run_inside
from tests.helpers.tell_options import TELL_OPTIONS
from tests.launchers.test_maxtext_slurm_sweeps import READY
from tests.maxtext.test_real_maxtext import SWEEP_FILE as OF_MAXTEXT
from tests.plugin.test_flagship_sweeps import FLAGSHIPS
from tests.plugin.test_studies_of_cells import CONFTEST

SWEEPS = Path(__file__).parents[2] / "sweeps"
# MaxText's words and lines; eight sequences fill a device
TRAINER = """\
import hashlib, os, sys
keys = dict(each.split("=", 1) for each in sys.argv[2:])
print("Show all environment variables:")
print(f"XLA_FLAGS={os.environ.get('XLA_FLAGS', '')}", flush=True)
for key in sorted(keys):
    print(f"Config param {key}: {keys[key]}")
"""
TRAINER += TELL_OPTIONS
TRAINER += """\
size = float(keys.get("per_device_batch_size", "4"))
if size > 8:
    print("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 123456 bytes.", flush=True)
    sys.exit(1)
speed = 1000.0 * size / (size + 1)
tokens = size * float(keys.get("max_target_length", "128"))
# the same for every folder that a test runs in, where a run has a name
run = keys.get("run_name", str(os.getpid())).rpartition("-")[0] or str(os.getpid())
noise = int(hashlib.sha256(run.encode()).hexdigest()[:8], 16) / 2**32 - 0.5
speed *= 1 + 0.004 * noise
for step in range(int(keys["steps"])):
    print(f"completed step: {step}, seconds: {tokens / speed:.6f}, TFLOP/s/device: 0.1, "
          f"Tokens/s/device: {speed:.3f}, total_weights: 512, loss: 7.1", flush=True)
"""


@dataclass(frozen=True)
class Case:
    """How a file is run as its first lines say, and the report that it leaves."""

    options: str
    report: str


CELL = "--xlatune-model llama2-70b --xlatune-parallelism"
SIZED = "--xlatune-pdbs 4"
HERE = {
    "batch": Case(f"-m batch {CELL} FSDP=8 {SIZED}", "batch/batch.md"),
    "nodes": Case(f"-m nodes {CELL} FSDP=8 --xlatune-nodelist node[001-004]", "nodes/nodes.md"),
    "network": Case(
        f"-m network {CELL} FSDP=16 --xlatune-nodelist node[001-004]", "network/network.md"
    ),
    "commits": Case(
        f"-m commits --xlatune-commits main~3..main {CELL} FSDP=64", "commits/commits.md"
    ),
    "models": Case(
        "-m commits --xlatune-commits main~1,main --xlatune-nodelist node[001-008]",
        "models/commits.md",
    ),
    "gate": Case("", "gate/gate.md"),
    "tpu": Case(
        "-k 'test_baseline or tpu-cf' --xlatune-rotate off --xlatune-model llama2-7b",
        "tpu/leaderboard.md",
    ),
    "quickstart": Case("-m 'wave1 or wave2'", "quickstart/leaderboard.md"),
}


def test_every_sweep_file_is_run_to_its_report_by_a_test() -> None:
    run = {SWEEPS / f"test_{name}.py" for name in (*HERE, *FLAGSHIPS)}
    run |= {SWEEPS / "maxtext_slurm" / f"test_{name}_jobs.py" for name in READY}
    assert set(SWEEPS.rglob("test_*.py")) == run | {OF_MAXTEXT}


@pytest.mark.parametrize(
    # that of commits has the same launcher and study, with one model
    "name",
    [pytest.param(each, marks=BESIDE_THE_LAB if each == "models" else ()) for each in HERE],
)
def test_a_sweep_file_runs_to_its_report(
    name: str, loaded: None, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    pytester.syspathinsert()
    repository = pytester.path / "repository"
    monkeypatch.setenv("XLATUNE_TRAINER", str(repository))
    (pytester.path / "elsewhere.py").write_text(CONFTEST, encoding="utf-8")
    (pytester.path / "trainer.py").write_text(TRAINER, encoding="utf-8")
    (pytester.path / "base.yml").write_text("base_num_decoder_layers: 56\n", encoding="utf-8")
    commits(repository)
    case, text = HERE[name], (SWEEPS / f"test_{name}.py").read_text("utf-8")
    here = SWEEPS / f"test_{name}.py"
    launcher = f"python={sys.executable},module=trainer.py,config=base.yml,cwd={pytester.path}"
    options = ["--xlatune-launcher", launcher]
    if "CheckoutLauncher" in text:  # its interpreter stands in the file
        here = pytester.path / here.name
        here.write_text(text.replace("/opt/venv/bin/python", sys.executable), encoding="utf-8")
        options = []
    done = run_inside(
        pytester,
        *("-p", "no:cacheprovider", "-p", "elsewhere", "-n0", f"--rootdir={pytester.path}"),
        *(str(here), "--xlatune-executor", "local", *options, *shlex.split(case.options)),
    )
    outcomes = done.parseoutcomes()
    assert outcomes.get("passed", 0) > 0
    assert not outcomes.get("errors", 0)
    assert not outcomes.get("failed", 0)
    report = (pytester.path / "reports" / case.report).read_text(encoding="utf-8")
    assert report.startswith("# ")


def commits(repository: Path) -> None:
    """Make a repository of the trainer with five commits that are equally fast."""
    package = repository / "MaxText"
    (package / "configs").mkdir(parents=True)
    (package / "configs" / "base.yml").write_text("{}\n", encoding="utf-8")
    git = ("git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run([*git, "init", "-q", "-b", "main"], check=True)
    for number in range(5):
        text = f"# {number}\n{TRAINER}"
        (package / "train.py").write_text(text, encoding="utf-8")
        subprocess.run([*git, "add", "."], check=True)
        subprocess.run([*git, "commit", "-q", "-m", f"commit {number}"], check=True)
