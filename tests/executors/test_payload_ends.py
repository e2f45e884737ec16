"""The payload leaves nothing running, whichever process is killed, and trials do not overlap."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from pytest_xlatune.executors.folder import write_spec
from pytest_xlatune.model.result import State
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers.payloads import PATH, Start, is_gone, outcome, python, trainer
from tests.helpers.tables import rows
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


def family(folder: Path, *, deaf: str = "", then: str = WAIT, deadline_s: int = 300) -> None:
    argv = python(FAMILY.format(deaf=deaf, then=then))
    write_spec(folder, LaunchSpec(argv=argv, deadline_s=deadline_s))


def relatives(folder: Path) -> list[int]:
    """Wait for the trainer and its children; return their ids."""
    files = [folder / "near", folder / "far"]
    until(lambda: all(each.exists() for each in files))
    # on a busy machine the trainer is told after its children run
    return [trainer(folder).pid, *(int(each.read_text()) for each in files)]


@rows("deaf", {"obedient": "", "deaf to SIGTERM": DEAF})
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_to_the_payload_ends_the_trainer_and_all_it_started(
    tmp_path: Path, start: Start, deaf: str, number: signal.Signals
) -> None:
    family(tmp_path, deaf=deaf)
    # who obeys has as long as a busy machine takes
    running = start(tmp_path, grace_s=0.3 if deaf else LIMIT_S)
    pids = relatives(tmp_path)
    running.send_signal(number)
    assert running.wait(LIMIT_S) == 0
    found = outcome(tmp_path)
    assert (found.state, found.reason) == (State.CANCELLED, f"cancelled by {number.name}")
    assert found.signal == (signal.SIGKILL if deaf else signal.SIGTERM)
    assert all(map(is_gone, pids))


@rows(
    "deadline_s, then, state",
    {
        "its deadline": (5, WAIT, State.TIMEOUT),
        "its own end": (300, "", State.COMPLETED),
        "a kill from outside": (300, WAIT, State.FAILED),
    },
)
def test_what_a_trainer_started_is_ended_at(
    tmp_path: Path, start: Start, deadline_s: int, then: str, state: State
) -> None:
    family(tmp_path, deaf=DEAF, then=then, deadline_s=deadline_s)
    running = start(tmp_path, grace_s=0.3)
    pids = relatives(tmp_path)
    if state is State.FAILED:
        os.kill(pids[0], signal.SIGKILL)
    running.wait(LIMIT_S)
    found = outcome(tmp_path)
    assert (found.state, found.signal) == (state, 9 if then else None)
    assert all(map(is_gone, pids))
    if state is State.TIMEOUT:
        assert "after 5 s, the trial's deadline" in found.reason
        assert found.start_s is not None
        assert found.end_s is not None
        assert found.end_s - found.start_s >= 5


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


def test_the_next_trial_ends_what_a_killed_payload_left_before_it_starts(
    tmp_path: Path, start: Start
) -> None:
    lock = str(tmp_path / "lock")
    family(tmp_path / "first", deaf=DEAF)
    running = start(tmp_path / "first", lock=lock)
    first, near, far = relatives(tmp_path / "first")
    running.kill()
    until(lambda: is_gone(first))
    assert not is_gone(near)
    # a zombie whose new parent is slow to reap it is no company
    argv = ("sh", "-c", f"grep -qs '^State:.[^Z]' /proc/{near}/status || echo alone")
    write_spec(tmp_path / "second", LaunchSpec(argv=argv, env=PATH))
    start(tmp_path / "second", lock=lock).wait(LIMIT_S)
    os.kill(far, signal.SIGKILL)  # it left the session: only a living payload finds such a one
    assert (tmp_path / "second" / "log.0.txt").read_text() == "alone\n"
