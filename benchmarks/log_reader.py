"""How fast is a log read? Prints MB/s of CPU time and peak memory.

    python benchmarks/log_reader.py [MEGABYTES ...]          default 1000; 10 100 1000 show memory

The log: NCCL INFO spam (half), XLA warnings, progress bars, a step of eight ranks for each 0.8 MB,
lines of a megabyte, harmless warnings that read like failures; numbers and addresses differ from
line to line. Two more tables show the worst that can come: nothing but step lines, of eight ranks
and of one, where every line is kept. Each command that a person types runs in a process of its own.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path

from costs import COMMAND, apart, used

PIECE_MB = 20


def line(rng: random.Random, number: int) -> str:
    kind, rank = rng.random(), number % 8
    if kind < 0.5:
        return (
            f"{rank}: gpu{rank:03d}:{rng.randrange(99999)}:{rng.randrange(99999)} [{rank}] NCCL "
            f"INFO Channel {number % 16:02d}/0 : {number % 64}[{rank}] -> {number % 61}[{rank}] "
            f"[send] via NET/IB/{rank}/GDRDMA comm 0x{rng.randrange(1 << 44):012x} nRanks 64"
        )
    if kind < 0.7:
        return (
            f"{rank}: 2026-01-12 07:08:{number % 60:02d}.{rng.randrange(10**6):06d}: W external/"
            f"xla/xla/service/gpu/transforms/fusion.cc:{rng.randrange(999)}] fusion."
            f"{rng.randrange(9999)} reads f32[{rng.randrange(4096)},{rng.randrange(4096)}] twice"
        )
    if kind < 0.9:
        return f"\rLoading: {number % 101}% |{'#' * (number % 40):40}| {rng.randrange(999)}.7 it/s"
    return (
        f"{rank}: I0112 07:08:09.{rng.randrange(10**6):06d} 1400 input.py:12] batch "
        f"{rng.randrange(10**6)} of shard {rng.randrange(512)} is ready"
    )


def step_lines(rng: random.Random, step: int, ranks: int = 8) -> list[str]:
    """Return what eight ranks print within a millisecond; one rank has no label."""
    label = "{}: I0112 07:08:09.1 1400 metric_logger.py:226] " if ranks > 1 else ""
    return [
        f"{label.format(rank)}completed step: {step}, seconds: "
        f"28.{rng.randrange(999):03d}, TFLOP/s/device: 261.1, Tokens/s/device: "
        f"{990 + rng.random() * 9:.3f}, total_weights: 458752, loss: 7.{rng.randrange(999):03d}"
        for rank in range(ranks)
    ]


def harmless(rng: random.Random) -> list[str]:
    return [
        f"{rank}: n1:1:2 [{rank}] NCCL WARN MSCCL++: Feature not enabled. "
        f"ENABLE_MSCCLPP must be defined at compile-time error {rng.randrange(99)}"
        for rank in range(64)
    ]


def piece(first_step: int) -> bytes:
    """Return about PIECE_MB of log with 24 steps."""
    rng = random.Random(first_step)
    lines = harmless(rng)
    per_step = PIECE_MB * 10**6 // 24 // 125
    for step in range(first_step, first_step + 24):
        lines += (line(rng, number) for number in range(per_step))
        lines += step_lines(rng, step)
        if step % 8 == 0:
            lines.append("value " + "0.125, " * 150_000)
    return ("\n".join(lines) + "\n").encode()


def write_log(path: Path, megabytes: int) -> None:
    with path.open("wb") as file:
        for number in range(max(megabytes // PIECE_MB, 1)):
            file.write(piece(24 * number))


def write_steps(path: Path, megabytes: int, ranks: int) -> None:
    rng = random.Random(7)
    line_bytes = 165 if ranks > 1 else 123
    with path.open("w", encoding="utf-8") as file:
        for step in range(megabytes * 10**6 // ranks // line_bytes):
            file.write("\n".join(step_lines(rng, step, ranks)) + "\n")


def show(title: str, path: Path) -> None:
    """Print the figures of both commands on a log."""
    size_mb = path.stat().st_size / 1e6
    print(f"{title}: {size_mb:.0f} MB, CPU time, Python {sys.version.split()[0]}")
    print(f"{'':16} {'CPU s':>7} {'MB/s':>7} {'peak MB':>8}")
    for name in ("steps", "triage"):
        argv = [*COMMAND, name, str(path)]
        used(argv, path.parent)  # compiles the modules
        cost = used(argv, path.parent)
        print(f"{name:16} {cost.cpu_s:7.2f} {size_mb / cost.cpu_s:7.0f} {cost.peak_mb:8.0f}")


def main() -> None:
    for megabytes in map(int, sys.argv[1:] or ["1000"]):
        small = max(megabytes // 20, 1)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "job.log"
            for title, write, arguments in (
                ("realistic", write_log, (path, megabytes)),
                ("step lines only", write_steps, (path, small, 8)),
                ("step lines of one rank", write_steps, (path, small, 1)),
            ):
                apart(write, *arguments)
                show(title, path)


if __name__ == "__main__":
    main()
