"""The payload: the exact environment, an outcome however it ends, and nothing left behind."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from signal import Signals

import pytest

from pytest_xlatune.executors import payload
from pytest_xlatune.executors.folder import (
    node_findings,
    with_probe,
    write_spec,
)
from pytest_xlatune.model.result import State
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.workers import probe_environment
from pytest_xlatune.workers.probe_environment import code_digest
from tests.helpers.payloads import PATH, Start, is_gone, outcome, python, trainer
from tests.helpers.tables import rows
from tests.helpers.waiting import LIMIT_S, until

AWKWARD = {
    "QUOTES": """--xla_a='x y' "z" `id` $(id) $HOME \\""",
    "NEWLINES": "one\ntwo\r\n",
    "BYTES": b"\xff\xfe".decode("utf-8", "surrogateescape"),
    "BRACES": "{rank} {} %j",
}


def runs(*argv: str) -> LaunchSpec:
    return LaunchSpec(argv=argv, env=PATH)


@rows(
    "spec, code, signal, reason",
    {
        "exit 3": (runs("sh", "-c", "exit 3"), 3, None, ""),
        "killed inside": (runs("sh", "-c", "kill -9 $$"), None, 9, ""),
        "no such program": (runs("no-program"), None, None, "no-program could not be started"),
        "a NUL in an argument": (runs("a\0b"), None, None, "null byte"),
        "a file above the folder": (
            LaunchSpec(argv=("true",), files={"../out.txt": ""}), None, None, "leads out of"),
        "no spec": (None, None, None, "spec.json"),
    },
)  # fmt: skip
def test_however_the_trainer_ends_there_is_an_outcome(
    tmp_path: Path, spec: LaunchSpec | None, code: int | None, signal: int | None, reason: str
) -> None:
    before_s = time.time()
    if spec is not None:
        write_spec(tmp_path, spec)
    command = [sys.executable, payload.__file__, str(tmp_path)]
    assert subprocess.run(command, check=False).returncode in (0, code)
    found = outcome(tmp_path)
    assert found.state is (State.COMPLETED if code == 0 else State.FAILED)
    assert (found.exit_code, found.signal) == (code, signal)
    is_refused = spec is None or bool(spec.files)
    assert found.is_started is (reason == "" or is_refused)
    assert reason in found.reason
    assert (found.start_s is None) is is_refused
    assert found.end_s is not None
    assert before_s <= (found.start_s or before_s) <= found.end_s <= time.time()
    assert len(found.nodes) == 1


def test_the_environment_is_what_the_spec_says(tmp_path: Path, start: Start) -> None:
    spec = LaunchSpec(
        argv=("env", "-0"),
        env=AWKWARD,
        inherit=("PATH", "SITE_*", "ABSENT"),
    )
    write_spec(tmp_path, spec)
    ours = {"SITE_A": "1, 2", "GONE": "g", "SECRET_TOKEN": "s3cret", "SITEX": "x"}
    start(tmp_path, environ=ours).wait(LIMIT_S)
    lines = (tmp_path / "log.0.txt").read_bytes().removesuffix(b"\0").split(b"\0")
    found = dict(line.split(b"=", 1) for line in lines)
    expected = {**AWKWARD, **PATH, "SITE_A": "1, 2"}
    assert found == {
        name.encode(): value.encode("utf-8", "surrogateescape") for name, value in expected.items()
    }


def test_a_secret_is_in_no_part_of_the_spec_that_stays(tmp_path: Path) -> None:
    secret = "hush-hush"
    spec = LaunchSpec(
        argv=("train", f"log in with {secret}", "steps=5"),
        env={"HF_TOKEN": secret, "BANNER": f"welcome {secret}", "LEVEL": "4"},
        files={"a.sh": f"echo {secret}\n", "b.sh": "true\n"},
    )
    write_spec(tmp_path, spec)
    kept = (tmp_path / payload.SPEC).read_text()
    assert secret not in kept
    assert all(each in kept for each in ("steps=5", '"4"', "true")), "what is no secret stays"
    assert (tmp_path / payload.SECRETS).read_text().count(secret) == 4


HARD = "echo hard: Xid 79 on GPU 3; echo 2 corrected errors"


def sh(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script)


@rows(
    "command, code, expected",
    {
        "silent": (sh("exit 0"), 0, []),
        "hard and failed": (
            sh(f"{HARD}; exit 4"), 0,
            ["node-unasked: exit 4: 2 corrected errors", "node-fault: Xid 79 on GPU 3"]),
        "hangs": (sh("exec sleep 60"), 3, ["node-unasked: no answer in time"]),
        "the trainer's environment": (sh('echo "$XLA_FLAGS$SECRET"'), 0, []),
        "missing": (("no-such-command",), 0, [
            "node-unasked: no-such-command could not be started: No such file or directory"]),
    },
)  # fmt: skip
def test_a_sites_command_tells_of_the_node_and_costs_no_trial(
    tmp_path: Path, command: tuple[str, ...], code: int, expected: list[str]
) -> None:
    env = {**PATH, "XLA_FLAGS": "--a", "SECRET": "b"}
    argv = sh(f"echo of the trainer; exit {code}")
    write_spec(tmp_path, LaunchSpec(argv=argv, env=env, node_health=command))
    assert [each.cls for each in node_findings(tmp_path)] == ["node-unasked"], "it was not run"
    program = (
        "from pytest_xlatune.executors import payload; payload.HEALTH_S = 1.0; "
        f"payload.run({str(tmp_path)!r})"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
    assert outcome(tmp_path).exit_code == code, "the command decides nothing of the trial"
    found = node_findings(tmp_path)
    assert [f"{each.cls}: {each.text}" for each in found] == expected
    assert {each.source for each in found} <= {*outcome(tmp_path).nodes}
    assert (tmp_path / "log.0.txt").read_text() == "of the trainer\n"


@pytest.mark.timeout(60)
def test_a_pipe_among_the_files_of_a_trainer_is_not_waited_for(tmp_path: Path) -> None:
    trainer = str(tmp_path / "train.py")
    (tmp_path / "train.py").write_text("import model\n")
    os.mkfifo(tmp_path / "model.py")
    assert code_digest(str(tmp_path), trainer).endswith(" Python files")
    (tmp_path / ".git").mkdir()
    os.mkfifo(tmp_path / ".git" / "HEAD")
    assert probe_environment.repositories([str(tmp_path), trainer]) == {}


def test_what_a_trial_runs_on_is_asked_before_its_trainer_edits_anything(
    tmp_path: Path, start: Start
) -> None:
    trainer = str(tmp_path / "train.py")
    (tmp_path / "train.py").write_text("import model; open('model.py', 'w').write('x = 2')")
    (tmp_path / "model.py").write_text("x = 1")
    before = code_digest(str(tmp_path), trainer)
    asks = (sys.executable, "{xlatune.folder}/xlatune_environment.py", "trainer", trainer)
    spec = LaunchSpec(argv=(sys.executable, trainer), env=PATH, probe=asks, paths=())
    write_spec(tmp_path, with_probe(spec, devices=True))
    start(tmp_path).wait(LIMIT_S)
    assert outcome(tmp_path).state is State.COMPLETED
    told = json.loads((tmp_path / "environment.json").read_text())
    assert told["node"]["kernel"] == platform.release()
    assert told["code"] == {str(tmp_path): before}, told
    assert code_digest(str(tmp_path), trainer) != before


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


@rows(
    "deaf, then, sent, state, signal",
    {
        "SIGTERM": ("", WAIT, "SIGTERM", State.CANCELLED, 15),
        "SIGINT, and it is deaf": (DEAF, WAIT, "SIGINT", State.CANCELLED, 9),
        "its deadline": (DEAF, WAIT, "", State.TIMEOUT, 9),
        "its own end": (DEAF, "", "", State.COMPLETED, None),
        "a kill from outside": (DEAF, WAIT, "SIGKILL", State.FAILED, 9),
    },
)
def test_what_a_trainer_started_ends_with_it(
    tmp_path: Path,
    start: Start,
    *,
    deaf: str,
    then: str,
    sent: str,
    state: State,
    signal: int | None,
) -> None:
    family(tmp_path, deaf=deaf, then=then, deadline_s=5 if state is State.TIMEOUT else 300)
    # who obeys has as long as a busy machine takes
    running = start(tmp_path, grace_s=0.3 if deaf else LIMIT_S)
    pids = relatives(tmp_path)
    if sent:
        os.kill(pids[0] if state is State.FAILED else running.pid, Signals[sent])
    assert running.wait(LIMIT_S) == 0
    found = outcome(tmp_path)
    assert (found.state, found.signal) == (state, signal)
    assert all(map(is_gone, pids))
    if state is State.CANCELLED:
        assert found.reason == f"cancelled by {sent}"
    if state is State.TIMEOUT:
        assert "after 5 s, the trial's deadline" in found.reason
        assert (found.end_s or 0.0) - (found.start_s or 0.0) >= 5


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
    first, *children = relatives(tmp_path / "first")
    with subprocess.Popen(["sleep", "300"], start_new_session=True) as not_ours:
        running.kill()
        until(lambda: is_gone(first))
        assert not any(map(is_gone, children))
        # a zombie whose new parent is slow to reap it does not run
        near, far = children
        argv = ("sh", "-c", f"grep -s '^State:.[^Z]' /proc/{near}/status /proc/{far}/status; :")
        write_spec(tmp_path / "second", LaunchSpec(argv=argv, env=PATH))
        start(tmp_path / "second", lock=lock).wait(LIMIT_S)
        assert not_ours.poll() is None
        not_ours.kill()
    assert outcome(tmp_path / "second").state is State.COMPLETED
    assert (tmp_path / "second" / "log.0.txt").read_text() == ""
