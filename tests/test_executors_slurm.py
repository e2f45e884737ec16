"""The Slurm executor where there is no Slurm: what it reads, what it asks, what it decides.

`tests/slurm/` does the same on a real one. Here a script of ours plays Slurm's commands on PATH,
and the poller is fed with answers.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_xlatune.cells import LaunchSpec, Resources
from pytest_xlatune.errors import ConfigError, SubmissionError
from pytest_xlatune.executors import Executor, SchedulerDown, payload, slurm_text
from pytest_xlatune.executors.poller import Poller
from pytest_xlatune.executors.slurm import LOGIN, SlurmExecutor
from pytest_xlatune.executors.slurm_commands import Answer, run_command
from pytest_xlatune.executors.slurm_nodes import (
    check_nodes,
    node_faults,
    parse_sinfo,
    resume_nodes,
)
from pytest_xlatune.executors.slurm_sight import look
from pytest_xlatune.executors.slurm_text import STATES, merge, to_state
from pytest_xlatune.results import Outcome, State, Submission

FAKE = Path(__file__).parent / "data" / "slurm" / "fake_slurm.py"
COMMANDS = ("sbatch", "srun", "squeue", "sacct", "scontrol", "scancel", "sinfo")
AWAY = Answer(
    code=1, err="slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
)
UNKNOWN = Answer(code=1, err="slurm_load_jobs error: Invalid job id specified")
NO_ACCOUNTING = Answer(code=1, err="Slurm accounting storage is disabled")


# --- state words -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "state"),
    [
        pytest.param("COMPLETED", State.COMPLETED, id="completed"),
        pytest.param("CANCELLED by 0", State.CANCELLED, id="with the user who cancelled"),
        pytest.param("CANCELLED by 1001", State.CANCELLED, id="with another user"),
        pytest.param("CANCELLED+", State.CANCELLED, id="a plus for what was cut off"),
        pytest.param("COMPLETI+", State.RUNNING, id="completing, cut short"),
        pytest.param("COMPLET+", State.RUNNING, id="cut so short that it may be completing"),
        pytest.param("OUT_OF_ME+", State.FAILED, id="out of memory, cut short"),
        pytest.param("NODE_FAIL,COMPLETING", State.RUNNING, id="a flag that says not over yet"),
        pytest.param("FAILED+REQUEUED", State.PENDING, id="requeued after a failure"),
        pytest.param("PREEMPTED", State.CANCELLED, id="preempted"),
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


UNFINISHED = sorted(word for word, state in STATES.items() if not state.is_final)


@given(st.sampled_from(sorted(STATES)), st.sampled_from(UNFINISHED), st.sampled_from(",+ "))
def test_an_unfinished_flag_always_wins(word: str, flag: str, between: str) -> None:
    assert not to_state(f"{word}{between}{flag}").is_final
    assert not to_state(f"{flag}{between}{word}").is_final


@given(st.text("ABCDEFGHIJKLMNOPQRSTUVWXYZ_ +,0", max_size=20))
def test_only_known_words_are_an_end(text: str) -> None:
    if to_state(text).is_final:
        assert any(word[:4] in text for word in STATES)


# --- what the commands print -------------------------------------------------------------------

SCONTROL = (
    "JobId=31 JobName=xl-overlap-2 UserId=lab(1001) GroupId=lab(1001) MCS_label=N/A Priority=42 "
    "QOS=(null) JobState={state} Reason={reason} Dependency=(null) Requeue=0 Restarts=0 "
    "ExitCode={exit} RunTime=00:00:09 StartTime=1795173251 EndTime=1795173260 Deadline=N/A "
    "AllocNode:Sid=login:77 ReqNodeList=node[002-003] ExcNodeList=(null) NodeList=node[002-003] "
    "BatchHost=node002 NumNodes=2 TRES=cpu=4,node=2 OverSubscribe=NO "
    "WorkDir=/lustre/my sweeps/t1/1 Comment=xlatune:a b=c|d  StdErr=/dev/null Power= "
)


def scontrol(state: str, code: str = "0:0", *, reason: str = "None") -> str:
    return SCONTROL.format(state=state, exit=code, reason=reason)


def row(state: str, code: str = "0:0", **changed: str) -> str:
    values = {
        "JobID": "31", "State": state, "NodeList": "node[002-003]", "Start": "1795173251",
        "End": "1795173260", "Reason": "None", "JobName": "xl-overlap-2",
        "WorkDir": "/lustre/my sweeps/t1/1", "Comment": "xlatune:a b=c|d", "ExitCode": code,
    }  # fmt: skip
    return slurm_text.SEPARATOR.join({**values, **changed}[key] for key in slurm_text.SACCT_FIELDS)


@pytest.mark.parametrize(
    "jobs",
    [
        pytest.param(slurm_text.parse_scontrol(scontrol("TIMEOUT", "0:15")), id="scontrol"),
        pytest.param(slurm_text.parse_sacct(row("TIMEOUT", "0:15")), id="sacct"),
        pytest.param(
            slurm_text.parse_squeue(row("TIMEOUT").rpartition(slurm_text.SEPARATOR)[0]), id="squeue"
        ),
    ],
)
def test_all_commands_say_the_same(jobs: Mapping[str, slurm_text.Job]) -> None:
    (job,) = jobs.values()
    assert (job.job_id, job.name) == ("31", "xl-overlap-2")
    assert (job.folder, job.comment) == ("/lustre/my sweeps/t1/1", "xlatune:a b=c|d")
    assert job.outcome.state is State.TIMEOUT
    assert job.outcome.nodes == ("node002", "node003")
    assert (job.outcome.start_s, job.outcome.end_s) == (1795173251.0, 1795173260.0)
    assert job.outcome.signal in (15, None), "squeue does not print it"


def test_the_completion_file_is_read_like_scontrol() -> None:
    line = (
        "JobId=2 UserId=lab(1001) GroupId=lab(1001) Name=xl-a JobState=CANCELLED Partition=lab "
        "TimeLimit=1 StartTime=2026-11-20T11:14:11 EndTime=2026-11-20T11:14:20 NodeList=node[1-2] "
        "NodeCnt=2 ProcCnt=4 WorkDir=/w/t1/1 ReservationName= DerivedExitCode=0:0 ExitCode=0:0 "
    )
    job = slurm_text.parse_scontrol(line)["2"]
    assert (job.outcome.state, job.name, job.folder) == (State.CANCELLED, "xl-a", "/w/t1/1")
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
    outcome = slurm_text.parse_sacct(row("FAILED", code))["31"].outcome
    assert (outcome.exit_code, outcome.signal) == read


@given(st.text(max_size=200))
def test_no_text_of_a_command_is_an_accident(text: str) -> None:
    for parse in (slurm_text.parse_scontrol, slurm_text.parse_squeue, slurm_text.parse_sacct):
        parse(text)
    parse_sinfo(text)


# --- Slurm's word and the payload's ------------------------------------------------------------


def rank(
    state: State, *, code: int | None = None, signal: int | None = None, end_s: float = 20.0
) -> Outcome:
    return Outcome(state=state, exit_code=code, signal=signal, start_s=10.0, end_s=end_s)


OK = rank(State.COMPLETED, code=0)
TOLD_TO_END = rank(State.CANCELLED, signal=15, end_s=30.0)


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


# --- the poller --------------------------------------------------------------------------------


class Scripted:
    """Plays Slurm's commands; counts and keeps what was asked."""

    def __init__(self, **answers: Answer | Sequence[Answer]) -> None:
        self.answers = {
            name: [given] if isinstance(given, Answer) else list(given)
            for name, given in answers.items()
        }
        self.asked: list[list[str]] = []

    def __call__(self, argv: Sequence[str]) -> Answer:
        self.asked.append(list(argv))
        left = self.answers.get(argv[0], [Answer(code=127, err=f"{argv[0]}: command not found")])
        return left.pop(0) if len(left) > 1 else left[0]

    def count(self, name: str) -> int:
        return sum(argv[0] == name for argv in self.asked)


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "t1" / "1"
    folder.mkdir(parents=True)
    return folder


def rounds(poller: Poller, clock: Clock, folder: Path, count: int) -> list[Outcome]:
    seen = []
    for _ in range(count):
        seen.append(poller.poll({"31": folder})["31"])
        clock.now += 10
    return seen


def test_one_request_of_the_controller_serves_all_jobs_and_all_askers(
    clock: Clock, tmp_path: Path
) -> None:
    slurm = Scripted(scontrol=Answer(code=0, out=scontrol("RUNNING")), sacct=NO_ACCOUNTING)
    poller = Poller(run=slurm, clock=clock, round_s=3)
    folders = {str(31 + i): tmp_path / f"t{i + 1}" / "1" for i in range(40)}
    for _ in range(50):
        assert poller.poll(folders)["31"].state is State.RUNNING
        clock.now += 0.1
    assert slurm.count("scontrol") == 2, "5 s of asking, a round every 3 s"


def test_a_job_that_no_round_has_asked_for_is_pending(clock: Clock, folder: Path) -> None:
    slurm = Scripted(scontrol=Answer(code=0, out=scontrol("RUNNING")))
    poller = Poller(run=slurm, clock=clock)
    assert poller.poll({"31": folder})["31"].state is State.RUNNING
    assert poller.poll({"31": folder, "32": folder.parent / "2"})["32"].state is State.PENDING


def test_nothing_is_asked_about_jobs_that_are_over(clock: Clock, folder: Path) -> None:
    slurm = Scripted(scontrol=Answer(code=0, out=scontrol("COMPLETED")))
    seen = rounds(Poller(run=slurm, clock=clock), clock, folder, 5)
    assert {each.state for each in seen} == {State.COMPLETED}
    assert len(slurm.asked) == 1


def test_completing_is_not_over_whatever_accounting_says(clock: Clock, folder: Path) -> None:
    slurm = Scripted(
        scontrol=[Answer(code=0, out=scontrol(word)) for word in ("COMPLETING", "NODE_FAIL")],
        sacct=Answer(code=0, out=row("COMPLETED")),
    )
    seen = rounds(Poller(run=slurm, clock=clock), clock, folder, 2)
    assert [each.state for each in seen] == [State.RUNNING, State.NODE_FAIL]
    assert not slurm.count("sacct")


def test_accounting_knows_what_the_controller_has_forgotten(clock: Clock, folder: Path) -> None:
    slurm = Scripted(scontrol=UNKNOWN, sacct=Answer(code=0, out=row("CANCELLED by 0")))
    (outcome,) = rounds(Poller(run=slurm, clock=clock), clock, folder, 1)
    assert outcome.state is State.CANCELLED
    assert outcome.reason == "CANCELLED by 0"


def test_squeue_serves_where_scontrol_is_forbidden(clock: Clock, folder: Path) -> None:
    queue = row("TIMEOUT").rpartition(slurm_text.SEPARATOR)[0]
    slurm = Scripted(
        scontrol=Answer(code=1, err="scontrol: Permission denied"), squeue=Answer(code=0, out=queue)
    )
    (outcome,) = rounds(Poller(run=slurm, clock=clock), clock, folder, 1)
    assert outcome.state is State.TIMEOUT


def test_three_empty_rounds_in_a_row_are_lost(clock: Clock, folder: Path) -> None:
    slurm = Scripted(
        scontrol=[Answer(code=0, out=scontrol("RUNNING")), UNKNOWN, UNKNOWN,
                  Answer(code=0, out=scontrol("RUNNING")), UNKNOWN],
        sacct=NO_ACCOUNTING,
    )  # fmt: skip
    seen = rounds(Poller(run=slurm, clock=clock), clock, folder, 7)
    assert [each.state for each in seen] == [State.RUNNING] * 6 + [State.LOST]
    assert "round 2 of 3" in seen[2].reason
    assert "round 1 of 3" in seen[4].reason, "an answer in between starts the count again"


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        pytest.param({"outcome.json": OK, "outcome.1.json": OK}, State.COMPLETED, id="all wrote"),
        pytest.param({"outcome.json": OK}, State.FAILED, id="a rank ended without a word"),
        pytest.param({"outcome.json": TOLD_TO_END, "outcome.1.json": TOLD_TO_END},
                     State.CANCELLED, id="all were told to end"),
    ],
)  # fmt: skip
def test_the_payloads_word_stands_when_slurm_has_forgotten(
    clock: Clock, folder: Path, outcomes: Mapping[str, Outcome], state: State
) -> None:
    for name in ("claimed.json", "claimed.1.json"):
        (folder / name).write_text("{}")
    for name, outcome in outcomes.items():
        (folder / name).write_text(json.dumps(outcome.to_json()))
    slurm = Scripted(scontrol=UNKNOWN, sacct=NO_ACCOUNTING)
    (outcome,) = rounds(Poller(run=slurm, clock=clock), clock, folder, 1)
    assert outcome.state is state
    assert "Slurm has forgotten the job" in outcome.reason


def test_a_stranger_with_the_same_number_is_not_our_job(clock: Clock, tmp_path: Path) -> None:
    mine = tmp_path / "mine" / "1"
    slurm = Scripted(scontrol=Answer(code=0, out=scontrol("COMPLETED")), sacct=NO_ACCOUNTING)
    seen = rounds(Poller(run=slurm, clock=clock), clock, mine, 3)
    assert [each.state for each in seen] == [State.PENDING, State.PENDING, State.LOST]


def test_a_number_that_is_given_away_again_is_another_job(clock: Clock, tmp_path: Path) -> None:
    first, second = tmp_path / "t1" / "1", tmp_path / "t2" / "1"
    slurm = Scripted(
        scontrol=[Answer(code=0, out=scontrol("FAILED", "3:0").replace("my sweeps/t1", "w/t1")),
                  Answer(code=0, out=scontrol("RUNNING").replace("t1/1", "t2/1"))]
    )  # fmt: skip
    poller = Poller(run=slurm, clock=clock, round_s=0)
    assert poller.poll({"31": first})["31"].state is State.FAILED
    assert poller.poll({"31": second})["31"].state is State.RUNNING


@pytest.mark.parametrize(
    "error",
    [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "slurm_load_jobs error: Socket timed out on send/recv operation",
        "slurm_load_jobs error: Zero Bytes were transmitted or received",
        "scontrol: Socket timed out (60 s)",
    ],
    ids=["no connection", "no answer", "cut off", "the command hangs"],
)
def test_a_controller_that_is_away_is_waited_out_and_nothing_is_lost(
    clock: Clock, folder: Path, error: str
) -> None:
    slurm = Scripted(
        scontrol=[*[Answer(code=1, err=error)] * 60, Answer(code=0, out=scontrol("RUNNING"))]
    )
    poller = Poller(run=slurm, clock=clock, patience_s=900)
    for _ in range(60):
        with pytest.raises(SchedulerDown, match="has not answered for"):
            poller.poll({"31": folder})
        clock.now += 14
    assert poller.poll({"31": folder})["31"].state is State.RUNNING


def test_a_controller_that_stays_away_ends_the_wait(clock: Clock, folder: Path) -> None:
    poller = Poller(run=Scripted(scontrol=AWAY), clock=clock, patience_s=900)
    with pytest.raises(SchedulerDown):
        poller.poll({"31": folder})
    clock.now += 901
    with pytest.raises(SubmissionError, match="gave up after 900 s") as caught:
        poller.poll({"31": folder})
    assert not isinstance(caught.value, SchedulerDown)


def test_slurmdbd_that_is_absent_is_not_asked_every_round(clock: Clock, folder: Path) -> None:
    slurm = Scripted(scontrol=Answer(code=0, out=""), sacct=NO_ACCOUNTING)
    rounds(Poller(run=slurm, clock=clock), clock, folder, 2)
    assert slurm.count("sacct") == 1


# --- nodes -------------------------------------------------------------------------------------


def sinfo(*rows: str) -> str:
    return "\n".join(line.replace(" ", slurm_text.SEPARATOR) for line in rows)


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
        pytest.param(["n1", "n2"], {}, ("n2 is allocated, expected idle",), id="busy"),
        pytest.param(["n1", "n2"], {"idle": False}, (), id="busy, with jobs of our own"),
        pytest.param(["n6"], {"partition": "big"}, ("n6 is not in partition big (it is in lab)",),
                     id="another partition"),
        pytest.param(["n1", "n6", "n4", "n5", "n3", "x7"], {}, (
            "x7 does not exist in this cluster",
            "n3 is idle*, it does not respond, expected idle: gone",
            "n4 has 48 CPUs, most of the nodes have 96",
            "n5 has 500 MB of memory, most of the nodes have 1000",
            "n5 has gpu:4 generic resources, most of the nodes have gpu:8",
        ), id="everything wrong at once"),
    ],
)  # fmt: skip
def test_node_faults(names: list[str], options: dict[str, Any], faults: tuple[str, ...]) -> None:
    assert node_faults(names, NODES, **options) == faults


def test_sinfo_that_does_not_answer_is_a_fault() -> None:
    (fault,) = check_nodes(["n1"], run=Scripted(sinfo=AWAY))
    assert "sinfo does not answer: " in fault


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

    def run(argv: Sequence[str]) -> Answer:
        nodes.states["n2"] = next(said)
        return nodes(argv)

    assert check_nodes(["n1", "n2"], idle=False, run=run, sleep=waited.append) == faults
    assert waited == slept


# --- the script --------------------------------------------------------------------------------

ARGUMENTS: dict[str, Any] = {
    "job_name": "xl-overlap-2",
    "comment": "xlatune:cell:t1:1",
    "nodelist": ("node001", "node002"),
    "resources": Resources(time_limit_s=61, options={"partition": "lab", "contiguous": ""}),
}


def with_options(**options: str) -> dict[str, Any]:
    named = {key.replace("__", "."): value for key, value in options.items()}
    return {**ARGUMENTS, "resources": Resources(options=named)}


def test_the_script_says_all_that_keeps_trials_comparable(folder: Path) -> None:
    script = SlurmExecutor(python="/opt/venv/bin/python").script(folder=folder, **ARGUMENTS)
    lines = script.splitlines()
    for option in ("nodelist='node[001-002]'", "exclusive", "no-requeue", "signal=CONT@1",
                   "export=ALL", "nodes=2", "ntasks-per-node=1", "job-name=xl-overlap-2", "time=2",
                   "comment=xlatune:cell:t1:1", f"chdir={folder}", "partition=lab",
                   "contiguous"):  # fmt: skip
        assert f"#SBATCH --{option}" in lines
    assert lines.index(f". {LOGIN}") < lines.index("unset SLURM_JWT")
    srun = next(line for line in lines if line.startswith("srun "))
    assert " --export=ALL --kill-on-bad-exit=1 " in srun
    assert srun.endswith(f" /opt/venv/bin/python -I -S {payload.__file__} {folder}")
    assert "USR2" not in script
    assert not list(folder.iterdir()), "a dry run writes nothing"


def test_options_for_srun_reach_srun(folder: Path) -> None:
    given = with_options(cpus_per_task="8", srun__mpi="none", srun__label="")
    script = SlurmExecutor().script(folder=folder, **given)
    srun = next(line for line in script.splitlines() if line.startswith("srun "))
    assert " --cpus-per-task=8 --mpi=none --label " in srun
    assert "#SBATCH --cpus-per-task=8" in script


def test_slurm_logs_in_where_the_site_wants_it_to(folder: Path) -> None:
    lines = SlurmExecutor().script(folder=folder, **with_options(export="NONE")).splitlines()
    assert "#SBATCH --export=NONE" in lines
    assert "#SBATCH --export=ALL" not in lines
    assert f". {LOGIN}" not in lines


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        pytest.param({"job_name": "a b"}, "job name 'a b': expected", id="a space in the name"),
        pytest.param({"job_name": ""}, "job name '': expected", id="no name"),
        pytest.param({"comment": "a\nb"}, "job comment", id="a line break in the comment"),
        pytest.param(with_options(nodelist="n1"), "'nodelist' is set by the harness", id="pins"),
        pytest.param(with_options(no_requeue=""), "'no_requeue' is set by", id="underscores"),
        pytest.param({"resources": Resources(options={"--signal": "1"})}, "'--signal' is set by",
                     id="dashes"),
        pytest.param(with_options(export="ALL"), "'export' is 'ALL': expected NONE", id="secrets"),
        pytest.param({"resources": Resources(options={"a b": "1"})}, "Slurm option 'a b': expected",
                     id="no option's name"),
        pytest.param({"resources": Resources(nodes=3)}, "3 nodes are asked for, but the node list "
                     "names 2", id="counts that differ"),
    ],
)  # fmt: skip
def test_what_cannot_be_submitted_is_refused(
    folder: Path, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        SlurmExecutor().script(folder=folder, **{**ARGUMENTS, **changed})


# --- the unmodified executor on a Slurm of one file ---------------------------------------------


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Slurm's commands on PATH, and the folder that is their state."""
    commands, state = tmp_path / "bin", tmp_path / "slurm"
    commands.mkdir()
    state.mkdir()
    for name in COMMANDS:
        (commands / name).write_text(f"#!{sys.executable}\n{FAKE.read_text()}")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:{os.environ['PATH']}")
    return state


@pytest.mark.parametrize(
    ("options", "is_given"),
    [
        pytest.param({}, False, id="for the job is given what sbatch is given"),
        pytest.param({"export": "NONE"}, True, id="for Slurm gives the job none of it"),
    ],
)
def test_what_sbatch_is_given(
    fake: Path, root: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], is_given: bool
) -> None:
    for name in ("HF_TOKEN", "SLURM_NTASKS", "SLURM_CONF"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("BASH_FUNC_which%%", "() { true; }")
    executor = SlurmExecutor(round_s=0)
    end(executor, root, submit(executor, root, "true", resources=Resources(options=options)))
    given = set((fake / "given").read_text().splitlines())
    assert given >= {"PATH", "HOME", "SLURM_CONF"}
    assert "SLURM_NTASKS" not in given, "it would steer sbatch"
    assert ({"HF_TOKEN", "BASH_FUNC_which%%"} <= given) is is_given


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "work"


def submit(
    executor: SlurmExecutor, root: Path, *argv: str, name: str = "t1", **changed: Any
) -> Submission:
    arguments = {**ARGUMENTS, "job_name": f"xl-{name}", "comment": f"xlatune:{name}:1", **changed}
    job_id = executor.submit(
        LaunchSpec(argv=argv, env={"XLA_FLAGS": "--a=1,2 --b='x y'"}, inherit=("PATH",)),
        folder=root / name / "1",
        **arguments,
    )
    return Submission(trial_id=name, attempt=1, executor="slurm", job_id=job_id, folder=f"{name}/1")


def end(executor: SlurmExecutor, root: Path, submission: Submission) -> Outcome:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        outcome = executor.poll([submission], root=root)[submission.job_id]
        if outcome.state.is_final:
            return outcome
        time.sleep(0.1)
    raise AssertionError(outcome)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.05)


def calls(fake: Path, name: str) -> int:
    return (fake / "calls").read_text().split().count(name)


def test_a_trial_from_submission_to_outcome(fake: Path, root: Path) -> None:
    executor = SlurmExecutor(round_s=0)
    contract: Executor = executor
    assert contract.name == "slurm"
    done = submit(executor, root, "bash", "-c", 'printf %s "$XLA_FLAGS"')
    outcome = end(executor, root, done)
    assert (outcome.state, outcome.exit_code) == (State.COMPLETED, 0)
    assert outcome.nodes == ("node001", "node002")
    for each in (0, 1):
        assert (root / done.folder / f"log.{each}.txt").read_text() == "--a=1,2 --b='x y'"
    assert executor.submit(
        LaunchSpec(argv=("false",)), folder=root / done.folder,
        **{**ARGUMENTS, "job_name": "xl-t1", "comment": "xlatune:t1:1"},
    ) == done.job_id, "the same attempt again is the same job"  # fmt: skip
    assert calls(fake, "sbatch") == 1


def test_a_failing_trial_and_a_cancelled_one(fake: Path, root: Path) -> None:
    executor = SlurmExecutor(round_s=0)
    failing = submit(executor, root, "bash", "-c", "exit 5", name="failing")
    outcome = end(executor, root, failing)
    assert (outcome.state, outcome.exit_code) == (State.FAILED, 5)
    running = submit(executor, root, "sleep", "300", name="running")
    wait_for(root / running.folder / "started.1.json")
    executor.cancel([running], root=root)
    assert end(executor, root, running).state is State.CANCELLED
    assert (root / running.folder / "cancel").exists()


def test_a_job_that_slurm_has_forgotten(fake: Path, root: Path) -> None:
    executor = SlurmExecutor(round_s=0)
    done = submit(executor, root, "true")
    end(executor, root, done)
    (fake / f"{done.job_id}.json").unlink()
    outcome = end(SlurmExecutor(), root, done)
    assert (outcome.state, outcome.exit_code) == (State.COMPLETED, 0)


def test_a_refusal_for_good_is_told_at_once(fake: Path, root: Path) -> None:
    executor = SlurmExecutor(sleep=lambda _: pytest.fail("it was tried again"))
    with pytest.raises(SubmissionError, match=r"node9.*Invalid node name specified; the script is"):
        submit(executor, root, "true", nodelist=("node9",), resources=Resources())
    assert calls(fake, "sbatch") == 1


def test_a_controller_that_comes_back_takes_the_job_once(fake: Path, root: Path) -> None:
    (fake / "away").touch()
    executor = SlurmExecutor(sleep=lambda _: None, round_s=0)
    with pytest.raises(SchedulerDown):
        submit(executor, root, "true")
    (fake / "away").unlink()
    done = submit(executor, root, "true")
    assert end(executor, root, done).state is State.COMPLETED
    assert len(list(fake.glob("*.json"))) == 1


def test_a_lost_answer_is_looked_up_before_another_try(
    fake: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = tmp_path / "wrapper"
    wrapper.mkdir()
    (wrapper / "sbatch").write_text(
        f'#!/bin/bash\n{tmp_path}/bin/sbatch "$@" >/dev/null\n'
        'echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv '
        'operation" >&2\nexit 1\n'
    )
    (wrapper / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper}:{os.environ['PATH']}")
    waits: list[float] = []
    executor = SlurmExecutor(sleep=waits.append, round_s=0)
    done = submit(executor, root, "true")
    assert end(executor, root, done).state is State.COMPLETED
    assert calls(fake, "sbatch") == 1
    assert waits == [1.0]


@pytest.mark.parametrize("keeps_comments", [True, False], ids=["with comments", "without comments"])
def test_accounting_finds_what_the_controller_has_forgotten(
    fake: Path, root: Path, *, keeps_comments: bool
) -> None:
    executor = SlurmExecutor()
    attempt: dict[str, Any] = {
        "folder": root / "t1" / "1",
        "job_name": "xl-t1",
        "comment": "xlatune:t1:1",
    }
    job = {"JobId": "77", "JobState": "COMPLETED", "NodeList": "node001", "StartTime": "1",
           "EndTime": "2", "Reason": "None", "JobName": "xl-t1", "ExitCode": "0:0",
           "WorkDir": str(attempt["folder"]),
           "Comment": str(attempt["comment"]) if keeps_comments else ""}  # fmt: skip
    other = job | {"JobId": "70", "WorkDir": "/elsewhere", "Comment": ""}
    (fake / "accounting").write_text("".join(f"{json.dumps(each)}\n" for each in (other, job)))
    assert executor.find(**attempt) == "77"
    assert executor.find(**{**attempt, "folder": root / "t1" / "2", "comment": "new"}) == ""


def test_submission_without_slurm_says_so(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "env").symlink_to("/usr/bin/env")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(SubmissionError, match=r"sbatch.*No such file or directory"):
        submit(SlurmExecutor(), root, "true")
    assert run_command(["squeue"]).error == "squeue: command not found"


def test_the_fake_nodes_are_checked(fake: Path) -> None:
    assert check_nodes(("node001", "node004")) == ("node004 is drained, expected idle: bad nic",)


def test_a_rank_that_is_killed_ends_the_job(fake: Path, root: Path) -> None:
    executor = SlurmExecutor(round_s=0)
    running = submit(executor, root, "sleep", "300")
    started = root / running.folder / "started.1.json"
    wait_for(started)
    wait_for(started.with_name("started.json"))
    os.kill(json.loads(started.read_text())["pid"], signal.SIGKILL)
    outcome = end(executor, root, running)
    assert (outcome.state, outcome.signal) == (State.FAILED, 9)


class Nodes:
    """Plays sinfo and scontrol: a drained node comes back on RESUME, a dead one does not."""

    def __init__(self, **states: str) -> None:
        self.states = states
        self.updates: list[str] = []

    def __call__(self, argv: Sequence[str]) -> Answer:
        if argv[0] == "sinfo":
            rows = [
                f"{name}\x1f{state}\x1flab\x1f2\x1f4000\x1f(null)\x1fnone"
                for name, state in self.states.items()
            ]
            return Answer(code=0, out="\n".join(rows))
        name = argv[2].removeprefix("NodeName=")
        self.updates.append(name)
        if self.states[name] == "drained":
            self.states[name] = "idle"
            return Answer(code=0)
        return Answer(code=1, err="slurm_update error: Invalid node state specified")


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
    done = resume_nodes(["n1", "n2"], run=nodes, sleep=slept.append)
    assert done.nodes == resumed
    assert len(nodes.updates) == len(slept) == updates
    assert len(done.faults) == faults


@pytest.mark.parametrize(
    ("answer", "unseen", "why_not"),
    [
        pytest.param(Answer(code=0, out="n1\nn2\n"), {}, "", id="both see all"),
        pytest.param(
            Answer(code=0, out="n1\nn2\x1f/a/b\nn2\n"), {"/a/b": ("n2",)}, "", id="one does not"
        ),
        pytest.param(Answer(code=0, out="n1\n"), {}, "no answer from n2", id="one is silent"),
        pytest.param(
            Answer(code=1, err="srun: error: Unable to allocate resources"),
            {}, "srun: error: Unable to allocate resources", id="no nodes to look from",
        ),
    ],
)  # fmt: skip
def test_the_nodes_say_what_they_see(
    answer: Answer, unseen: dict[str, tuple[str, ...]], why_not: str
) -> None:
    asked: list[Sequence[str]] = []

    def run(argv: Sequence[str]) -> Answer:
        asked.append(argv)
        return answer

    sight = look(
        ["/a/b"], nodelist=["n1", "n2"], options={"partition": "p", "srun.x": "1"}, run=run
    )
    assert (dict(sight.unseen), sight.why_not) == (unseen, why_not)
    assert {"--partition=p", "--nodelist=n[1-2]", "/a/b"} <= set(asked[0])
