"""A hang of a real JAX job over gloo, three processes on three nodes: which rank is named."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import pytest

from pytest_xlatune.executors.folder import ask_what_hangs, log_files, read_standstill, write_spec
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers.payloads import Start
from tests.helpers.waiting import until

pytestmark = [pytest.mark.jax, pytest.mark.part("programs")]

RANKS, VICTIM = 3, 1
# each step is a psum; from step 5 on the victim does otherwise
TRAINER = """
import os, signal, sys, time
import jax, numpy as np
rank, port, how = int(os.environ["SLURM_PROCID"]), *sys.argv[1:3]
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", 3, rank)
import jax.numpy as jnp
from jax import shard_map
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
mesh = Mesh(np.array(jax.devices()), ("d",))

def filled(value):
    sharding = NamedSharding(mesh, P("d"))
    return jax.make_array_from_process_local_data(sharding, np.full((1, 4), value, np.float32))

def local(x):  # where the values say so, a computation that takes for ever
    times = jnp.where(x[0, 0] > 5, 2_000_000_000, 1)
    return jax.lax.psum(jax.lax.fori_loop(0, times, lambda _, a: jnp.sin(a), x), "d")

step = jax.jit(shard_map(local, mesh=mesh, in_specs=P("d"), out_specs=P()))

def loops():
    while True:
        pass

def reads():
    os.read(os.pipe()[0], 1)

x = filled(1.0)
for i in range(1000):
    if i == 5 and rank == 1:
        open("ready", "w").close()
        if how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        elif how == "slow":
            x = filled(9.0)
        else:
            {"loop": loops, "read": reads}[how]()
    step(x).block_until_ready()
    print(f"completed step: {i}, seconds: 0.1, Tokens/s/device: 1.0, loss: 7.0", flush=True)
"""


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("stop", r"stopped by a signal"),
        ("die", r"its program has ended \(signal 9\)"),
        ("slow", r"computes on the host in train\.py:\d+ <module>"),
        ("loop", r"computes on the host in train\.py:\d+ loops"),
        ("read", r"waits for pipe:\[\d+\] in train\.py:\d+ reads"),
    ],
    ids=["stopped", "died", "in a slow collective", "in a loop of Python", "in a blocking read"],
)
def test_the_rank_that_the_others_wait_for_is_named(
    tmp_path: Path, start: Start, how: str, said: str
) -> None:
    (tmp_path / "train.py").write_text(TRAINER)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    argv = (sys.executable, "train.py", str(port), how)
    env = {"PATH": "/usr/bin:/bin", "JAX_PLATFORMS": "cpu"}
    write_spec(tmp_path, LaunchSpec(argv=argv, env=env, deadline_s=600, inherit=("SLURM_*",)))
    running = [
        start(
            tmp_path,
            grace_s=0.3,
            late_signal_s=0.1,
            environ={"SLURM_PROCID": str(rank), "SLURMD_NODENAME": f"n{rank}"},
        )
        for rank in range(RANKS)
    ]
    until((tmp_path / "ready").exists)
    if how == "die":
        until((tmp_path / f"outcome.{VICTIM}.json").exists)
    until(lambda: _are_quiet(tmp_path))
    until(lambda: ask_what_hangs(tmp_path))
    for each in running:
        each.terminate()
    found = read_standstill(tmp_path, steps=dict.fromkeys(range(RANKS), 4), is_sure=True)
    assert found is not None
    assert found.behind == (VICTIM,)
    place = "" if how == "die" else f" on n{VICTIM}"
    begins = rf"rank {VICTIM}{place} is behind after step 4: {said}"
    assert re.match(begins, sentence(found.why)), sentence(found.why)


_seen: dict[Path, int] = {}


def _are_quiet(folder: Path) -> bool:
    """Whether no log has grown since the last look, at which every rank had printed step 4."""
    logs = [path.read_text() for path in log_files(folder).values()]
    size, before = sum(map(len, logs)), _seen.get(folder)
    _seen[folder] = size
    return size == before and all("step: 4," in each for each in logs)
