"""A trainer that stands still is looked at before it is ended: what each of its processes does."""

from __future__ import annotations

import json
import re
import socket
import sys
from pathlib import Path

import pytest

from pytest_xlatune.executors import look_at_hang
from pytest_xlatune.executors.folder import ask_what_hangs, log_files, read_standstill, write_spec
from pytest_xlatune.logs.standstill import Doing, Standstill
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers.payloads import Start, outcome
from tests.helpers.tables import rows
from tests.helpers.waiting import until

PLAIN = {"PATH": "/usr/bin:/bin"}  # no py-spy may lie there
READS = """
import os
def wait_for_data():
    open("ready", "w").close()
    os.read(os.pipe()[0], 1)
wait_for_data()
"""


def hung(folder: Path, start: Start, *argv: str, **said: str) -> Standstill:
    """Run a trainer, ask what it does once it is ready, and return the answer."""
    write_spec(folder, LaunchSpec(argv=argv, env={**PLAIN, **said}, deadline_s=300))
    running = start(folder, grace_s=0.3, late_signal_s=0.1)
    until((folder / "ready").exists)
    until((folder / "started.json").exists)
    assert not ask_what_hangs(folder)
    until(lambda: ask_what_hangs(folder))
    running.terminate()
    running.wait()
    found = read_standstill(folder, steps={0: 7}, is_sure=True)
    assert found is not None
    return found


def test_a_python_process_below_a_shell_tells_its_stacks_and_what_it_reads(
    tmp_path: Path, start: Start
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    # the site's own customization is run as before
    (theirs / "sitecustomize.py").write_text("import builtins; builtins.OF_THE_SITE = 1")
    (tmp_path / "train.py").write_text(f"OF_THE_SITE\n{READS}")
    argv = ("bash", "-c", f"{sys.executable} train.py; true")
    found = hung(tmp_path, start, *argv, XLATUNE_STACKS="always", PYTHONPATH=str(theirs))
    (stand,) = found.stands
    assert (stand.doing, stand.at, stand.step) == (Doing.READS, "train.py:6 wait_for_data", 7)
    assert stand.on.startswith("pipe:[")
    assert found.behind == (), "one rank is behind none"
    look = json.loads((tmp_path / "hang.json").read_text())
    assert [bool(each["stacks"]) for each in look["processes"]] == [False, True]
    assert outcome(tmp_path).state == "cancelled"
    assert (tmp_path / "log.0.txt").read_text() == "", "what the trainer prints is the trainer's"


CATCHES = "import signal\nsignal.signal(47, lambda *_: open('caught', 'w').close())\n"


@rows(
    "argv, said",
    {
        "an interpreter that reads no environment": ((sys.executable, "-I", "train.py"), {}),
        "a program that may start a container": (
            ("sh", "-c", f"{sys.executable} train.py; true"), {}),
    },
)  # fmt: skip
def test_without_the_hook_the_kernel_still_tells(
    tmp_path: Path, start: Start, argv: tuple[str, ...], said: dict[str, str]
) -> None:
    """A process that catches the signal for itself is sent none."""
    (tmp_path / "train.py").write_text(CATCHES + READS)
    (stand,) = hung(tmp_path, start, *argv, **said).stands
    # of two processes without stacks and threads it is the one that began last
    assert (stand.doing, stand.at) == (Doing.READS, "")
    assert outcome(tmp_path).signal == 15, "no signal of ours has ended it"
    assert not (tmp_path / "caught").exists()


def test_of_one_payload_s_ranks_the_one_that_died_is_behind(tmp_path: Path, start: Start) -> None:
    """Its launcher waits for none of them: the dead one stays a zombie."""
    (tmp_path / "train.py").write_text(
        "import os, time\n"
        "if os.environ['RANK'] == '2': os._exit(3)\n"
        "open('ready' + os.environ['RANK'], 'w').close()\n"
        "time.sleep(300)\n"
    )
    (tmp_path / "launch.py").write_text(
        "import os, subprocess, sys, time\n"
        "ranks = [subprocess.Popen([sys.executable, 'train.py'], env={**os.environ,\n"
        "    'RANK': str(n), 'WORLD_SIZE': '4'}) for n in range(4)]\n"
        "while not all(os.path.exists(f'ready{n}') for n in (0, 1, 3)): time.sleep(0.05)\n"
        "open('ready', 'w').close()\n"
        "time.sleep(300)\n"
    )
    found = hung(tmp_path, start, sys.executable, "launch.py")
    assert found.behind == (2,)
    assert "its program has ended" in sentence(found.why)
    doing = [each.doing for each in sorted(found.stands, key=lambda each: each.rank)]
    assert doing == [Doing.SLEEPS, Doing.SLEEPS, Doing.GONE, Doing.SLEEPS]


def test_a_deadline_says_nothing_of_ranks_whose_logs_went_on(tmp_path: Path, start: Start) -> None:
    (tmp_path / "train.py").write_text("import time\nprint('x', flush=True)\ntime.sleep(300)\n")
    write_spec(tmp_path, LaunchSpec(argv=(sys.executable, "train.py"), deadline_s=2))
    start(tmp_path, grace_s=0.3).wait()
    assert outcome(tmp_path).state == "timeout"
    assert (tmp_path / "hang.json").exists()
    assert read_standstill(tmp_path, steps={}) is None


PY_SPY = """\
Process 7: python train.py
Python v3.12.4 (/usr/bin/python3.12)

Thread 9 (idle): "Thread-1 (beat)"
    wait (threading.py:359)
    beat (train.py:4)
Thread 7 (active): "MainThread"
    load (train.py:9)
    <module> (train.py:12)
"""


def test_py_spy_is_asked_where_it_lies_on_the_trainer_s_path(tmp_path: Path, start: Start) -> None:
    stacks = look_at_hang.parse_py_spy(PY_SPY)
    assert stacks == [  # the main thread first
        ["train.py:9 load", "train.py:12 <module>"],
        ["threading.py:359 wait", "train.py:4 beat"],
    ]
    spy = tmp_path / "bin" / "py-spy"
    spy.parent.mkdir()
    spy.write_text(f"#!/bin/sh\ncat <<'END'\n{PY_SPY}END\n")
    spy.chmod(0o755)
    (tmp_path / "train.py").write_text(READS)
    found = hung(tmp_path, start, sys.executable, "train.py", PATH=f"{spy.parent}:/usr/bin:/bin")
    assert found.stands[0].at == "train.py:9 load"


# -- three ranks of a real JAX job over gloo -------------------------------------------------------

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


@pytest.mark.jax
@pytest.mark.part("programs")
@rows(
    "how, said",
    {
        "stopped": ("stop", r"stopped by a signal"),
        "died": ("die", r"its program has ended \(signal 9\)"),
        "in a blocking read": ("read", r"waits for pipe:\[\d+\] in train\.py:\d+ reads"),
    },
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
    running = []
    for rank in range(RANKS):
        environ = {"SLURM_PROCID": str(rank), "SLURMD_NODENAME": f"n{rank}"}
        running.append(start(tmp_path, grace_s=0.3, late_signal_s=0.1, environ=environ))
    until((tmp_path / "ready").exists)
    if how == "die":
        until((tmp_path / f"outcome.{VICTIM}.json").exists)
    sizes = [0]

    def are_quiet() -> bool:
        """Whether no log has grown since the last look, and every rank has printed step 4."""
        logs = [path.read_text() for path in log_files(tmp_path).values()]
        sizes.append(sum(map(len, logs)))
        return sizes[-1] == sizes[-2] and all("step: 4," in each for each in logs)

    until(are_quiet)
    until(lambda: ask_what_hangs(tmp_path))
    for each in running:
        each.terminate()
    found = read_standstill(tmp_path, steps=dict.fromkeys(range(RANKS), 4), is_sure=True)
    assert found is not None
    assert found.behind == (VICTIM,)
    place = "" if how == "die" else f" on n{VICTIM}"
    begins = rf"rank {VICTIM}{place} is behind after step 4: {said}"
    assert re.match(begins, sentence(found.why)), sentence(found.why)
