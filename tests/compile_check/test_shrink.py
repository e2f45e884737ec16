"""A failing profile is reduced to the settings that matter: by XLA itself, and by a stand-in."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_xlatune.cli import main
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.channels import CHANNELS, Channel
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import Profile, profile
from pytest_xlatune.prepare import compilers
from pytest_xlatune.prepare.compilers import Compiler
from pytest_xlatune.tasks.shrink import (
    WayOfFailing,
    by_compiling,
    by_trials,
    minimal,
    profile_of,
    run_here,
    settings_of,
    shrink,
)
from tests.compile_check.test_program import KEPT, stand_in

NAMES = tuple("abcdefgh")


@given(st.sets(st.sampled_from(NAMES), min_size=1))
def test_the_smallest_set_is_found_whatever_it_is(needed: set[str]) -> None:
    asked: list[tuple[str, ...]] = []

    def fails(some: tuple[str, ...]) -> bool:
        asked.append(some)
        return needed <= set(some)

    assert set(minimal(NAMES, fails)) == needed
    assert () not in asked


@given(st.lists(st.sets(st.sampled_from(NAMES), min_size=1, max_size=3), min_size=1, max_size=4))
def test_of_several_causes_one_is_left_from_which_nothing_can_be_left_out(
    causes: list[set[str]],
) -> None:
    def fails(some: tuple[str, ...]) -> bool:
        return any(cause <= set(some) for cause in causes)

    found = minimal(NAMES, fails)
    assert fails(found)
    assert not any(fails(less) for less in itertools.combinations(found, len(found) - 1) if less)


WHOLE = Profile(
    id="everything",
    flags=profile("x", "--xla_a=1 --xla_b=2 --xla_c").flags,
    env={"NCCL_X": "1"},
    overrides={"remat_policy": "full"},
)


def test_a_profile_is_taken_apart_and_put_together() -> None:
    assert profile_of("everything", settings_of(WHOLE)) == WHOLE
    assert [str(each) for each in settings_of(WHOLE)] == [
        "--xla_a=1", "--xla_b=2", "--xla_c", "NCCL_X=1", "remat_policy=full",
    ]  # fmt: skip


TPU = "LIBTPU_INIT_ARGS"


def test_the_flags_of_another_library_are_taken_apart_as_they_are_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(CHANNELS, "NEURON_CC_FLAGS", Channel(reader="neuronx-cc"))
    text = {
        TPU: "--xla_tpu_dot_dot_fusion=false --noxla_tpu_rwb_fusion",
        "NEURON_CC_FLAGS": "--auto-cast none -O1",
        "NCCL_X": "1",
    }
    whole = Profile(id="tpu", env=text)
    settings = settings_of(whole)
    assert [str(each) for each in settings] == [
        "--xla_tpu_dot_dot_fusion=false", "--noxla_tpu_rwb_fusion", "--auto-cast none", "-O1",
        "NCCL_X=1",
    ]  # fmt: skip
    assert profile_of("tpu", settings) == whole
    one = profile_of("one", settings[1:2])
    assert one.env == {TPU: "--noxla_tpu_rwb_fusion"}


def test_a_bundle_of_libtpus_flags_is_reduced_to_the_one_that_fails(tmp_path: Path) -> None:
    whole = profile("bundle", "--xla_tpu_a=1 --xla_tpu_hopeless=1 --xla_tpu_b=1")
    assert set(whole.env) == {TPU}
    look = by_compiling(compiler(tmp_path), tmp_path / "kept", lock=tmp_path / "lock")
    found = shrink(whole, look, by="compiling", budget=20)
    assert [str(each) for each in found.settings] == ["--xla_tpu_hopeless=1"]
    assert (found.of, found.is_minimal) == (3, True)


def of(*names: str) -> WayOfFailing:
    return WayOfFailing(cls="failed", signature=" ".join(names), said="it crashed")


def test_another_failure_of_a_subset_is_not_the_failure() -> None:
    def look(found: Profile) -> WayOfFailing | None:
        names = {each.name for each in settings_of(found)}
        if {"xla_a", "NCCL_X"} <= names:
            return of("the crash")
        return of("another") if "NCCL_X" in names else None

    found = shrink(WHOLE, look, by="compiling", budget=64)
    assert {each.name for each in found.settings} == {"xla_a", "NCCL_X"}
    assert (found.of, found.is_minimal) == (5, True)


def test_a_budget_that_runs_out_leaves_the_best_so_far_and_says_so() -> None:
    def look(found: Profile) -> WayOfFailing | None:
        return of("x") if "xla_a" in {each.name for each in settings_of(found)} else None

    found = shrink(WHOLE, look, by="trials", budget=2)
    assert (found.tries, found.is_minimal) == (2, False)
    assert {each.name for each in found.settings} == {"xla_a", "xla_b", "xla_c"}


@pytest.mark.parametrize(
    ("given", "says"),
    [(WHOLE, "does not fail by compiling"), (Profile(id="empty"), "has no setting")],
)
def test_what_does_not_fail_is_not_shrunk(given: Profile, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        shrink(given, lambda _: None, by="compiling", budget=9)


SWEEP_FILE = """
import sys
from pytest_xlatune import CellSettings, CommandLauncher, Profile, SiteSettings, Sweep, parse_flags
def p(id, text, **more):
    return Profile(id=id, flags=parse_flags(text), **more)
SWEEP = Sweep(
    name="s",
    launcher=CommandLauncher(argv=(sys.executable, "trainer.py", "{{steps}}")),
    cell=CellSettings(model_tag="m", parallelism="FSDP=1"),
    site=SiteSettings(executor="local"),
    profiles=(
        p("typo", "--xla_cpu_enable_fast_math=false --xla_no_such_flag=1 "
          "--xla_cpu_enable_fast_min_max=false", env={{"TF_X": "1"}}),
        p("fine", "--xla_cpu_enable_fast_math=false"),
    ),
)
"""
PROGRAM = """
import jax, jax.numpy as jnp
def step(devices):
    return jax.jit(lambda x: jnp.tanh(x) @ x), (jnp.ones((8, 8)),)
"""


def compiler(folder: Path, **more: object) -> Compiler:
    return Compiler(way=stand_in(folder), python=sys.executable, place="here", **more)  # type: ignore[arg-type]


def test_a_compiler_crash_is_reduced_by_compiling(tmp_path: Path) -> None:
    whole = profile(
        "all", "--xla_gpu_a=1 --xla_hopeless=1 --xla_gpu_all_gather_combine_threshold_bytes=1"
    )
    look = by_compiling(compiler(tmp_path), tmp_path / "kept", lock=tmp_path / "lock")
    found = shrink(whole, look, by="compiling", budget=20)
    assert [str(each) for each in found.settings] == ["--xla_hopeless=1"]
    assert (found.symptom.cls, found.symptom.said) == ("failed", "no luck")


TRAINER = """
import os, sys, math
flags, steps = os.environ.get("XLA_FLAGS", ""), int(sys.argv[1])
both = "xla_a" in flags and "xla_b" in flags
if "xla_oom" in flags and os.environ.get("NCCL_BIG"):
    print("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 123456 bytes.", flush=True)
    sys.exit(1)
seconds = 0.2 if "xla_slow" in flags else 0.1
loss = 9.0 if both else 5.0
for step in range(steps):
    print(f"completed step: {step}, seconds: {seconds:.3f}, TFLOP/s/device: 1.0, "
          f"Tokens/s/device: {1000 / seconds:.3f}, total_weights: 1000, loss: {loss}", flush=True)
"""


@pytest.mark.parametrize(
    ("text", "env", "cls", "left"),
    [
        ("--xla_z=1 --xla_slow=1 --xla_y=1", {"NCCL_A": "1"}, "slower", {"--xla_slow=1"}),
        ("--xla_a=1 --xla_z=1 --xla_b=1", {}, "loss", {"--xla_a=1", "--xla_b=1"}),
        (
            "--xla_oom=1 --xla_z=1",
            {"NCCL_BIG": "1", "NCCL_A": "1"},
            "oom-gpu",
            {"--xla_oom=1", "NCCL_BIG=1"},
        ),
    ],
)
def test_a_profile_that_fails_in_a_run_is_reduced_by_trials(
    tmp_path: Path, text: str, env: dict[str, str], cls: str, left: set[str]
) -> None:
    (tmp_path / "trainer.py").write_text(TRAINER, encoding="utf-8")
    launcher = CommandLauncher(argv=(sys.executable, str(tmp_path / "trainer.py"), "{steps}"))
    cell = Cell(model_tag="m", parallelism=Parallelism.parse("FSDP=1"), protocol=Protocol(steps=15))
    whole = Profile(id="whole", flags=profile("x", text).flags, env=env)
    look = by_trials(launcher, cell, tmp_path / "runs", run=run_here(lock=tmp_path / "lock"))
    found = shrink(whole, look, by="trials", budget=20)
    assert found.symptom.cls == cls
    assert {str(each) for each in found.settings} == left
    assert found.is_minimal


def test_a_try_that_is_ended_from_outside_is_told() -> None:
    ended = WayOfFailing(cls="ended from outside", signature="", said="out of memory")

    def look(found: Profile) -> WayOfFailing | None:
        names = {each.name for each in settings_of(found)}
        if names == {"xla_a"}:
            return ended
        return of("the crash") if "xla_a" in names else None

    found = shrink(WHOLE, look, by="compiling", budget=64)
    assert not found.is_minimal
    assert len(found.settings) == 2
    with pytest.raises(ConfigError, match="compiling was ended from outside: out of memory"):
        shrink(WHOLE, lambda _: ended, by="compiling", budget=64)


@pytest.mark.jax
@pytest.mark.part("programs")
def test_a_flag_that_xla_refuses_is_found_among_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_s.py").write_text(SWEEP_FILE.format(), encoding="utf-8")
    (tmp_path / "prog.py").write_text(PROGRAM, encoding="utf-8")
    (tmp_path / "trainer.py").write_text("", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compilers, "machine_lock", lambda: tmp_path / "lock")
    asked = ["--program", "prog:step", "--workdir", str(tmp_path / "w")]
    assert main(["shrink", "test_s.py:typo", *asked]) == 0
    said = capsys.readouterr().out
    assert "typo: refused: " in said
    assert "1 of 4 settings still fail so" in said
    assert said.rstrip().endswith("  --xla_no_such_flag=1")
    assert main(["shrink", "test_s.py:fine", *asked]) == 2
    assert "does not fail by compiling" in capsys.readouterr().err
    assert main(["shrink", "test_s.py:fien", *asked]) == 2
    assert "fine" in capsys.readouterr().err


# leaves a dump as a compile check asks for one, then runs as the trainer above does
DUMPING = """
import gzip, pathlib
dump = pathlib.Path("xla_dump"); dump.mkdir(exist_ok=True)
text = gzip.decompress(pathlib.Path({kept!r}, "fsdp.txt.gz").read_bytes())
(dump / "module_1.jit_train_step.sm_9.0_gpu_after_optimizations.txt").write_bytes(text)
"""
LOSING = """
from dataclasses import replace
from pytest_xlatune import DesignSettings, Profile, load_sweep, parse_flags

SWEEP = replace(
    load_sweep("test_s.py"),
    design=DesignSettings(loss_tolerance={tolerance}),
    profiles=(Profile(id="both", flags=parse_flags("--xla_a=1 --xla_z=1 --xla_b=1")),),
)
"""


def test_a_trainer_that_leaves_no_program_is_shrunk_by_its_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "trainer.py").write_text(TRAINER, encoding="utf-8")
    text = SWEEP_FILE.format().replace('"trainer.py"', repr(str(tmp_path / "trainer.py")))
    text = text.replace("xla_no_such_flag", "xla_slow")
    (tmp_path / "test_s.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compilers, "machine_lock", lambda: tmp_path / "lock")
    asked = ["shrink", "test_s.py:typo", "--workdir", str(tmp_path / "w")]
    assert main(asked) == 2
    assert "no such file or folder" in (said := capsys.readouterr().err)
    assert said.rstrip().endswith("--trials N tries it by runs of the trainer")
    assert main([*asked, "--trials", "9"]) == 0
    assert capsys.readouterr().out.split()[-1] == "--xla_slow=1"


@pytest.mark.parametrize(("tolerance", "status"), [(0.005, 0), (0.02, 2)])
def test_another_loss_is_one_beyond_the_tolerance_of_the_sweep(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tolerance: float,
    status: int,
) -> None:
    """The loss is 1 % apart."""
    trainer = DUMPING.format(kept=str(KEPT)) + TRAINER.replace("9.0 if both", "5.05 if both")
    (tmp_path / "trainer.py").write_text(trainer, encoding="utf-8")
    launcher = SWEEP_FILE.format().replace('"trainer.py"', repr(str(tmp_path / "trainer.py")))
    (tmp_path / "test_s.py").write_text(launcher, encoding="utf-8")
    (tmp_path / "test_l.py").write_text(LOSING.format(tolerance=tolerance), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(compilers, "machine_lock", lambda: tmp_path / "lock")
    asked = ["--workdir", str(tmp_path / "w"), "--keep", str(tmp_path / "keep")]
    assert main(["shrink", "test_l.py:both", "--trials", "9", *asked]) == status
    said = capsys.readouterr()
    if status:
        assert "does not fail by trials" in said.err
    else:
        assert said.out.split()[-2:] == ["--xla_a=1", "--xla_b=1"]
        assert "loss" in said.out
