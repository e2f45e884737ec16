"""Profiles compiled in processes of their own: a stand-in trainer, real JAX, a GPU that is away."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.evidence.hlo.difference import CompileFinding
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import CompileClass
from pytest_xlatune.model.profile import Profile, profile
from pytest_xlatune.prepare.compile_check import compiled_by
from pytest_xlatune.prepare.compilers import (
    Way,
    by_function,
    by_trainer,
    compiler_of,
    find_target,
    named_targets,
    screen,
)
from pytest_xlatune.sweep.declaration import CompileCheck

ROOT = Path(__file__).parents[2]
KEPT = Path(__file__).parents[1] / "data" / "evidence" / "jaxlib-0.12.0"


# what a trainer leaves behind, by its flags
TRAINER = """
import gzip, os, pathlib, sys
flags = os.environ["XLA_FLAGS"] + os.environ.get("LIBTPU_INIT_ARGS", "")
if "warp" in flags:
    print("F0112 07:08:09.1 77 a.cc:234] Unknown flag in XLA_FLAGS: --xla_warp", flush=True)
    os.abort()
if "hopeless" in flags:
    print("no luck")
    sys.exit(3)
name = "fsdp-ag" if "all_gather" in flags else "fsdp"
dump = pathlib.Path("xla_dump"); dump.mkdir()
text = gzip.decompress((pathlib.Path(sys.argv[1]) / f"{name}.txt.gz").read_bytes())
(dump / "module_1.jit_train_step.sm_9.0_gpu_after_optimizations.txt").write_bytes(text)
assert sys.argv[2] == "1", "one step is enough"
"""


def stand_in(folder: Path, deployed: str = "") -> Way:
    (folder / "trainer.py").write_text(TRAINER, encoding="utf-8")
    launcher = CommandLauncher(
        argv=(sys.executable, str(folder / "trainer.py"), str(KEPT), "{steps}")
    )
    cell = Cell(
        model_tag="m", parallelism=Parallelism.parse("FSDP=1"), deployed={"XLA_FLAGS": deployed}
    )
    return by_trainer(launcher, cell)


def screened(folder: Path, way: Way, *profiles: Profile) -> dict[str, CompileFinding]:
    found = screen(profiles, way, folder=folder / "kept", lock=folder / "lock")
    return {each.profile: each for each in found}


def test_each_profile_is_compiled_and_judged(tmp_path: Path) -> None:
    found = screened(
        tmp_path,
        stand_in(tmp_path),
        profile("ag", "--xla_gpu_all_gather_combine_threshold_bytes=1"),
        profile("ag-too", "--xla_gpu_all_gather_combine_threshold_bytes=2"),
        profile("rs", "--xla_gpu_reduce_scatter_combine_threshold_bytes=1"),
        profile("warp", "--xla_warp=1"),
        profile("hopeless", "--xla_hopeless=1"),
    )
    assert {name: each.cls for name, each in found.items()} == {
        "ag": CompileClass.PROGRAM,
        "ag-too": CompileClass.PROGRAM,
        "rs": CompileClass.IDENTICAL,
        "warp": CompileClass.REFUSED,
        "hopeless": CompileClass.FAILED,
    }
    assert (found["ag"].twin, found["ag-too"].twin) == (None, "ag")
    assert found["warp"].sentence == "Unknown flag in XLA_FLAGS: --xla_warp"
    assert found["hopeless"].sentence == "no luck"
    assert found["rs"].took_s > 0
    kept = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert kept == ["ag", "ag-too", "baseline-deployed", "hopeless", "rs", "warp"]


def test_a_baseline_that_does_not_compile_ends_the_check(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="as deployed does not compile: no luck"):
        screened(tmp_path, stand_in(tmp_path, "--xla_hopeless=1"), profile("a"))


def test_a_folder_is_used_once(tmp_path: Path) -> None:
    way = stand_in(tmp_path)
    screened(tmp_path, way, profile("a"))
    with pytest.raises(ConfigError, match="name a new folder"):
        screened(tmp_path, way, profile("b"))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"program": "nothing", "target": "cpu"}, "expected module:function"),
        ({"program": "a:b", "target": "cpu", "topology": "8"}, "partitions x hosts x devices"),
        ({"program": "a:b"}, "name the device to compile for"),
        ({"target": "h100"}, "name a program"),
        ({"controls": -1}, "controls is -1"),
    ],
)
def test_what_cannot_be_compiled_is_refused_before(said: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CompileCheck(**said)


def test_a_tpu_is_a_target_by_the_name_that_jax_has_for_it(tmp_path: Path) -> None:
    """What libtpu itself makes of it: `tox -e libtpu`."""
    tpu = find_target("v5e:2x4")
    assert (tpu.text, tpu.memory_bytes) == ("", None)
    vmem = "--xla_tpu_scoped_vmem_limit_kib="
    own = {"LIBTPU_INIT_ARGS": f"{vmem}32768", "XLA_FLAGS": "--xla_a=1"}
    way = by_function("a:b", target=tpu, topology="2x1x1", deployed=own, folder=tmp_path)
    spec = way(profile("vmem", f"{vmem}65536 --xla_b=1"))
    assert spec.argv[-3:] == ("a:b", "v5e:2x4", "2x1x1")
    assert spec.env["LIBTPU_INIT_ARGS"] == f"{vmem}32768 {vmem}65536"
    assert spec.env["XLA_FLAGS"].startswith("--xla_a=1 --xla_b=1 --xla_dump_to=")
    assert spec.env["TPU_SKIP_MDS_QUERY"] == spec.env["ALLOW_MULTIPLE_LIBTPU_LOAD"] == "1"
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho jaxlib 0.10.2\n", encoding="utf-8")
    bare.chmod(0o700)
    check = CompileCheck(program="a:b", target="v5e:2x4", python=str(bare))
    cell = Cell(model_tag="m", parallelism=Parallelism.parse("FSDP=8"))
    launcher = CommandLauncher(argv=("train",))
    compiler = compiler_of(check, launcher=launcher, cell=cell, executor="slurm")
    with pytest.raises(ConfigError, match="has no libtpu"):
        compiled_by(compiler)


@pytest.mark.parametrize("said", ["v5e:2", "v5litepod-8", "tpu:", "v5e:2x4x2x2", "v5e", "tpu"])
def test_what_is_nearly_a_tpu_is_refused_with_how_one_is_named(said: str) -> None:
    with pytest.raises(ConfigError, match=r"a TPU with its chips, e\.g\. v5e:2x4"):
        find_target(said)
    assert find_target("V5E:2x4").name == "v5e:2x4"


def test_a_target_is_a_name_or_a_file_and_tells_its_memory(tmp_path: Path) -> None:
    assert find_target("H100").memory_bytes == 84942979072
    assert "cuda_compute_capability" in find_target("b200").text
    config = tmp_path / "a.pbtxt"
    config.write_text("gpu_device_info { core_count: 132 }")
    assert find_target(str(config)).memory_bytes is None
    with pytest.raises(ConfigError, match="did you mean 'h200'"):
        find_target("h20")
    with pytest.raises(ConfigError, match=r"unknown target 'gone.pbtxt'.* b200, cpu, h100, h200, "):
        find_target("gone.pbtxt")


@pytest.mark.parametrize("name", named_targets())
def test_a_named_target_says_where_its_figures_are_from(name: str) -> None:
    text = find_target(name).text
    assert "openxla/xla" in text.partition("gpu_device_info")[0]


FUNCTION = """
import jax, jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
import numpy as np

def step(devices):
    rows = NamedSharding(Mesh(np.array(devices), ("x",)), P("x"))
    def train_step(x):
        return jnp.sum(jnp.tanh(x) * 2 + 1)
    return jax.jit(train_step, in_shardings=rows), (jax.ShapeDtypeStruct((64, 64), "float32"),)
"""


@pytest.mark.jax
def test_a_function_is_compiled_for_as_many_devices_as_asked(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FUNCTION, encoding="utf-8")
    found = screened(
        tmp_path,
        by_function("mine:step", topology="1x2x2", folder=tmp_path),
        profile("fusion-off", "--xla_disable_hlo_passes=fusion"),
        profile("threshold", "--xla_gpu_all_gather_combine_threshold_bytes=7"),
        profile("warp", "--xla_cpu_enable_warp_drive=true"),
        profile("word", "--xla_cpu_enable_fast_math=maybe"),
    )
    assert {name: each.cls for name, each in found.items()} == {
        "fusion-off": CompileClass.PROGRAM,
        "threshold": CompileClass.IDENTICAL,
        "warp": CompileClass.REFUSED,
        "word": CompileClass.REFUSED,
    }
    dump = tmp_path / "kept" / "baseline-deployed" / "xla_dump"
    (text,) = dump.glob("*train_step*after_optimizations.txt")
    assert "num_partitions=4" in text.read_text(encoding="utf-8")


QUICKSTART = """
import dataclasses, importlib.util
spec = importlib.util.spec_from_file_location("quickstart_sweep", {path!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
KEPT = ("gpu-threshold", "warp-drive", "fusion-off")
SWEEP = dataclasses.replace(
    module.SWEEP, profiles=tuple(each for each in module.PROFILES if each.id in KEPT)
)
"""


@pytest.mark.jax
@pytest.mark.part("programs")
def test_the_quickstart_is_screened_through_its_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLATUNE_MACHINE_LOCK", str(tmp_path / "lock"))
    sweep = tmp_path / "test_few.py"
    path = str(ROOT / "sweeps" / "test_quickstart.py")
    sweep.write_text(QUICKSTART.format(path=path), encoding="utf-8")
    assert main(["compile-check", str(sweep), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {each["profile"]: each["cls"] for each in document["profiles"]} == {
        "fusion-off": "program",
        "gpu-threshold": "identical",
        "warp-drive": "refused",
    }


FEW = """
import sys
from pytest_xlatune import CellSettings, CommandLauncher, SiteSettings, Sweep, profile

SWEEP = Sweep(
    name="few",
    cell=CellSettings(model_tag="m", parallelism="FSDP=1"),
    launcher=CommandLauncher(argv=(sys.executable, {trainer!r}, {kept!r}, "{{steps}}")),
    profiles=(
        profile("ag", "--xla_gpu_all_gather_combine_threshold_bytes=1"),
        profile("rs", "--xla_gpu_reduce_scatter_combine_threshold_bytes=1"),
        profile("warp", "--xla_warp=1"),
        profile("ring", env={{"NCCL_ALGO": "Ring"}}),
    ),
    site=SiteSettings(executor="local"),
)
"""


def test_a_sweep_is_screened_as_text_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLATUNE_MACHINE_LOCK", str(tmp_path / "lock"))
    trainer, sweep = tmp_path / "trainer.py", tmp_path / "test_few.py"
    trainer.write_text(TRAINER, encoding="utf-8")
    sweep.write_text(FEW.format(trainer=str(trainer), kept=str(KEPT)), encoding="utf-8")
    assert main(["compile-check", str(sweep)]) == 0
    out = capsys.readouterr().out
    lines = [line.split(maxsplit=1)[0] for line in out.splitlines()[:4]]
    assert lines == ["ag", "rs", "warp", "ring"]
    assert "2 of 4 profiles need no run" in out
    assert "What compiling cannot say" in out


def test_the_flag_of_a_recipe_that_acted_is_found_by_compiling_without_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLATUNE_MACHINE_LOCK", str(tmp_path / "lock"))
    trainer, sweep, kept = tmp_path / "trainer.py", tmp_path / "test_few.py", tmp_path / "kept"
    trainer.write_text(TRAINER, encoding="utf-8")
    sweep.write_text(FEW.format(trainer=str(trainer), kept=str(KEPT)), encoding="utf-8")
    said = ["compile-check", str(sweep), "--without-each", "ag+rs+ring", "--keep", str(kept)]
    assert main([*said, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["flags"]
    assert {each["flag"]: each["acted"] for each in found} == {
        "xla_gpu_all_gather_combine_threshold_bytes": "acted",
        "xla_gpu_reduce_scatter_combine_threshold_bytes": "did not act",
        "NCCL_ALGO": "cannot be seen in HLO",
    }
    compiled = {each.name for each in kept.iterdir()}
    assert compiled == {"baseline-deployed", "whole", "without-1", "without-2"}, "one for each flag"
    assert main([*said[:-3], "ag+sr"]) == 2
    assert "unknown profile 'sr' in sweep 'few'" in capsys.readouterr().err
    assert main([*said[:-3], "ag"]) == 0
    assert "acted: " in capsys.readouterr().out


def test_a_device_that_is_not_here_needs_a_program(capsys: pytest.CaptureFixture[str]) -> None:
    sweep = str(ROOT / "sweeps" / "test_quickstart.py")
    assert main(["compile-check", sweep, "--target", "h100"]) == 2
    assert "name a program (module:function)" in capsys.readouterr().err


def test_flags_of_a_tpu_are_compiled_for_no_processor_by_oversight(
    capsys: pytest.CaptureFixture[str],
) -> None:
    sweep = str(ROOT / "tests" / "libtpu" / "mine.py")
    assert main(["compile-check", sweep, "--program", "mine:step"]) == 2
    said = capsys.readouterr().err
    assert "profiles set LIBTPU_INIT_ARGS, which no compiler of this machine's processor" in said
    assert "--target v5e:2x4" in said
