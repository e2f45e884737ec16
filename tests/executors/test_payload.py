"""The payload: an outcome however it ends, what it leaves behind, and what is read of that."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from signal import Signals
from typing import Any

import pytest

from pytest_xlatune import secure_files
from pytest_xlatune.executors import payload
from pytest_xlatune.executors.folder import (
    ask_what_hangs,
    node_findings,
    read_claim,
    read_environments,
    read_outcomes,
    read_spec,
    read_standstill,
    read_started,
    write_spec,
)
from pytest_xlatune.executors.slurm.allocation import ENDED, STEP, AllocationExecutor
from pytest_xlatune.logs.standstill import Doing, Standstill
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.result import Outcome, State, Submission
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.secure_files import MODES
from pytest_xlatune.workers import probe_environment
from pytest_xlatune.workers.probe_environment import code_digest
from tests.executors.replies import Scripted
from tests.helpers.payloads import PATH, Start, is_gone, outcome, trainer
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
    found, is_refused = outcome(tmp_path), spec is None or bool(spec.files)
    assert (found.state, found.exit_code, found.signal) == (State.FAILED, code, signal)
    assert found.is_started is (reason == "" or is_refused)
    assert reason in found.reason
    assert (found.start_s is None) is is_refused
    assert before_s <= (found.start_s or before_s) <= (found.end_s or 0.0) <= time.time()


def test_the_environment_is_what_the_spec_says(tmp_path: Path, start: Start) -> None:
    inherit = ("PATH", "SITE_*", "ABSENT")
    write_spec(tmp_path, LaunchSpec(argv=("env", "-0"), env=AWKWARD, inherit=inherit))
    ours = {"SITE_A": "1, 2", "GONE": "g", "SECRET_TOKEN": "s3cret", "SITEX": "x"}
    start(tmp_path, environ=ours).wait(LIMIT_S)
    lines = (tmp_path / "log.0.txt").read_bytes().removesuffix(b"\0").split(b"\0")
    found = dict(line.split(b"=", 1) for line in lines)
    expected = {**AWKWARD, **PATH, "SITE_A": "1, 2"}
    assert found == {
        name.encode(): value.encode("utf-8", "surrogateescape") for name, value in expected.items()
    }


def test_a_secret_is_in_no_part_of_the_spec_that_stays(tmp_path: Path, start: Start) -> None:
    secret = "hush-hush"
    tmp_path.chmod(MODES["group"])  # others may read what lies in it
    spec = LaunchSpec(
        argv=("sh", "-c", f"stat -c %a {payload.SECRETS} a.sh b.sh # {secret}", "steps=5"),
        env={**PATH, "HF_TOKEN": secret, "BANNER": f"welcome {secret}", "LEVEL": "4"},
        files={"a.sh": f"echo {secret}\n", "b.sh": "true\n"},
    )
    write_spec(tmp_path, spec)
    kept = (tmp_path / payload.SPEC).read_text()
    assert secret not in kept
    assert all(each in kept for each in ("steps=5", '"4"', "true")), "what is no secret stays"
    assert (tmp_path / payload.SECRETS).read_text().count(secret) == 4
    start(tmp_path).wait(LIMIT_S)
    assert (tmp_path / "log.0.txt").read_text().split() == ["600", "600", "640"]
    for name, stays in ((payload.SECRETS, False), ("a.sh", False), ("b.sh", True)):
        assert (tmp_path / name).exists() is stays, "secrets go with the trial"


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
    assert code_digest(str(tmp_path)).endswith(" Python files")
    (tmp_path / ".git").mkdir()
    os.mkfifo(tmp_path / ".git" / "HEAD")
    assert probe_environment.repositories([str(tmp_path), trainer]) == {}


# a trainer with a child in its group, and one that left it for a session of its own
FAMILY = """
{deaf}
sleep 300 & echo $! >near
setsid sh -c 'echo $$ >far; exec sleep 300' &
until [ -s far ]; do sleep 0.05; done
{then}
"""
WAIT, DEAF = "wait", "trap '' TERM"


def family(folder: Path, *, deaf: str = "", then: str = WAIT, deadline_s: int = 300) -> None:
    argv = ("sh", "-c", FAMILY.format(deaf=deaf, then=then))
    write_spec(folder, LaunchSpec(argv=argv, env=PATH, deadline_s=deadline_s))


def relatives(folder: Path) -> list[int]:
    """Wait for the trainer and its children; return their ids."""
    pid, files = trainer(folder).pid, (folder / "near", folder / "far")
    until(lambda: all(each.exists() and each.stat().st_size for each in files))
    return [pid, *(int(each.read_text()) for each in files)]


@rows(
    "deaf, then, sent, state, signal",
    {
        "SIGTERM": ("", WAIT, "SIGTERM", State.CANCELLED, 15),
        "it exits 0 on SIGTERM": ("trap 'exit 0' TERM", WAIT, "SIGTERM", State.CANCELLED, None),
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
    running = start(tmp_path, grace_s=0.3 if deaf == DEAF else LIMIT_S)
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


READS = """
import os
def wait_for_data():
    open("ready", "w").close()
    os.read(os.pipe()[0], 1)
wait_for_data()
"""


def hung(folder: Path, start: Start, *argv: str, **said: str) -> Standstill:
    """Run a trainer, ask what it does once it is ready, and return the answer."""
    write_spec(folder, LaunchSpec(argv=argv, env={"PATH": "/usr/bin:/bin", **said}, deadline_s=300))
    running = start(folder, grace_s=0.3)
    until((folder / "ready").exists)
    until((folder / "started.json").exists)
    assert not ask_what_hangs(folder)
    until(lambda: ask_what_hangs(folder))
    running.terminate()
    running.wait()
    found = read_standstill(folder, steps={0: 7}, is_sure=True)
    assert found is not None
    return found


def test_the_stacks_of_python_below_a_shell(tmp_path: Path, start: Start) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    # the site's own customization is run as before
    (theirs / "sitecustomize.py").write_text("import builtins; builtins.OF_THE_SITE = 1")
    (tmp_path / "train.py").write_text(f"OF_THE_SITE\n{READS}")
    argv = ("bash", "-c", f"{sys.executable} train.py; true")
    found = hung(tmp_path, start, *argv, XLATUNE_STACKS="always", PYTHONPATH=str(theirs))
    (stand,) = found.stands
    assert (stand.doing, stand.at, stand.step) == (Doing.READS, "train.py:6 wait_for_data", 7)
    assert stand.on.startswith("pipe:[")
    assert found.behind == (), "one rank is behind none"
    look = json.loads((tmp_path / "hang.json").read_text())
    assert [bool(each["stacks"]) for each in look["processes"]] == [False, True]
    assert outcome(tmp_path).state == "cancelled"
    # what the trainer prints is the trainer's: bash may say that its child was ended before it
    assert (tmp_path / "log.0.txt").read_text() in ("", "Terminated\n")


CATCHES = "import signal\nsignal.signal(47, lambda *_: open('caught', 'w').close())\n"


def test_without_the_hook_the_kernel_still_tells(tmp_path: Path, start: Start) -> None:
    """A program that may start a container; a process that catches the signal is sent none."""
    (tmp_path / "train.py").write_text(CATCHES + READS)
    (stand,) = hung(tmp_path, start, "sh", "-c", f"{sys.executable} train.py; true").stands
    # of two processes without stacks and threads it is the one that began last
    assert (stand.doing, stand.at) == (Doing.READS, "")
    assert outcome(tmp_path).signal == 15, "no signal of ours has ended it"
    assert not (tmp_path / "caught").exists()


RANKS = """
import os, time
if os.environ["RANK"] == "2": os._exit(3)
open("ready" + os.environ["RANK"], "w").close()
time.sleep(300)
"""
LAUNCH = """
import os, subprocess, sys, time
of = lambda n: {**os.environ, "RANK": str(n), "WORLD_SIZE": "4"}
ranks = [subprocess.Popen([sys.executable, "train.py"], env=of(n)) for n in range(4)]
while not all(os.path.exists(f"ready{n}") for n in (0, 1, 3)): time.sleep(0.05)
open("ready", "w").close()
time.sleep(300)
"""


def test_of_one_payload_s_ranks_the_one_that_died_is_behind(tmp_path: Path, start: Start) -> None:
    """Its launcher waits for none of them: the dead one stays a zombie."""
    (tmp_path / "train.py").write_text(RANKS)
    (tmp_path / "launch.py").write_text(LAUNCH)
    found = hung(tmp_path, start, sys.executable, "launch.py")
    assert found.behind == (2,)
    assert "its program has ended" in sentence(found.why)
    doing = [each.doing for each in sorted(found.stands, key=lambda each: each.rank)]
    assert doing == [Doing.SLEEPS, Doing.SLEEPS, Doing.GONE, Doing.SLEEPS]


def test_a_deadline_says_nothing_of_ranks_whose_logs_went_on(tmp_path: Path, start: Start) -> None:
    (tmp_path / "train.py").write_text("import time\nprint('x', flush=True)\ntime.sleep(300)\n")
    write_spec(tmp_path, LaunchSpec(argv=(sys.executable, "train.py"), deadline_s=2))
    start(tmp_path, grace_s=0.3).wait()
    assert outcome(tmp_path).state == "timeout"
    assert (tmp_path / "hang.json").exists()
    assert read_standstill(tmp_path, steps={}) is None


PROCESS = {"host": "h", "boot_id": "b", "pid": 4711, "start_ticks": 7, "at_s": 1.0}


def good(**changed: Any) -> str:
    values = {"state": "completed", "exit_code": 0, "signal": None, "nodes": ["n1"], "reason": ""}
    return json.dumps({**values, "start_s": 1.0, "end_s": 2.0, **changed})


Damage = Callable[[Path], object] | str  # what is done to a file, or its text
DAMAGES: dict[str, Damage] = {
    "torn": '{"state": "compl',
    "a list": "[1, 2]",
    "100,000 brackets": "[" * 100_000,
    "an integer of 5,000 digits": '{"exit_code": ' + "9" * 5000 + "}",
    "nodes of another kind": good(nodes={"n1": 1}),
    "an end of the year 30 million": good(end_s=1e15),
    "a folder": Path.mkdir,
    "a link to itself": lambda path: path.symlink_to(path.name),
}


def put(path: Path, damage: Damage) -> None:
    if isinstance(damage, str):
        path.write_text(damage, encoding="utf-8")
    else:
        damage(path)


@rows("damage", DAMAGES)
def test_an_outcome_that_cannot_be_read_has_failed(tmp_path: Path, damage: Damage) -> None:
    path = tmp_path / "outcome.json"
    put(path, damage)
    put(tmp_path / "outcome.1.json", good())
    found = read_outcomes(tmp_path)
    assert found[1].state is State.COMPLETED
    assert (found[0].state, found[0].is_unreadable) == (State.FAILED, True)
    assert str(path) in found[0].reason
    assert Outcome.from_json(json.loads(json.dumps(found[0].to_json()))) == found[0]


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "outcome.json", good())
    error: OSError = PermissionError(13, "Permission denied")

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(secure_files.Folder, "open", refuse)
    assert "outcome.json: Permission denied" in read_outcomes(tmp_path)[0].reason
    error = OSError(116, "Stale file handle")  # which is waited for
    with pytest.raises(OSError, match="Stale"):
        read_outcomes(tmp_path)


@rows("error", {"exFAT": errno.EPERM, "an object store": errno.ENOTSUP, "FUSE": errno.ENOSYS})
def test_a_claim_is_made_once_where_there_are_no_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "link", refuse)
    with secure_files.Folder(tmp_path) as folder:
        assert [folder.create("claimed.json", text) for text in (b"1", b"2")] == [True, False]
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("claimed.json", "1")]


@rows(
    "damage",
    {
        **DAMAGES,
        "no process": json.dumps({**PROCESS, "pid": -1}),
        "no time of ours": json.dumps({**PROCESS, "at_s": 1e300}),
        "no file": lambda _: None,
    },
)
def test_no_other_file_of_an_attempt_ends_a_session(tmp_path: Path, damage: Damage) -> None:
    """`step.json` says in which allocation a step is, `ended.json` how its srun ended."""
    folder = tmp_path / "run" / "a.1"
    folder.mkdir(parents=True)
    for name in ("claimed", "started", "environment", "spec"):
        put(folder / f"{name}.json", damage)
    for name in (STEP, ENDED):
        put(folder / name, damage)
    assert (read_claim(folder), read_started(folder), read_spec(folder)) == (None, None, None)
    assert read_environments(folder) == ()
    payload.forget_secrets(folder)
    step = Submission(
        trial_id="a", attempt=1, executor="allocation", job_id="step-1", folder="run/a.1"
    )
    executor = AllocationExecutor(environ={}, run=Scripted())
    executor.cancel([step], root=tmp_path)
    found = executor.poll([step], root=tmp_path)["step-1"]
    assert (found.state, found.is_unreadable) == (State.FAILED, True)
    assert (folder / payload.CANCEL).exists()


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
