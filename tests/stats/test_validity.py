"""Flags in effect, the loss guard, the pooled start of steady state."""

from __future__ import annotations

import math

import pytest

from pytest_xlatune.model.profile import Profile, profile
from pytest_xlatune.stats.validity import Effect, different_loss, effective

DEPLOYED = "--xla_gpu_autotune_level=4 --xla_gpu_enable_latency_hiding_scheduler=true"
OVERLAP = profile("overlap", "--xla_gpu_enable_latency_hiding_scheduler=false")


@pytest.mark.parametrize(
    ("of", "shown", "words"),
    [
        pytest.param(OVERLAP, f"{DEPLOYED} {OVERLAP.settings_text}", "", id="appended last"),
        pytest.param(
            OVERLAP,
            f"{OVERLAP.settings_text} {DEPLOYED}",
            "scheduler is 'true' in the log, expected 'false'",
            id="an env file sourced later wins",
        ),
        pytest.param(
            OVERLAP,
            OVERLAP.settings_text,
            "autotune_level is not set in the log, expected '4'",
            id="what is deployed was lost",
        ),
        pytest.param(
            OVERLAP,
            "--xla_gpu_autotune_level=4 --xla_gpu_enable_latency_hiding_scheduler=0 --xla_new=1",
            "",
            id="another spelling, and more than asked for",
        ),
        pytest.param(profile("empty"), "", "not set", id="the baseline is checked as well"),
    ],
)
def test_flags_in_effect(of: Profile, shown: str, words: str) -> None:
    found = effective(of, deployed=DEPLOYED, shown=shown)
    assert bool(found.reasons) == bool(words)
    assert words in " ".join(found.reasons)
    assert not found.notes


def test_silence_is_a_note_and_no_failure() -> None:
    found = effective(OVERLAP, deployed=DEPLOYED, shown=None)
    assert not found.reasons
    assert "does not show XLA_FLAGS" in found.notes[0]
    garbled = effective(OVERLAP, deployed=DEPLOYED, shown="--xla_gpu='never closed")
    assert not garbled.reasons
    assert "cannot be read" in garbled.notes[0]
    assert effective(profile("none"), deployed="", shown=None) == Effect()


def test_variables_in_effect() -> None:
    rings = profile("rings", env={"NCCL_ALGO": "Ring", "NCCL_PROTO": "^LL128"})
    found = effective(rings, deployed="", shown=None, shown_env={"NCCL_ALGO": "Tree"})
    assert found.reasons == (
        "NCCL_ALGO is 'Tree' in the log, expected 'Ring': the profile was not in effect",
    )
    assert found.notes == ("the log does not show NCCL_PROTO: not checked",)
    assert not effective(rings, deployed="", shown=None, shown_env=rings.env).reasons


@pytest.mark.parametrize(
    ("loss", "differs"),
    [(10.0, False), (10.15, False), (10.3, True), (9.7, True), (math.nan, True)],
)
def test_loss_guard(loss: float, *, differs: bool) -> None:
    assert bool(different_loss(loss, 10.0, tolerance=0.02)) is differs
