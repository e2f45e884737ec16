"""MaxText itself on this machine: the published package, a tiny model, real XLA flags.

    make maxtext-sweep      or      pytest sweeps/test_maxtext_cpu.py -n 1

MaxText lives in an environment of its own, `.maxtext`, which `make maxtext` makes, and is started
as a process; `--xlatune-launcher python=PATH` names the interpreter of another. The cell is FSDP=2
over two forced CPU devices, and its deployment has a forgotten setting that costs most of the
speed. A trial takes 20 to 40 seconds on two idle cores, mostly for importing and compiling.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_xlatune import (
    CellSettings,
    DesignSettings,
    MaxTextLauncher,
    Protocol,
    SiteSettings,
    Sweep,
    deployed_env,
    profile,
    standard_tests,
)

HERE = Path(__file__).parent / "maxtext" / "configs"
PYTHON = Path(__file__).parents[1] / ".maxtext" / "bin" / "python"

RESTORED = "--xla_backend_optimization_level=3"

PROFILES = (
    profile(
        "opt-level-3",
        RESTORED,
        note="the compiler's default level, where the deployed leftover is taken back",
    ),
    profile(
        "fusion-off",
        "--xla_disable_hlo_passes=fusion",
        note="every elementwise operation by itself: more memory traffic, longer to compile",
    ),
    profile(
        "gpu-threshold",
        "--xla_gpu_all_gather_combine_threshold_bytes=1073741824",
        note="a GPU's flag: nothing here reads it, so it shows the noise",
    ),
    profile(
        "warp-drive",
        "--xla_cpu_enable_warp_drive=true",
        note="no such flag: XLA says so, and the profile is dropped",
    ),
    profile(
        "restored-minimal-remat",
        RESTORED,
        overrides={"remat_policy": "minimal"},
        wave="wave3",
        note="the default level, and fewer activations computed again",
    ),
)

SWEEP = Sweep(
    name="maxtext-cpu",
    cell=CellSettings(
        model_tag="tiny-cpu",
        parallelism="FSDP=2",
        devices=2,
        per_device_batch_size=4,
        max_target_length=128,
        deployed=deployed_env(HERE / "tiny-cpu.env.sh", parallelism="FSDP=2"),
        protocol=Protocol(steps=30, first_step=8, deadline_s=600),
    ),
    launcher=MaxTextLauncher(
        python=str(PYTHON),
        module="maxtext.trainers.pre_train.train",
        config=str(HERE / "{model_tag}.gpu.yml"),
        axis_prefix={"FSDP": "ici", "PP": "ici"},  # a CPU has no slices
    ),
    site=SiteSettings(
        env_file=str(HERE / "tiny-cpu.env.sh"),
        executor="local",
    ),
    profiles=PROFILES,
    design=DesignSettings(
        screen_baselines=2,
        finalists=1,
        blocks=4,
        block_baselines=1,
        budget=24,
    ),
)


@pytest.mark.wave1
def test_baseline(preflight, baseline_deployed):
    """The cell as deployed trains, and this MaxText knows every key.

    It replaces the standard test of this name.
    """
    assert not [note for note in preflight.notes if "keys were not checked" in note]
    assert baseline_deployed.n >= 2


tests = standard_tests(SWEEP, evidence=True)
