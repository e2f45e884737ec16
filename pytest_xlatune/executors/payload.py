"""Runs one rank of one trial on its node: environment, process, log, deadline, outcome.

It imports only the standard library and the file of `secure_files`, so a node needs no more than an
interpreter and these two files. It knows nothing about submitit, and of Slurm only the variables
with its rank and node. It runs whatever command the spec names, and does not interpret its output.

It runs only what was submitted: its folder is opened once and must belong to this user, and the
digest of the spec's file must be the one in the job's script.

The package's docstring lists the files. Only the node knows the attempt's folder and the rank, so
two marks are replaced here in `argv` and in the values of `env`: `{xlatune.folder}` and
`{xlatune.rank}`.
"""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import hashlib
import importlib.util
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING or __name__.startswith("pytest_xlatune."):
    from pytest_xlatune import secure_files
else:  # a script, on a node that cannot import our package
    _spec = importlib.util.spec_from_file_location(
        "secure_files", Path(__file__).parents[1] / "secure_files.py"
    )
    secure_files = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(secure_files)

Folder = secure_files.Folder
NotOursError = secure_files.NotOursError
SPEC = "spec.json"
# What of the spec contains a secret, such as HF_TOKEN. Other users may read the spec, which
# therefore has a mark instead.
SECRETS = "secrets.json"
SECRET_MARK = "{xlatune.secret}"  # noqa: S105 - no password
CANCEL = "cancel"
HUNG = "hung"  # file that asks each rank of a hanging job to record what its processes do
_STACKS = "stacks"  # the folder of the hook by which a Python process writes its stacks
_HUNG_POLL_S = 5.0  # seconds between two checks for the file HUNG
# variable of a trainer's processes: the lock of the machine that was held when they were started
HELD_LOCK = "XLATUNE_HELD_LOCK"
PROBE = "xlatune_environment.py"  # reports what the trial ran on; in the folder only if requested
PROBE_S = 60.0  # the most time that the probe may take before the trainer starts
_PROBE_MARK = "xlatune-environment: "  # the beginning of the probe's line of JSON
# An interpreter runs this text when it starts, and then writes its stacks at each signal 47. The
# sitecustomize of the trainer's environment runs after it.
_HOOK = """\
import os, sys
try:
    import faulthandler, fcntl
    _opened = os.open(os.environ["XLATUNE_STACKS"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    _descriptor = fcntl.fcntl(_opened, fcntl.F_DUPFD_CLOEXEC, 200)
    os.close(_opened)
    faulthandler.register(47, file=_descriptor, all_threads=True)
except Exception:
    pass
_folder = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [_path for _path in sys.path if os.path.abspath(_path) != _folder]
_this_module = sys.modules.pop(__name__)
try:
    import sitecustomize
except ImportError as _error:
    if getattr(_error, "name", "sitecustomize") != "sitecustomize":
        raise
finally:
    sys.modules.setdefault(__name__, _this_module)
"""
HEALTH_S = 30.0  # the most time that the site's command about a node may take
_HEALTH_INHERITS = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "SLURM_*", "SLURMD_NODENAME")
_REPORT_BYTES = 1 << 20  # the most of a report that is read
GRACE_S = 5.0  # between SIGTERM and SIGKILL
_LOCK_POLL_S = 0.25
_REAP_POLL_S = 0.05  # seconds between two checks for processes that are still there
# how long we wait for killed processes, because one in an uninterruptible wait outlives SIGKILL
_REAP_LIMIT_S = 10.0
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_LATE_SIGNAL_S = 5.0  # how much later than the trainer the payload may receive a stop signal
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h


def name_of(kind: str, rank: int = 0) -> str:
    """Return the name of a rank's JSON file; `kind` is its first word, such as `outcome`."""
    return f"{kind}.{rank}.json" if rank else f"{kind}.json"


def log_name(rank: int = 0) -> str:
    """Return the name of a rank's log."""
    return f"log.{rank}.txt"


def digest_of(spec: bytes, secrets: bytes) -> str:
    """Return the digest of a spec and its secrets; `secrets` is b"" if there are none."""
    return hashlib.sha256(b"%d %b%b" % (len(spec), spec, secrets)).hexdigest()


def forget_secrets(folder: Path) -> None:
    """Remove the secrets of a trial, which it needs only until it has ended."""
    with contextlib.suppress(OSError), Folder(folder) as opened:
        try:
            files = json.loads(opened.read(SPEC)).get("files", {}).items()
            marked = [name for name, text in files if text == SECRET_MARK]
        except (OSError, ValueError, RecursionError, AttributeError):  # its content may be anything
            marked = []
        for name in (SECRETS, *marked):
            with contextlib.suppress(OSError, ValueError), _place_of(opened, name) as (below, last):
                below.remove(last)


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None when it is gone or a zombie.

    The time distinguishes a process from a later process with the same id.
    """
    process = _stat(pid)
    return process.start_ticks if process and process.state not in "ZX" else None


def run(folder: str, machine_lock: str = "", digest: str = "") -> dict[str, Any]:
    """Run this rank's share of the attempt in `folder` and return its outcome.

    From here on the trial owns this process, with its signals and all its descendants. If the
    file `machine_lock` is given, the trainer starts only while no other payload holds that lock.
    `digest` is the digest of the submitted spec; "" is not checked.

    Under Slurm an unsuccessful rank ends this process with the trainer's exit status, so that
    `srun --kill-on-bad-exit` ends the other ranks, and Slurm records the job as FAILED.

    Raises:
        NotOursError: the folder is not this user's; nothing was started.
    """
    attempt = _Attempt(Folder(Path(folder).absolute()), int(os.environ.get("SLURM_PROCID") or 0))
    opened, rank = attempt.folder, attempt.rank
    claim = {**identity(os.getpid()), "at_s": time.time()}
    # if a session is killed while it submits, the next one submits again: two jobs may then start
    if not opened.create(name_of("claimed", rank), json.dumps(claim).encode("ascii")):
        return {"state": "failed", "reason": "another payload has claimed this attempt"}
    try:
        outcome = _run(attempt, machine_lock, digest)
    except Exception as error:  # noqa: BLE001 - without an outcome the campaign would wait for it
        outcome = _outcome("failed", reason=f"the payload failed: {type(error).__name__}: {error}")
    if rank == 0:
        forget_secrets(opened.path)
    _write(attempt, "outcome", outcome)
    if outcome["state"] != "completed" and "SLURM_PROCID" in os.environ:
        sys.exit(outcome["exit_code"] or 128 + (outcome["signal"] or 0))
    return outcome


def inherited(names: Iterable[str]) -> dict[bytes, bytes]:
    """Return variables of our environment, byte for byte; `SLURM_*` means all that begin so."""
    patterns = [*map(_bytes, names)]
    return {
        name: value
        for name, value in os.environb.items()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)
    }


class _Attempt:
    """This rank's share of an attempt.

    Attributes:
        folder: the folder of the attempt.
        rank: the rank of this process.
        umask: that of the trainer; our files get the permissions of their folder.
        reason: which stop signal the payload has received, as a sentence; "" if none so far.
    """

    def __init__(self, folder: Folder, rank: int) -> None:
        self.folder, self.rank, self.reason = folder, rank, ""
        self.umask = os.umask(0o777 & ~folder.mode)
        self._pipe, write_end = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        # the interpreter writes the number of each signal here, so none is lost between two waits
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in (*_STOP_SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)

    def wait(self, timeout_s: float) -> None:
        """Sleep until a signal arrives, a child ends, or the timeout is over."""
        if select.select([self._pipe], [], [], max(0.0, timeout_s))[0]:
            for number in os.read(self._pipe, 4096):
                if number in _STOP_SIGNALS and not self.reason:
                    self.reason = f"cancelled by {signal.Signals(number).name}"


def _run(attempt: _Attempt, machine_lock: str, digest: str) -> dict[str, Any]:
    folder = attempt.folder
    # the files that the scheduler wrote so far
    secure_files.restrict_modes(folder.path / "submitit")
    spec = _read_spec(folder, digest)
    if machine_lock:
        spec["env"][HELD_LOCK] = machine_lock
    for name, text in spec["files"].items():
        _write_file(folder, name, text, is_secret=name in spec["secret_files"])
    for name in spec.get("folders", ()):
        secure_files.make_folder(Path(name), folder.mode)
    with contextlib.suppress(OSError):  # a trial runs without the hook too
        _write_file(folder, f"{_STACKS}/sitecustomize.py", _HOOK)
        # else Python creates it with the trainer's umask, and others might write code into it
        secure_files.make_folder(folder.path / _STACKS / "__pycache__", folder.mode)
    if machine_lock:
        _take_machine(machine_lock, attempt)
    if not attempt.reason and not folder.has(CANCEL):
        _record_environment(spec, attempt)
    if attempt.reason or folder.has(CANCEL):
        return _outcome("cancelled", reason=attempt.reason or "cancelled before the start")
    return _train(spec, attempt)


def _read_spec(folder: Folder, digest: str = "") -> dict[str, Any]:
    """Return the spec with its secrets filled in.

    Its added field `secret_files` has the names of the files that contain a secret.

    Raises:
        ValueError: it is not the spec that was submitted.
    """
    plain, secret_bytes = folder.read(SPEC), b""
    spec: dict[str, Any] = {"env": {}, "files": {}, **json.loads(plain)}
    if SECRET_MARK in (*spec["argv"], *spec["env"].values(), *spec["files"].values()):
        secret_bytes = folder.read(SECRETS)
    if digest and digest_of(plain, secret_bytes) != digest:
        raise ValueError(
            f"{SPEC} was changed after this job was submitted, so it was not run; find out what "
            "changed it"
        )
    secrets = json.loads(secret_bytes or b'{"argv": [], "env": {}, "files": {}}')
    return {
        **spec,
        "argv": secrets["argv"] or spec["argv"],
        "env": spec["env"] | secrets["env"],
        "files": spec["files"] | secrets["files"],
        "secret_files": [*secrets["files"]],
    }


def _train(spec: Mapping[str, Any], attempt: _Attempt) -> dict[str, Any]:
    start_s, began_s = time.time(), time.monotonic()
    try:
        trainer = _start(spec, attempt)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = _not_started(error, spec["argv"][0])
        return _outcome("failed", start_s=start_s, reason=reason, is_started=False)
    try:
        _write(attempt, "started", {**identity(trainer.pid), "at_s": start_s})
        deadline_s = began_s + spec["deadline_s"]
        _wait_for(trainer, attempt, deadline_s)
        # a scheduler signals the trainer and us together; on a busy node the trainer may end first
        # its exit code then is -15, or 143 as a shell reports it
        code = trainer.poll()
        is_signalled = code is not None and {-code, code - 128} & {*_STOP_SIGNALS}
        until_s = time.monotonic() + (_LATE_SIGNAL_S if is_signalled else 0.0)
        while not attempt.reason and time.monotonic() < until_s:
            attempt.wait(until_s - time.monotonic())
        ended_by_itself, end_s = code is not None, time.time()
    finally:
        _end_everything(trainer, attempt)
    code = trainer.returncode
    reason = ""
    # a trainer that has succeeded is measured, even if a stop signal arrives before its end is seen
    if ended_by_itself and (code == 0 or not attempt.reason):
        state = "completed" if code == 0 else "failed"
    elif attempt.reason:
        state, reason = "cancelled", attempt.reason
    else:
        state, reason = "timeout", f"killed after {spec['deadline_s']} s, the trial's deadline"
    ended: dict[str, Any] = {"exit_code": code} if code is None or code >= 0 else {"signal": -code}
    if state == "completed":
        ended["end_s"] = end_s
    outcome = _outcome(state, start_s=start_s, reason=reason, **ended)
    if spec.get("node_health") and not attempt.reason:
        _record_health(spec["node_health"], attempt, deadline_s)
    return outcome


def _wait_for(trainer: subprocess.Popen[bytes], attempt: _Attempt, deadline_s: float) -> None:
    """Wait for the trainer's end, a signal or the deadline; examine a trainer that hangs."""
    is_examined = False
    while trainer.poll() is None and not attempt.reason:
        is_late = time.monotonic() >= deadline_s
        if not is_examined and (is_late or attempt.folder.has(HUNG)):
            _look_at_hang(attempt)
            is_examined = True
        if is_late:
            break
        attempt.wait(min(deadline_s - time.monotonic(), _HUNG_POLL_S))
    attempt.wait(0)  # a signal that has arrived by now is the reason of the end


def _look_at_hang(attempt: _Attempt) -> None:
    """Record what the trainer's processes do now; a failure does not cost the trial."""
    path = attempt.folder.path
    with contextlib.suppress(Exception):
        program = runpy.run_path(str(Path(__file__).with_name("look_at_hang.py")))
        processes = program["examine"](
            _descendants(),
            stacks=path / f"{_STACKS}/{attempt.rank}.txt",
            log=path / log_name(attempt.rank),
            rank=attempt.rank,
        )
        _write(attempt, "hang", {"node": _node(), **processes})


def _record_environment(spec: Mapping[str, Any], attempt: _Attempt) -> None:
    """Record what the trial is about to run on, once for each node.

    The trainer has not started, so this disturbs no measurement, and the code that is recorded is
    the code that the trainer will read. A failure does not cost the trial.
    """
    if not _is_first_on_node() or not attempt.folder.has(PROBE):
        return
    program, until_s = str(attempt.folder.path / PROBE), time.monotonic() + PROBE_S
    commands = [[sys.executable, "-I", "-S", program, "node", *spec.get("paths", ())]]
    if spec.get("probe"):
        commands.append(spec["probe"])
    problems: list[str] = []
    repositories: dict[str, str] = {}
    environment: dict[str, Any] = {"name": _node()}
    with contextlib.suppress(OSError, ValueError):
        for argv in commands:
            lines, problem = _report({**spec, "argv": argv}, attempt, "environment", until_s)
            answers = [line for line in lines if line.startswith(_PROBE_MARK) and line[-1] == "\n"]
            if answers:
                environment |= json.loads(answers[-1].removeprefix(_PROBE_MARK))
                problems += environment["problems"]
                repositories |= environment.get("repositories", {})
            else:
                why = f"{argv[0]}: {problem or 'no answer'}; see environment.{attempt.rank}.txt"
                problems.append(why)
        more = {"problems": problems, "repositories": repositories}
        _write(attempt, "environment", environment | more)


def _record_health(argv: list[str], attempt: _Attempt, deadline_s: float) -> None:
    """Record what the site's command reports about this node, once for each node.

    The trainer has ended, so this does not disturb a measurement. The command gets none of the
    trainer's environment. If the command fails, that is recorded, and the trial stays as it is.
    """
    if _is_first_on_node():
        spec = {"argv": argv, "inherit": _HEALTH_INHERITS}
        until_s = min(deadline_s, time.monotonic() + HEALTH_S)
        with contextlib.suppress(OSError, ValueError):
            lines, problem = _report(spec, attempt, "health", until_s)
            texts = [text for line in lines if (text := line.strip())]
            _write(attempt, "health", {"name": _node(), "problem": problem, "lines": texts})


def _is_first_on_node() -> bool:
    return os.environ.get("SLURM_LOCALID", "0") == "0"


def _report(
    spec: Mapping[str, Any], attempt: _Attempt, kind: str, until_s: float
) -> tuple[list[str], str]:
    """Run a program that reports something; return its lines, and why it failed or ""."""
    log = f"{kind}.{attempt.rank}.txt"
    before = len(attempt.folder.read(log)) if attempt.folder.has(log) else 0
    try:
        program = _start(spec, attempt, log=log)
    except (OSError, subprocess.SubprocessError) as error:
        return [], _not_started(error, spec["argv"][0])
    try:
        while program.poll() is None and not attempt.reason and time.monotonic() < until_s:
            attempt.wait(until_s - time.monotonic())
        is_late = program.poll() is None
    finally:
        _end_everything(program, attempt)
    code = program.returncode
    problem = ""
    if is_late:
        problem = "no answer in time"
    elif code:
        problem = f"signal {-code}" if code < 0 else f"exit {code}"
    text = attempt.folder.read(log, before + _REPORT_BYTES)[before:].decode("utf-8", "replace")
    return text.splitlines(keepends=True), problem


def _not_started(error: Exception, program: str) -> str:
    """Return why a program did not start, with the name of a folder that was not found."""
    missing = os.fsdecode(getattr(error, "filename", None) or program)
    shown = program if program.isprintable() else repr(program)
    text = getattr(error, "strerror", None) or str(error)
    folder = "" if missing == program else f": {missing}"
    return f"{shown} could not be started: {text}{folder}"


def _start(spec: Mapping[str, Any], attempt: _Attempt, *, log: str = "") -> subprocess.Popen[bytes]:
    """Start the trainer, or a program with a log of its own."""
    folder = attempt.folder
    # the command and its working directory use the path, which may lead to another folder by now
    if not folder.is_in_place:
        raise ValueError(f"another folder has taken the place of {folder.path}")
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    # an orphan that left the trainer's process group becomes our child, and so cannot escape
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    parent = os.getpid()

    def die_with_parent() -> None:
        os.umask(attempt.umask)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(1)

    environment = environment_of(spec, attempt)
    if not log:
        _hook(environment, spec["argv"][0], attempt)
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with os.fdopen(folder.open(log or log_name(attempt.rank), append), "ab") as written:
        return subprocess.Popen(
            [filled(word, attempt) for word in spec["argv"]],
            env=environment,
            cwd=spec.get("cwd") or folder.path,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - four system calls, no threads of ours
        )


def _hook(environment: dict[bytes, bytes], program: str, attempt: _Attempt) -> None:
    """Have each interpreter of a trainer run our hook, if the trainer's program is Python.

    Another program may start a container, and our PYTHONPATH would replace that of its image; then
    only XLATUNE_STACKS=always enables the hook. An empty value always disables it.
    """
    is_python = Path(program).name.startswith("python")
    when = environment.get(b"XLATUNE_STACKS", b"always" if is_python else b"")
    folder = attempt.folder.path / _STACKS
    hook_path = os.fsencode(folder)
    if when == b"always" and b":" not in hook_path:  # PYTHONPATH separates paths by a colon
        environment[b"XLATUNE_STACKS"] = os.fsencode(folder / f"{attempt.rank}.txt")
        paths = (hook_path, environment.get(b"PYTHONPATH"))
        environment[b"PYTHONPATH"] = b":".join(filter(None, paths))


def _end_everything(trainer: subprocess.Popen[bytes], attempt: _Attempt) -> None:
    """End the trainer and all our descendants by SIGTERM, then by SIGKILL until none is left.

    A process that left the trainer's session gets SIGTERM only after the trainer has ended, because
    the trainer may need it until then: a container's monitor, for example, would lose the last
    lines of the log.
    """
    if not _is_anything_left(trainer):
        return
    family = _descendants().items()
    _signal((pid for pid, process in family if process.session == trainer.pid), signal.SIGTERM)
    kill_s, is_ended = time.monotonic() + GRACE_S, False
    while _is_anything_left(trainer) and time.monotonic() < kill_s + _REAP_LIMIT_S:
        if time.monotonic() >= kill_s:
            _signal(_descendants(), signal.SIGKILL)  # again and again: they may fork
        elif not is_ended and trainer.returncode is not None:
            is_ended = True
            _signal(_descendants(), signal.SIGTERM)
        attempt.wait(_REAP_POLL_S)


def _is_anything_left(trainer: subprocess.Popen[bytes]) -> bool:
    """Reap ended processes, and return whether a descendant of ours still runs."""
    if trainer.poll() is None:
        return True
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


class _Process(NamedTuple):
    state: str  # the kernel's letter
    parent: int  # its process id
    session: int  # the id of the session
    start_ticks: int  # when the process started, in clock ticks since boot


def _stat(pid: int) -> _Process | None:
    # 4711 (a (b) c) S 1 4711 4711 0 -1 ...    the name in parentheses may contain any character
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    state, *fields = text.rpartition(")")[2].split()
    return _Process(state, int(fields[0]), int(fields[2]), int(fields[18]))


def _descendants() -> dict[int, _Process]:
    """Return all processes below this one, with those that have ended and were not waited for."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    processes = {pid: process for pid in pids if (process := _stat(pid)) is not None}
    family: dict[int, _Process] = {}
    while children := {
        pid: process
        for pid, process in processes.items()
        if process.parent in (os.getpid(), *family) and pid not in family
    }:
        family |= children
    return family


def _take_machine(lock: str, attempt: _Attempt) -> None:
    """Wait for the machine's lock, until we must stop; this process holds it until it ends."""
    file = secure_files.open_lock(Path(lock))
    # a payload that was cancelled before its claim has received no signal
    while not attempt.reason and not attempt.folder.has(CANCEL):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            attempt.wait(_LOCK_POLL_S)
        else:
            _end_leftovers(lock)
            break


def _end_leftovers(lock: str) -> None:
    """Kill what a payload that was killed left running, and wait for its end.

    A payload that is not killed ends all that was started under its lock before it releases it.
    Since we hold the lock, a process with its path in the environment has lost its payload. Only
    the processes of this user can be read.
    """
    mark = _bytes(f"{HELD_LOCK}={lock}")
    until_s = time.monotonic() + _REAP_LIMIT_S
    while time.monotonic() < until_s:
        left = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    left.append(int(path.parent.name))
        left = [pid for pid in left if pid != os.getpid()]
        if not left:
            return
        _signal(left, signal.SIGKILL)
        time.sleep(_REAP_POLL_S)


def filled(text: str, attempt: _Attempt) -> bytes:
    """Return a word of the command, or a variable's value, with the folder and rank filled in."""
    text = text.replace("{xlatune.folder}", str(attempt.folder.path))
    return _bytes(text.replace("{xlatune.rank}", str(attempt.rank)))


def environment_of(spec: Mapping[str, Any], attempt: _Attempt) -> dict[bytes, bytes]:
    """Return the environment of a program of a trial."""
    variables = dict(spec.get("env", {}))
    if attempt.rank == 0:
        variables |= spec.get("first_env", {})
    ours = {_bytes(variable): filled(value, attempt) for variable, value in variables.items()}
    return {**inherited(spec.get("inherit", ())), **ours}


def _bytes(text: str) -> bytes:
    """Encode a text independently of the node's locale; undecodable bytes are restored."""
    return text.encode("utf-8", "surrogateescape")


def identity(pid: int) -> dict[str, Any]:
    """Return what distinguishes a process of this machine from later ones of the same id.

    Its `start_ticks` are 0 if it has ended.
    """
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    host = os.uname().nodename
    return {"host": host, "boot_id": boot_id, "pid": pid, "start_ticks": start_ticks(pid) or 0}


def _outcome(state: str, **fields: Any) -> dict[str, Any]:
    """Return an `Outcome` as JSON, whose end is now if `fields` name no other time."""
    empty = {"exit_code": None, "signal": None, "start_s": None, "reason": ""}
    return {"state": state, "nodes": [_node()], "end_s": time.time(), **empty, **fields}


def _node() -> str:
    # on a machine with several slurmd only the variable distinguishes its nodes
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def _write_file(folder: Folder, name: str, text: str, *, is_secret: bool = False) -> None:
    with _place_of(folder, name) as (below, last):
        below.write(last, _bytes(text), mode=0o600 if is_secret else None)


@contextlib.contextmanager
def _place_of(folder: Folder, name: str) -> Iterator[tuple[Folder, str]]:
    """Open the folder that a file of a spec is in; yield it and the file's name."""
    *folders, last = Path(name).parts or ("",)
    if Path(name).is_absolute() or ".." in (*folders, last) or not last:
        raise ValueError(f"files: {name!r} leads out of the attempt's folder")
    with contextlib.ExitStack() as opened:
        for part in folders:
            folder = opened.enter_context(folder.below(part))
        yield folder, last


def _write(attempt: _Attempt, kind: str, data: Mapping[str, Any]) -> None:
    attempt.folder.write(name_of(kind, attempt.rank), json.dumps(data).encode("ascii"))


def payload_argv(folder: Path, *words: str) -> list[str]:
    """Return the command that runs `main`, isolated because it needs no other packages."""
    return [sys.executable, "-I", "-S", "-B", __file__, str(folder), *words]


def main() -> None:
    """Run this rank's share; the arguments are the folder, the spec's digest and a lock, if any."""
    folder, digest, lock = (*sys.argv[1:], "", "")[:3]
    try:
        run(folder, lock, digest)
    except OSError as error:
        sys.stderr.write(f"the trial was not started: {error}\n")
        sys.exit(1)
    os._exit(0)  # nothing is left to close, and the next trial waits for our end


if __name__ == "__main__":
    main()
