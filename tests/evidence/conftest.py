"""A capture of real steps, recorded once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

RECORD = """
import os, sys
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("fsdp",))

def layer(x, w):
    return jnp.tanh(x @ w), None

def loss(ws, x):
    return jnp.mean(jax.lax.scan(layer, x, ws)[0] ** 2)

@jax.jit
def train_step(ws, x):
    value, grad = jax.value_and_grad(loss)(ws, x)
    return value, ws - 0.1 * grad

ws = jax.device_put(np.ones((4, 16, 16), "f4"), NamedSharding(mesh, P(None, "fsdp", None)))
x = jax.device_put(np.ones((8, 16), "f4"), NamedSharding(mesh, P("fsdp", None)))
_, ws = jax.block_until_ready(train_step(ws, x))
jax.profiler.start_trace(sys.argv[1])
for step in (5, 6, 7):
    with jax.profiler.StepTraceAnnotation("train", step_num=step):
        _, ws = jax.block_until_ready(train_step(ws, x))
jax.profiler.stop_trace()
"""


@pytest.fixture(scope="session")
def cpu_capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Record three annotated steps of a sharded trainer on two CPU devices."""
    folder = record(RECORD, tmp_path_factory.mktemp("capture"), devices=2)
    return next(folder.rglob("*.xplane.pb"))


def record(program: str, folder: Path, *, devices: int) -> Path:
    flags = f"--xla_force_host_platform_device_count={devices} --xla_dump_to={folder / 'dump'}"
    environ = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_ENABLE_COMPILATION_CACHE": "false",  # after a hit nothing is dumped
        "XLA_FLAGS": f"{flags} --xla_dump_hlo_as_text",
    }
    subprocess.run(
        [sys.executable, "-c", program, str(folder)],
        env=environ,
        check=True,
        timeout=300,
        capture_output=True,
    )
    return folder
