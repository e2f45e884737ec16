"""The quickstart: a sweep of real XLA flags over a real JAX training job, on this machine.

    make sweep            or            pytest sweeps/test_quickstart.py

The cell is a small transformer on two forced CPU devices. Its deployment has a forgotten setting
that costs more than half the speed. One profile below undoes it; others are real winners and
losers, some do nothing, one is an unknown flag, and one diverges. The flags take turns in a few
jobs; the learning rate needs a job of its own. No result is written here, because it depends on the
machine.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pytest_xlatune import (
    CellSettings,
    DesignSettings,
    MaxTextLauncher,
    Profile,
    Protocol,
    SiteSettings,
    Sweep,
    deployed_env,
    parse_flags,
    profile,
    restore_default,
    standard_tests,
)

HERE = Path(__file__).parent / "quickstart"
ENV_FILE = HERE / "configs" / "quickstart.env.sh"
DEPLOYED = deployed_env(ENV_FILE, parallelism="FSDP=2")

# the default of every deployed flag; the device count stays, because it belongs to the cell
DEFAULTS = {
    "xla_force_host_platform_device_count": "2",
    "xla_backend_optimization_level": "3",
}

PROFILES = (
    profile(
        "no-passes",
        "--xla_disable_all_hlo_passes=true",
        note="what the compiler cannot do without: it aborts, at the front where that costs least",
    ),
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
        "opt-level-2",
        "--xla_backend_optimization_level=2",
        note="the level between that and the default",
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
        "warp-drive",
        "--xla_cpu_enable_warp_drive=true",
        note="no such flag: XLA says so, and the profile is dropped",
    ),
    profile(
        "diverges",
        overrides={"learning_rate": "1e30"},
        note="a learning rate at which the loss is NaN within a few steps",
    ),
)

SWEEP = Sweep(
    name="quickstart",
    cell=CellSettings(
        model_tag="quickstart",
        parallelism="FSDP=2",
        devices=2,
        per_device_batch_size=2,
        max_target_length=64,
        deployed=DEPLOYED,
        protocol=Protocol(steps=24, first_step=8, deadline_s=300),
    ),
    launcher=MaxTextLauncher(
        python=sys.executable,
        module=str(HERE / "train.py"),
        config=str(HERE / "configs" / "quickstart.yml"),
        axis_prefix={"FSDP": "ici", "PP": "ici"},  # a CPU has no slices
    ),
    site=SiteSettings(
        env_file=str(ENV_FILE),
        executor="local",
    ),
    profiles=PROFILES,
    design=DesignSettings(
        screen_baselines=1,
        finalists=2,
        blocks=3,
        block_baselines=2,
        budget=40,
        rotate="on",
    ),
)

tests = standard_tests(SWEEP, evidence=True)
