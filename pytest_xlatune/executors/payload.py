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
import errno
import fcntl
import importlib.util
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
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
# Texts of the spec that contain a secret, such as HF_TOKEN. Other users may read the spec, which
# therefore has `{xlatune.secret}<index>` instead.
SECRETS = "secrets.json"
SECRET_MARK = "{xlatune.secret}"  # noqa: S105 - no password
CANCEL = "cancel"
JOB = "job.json"  # id and comment of a local job; the id is `<pid>.<start in clock ticks>`
_SUBMITTING = "submit.lock"  # held until the job is recorded, and its process has read that
HUNG = "hung"  # file that asks each rank of a hanging job to record what its processes do
STACKS = "stacks"  # the folder of the hook by which a Python process writes its stacks
_HUNG_POLL_S = 5.0  # seconds between two checks for the file HUNG
# variable of a trainer's processes: the lock of the machine that was held when they were started
HELD_LOCK = "XLATUNE_HELD_LOCK"
PROBE = "xlatune_environment.py"  # reports what the trial ran on; in the folder only if requested
PROBE_S = 60.0  # the most time that the probe may take before the trainer starts
_PROBE_MARK = b"xlatune-environment: "  # the beginning of the probe's line of JSON
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
_HEALTH_BYTES = 1 << 20  # the most that it may write
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
    import hashlib  # it loads OpenSSL, which most processes that import this module do not need

    return hashlib.sha256(b"%d %b%b" % (len(spec), spec, secrets)).hexdigest()


def forget_secrets(folder: Path) -> None:
    """Remove the secrets of a trial, which it needs only until it has ended."""
    with contextlib.suppress(OSError), Folder(folder) as opened:
        try:
            files = json.loads(opened.read(SPEC)).get("files", {}).items()
            marked = [name for name, text in files if text.startswith(SECRET_MARK)]
        except (OSError, ValueError, RecursionError, AttributeError):  # its content may be anything
            marked = []
        for name in (SECRETS, *marked):
            with contextlib.suppress(OSError, ValueError):
                _in_its_folder(opened, name, lambda below, last: below.remove(last))


def start_ticks(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None when it is gone or a zombie.

    The time distinguishes a process from a later process with the same id.
    """
    return process.start_ticks if (process := _stat(pid)) else None


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
    opened = Folder(Path(folder).absolute())
    rank = int(os.environ.get("SLURM_PROCID") or 0)
    stop = _Stop()
    # our files get the permissions of their folder; the trainer keeps its own umask
    umask = os.umask(0o777 & ~opened.mode)
    claim = {**identity(os.getpid()), "at_s": time.time()}
    # if a session is killed while it submits, the next one submits again: two jobs may then start
    if not opened.create(name_of("claimed", rank), json.dumps(claim).encode("ascii")):
        return {"state": "failed", "reason": "another payload has claimed this attempt"}
    try:
        outcome = _run(opened, rank, machine_lock, stop, umask, digest=digest)
    # without an outcome the campaign would wait for the attempt
    except Exception as error:  # noqa: BLE001
        outcome = _outcome("failed", reason=f"the payload failed: {type(error).__name__}: {error}")
    if rank == 0:
        forget_secrets(opened.path)
    _write(opened, name_of("outcome", rank), outcome)
    if outcome["state"] != "completed" and "SLURM_PROCID" in os.environ:
        sys.exit(outcome["exit_code"] or 128 + (outcome["signal"] or 0))
    return outcome


def is_inherited(name: str, names: Iterable[str]) -> bool:
    """Return whether `names` has a variable; `SLURM_*` means all that begin with `SLURM_`."""
    return any(
        name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
        for pattern in names
    )


def inherited(names: Iterable[str]) -> dict[bytes, bytes]:
    """Return the variables of our environment that are in `names`, byte for byte."""
    names = tuple(names)
    return {
        name: value
        for name, value in os.environb.items()
        if is_inherited(name.decode("utf-8", "surrogateescape"), names)
    }


class _Stop:
    """Lets a wait end early, when a signal arrives or a child ends.

    Attributes:
        reason: which stop signal the payload has received, as a sentence; "" if none so far.
    """

    def __init__(self) -> None:
        self.reason = ""
        self._pipe, write_end = os.pipe()
        os.set_blocking(write_end, False)
        os.set_blocking(self._pipe, False)
        # the interpreter writes the number of each signal here, so none is lost between two waits
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in (*_STOP_SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)

    def wait(self, timeout_s: float) -> None:
        """Sleep until a signal comes, or the timeout is over."""
        if select.select([self._pipe], [], [], max(0.0, timeout_s))[0]:
            for number in os.read(self._pipe, 4096):
                if number in _STOP_SIGNALS and not self.reason:
                    self.reason = f"cancelled by {signal.Signals(number).name}"


def _run(
    folder: Folder, rank: int, machine_lock: str, stop: _Stop, umask: int, *, digest: str
) -> dict[str, Any]:
    # the files that the scheduler wrote so far
    secure_files.restrict_modes(folder.path / "submitit")
    spec = _read_spec(folder, digest)
    if machine_lock:
        spec["env"][HELD_LOCK] = machine_lock
    for name, text in spec.get("files", {}).items():
        _write_file(folder, name, text, is_secret=name in spec["secret_files"])
    for name in spec.get("folders", ()):
        secure_files.make_folder(Path(name), folder.mode)
    with contextlib.suppress(OSError):  # a trial runs without the hook too
        _write_file(folder, f"{STACKS}/sitecustomize.py", _HOOK)
        # else Python creates it with the trainer's umask, and others might write code into it
        secure_files.make_folder(folder.path / STACKS / "__pycache__", folder.mode)
    with _machine(machine_lock, stop, folder) as has_machine:
        if not has_machine or folder.has(CANCEL):
            return _outcome("cancelled", reason=stop.reason or "cancelled before the start")
        with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
            _record_environment(spec, folder, rank, stop, umask)
        if stop.reason:
            return _outcome("cancelled", reason=stop.reason)
        return _train(spec, folder, rank, stop, umask)


def _read_spec(folder: Folder, digest: str = "") -> dict[str, Any]:
    """Return the spec with its secrets filled in.

    Its added field `secret_files` has the names of the files that contain a secret.

    Raises:
        ValueError: it is not the spec that was submitted.
    """
    plain, secret_bytes = folder.read(SPEC), b""
    spec: dict[str, Any] = json.loads(plain)
    texts = (*spec["argv"], *spec.get("env", {}).values(), *spec.get("files", {}).values())
    if any(text.startswith(SECRET_MARK) for text in texts):
        secret_bytes = folder.read(SECRETS)
    if digest and digest_of(plain, secret_bytes) != digest:
        raise ValueError(
            f"{SPEC} was changed after this job was submitted, so it was not run; find out what "
            "changed it"
        )
    secrets = json.loads(secret_bytes or b"[]")

    def with_secret(text: str) -> str:
        is_mark = text.startswith(SECRET_MARK)
        return secrets[int(text.removeprefix(SECRET_MARK))] if is_mark else text

    files = spec.get("files", {}).items()
    spec["secret_files"] = {name for name, text in files if text.startswith(SECRET_MARK)}
    for kind in ("env", "files"):
        spec[kind] = {name: with_secret(text) for name, text in spec.get(kind, {}).items()}
    return spec | {"argv": [with_secret(word) for word in spec["argv"]]}


def _train(
    spec: Mapping[str, Any], folder: Folder, rank: int, stop: _Stop, umask: int
) -> dict[str, Any]:
    start_s, began_s = time.time(), time.monotonic()
    try:
        trainer = _start(spec, folder, rank, umask, has_hook=True)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        program = (*spec["argv"], "no program")[0]
        shown = program if program.isprintable() else repr(program)
        reason = f"{shown} could not be started: {_why(error, program)}"
        return _outcome("failed", start_s=start_s, reason=reason, is_started=False)
    try:
        process = {**identity(trainer.pid), "at_s": start_s}
        _write(folder, name_of("started", rank), process)
        deadline_s = began_s + spec["deadline_s"]
        _wait_for(trainer, folder, rank, stop, deadline_s)
        # a scheduler signals the trainer and us together; on a busy node the trainer may end first
        late_s = time.monotonic() + (_LATE_SIGNAL_S if _is_stop_signal(trainer.poll()) else 0.0)
        while not stop.reason and time.monotonic() < late_s:
            stop.wait(late_s - time.monotonic())
        ended_by_itself, end_s = trainer.poll() is not None, time.time()
    finally:
        _end_everything(trainer, stop)
    code = trainer.returncode
    # a trainer that has succeeded is measured, even if a stop signal arrives before its end is seen
    if ended_by_itself and (code == 0 or not stop.reason):
        state, reason = ("completed" if code == 0 else "failed"), ""
    elif stop.reason:
        state, reason = "cancelled", stop.reason
    else:
        state, reason = "timeout", f"killed after {spec['deadline_s']} s, the trial's deadline"
    ended: dict[str, Any] = {"exit_code": code} if code is None or code >= 0 else {"signal": -code}
    if state == "completed":
        ended["end_s"] = end_s
    outcome = _outcome(state, start_s=start_s, reason=reason, **ended)
    if spec.get("node_health") and not stop.reason:
        left_s = min(HEALTH_S, deadline_s - time.monotonic())
        with contextlib.suppress(OSError, ValueError, subprocess.SubprocessError):
            _record_health(spec["node_health"], folder, rank, stop, umask, left_s=left_s)
    return outcome


def _wait_for(
    trainer: subprocess.Popen[bytes], folder: Folder, rank: int, stop: _Stop, deadline_s: float
) -> None:
    """Wait for the trainer's end, a signal or the deadline; examine a trainer that hangs."""
    is_examined = False
    while trainer.poll() is None and not stop.reason and time.monotonic() < deadline_s:
        stop.wait(min(deadline_s - time.monotonic(), _HUNG_POLL_S))
        if not is_examined and trainer.poll() is None and folder.has(HUNG):
            _look_at_hang(folder, rank)
            is_examined = True
    if not is_examined and trainer.poll() is None and not stop.reason:
        _look_at_hang(folder, rank)  # the trainer is past its deadline
    stop.wait(0)  # a signal that has arrived by now is the reason of the end


def _look_at_hang(folder: Folder, rank: int) -> None:
    """Record what the trainer's processes do now; a failure does not cost the trial."""
    with contextlib.suppress(Exception):
        path = Path(__file__).with_name("look_at_hang.py")
        module_spec = importlib.util.spec_from_file_location("look_at_hang", path)
        if module_spec is not None and module_spec.loader is not None:
            look_at_hang = importlib.util.module_from_spec(module_spec)
            module_spec.loader.exec_module(look_at_hang)
            log, stacks = folder.path / log_name(rank), folder.path / _stacks_name(rank)
            record = look_at_hang.examine(os.getpid(), stacks=stacks, log=log, rank=rank)
            _write(folder, name_of("hang", rank), {"node": _node(), **record})


def _stacks_name(rank: int) -> str:
    return f"{STACKS}/{rank}.txt"


def _record_environment(
    spec: Mapping[str, Any], folder: Folder, rank: int, stop: _Stop, umask: int
) -> None:
    """Record what the trial is about to run on, once for each node.

    The trainer has not started, so this disturbs no measurement, and the code that is recorded is
    the code that the trainer will read. A failure does not cost the trial.
    """
    if os.environ.get("SLURM_LOCALID", "0") != "0" or not folder.has(PROBE):
        return
    environment: dict[str, Any] = {"name": _node(), "problems": []}
    name = name_of("environment", rank)
    log = f"{name.removesuffix('.json')}.txt"
    until_s = time.monotonic() + PROBE_S
    node = [sys.executable, "-I", "-S", str(folder.path / PROBE), "node", *spec.get("paths", ())]
    probes = [node, spec["probe"]] if spec.get("probe") else [node]
    for argv in probes:
        before = len(folder.read(log)) if folder.has(log) else 0
        program = _start({**spec, "argv": argv}, folder, rank, umask, log=log)
        was_late = _is_late(program, stop, until_s)
        lines = folder.read(log)[before:].splitlines(keepends=True)
        answers = [line for line in lines if line.startswith(_PROBE_MARK) and line.endswith(b"\n")]
        if answers:
            answer = json.loads(answers[-1][len(_PROBE_MARK) :])
            environment["problems"] += answer.pop("problems")
            repositories = {**environment.get("repositories", {}), **answer.get("repositories", {})}
            environment |= {**answer, "repositories": repositories}
        else:
            why = f"no answer in {PROBE_S:.0f} s" if was_late else f"exit {program.returncode}"
            environment["problems"].append(f"{' '.join(argv[:1])}: {why}; see {log}")
    _write(folder, name, environment)


def _is_late(program: subprocess.Popen[bytes], stop: _Stop, until_s: float) -> bool:
    """Wait for a program, end what is left of it, and return whether it ran too long."""
    try:
        while program.poll() is None and not stop.reason and time.monotonic() < until_s:
            stop.wait(until_s - time.monotonic())
        return program.poll() is None
    finally:
        _end_everything(program, stop)


def _record_health(
    argv: list[str], folder: Folder, rank: int, stop: _Stop, umask: int, *, left_s: float
) -> None:
    """Record what the site's command reports about this node, once for each node.

    The trainer has ended, so this does not disturb a measurement. The command gets none of the
    trainer's environment. If the command fails, that is recorded, and the trial stays as it is.
    """
    if os.environ.get("SLURM_LOCALID", "0") != "0":
        return
    name = name_of("health", rank)
    log = f"{name.removesuffix('.json')}.txt"
    health: dict[str, Any] = {"name": _node(), "lines": [], "problem": ""}
    try:
        command_spec = {"argv": argv, "inherit": _HEALTH_INHERITS}
        program = _start(command_spec, folder, rank, umask, log=log, most_bytes=_HEALTH_BYTES)
        if _is_late(program, stop, time.monotonic() + left_s):
            health["problem"] = f"no answer in {max(left_s, 0):.0f} s"
        elif program.returncode < 0:
            health["problem"] = f"signal {-program.returncode}"
        elif program.returncode:
            health["problem"] = f"exit {program.returncode}"
        with os.fdopen(folder.open(log), "rb") as file:
            text = file.read(_HEALTH_BYTES).decode("utf-8", "replace")
        health["lines"] = [stripped for line in text.splitlines() if (stripped := line.strip())]
    except OSError as error:
        health["problem"] = f"{argv[0]} could not be started: {error.strerror or error}"
    _write(folder, name, health)


def _why(error: Exception, program: str) -> str:
    """Return why a program did not start, with the name of what was not found."""
    text = (error.strerror if isinstance(error, OSError) else None) or f"{error}"
    if isinstance(error, FileNotFoundError):
        name = os.fsdecode(error.filename or program)
        if name != program:  # the working directory
            return f"{text}: {name}"
        if "/" not in name:
            return f"{text}; it is not on the job's PATH, write the whole path"
    return text


def _is_stop_signal(code: int | None) -> bool:
    """Return whether an exit code means a stop signal: -15, or 143 as a shell reports it."""
    return code is not None and (-code in _STOP_SIGNALS or code - 128 in _STOP_SIGNALS)


def _start(
    spec: Mapping[str, Any],
    folder: Folder,
    rank: int,
    umask: int,
    *,
    log: str = "",
    has_hook: bool = False,
    most_bytes: int = 0,
) -> subprocess.Popen[bytes]:
    # the command and its working directory use the path, which may lead to another folder by now
    if not folder.is_in_place:
        raise ValueError(f"another folder has taken the place of {folder.path}")
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    # an orphan that left the trainer's process group becomes our child, and so cannot escape
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    parent = os.getpid()

    def die_with_parent() -> None:
        os.umask(umask)
        if most_bytes:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(1)

    def fill(text: str) -> bytes:
        return filled(text, folder.path, rank)

    environment = _environment(spec, fill, rank)
    if has_hook:
        _hook(environment, spec["argv"][0], folder, rank)
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with os.fdopen(folder.open(log or log_name(rank), append), "ab") as written:
        return subprocess.Popen(
            [fill(word) for word in spec["argv"]],
            env=environment,
            cwd=spec.get("cwd") or folder.path,
            stdin=subprocess.DEVNULL,
            stdout=written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - four system calls, no threads of ours
        )


def _hook(environment: dict[bytes, bytes], program: str, folder: Folder, rank: int) -> None:
    """Have each interpreter of a trainer run our hook, if the trainer's program is Python.

    Another program may start a container, and our PYTHONPATH would replace that of its image; then
    only XLATUNE_STACKS=always enables the hook. An empty value always disables it.
    """
    is_python = Path(program).name.startswith("python")
    when = environment.get(b"XLATUNE_STACKS", b"always" if is_python else b"")
    hook_path = os.fsencode(folder.path / STACKS)
    if when == b"always" and b":" not in hook_path:  # PYTHONPATH separates paths by a colon
        environment[b"XLATUNE_STACKS"] = os.fsencode(folder.path / _stacks_name(rank))
        former_path = environment.get(b"PYTHONPATH")
        environment[b"PYTHONPATH"] = hook_path + (b":" + former_path if former_path else b"")


def _end_everything(trainer: subprocess.Popen[bytes], stop: _Stop) -> None:
    """End the trainer and all our descendants by SIGTERM, then by SIGKILL until none is left.

    A process that left the trainer's session gets SIGTERM only after the trainer has ended, because
    the trainer may need it until then: a container's monitor, for example, would lose the last
    lines of the log.
    """
    if not _is_anything_left(trainer):
        return
    until_s = time.monotonic() + GRACE_S
    _signal_all(signal.SIGTERM, session=trainer.pid)
    is_ended = False
    while _is_anything_left(trainer) and time.monotonic() < until_s:
        if not is_ended and trainer.returncode is not None:
            is_ended = True
            _signal_all(signal.SIGTERM)
        stop.wait(_REAP_POLL_S)
    until_s = time.monotonic() + _REAP_LIMIT_S
    while _is_anything_left(trainer) and time.monotonic() < until_s:
        _signal_all(signal.SIGKILL)  # again and again: they may fork
        stop.wait(_REAP_POLL_S)


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


def _signal_all(number: signal.Signals, session: int | None = None) -> None:
    """Signal our descendants that belong to a session; all our descendants if it is None."""
    processes = _processes()
    family = {os.getpid()}
    while children := {pid for pid, one in processes.items() if one.parent in family} - family:
        family |= children
    for pid in family - {os.getpid()}:
        if session in (None, processes[pid].session):
            _kill(pid, number)


def _kill(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


class _Process(NamedTuple):
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
    if state in "ZX":
        return None
    return _Process(int(fields[0]), int(fields[2]), int(fields[18]))


def _processes() -> dict[int, _Process]:
    names = (entry.name for entry in Path("/proc").iterdir())
    processes = ((int(name), _stat(int(name))) for name in names if name.isdigit())
    return {pid: process for pid, process in processes if process is not None}


@contextlib.contextmanager
def _machine(lock: str, stop: _Stop, folder: Folder) -> Iterator[bool]:
    """Hold the machine's lock in the block; yield False if we must stop before we have it."""
    if not lock:
        yield True
        return
    with os.fdopen(secure_files.open_lock(Path(lock))) as file:
        while not _try_lock(file.fileno()):
            stop.wait(_LOCK_POLL_S)
            # a payload that was cancelled before its claim has received no signal
            if stop.reason or folder.has(CANCEL):
                yield False
                return
        _end_leftovers(lock)
        yield True


def _end_leftovers(lock: str) -> None:
    """Kill what a payload that was killed left running, and wait for its end.

    A payload that is not killed ends all that was started under its lock before it releases it.
    Since we hold the lock, a process with its path in the environment has lost its payload. Only
    the processes of this user can be read.
    """
    mark = _bytes(f"{HELD_LOCK}={lock}")
    until_s = time.monotonic() + _REAP_LIMIT_S
    while time.monotonic() < until_s:
        left = [pid for pid in _processes() if pid != os.getpid() and _has_variable(pid, mark)]
        if not left:
            return
        for pid in left:
            _kill(pid, signal.SIGKILL)
        time.sleep(_REAP_POLL_S)


def _has_variable(pid: int, variable: bytes) -> bool:
    with contextlib.suppress(OSError):
        return variable in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return False


def _try_lock(descriptor: int) -> bool:
    """Lock an open file; return whether that worked at once."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


def filled(text: str, folder: Path, rank: int) -> bytes:
    """Return a word of the command, or a variable's value, with the folder and rank filled in."""
    text = text.replace("{xlatune.folder}", str(folder))
    return _bytes(text.replace("{xlatune.rank}", str(rank)))


def _environment(
    spec: Mapping[str, Any], fill: Callable[[str], bytes], rank: int
) -> dict[bytes, bytes]:
    environment = inherited(spec.get("inherit", ()))
    for name in ("env",) if rank else ("env", "first_env"):
        environment |= {
            _bytes(variable): fill(value) for variable, value in spec.get(name, {}).items()
        }
    return environment


def _bytes(text: str) -> bytes:
    """Encode a text independently of the node's locale; undecodable bytes are restored."""
    return text.encode("utf-8", "surrogateescape")


def boot() -> tuple[str, str]:
    """Return this machine's host name and the id of its current boot."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    return os.uname().nodename, boot_id.strip()


def identity(pid: int) -> dict[str, Any]:
    """Return what distinguishes a process of this machine from later ones of the same id."""
    host, boot_id = boot()
    return {"host": host, "boot_id": boot_id, "pid": pid, "start_ticks": start_ticks(pid) or 0}


def _outcome(state: str, **fields: Any) -> dict[str, Any]:
    """Return an `Outcome` as JSON, whose end is now if `fields` name no other time."""
    empty = {"exit_code": None, "signal": None, "start_s": None, "reason": ""}
    return {"state": state, "nodes": [_node()], "end_s": time.time(), **empty, **fields}


def _node() -> str:
    # on a machine with several slurmd only the variable distinguishes its nodes
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename


def _write_file(folder: Folder, name: str, text: str, *, is_secret: bool = False) -> None:
    mode = 0o600 if is_secret else None

    def write(below: Folder, last: str) -> None:
        below.write(last, _bytes(text), mode=mode)

    _in_its_folder(folder, name, write)


def _in_its_folder(folder: Folder, name: str, do: Callable[[Folder, str], None]) -> None:
    """Call `do` with the opened folder that a file of a spec is in, and with the file's name."""
    *folders, last = Path(name).parts or ("",)
    if Path(name).is_absolute() or ".." in (*folders, last) or not last:
        raise ValueError(f"files: {name!r} leads out of the attempt's folder")
    with contextlib.ExitStack() as opened:
        for part in folders:
            folder = opened.enter_context(folder.below(part))
        do(folder, last)


def _write(folder: Folder, name: str, data: Mapping[str, Any]) -> None:
    folder.write(name, json.dumps(data).encode("ascii"))


def payload_argv(folder: Path, *words: str) -> list[str]:
    """Return the command that runs `main`, isolated because it needs no other packages."""
    return [sys.executable, "-I", "-S", "-B", __file__, str(folder), *words]


def main() -> None:
    """Run this rank's share of the attempt whose folder and spec's digest are the arguments.

    If a lock of the machine and a comment follow, the attempt is submitted on this machine: its job
    gets a new process and a new session, and is recorded before it runs.

    Raises:
        OSError: the job could not be recorded, so nothing runs.
    """
    folder, *words = sys.argv[1:]
    digest, lock, comment = (*words, "", "", "")[:3]
    if comment and not _becomes_job(Path(folder), comment):
        return
    try:
        run(folder, lock, digest)
    except OSError as error:
        sys.stderr.write(f"the trial was not started: {error}\n")
        sys.exit(1)
    os._exit(0)  # nothing is left to close, and the next trial waits for our end


def _becomes_job(folder: Path, comment: str) -> bool:
    """Fork, and return whether this is the process that is recorded as the job.

    If a session is killed, its submission goes on, and the next session submits the attempt again:
    the second submission waits for the lock of the first, and finds its job. If the submission
    itself is killed, its end of the pipe closes, and the child checks if it is recorded as the job.
    """
    with os.fdopen(secure_files.open_lock(folder / _SUBMITTING)) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if read_job(folder) is not None:
            return False
        # the parent never writes: the child reads until the parent has ended
        read_end, write_end = os.pipe()
        child = os.fork()
        if child:
            secure_files.write_json(folder / JOB, {"job_id": _job_id(child), "comment": comment})
            return False
        os.setsid()
        os.close(write_end)
        os.read(read_end, 1)
        job = read_job(folder)
        return job is not None and job["job_id"] == _job_id(os.getpid())


def _job_id(pid: int) -> str:
    return f"{pid}.{start_ticks(pid) or 0}"


def read_job(folder: Path) -> dict[str, str] | None:
    """Return the job of an attempt; None if there is none, or its file cannot be read.

    Submitting an attempt again after None is safe, because only one payload can claim it.
    """
    try:
        job = json.loads(secure_files.read_bytes(folder / JOB))
        fields = {name: str(job[name]) for name in ("job_id", "comment")}
    except (ValueError, KeyError, TypeError, RecursionError, NotOursError):
        return None
    except OSError as error:
        if error.errno in (errno.ENOENT, *secure_files.NO_FILE):
            return None
        raise
    # 4711.123456
    return fields if re.fullmatch(r"[0-9]+\.[0-9]+", fields["job_id"]) else None


if __name__ == "__main__":
    main()
