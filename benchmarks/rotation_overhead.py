"""What a rotation costs a step: copies of one program taking turns, against the trainer's own.

    python benchmarks/rotation_overhead.py [--processes 6] [--pairs 60] [--steps 5] [--size 384]

Each process trains one small model on JAX's CPU below `workers/rotate.py`, whose programs are the
baseline and three copies of it. Blocks of a few steps through the hook and through the function
that `jax.jit` returned alternate, each pair in drawn order, so what the machine does meanwhile is
common to both; the median of the pairs' ratios is one process's figure. Between processes it varies
by more than the pairs say, for each compilation places its programs anew, so the interval is that
of the processes. Ratios are of wall time and of the process's seconds on a core, which other work
on the machine disturbs less. The second row has a step of next to nothing: there the hook's own
microseconds show. The bar is 1.005 at the first row, on the core: held where all of the interval is
below it, broken where all of it is above. On a busy machine ask for more processes.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scipy import stats
from tabulate import tabulate

from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.rotation import RotatedProgram, RotationSpec

WORKER = Path(__file__).parents[1] / "pytest_xlatune" / "workers" / "rotate.py"
BAR = 1.005
WARM_UP = 24  # calls: those before the turns, and the first of each program
COPIES = 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=60)
    parser.add_argument("--steps", type=int, default=5, help="of a block")
    parser.add_argument("--size", type=int, default=384, help="of the model: 12 ms a step")
    parser.add_argument("--in-process", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.in_process is not None:
        print(json.dumps(measured(arguments)))
        return 0
    rows, of_bar = [], (1.0, 0.0, math.inf)
    for size in (arguments.size, 8):
        found = [run(arguments, size, number) for number in range(arguments.processes)]
        step_s = statistics.median(each["step_s"] for each in found)
        extra_s = statistics.median(each["extra_s"] for each in found)
        ratios = [mean_of([each[kind] for each in found]) for kind in ("wall", "core")]
        shown = [f"{mean:.4f} [{low:.4f}, {high:.4f}]" for mean, low, high in ratios]
        rows.append((f"{1000 * step_s:.3g} ms", *shown, f"{1e6 * extra_s:+.1f} us"))
        if size == arguments.size:
            of_bar = ratios[1]
    print(tabulate(rows, ("a step", "wall time, with / without", "on a core", "more a step")))
    print(f"{arguments.processes} processes of {arguments.pairs} pairs of {arguments.steps} steps")
    _, low, high = of_bar
    told = "is held" if high <= BAR else "is not held" if low > BAR else "cannot be told"
    print(f"the bar of {BAR} {told}: {low:.4f} to {high:.4f} on a core")
    return 1 if low > BAR else 0


def mean_of(ratios: list[float]) -> tuple[float, float, float]:
    """Return the geometric mean of processes' ratios, and the ends of its 95 % interval."""
    logs = [math.log(each) for each in ratios]
    mean, half = statistics.fmean(logs), math.inf
    if len(logs) > 1:
        error = statistics.stdev(logs) / math.sqrt(len(logs))
        half = float(stats.t.ppf(0.975, len(logs) - 1)) * error
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def run(arguments: argparse.Namespace, size: int, number: int) -> dict[str, float]:
    """Return the figures of one process."""
    words = [f"--pairs={arguments.pairs}", f"--steps={arguments.steps}", f"--size={size}"]
    done = subprocess.run(
        [sys.executable, __file__, *words, f"--in-process={number}"],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured(arguments: argparse.Namespace) -> dict[str, float]:
    """Time blocks of the hook and of the plain function in this process."""
    programs = [RotatedProgram(id=BASELINE_ID)]
    programs += [RotatedProgram(id=f"{BASELINE_ID}~{n}") for n in range(2, COPIES + 1)]
    spec = RotationSpec(
        programs=tuple(programs),
        order=tuple(range(COPIES)),
        turn_steps=arguments.steps,
        step_function="train_step",
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rotation.json")
        path.write_text(json.dumps(spec.to_json()), encoding="utf-8")
        worker().read(path)
        hooked, plain, state, batch = trainer(arguments.size)
        for _ in range(WARM_UP):
            state = hooked(state, batch)
            state = plain(state, batch)
        draw = random.Random(arguments.in_process)
        pairs = []
        for _ in range(arguments.pairs):
            took: dict[str, tuple[float, float]] = {}
            order = [("hooked", hooked), ("plain", plain)]
            draw.shuffle(order)
            for name, step in order:
                began, began_core = time.perf_counter(), time.process_time()
                for _ in range(arguments.steps):
                    state = step(state, batch)
                    state["w"].block_until_ready()
                ended = time.perf_counter() - began, time.process_time() - began_core
                took[name] = (ended[0] / arguments.steps, ended[1] / arguments.steps)
            pairs.append((*took["hooked"], *took["plain"]))
        turns = Path(folder, "rotation.0.jsonl").read_text(encoding="utf-8").count('"turn"')
    if turns < arguments.pairs:
        raise SystemExit(f"only {turns} turns: the hook did not rotate")
    return {
        "wall": statistics.median(each[0] / each[2] for each in pairs),
        "core": statistics.median(each[1] / each[3] for each in pairs),
        "step_s": statistics.median(each[2] for each in pairs),
        "extra_s": statistics.median(each[1] - each[3] for each in pairs),
    }


def worker() -> Any:
    """Return the worker as a module: it imports nothing of ours."""
    spec = importlib.util.spec_from_file_location("rotate", WORKER)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{WORKER} is not there")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trainer(size: int) -> tuple[Any, Any, Any, Any]:
    """Return a step through the hook, the same without it, and its arguments."""
    import jax
    import jax.numpy as jnp

    def train_step(state: Any, batch: Any) -> Any:
        def loss_of(state: Any) -> Any:
            hidden = batch
            for _ in range(4):
                hidden = jnp.tanh(hidden @ state["w"])
            return jnp.mean((hidden - batch) ** 2)

        slope = jax.grad(loss_of)(state)
        return jax.tree_util.tree_map(lambda each, change: each - 0.1 * change, state, slope)

    hooked = jax.jit(train_step, donate_argnums=0)
    state = {"w": jnp.eye(size) * 0.5}
    batch = jnp.sin(jnp.arange(size * size, dtype=jnp.float32)).reshape(size, size)
    return hooked, hooked.__wrapped__, state, batch


if __name__ == "__main__":
    sys.exit(main())
