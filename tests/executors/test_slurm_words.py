"""What Slurm's commands print is read: jobs, states, exit codes, errors and nodes."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_xlatune.executors.slurm import SlurmExecutor
from pytest_xlatune.executors.slurm._commands import (
    SEPARATOR,
    STATES,
    Reply,
    SlurmJob,
    Trouble,
    merge,
    parse_sacct,
    parse_scontrol,
    parse_squeue,
    to_state,
)
from pytest_xlatune.executors.slurm.nodes import node_faults, parse_sinfo
from pytest_xlatune.model.result import Outcome, State
from tests.executors.replies import AWAY, OK, TOLD_TO_END, UNKNOWN, Scripted, rank, row, scontrol
from tests.helpers.tables import rows


def told(state: str, code: str = "0:0", *, reason: str = "None") -> dict[str, SlurmJob]:
    """What each command says of a job in one state; squeue prints no exit code."""
    texts = {
        "scontrol": parse_scontrol(scontrol(state, code, reason=reason)),
        "sacct": parse_sacct(row(state, code, Reason=reason)),
        "squeue": parse_squeue(row(state, Reason=reason).rpartition(SEPARATOR)[0]),
    }
    return {name: jobs["31"] for name, jobs in texts.items()}


@rows(
    "text, state",
    {
        "with the user who cancelled": ("CANCELLED by 1001", "cancelled"),
        "a flag that says not over yet": ("NODE_FAIL,COMPLETING", "running"),
        "requeued after a failure": ("FAILED+REQUEUED", "pending"),
        "the node did not boot": ("BOOT_FAIL", "node-fail"),
        "suspended is not over": ("SUSPENDED", "running"),
        "no word is never an end": ("", "running"),
    },
)
def test_state_words(text: str, state: str) -> None:
    assert to_state(text) == state


FAILED = "sbatch: error: Batch job submission failed: "


@rows(
    "error, trouble",
    {
        "the controller is away": (AWAY.err, Trouble.AWAY),
        "a limit of the site": (
            f"sbatch: error: QOSMaxSubmitJobPerUserLimit\n{FAILED}Job violates accounting/QOS",
            Trouble.FULL),
        "a limit that is named alone": ("sbatch: error: AssocMaxSubmitJobLimit", Trouble.FULL),
        "I/O error": (FAILED + "I/O error writing script/environment to file", Trouble.FOR_NOW),
        "no job and no reason": ("sbatch ended with 0 and named no job", Trouble.FOR_NOW),
        "munge": ('sbatch: error: Munge encode failed: "/run/munge.socket.2"', Trouble.AWAY),
        "a job that is over": (UNKNOWN.err, Trouble.UNKNOWN_JOB),
        "an account that does not exist": (
            FAILED + "Invalid\naccount or account/partition combination", Trouble.FOR_GOOD),
    },
)  # fmt: skip
def test_why_a_command_failed(error: str, trouble: Trouble) -> None:
    assert Reply(code=1, err=error).trouble is trouble
    assert Reply(code=0, err=error).trouble is Trouble.NONE
    assert Reply(code=1, err=error, is_late=True).trouble is Trouble.AWAY


NEVER = (
    "PartitionTimeLimit", "QOSMaxWallDurationPerJobLimit", "AssocMaxGRESMinutesPerJob",
    "PartitionConfig", "QOSMaxNodePerJobLimit", "QOSMinGRES", "MaxMemPerLimit", "BadConstraints",
    "InvalidQOS", "QOSNotAllowed", "InvalidAccount", "AccountNotAllowed",
    "DependencyNeverSatisfied", "ReservationInvalid",
)  # fmt: skip
LATER = (
    "Priority", "Reservation", "ReqNodeNotAvail, UnavailableNodes:node002", "NodeDown",
    "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher",
    "Nodes required for job are DOWN, DRAINED or reserved for jobs", "QOSMaxJobsPerUserLimit",
    "QOSMaxSubmitJobPerUserLimit", "AssocGrpMemMinutes", "JobHeldUser",
    "job requeued in held state", "job_requeued_in_held_state", "JobHoldMaxRequeue",
)  # fmt: skip
LACKS_NODES = ("ReqNodeNotAvail", "Nodes", "NodeDown", "PartitionConfig", "BadConstraints")


@pytest.mark.parametrize("reason", [*NEVER, *LATER])
def test_why_a_job_waits(reason: str) -> None:
    for job in told("PENDING", reason=reason).values():
        assert job.outcome.never_starts == (reason if reason in NEVER else "")
        assert job.outcome.lacks_nodes is reason.startswith(LACKS_NODES)
        assert job.outcome.is_held is reason.startswith(("JobHeld", "job", "JobHold"))
    outcome = told("RUNNING", reason=reason)["scontrol"].outcome
    assert (outcome.never_starts, outcome.lacks_nodes) == ("", False)


UNFINISHED = ["COMPLETING", *(word for word, state in STATES.items() if not state.is_final)]


@given(st.sampled_from([*STATES]), st.sampled_from(UNFINISHED), st.sampled_from(",+ "))
def test_an_unfinished_flag_always_wins(word: str, flag: str, between: str) -> None:
    assert not to_state(f"{word}{between}{flag}").is_final
    assert not to_state(f"{flag}{between}{word}").is_final


@given(st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ_ +,0", max_size=20))
def test_only_known_words_are_an_end(text: str) -> None:
    if to_state(text).is_final:
        assert any(word[:4] in text for word in STATES)


@given(st.text(max_size=200))
def test_no_text_of_a_command_is_an_accident(text: str) -> None:
    for parse in (parse_scontrol, parse_squeue, parse_sacct, parse_sinfo):
        parse(text)


@pytest.mark.parametrize("command", ["scontrol", "sacct", "squeue"])
def test_all_commands_say_the_same(command: str) -> None:
    job = told("TIMEOUT", "0:15")[command]
    assert job.job_id == "31"
    assert job.folder == "/lustre/my sweeps/pp8/cell/t1/1"
    assert (job.outcome.state, job.outcome.nodes) == ("timeout", ("node002", "node003"))
    assert (job.outcome.start_s, job.outcome.end_s) == (1795173251.0, 1795173260.0)
    assert job.outcome.signal == (None if command == "squeue" else 15)
    for code, read in (("3:0", (3, None)), ("137:0", (None, 9)), ("", (None, None))):
        outcome = told("FAILED", code)["sacct"].outcome
        assert (outcome.exit_code, outcome.signal) == read
    # the controller's local time is no time of ours
    line = "JobId=2 JobState=CANCELLED StartTime=2026-11-20T11:14:11 WorkDir=/w/t1/1 ExitCode=0:0"
    assert parse_scontrol(line)["2"].outcome.start_s is None


EXIT_41, EXIT_1 = rank(State.FAILED, code=41), rank(State.FAILED, code=1, end_s=25.0)
KILLED, AT_ITS_LIMIT = rank(State.FAILED, signal=9, end_s=24.0), rank(State.TIMEOUT, signal=9)
TORN = Outcome(state=State.FAILED, reason="cannot be read", is_unreadable=True)


@rows(
    "slurm, ranks, expected",
    {
        "the trainer's own exit code": ("failed", [EXIT_41], ("failed", 41, None)),
        "the rank that failed first, not its victims": (
            "failed", [TOLD_TO_END, KILLED], ("failed", None, 9)),
        "the earliest of two failures": ("failed", [EXIT_1, KILLED], ("failed", None, 9)),
        "a rank died without a word: Slurm's codes": (
            "failed", [TOLD_TO_END], ("failed", None, 7)),
        "the trial's own deadline": ("failed", [AT_ITS_LIMIT], ("timeout", None, 9)),
        "a time limit after the trainer was done": ("timeout", [OK], ("timeout", 0, None)),
        "the trainer is done, the nodes are not free": ("running", [OK], ("running", None, 7)),
        "a rank that says why explains more than an unreadable one": (
            "completed", [TORN, EXIT_41], ("failed", 41, None)),
        "an unreadable one alone": ("completed", [TORN], ("failed", None, None)),
    },
)  # fmt: skip
def test_merge(slurm: str, ranks: list[Outcome], expected: tuple[Any, ...]) -> None:
    merged = merge(Outcome(state=State(slurm), signal=7, nodes=("n1",)), ranks)
    assert (merged.state, merged.exit_code, merged.signal) == expected
    assert merged.nodes == ("n1",)
    assert merged.is_unreadable is (ranks == [TORN] and slurm == "completed")
    refused = msgspec.structs.replace(rank(State.FAILED), is_started=False)
    assert not merge(Outcome(state=State.FAILED), [refused]).is_started


NODES = parse_sinfo(
    """\
n1 idle 96 1000 gpu:8 none
n1 idle 96 1000 gpu:8 none
n2 allocated 96 1000 gpu:8 none
n3 idle* 96 1000 gpu:8 gone
n4 idle 48 1000 gpu:8 none
n5 idle 96 500 gpu:4 none
n6 completing 96 1000 gpu:8 none
""".replace(" ", SEPARATOR)
)


@rows(
    "names, faults",
    {
        "idle, at work, or with a job that is just ending": ("n1 n2 n6", ()),
        "everything wrong at once": ("n1 n6 n4 n5 n3 x7", (
            "n4 has 48 CPUs", "n5 has 96 CPUs, 500 MB of memory, generic resources gpu:4",
            "n3 is idle*, it does not respond, expected idle: gone", "x7 does not exist")),
    },
)  # fmt: skip
def test_node_faults(names: str, faults: tuple[str, ...]) -> None:
    found = [text for _, text in node_faults(names.split(), NODES)]
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
                SEPARATOR.join([name, state, "2", "4000", "(null)", self.reason])
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
def test_silent_nodes(states: list[str], fault: str, slept_s: list[int]) -> None:
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
def test_resumed_nodes(state: str, resumed: tuple[str, ...], updates: int, faults: int) -> None:
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
def test_what_nodes_see(answer: Reply, unseen: dict[str, tuple[str, ...]], why_not: str) -> None:
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
