"""Make the profile by which XLA schedules (PGLE) from a capture.

It is a `ProfiledInstructionsProto` in text form (tsl/profiler/protobuf/profiled_instructions.proto)
with the mean time of each operation. A setting names the file:
`--xla_gpu_pgle_profile_file_or_directory_path`.
"""

from __future__ import annotations

import json
from collections import Counter

from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.trace.breakdown import Drill


def pgle_profile(drill: Drill, program: Program | None = None) -> str:
    """Return the mean time of each operation in the format of XLA's scheduler.

    It is "" if the capture names no operation, as with CUDA graphs: profile once with
    `--xla_gpu_enable_command_buffer=` (empty). With the program of the capture, each name begins
    with the fingerprint that the program had before it was scheduled: `FINGERPRINT::NAME`. By this
    fingerprint XLA ignores the times of other programs (xla/service/gpu/gpu_hlo_schedule.cc,
    `FilterWithFingerprint`); XLA's own converter writes such names too. XLA's checker prints
    nothing if it finds every operation. Therefore the shortest operation is left out if the names
    have a fingerprint, so that a log always says how many operations were found.
    """
    spent_ps, count = Counter[str](), Counter[str]()
    for row in drill.ops:
        spent_ps[row.name] += row.sum_ps
        count[row.name] += row.count
    costs_us = {name: spent / count[name] / 1e6 for name, spent in spent_ps.items()}
    lines, front = [], ""
    if costs_us and program is not None and program.fingerprint is not None:
        lines, front = [f"# of {program.module} for {program.target}"], f"{program.fingerprint}::"
        if len(costs_us) > 1:
            del costs_us[min(costs_us, key=costs_us.__getitem__)]
    lines += [
        f"costs {{ name: {json.dumps(front + name)} cost_us: {cost_us:.6f} }}"
        for name, cost_us in costs_us.items()
    ]
    return "".join(f"{line}\n" for line in lines)
