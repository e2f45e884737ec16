"""A pipeline of four stages, two slices of sharded data in each: PP x FSDP over eight slices.

    pytest sweeps/test_hybrid.py --xlatune-model mixtral-8x22b --xlatune-nodelist 'node[001-008]'

The pipeline's permutes and the all-gathers of the weights share one network, so the settings of
both axes are candidates: those of the dominant axis first, and the evidence run of wave 1.5 decides
which get a slot. `--xlatune-parallelism PP=2,FSDP=4` splits the devices differently.

The layers in the pipeline must be a multiple of the stages, see `test_pp8.py`. The cell, the
launcher and the settings of the site are those of `maxtext/flagship.py`.
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
AXES = "PP=4,FSDP=2"
OVERLAP = "--xla_gpu_experimental_parallel_collective_overlap_limit"
AG = "--xla_gpu_all_gather_combine_threshold_bytes"
GIB = 1 << 30

PROFILES = (
    profile(
        "overlap-2",
        f"{OVERLAP}=2",
        note="a permute and an all-gather in flight together; needs the latency hiding scheduler "
        "(on by default on Hopper, Blackwell; on MI300/MI355 before 0.12 set it). Published sweeps "
        "have it faster on PP and slower on FSDP",
    ),
    profile("overlap-4", f"{OVERLAP}=4", note="four in flight"),
    profile(
        "ag-1g",
        f"{AG}={GIB}",
        note="the all-gathers of a stage's weights combined up to 1 GiB: the largest published "
        "gain on FSDP where an image deploys 8 GiB",
    ),
    profile(
        "ag-1g-overlap-2",
        f"{AG}={GIB} {OVERLAP}=2",
        note="both axes at once: smaller all-gathers that a permute may run beside",
    ),
    profile(
        "pp-opt-level",
        "--xla_gpu_experimental_pipeline_parallelism_opt_level=PIPELINE_PARALLELISM_OPT_LEVEL_ENABLE"
        " --xla_disable_hlo_passes=collective-permute-motion --xla_gpu_enable_command_buffer=''"
        " --xla_gpu_enable_latency_hiding_scheduler=true",
        note="JAX's recipe for pipelines; a circular pipeline's permutes stay as they are",
    ),
    profile(
        "pipelined-ag",
        "--xla_gpu_enable_pipelined_all_gather=true",
        note="the next iteration's all-gather early; more memory. An alias since 0.11.2",
    ),
    profile(
        "o1",
        env={"JAX_OPTIMIZATION_LEVEL": "O1"},
        note="JAX's own bundle: latency hiding, pipelined collectives, loops unrolled by two",
    ),
    profile(
        "control-decomposer",
        f"--xla_gpu_collective_permute_decomposer_threshold={GIB}",
        note="a no-op by itself since 0.6: an A/A control that shows the noise",
        is_control=True,
    ),
    profile(
        "rs-1g",
        f"--xla_gpu_reduce_scatter_combine_threshold_bytes={GIB}",
        wave="wave4",
        note="the second axis: gradients combined; the loss moves in its last digits",
    ),
    profile(
        "channels-8",
        env={"NCCL_NCHANNELS_PER_NET_PEER": "8"},
        wave="wave4",
        note="channels to a remote peer, of send/recv and all-to-all only: here of the pipeline",
    ),
    profile(
        "microbatches-8",
        overrides={"num_pipeline_microbatches": "8"},
        wave="wave5",
        note="twice MaxText's default of one a stage; bubble (S-1)/(M V + S-1) with S = 4, M = 8",
    ),
    profile(
        "microbatches-16",
        overrides={"num_pipeline_microbatches": "16"},
        wave="wave5",
        note="half the bubble of 8, twice the round trips",
    ),
    profile(
        "ag-once",
        overrides={"pipeline_fsdp_ag_once": "true"},
        wave="wave5",
        note="the weights gathered once a step, before the pipeline, not in each of its rounds: "
        "less traffic, and all of a stage's weights in memory",
    ),
)

SWEEP = replace(
    SHARED,
    name="hybrid",
    cell=replace(SHARED.cell, parallelism=AXES),
    profiles=(*PROFILES, *SHARED.profiles),
    derived=(
        # with the target's device here, its vendor's settings are among them: device="gfx942"
        Singles(wave="wave2", slots=6, candidates=profiles_for(AXES)),
        # MaxText's own keys: attention, numbers, scan, remat; alone and two at once
        Singles(wave="wave5", slots=4, candidates=profiles_for(AXES, wave="wave5")),
        Stacks(wave="wave3", slots=4),
        Around(wave="wave4", slots=2, ladders=ladders_of(AXES)),
        Crossed(wave="wave5_5", slots=2),  # the best flags with the best shape
    ),
    design=DesignSettings(budget=70),
)

tests = standard_tests(SWEEP, evidence=True)
