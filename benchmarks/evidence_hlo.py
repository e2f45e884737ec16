"""How fast a large HLO dump is read, and what two other ways cost on it.

    python benchmarks/evidence_hlo.py [--mb 300]

The text repeats the computations of a scanned FSDP step (fusions, asynchronous collectives, loops,
metadata and backend configurations as jaxlib 0.12 writes them) until it has the size. Each way runs
in a process of its own; on a shared machine compare the ratios of one run.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from evidence_traces import run

OURS = """
import sys
from pytest_xlatune.evidence.hlo import read_hlo
with open(sys.argv[1], encoding="utf-8", errors="replace") as file:
    found = read_hlo(file, sys.argv[1])
print(len(found.collectives), sum(each.executions for each in found.collectives))
"""
FLOOR = """
import sys
print(sum(1 for _ in open(sys.argv[1], encoding="utf-8")) and 0)
"""
NAIVE = """
import re, sys
text = open(sys.argv[1], encoding="utf-8").read()
found = re.findall(r"^ +(?:ROOT )?%?(\\S+) = (.*?) (all-gather|reduce-scatter|async-start)\\(",
                   text, re.MULTILINE)
print(len(found), 0)
"""
METADATA = (
    'metadata={op_name="jit(train_step)/transpose(jvp(layer))/while/body/dot_general" '
    'scheduling_name="op.%d" stack_frame_id=%d}'
)
GROUPS = "channel_id=1, replica_groups=mesh['axis_0'=8] {'axis_0'}, dimensions={0}"
CONFIG = (
    'backend_config={"operation_queue_id":"0","fusion_backend_config":{"kind":"__triton_gemm",'
    '"block_level_fusion_config":{"num_warps":"4","output_tiles":[{"sizes":["64","32"]}]}},'
    '"force_earliest_schedule":false,"reification_cost":[{"end_to_end_cycles":54321}]}'
)


def layer(i: int) -> str:
    """Return the text of one loop body: 60 fusions around two all-gathers and a reduce-scatter."""
    lines = []
    for kind, name in (("all-gather", "a"), ("all-gather", "b"), ("reduce-scatter", "c")):
        lines += [
            f"%wrapped_{name}.{i} (p.{i}: bf16[256,8192]) -> bf16[2048,8192] {{",
            f"  %p.{i} = bf16[256,8192]{{1,0}} parameter(0)",
            f"  ROOT %{kind}.{name}{i} = bf16[2048,8192]{{1,0}} {kind}(%p.{i}), {GROUPS}, "
            + METADATA % (i, 9),
            "}",
            "",
        ]
    lines.append(f"%body.{i} (arg.{i}: (s32[], bf16[512,2048])) -> (s32[], bf16[512,2048]) {{")
    for name in "abc":
        lines.append(
            f"  %start.{name}{i} = ((bf16[256,8192]{{1,0}}), bf16[2048,8192]{{1,0}}) "
            f"async-start(%x.{i}), calls=%wrapped_{name}.{i}, {METADATA % (i, 9)}, "
            'backend_config={"collective_backend_config":{"is_sync":false,"is_pipelined":false}}'
        )
        lines += [
            f"  %fusion.{name}{i}.{j} = bf16[512,8192]{{1,0:T(8,128)}} fusion(%fusion.{j}, %y.{i}),"
            f" kind=kCustom, calls=%fused.{i}, {METADATA % (j, 10)}, {CONFIG}"
            for j in range(20)
        ]
        lines.append(
            f"  %done.{name}{i} = bf16[2048,8192]{{1,0}} async-done(%start.{name}{i}), "
            f"{METADATA % (i, 9)}"
        )
    return "\n".join([*lines, "}", "", ""])


def write(path: Path, size_bytes: int) -> tuple[int, int]:
    """Write the module; return its layers and its lines."""
    entry, layers, lines = [], 0, 0
    with path.open("w", encoding="utf-8") as file:
        file.write('HloModule jit_step, frontend_attributes={fingerprint_before_lhs="0a"}\n\n')
        while file.tell() < size_bytes:
            text = layer(layers)
            file.write(text)
            lines += text.count("\n")
            entry.append(
                f"  %while.{layers} = (s32[], bf16[512,2048]{{1,0}}) while(%t), condition=%c, "
                f'body=%body.{layers}, backend_config={{"known_trip_count":{{"n":"8"}}}}\n'
            )
            layers += 1
        file.write("ENTRY %main (p: f32[]) -> f32[] {\n" + "".join(entry) + "}\n")
    return layers, lines + layers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=int, default=300, help="size of the text")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "module.jit_step.sm_9.0_gpu_after_optimizations.txt"
        layers, lines = write(path, options.mb * 1_000_000)
        print(f"{path.stat().st_size / 1e6:.0f} MB, {lines} lines, {3 * layers} collectives\n")
        print(f"{'way':40} {'CPU s':>7} {'wall s':>7} {'MB':>6} {'CPU ratio':>9}")
        ours = 0.0
        for way, code, truth in (
            ("xlatune hlo: all facts", OURS, f"{3 * layers} {3 * layers * 8}"),
            ("floor: iterate over the lines", FLOOR, "0"),
            ("one regex over the whole text", NAIVE, f"{6 * layers} 0"),
        ):
            cpu, wall, peak, said = run(code, path)
            ours = ours or cpu
            wrong = "" if said == truth else f"  {said}"
            print(f"{way:40} {cpu:7.2f} {wall:7.2f} {peak:6.0f} {cpu / ours:9.2f}{wrong}")


if __name__ == "__main__":
    main()
