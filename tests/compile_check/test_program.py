"""Profiles compiled in processes of their own: a stand-in trainer, and the quickstart's."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.evidence.hlo.dump import read_program
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import CompileClass
from pytest_xlatune.model.profile import profile
from pytest_xlatune.prepare.compilers import (
    Way,
    by_trainer,
    compiled,
    compiled_baseline,
    judge_of,
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


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLATUNE_MACHINE_LOCK", str(tmp_path / "lock"))


def stand_in(folder: Path, deployed: str = "") -> Way:
    (folder / "trainer.py").write_text(TRAINER, encoding="utf-8")
    launcher = CommandLauncher(
        argv=(sys.executable, str(folder / "trainer.py"), str(KEPT), "{steps}")
    )
    cell = Cell(
        model_tag="m", parallelism=Parallelism.parse("FSDP=1"), deployed={"XLA_FLAGS": deployed}
    )
    return by_trainer(launcher, cell)


def test_each_profile_is_compiled_and_judged(tmp_path: Path) -> None:
    way, root = stand_in(tmp_path), tmp_path / "kept"
    judge = judge_of(compiled_baseline(way, root), memory_limit_bytes=None)
    profiles = (
        profile("ag", "--xla_gpu_all_gather_combine_threshold_bytes=1"),
        profile("rs", "--xla_gpu_reduce_scatter_combine_threshold_bytes=1"),
        profile("warp", "--xla_warp=1"),
        profile("hopeless", "--xla_hopeless=1"),
    )
    found = {each.id: judge.judge(compiled(each, way(each), root)) for each in profiles}
    assert {name: each.cls for name, each in found.items()} == {
        "ag": CompileClass.PROGRAM,
        "rs": CompileClass.IDENTICAL,
        "warp": CompileClass.REFUSED,
        "hopeless": CompileClass.FAILED,
    }
    assert found["warp"].sentence == "Unknown flag in XLA_FLAGS: --xla_warp"
    assert found["hopeless"].sentence == "no luck"
    assert found["rs"].took_s > 0
    with pytest.raises(ConfigError, match="name a new folder"):
        compiled(profiles[0], way(profiles[0]), root)


def test_a_baseline_that_does_not_compile_ends_the_check(tmp_path: Path) -> None:
    way = stand_in(tmp_path, "--xla_hopeless=1")
    with pytest.raises(ConfigError, match="as deployed gives no program to compare: no luck"):
        compiled_baseline(way, tmp_path / "kept")


# the text of what makes the state is ten times that of the step
OWN_TRAINER = """
import jax, jax.numpy as jnp

@jax.jit
def make(key):
    return [jax.random.normal(each, (8, 8)) for each in jax.random.split(key, 9)]

@jax.jit
def step(state, batch):
    loss = lambda state: sum((jnp.tanh(each @ batch) ** 2).sum() for each in state)
    return jax.tree.map(lambda each, by: each - by, state, jax.grad(loss)(state))

step(make(jax.random.key(0)), jnp.ones((8, 8)))
"""


@pytest.mark.jax
def test_the_step_of_an_own_trainer_is_compared_whatever_its_name(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(OWN_TRAINER, encoding="utf-8")
    launcher = CommandLauncher(argv=(sys.executable, str(tmp_path / "train.py"), "{steps}"))
    way = by_trainer(launcher, Cell(model_tag="m", parallelism=Parallelism.parse("DP=1")))
    root = tmp_path / "kept"
    judge = judge_of(compiled_baseline(way, root), memory_limit_bytes=None)
    off = profile("fusion-off", "--xla_disable_hlo_passes=fusion")
    assert judge.judge(compiled(off, way(off), root)).cls is CompileClass.PROGRAM
    assert read_program(root / "baseline-deployed").module == "jit_step"
    made = [*root.glob("baseline-deployed/xla_dump/*.jit_make.cpu_after_optimizations.txt")]
    assert len(made) == 1


def test_a_trainer_that_compiles_no_program_of_jax_is_not_said_to_fail(tmp_path: Path) -> None:
    launcher = CommandLauncher(argv=(sys.executable, "-c", "print('done')", "{steps}"))
    way = by_trainer(launcher, Cell(model_tag="m", parallelism=Parallelism.parse("DP=1")))
    with pytest.raises(ConfigError, match=r"gives no program to compare: .*xla_dump"):
        compiled_baseline(way, tmp_path / "kept")


def test_a_number_of_controls_is_refused_below_none() -> None:
    with pytest.raises(ConfigError, match="controls is -1"):
        CompileCheck(controls=-1)


QUICKSTART = """
import importlib.util
import msgspec
spec = importlib.util.spec_from_file_location("quickstart_sweep", {path!r})
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
KEPT = ("gpu-threshold", "warp-drive", "fusion-off")
SWEEP = msgspec.structs.replace(
    module.SWEEP, profiles=tuple(each for each in module.PROFILES if each.id in KEPT)
)
"""


@pytest.mark.jax
@pytest.mark.part("programs")
def test_the_quickstart_is_compiled_through_its_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = tmp_path / "test_few.py"
    path = str(ROOT / "sweeps" / "test_quickstart.py")
    sweep.write_text(QUICKSTART.format(path=path), encoding="utf-8")
    assert main(["plan", str(sweep), "--compile", "--workdir", str(tmp_path / "w")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    for words in ("fusion-off other program", "gpu-threshold identical", "warp-drive flag refused"):
        assert words in said


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


def test_a_plan_compiles_when_it_is_asked_to_and_keeps_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    trainer, sweep = tmp_path / "trainer.py", tmp_path / "test_few.py"
    trainer.write_text(TRAINER, encoding="utf-8")
    sweep.write_text(FEW.format(trainer=str(trainer), kept=str(KEPT)), encoding="utf-8")
    asked = ["plan", str(sweep), "--workdir", str(tmp_path / "w")]
    assert main([*asked, "--compile"]) == 0
    out = capsys.readouterr().out
    assert "1 trial of the screen will not run: see the compile check" in " ".join(out.split())
    table = out.partition("Compile check")[2].partition("What it costs")[0]
    for name, said in (
        ("ag", "other program"),
        ("rs", "measured as an A/A control"),
        ("warp", "not run: flag refused: Unknown flag in XLA_FLAGS: --xla_warp"),
        ("ring", "effect not seen"),
    ):
        assert any(name in line and said in line for line in table.splitlines()), (name, table)
    assert not list((tmp_path / "w").rglob("ledger.jsonl"))
    assert main(asked) == 0
    assert "Compile check" not in capsys.readouterr().out
