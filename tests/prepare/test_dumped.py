"""XLA's own dump of its options: read from a folder, and held against what a trial asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_xlatune.evidence.hlo.dump import seen_options
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.result import Effect
from pytest_xlatune.stats.validity import Witnesses, judge_settings


def test_no_dump_of_options_is_none(tmp_path: Path) -> None:
    assert seen_options(tmp_path / "no folder") is None
    assert seen_options(tmp_path) is None
    program = "module_0001.jit_f.cpu_after_optimizations.txt"
    (tmp_path / program).write_text("HloModule f\n")
    assert seen_options(tmp_path) is None


@pytest.mark.jax
@pytest.mark.part("programs")
def test_what_a_real_xla_dumps(tmp_path: Path) -> None:
    """The first text is in effect; behind the lone comma of the second XLA drops a flag."""
    flags = "--xla_cpu_enable_fast_math=true"
    passes = "--xla_disable_hlo_passes=algsimp"
    asked = profile("asked", f"{passes} {flags}")
    effects = {}
    for name, text in (("whole", f"{passes} {flags}"), ("cut", f"{passes} , {flags}")):
        folder = tmp_path / name
        to = f"--xla_dump_to={folder} --xla_dump_hlo_as_text"
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
        subprocess.run(
            [sys.executable, "-c", "import jax; jax.jit(lambda x: x * 2 + 1)(1.0)"],
            env=kept | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{to} {text}"},
            check=True,
            capture_output=True,
            timeout=240,
        )
        options = seen_options(folder)
        judged = judge_settings(asked, Witnesses(options=options))
        effects[name] = {each.effect for each in judged}
    assert effects["whole"] == {Effect.IN_EFFECT}
    assert effects["cut"] == {Effect.IN_EFFECT, Effect.CONTRADICTED}
