"""The payload leaves nothing running, whichever process is killed, and trials do not overlap."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from pytest_xlatune.executors import payload
from pytest_xlatune.executors.folder import write_spec
from pytest_xlatune.model.result import State
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers.payloads import PATH, Start, is_gone, outcome, python, trainer
from tests.helpers.waiting import LIMIT_S, until

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
    # who obeys has as long as a busy machine takes
    running = start(tmp_path, grace_s=0.3 if deaf else LIMIT_S)
    pids = [trainer(tmp_path).pid, *relatives(tmp_path)]
    running.send_signal(number)
    assert running.wait(LIMIT_S) == 0
    found = outcome(tmp_path)
    assert found.state is State.CANCELLED
    assert found.reason == f"cancelled by {number.name}"
    assert found.signal == (signal.SIGKILL if deaf else signal.SIGTERM)
    assert all(is_gone(pid) for pid in pids)


def test_a_trainer_past_its_deadline_is_killed_with_all_it_started(
    tmp_path: Path, start: Start
) -> None:
    family(tmp_path, deaf=DEAF, deadline_s=5)
    running = start(tmp_path, grace_s=0.3)
    pids = [trainer(tmp_path).pid, *relatives(tmp_path)]
    running.wait(LIMIT_S)
    found = outcome(tmp_path)
    assert found.state is State.TIMEOUT
    assert "after 5 s, the trial's deadline" in found.reason
    assert found.start_s is not None
    assert found.end_s is not None
    assert found.end_s - found.start_s >= 5
    assert all(is_gone(pid) for pid in pids)


def test_what_a_finished_trainer_leaves_behind_is_ended(tmp_path: Path, start: Start) -> None:
    family(tmp_path, then="")
    start(tmp_path).wait(LIMIT_S)
    assert outcome(tmp_path).state is State.COMPLETED
    assert all(is_gone(pid) for pid in relatives(tmp_path))


def test_a_trainer_killed_from_outside_has_failed_with_that_signal(
    tmp_path: Path, start: Start
) -> None:
    family(tmp_path)
    running = start(tmp_path)
    pids = relatives(tmp_path)
    os.kill(trainer(tmp_path).pid, signal.SIGKILL)
    running.wait(LIMIT_S)
    assert (outcome(tmp_path).state, outcome(tmp_path).signal) == (State.FAILED, 9)
    assert all(is_gone(pid) for pid in pids)


# a trainer that a scheduler tells to end; its child lives on and is the payload's when it is gone
TOLD = """
import os, time
trainer = os.getpid()
if os.fork():
    os.kill(trainer, 15)
while os.getppid() == trainer:
    time.sleep(0.01)
{then}
"""


@pytest.mark.parametrize(
    ("then", "late_signal_s", "state"),
    [
        pytest.param("os.kill(os.getppid(), 15)", LIMIT_S, State.CANCELLED, id="then so are we"),
        pytest.param("", 0.3, State.FAILED, id="by another process"),
    ],
)
def test_a_trainer_that_is_told_to_end_before_we_are(
    tmp_path: Path, start: Start, then: str, late_signal_s: float, state: State
) -> None:
    write_spec(tmp_path, LaunchSpec(argv=python(TOLD.format(then=then))))
    start(tmp_path, late_signal_s=late_signal_s).wait(LIMIT_S)
    assert (outcome(tmp_path).state, outcome(tmp_path).signal) == (state, signal.SIGTERM)


def test_a_trainer_that_saves_and_exits_0_on_sigterm_was_still_cancelled(
    tmp_path: Path, start: Start
) -> None:
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(0)); print(flush=True)"
    write_spec(tmp_path, LaunchSpec(argv=python(f"{code}; time.sleep(300)")))
    running = start(tmp_path)
    log = tmp_path / "log.0.txt"
    until(lambda: log.exists() and log.stat().st_size)
    running.terminate()
    running.wait(LIMIT_S)
    assert (outcome(tmp_path).state, outcome(tmp_path).exit_code) == (State.CANCELLED, 0)


def test_a_cancel_before_the_start_starts_nothing(tmp_path: Path, start: Start) -> None:
    write_spec(tmp_path, LaunchSpec(argv=("touch", "ran"), env=PATH))
    (tmp_path / payload.CANCEL).touch()
    start(tmp_path).wait(LIMIT_S)
    assert outcome(tmp_path).state is State.CANCELLED
    assert not (tmp_path / "ran").exists()


def test_the_next_trial_ends_what_a_killed_payload_left_before_it_starts(
    tmp_path: Path, start: Start
) -> None:
    lock = str(tmp_path / "lock")
    family(tmp_path / "first", deaf=DEAF)
    running = start(tmp_path / "first", lock=lock)
    near, far = relatives(tmp_path / "first")
    first = trainer(tmp_path / "first").pid  # on a busy machine it is told after its children run
    running.kill()
    until(lambda: is_gone(first))
    assert not is_gone(near)
    # a zombie whose new parent is slow to reap it is no company
    argv = ("sh", "-c", f"grep -qs '^State:.[^Z]' /proc/{near}/status || echo alone")
    write_spec(tmp_path / "second", LaunchSpec(argv=argv, env=PATH))
    start(tmp_path / "second", lock=lock).wait(LIMIT_S)
    os.kill(far, signal.SIGKILL)  # it left the session: only a living payload finds such a one
    assert (tmp_path / "second" / "log.0.txt").read_text() == "alone\n"


@pytest.mark.parametrize(
    "other",
    [
        {"token": "00ff"},
        {"token": ""},
    ],
    ids=["of another start", "of no start that is known"],
)
def test_leftovers_are_sought_only_where_they_can_be(other: dict[str, object]) -> None:
    token = {payload.TOKEN: "c0ffee"}
    with subprocess.Popen(["sleep", "300"], start_new_session=True, env=token) as stranger:
        try:
            mine: dict[str, object] = {"pid": stranger.pid, "token": "c0ffee"}
            # the kernel shows a program's environment a moment after its start
            until(lambda: payload._has_variable(stranger.pid, b"XLATUNE_START=c0ffee"))
            payload.end_leftovers({**mine, **other})
            assert stranger.poll() is None
            payload.end_leftovers(mine)
            assert stranger.wait(LIMIT_S) == -signal.SIGKILL
        finally:
            stranger.kill()
