"""Pipeline parallelism over eight slices: which XLA flags help a MaxText cell.

    pytest sweeps/test_pp8.py -n 4 --xlatune-model deepseek3-671b --xlatune-nodelist 'node[001-008]'
    xlatune plan sweeps/test_pp8.py ...         # what would run, and with which settings

The number of layers in the pipeline must be a multiple of the stages: MaxText refuses 58 or 126
layers over eight. State how many are in it, here 56 of deepseek3-671b, as
`pipeline_parallel_layers = 56` below `[overrides]` in `xlatune.toml`. The plan shows the
pipeline's bubble, or why it is unknown; a session refuses a number that does not divide.

The cell, the launcher and the settings of the site are those of `maxtext/flagship.py`.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from pytest_xlatune import (
    Around,
    Crossed,
    DesignSettings,
    Singles,
    Stacks,
    ladders_of,
    load_sweep,
    profile,
    profiles_for,
    standard_tests,
)

SHARED = load_sweep(Path(__file__).parent / "maxtext" / "flagship.py")
OVERLAP = "--xla_gpu_experimental_parallel_collective_overlap_limit"
GIB = 1 << 30

PROFILES = (
    profile(
        "overlap-2",
        f"{OVERLAP}=2",
        note="two collectives in flight, as many as there are fabrics; needs the latency hiding "
        "scheduler (on by default on Hopper, Blackwell; on MI300/MI355 before 0.12 set it)",
    ),
    profile("overlap-4", f"{OVERLAP}=4", note="four in flight"),
    profile(
        "pp-opt-level",
        "--xla_gpu_experimental_pipeline_parallelism_opt_level=PIPELINE_PARALLELISM_OPT_LEVEL_ENABLE"
        " --xla_disable_hlo_passes=collective-permute-motion --xla_gpu_enable_command_buffer=''"
        " --xla_gpu_enable_latency_hiding_scheduler=true",
        note="JAX's recipe for pipelines; a circular pipeline's permutes stay as they are",
    ),
    profile(
        "p2p-decomposed",
        "--xla_gpu_enable_pipelined_p2p=true"
        " --xla_gpu_collective_permute_decomposer_threshold=1024",
        note="send/recv instead of permutes; each flag alone is a no-op. On a circular pipeline "
        "the compiler aborts: then the profile is dropped",
    ),
    profile(
        "pipelined-ag",
        "--xla_gpu_enable_pipelined_all_gather=true",
        note="the next iteration's all-gather early; more memory. An alias since 0.11.2",
    ),
    profile(
        "pipelined-ar",
        "--xla_gpu_enable_pipelined_all_reduce=true",
        note="the last iteration's all-reduce late; an alias since 0.11.2",
    ),
    profile(
        "permute-combine-8g",
        f"--xla_gpu_collective_permute_combine_threshold_bytes={8 * GIB}",
        note="adjacent permutes as one",
    ),
    profile(
        "control-decomposer",
        f"--xla_gpu_collective_permute_decomposer_threshold={GIB}",
        note="a no-op by itself since 0.6: an A/A control that shows the noise",
        is_control=True,
    ),
    profile(
        "ag-1g",
        f"--xla_gpu_all_gather_combine_threshold_bytes={GIB}",
        wave="wave4",
        note="the axis inside a stage",
    ),
    profile(
        "channels-8",
        env={"NCCL_NCHANNELS_PER_NET_PEER": "8"},
        wave="wave4",
        note="channels to a remote peer, of send/recv and all-to-all only",
    ),
    profile(
        "microbatches-16",
        overrides={"num_pipeline_microbatches": "16"},
        wave="wave5",
        note="bubble (S-1)/(M V + S-1) with M = 16",
    ),
    profile(
        "microbatches-32",
        overrides={"num_pipeline_microbatches": "32"},
        wave="wave5",
        note="half the bubble of 16, twice the round trips",
    ),
)

SWEEP = replace(
    SHARED,
    name="pp8",
    cell=replace(SHARED.cell, parallelism="PP=8"),
    profiles=(*PROFILES, *SHARED.profiles),
    derived=(
        # with the target's device here, its vendor's settings are among them: device="gfx942"
        Singles(wave="wave2", slots=6, candidates=profiles_for("PP")),
        # MaxText's own keys: attention, numbers, scan, remat; alone and two at once
        Singles(wave="wave5", slots=4, candidates=profiles_for("PP", wave="wave5")),
        Stacks(wave="wave3", slots=4),
        Around(wave="wave4", slots=2, ladders=ladders_of("PP")),
        Crossed(wave="wave5_5", slots=2),  # the best flags with the best shape
    ),
    design=DesignSettings(budget=70),
)

tests = standard_tests(SWEEP, evidence=True)
