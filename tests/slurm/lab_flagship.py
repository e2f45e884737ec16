"""A flagship sweep as the lab's nodes can run it: every wave, one or two profiles in each.

The sweep of `sweeps/` itself, made small: its launcher joins the processes by the same env file,
its waves derive by the same rules. The trainer is the quickstart's: real JAX over gloo, for which
the flags of a GPU do nothing. So the deployed settings cost most of the speed: an optimisation
level left over from a hunt for a miscompilation, and bfloat16, which a CPU emulates. Two profiles
undo them. `trainer/` says how much each costs, so that no other load hides it. FLAGSHIP names the
sweep, FLAGSHIP_NODES on how many nodes its four devices are, 2 or 4. Run by
`test_slurm_flagships.py`.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from pytest_xlatune import (
    Around,
    CellSettings,
    DesignSettings,
    MaxTextLauncher,
    NoEnv,
    Protocol,
    Resources,
    Singles,
    SiteSettings,
    Stacks,
    Sweep,
    load_sweep,
    profile,
    standard_tests,
)
from tests.helpers import quick_compile

NAME = os.environ["FLAGSHIP"]
HERE = Path(__file__).parents[2] / "sweeps" / "quickstart"
LEVEL = "xla_backend_optimization_level"
DEVICES = 4
NODES = int(os.environ.get("FLAGSHIP_NODES", "2"))

LAB = Sweep(
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
assert isinstance(LAB.launcher, MaxTextLauncher)


class Small(NamedTuple):
    """How small a flagship is.

    Attributes:
        axes: the degrees over four devices.
        layers: as few as the axes let.
        length: tokens of a sequence, as many as make the work more than the collectives.
    """

    axes: str
    layers: int
    length: int


SMALL = {
    "pp8": Small("PP=4", layers=4, length=16),
    "hybrid": Small("PP=2,FSDP=2", layers=2, length=16),
    "fsdp8": Small("FSDP=4", layers=1, length=128),
    "tp8": Small("TP=4", layers=1, length=128),
}[NAME]
# its processes find each other by the flagship's env file, and FSDP has a degree of its own
NOT_OF_LAB = {"hardware", *(["ici_fsdp_parallelism"] if "FSDP" in SMALL.axes else [])}
SWEEPS = Path(__file__).parents[2] / "sweeps"
WHOLE = load_sweep(SWEEPS / f"test_{NAME}.py")
assert isinstance(WHOLE.launcher, MaxTextLauncher)
(LADDERS,) = (rule.ladders for rule in LAB.derived if isinstance(rule, Around))

FIRST = {each.wave: each for each in reversed(WHOLE.profiles)}  # of each wave the first
if "remat_policy" in FIRST["wave5"].overrides:  # this trainer has other words for it
    FIRST["wave5"] = replace(FIRST["wave5"], overrides={"remat_policy": "full"})

SWEEP = replace(
    WHOLE,
    cell=replace(
        WHOLE.cell,
        model_tag="quickstart",
        parallelism=SMALL.axes,
        devices=LAB.cell.devices,
        per_device_batch_size=LAB.cell.per_device_batch_size,
        max_target_length=SMALL.length,
        deployed=LAB.cell.deployed,
        overrides={
            **WHOLE.cell.overrides,
            **{key: LAB.cell.overrides[key] for key in LAB.cell.overrides.keys() - NOT_OF_LAB},
            "base_num_decoder_layers": str(SMALL.layers),
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
    launcher=dataclasses.replace(
        WHOLE.launcher,
        python=LAB.launcher.python,
        module=LAB.launcher.module,
        config=LAB.launcher.config,
        cwd="",
    ),
    profiles=(*(each for each in LAB.profiles if each.wave == "wave2"), *FIRST.values()),
    no_env=LAB.no_env,
    derived=tuple(
        replace(rule, slots=1, ladders=LADDERS)
        if isinstance(rule, Around)
        else replace(rule, slots=1)
        for rule in WHOLE.derived
        if not (isinstance(rule, Singles) and rule.wave == "wave5")  # keys of MaxText alone
    ),
    config_tags=LAB.config_tags,
    site=LAB.site,
    design=replace(LAB.design, budget=30),
)

tests = standard_tests(SWEEP, evidence=True)
