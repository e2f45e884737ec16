"""A flagship sweep as the lab's nodes can run it: every wave, one or two profiles in each.

The sweep of `sweeps/` itself, made small: its launcher joins the processes by the same env file,
its waves derive by the same rules. The trainer is the quickstart's: real JAX over gloo, for which
the flags of a GPU do nothing. So the deployed settings cost most of the speed: an optimisation
level left over from a hunt for a miscompilation, and bfloat16, which a CPU emulates. Two profiles
undo them. `trainer/` says how much each costs, so that no other load hides it. FLAGSHIP names the
sweep, FLAGSHIP_NODES on how many nodes its four devices are, 2 or 4. Run by
`test_slurm_sweeps.py`.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

from msgspec.structs import replace

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
from pytest_xlatune.studies.derived import Rule
from tests.helpers import quick_compile

NAME = os.environ["FLAGSHIP"]
SWEEPS = Path(__file__).parents[2] / "sweeps"
LEVEL = "xla_backend_optimization_level"
DEVICES = 4
NODES = int(os.environ.get("FLAGSHIP_NODES", "2"))
# the degrees over four devices; as few layers as these let; as many tokens of a sequence as make
# the work more than the collectives
AXES, LAYERS, LENGTH = {
    "pp8": ("PP=4", 4, 16),
    "hybrid": ("PP=2,FSDP=2", 2, 16),
    "fsdp8": ("FSDP=4", 1, 128),
    "tp8": ("TP=4", 1, 128),
}[NAME]
OVERRIDES = {
    "log_config": "true",  # what it took is read there
    "dtype": "bfloat16",
    # attention is most of the work: many small heads, small matrix products
    "base_emb_dim": "32",
    "base_mlp_dim": "64",
    "base_num_decoder_layers": str(LAYERS),
    "base_num_query_heads": "8",
    "head_dim": "4",
    "vocab_size": "64",
    "num_layers_per_pipeline_stage": "-1",
    **({} if "FSDP" in AXES else {"ici_fsdp_parallelism": "1"}),
}
WHOLE = load_sweep(SWEEPS / f"test_{NAME}.py")
assert isinstance(WHOLE.launcher, MaxTextLauncher)
FIRST = {each.wave: each for each in reversed(WHOLE.profiles)}  # of each wave the first
if "remat_policy" in FIRST["wave5"].overrides:  # this trainer has other words for it
    FIRST["wave5"] = replace(FIRST["wave5"], overrides={"remat_policy": "full"})


def small(rule: Rule) -> Rule:
    ladders = {"ladders": {LEVEL: ("0", "1", "2", "3")}} if isinstance(rule, Around) else {}
    return replace(rule, slots=1, **ladders)


SWEEP = replace(
    WHOLE,
    cell=replace(
        WHOLE.cell,
        model_tag="quickstart",
        parallelism=AXES,
        devices=DEVICES,
        per_device_batch_size=4,
        max_target_length=LENGTH,
        deployed={
            "JAX_PLATFORMS": "cpu",
            "XLA_FLAGS": f"--{LEVEL}=0 {quick_compile.flags()} "
            f"--xla_force_host_platform_device_count={DEVICES // NODES}",
        },
        overrides={**WHOLE.cell.overrides, **OVERRIDES},
        protocol=Protocol(
            steps=12, first_step=3, min_steps=6, skip_first_steps=4, profiler_steps=3,
            deadline_s=240,
        ),
    ),
    launcher=dataclasses.replace(
        WHOLE.launcher,
        python=sys.executable,
        module=str(Path(__file__).parent / "trainer" / "train_quickly.py"),
        config=str(SWEEPS / "quickstart" / "configs" / "quickstart.yml"),
        cwd="",
    ),
    profiles=(
        profile("opt-level-1", f"--{LEVEL}=1"),
        profile("float32", overrides={"dtype": "float32"}),
        *FIRST.values(),
    ),
    no_env=NoEnv(defaults={LEVEL: "3"}, keep=quick_compile.names()),
    derived=tuple(
        small(rule)
        for rule in WHOLE.derived
        if not (isinstance(rule, Singles) and rule.wave == "wave5")  # keys of MaxText alone
    ),
    config_tags={"wide": {"base_mlp_dim": "128"}},
    site=SiteSettings(resources=Resources(time_limit_s=300)),
    design=DesignSettings(screen_baselines=1, finalists=1, blocks=4, block_baselines=1, budget=30),
)  # fmt: skip

tests = standard_tests(SWEEP, evidence=True)
