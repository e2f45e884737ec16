"""All waves of a sweep over the lab's four nodes with the quickstart trainer: real JAX and flags.

Beside `lab_sweep.py`, and run the same way: by `test_slurm_waves.py`, and by whoever likes to.

    pytest tests/slurm/lab_waves.py -n 4 --xlatune-nodelist 'node[001-004]'
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_xlatune import Around, NoEnv, Profile, Protocol, Resources, Stacks, Sweep, profile
from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.measured import Measured
from pytest_xlatune.recorded import Recorded

HERE = Path(__file__).parents[2] / "sweeps" / "quickstart"
LEVEL = "xla_backend_optimization_level"

SWEEP = Sweep(
    name="labwaves",
    model_tag="labwaves",
    parallelism="FSDP=4",
    devices=4,
    per_device_batch_size=2,
    max_target_length=16,
    launcher=MaxTextLauncher(
        python=sys.executable,
        module=str(HERE / "train.py"),
        config=str(HERE / "configs" / "quickstart.yml"),
    ),
    deployed={"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--{LEVEL}=0"},
    overrides={
        "hardware": "gpu_multiprocess",  # JAX finds its peers through Slurm
        "log_config": "false",
        "base_emb_dim": "64",
        "base_mlp_dim": "256",
        "base_num_decoder_layers": "2",
        "head_dim": "16",
        "vocab_size": "64",
    },
    profiles=(
        profile("opt-level-1", f"--{LEVEL}=1"),
        profile("unrolled", overrides={"scan_layers": "false"}),
        profile("warp-drive", "--xla_cpu_enable_warp_drive=true", note="no such flag"),
        profile("remat-full", overrides={"remat_policy": "full"}, wave="wave5"),
    ),
    no_env=NoEnv(defaults={LEVEL: "3"}),
    derived=(
        Stacks(wave="wave3", slots=1),
        Around(wave="wave4", slots=1, ladders={LEVEL: ("0", "1", "2", "3")}),
    ),
    config_tags={"wide": {"base_mlp_dim": "512"}},
    protocol=Protocol(steps=30, deadline_s=240),
    resources=Resources(time_limit_s=300),
    screen_baselines=2,
    finalists=1,
    blocks=4,
    block_baselines=1,
    budget=40,
)


@pytest.mark.wave1
def test_without_env(
    measure: Callable[[Profile], Measured], baseline_no_env: Profile, baseline_deployed: Measured
) -> None:
    assert baseline_deployed.n >= 2
    measured = measure(baseline_no_env)
    assert measured.not_slower, measured.paragraph


@pytest.mark.wave1_5
def test_evidence(evidence: Callable[[str], Recorded]) -> None:
    recorded = evidence("baseline-deployed")
    assert recorded.dump, recorded.problems
    assert recorded.captures, recorded.problems


@pytest.mark.wave2
@pytest.mark.wave5
def test_profile(measure: Callable[[Profile], Measured], profile: Profile) -> None:
    measured = measure(profile)
    assert measured.not_slower, measured.paragraph


@pytest.mark.wave3
@pytest.mark.wave4
def test_derived(measure: Callable[[Profile], Measured], derived: Profile) -> None:
    measured = measure(derived)
    assert measured.not_slower, measured.paragraph


@pytest.mark.confirm
def test_finalist(measure: Callable[[Profile], Measured], finalist: Profile) -> None:
    measured = measure(finalist)
    assert measured.not_slower, measured.paragraph


@pytest.mark.wave6(blocks=4)
def test_elsewhere(winner_elsewhere: Measured) -> None:
    assert winner_elsewhere.no_regression, winner_elsewhere.paragraph
