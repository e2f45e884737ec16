"""How fast a capture is drilled: 600,000 kernels on 8 GPUs, and what other ways cost on it.

    python benchmarks/evidence_traces.py [--kernels 25000] [--files 8] [--runs 5] [--command]
    python benchmarks/evidence_traces.py --command --kernels 142000 --files 1    one of 469 MB
    python benchmarks/evidence_traces.py --command --kernels 12000               ranks of 46 MB

`of cores` is the wall time over the CPU time that each core would have: 1 is as fast as can be.

Every way runs in a process of its own, one after the other; CPU seconds and peak memory are the
operating system's, with the interpreter's start and imports. On a shared machine compare the ratios
of one run. The other ways do less: they add up kernel time by name, no more. Modules are compiled
once before, as an installation compiles them, into a folder of the benchmark's own.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from evidence_capture import GPUS, STEPS, capture

OURS = """
import sys
from pathlib import Path
from pytest_xlatune.evidence.trace.xplane import read_xplane
from pytest_xlatune.evidence.trace.breakdown import drill
files = (Path(each) for each in sys.argv[1:])
found = drill(read_xplane(each.read_bytes(), each.name) for each in files)
print(found.total.sum_ps)
"""
COMMAND = """
import sys
from pytest_xlatune.cli import main
sys.exit(main(["drill", *sys.argv[1:]]))
"""
FLOOR = "import sys; open(sys.argv[1], 'rb').read(); print(0)"
NAIVE = """
import gzip, json, sys
total = 0
with gzip.open(sys.argv[1]) as file:
    for event in json.load(file)["traceEvents"]:
        if event.get("ph") == "X" and event["pid"] < 100:
            total += round(event["dur"] * 1e6)
print(total)
"""
OURS_JSON = """
import sys
from pathlib import Path
from pytest_xlatune.evidence.trace._chrome import read_trace_json
from pytest_xlatune.evidence.trace.breakdown import drill
path = Path(sys.argv[1])
print(drill([read_trace_json(path.read_bytes(), path.name)]).total.sum_ps)
"""
PROFILE_DATA = """
import sys
from jax.profiler import ProfileData
total = 0
for plane in ProfileData.from_file(sys.argv[1]).planes:
    if plane.name.startswith("/device:GPU"):
        for line in plane.lines:
            for event in line.events:
                total += round(event.duration_ns * 1000)
print(total)
"""
PROTOBUF = """
import sys
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

def field(message, name, number, kind, *, many=False, of=None):
    new = message.field.add(name=name, number=number, type=kind, label=3 if many else 1)
    if of:
        new.type_name = ".x." + of

file = descriptor_pb2.FileDescriptorProto(name="x.proto", package="x", syntax="proto3")
event, line, plane, space = (
    file.message_type.add(name=name) for name in ("Event", "Line", "Plane", "Space")
)
for name, number in (("id", 1), ("offset_ps", 2), ("duration_ps", 3)):
    field(event, name, number, 3)
field(line, "name", 2, 9)
field(line, "events", 4, 11, many=True, of="Event")
field(plane, "name", 2, 9)
field(plane, "lines", 3, 11, many=True, of="Line")
field(space, "planes", 1, 11, many=True, of="Plane")
pool = descriptor_pool.DescriptorPool()
pool.Add(file)
found = message_factory.GetMessageClass(pool.FindMessageTypeByName("x.Space"))()
found.ParseFromString(open(sys.argv[1], "rb").read())
print(sum(
    event.duration_ps
    for plane in found.planes if plane.name.startswith("/device:GPU")
    for line in plane.lines for event in line.events
))
"""


def run(code: str, *files: Path) -> tuple[float, float, float, str]:
    """Return CPU seconds, wall seconds, peak MB and what was printed."""
    begin = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-c", code, *map(str, files)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ
        | {
            "JAX_PLATFORMS": "cpu",
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(files[0].parent / "compiled"),
        },
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        out, err = process.stdout.read(), process.stderr.read()
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    said = out.strip() if process.returncode == 0 else err.strip().splitlines()[-1]
    wall = time.perf_counter() - begin
    return used.ru_utime + used.ru_stime, wall, used.ru_maxrss / 1e3, said


def prepare(kernels: int, files: list[Path], twin: Path) -> None:
    """Write the captures, and the kernels (only those) as the profiler's JSON has them."""
    from pytest_xlatune.evidence.trace.xplane import read_xplane

    made = capture(kernels_per_step=kernels)
    for path in files:
        path.write_bytes(made.data)
    twin.with_suffix(".truth").write_text(str(made.sum_ps))
    trace = read_xplane(made.data, "twin")
    events: list[object] = []
    for pid, device in enumerate(trace.devices, 1):
        events.append(
            {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": device.name}}
        )
        for tid, stream in enumerate(device.streams):
            events.append(
                {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name",
                 "args": {"name": stream.name}}
            )  # fmt: skip
            part = stream.events
            for start, size, name, op, launch in zip(
                part.start_ps.tolist(), part.duration_ps.tolist(), part.name.tolist(),
                part.op.tolist(), part.launch.tolist(), strict=True,
            ):  # fmt: skip
                events.append(
                    {"ph": "X", "pid": pid, "tid": tid, "ts": start / 1e6, "dur": size / 1e6,
                     "name": trace.names[name],
                     "args": {"correlation_id": str(launch), "hlo_module": "jit_train_step",
                              "hlo_op": trace.names[op]}}
                )  # fmt: skip
    twin.write_bytes(gzip.compress(json.dumps({"traceEvents": [*events, {}]}).encode(), 1))
    twin.with_name("small.xplane.pb").write_bytes(
        capture(kernels_per_step=40, frames=1_000, tables=0.02).data
    )


def show_command(inputs: list[list[Path]], runs: int) -> None:
    """Run the command itself on captures, a large one, a small one and many, so many times each."""
    said = f"the command, {runs} runs"
    print(f"{said:40} {'least CPU s':>11} {'median':>7} {'wall s':>7} {'of cores':>8} {'MB':>5}")
    for paths in inputs:
        run(COMMAND, *paths)  # compiles the modules
        found = [run(COMMAND, *paths) for _ in range(runs)]
        cpu, wall = (sorted(each[column] for each in found) for column in (0, 1))
        size = sum(path.stat().st_size for path in paths) / 1e6
        said = f"xlatune drill, {len(paths)} of {size:.1f} MB in all"
        peak = max(each[2] for each in found)
        cores = min(len(paths), len(os.sched_getaffinity(0)))
        middle_cpu, middle_wall = cpu[runs // 2], wall[runs // 2]
        print(
            f"{said:40} {cpu[0]:11.2f} {middle_cpu:7.2f} {middle_wall:7.2f} "
            f"{middle_wall * cores / middle_cpu:8.2f} {peak:5.0f}"
        )
    print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", type=int, default=25_000, help="kernels of a GPU and step")
    parser.add_argument("--files", type=int, default=8, help="captures of the last row")
    parser.add_argument("--runs", type=int, default=5, help="runs of the command")
    parser.add_argument("--command", action="store_true", help="measure the command alone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder) / f"node{i:03}.xplane.pb" for i in range(options.files)]
        twin = Path(folder) / "node000.trace.json.gz"
        # in a process of its own: a child's peak memory counts from that of its parent
        context = multiprocessing.get_context("spawn")
        writer = context.Process(target=prepare, args=(options.kernels, files, twin))
        writer.start()
        writer.join()
        sum_ps = int(twin.with_suffix(".truth").read_text())
        print(
            f"{options.kernels * STEPS * GPUS} kernels, xplane {files[0].stat().st_size / 1e6:.0f} "
            f"MB, JSON of the kernels alone {twin.stat().st_size / 1e6:.0f} MB packed\n"
        )
        small = files[0].with_name("small.xplane.pb")
        show_command([files[:1], [small], *([files] if files[1:] else [])], options.runs)
        if options.command:
            return
        print(f"{'way':58} {'CPU s':>7} {'wall s':>7} {'MB':>6} {'CPU ratio':>9}")
        ours = 0.0
        for way, code, inputs, truth in (
            ("xlatune drill: families, unions, overlap, steps, ops", OURS, files[:1], sum_ps),
            ("floor: read the file", FLOOR, files[:1], 0),
            ("json.load, sum of durations", NAIVE, [twin], sum_ps),
            ("xlatune drill of the JSON", OURS_JSON, [twin], sum_ps),
            ("protobuf, sum of durations", PROTOBUF, files[:1], sum_ps),
            ("jax ProfileData, sum of durations", PROFILE_DATA, files[:1], sum_ps),
            (f"xlatune drill of {len(files)} captures", OURS, files, sum_ps * len(files)),
        ):
            cpu, wall, peak, said = run(code, *inputs)
            ours = ours or cpu
            wrong = "" if said == str(truth) else f"  {said}"
            print(f"{way:58} {cpu:7.2f} {wall:7.2f} {peak:6.0f} {cpu / ours:9.2f}{wrong}")


if __name__ == "__main__":
    main()
