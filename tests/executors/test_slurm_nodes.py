"""Nodes: which are fit, which are resumed, and what they see."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_xlatune.executors.slurm import SlurmExecutor
from pytest_xlatune.executors.slurm._commands import SEPARATOR, Reply
from pytest_xlatune.executors.slurm.nodes import node_faults, parse_sinfo
from tests.helpers.played import AWAY, Scripted
from tests.helpers.tables import rows


def sinfo(*lines: str) -> str:
    return "\n".join(line.replace(" ", SEPARATOR) for line in lines)


NODES = parse_sinfo(
    sinfo(
        "n1 idle lab 96 1000 gpu:8 none",
        "n1 idle big 96 1000 gpu:8 none",
        "n2 allocated lab 96 1000 gpu:8 none",
        "n3 idle* lab 96 1000 gpu:8 gone",
        "n4 idle lab 48 1000 gpu:8 none",
        "n5 idle lab 96 500 gpu:4 none",
        "n6 completing lab 96 1000 gpu:8 none",
    )
)


@rows(
    "names, options, faults",
    {
        "idle, at work, or with a job that is just ending": ("n1 n2 n6", {}, ()),
        "another partition": ("n6", {"partition": "big"}, ("n6 is not in partition big",)),
        "everything wrong at once": ("n1 n6 n4 n5 n3 x7", {}, (
            "n4 has 48 CPUs", "n5 has 96 CPUs, 500 MB of memory, generic resources gpu:4",
            "n3 is idle*, it does not respond, expected idle: gone", "x7 does not exist")),
    },
)  # fmt: skip
def test_node_faults(names: str, options: dict[str, Any], faults: tuple[str, ...]) -> None:
    found = [text for _, text in node_faults(names.split(), NODES, **options)]
    starts = [text[: len(words)] for text, words in zip(found, faults, strict=True)]
    assert starts == list(faults)


class Nodes:
    """Plays sinfo and scontrol: a drained node comes back on RESUME, a dead one does not."""

    def __init__(self, *states: str, reason: str = "none") -> None:
        self.states = {"n1": "idle", "n2": states[0]}
        self.later = list(states[1:])  # of n2, at each look
        self.reason = reason
        self.updates: list[str] = []
        self.slept_s: list[float] = []
        self.executor = SlurmExecutor(run=self, sleep=self.slept_s.append)

    def __call__(self, argv: Sequence[str]) -> Reply:
        if argv[0] == "sinfo":
            lines = [
                SEPARATOR.join([name, state, "lab", "2", "4000", "(null)", self.reason])
                for name, state in self.states.items()
            ]
            if self.later:
                self.states["n2"] = self.later.pop(0)
            return Reply(code=0, out="\n".join(lines))
        name = argv[2].removeprefix("NodeName=")
        self.updates.append(name)
        if self.states[name] == "drained":
            self.states[name] = "idle"
            return Reply(code=0)
        return Reply(code=1, err="slurm_update error: Invalid node state specified")


@rows(
    "states, fault, slept_s",
    {
        "one that was just resumed": (["idle*", "idle*", "idle"], "", [2, 3]),
        "a dead one": (["idle*"] * 4, "n2 is idle*, it does not respond", [2, 3, 5]),
        "one that Slurm has given up": (["down*"], "n2 is down*, it does not respond", []),
    },
)
def test_a_node_that_does_not_respond_is_asked_again(
    states: list[str], fault: str, slept_s: list[int]
) -> None:
    nodes = Nodes(*states)
    faults = nodes.executor.node_faults(["n1", "n2"])
    assert faults == ((f"{fault}, expected idle",) if fault else ())
    assert nodes.slept_s == slept_s


@rows(
    "state, resumed, updates, faults",
    {
        "a fit node is left alone": ("mixed", (), 0, 0),
        "a drained one is back": ("drained", ("n2",), 1, 0),
        "a dead one, tried twice": ("down*", ("n2",), 2, 2),
        "a silent one is left to Slurm": ("idle*", (), 0, 0),
    },
)
def test_nodes_are_resumed_twice_at_most(
    state: str, resumed: tuple[str, ...], updates: int, faults: int
) -> None:
    nodes = Nodes(state)
    done = nodes.executor.resume(["n1", "n2"])
    assert (done.nodes, len(done.faults)) == (resumed, faults)
    assert len(nodes.updates) == updates


PERSON = ("ADMIN: hardware swap", "NHC: check_hw_ib failed", "ask Kim before reboot")
SLURM = ("Not responding", "Node unexpectedly rebooted", "Prolog error", "none")


@pytest.mark.parametrize("reason", [*PERSON, *SLURM])
@pytest.mark.parametrize("state", ["drained", "down"])
def test_what_a_person_took_out_stays_out(state: str, reason: str) -> None:
    nodes, stands = Nodes(state, reason=reason), reason in PERSON
    done = nodes.executor.resume(["n1", "n2"])
    assert bool(nodes.updates) is not stands
    assert any("A person took it out" in each for each in done.faults) is stands
    assert (done.unfit == ("n2",)) or not stands


NO_NODES = "srun: error: Unable to allocate resources"


@rows(
    "answer, unseen, why_not",
    {
        "both see all": (Reply(code=0, out="n1\nn2\n"), {}, ""),
        "one does not": (Reply(code=0, out="n1\nn2\x1f/a/b\nn2\n"), {"/a/b": ("n2",)}, ""),
        "one is silent": (Reply(code=0, out="n1\n"), {}, "no answer from n2"),
        "no nodes to look from": (Reply(code=1, err=NO_NODES), {}, NO_NODES),
    },
)
def test_the_nodes_say_what_they_see(
    answer: Reply, unseen: dict[str, tuple[str, ...]], why_not: str
) -> None:
    slurm = Scripted(srun=answer)
    options = {"partition": "p", "srun.x": "1"}
    sight = SlurmExecutor(run=slurm).probe(["/a/b"], nodelist=["n1", "n2"], options=options)
    assert (dict(sight.unseen), sight.why_not) == (unseen, why_not)
    assert {"--partition=p", "--nodelist=n[1-2]", "/a/b"} <= {*slurm.asked[0]}


def test_whose_job_runs_on_a_node_is_told() -> None:
    ours, other = (getpass.getuser(), "xlt-fast-s.0-1a2b3c"), ("alice", "train-70b")
    lines = (SEPARATOR.join((f"{40 + at}", *job, "n1")) for at, job in enumerate((ours, other)))
    slurm = Scripted(squeue=Reply(code=0, out="\n".join(lines)))
    said = SlurmExecutor(run=slurm).busy_note(["n1", "n2"])
    assert said.endswith("behind other jobs: 41 (train-70b of alice on n1)")
    assert slurm.asked[0][slurm.asked[0].index("-w") + 1] == "n1,n2", "no job elsewhere"
    assert SlurmExecutor(run=Scripted(squeue=AWAY)).busy_note(["n1"]) == ""
