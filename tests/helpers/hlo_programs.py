"""HLO programs: the dumps that are kept of four versions of jaxlib, and some written by hand."""

from __future__ import annotations

import functools
import gzip
import shutil
from pathlib import Path

from pytest_xlatune.evidence.hlo import Program, read_hlo
from pytest_xlatune.evidence.hlo.dump import read_debug_options, read_memory_report

DATA = Path(__file__).parents[1] / "data" / "evidence"
VERSIONS = ("0.6.2", "0.8.3", "0.10.2", "0.12.0")
MIB = 1 << 20


@functools.cache
def text(version: str, name: str) -> str:
    packed = (DATA / f"jaxlib-{version}" / f"{name}.txt.gz").read_bytes()
    return gzip.decompress(packed).decode()


def write_dump(folder: Path, name: str) -> Path:
    """Lay a kept program out as XLA's dump does, with the files beside it; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    module, step = DATA / "jaxlib-0.12.0", "module_0007.jit_train_step"
    program = f"{step}.sm_9.0_gpu_after_optimizations"
    (folder / f"{program}.txt").write_text(text("0.12.0", name))
    (folder / "module_0003.jit_small.sm_9.0_gpu_after_optimizations.txt").write_text("HloModule x")
    for kept, target in (
        (module / f"{name}.memory-usage-report.txt", f"{program}-memory-usage-report.txt"),
        (module / f"{name}.debug_options", f"{step}.debug_options"),
    ):
        if kept.exists():
            shutil.copy(kept, folder / target)
    return folder


@functools.cache
def program(version: str, name: str) -> Program:
    source = f"{name}.jit_train_step.sm_9.0_gpu_after_optimizations.txt"
    beside = DATA / f"jaxlib-{version}"

    def small(suffix: str) -> str | None:
        path = beside / f"{name}.{suffix}"
        return path.read_text() if path.exists() else None

    return read_hlo(
        text(version, name).splitlines(keepends=True),
        source,
        memory_bytes=read_memory_report(small("memory-usage-report.txt")),
        options=read_debug_options(small("debug_options")),
    )


def made(*computations: str) -> Program:
    lines = "\n".join(["HloModule m, is_scheduled=true", *computations]) + "\n"
    return read_hlo(lines.splitlines(keepends=True), "m.cpu_after_optimizations.txt")


def body(name: str, *instructions: str) -> str:
    return "\n".join([f"%{name} (p: f32[4]) -> f32[4] {{", *(f"  {i}" for i in instructions), "}"])


def entry(*instructions: str) -> str:
    return "ENTRY " + body("main", *instructions)


GATHER = "%ag = f32[8,4]{1,0} all-gather(%p), replica_groups={{0,1},{2,3}}, dimensions={0}"


def loop(name: str, target: str, trips: int | None) -> str:
    known = f', backend_config={{"known_trip_count":{{"n":"{trips}"}}}}' if trips else ""
    return f"%{name} = (s32[], f32[4]) while(%t), condition=%c, body=%{target}{known}"
