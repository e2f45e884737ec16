"""Write a capture like that of one 8-GPU node: kernels, launches, Python frames, step markers.

Names and metadata are as XLA writes them: a plane's tables hold the long names of matrix products,
the details of each launch configuration and the path of each operation in the framework, most
of which no event of a line that is read bears; a plane of its own holds the modules' HLO.

The writer is independent of the reader (it encodes, never decodes), and deterministic.
"""

from __future__ import annotations

import random

STEPS = 3
GPUS = 8
FRAMES = 150_000  # of Python

# name, streams' share, mean duration in ns; as XLA names kernels on NVIDIA
COMPUTE = (
    ("nvjet_hsh_128x256_64x4_2x1_v_bz_TNT", 60_000),
    ("loop_multiply_fusion_{}", 9_000),
    ("input_reduce_fusion_{}", 14_000),
    ("input_scatter_fusion_{}", 30_000),
    ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", 90_000),
)
COMM = ("ncclDevKernel_AllGather_RING_LL", "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL")
STATS = (
    "correlation_id",
    "kernel_details",
    "tf_op",
    "name",
    "hlo_op",
    "hlo_module",
    "program_id",
    "step_num",
    "device_id",
    "context_id",
)
CORRELATION, DETAILS, TF_OP, NAME, OP, MODULE, PROGRAM, STEP, DEVICE, CONTEXT = range(1, 11)
OPS = 400  # distinct hlo ops
TENSILE = 60  # names of matrix products that the tables hold, 500 characters each
CONFIGURATIONS = 2000  # texts like "grid:128,1,1 block:256,1,1 ..."
PYTHON_NAMES = 20_000
HLO_BYTES = 2 << 20


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def names(field: int, table: list[str]) -> bytes:
    """Encode a metadata map: ids from 1 in the order of the table."""
    return b"".join(
        message(field, number(1, i) + message(2, number(1, i) + message(2, name.encode())))
        for i, name in enumerate(table, 1)
    )


def reference(stat: int, value: int) -> bytes:
    return message(4, number(1, stat) + number(7, value))


def event(name: int, start_ps: int, duration_ps: int, stats: bytes) -> bytes:
    body = number(1, name) + number(2, start_ps) + number(3, duration_ps) + stats
    return message(4, body)


def line(ident: int, name: str, events: list[bytes]) -> bytes:
    return message(3, number(1, ident) + message(2, name.encode()) + b"".join(events))


def texts() -> list[str]:
    """Return the stat names of a plane, with the strings that events refer to."""
    return [
        *STATS,
        *(f"fusion.{i}" for i in range(OPS)),
        "jit_train_step",
        "grid:1,1,1",
        *(
            f" grid:{i},1,1 block:256,1,1 private_mem:0 group_mem:16384 occ_pct:{i % 100}"
            for i in range(CONFIGURATIONS)
        ),
        *(
            f"jit(train_step)/transpose(jvp(Transformer))/decoder/layers/while/body/mlp/wi_{i}/dot"
            for i in range(OPS)
        ),
    ]


def modules() -> bytes:
    """Encode the plane with the HLO of the modules, as bytes that a drill does not read."""
    module = message(5, number(1, 1) + message(6, bytes(HLO_BYTES)))
    named = message(2, number(1, 1) + message(2, b"jit_train_step") + module)
    return message(1, message(2, b"/host:metadata") + message(4, number(1, 1) + named))


def capture(kernels_per_step: int) -> bytes:
    """Encode `GPUS` devices with `STEPS` steps of so many kernels each."""
    chance = random.Random(5)
    duration_of = {
        name.format(i): ns for name, ns in COMPUTE for i in range(80 if "{}" in name else 1)
    }
    kernel_names = [*duration_of, *COMM]
    first_op, first_module = len(STATS) + 1, len(STATS) + 1 + OPS
    stat_names = texts()
    unused = [f"Cijk_Ailk_Bljk_BBS_BH_{'MT256x224x64_' * 38}{i}" for i in range(TENSILE)]
    fixed = (
        reference(DETAILS, first_module + 1)
        + reference(TF_OP, first_module)
        + reference(NAME, first_module)
    )
    tail = reference(MODULE, first_module) + message(4, number(1, PROGRAM) + number(4, 77))
    op_stat = [reference(OP, first_op + i) + tail for i in range(OPS)]
    out: list[bytes] = []
    launches: list[bytes] = []
    correlation = 0
    for gpu in range(GPUS):
        main: list[bytes] = []
        side: list[bytes] = []
        clock = 1_000_000_000
        side_clock = clock
        for step in range(STEPS):
            for k in range(kernels_per_step):
                correlation += 1
                stats = message(4, number(1, CORRELATION) + number(3, correlation)) + fixed
                stats += op_stat[k % OPS] + message(4, number(1, CONTEXT) + number(3, 1))
                if k % 12 == 11:
                    duration = chance.randrange(100_000, 400_000) * 1000
                    begin = max(side_clock, clock)
                    name = len(kernel_names) - k % 2
                    side.append(event(name, begin, duration, stats))
                    side_clock = begin + duration
                else:
                    name = k % (len(kernel_names) - 2) + 1
                    mean = duration_of[kernel_names[name - 1]]
                    duration = chance.randrange(mean // 2, mean * 2) * 1000
                    main.append(event(name, clock, duration, stats))
                    clock += duration + chance.randrange(2_000) * 1000
                launch = number(1, CORRELATION) + number(3, correlation)
                device = number(1, DEVICE) + number(3, gpu)
                launches.append(
                    event(1, (step * kernels_per_step + k) * 10_000, 5_000_000,
                          message(4, device) + message(4, launch) + fixed + tail)
                )  # fmt: skip
            clock = side_clock = max(clock, side_clock) + 1_000_000_000
        body = number(1, gpu) + message(2, f"/device:GPU:{gpu}".encode())
        body += line(13, "Stream #13(Compute)", main) + line(14, "Stream #14(Compute)", side)
        out.append(message(1, body + names(4, kernel_names + unused) + names(5, stat_names)))
    step_ps = kernels_per_step * 10_000
    host_names = [
        "cuLaunchKernel",
        "train",
        *(f"$model.py:{i} call_of_a_function_{i}" for i in range(PYTHON_NAMES)),
    ]
    python = [
        event(2, step * step_ps, step_ps - 1000, message(4, number(1, STEP) + number(4, 5 + step)))
        for step in range(STEPS)
    ]
    python += [event(3 + i % 2000, i * 1_000, 900, b"") for i in range(FRAMES)]
    host = number(1, 700) + message(2, b"/host:CPU") + line(1, "python", python)
    host += line(2, "pjrt", launches) + names(4, host_names) + names(5, stat_names)
    out.append(message(1, host))
    out.append(modules())
    out.append(message(4, b"node001"))
    return b"".join(out)
