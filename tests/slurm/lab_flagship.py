"""A flagship sweep as the lab's four nodes can run it: every wave, one or two profiles in each.

The sweep of `sweeps/` itself, made small: its launcher joins the processes by the same env file,
its waves derive by the same rules. The trainer is the quickstart's: real JAX over gloo, for which
the flags of a GPU do nothing. So what is deployed costs most of the speed, as in `lab_waves.py`: an
optimisation level, and bfloat16, which a CPU emulates; two profiles take it back. FLAGSHIP names
the sweep. Run by `test_slurm_flagships.py`.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from pytest_xlatune import (
    Around,
    DesignSettings,
    MaxTextLauncher,
    NoEnv,
    Protocol,
    Resources,
    Singles,
    SiteSettings,
    load_sweep,
    profile,
    standard_tests,
)

SWEEPS = Path(__file__).parents[2] / "sweeps"
NAME = os.environ["FLAGSHIP"]
AXES = {"pp8": "PP=4", "fsdp8": "FSDP=4", "tp8": "TP=4", "hybrid": "PP=2,FSDP=2"}
LEVEL = "xla_backend_optimization_level"
WHOLE = load_sweep(SWEEPS / f"test_{NAME}.py")
assert isinstance(WHOLE.launcher, MaxTextLauncher)

FIRST = {each.wave: each for each in reversed(WHOLE.profiles)}  # of each wave the first
if "remat_policy" in FIRST["wave5"].overrides:  # this trainer has other words for it
    FIRST["wave5"] = replace(FIRST["wave5"], overrides={"remat_policy": "full"})

SWEEP = replace(
    WHOLE,
    cell=replace(
        WHOLE.cell,
        model_tag="quickstart",
        parallelism=AXES[NAME],
        devices=4,
        per_device_batch_size=4,
        max_target_length=64,
        deployed={"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--{LEVEL}=0"},
        overrides={
            **WHOLE.cell.overrides,
            "log_config": "true",  # what it took is read there
            "dtype": "bfloat16",
            "base_emb_dim": "32",
            "base_mlp_dim": "64",
            "base_num_decoder_layers": "4",
            "base_num_query_heads": "8",
            "head_dim": "4",
            "vocab_size": "64",
            "num_layers_per_pipeline_stage": "-1",
            **({"ici_fsdp_parallelism": "1"} if "FSDP" not in AXES[NAME] else {}),
        },
        protocol=Protocol(
            steps=12,
            first_step=3,
            min_steps=6,
            skip_first_steps=4,
            profiler_steps=3,
            deadline_s=240,
        ),
    ),
    launcher=replace(
        WHOLE.launcher,
        python=sys.executable,
        module=str(SWEEPS / "quickstart" / "train.py"),
        config=str(SWEEPS / "quickstart" / "configs" / "quickstart.yml"),
        cwd="",
    ),
    profiles=(
        profile("opt-level-1", f"--{LEVEL}=1"),
        profile("float32", overrides={"dtype": "float32"}),
        *FIRST.values(),
    ),
    no_env=NoEnv(defaults={LEVEL: "3"}),
    derived=tuple(
        replace(rule, slots=1, ladders={LEVEL: ("0", "1", "2", "3")})
        if isinstance(rule, Around)
        else replace(rule, slots=1)
        for rule in WHOLE.derived
        if not (isinstance(rule, Singles) and rule.wave == "wave5")  # keys of MaxText alone
    ),
    config_tags={"wide": {"base_mlp_dim": "128"}},
    site=SiteSettings(resources=Resources(time_limit_s=300)),
    design=DesignSettings(
        screen_baselines=1,
        finalists=1,
        blocks=4,
        block_baselines=1,
        budget=30,
    ),
)

tests = standard_tests(SWEEP, evidence=True)
