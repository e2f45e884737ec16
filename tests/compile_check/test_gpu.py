"""GPU programs that are compiled without a GPU, and read: what `tox -e cuda-compile-check` runs.

Elsewhere they are skipped, unless XLATUNE_CUDA_PYTHON names an interpreter with jax and
jax-cuda12-pjrt. Where XLATUNE_CUDA_REQUIRED is set nothing is: a compiler that is missing fails.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow, drill
from pytest_xlatune.evidence.trace.captures import pgle_profile
from pytest_xlatune.model.failure import CompileClass
from pytest_xlatune.model.profile import PGLE, profile
from pytest_xlatune.prepare.compilers import (
    Way,
    by_function,
    compiled,
    compiled_baseline,
    find_target,
    judge_of,
    named_targets,
    screen,
)
from tests.helpers.benchmarks import FOLDER, load
from tests.helpers.captures import Space

PYTHON = os.environ.get("XLATUNE_CUDA_PYTHON", sys.executable)
IS_REQUIRED = bool(os.environ.get("XLATUNE_CUDA_REQUIRED"))
VERSIONS = """
from importlib.metadata import version
from importlib.util import find_spec
print(version("jaxlib"), version("jax-cuda12-pjrt"), bool(find_spec("jax_plugins.xla_cuda12")))
"""
TARGETS = {"h100": "sm_9.0", "h200": "sm_9.0", "b200": "sm_10.0"}


def compiler() -> list[str]:
    """The versions of jaxlib and of the plugin, and whether it is there; [] where it is not."""
    try:
        done = subprocess.run(
            [PYTHON, "-c", VERSIONS], capture_output=True, text=True, check=True, timeout=120
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.split()


@pytest.fixture(scope="module", autouse=True)
def _is_installed() -> None:
    if not IS_REQUIRED and not compiler():
        pytest.skip("the extra compile-check-cuda is not installed")


@pytest.fixture(autouse=True)
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # nothing is timed here: these need not take turns with trials
    monkeypatch.setenv("XLATUNE_MACHINE_LOCK", str(tmp_path / "machine.lock"))


def for_target(name: str) -> Way:
    return by_function(
        "compile_check_programs:fsdp",
        target=find_target(name),
        topology="1x1x8",
        python=PYTHON,
        folder=FOLDER,
    )


def test_the_plugin_is_of_the_version_of_jaxlib() -> None:
    jaxlib, plugin, is_there = compiler()
    assert jaxlib == plugin
    assert is_there == "True"


def test_a_gpu_that_is_not_here_is_compiled_for(tmp_path: Path) -> None:
    profiles = load("evidence_compile_check").PROFILES
    names = ("ag-128m", "ag-1g", "ar-1g", "priority-off", "async-ag-of-old")
    screened = screen(
        [profile(name, profiles[name]) for name in names],
        for_target("h100"),
        folder=tmp_path / "kept",
        lock=tmp_path / "lock",
    )
    found = {each.profile: each for each in screened}
    assert {name: each.cls for name, each in found.items()} == {
        "ag-128m": CompileClass.PROGRAM,
        "ag-1g": CompileClass.PROGRAM,
        "ar-1g": CompileClass.IDENTICAL,
        "priority-off": CompileClass.UNSEEN,
        "async-ag-of-old": CompileClass.REFUSED,
    }
    assert found["ag-1g"].twin == "ag-128m"
    assert "2 of 64 MiB, bytes unchanged" in found["ag-128m"].sentence


def test_every_named_target_has_a_test() -> None:
    assert set(named_targets()) == set(TARGETS)


@pytest.mark.parametrize("name", TARGETS)
def test_the_program_of_a_named_target_is_read(name: str, tmp_path: Path) -> None:
    program = compiled_baseline(for_target(name), tmp_path, lock=tmp_path / "lock")
    assert program.target.startswith(TARGETS[name])
    gathers = [each for each in program.of("all-gather") if each.in_loop]
    # two matrices a layer, forwards and backwards, each gathered whole
    assert [each.size_bytes for each in gathers] == [32 << 20] * 4
    assert {each.executions for each in gathers} == {8}
    assert program.fingerprint
    assert program.memory_bytes is not None
    assert program.thunks is not None
    assert program.thunks.collectives["all-gather"] == len(program.of("all-gather"))


def as_if_captured(program: Program, tmp_path: Path) -> str:
    """A profile as a capture of this program would make it: each collective's time, and some."""
    (dump,) = tmp_path.rglob("*gpu_after_optimizations.txt")
    found = re.findall(r"^  (?:ROOT )?%(\S+) = ", dump.read_text(encoding="utf-8"), re.MULTILINE)
    space = Space()
    for at, name in enumerate(found):
        # the later one of two is the longer: no model of a device says so
        space.kernel(0, "Stream #1(Compute)", name, at * 10**9, 10**6 * (at + 1), op=name)
    drilled = drill([space.trace()], CaptureWindow(steps=1))
    return pgle_profile(drilled, program)


def test_xla_takes_a_profile_of_this_program_alone_and_says_so(tmp_path: Path) -> None:
    way, lock = for_target("h100"), tmp_path / "lock"
    program = compiled_baseline(way, tmp_path / "deployed", lock=lock)
    text = as_if_captured(program, tmp_path)
    texts = {
        "own": text,
        "of-another": text.replace(str(program.fingerprint), "0" * 32),
        "damaged": text[: len(text) // 2],
    }
    profiles = []
    for name, each in texts.items():
        path = tmp_path / f"{name}.pbtxt"
        path.write_text(each, encoding="utf-8")
        profiles.append(profile(name, f"--{PGLE}={path}"))
    profiles.append(profile("of-the-nodes", f"--{PGLE}=/nowhere/step.pbtxt"))
    judge = judge_of(program, memory_limit_bytes=None, is_away=True)
    made = {each.id: compiled(each, way(each), tmp_path / "m", lock=lock) for each in profiles}
    found = {name: judge.judge(each) for name, each in made.items()}
    # told by the difference of the two programs
    assert found["own"].cls is CompileClass.SCHEDULE, found["own"]
    assert made["own"].program is not None
    assert made["own"].program.fingerprint == program.fingerprint
    assert not made["own"].is_of_another
    # without the device kernels are not autotuned, so it may be of this very program: it is run
    assert found["of-another"].cls is CompileClass.UNSEEN
    assert "the profile is of another program" in found["of-another"].sentence
    assert found["of-the-nodes"].cls is CompileClass.UNSEEN
    here = judge_of(program, memory_limit_bytes=None)
    for name in ("of-another", "of-the-nodes"):
        assert here.judge(made[name]).cls is CompileClass.REFUSED
    assert found["damaged"].cls is CompileClass.REFUSED
    assert found["damaged"].sentence.startswith(f"XLA could not read {tmp_path}/damaged.pbtxt")


SWEEP = """
from pytest_xlatune import CellSettings, CommandLauncher, CompileCheck, Sweep, profile

SWEEP = Sweep(
    name="away",
    cell=CellSettings(
        model_tag="mlp",
        parallelism="FSDP=8",
    ),
    launcher=CommandLauncher(argv=("train", "{{steps}}")),
    profiles=(
        profile("ar-1g", "--xla_gpu_all_reduce_combine_threshold_bytes=1073741824"),
        profile("channels", env={{"NCCL_NCHANNELS_PER_NET_PEER": "8"}}),
        profile("buffer", env={{"NCCL_BUFFSIZE": "8388608"}}),
    ),
    compile_check=CompileCheck(
        program="compile_check_programs:fsdp",
        target="h100",
        topology="1x1x8",
        python={python!r},
        folder={folder!r},
    ),
)
"""


def test_a_sweep_of_a_cluster_is_screened_where_it_is_declared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = tmp_path / "test_away.py"
    sweep.write_text(SWEEP.format(python=PYTHON, folder=str(FOLDER)), encoding="utf-8")
    slot = ["--nodes", "1", "--workdir", str(tmp_path / "work")]
    assert main(["compile-check", str(sweep), *slot, "--json"]) == 0
    found = {
        each["profile"]: each["cls"] for each in json.loads(capsys.readouterr().out)["profiles"]
    }
    assert found == {"ar-1g": "identical", "channels": "identical", "buffer": "unseen"}
    assert main(["plan", str(sweep), *slot]) == 0
    assert "will compile 3 profiles before the sweep queues them" in " ".join(
        capsys.readouterr().out.split()
    )
