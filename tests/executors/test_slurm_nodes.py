"""Nodes: which are fit, which are resumed, and what they see."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_xlatune.executors.slurm import SlurmExecutor
from pytest_xlatune.executors.slurm._commands import SEPARATOR, Reply
from pytest_xlatune.executors.slurm.nodes import node_faults, parse_sinfo
from pytest_xlatune.model.errors import ConfigError, SubmissionError
from pytest_xlatune.model.profile import Profile, profile
from pytest_xlatune.model.result import Verdict, VerdictKind
from pytest_xlatune.plugin import session as session_room
from pytest_xlatune.plugin.session import Session
from pytest_xlatune.prepare import preflight
from pytest_xlatune.prepare.preflight import Preflight
from tests.helpers.played import AWAY, Scripted


def sinfo(*rows: str) -> str:
    return "\n".join(line.replace(" ", SEPARATOR) for line in rows)


NODES = parse_sinfo(
    sinfo(
        "n1 idle lab 96 1000 gpu:8 none",
        "n1 idle big 96 1000 gpu:8 none",
        "n2 allocated lab 96 1000 gpu:8 none",
        "n3 idle* lab 96 1000 gpu:8 gone",
        "n4 idle lab 48 1000 gpu:8 none",
        "n5 idle lab 96 500 gpu:4 none",
        "n6 idle lab 96 1000 gpu:8 none",
        "n7 completing lab 96 1000 gpu:8 none",
    )
)


@pytest.mark.parametrize(
    ("names", "options", "faults"),
    [
        pytest.param(["n1", "n6"], {}, (), id="nothing is wrong"),
        pytest.param(["n1", "n7"], {}, (), id="a job is just ending, maybe of our last session"),
        pytest.param(["n1", "n2"], {}, (), id="busy: Slurm queues"),
        pytest.param(["n6"], {"partition": "big"}, ("n6 is not in partition big",),
                     id="another partition"),
        pytest.param(["n1", "n6", "n4", "n5", "n3", "x7"], {}, (
            "x7 does not exist",
            "n3 is idle*, it does not respond, expected idle: gone",
            "n4 has 48 CPUs",
            "n5 has 500 MB",
            "n5 has gpu:4",
        ), id="everything wrong at once"),
    ],
)  # fmt: skip
def test_node_faults(names: list[str], options: dict[str, Any], faults: tuple[str, ...]) -> None:
    found = [text for _, text in node_faults(names, NODES, **options)]
    assert len(found) == len(faults)
    for text, words in zip(found, faults, strict=True):
        assert text.startswith(words)


EIGHT = sinfo(
    *(f"n{k} {state} lab 96 1000 gpu:8 none" for k, state in enumerate(
        ("allocated", "idle", "idle*", "drained", "idle", "mixed", "idle", "idle-"), start=1)),
    "n9 idle lab 48 1000 gpu:8 none",
    "o1 idle other 96 1000 gpu:8 none",
)  # fmt: skip


def test_nodes_of_a_partition_are_picked_idle_ones_first_and_in_its_order() -> None:
    played = Scripted(sinfo=Reply(code=0, out=EIGHT))
    executor = SlurmExecutor(run=played)
    assert executor.pick_nodes(2, "lab") == ("n2", "n5")
    assert executor.pick_nodes(4, "lab") == ("n1", "n2", "n5", "n7")
    assert executor.pick_nodes(5, "lab") == ("n1", "n2", "n5", "n6", "n7")
    assert executor.pick_nodes(1, "other") == ("o1",)
    assert all("-N" in words for words in played.asked), "sinfo has a row for each node"


@pytest.mark.parametrize(
    ("count", "partition", "answer", "message"),
    [
        pytest.param(6, "lab", EIGHT, "9 nodes, 6 of them usable, and at most 5 "
"of those are equal", id="too few that are equal"),
        pytest.param(1, "lba", EIGHT, "unknown partition 'lba' in this cluster; did you mean 'lab'",
                     id="a misspelt partition"),
        pytest.param(1, "lab", sinfo("n1 down lab 96 1 gpu:8 dead"), "0 of them usable",
                     id="all are down"),
    ],
)  # fmt: skip
def test_nodes_that_cannot_be_picked(count: int, partition: str, answer: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SlurmExecutor(run=Scripted(sinfo=Reply(code=0, out=answer))).pick_nodes(count, partition)


def test_without_an_answer_no_node_is_picked() -> None:
    with pytest.raises(SubmissionError, match="sinfo does not answer"):
        SlurmExecutor(run=Scripted(sinfo=AWAY)).pick_nodes(1, "lab")


def test_sinfo_that_does_not_answer_is_a_fault() -> None:
    slurm = Scripted(sinfo=AWAY)
    (fault,) = SlurmExecutor(run=slurm).node_faults(["n1"])
    assert "sinfo does not answer: " in fault
    assert "-N" in slurm.asked[0], "without it one line is of all nodes that are alike"


@pytest.mark.parametrize(
    ("states", "faults", "slept"),
    [
        pytest.param(["idle*", "idle*", "idle"], (), [2, 3], id="one that was just resumed"),
        pytest.param(["mixed*", "mixed"], (), [2], id="one of ours that missed a ping"),
        pytest.param(["idle*"] * 4, ("n2 is idle*, it does not respond, expected idle",),
                     [2, 3, 5], id="a dead one"),
        pytest.param(["down*"], ("n2 is down*, it does not respond, expected idle",), [],
                     id="one that Slurm has given up"),
    ],
)  # fmt: skip
def test_a_node_that_does_not_respond_is_asked_again(
    states: list[str], faults: tuple[str, ...], slept: list[int]
) -> None:
    nodes, waited = Nodes(n1="idle", n2=""), list[float]()
    said = iter(states)

    def run(argv: Sequence[str]) -> Reply:
        nodes.states["n2"] = next(said)
        return nodes(argv)

    executor = SlurmExecutor(run=run, sleep=waited.append)
    assert executor.node_faults(["n1", "n2"]) == faults
    assert waited == slept


class Nodes:
    """Plays sinfo and scontrol: a drained node comes back on RESUME, a dead one does not."""

    def __init__(self, reason: str = "none", **states: str) -> None:
        self.states = states
        self.reason = reason
        self.updates: list[str] = []

    def __call__(self, argv: Sequence[str]) -> Reply:
        if argv[0] == "sinfo":
            rows = [
                f"{name}\x1f{state}\x1flab\x1f2\x1f4000\x1f(null)\x1f{self.reason}"
                for name, state in self.states.items()
            ]
            return Reply(code=0, out="\n".join(rows))
        name = argv[2].removeprefix("NodeName=")
        self.updates.append(name)
        if self.states[name] == "drained":
            self.states[name] = "idle"
            return Reply(code=0)
        return Reply(code=1, err="slurm_update error: Invalid node state specified")


@pytest.mark.parametrize(
    ("states", "resumed", "updates", "faults"),
    [
        pytest.param({"n1": "idle", "n2": "mixed"}, (), 0, 0, id="fit nodes are left alone"),
        pytest.param({"n1": "idle", "n2": "drained"}, ("n2",), 1, 0, id="a drained one is back"),
        pytest.param({"n1": "idle", "n2": "down*"}, ("n2",), 2, 2, id="a dead one, tried twice"),
    ],
)
def test_nodes_are_resumed_twice_at_most(
    states: dict[str, str], resumed: tuple[str, ...], updates: int, faults: int
) -> None:
    nodes, slept = Nodes(**states), list[float]()
    done = SlurmExecutor(run=nodes, sleep=slept.append).resume(["n1", "n2"])
    assert done.nodes == resumed
    assert len(nodes.updates) == len(slept) == updates
    assert len(done.faults) == faults


@pytest.mark.parametrize(
    ("reason", "stands"),
    [
        ("ADMIN: hardware swap", True),
        ("flaky", True),
        ("NHC: check_hw_ib failed", True),
        ("maintenance, ask Kim before reboot", True),
        ("Not responding", False),
        ("Node unexpectedly rebooted", False),
        ("Kill task failed", False),
        ("Prolog error", False),
        ("ResumeTimeout reached", False),
        ("none", False),
    ],
)
@pytest.mark.parametrize("state", ["drained", "draining", "down"])
def test_what_a_person_took_out_stays_out(state: str, reason: str, stands: bool) -> None:
    nodes = Nodes(n1="idle", n2=state, reason=reason)
    done = SlurmExecutor(run=nodes, sleep=lambda _: None).resume(["n1", "n2"])
    assert bool(nodes.updates) is not stands
    assert any("A person took it out" in each for each in done.faults) is stands
    assert (done.unfit == ("n2",)) or not stands


def test_a_silent_node_is_waited_for_by_slurm_and_neither_resumed_nor_a_fault() -> None:
    nodes = Nodes(n1="idle", n2="idle*")
    done = SlurmExecutor(run=nodes, sleep=lambda _: None).resume(["n1", "n2"])
    assert (nodes.updates, done.faults, done.nodes) == ([], (), ())


@pytest.mark.parametrize(
    ("answer", "unseen", "why_not"),
    [
        pytest.param(Reply(code=0, out="n1\nn2\n"), {}, "", id="both see all"),
        pytest.param(
            Reply(code=0, out="n1\nn2\x1f/a/b\nn2\n"), {"/a/b": ("n2",)}, "", id="one does not"
        ),
        pytest.param(Reply(code=0, out="n1\n"), {}, "no answer from n2", id="one is silent"),
        pytest.param(
            Reply(code=1, err="srun: error: Unable to allocate resources"),
            {}, "srun: error: Unable to allocate resources", id="no nodes to look from",
        ),
    ],
)  # fmt: skip
def test_the_nodes_say_what_they_see(
    answer: Reply, unseen: dict[str, tuple[str, ...]], why_not: str
) -> None:
    asked: list[Sequence[str]] = []

    def run(argv: Sequence[str]) -> Reply:
        asked.append(argv)
        return answer

    options = {"partition": "p", "srun.x": "1"}
    sight = SlurmExecutor(run=run).probe(["/a/b"], nodelist=["n1", "n2"], options=options)
    assert (dict(sight.unseen), sight.why_not) == (unseen, why_not)
    assert {"--partition=p", "--nodelist=n[1-2]", "/a/b"} <= set(asked[0])


MINE = (getpass.getuser(), "xlt-fast-s.0-1a2b3c")
OTHER = ("alice", "train-70b")
BEHIND = "behind other jobs: 40 (train-70b of alice on n1, at most until 2026-11-20 12:00 UTC)"


@pytest.mark.parametrize(
    ("jobs", "note"),
    [
        pytest.param((), "", id="none"),
        pytest.param((MINE,), "", id="our own"),
        pytest.param((OTHER,), BEHIND, id="another's"),
        pytest.param((MINE, *(OTHER,) * 5), " and 2 more", id="many"),
    ],
)
def test_whose_job_runs_on_a_node_is_told(jobs: tuple[tuple[str, str], ...], note: str) -> None:
    lines = (SEPARATOR.join((f"{40 + i}", *job, "n1", "1795176000")) for i, job in enumerate(jobs))
    slurm = Scripted(squeue=Reply(code=0, out="\n".join(lines)))
    said = SlurmExecutor(run=slurm).busy_note(["n1", "n2"])
    assert said.endswith(note)
    assert bool(said) is bool(note)
    assert slurm.asked[0][slurm.asked[0].index("-w") + 1] == "n1,n2", "no job elsewhere"


def test_a_controller_that_is_away_says_nothing() -> None:
    assert SlurmExecutor(run=Scripted(squeue=AWAY)).busy_note(["n1"]) == ""


@pytest.mark.parametrize(
    ("pending", "taken"),
    [
        pytest.param((), {"fast"}, id="all but what was measured"),
        pytest.param(("lost",), {"fast"}, id="all but that where one is to run again"),
        pytest.param(("lost", "new"), set(), id="all where one is new: it may be a twin"),
    ],
)
def test_xla_is_asked_about_what_no_trial_has_shown(
    monkeypatch: pytest.MonkeyPatch, pending: tuple[str, ...], taken: set[str]
) -> None:
    planned = {each: SimpleNamespace(trial=SimpleNamespace(arm=each)) for each in ("fast", "lost")}
    view = SimpleNamespace(
        state=SimpleNamespace(trials=planned, notes=()),
        pending=tuple(SimpleNamespace(arm=each) for each in pending),
    )
    verdicts = (
        Verdict(arm="fast", kind=VerdictKind.SCREENED, n=1),
        Verdict(arm="lost", kind=VerdictKind.INVALID, n=1),
    )
    nothing: Any = SimpleNamespace(workdir=None)
    session, seen = Session(nothing, "me", config=nothing), list[tuple[list[str], set[str]]]()
    profiles = [profile(name, "--xla_a=1") for name in ("fast", "lost", "new")]
    sweep: Any = SimpleNamespace(name="pretend", profiles=profiles, named_profiles=profiles)
    one: Any = SimpleNamespace(
        profiles=set(),
        sweep=SimpleNamespace(
            cell=None, sweep=SimpleNamespace(launcher=SimpleNamespace(interpreter=""))
        ),
    )
    session._selections["pretend"] = one
    campaign = SimpleNamespace(
        view=lambda: view,
        conclude=lambda: SimpleNamespace(verdicts=verdicts),
        folder=None,
    )

    def check_flags(these: list[Profile], *_: object, accepted: set[str], **__: Any) -> Preflight:
        seen.append(([each.id for each in these], accepted))
        return Preflight()

    monkeypatch.setattr(session, "campaign", lambda _: campaign)
    monkeypatch.setattr(preflight, "check_site", lambda _: Preflight())
    monkeypatch.setattr(session_room, "site_of", lambda *_, **__: None)
    monkeypatch.setattr(session_room, "context_of", lambda *_: None)
    monkeypatch.setattr(session_room, "check_flags", check_flags)
    session.preflight(sweep)
    assert seen == [(["fast", "lost", "new"], taken)]
