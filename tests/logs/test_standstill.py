"""Which rank of a job that stands still the others wait for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_xlatune.logs.standstill import HangLook, SeenProcess, standstill
from pytest_xlatune.model.message import sentence

AT = ("/x/site-packages/jax/_src/array.py:8 _value", "/home/u/train.py:40 main")


def process(rank: int, **said: Any) -> SeenProcess:
    usual = {
        "pid": 100 + rank, "parent": 1, "name": "python", "rank": rank, "state": "S",
        "threads": 30, "call": "futex", "channel": "futex_wait", "on": "",
        "stacks": (AT,),
    }  # fmt: skip
    return SeenProcess(**{**usual, **said})


def look(rank: int, *, node: str = "", **said: Any) -> HangLook:
    return HangLook(
        node=node or f"n{rank}",
        rank=rank,
        at_s=1e9,
        quiet_s=900.0,
        processes=(process(rank, **said),),
    )


ELSEWHERE = (("/home/u/data.py:9 load", "/home/u/train.py:38 main"),)


FOUR: dict[int, dict[str, Any]] = {rank: {} for rank in range(4)}
READS = {"call": "recvfrom", "on": "a socket"}
FILE = {"call": "read", "on": "/data/shard-7"}
LATE = {0: 9, 1: 9, 2: 7, 3: 9}
OTHERS = "; 3 other ranks waiting in train.py:40 main"
# what rank 2 of four does, while the others wait at one place -> what is said of it
ODD: dict[str, tuple[dict[str, Any], str]] = {
    "stopped": ({"state": "T"}, "stopped by a signal or a debugger in train.py:40 main"),
    "under a debugger": ({"state": "t", "stacks": ()}, "stopped by a signal or a debugger"),
    "died": (
        {"state": "Z", "threads": 1, "stacks": ()}, "its program has ended (unknown)"),
    "a file system that is away": (
        {"state": "D", "call": "openat", "channel": "rpc_wait_bit_killable"},
        "in an uninterruptible wait of the kernel (rpc_wait_bit_killable) in train.py:40 main"),
    "a server is silent": (
        {"call": "recvfrom", "on": "a socket", "stacks": ELSEWHERE},
        "waits for a socket in data.py:9 load"),
    "asleep": ({"call": "clock_nanosleep", "stacks": ELSEWHERE}, "sleeps in data.py:9 load"),
    "a loop of Python": (
        {"call": "running", "state": "R", "stacks": ELSEWHERE},
        "computes on the host in data.py:9 load"),
    "a loop without stacks": ({"call": "", "state": "R", "stacks": ()}, "computes on the host"),
    "another collective": ({"stacks": ELSEWHERE}, "waiting in data.py:9 load"),
}  # fmt: skip
# what the ranks do, two on a node, and what else is known -> the ranks behind, and what is said
JOBS: dict[
    str, tuple[dict[int, dict[str, Any]], dict[str, Any], tuple[int, ...], str]
] = {
    **{name: ({**FOUR, 2: odd}, {}, (2,), f"rank 2 on n1 is behind: {said}{OTHERS}")
       for name, (odd, said) in ODD.items()},
    "two are enough where one waits": (
        {0: {"call": "clock_nanosleep"}, 1: {}}, {}, (0,), "sleeps in train.py:40 main"),
    "which of two that wait cannot be told": (
        {0: {"stacks": ELSEWHERE}, 1: {}}, {}, (), "no rank of 2 stands out"),
    "waits in a socket's read": (
        {0: READS, 1: READS, 2: {}, 3: READS}, {}, (2,), "waiting in train.py:40 main"),
    "a file that does not come holds most up": (
        {0: FILE, 1: FILE, 2: {}, 3: FILE}, {}, (0, 1, 3), "waits for /data/shard-7"),
    "a call of the driver is a wait": (
        {0: {}, 1: {"call": "ioctl", "on": "/dev/kfd"}, 2: {}}, {}, (), "no rank stands out"),
    "all alike": (FOUR, {}, (), "all 4 are waiting in train.py:40 main"),
    "two steps behind": (FOUR, {"steps": LATE}, (2,), "is behind after step 7"),
    "one step behind": (FOUR, {"steps": {**LATE, 2: 8}}, (), "no rank stands out"),
    "a rank prints no steps": (FOUR, {"steps": {0: 9, 2: 3}}, (), "no rank stands out"),
    "a rank ended": (
        {0: {}, 1: {}, 3: {}}, {"ended": {2: "signal 9"}, "ranks": range(4)}, (2,),
        "its program has ended (signal 9)"),
    "a node is silent": (
        {0: {}, 1: {}, 3: {}}, {"ranks": range(4)}, (2,), "its node did not answer"),
    "all ranks of a node": (
        {rank: FILE if rank in (2, 3) else {} for rank in range(6)}, {}, (2, 3),
        "ranks 2, 3 on n1 are behind"),
    "one rank of a node": (
        {rank: FILE if rank == 2 else {} for rank in range(6)}, {}, (2,), "rank 2 on n1 is"),
}  # fmt: skip


@pytest.mark.parametrize(("ranks", "more", "behind", "said"), JOBS.values(), ids=JOBS)
def test_who_is_behind(
    ranks: dict[int, dict[str, Any]], more: dict[str, Any], behind: tuple[int, ...], said: str
) -> None:
    looks = [look(rank, node=f"n{rank // 2}", **odd) for rank, odd in ranks.items()]
    found = standstill(looks, **more)
    assert found is not None
    assert found.behind == behind
    assert said in sentence(found.why)
    assert bool(found.node) == (len(behind) > 1 and "ranks 2, 3" in said)
    # a node of one rank is named
    alone = standstill([look(rank, **odd) for rank, odd in ranks.items()], **more)
    assert alone is not None
    nodes = [f"n{rank}" for rank in behind if rank in ranks]
    assert (alone.behind, alone.node) == (behind, nodes[0] if len(nodes) == 1 else "")


def test_of_a_rank_s_processes_the_trainer_counts_and_not_the_shell_above_it() -> None:
    shell = process(0, pid=90, name="bash", threads=1, call="wait4", stacks=())
    loop = process(0, call="running", state="R", stacks=ELSEWHERE)
    first = HangLook(node="n0", rank=0, at_s=1.0, quiet_s=99.0, processes=(shell, loop))
    found = standstill([first, look(1), look(2)])
    assert found is not None
    assert found.behind == (0,)


@given(st.permutations(range(5)), st.sampled_from(["T", "D", "R"]), st.integers(0, 4))
def test_the_order_of_the_answers_changes_nothing(order: list[int], state: str, odd: int) -> None:
    looks = [look(rank, **({"state": state, "call": ""} if rank == odd else {})) for rank in order]
    assert standstill(looks) == standstill(sorted(looks, key=lambda each: each.rank))
