"""Trials are scored by the protocol's metric: programs that run, and what is told of them."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.result import VerdictKind
from pytest_xlatune.report.lines import live_line, paragraph
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.report.render import markdown
from pytest_xlatune.report.study_documents import gate
from pytest_xlatune.studies.gate import GateStudy
from tests.helpers.quick_trials import QuickExecutor
from tests.helpers.resolved import campaign_of
from tests.helpers.waiting import until

# how large its own field is depends on the flags, its speed does not
TRAINER = """\
import hashlib, os, sys
trial = sys.argv[2].rpartition("-")[0]
noise = int(hashlib.sha256(trial.encode()).hexdigest()[:8], 16) / 2**32 - 0.5
flags = os.environ["XLA_FLAGS"]
told = flags.partition('--xla_dump_to="')[2].partition('"')[0]
os.makedirs(told)
with open(os.path.join(told, "module_0001.jit_train_step.config.pbtxt"), "w") as file:
    for flag in flags.rpartition('"')[2].split():  # as XLA does: every option that it has read
        file.write("  {}: {}\\n".format(*flag[2:].split("=", 1)))
figure = (0.9 if "--xla_less=1" in flags else 1.1 if "--xla_more=1" in flags else 1.0)
figure *= 20 * (1 + 0.002 * noise)
for step in range(int(sys.argv[1])):
    own = 5 * figure if step == 1 else figure
    print(f"completed step: {step}, seconds: 1.000, Tokens/s/device: 512.000, "
          f"loss: 7.1, wait/p95: {own:.4f} ms", flush=True)
"""
PROFILES = (profile("less", "--xla_less=1"), profile("more", "--xla_more=1"))


FIELD = Protocol(
    metric="field:wait/p95",
    metric_is_better="lower",
    metric_unit="ms",
    steps=5,
    first_step=2,
    min_steps=3,
)


def test_a_program_is_judged_by_the_metric_of_its_protocol(tmp_path: Path) -> None:
    trainer = tmp_path / "trainer.py"
    trainer.write_text(TRAINER, encoding="utf-8")
    cell = Cell(
        model_tag="pretend",
        parallelism=Parallelism.parse("FSDP=4"),
        deployed={"XLA_FLAGS": "--xla_deployed=1"},
        protocol=FIELD,
    )
    study = GateStudy(cell=cell, profiles=PROFILES)
    campaign = campaign_of(
        tmp_path / "pretend",
        QuickExecutor(lock=tmp_path / "lock"),
        study,
        launcher=CommandLauncher(argv=(sys.executable, str(trainer), "{steps}", "{trial}")),
    )
    campaign.open()

    def is_over() -> bool:
        campaign.turn()
        view = campaign.view()
        assert not view.stopped, view.stopped
        return not view.pending

    until(is_over, limit_s=240)
    history, conclusion = campaign.view().history, campaign.conclude()
    by_arm = {each.arm: each for each in conclusion.verdicts}
    less, more = by_arm["less"], by_arm["more"]
    assert (less.kind, more.kind) == (VerdictKind.FASTER, VerdictKind.SLOWER), by_arm
    assert less.delta == pytest.approx(1 / 0.9 - 1, abs=4e-3)
    assert less.tgs is None

    (first, *_) = (each for each in history if each.trial.arm == "less")
    line = live_line(first, verdict=less, progress="")
    text = markdown(
        gate(
            MeasuredCell(
                conclusion=conclusion,
                cells=(cell,),
                profiles=PROFILES,
                history=history,
                written_s=datetime(2026, 11, 22, tzinfo=UTC).timestamp(),
            )
        )
    )
    assert "wait/p95 18" in line
    assert "wait/p95 18" in paragraph(less)
    assert "| wait/p95 (ms) |" in " ".join(text.split())
    assert "`wait/p95 (ms)` over steps 2 to 4 of 5" in text
    assert "TGS" not in line + text
