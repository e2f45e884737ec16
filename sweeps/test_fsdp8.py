"""Fully sharded data parallelism over eight slices: which XLA flags help a MaxText cell.

    pytest sweeps/test_fsdp8.py --xlatune-model llama3.1-405b --xlatune-nodelist 'node[001-008]'

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
AG = "--xla_gpu_all_gather_combine_threshold_bytes"
RS = "--xla_gpu_reduce_scatter_combine_threshold_bytes"
GIB = 1 << 30

PROFILES = (
    *(
        profile(
            f"ag-{name}",
            f"{AG}={size_bytes}",
            note="all-gathers combined up to this size; equal to the default below two tensors, "
            "and above one layer in a scanned model",
        )
        for name, size_bytes in (
            ("256m", GIB >> 2),
            ("512m", GIB >> 1),
            ("1g", GIB),
            ("2g", 2 * GIB),
        )
    ),
    profile("ag-rs-1g", f"{AG}={GIB} {RS}={GIB}", note="reduce-scatters too"),
    profile(
        "o1",
        env={"JAX_OPTIMIZATION_LEVEL": "O1"},
        note="JAX's own bundle: latency hiding, pipelined collectives, loops unrolled by two",
    ),
    profile(
        "pipelined-ag",
        "--xla_gpu_enable_pipelined_all_gather=true",
        note="the next iteration's all-gather early; out of memory at scale. An alias since 0.11.2",
    ),
    profile(
        "pipelined-ar",
        "--xla_gpu_enable_pipelined_all_reduce=true",
        note="gradients that become reduce-scatters included; an alias since 0.11.2",
    ),
    profile(
        "overlap-2",
        "--xla_gpu_experimental_parallel_collective_overlap_limit=2",
        note="two collectives in flight: on one ring they contend; needs latency hiding",
    ),
    profile(
        "latency-hiding",
        "--xla_gpu_enable_latency_hiding_scheduler=true",
        note="a no-op on Hopper and Blackwell since 0.7.2 and where the image sets it; the lever "
        "on MI300/MI355 before 0.12",
    ),
    profile(
        "control-pipelined-rs",
        "--xla_gpu_enable_pipelined_reduce_scatter=true",
        note="the default since 0.4.35, a no-op: an A/A control that shows the noise",
        is_control=True,
    ),
    profile(
        "buffer-16m",
        env={"NCCL_BUFFSIZE": "16777216"},
        wave="wave4",
        note="bytes: NCCL reads `16M` as 16",
    ),
    profile(
        "proto-simple",
        env={"NCCL_PROTO": "Simple"},
        wave="wave4",
        note="what large messages take anyway: mostly a no-op",
    ),
)

SWEEP = replace(
    SHARED,
    name="fsdp8",
    cell=replace(SHARED.cell, parallelism="FSDP=8"),
    profiles=(*PROFILES, *SHARED.profiles),
    derived=(
        # with the target's device here, its vendor's settings are among them: device="gfx942"
        Singles(wave="wave2", slots=6, candidates=profiles_for("FSDP")),
        # MaxText's own keys: attention, numbers, scan, remat; alone and two at once
        Singles(wave="wave5", slots=4, candidates=profiles_for("FSDP", wave="wave5")),
        Stacks(wave="wave3", slots=4),
        Around(wave="wave4", slots=2, ladders=ladders_of("FSDP")),
        Crossed(wave="wave5_5", slots=1),  # the best flags with the best remat policy
    ),
    design=DesignSettings(budget=68),
)

tests = standard_tests(SWEEP, evidence=True)
