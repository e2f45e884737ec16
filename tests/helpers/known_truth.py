"""A sweep whose truth is chosen: what each setting does on two parallelisms, alone and together.

Everything around the trainer is real.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from pytest_xlatune.model.result import Conclusion, Needed, VerdictKind
from pytest_xlatune.tasks.cell_report import CellReport, read_known
from tests.helpers.tell_options import TELL_OPTIONS

# On FSDP flag A is worth +4 %, B +3 %, both together -1 %, D aborts. On PP A costs 3 %, B is worth
# +4 % and D +3 %. C does nothing, E needs more memory than 2 GiB where it says so, F is fast and
# trains to another loss, on both.
TRAINER = """\
import hashlib, os, sys
flags = dict(each.lstrip("-").partition("=")[::2] for each in os.environ["XLA_FLAGS"].split())
axes, trial = sys.argv[3], sys.argv[2].rpartition("-")[0]
print("Show all environment variables:")
print(f"XLA_FLAGS={os.environ['XLA_FLAGS']}", flush=True)
"""
TRAINER += TELL_OPTIONS
TRAINER += """\
if os.environ.get("SLURM_PROCID", "0") != "0":
    sys.exit(0)
is_pipeline = axes.startswith("PP")
if "xla_d" in flags and not is_pipeline:
    print("F1120 09:03:25.888154 14479 xla/service/d.cc:234] Check failed: 1 == 2", flush=True)
    os.abort()
if int(flags.get("xla_e", 0)) > 2 << 30:
    print("jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to "
          f"allocate {flags['xla_e']} bytes.", flush=True)
    sys.exit(1)
a, b = "xla_a" in flags, "xla_b" in flags
if is_pipeline:
    gain = -0.03 * a + 0.04 * b + 0.03 * ("xla_d" in flags)
else:
    gain = -0.01 if a and b else 0.04 * a + 0.03 * b
gain += 0.10 * ("xla_f" in flags)
noise = int(hashlib.sha256((trial + axes).encode()).hexdigest()[:8], 16) / 2**32 - 0.5
speed = 1000 * (1 + gain) * (1 + 0.004 * noise)
for step in range(int(sys.argv[1])):
    print(f"completed step: {step}, seconds: {512 / speed:.6f}, TFLOP/s/device: 0.1, "
          f"Tokens/s/device: {speed:.3f}, total_weights: 512, "
          f"loss: {9.9 if 'xla_f' in flags else 7.1}", flush=True)
"""
SWEEP = """\
import os
import sys
from pathlib import Path

import pytest

from pytest_xlatune import (
    CellSettings,
    CommandLauncher,
    DesignSettings,
    Protocol,
    SiteSettings,
    Stacks,
    Sweep,
    deployed_env,
    profile,
    standard_tests,
)

AXES = os.environ["AXES"]
HERE = Path(__file__).parent
ENV_FILE = HERE / "configs" / "truth.env.sh"

SWEEP = Sweep(
    name="truth",
    cell=CellSettings(
        model_tag="truth",
        parallelism=AXES,
        deployed=deployed_env(ENV_FILE, parallelism=AXES),
        protocol=Protocol(steps=12),
    ),
    launcher=CommandLauncher(
        argv=(sys.executable, str(HERE / "trainer.py"), "{steps}", "{trial}", AXES)
    ),
    profiles=(
        profile("a", "--xla_a=1"),
        profile("b", "--xla_b=1"),
        profile("c", "--xla_c=1"),
        profile("d", "--xla_d=1"),
        profile("e-1g", f"--xla_e={1 << 30}"),
        profile("e-4g", f"--xla_e={4 << 30}"),
        profile("f", "--xla_f=1"),
    ),
    derived=(Stacks(wave="wave3", slots=1, of=2),),
    site=SiteSettings(executor="EXECUTOR", env_file=str(ENV_FILE)),
    design=DesignSettings(screen_baselines=2, finalists=3, blocks=3, block_baselines=1, budget=40),
)
tests = standard_tests(SWEEP)


@pytest.mark.wave1
def test_baseline(baseline_deployed):
    # in place of the standard one: no XLA knows these flags
    assert baseline_deployed.n >= 1
"""
DEPLOYED = 'export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_deployed=1"\n'
CELLS = ("FSDP=2", "PP=2")


def write(folder: Path, *, executor: str) -> None:
    """Write the project: trainer, sweep, and the file that deploys both cells."""
    (folder / "configs").mkdir()
    (folder / "configs" / "truth.env.sh").write_text(DEPLOYED, encoding="utf-8")
    (folder / "trainer.py").write_text(TRAINER, encoding="utf-8")
    text = SWEEP.replace("EXECUTOR", executor)
    (folder / "test_truth.py").write_text(text, encoding="utf-8")
    git(folder, "init", "-q")


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True, timeout=240)


def known_of(folder: Path, axes: str) -> list[CellReport]:
    """The ledgers of a cell, the oldest first."""
    found = [read_known(each.parent) for each in folder.glob("*/truth/*/ledger.jsonl")]
    own = [each for each in found if str(each.cell.parallelism) == axes]
    return sorted(own, key=lambda each: each.at_s)


def kinds(conclusion: Conclusion) -> dict[str, VerdictKind]:
    return {each.arm: each.kind for each in conclusion.verdicts}


def follow(folder: Path, run: Callable[[str, str], object]) -> None:
    """Sweep both cells, apply the patch, measure both again; `run(axes, marker)` runs pytest."""
    for axes in CELLS:
        run(axes, "")
    fsdp, pp = (known_of(folder, axes)[-1].conclusion for axes in CELLS)
    for conclusion in (fsdp, pp):
        assert conclusion.complete
        assert kinds(conclusion)["e-4g"] is kinds(conclusion)["f"] is VerdictKind.INVALID
        assert conclusion.verdict("f").can_run  # type: ignore[union-attr]
    recipe = fsdp.tuning.recipe
    assert recipe is not None
    assert (recipe.arm, [each.need for each in recipe.parts if each.is_deployed]) == (
        "a",
        [Needed.NEEDED],
    )
    assert kinds(fsdp)["d"] is VerdictKind.INVALID
    recipe = pp.tuning.recipe
    assert recipe is not None
    assert recipe.arm == "b+d"
    assert {each.settings: each.need for each in recipe.parts} == {
        ("xla_b",): Needed.NEEDED,
        ("xla_d",): Needed.NEEDED,
    }

    document = (folder / "reports" / "truth-tuning.md").read_text(encoding="utf-8")
    patch = (folder / "reports" / "truth-tuning.patch").read_text(encoding="utf-8")
    assert patch in document
    assert "# NOT verified on PP=2: xla_a: one run there, -" in patch
    assert "# NOT for FSDP=2: xla_d: cannot run there" in patch
    assert patch.count("+if [[") == 2
    git(folder, "apply", "reports/truth-tuning.patch")
    for axes, least in zip(CELLS, (1.035, 1.06), strict=True):
        before = known_of(folder, axes)[-1].conclusion.baseline.tgs
        run(axes, "wave1")
        again = known_of(folder, axes)[-1]
        assert again.conclusion.baseline.n >= 2, "it runs"
        assert before is not None
        assert again.conclusion.baseline.tgs is not None
        assert again.conclusion.baseline.tgs > least * before
        losses = {each.score.loss for each in again.history if each.score}
        assert losses == {7.1}
