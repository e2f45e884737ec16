"""XLA's own dump of its options: read from a folder, and held against what a trial asked for."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_xlatune.evidence.hlo.dump import seen_options
from pytest_xlatune.logs import read_log
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.channels import Options
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.profile import Profile, profile
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import Outcome, State
from pytest_xlatune.model.trial import Trial
from tests.helpers.assessed import assess

PROTOCOL = Protocol(steps=12)
STEPS = "".join(
    f"completed step: {step}, seconds: 0.5, TFLOP/s/device: 0.1, Tokens/s/device: 1024.0, "
    "total_weights: 512, loss: 7.1\n"
    for step in range(PROTOCOL.steps)
)


def assessed(of: Profile, dumped: Options) -> list[str]:
    cell = Cell(model_tag="m", parallelism=Parallelism.parse("FSDP=1"), protocol=PROTOCOL)
    trial = Trial(
        cell_digest=cell.digest, profile=of, protocol=PROTOCOL, study="tuning", stage="wave1"
    )
    outcome, report = Outcome(state=State.COMPLETED), read_log([STEPS.encode()])
    found = assess(trial, cell, outcome, report, options=dumped)
    classes = [finding.cls for finding in found.findings]
    dropped = FailureClass.FLAGS_NOT_EFFECTIVE in classes
    assert found.decision.next is (Next.DROP if dropped else Next.ACCEPT)
    assert (found.score is None) is dropped, "a trial whose flags were lost has no score"
    return classes


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
    found = {}
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
        assert options is not None
        found[name] = assessed(asked, options)
    assert found == {"whole": [], "cut": [FailureClass.FLAGS_NOT_EFFECTIVE]}
