"""The payload: exact environment, whole outcome, and nothing left running, whatever is killed."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import pytest

from pytest_xlatune.cells import LaunchSpec
from pytest_xlatune.executors import payload
from pytest_xlatune.executors.folder import (
    ProcessRecord,
    log_files,
    read_claim,
    read_outcomes,
    read_started,
    write_spec,
)
from pytest_xlatune.results import Outcome, State

RUN = (
    "import sys; from pytest_xlatune.executors import payload; payload.GRACE_S = 0.3; "
    "payload.run(*sys.argv[1:])"
)
PATH = {"PATH": os.environ["PATH"]}
AWKWARD = {
    "COMMAS": "rdma0,rdma1:1,^mlx5_0",
    "QUOTES": """--xla_a='x y' "z" `id` $(id) $HOME \\""",
    "EMPTY": "",
    "SPACES": "  a  b  ",
    "NEWLINES": "one\ntwo\r\n",
    "UNICODE": "naïve ☃",
    "BYTES": b"\xff\xfe".decode("utf-8", "surrogateescape"),
    "BRACES": "{rank} {} %j",
}

Start = Callable[..., "subprocess.Popen[bytes]"]
T = TypeVar("T")


def until(look: Callable[[], T | None]) -> T:
    """Return the first truthy value of `look`; fail after half a minute."""
    limit_s = time.monotonic() + 30
    while not (found := look()):
        assert time.monotonic() < limit_s, "nothing came within 30 s"
        time.sleep(0.01)
    return found


def is_gone(pid: int) -> bool:
    return payload.start_ticks(pid) is None


def python(code: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", code)


@pytest.fixture
def start() -> Iterator[Start]:
    """Start payloads that do not outlive the test."""
    with contextlib.ExitStack() as stack:

        def start(
            folder: Path, *, lock: str = "", environ: Mapping[str, str] | None = None
        ) -> subprocess.Popen[bytes]:
            started = subprocess.Popen(
                [sys.executable, "-c", RUN, str(folder), lock],
                env={**os.environ, **(environ or {})},
            )
            stack.enter_context(started)
            stack.callback(started.terminate)
            return started

        yield start


def outcome(folder: Path, rank: int = 0) -> Outcome:
    return until(lambda: read_outcomes(folder).get(rank))


def trainer(folder: Path) -> ProcessRecord:
    return until(lambda: read_started(folder))


def environment_of(log: Path) -> dict[bytes, bytes]:
    lines = log.read_bytes().removesuffix(b"\0").split(b"\0")
    pairs = (line.partition(b"=") for line in lines)
    return {name: value for name, _, value in pairs}


@pytest.mark.parametrize(
    ("argv", "end", "reason"),
    [
        pytest.param(("true",), (State.COMPLETED, 0, None), "", id="exit 0"),
        pytest.param(("sh", "-c", "exit 3"), (State.FAILED, 3, None), "", id="exit 3"),
        pytest.param(("sh", "-c", "kill -9 $$"), (State.FAILED, None, 9), "", id="killed inside"),
        pytest.param(
            ("no-such-program",),
            (State.FAILED, None, None),
            "could not be started: [Errno 2]",
            id="no such program",
        ),
        pytest.param(("a\0b",), (State.FAILED, None, None), "null byte", id="a NUL in an argument"),
    ],
)
def test_however_the_trainer_ends_there_is_an_outcome(
    tmp_path: Path,
    start: Start,
    argv: tuple[str, ...],
    end: tuple[State, int | None, int | None],
    reason: str,
) -> None:
    write_spec(tmp_path, LaunchSpec(argv=argv, env=PATH))
    before_s = time.time()
    assert start(tmp_path).wait(30) == 0
    found = outcome(tmp_path)
    assert (found.state, found.exit_code, found.signal) == end
    assert reason in found.reason
    assert found.start_s is not None
    assert found.end_s is not None
    assert before_s <= found.start_s <= found.end_s <= time.time()
    assert len(found.nodes) == 1


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (LaunchSpec(argv=("true",), cwd="/no/such/place"), "/no/such/place"),
        (LaunchSpec(argv=("true",), files={"../out.txt": ""}), "leads out of the attempt's folder"),
        (
            LaunchSpec(argv=("true",), files={"/tmp/out.txt": ""}),
            "leads out of the attempt's folder",
        ),
        (None, "spec.json"),
    ],
    ids=["no working directory", "a file above the folder", "an absolute file", "no spec"],
)
def test_a_spec_that_cannot_be_run_fails_with_its_reason(
    tmp_path: Path, start: Start, spec: LaunchSpec | None, reason: str
) -> None:
    if spec is not None:
        write_spec(tmp_path / "a", spec)
    (tmp_path / "a").mkdir(exist_ok=True)
    start(tmp_path / "a").wait(30)
    assert outcome(tmp_path / "a").state is State.FAILED
    assert reason in outcome(tmp_path / "a").reason


def test_the_environment_is_what_the_spec_says_and_nothing_else(
    tmp_path: Path, start: Start
) -> None:
    spec = LaunchSpec(
        argv=("env", "-0"),
        env=AWKWARD,
        inherit=("PATH", "SITE_*", "ABSENT", "GONE"),
        unset=("GONE", "SITE_B"),
    )
    write_spec(tmp_path, spec)
    ours = {"SITE_A": "1, 2", "SITE_B": "b", "GONE": "g", "SECRET_TOKEN": "s3cret", "SITEX": "x"}
    start(tmp_path, environ=ours).wait(30)
    expected = {name: value.encode("utf-8", "surrogateescape") for name, value in AWKWARD.items()}
    expected |= {"PATH": PATH["PATH"].encode(), "SITE_A": b"1, 2"}
    assert environment_of(tmp_path / "log.0.txt") == {
        name.encode(): value for name, value in expected.items()
    }


def test_what_the_spec_sets_wins_over_what_is_inherited(tmp_path: Path, start: Start) -> None:
    write_spec(tmp_path, LaunchSpec(argv=("env", "-0"), env={"A": "spec"}, inherit=("A", "PATH")))
    start(tmp_path, environ={"A": "ours"}).wait(30)
    assert environment_of(tmp_path / "log.0.txt")[b"A"] == b"spec"


def test_folder_and_rank_are_filled_in_where_the_spec_asks_for_them(
    tmp_path: Path, start: Start
) -> None:
    argv = ("sh", "-c", 'echo "$1 $XLA_FLAGS"', "sh", "{xlatune.folder}/metrics.{xlatune.rank}")
    env = {**PATH, "XLA_FLAGS": "--xla_dump_to={xlatune.folder}/dump.{xlatune.rank}"}
    write_spec(tmp_path, LaunchSpec(argv=argv, env=env))
    start(tmp_path, environ={"SLURM_PROCID": "3"}).wait(30)
    expected = f"{tmp_path}/metrics.3 --xla_dump_to={tmp_path}/dump.3\n"
    assert (tmp_path / "log.3.txt").read_text() == expected


def test_files_are_there_before_the_trainer_starts_in_the_folder(
    tmp_path: Path, start: Start
) -> None:
    files = {"env.sh": "export A='☃'\n", "configs/model.yml": "steps: 15\n"}
    argv = ("cat", "env.sh", "configs/model.yml")
    write_spec(tmp_path, LaunchSpec(argv=argv, env=PATH, files=files))
    start(tmp_path).wait(30)
    assert (tmp_path / "log.0.txt").read_text(encoding="utf-8") == "".join(files.values())


def test_output_and_errors_are_in_one_log_while_the_trainer_runs(
    tmp_path: Path, start: Start
) -> None:
    argv = ("sh", "-c", "echo out; echo err >&2; echo out2; exec sleep 60")
    write_spec(tmp_path, LaunchSpec(argv=argv, env=PATH))
    start(tmp_path)
    log = tmp_path / "log.0.txt"
    until(lambda: log.exists() and log.read_text() == "out\nerr\nout2\n")
    assert trainer(tmp_path).is_alive
    assert not read_outcomes(tmp_path)


def test_each_rank_has_its_own_files_and_ends_its_process_as_its_trainer_ended(
    tmp_path: Path, start: Start
) -> None:
    argv = ("sh", "-c", "echo rank {xlatune.rank}; exit $(( {xlatune.rank} * 7 ))")
    write_spec(tmp_path, LaunchSpec(argv=argv, env=PATH))
    ranks = [
        start(tmp_path, environ={"SLURM_PROCID": str(rank), "SLURMD_NODENAME": f"node00{rank}"})
        for rank in range(3)
    ]
    assert [each.wait(30) for each in ranks] == [0, 7, 14]
    found = read_outcomes(tmp_path)
    assert {rank: each.exit_code for rank, each in found.items()} == {0: 0, 1: 7, 2: 14}
    assert [each.nodes for each in found.values()] == [("node000",), ("node001",), ("node002",)]
    assert {rank: log.read_text() for rank, log in log_files(tmp_path).items()} == {
        rank: f"rank {rank}\n" for rank in range(3)
    }
    assert {each.name for each in tmp_path.glob("outcome*")} == {
        "outcome.json", "outcome.1.json", "outcome.2.json"
    }  # fmt: skip


# a trainer with a child in its group, and one that left it for a session of its own
FAMILY = """
import os, signal, sys, time
{deaf}
def child(name, leave):
    if os.fork() == 0:
        if leave:
            os.setsid()
            if os.fork():
                os._exit(0)
        open(name + ".part", "w").write(str(os.getpid()))
        os.rename(name + ".part", name)
        time.sleep(300)
        os._exit(0)
child("near", False)
child("far", True)
while not (os.path.exists("near") and os.path.exists("far")):
    time.sleep(0.01)
{then}
"""
WAIT, DEAF = "time.sleep(300)", "signal.signal(signal.SIGTERM, signal.SIG_IGN)"


def family(folder: Path, *, deaf: str = "", then: str = WAIT, deadline_s: int = 300) -> LaunchSpec:
    spec = LaunchSpec(argv=python(FAMILY.format(deaf=deaf, then=then)), deadline_s=deadline_s)
    write_spec(folder, spec)
    return spec


def relatives(folder: Path) -> list[int]:
    files = [folder / "near", folder / "far"]
    until(lambda: all(each.exists() for each in files))
    return [int(each.read_text()) for each in files]


@pytest.mark.parametrize("deaf", ["", DEAF], ids=["obedient", "deaf to SIGTERM"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_to_the_payload_ends_the_trainer_and_all_it_started(
    tmp_path: Path, start: Start, deaf: str, number: signal.Signals
) -> None:
    family(tmp_path, deaf=deaf)
    running = start(tmp_path)
    pids = [trainer(tmp_path).pid, *relatives(tmp_path)]
    running.send_signal(number)
    assert running.wait(30) == 0
    found = outcome(tmp_path)
    assert found.state is State.CANCELLED
    assert found.reason == f"cancelled by {number.name}"
    assert found.signal == (signal.SIGKILL if deaf else signal.SIGTERM)
    assert all(is_gone(pid) for pid in pids)


def test_a_trainer_past_its_deadline_is_killed_with_all_it_started(
    tmp_path: Path, start: Start
) -> None:
    family(tmp_path, deaf=DEAF, deadline_s=1)
    running = start(tmp_path)
    pids = [trainer(tmp_path).pid, *relatives(tmp_path)]
    running.wait(30)
    found = outcome(tmp_path)
    assert found.state is State.TIMEOUT
    assert "after 1 s, the trial's deadline" in found.reason
    assert found.start_s is not None
    assert found.end_s is not None
    assert found.end_s - found.start_s >= 1
    assert all(is_gone(pid) for pid in pids)


def test_what_a_finished_trainer_leaves_behind_is_ended(tmp_path: Path, start: Start) -> None:
    family(tmp_path, then="")
    start(tmp_path).wait(30)
    assert outcome(tmp_path).state is State.COMPLETED
    assert all(is_gone(pid) for pid in relatives(tmp_path))


def test_a_trainer_killed_from_outside_has_failed_with_that_signal(
    tmp_path: Path, start: Start
) -> None:
    family(tmp_path)
    running = start(tmp_path)
    pids = relatives(tmp_path)
    os.kill(trainer(tmp_path).pid, signal.SIGKILL)
    running.wait(30)
    assert (outcome(tmp_path).state, outcome(tmp_path).signal) == (State.FAILED, 9)
    assert all(is_gone(pid) for pid in pids)


def test_a_trainer_that_saves_and_exits_0_on_sigterm_was_still_cancelled(
    tmp_path: Path, start: Start
) -> None:
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0)); print(flush=True)"
    write_spec(tmp_path, LaunchSpec(argv=python(f"{code}; time.sleep(300)")))
    running = start(tmp_path)
    log = tmp_path / "log.0.txt"
    until(lambda: log.exists() and log.stat().st_size)
    running.terminate()
    running.wait(30)
    assert (outcome(tmp_path).state, outcome(tmp_path).exit_code) == (State.CANCELLED, 0)


def test_kill_9_of_the_payload_takes_the_trainer_with_it(tmp_path: Path, start: Start) -> None:
    write_spec(tmp_path, LaunchSpec(argv=python(f"import signal, time; {DEAF}; {WAIT}")))
    running = start(tmp_path)
    process = trainer(tmp_path)
    running.kill()
    until(lambda: not process.is_alive)
    assert running.wait(30) == -signal.SIGKILL
    assert not read_outcomes(tmp_path)


def test_an_attempt_is_run_once_however_often_it_is_started(tmp_path: Path, start: Start) -> None:
    write_spec(tmp_path, LaunchSpec(argv=("sh", "-c", "echo run >> runs"), env=PATH))
    started = [start(tmp_path) for _ in range(3)]
    assert [each.wait(30) for each in started] == [0, 0, 0]
    assert (tmp_path / "runs").read_text() == "run\n"
    assert outcome(tmp_path).state is State.COMPLETED


def test_a_cancel_before_the_start_starts_nothing(tmp_path: Path, start: Start) -> None:
    write_spec(tmp_path, LaunchSpec(argv=("touch", "ran"), env=PATH))
    (tmp_path / payload.CANCEL).touch()
    start(tmp_path).wait(30)
    assert outcome(tmp_path).state is State.CANCELLED
    assert not (tmp_path / "ran").exists()


TIMED = "import time; a = time.monotonic(); time.sleep(0.2); print(a, time.monotonic())"


def test_trials_on_one_machine_never_overlap(tmp_path: Path, start: Start) -> None:
    folders = [tmp_path / name for name in "abcd"]
    for folder in folders:
        write_spec(folder, LaunchSpec(argv=python(TIMED)))
    for running in [start(folder, lock=str(tmp_path / "lock")) for folder in folders]:
        running.wait(60)
    spans = sorted(
        tuple(map(float, (folder / "log.0.txt").read_text().split())) for folder in folders
    )
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))


def test_a_trial_that_waits_for_the_machine_can_be_cancelled(tmp_path: Path, start: Start) -> None:
    lock = str(tmp_path / "lock")
    for name in ("first", "second"):
        write_spec(tmp_path / name, LaunchSpec(argv=("sleep", "300"), env=PATH, deadline_s=300))
    start(tmp_path / "first", lock=lock)
    first = trainer(tmp_path / "first")
    waiting = start(tmp_path / "second", lock=lock)
    until(lambda: read_claim(tmp_path / "second"))
    waiting.terminate()
    waiting.wait(30)
    assert outcome(tmp_path / "second").state is State.CANCELLED
    assert read_started(tmp_path / "second") is None
    assert first.is_alive


def test_the_next_trial_ends_what_a_killed_payload_left_before_it_starts(
    tmp_path: Path, start: Start
) -> None:
    lock = str(tmp_path / "lock")
    family(tmp_path / "first", deaf=DEAF)
    running = start(tmp_path / "first", lock=lock)
    near, far = relatives(tmp_path / "first")
    running.kill()
    until(lambda: is_gone(trainer(tmp_path / "first").pid))
    assert not is_gone(near)
    # a zombie whose new parent is slow to reap it is no company
    argv = ("sh", "-c", f"grep -qs '^State:.[^Z]' /proc/{near}/status || echo alone")
    write_spec(tmp_path / "second", LaunchSpec(argv=argv, env=PATH))
    start(tmp_path / "second", lock=lock).wait(30)
    os.kill(far, signal.SIGKILL)  # it left the session: only a living payload finds such a one
    assert (tmp_path / "second" / "log.0.txt").read_text() == "alone\n"


@pytest.mark.parametrize(
    "other",
    [
        {"boot_id": "another-boot"},
        {"host": "another-host"},
        {"start_ticks": 1},
    ],
    ids=["of another boot", "of another machine", "of an earlier process of that id"],
)
def test_leftovers_are_sought_only_where_they_can_be(other: dict[str, object]) -> None:
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as stranger:
        try:
            host, boot_id = payload.boot()
            ticks = payload.start_ticks(stranger.pid)
            mine = {"host": host, "boot_id": boot_id, "pid": stranger.pid, "start_ticks": ticks}
            payload.end_leftovers({**mine, **other})
            assert stranger.poll() is None
        finally:
            stranger.kill()
