"""Tensor parallelism over the eight devices of a node: which XLA flags help a MaxText cell.

    pytest sweeps/test_tp8.py --xlatune-model llama3.1-70b --xlatune-nodelist node001

On several nodes MaxText also shards the data over the nodes, unless the model's config says
otherwise. Every layer waits for the collectives of this axis: they can overlap only with a part of
the matrix product that they feed. The cell, the launcher and the settings of the site are those of
`maxtext/flagship.py`.
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
WINDOW = "--xla_gpu_threshold_for_windowed_einsum_mib"
STREAMS = "--xla_gpu_multi_streamed_windowed_einsum"
GIB = 1 << 30

PROFILES = (
    profile(
        "windowed-einsum",
        f"{WINDOW}=0 {STREAMS}=true",
        note="every matrix product exchanges its operand piece by piece beside its own work: a "
        "loop of permutes instead of the all-gather or reduce-scatter",
    ),
    profile(
        "windowed-einsum-64",
        f"{WINDOW}=64 {STREAMS}=true",
        note="operands above 64 MiB only",
    ),
    profile(
        "windowed-one-stream",
        f"{WINDOW}=0 {STREAMS}=false",
        note="the pieces one after the other; several streams are the default since 0.5.3",
    ),
    profile(
        "ag-1g",
        f"--xla_gpu_all_gather_combine_threshold_bytes={GIB}",
        note="all-gathers of activations and weights combined up to 1 GiB",
    ),
    profile(
        "ar-1g",
        f"--xla_gpu_all_reduce_combine_threshold_bytes={GIB}",
        note="all-reduces combined: the order of the sum changes, and the loss in its last digits",
    ),
    profile(
        "ag-symmetric",
        "--xla_gpu_all_gather_mode=symmetric",
        note="all-gathers through memory that the peers share; since 0.10.2, dropped before",
    ),
    profile(
        "o1",
        env={"JAX_OPTIMIZATION_LEVEL": "O1"},
        note="JAX's own bundle: latency hiding, pipelined collectives, loops unrolled by two",
    ),
    profile(
        "latency-hiding",
        "--xla_gpu_enable_latency_hiding_scheduler=true",
        note="a no-op on Hopper and Blackwell since 0.7.2 and where the image sets it; the lever "
        "on MI300/MI355 before 0.12",
    ),
    profile(
        "control-async-priority",
        "--xla_gpu_enable_highest_priority_async_stream=true",
        note="the default of every version: an A/A control that shows the noise",
        is_control=True,
    ),
    profile(
        "proto-ll128",
        env={"NCCL_PROTO": "LL128"},
        wave="wave4",
        note="low latency at most of the bandwidth; RCCL 2.21 has it on by default on gfx90a alone",
    ),
    profile(
        "max-channels-16",
        env={"NCCL_MAX_NCHANNELS": "16"},
        wave="wave4",
        note="fewer multiprocessors for transfers, more for the matrix product beside them",
    ),
)

SWEEP = replace(
    SHARED,
    name="tp8",
    cell=replace(SHARED.cell, parallelism="TP=8"),
    profiles=(*PROFILES, *SHARED.profiles),
    derived=(
        # with the target's device here, its vendor's settings are among them: device="sm_90"
        Singles(wave="wave2", slots=6, candidates=profiles_for("TP")),
        # MaxText's own keys: attention, numbers, scan, remat; alone and two at once
        Singles(wave="wave5", slots=4, candidates=profiles_for("TP", wave="wave5")),
        Stacks(wave="wave3", slots=4),
        Around(wave="wave4", slots=2, ladders=ladders_of("TP")),
        Crossed(wave="wave5_5", slots=1),  # the best flags with the best remat policy
    ),
    design=DesignSettings(budget=66),
)

tests = standard_tests(SWEEP, evidence=True)
