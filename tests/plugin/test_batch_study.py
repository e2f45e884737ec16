"""A batch size study through pytest: the search, the list, the ceiling, kill and resume."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.report.cell_documents import BATCH_RATES
from tests.helpers.waiting import until

# saturates, falls above 6, and has no memory for more than 9 sequences
SLOWER = """\
size = float(sys.argv[3])
if size > 9:
    print("Memstats: After params initialized:")
    print("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying "
          f"to allocate {size / 2:.2f}GiB.", flush=True)
    sys.exit(1)
print(f"Total memory size: {2 + size / 2:.3f} GB, Output size: 1.0 GB", flush=True)
speed = 1500.0 * size / (size + 2) * (1 - 0.05 * max(0, size - 6))
"""


CONFIGURED = """\
class Configured(CommandLauncher):
    def files(self, cell):
        return (*CommandLauncher.files(self, cell), str(Path(__file__).parent / "pretend.yml"))

"""
TRAIN = Path(__file__).parents[2] / "sweeps" / "quickstart" / "train.py"
# the kernel gives this process no more address space, and XLA says so
LIMITED = """\
import resource, runpy, sys
from pathlib import Path
limit = int(sys.argv.pop(1))
if limit:
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
TRAIN = "%s"
sys.argv[0] = TRAIN
sys.path.insert(0, str(Path(TRAIN).parent))
try:
    runpy.run_path(TRAIN, run_name="__main__")
finally:
    if not limit:
        print(next(line for line in open("/proc/self/status") if line.startswith("VmPeak")))
"""
LIMITED_SWEEP = """\
import sys
from pathlib import Path

from pytest_xlatune import (
    BatchSize, CellSettings, CommandLauncher, DesignSettings, Protocol, SiteSettings, Sweep,
    standard_tests,
)

SWEEP = Sweep(
    name="pretend",
    cell=CellSettings(
        model_tag="quickstart", parallelism="FSDP=1", devices=1, per_device_batch_size=1,
        max_target_length=64,
        # slow steps of a busy machine are spared
        protocol=Protocol(steps=30, min_steps=5, deadline_s=240),
    ),
    launcher=CommandLauncher(argv=(
        sys.executable, str(Path(__file__).parent / "limited.py"), "LIMIT", MODEL
        "steps={steps}", "per_device_batch_size={per_device_batch_size}",
    )),
    site=SiteSettings(executor="local"),
    study=BatchSize(sizes=(1, 128, 256), sigma=0.02, blocks=2),
    design=DesignSettings(budget=12),
)
tests = standard_tests(SWEEP)
"""
# 8 MB of logits a sequence, and little to compute
MODEL = (
    *("hardware=cpu", "max_target_length=64", "base_emb_dim=16", "base_mlp_dim=32", "head_dim=8"),
    *("base_num_decoder_layers=1", "base_num_query_heads=2", "vocab_size=16384"),
)
ROOM_BYTES = 400 << 20  # above what the smallest size takes; 128 sequences take 1.1 GB


@pytest.fixture
def project(folder: Any, sweep_file: str) -> Any:
    return _written(folder, sweep_file, "BatchSize(start=4, sigma=0.003)")


def _written(folder: Any, sweep_file: str, study: str) -> Any:
    head = sweep_file.partition("@pytest.mark")[0]
    head = head.replace("    profiles=(\n        PROFILES\n    ),\n", f"    study={study},\n")
    head = head.replace("    profile,\n", "    BatchSize,\n    standard_tests,\n")
    head = head.replace('"{trial}")', '"{trial}", "{per_device_batch_size}")')
    head = head.replace('parallelism="FSDP=4",', 'parallelism="FSDP=4", per_device_batch_size=4,')
    folder.write(text=f"{head}tests = standard_tests(SWEEP)\n")
    trainer = folder.path / "trainer.py"
    text = trainer.read_text("utf-8").replace("speed = 1000.0\n", SLOWER)
    trainer.write_text(text, encoding="utf-8")
    return folder


def _record(project: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(project.read("reports/pretend/batch.json"))
    record: dict[str, Any] = found["conclusion"]["record"]
    return record


def test_a_search_has_one_test_and_says_size_and_ceiling(project: Any) -> None:
    done = project.run("-m", "batch", "-v", "--junitxml=junit.xml")
    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["*test_conclusion*"])
    done.stdout.fnmatch_lines(["*recommended: per_device_batch_size=6 with * TGS*"])
    record = _record(project)
    assert (record["value"], record["largest"], record["unfit"]) == ("6", "9", "10")
    report = project.read("reports/pretend/batch.md")
    assert "| `pdbs-6` | " in report
    assert BATCH_RATES in report
    assert "* Software of the trainer: " in report, "by a size that ran: 1 did not"
    assert "| `pdbs-10` | dropped | " in report
    assert "5.00 GiB" in report
    assert "compiled memory (GB)" in report
    assert "ceiling: 9 ran, 10 did not fit" in report
    assert project.read(".xlatune/batch.best") == "per_device_batch_size=6\n"
    assert "recommended: per_device_batch_size=6" in project.read("junit.xml")
    done.stdout.fnmatch_lines(["*pdbs-10*dropped*"])
    before = len(project.submitted)
    assert before == len(set(project.submitted)), "no run that does not fit is tried again"
    again = project.run("-m", "batch")
    again.assert_outcomes(passed=1)
    assert len(project.submitted) == before, "what was measured is reused"


def test_a_list_has_a_test_a_size_and_its_best_is_a_patch(folder: Any, sweep_file: str) -> None:
    project = _written(folder, sweep_file, "BatchSize(sizes=(2, 6, 10, 12), sigma=0.003)")
    sweep = project.path / "test_sweep.py"
    config = project.path / "pretend.yml"
    config.write_text("steps: 9\nper_device_batch_size: 4\n", encoding="utf-8")
    named = sweep.read_text("utf-8").replace("launcher=CommandLauncher(", "launcher=Configured(")
    sweep.write_text(named.replace("SWEEP = ", f"{CONFIGURED}SWEEP = "), encoding="utf-8")
    subprocess.run(["git", "init", "-q"], cwd=project.path, check=True, timeout=240)
    done = project.run("-m", "batch", "-v", "-rxs")
    done.assert_outcomes(passed=3, xfailed=1, skipped=1)
    done.stdout.fnmatch_lines(["*test_arm?pdbs-10? XFAIL*"])
    done.stdout.fnmatch_lines(["*larger than 10, which did not fit*"])
    assert len(project.submitted) == 3
    patch = project.read("reports/pretend/batch.patch")
    assert patch in project.read("reports/pretend/batch.md")
    apply = ["git", "apply", "reports/pretend/batch.patch"]
    subprocess.run(apply, cwd=project.path, check=True, timeout=240)
    assert config.read_text("utf-8") == "steps: 9\nper_device_batch_size: 6\n"


def test_a_size_that_no_run_survives_is_an_objection(folder: Any, sweep_file: str) -> None:
    project = _written(folder, sweep_file, "BatchSize(start=14, smallest=10, largest=16)")
    done = project.run("-m", "batch")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*no value of per_device_batch_size fits*"])


@pytest.mark.part("sweeps")
def test_killed_and_resumed_it_loses_and_doubles_nothing(project: Any, tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    trainer = project.path / "trainer.py"
    text = trainer.read_text("utf-8")
    # the third size waits
    wait = f"while size == 9 and os.path.exists({str(hold)!r}):\n    time.sleep(0.02)\nif size > 9:"
    trainer.write_text(text.replace("if size > 9:", wait), encoding="utf-8")
    hold.touch()
    argv = [sys.executable, "-m", "pytest", "-p", "xlatune", "test_sweep.py", "-m", "batch"]
    with subprocess.Popen(argv, cwd=project.path, stdout=subprocess.DEVNULL) as running:
        until(lambda: len(project.submitted) >= 3)
        os.kill(running.pid, signal.SIGKILL)
    before = list(project.submitted)
    assert len(before) == 3
    hold.unlink()
    project.run("-m", "batch").assert_outcomes(passed=1)
    after = project.submitted
    assert after[:3] == before
    assert len(after) == len(set(after)), "a job in flight is adopted, a finished one reused"
    assert _record(project)["value"] == "6"


@pytest.mark.part("sweeps")
@pytest.mark.skipif(sys.platform != "linux", reason="no limit of the address space, no /proc")
@pytest.mark.jax
def test_real_xla_says_where_memory_ends(folder: Any) -> None:
    trainer = folder.path / "limited.py"
    trainer.write_text(LIMITED % TRAIN, encoding="utf-8")
    alone = [sys.executable, str(trainer), "0", *MODEL, "steps=2", "per_device_batch_size=1"]
    done = subprocess.run(alone, capture_output=True, text=True, check=True, timeout=240)
    # VmPeak:  1636500 kB
    (peak_kb,) = (each.split()[1] for each in done.stdout.splitlines() if each[:7] == "VmPeak:")
    limit = 1024 * int(peak_kb) + ROOM_BYTES
    words = "".join(f"{each!r}, " for each in MODEL)
    sweep = LIMITED_SWEEP.replace("LIMIT", str(limit)).replace("MODEL\n", f"{words}\n")
    folder.write(text=sweep)
    ran = folder.run("-m", "batch", "-v", "-rxs")
    ran.assert_outcomes(passed=2, xfailed=1, skipped=1)
    record = _record(folder)
    assert (record["value"], record["largest"], record["unfit"]) == ("1", "1", "128")
    report = folder.read("reports/pretend/batch.md")
    assert "ceiling: 1 ran, 128 did not fit" in report
    (row,) = (each for each in report.splitlines() if each.startswith("| `pdbs-128`"))
    assert "dropped" in row
    assert "bytes" in row, "with what XLA could not allocate"
    runs = [each for each in folder.submitted if "pdbs-128" in each]
    assert len(runs) == 1, "a size that does not fit is not tried again"
    assert not [each for each in folder.submitted if "pdbs-256" in each]


@pytest.mark.jax
@pytest.mark.part("sweeps")
def test_a_real_compiler_says_which_sizes_fit_before_any_job(folder: Any) -> None:
    (folder.path / "limited.py").write_text(LIMITED % TRAIN, encoding="utf-8")
    words = "".join(f"{each!r}, " for each in MODEL)
    text = LIMITED_SWEEP.replace("LIMIT", "0").replace("MODEL\n", f"{words}\n")
    text = text.replace("BatchSize, Cell", "BatchSize, CompileCheck, Cell")
    check = "    compile_check=CompileCheck(memory_limit_gib=0.5),\n"
    folder.write(text=text.replace("    site=Site", f"{check}    site=Site"))
    plan = folder.run("--xlatune-plan")
    plan.stdout.fnmatch_lines(["*first a compiler says which sizes fit*"])
    ran = folder.run("-m", "batch", "-v", "-rxs")
    ran.assert_outcomes(passed=2, skipped=2)
    ran.stdout.fnmatch_lines(["*compiled memory says that no size above 1 fits*"])
    assert [each.partition("-probe")[0] for each in folder.submitted] == ["pdbs-1"]
    record = _record(folder)
    assert (record["value"], record["largest"], record["unfit"]) == ("1", "1", "")
    report = folder.read("reports/pretend/batch.md")
    (told,) = (each for each in report.splitlines() if "compiled memory of one device" in each)
    # - compiled memory of one device in GiB, of 0.5 GiB, by jax ...: 1: 0.0159, 128: 1.07; no ...
    figures = dict(re.findall(r"\b(1|128): ([\d.]+)", told))
    assert 0.001 < float(figures["1"]) < 0.1
    assert 0.9 < float(figures["128"]) < 2.5, "128 sequences of 8 MB of logits, a few times"
    (ledger,) = folder.path.glob(".xlatune/**/ledger.jsonl")
    compiled = [
        each for each in ledger.read_text("utf-8").splitlines() if "profile-compiled" in each
    ]
    assert len(compiled) == 2
    folder.run("-m", "batch").assert_outcomes(passed=2, skipped=2)
    text = ledger.read_text("utf-8")
    assert text.count('"profile-compiled"') == 2, "nothing is compiled again"
    assert len(folder.submitted) == 1
