"""What Slurm's commands print is read: states, exit codes, and the payload's word beside it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from pytest_xlatune.executors.slurm.nodes import parse_sinfo
from pytest_xlatune.model.result import Outcome, State
from tests.helpers.played import AWAY, OK, TOLD_TO_END, UNKNOWN, rank, row, scontrol


@pytest.mark.parametrize(
    ("text", "state"),
    [
        pytest.param("COMPLETED", State.COMPLETED, id="completed"),
        pytest.param("CANCELLED by 0", State.CANCELLED, id="with the user who cancelled"),
        pytest.param("CANCELLED by 1001", State.CANCELLED, id="with another user"),
        pytest.param("CANCELLED+", State.CANCELLED, id="a plus for what was cut off"),
        pytest.param("COMPLETI+", State.RUNNING, id="completing, cut short"),
        pytest.param("COMPLET+", State.RUNNING, id="cut so short that it may be completing"),
        pytest.param("OUT_OF_ME+", State.OUT_OF_MEMORY, id="out of memory, cut short"),
        pytest.param("NODE_FAIL,COMPLETING", State.RUNNING, id="a flag that says not over yet"),
        pytest.param("FAILED+REQUEUED", State.PENDING, id="requeued after a failure"),
        pytest.param("PREEMPTED", State.PREEMPTED, id="preempted"),
        pytest.param("BOOT_FAIL", State.NODE_FAIL, id="the node did not boot"),
        pytest.param("DEADLINE", State.TIMEOUT, id="past its deadline"),
        pytest.param("SUSPENDED", State.RUNNING, id="suspended is not over"),
        pytest.param("CONFIGURING", State.PENDING, id="nodes that boot are not running yet"),
        pytest.param("STAGE_OUT", State.RUNNING, id="staging out is not over"),
        pytest.param("SIGNALING", State.RUNNING, id="signaling is not over"),
        pytest.param("WHAT_IS_THIS", State.RUNNING, id="an unknown word is never an end"),
        pytest.param("", State.RUNNING, id="no word is never an end"),
    ],
)
def test_state_words(text: str, state: State) -> None:
    assert to_state(text) is state


@pytest.mark.parametrize(
    ("reply", "trouble"),
    [
        pytest.param(Reply(code=0, err="Connection refused, then well"), Trouble.NONE, id="none"),
        pytest.param(AWAY, Trouble.AWAY, id="the controller is away"),
        pytest.param(Reply(code=1, err="sbatch: error: Batch job submission failed: Socket timed "
                           "out on send/recv operation"), Trouble.AWAY, id="it is too busy"),
        pytest.param(Reply(code=1, err="squeue did not answer in 60 s", is_late=True),
                     Trouble.AWAY, id="the command hung"),
        pytest.param(Reply(code=1, err="sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: "
                           "Batch job submission failed: Job violates accounting/QOS policy (job "
                           "submit limit)"), Trouble.FULL, id="a limit of the site"),
        pytest.param(Reply(code=1, err="sbatch: error: Batch job submission failed: Job violates "
                           "accounting/QOS policy"), Trouble.FULL, id="a policy alone"),
        pytest.param(Reply(code=1, err="sbatch: error: AssocMaxSubmitJobLimit"), Trouble.FULL,
                     id="a limit that is named alone"),
        pytest.param(Reply(code=1, err="sbatch: error: Batch job submission failed: Resource "
                           "temporarily unavailable"), Trouble.FOR_NOW, id="for a moment"),
        pytest.param(Reply(code=1, err="sbatch: error: Batch job submission failed: I/O error "
                           "writing script/environment to file"), Trouble.FOR_NOW, id="I/O error"),
        pytest.param(Reply(code=1, err="sbatch: error: Batch job submission failed: Unspecified "
                           "error"), Trouble.FOR_NOW, id="unspecified"),
        pytest.param(Reply(code=1, err="sbatch: error: Munge encode failed: Failed to access "
                           '"/run/munge/munge.socket.2": No such file or directory'),
                     Trouble.AWAY, id="munge"),
        pytest.param(Reply(code=1, err="sbatch: error: Batch job submission failed: Invalid "
                           "authentication credential"), Trouble.AWAY, id="a credential"),
        pytest.param(Reply(code=1, err="sbatch: error: Batch job submission failed: Protocol "
                           "authentication error"), Trouble.AWAY, id="authentication"),
        pytest.param(Reply(code=1, err="sbatch ended with 0 and named no job", is_unclear=True),
                     Trouble.UNCLEAR, id="it says nothing that tells"),
        pytest.param(UNKNOWN, Trouble.UNKNOWN_JOB, id="a job that is over"),
        pytest.param(Reply(code=1, out="sbatch: error: Batch job submission failed: Invalid\n"
                           "account or account/partition combination specified"),
                     Trouble.FOR_GOOD, id="an account that does not exist"),
        pytest.param(Reply(code=127, err="sacct: command not found"), Trouble.FOR_GOOD,
                     id="a command that is not there"),
    ],
)  # fmt: skip
def test_why_a_command_failed(reply: Reply, trouble: Trouble) -> None:
    assert reply.trouble is trouble
    for_good = (Trouble.NONE, Trouble.UNKNOWN_JOB, Trouble.FOR_GOOD)
    assert trouble.is_passing is (trouble not in for_good)


@pytest.mark.parametrize(
    ("state", "reason", "lacks"),
    [
        ("PENDING", "ReqNodeNotAvail, UnavailableNodes:node002", True),
        ("PENDING", "ReqNodeNotAvail(Unavailable:node002)", True),
        (
            "PENDING",
            "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher",
            True,
        ),
        ("PENDING", "Nodes required for job are DOWN, DRAINED or reserved for jobs", True),
        ("PENDING", "NodeDown", True),
        ("PENDING", "PartitionNodeLimit", True),
        ("PENDING", "BadConstraints", True),
        ("PENDING", "Resources", False),
        ("PENDING", "None", False),
        ("NODE_FAIL", "NodeDown", False),
    ],
)
def test_a_job_that_waits_for_nodes_that_are_away(state: str, reason: str, *, lacks: bool) -> None:
    jobs = (parse_scontrol(scontrol(state, reason=reason)), parse_sacct(row(state, Reason=reason)))
    assert [job["31"].outcome.lacks_nodes for job in jobs] == [lacks, lacks]


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        *((each, "ask for less time") for each in (
            "PartitionTimeLimit", "QOSMaxWallDurationPerJobLimit",
            "AssocMaxWallDurationPerJobLimit", "QOSMaxCpuMinutesPerJobLimit",
            "AssocMaxGRESMinutesPerJob")),
        *((each, "so many nodes") for each in (
            "PartitionNodeLimit", "PartitionConfig", "QOSMaxNodePerJobLimit",
            "AssocMaxNodePerJobLimit", "QOSMinNode")),
        *((each, "the options of Resources") for each in (
            "QOSMaxCpuPerJobLimit", "QOSMaxMemoryPerNode", "QOSMinGRES", "QOSMinCpuNotSatisfied",
            "AssocMaxGRESPerJob", "MaxMemPerLimit", "BadConstraints", "Constraints")),
        *((each, "name another QOS") for each in ("InvalidQOS", "QOSNotAllowed")),
        *((each, "name another account") for each in ("InvalidAccount", "AccountNotAllowed")),
        ("DependencyNeverSatisfied", "option dependency"),
        ("ReservationDeleted", "name another reservation"),
        *((each, "") for each in (
            "Priority", "Resources", "None", "BeginTime", "Dependency", "Reservation", "Licenses",
            "ReqNodeNotAvail, UnavailableNodes:node002", "PartitionDown", "PartitionInactive",
            "QOSMaxJobsPerUserLimit", "QOSMaxCpuPerUserLimit", "MaxGRESPerAccount",
            "QOSMaxSubmitJobPerUserLimit", "QOSGrpNodeLimit", "AssocGrpCpuLimit",
            "AssocMaxJobsLimit", "AssocGrpMemMinutes", "JobHeldUser", "NodeDown")),
    ],
)  # fmt: skip
def test_what_never_starts_is_told_from_what_waits(reason: str, remedy: str) -> None:
    jobs = (
        parse_scontrol(scontrol("PENDING", reason=reason)),
        parse_squeue(row("PENDING", Reason=reason).rpartition(SEPARATOR)[0]),
    )
    for job in jobs:
        said = job["31"].outcome.never_starts
        assert (remedy in said) if remedy else said == ""
    assert not parse_scontrol(scontrol("RUNNING", reason=reason))["31"].outcome.never_starts


@pytest.mark.parametrize(
    ("reason", "held"),
    [
        ("JobHeldUser", True),
        ("JobHeldAdmin", True),
        ("job requeued in held state", True),
        ("job_requeued_in_held_state", True),
        ("JobHoldMaxRequeue", True),
        ("BeginTime", False),
    ],
)
def test_what_a_person_holds_is_told_from_what_waits(reason: str, *, held: bool) -> None:
    job = parse_scontrol(scontrol("PENDING", reason=reason))["31"]
    assert job.outcome.is_held is held


UNFINISHED = sorted(word for word, state in STATES.items() if not state.is_final)


@given(st.sampled_from(sorted(STATES)), st.sampled_from(UNFINISHED), st.sampled_from(",+ "))
def test_an_unfinished_flag_always_wins(word: str, flag: str, between: str) -> None:
    assert not to_state(f"{word}{between}{flag}").is_final
    assert not to_state(f"{flag}{between}{word}").is_final


@given(st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ_ +,0", max_size=20))
def test_only_known_words_are_an_end(text: str) -> None:
    if to_state(text).is_final:
        assert any(word[:4] in text for word in STATES)


@pytest.mark.parametrize(
    "jobs",
    [
        pytest.param(parse_scontrol(scontrol("TIMEOUT", "0:15")), id="scontrol"),
        pytest.param(parse_sacct(row("TIMEOUT", "0:15")), id="sacct"),
        pytest.param(parse_squeue(row("TIMEOUT").rpartition(SEPARATOR)[0]), id="squeue"),
    ],
)
def test_all_commands_say_the_same(jobs: Mapping[str, SlurmJob]) -> None:
    (job,) = jobs.values()
    assert job.job_id == "31"
    assert (job.folder, job.comment) == ("/lustre/my sweeps/pp8/cell/t1/1", "xlatune:a b=c|d")
    assert job.outcome.state is State.TIMEOUT
    assert job.outcome.nodes == ("node002", "node003")
    assert (job.outcome.start_s, job.outcome.end_s) == (1795173251.0, 1795173260.0)
    assert job.outcome.signal in (15, None), "squeue does not print it"


def test_a_time_in_another_form_is_no_time() -> None:
    line = "JobId=2 JobState=CANCELLED StartTime=2026-11-20T11:14:11 WorkDir=/w/t1/1 ExitCode=0:0"
    job = parse_scontrol(line)["2"]
    assert (job.outcome.state, job.folder) == (State.CANCELLED, "/w/t1/1")
    assert job.outcome.start_s is None, "the controller's local time is no time of ours"


@pytest.mark.parametrize(
    ("code", "read"),
    [
        pytest.param("3:0", (3, None), id="an exit code"),
        pytest.param("0:9", (None, 9), id="a signal"),
        pytest.param("137:0", (None, 9), id="srun's way to tell a signal"),
        pytest.param("0:0", (0, None), id="success"),
        pytest.param("", (None, None), id="nothing"),
    ],
)
def test_exit_codes(code: str, read: tuple[int | None, int | None]) -> None:
    outcome = parse_sacct(row("FAILED", code))["31"].outcome
    assert (outcome.exit_code, outcome.signal) == read


@given(st.text(max_size=200))
def test_no_text_of_a_command_is_an_accident(text: str) -> None:
    for parse in (parse_scontrol, parse_squeue, parse_sacct):
        parse(text)
    parse_sinfo(text)


@pytest.mark.parametrize(
    ("slurm", "ranks", "expected"),
    [
        pytest.param(State.COMPLETED, [OK, OK], (State.COMPLETED, 0, None), id="all went well"),
        pytest.param(State.FAILED, [rank(State.FAILED, code=41)], (State.FAILED, 41, None),
                     id="the trainer's own exit code"),
        pytest.param(State.FAILED, [TOLD_TO_END, rank(State.FAILED, signal=9)],
                     (State.FAILED, None, 9), id="the rank that failed first, not its victims"),
        pytest.param(State.FAILED, [rank(State.FAILED, code=1, end_s=25.0),
                                    rank(State.FAILED, signal=9, end_s=24.0)],
                     (State.FAILED, None, 9), id="the earliest of two failures"),
        pytest.param(State.FAILED, [TOLD_TO_END], (State.FAILED, None, 7),
                     id="a rank died without a word: Slurm's codes"),
        pytest.param(State.FAILED, [OK], (State.FAILED, None, 7),
                     id="one rank went well, another died without a word"),
        pytest.param(State.FAILED, [rank(State.TIMEOUT, signal=9)], (State.TIMEOUT, None, 9),
                     id="the trial's own deadline"),
        pytest.param(State.TIMEOUT, [OK], (State.TIMEOUT, 0, None),
                     id="a time limit after the trainer was done"),
        pytest.param(State.NODE_FAIL, [TOLD_TO_END], (State.NODE_FAIL, None, 15), id="a dead node"),
        pytest.param(State.CANCELLED, [TOLD_TO_END], (State.CANCELLED, None, 15), id="cancelled"),
        pytest.param(State.CANCELLED, [], (State.CANCELLED, None, 7), id="no payload ever ran"),
        pytest.param(State.RUNNING, [OK], (State.RUNNING, None, 7),
                     id="the trainer is done, the nodes are not free"),
    ],
)  # fmt: skip
def test_merge(
    slurm: State, ranks: list[Outcome], expected: tuple[State, int | None, int | None]
) -> None:
    merged = merge(Outcome(state=slurm, signal=7, nodes=("n1",)), ranks)
    assert (merged.state, merged.exit_code, merged.signal) == expected
    assert merged.nodes == ("n1",)


def test_merge_keeps_that_the_trainer_could_not_be_started() -> None:
    refused = msgspec.structs.replace(rank(State.FAILED), is_started=False)
    assert not merge(Outcome(state=State.FAILED), [refused]).is_started
    assert merge(Outcome(state=State.FAILED), [OK, rank(State.FAILED, code=1)]).is_started
