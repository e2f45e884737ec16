"""All waves of a sweep over the lab's nodes with the quickstart trainer: real JAX and flags.

A pipeline of four stages over gloo, two on each of two nodes. What is deployed holds it back:
an optimisation level left over from a hunt for a miscompilation, and bfloat16, which a CPU
emulates. How much each costs is said by `trainer/`, so that no other load hides it. Beside
`lab_sweep.py`, and run the same way: by `test_slurm_slots.py`, and by you. FLAGSHIP_NODES=4 is a
stage a node, and takes half as long again: each process imports JAX and compiles.

    pytest tests/slurm/lab_waves.py -n 2 --xlatune-nodelist 'node[001-002]'
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pytest_xlatune import (
    Around,
    CellSettings,
    DesignSettings,
    MaxTextLauncher,
    NoEnv,
    Protocol,
    Resources,
    SiteSettings,
    Stacks,
    Sweep,
    profile,
    standard_tests,
)
from tests.helpers import quick_compile

HERE = Path(__file__).parents[2] / "sweeps" / "quickstart"
LEVEL = "xla_backend_optimization_level"
DEVICES = 4
NODES = int(os.environ.get("FLAGSHIP_NODES", "2"))

SWEEP = Sweep(
    name="labwaves",
    cell=CellSettings(
        model_tag="labwaves",
        parallelism="PP=4",
        devices=DEVICES,
        per_device_batch_size=4,
        max_target_length=16,
        deployed={
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--{LEVEL}=0 {quick_compile.flags()} "
            f"--xla_force_host_platform_device_count={DEVICES // NODES}",
        },
        overrides={
            "hardware": "gpu_multiprocess",  # JAX finds its peers through Slurm
            "log_config": "true",  # what it took is read there
            "dtype": "bfloat16",
            # attention is most of the work: many small heads, small matrix products
            "base_emb_dim": "32",
            "base_mlp_dim": "64",
            "base_num_decoder_layers": "4",
            "base_num_query_heads": "8",
            "head_dim": "4",
            "vocab_size": "64",
            "ici_fsdp_parallelism": "1",
            "num_layers_per_pipeline_stage": "-1",
        },
        protocol=Protocol(
            steps=14,
            first_step=3,
            min_steps=6,
            skip_first_steps=4,
            profiler_steps=3,
            deadline_s=240,
        ),
    ),
    launcher=MaxTextLauncher(
        python=sys.executable,
        module=str(Path(__file__).parent / "trainer" / "train_quickly.py"),
        config=str(HERE / "configs" / "quickstart.yml"),
    ),
    profiles=(
        profile("opt-level-1", f"--{LEVEL}=1"),
        profile("float32", overrides={"dtype": "float32"}),
        profile("microbatches-16", overrides={"num_pipeline_microbatches": "16"}, wave="wave5"),
    ),
    no_env=NoEnv(defaults={LEVEL: "3"}, keep=quick_compile.names()),
    derived=(
        Stacks(wave="wave3", slots=1),
        Around(wave="wave4", slots=1, ladders={LEVEL: ("0", "1", "2", "3")}),
    ),
    config_tags={"wide": {"base_mlp_dim": "128"}},
    site=SiteSettings(resources=Resources(time_limit_s=300)),
    design=DesignSettings(screen_baselines=1, finalists=1, blocks=4, block_baselines=1, budget=24),
)

tests = standard_tests(SWEEP, evidence=True)
