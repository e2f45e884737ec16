"""The quickstart: a sweep of real XLA flags over a real JAX training job, on this machine.

    make sweep            or            pytest sweeps/test_quickstart.py -n 2

The cell is a small transformer on four forced CPU devices. What is deployed carries a leftover that
costs more than half the speed, as such things do; the profiles below are one way back, some real
winners and losers, some that do nothing, an unknown flag and a run that diverges. No result is
written down here: whatever this machine says is the result.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_xlatune import (
    Protocol,
    Sweep,
    deployed_env,
    profile,
    restore_default,
)
from pytest_xlatune.launchers.maxtext import MaxTextLauncher
from pytest_xlatune.profiles import Profile, parse_flags

HERE = Path(__file__).parent / "quickstart"
ENV_FILE = HERE / "configs" / "quickstart.env.sh"
DEPLOYED = deployed_env(ENV_FILE, parallelism="FSDP=4")

# what every deployed flag would be, had nobody set it; the devices are the cell itself
DEFAULTS = {
    "xla_force_host_platform_device_count": "4",
    "xla_backend_optimization_level": "3",
}
RESTORED = "--xla_backend_optimization_level=3"

PROFILES = (
    Profile(
        id="baseline-no-env",
        flags=restore_default(parse_flags(DEPLOYED["XLA_FLAGS"]), DEFAULTS),
        wave="wave1",
        note="every deployed flag back to its default: what the image alone gives",
    ),
    profile(
        "opt-level-1",
        "--xla_backend_optimization_level=1",
        note="the lowest level at which LLVM optimises the generated loops",
    ),
    profile(
        "fusion-off",
        "--xla_disable_hlo_passes=fusion",
        note="every elementwise operation by itself: more memory traffic",
    ),
    profile(
        "gpu-threshold",
        "--xla_gpu_all_gather_combine_threshold_bytes=1073741824",
        note="a GPU's flag: nothing here reads it, so it shows the noise",
    ),
    profile(
        "one-thread",
        "--xla_cpu_multi_thread_eigen=false",
        note="matrix products on one thread each",
    ),
    profile(
        "nccl-ring",
        env={"NCCL_ALGO": "Ring"},
        note="a variable of a library that is not here: shows the noise",
    ),
    profile(
        "warp-drive",
        "--xla_cpu_enable_warp_drive=true",
        note="no such flag: XLA says so, and the profile is dropped",
    ),
    profile(
        "no-passes",
        "--xla_disable_all_hlo_passes=true",
        note="what the compiler cannot do without: it aborts, and the profile is dropped",
    ),
    profile(
        "diverges",
        overrides={"learning_rate": "1e30"},
        note="a learning rate at which the loss is NaN within a few steps",
    ),
    profile(
        "restored-unrolled",
        RESTORED,
        overrides={"scan_layers": "false"},
        wave="wave3",
        note="the default level, and layers that the compiler sees at once",
    ),
    profile(
        "restored-remat",
        RESTORED,
        overrides={"remat_policy": "full"},
        wave="wave3",
        note="the default level, and activations computed again instead of kept",
    ),
    profile(
        "restored-fusion-off",
        f"{RESTORED} --xla_disable_hlo_passes=fusion",
        wave="wave3",
        note="whether fusion matters at the default level too",
    ),
)

SWEEP = Sweep(
    name="quickstart",
    model_tag="quickstart",
    parallelism="FSDP=4",
    devices=4,
    per_device_batch_size=2,
    max_target_length=64,
    launcher=MaxTextLauncher(
        python=sys.executable,
        module=str(HERE / "train.py"),
        config=str(HERE / "configs" / "quickstart.yml"),
        axis_prefix={"FSDP": "ici", "PP": "ici"},  # a CPU has no slices
    ),
    deployed=DEPLOYED,
    env_file=str(ENV_FILE),
    profiles=PROFILES,
    protocol=Protocol(steps=40, first_step=8, deadline_s=300),
    executor="local",
    screen_baselines=2,
    finalists=3,
    blocks=3,
    block_baselines=2,
    budget=40,
)


@pytest.mark.wave1
def test_baseline(baseline_deployed):
    """The cell as deployed trains at all."""
    assert baseline_deployed.n >= 2


@pytest.mark.wave1
def test_without_env(measure, profile):
    """What the image alone gives."""
    measured = measure(profile)
    assert measured.not_slower, measured.paragraph


@pytest.mark.wave2
def test_single_flag(measure, profile):
    """Each flag by itself, measured once: it ranks, and proves nothing."""
    measured = measure(profile)
    assert measured.not_slower, measured.paragraph


@pytest.mark.wave3
def test_stack(measure, profile):
    """What led, stacked."""
    measured = measure(profile)
    assert measured.not_slower, measured.paragraph


@pytest.mark.confirm
def test_finalist(measure, finalist):
    """The best of the screen, again in fresh blocks: only this decides."""
    measured = measure(finalist)
    assert measured.not_slower, measured.paragraph


@pytest.mark.wave1_5
def test_evidence(evidence):
    """Profiler and dump of the cell as deployed, in a run of its own that has no score."""
    recorded = evidence("baseline-deployed")
    assert recorded.dump, recorded.problems
    assert recorded.captures, recorded.problems


@pytest.mark.confirm
def test_why_the_winner_wins(evidence, winner):
    """The same of what the blocks prove fastest: the tuning document compares both."""
    recorded = evidence(winner)
    assert recorded.dump, recorded.problems
    assert recorded.captures, recorded.problems
