"""A batch size study through pytest: the search, the list, the ceiling, kill and resume."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

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
    done.stdout.fnmatch_lines(["*no value of per_device_batch_size is recommended: none fits*"])
