"""Trials of this machine without processes of their own, for sessions of pytest inside a test.

`QuickExecutor` is the local executor but for one thing: a trial has run when `submit` returns. Its
folder holds what the payload writes: the spec, the log, the outcome. A trainer that is a plain
Python file runs in this process (a millisecond instead of half a second), every other program as
one process. What the payload, kills or two sessions at once do is tried where they are the subject.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_xlatune import secure_files
from pytest_xlatune.executors import Request, payload
from pytest_xlatune.executors.folder import DEVICES, write_spec
from pytest_xlatune.executors.local import LocalExecutor
from pytest_xlatune.model.errors import SubmissionError
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.workers import probe_environment

_OURS, _git = Path(__file__).parents[2], probe_environment._git
# a program with one of these words needs a process of its own
NEEDS_A_PROCESS = (
    *("jax", "runpy", "subprocess", "multiprocessing", "threading"),
    *("signal.signal", "setsid", "setrlimit"),
)


class QuickExecutor(LocalExecutor):
    """The local executor whose trials are over when they are submitted."""

    beside = ""  # the trials of this profile run as ever, beside the session that looks at them

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        folder, here = request.folder, {os.uname().nodename, "localhost"}
        is_beside = self.beside and folder.name.startswith(f"{self.beside}-")
        if is_beside or set(request.nodelist) - here or request.resources.nodes > 1:
            return super().submit(spec, request)  # which refuses other nodes
        if (known := payload.read_job(folder)) is None:
            write_spec(folder, spec)
            known = {"job_id": f"{os.getpid()}.{time.monotonic_ns()}", "comment": request.comment}
            secure_files.write_json(folder / payload.JOB, known)
            secure_files.write_json(folder / payload.name_of("outcome"), _run(folder.absolute()))
            payload.forget_secrets(folder)
            secure_files.restrict_modes(folder)
        elif known["comment"] != request.comment:
            raise SubmissionError(f"{folder} already holds the attempt {known['comment']!r}")
        return known["job_id"]


def _run(folder: Path) -> dict[str, Any]:
    with payload.Folder(folder) as opened:
        spec = payload._read_spec(opened)
        for name, text in spec.get("files", {}).items():
            payload._write_file(opened, name, text)
        for name in spec.get("folders", ()):
            secure_files.make_folder(Path(name), opened.mode)

    def fill(text: str) -> bytes:
        return payload.filled(text, folder, 0)

    argv = [os.fsdecode(fill(word)) for word in spec["argv"]]
    environment = payload._environment(spec, fill, 0)
    start_s = time.time()
    started = {**payload.identity(os.getpid()), "at_s": start_s}
    secure_files.write_json(folder / payload.name_of("claimed"), started)
    run = _run_here if _is_plain(argv) else _run_apart
    try:
        code, said = run(argv, environment, Path(spec.get("cwd") or folder), spec["deadline_s"])
    except OSError as error:
        reason = f"{argv[0]} could not be started: {payload._why(error, argv[0])}"
        return payload._outcome("failed", start_s=start_s, reason=reason, is_started=False)
    secure_files.write_json(folder / payload.name_of("started"), started)
    with (folder / payload.log_name()).open("ab") as log:
        log.write(said)
    if code is None:
        reason = f"killed after {spec['deadline_s']} s, the trial's deadline"
        return payload._outcome("timeout", start_s=start_s, reason=reason, signal=9)
    if spec.get("node_health"):
        _ask_node(spec["node_health"], folder)
    if code == 0 and (folder / payload.PROBE).exists() and spec.get("probe"):
        told = {
            "name": os.uname().nodename,
            "problems": [],
            **_environment(spec, folder, environment),
        }
        secure_files.write_json(folder / payload.name_of("environment"), told)
    ended = {"exit_code": code} if code >= 0 else {"signal": -code}
    return payload._outcome("failed" if code else "completed", start_s=start_s, **ended)


def _is_plain(argv: list[str]) -> bool:
    if len(argv) < 2 or argv[0] != sys.executable or not argv[1].endswith(".py"):
        return False
    with contextlib.suppress(OSError):
        text = Path(argv[1]).read_text(encoding="utf-8")
        return not any(word in text for word in NEEDS_A_PROCESS)
    return False


def _run_apart(
    argv: list[str], environment: Mapping[bytes, bytes], cwd: Path, deadline_s: float
) -> tuple[int | None, bytes]:
    try:
        done = subprocess.run(
            argv, env=environment, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, check=False, timeout=deadline_s, start_new_session=True,
        )  # fmt: skip
    except subprocess.TimeoutExpired as late:
        return None, late.stdout or b""
    return done.returncode, done.stdout


class _KilledError(BaseException):
    """The program ended itself by a signal."""


def _run_here(
    argv: list[str], environment: Mapping[bytes, bytes], cwd: Path, deadline_s: float
) -> tuple[int | None, bytes]:
    said, until_s = io.StringIO(), time.monotonic() + deadline_s
    sleep, kill = time.sleep, os.kill

    def sleep_until_the_deadline(seconds: Any) -> None:
        if time.monotonic() + seconds > until_s:
            raise TimeoutError
        sleep(seconds)

    def kill_what_runs(pid: int, number: int) -> None:
        if pid != os.getpid():
            return kill(pid, number)
        raise _KilledError(number)

    code: int | None = 0
    names = {"__name__": "__main__", "__file__": argv[1], "__builtins__": __builtins__}
    time.sleep, os.kill = sleep_until_the_deadline, kill_what_runs
    try:
        with _as_the_program(argv[1:], environment, cwd, said):
            exec(_compiled(argv[1], Path(argv[1]).read_text(encoding="utf-8")), names)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            said.write(f"{end.code}\n")
    except _KilledError as killed:
        code = -int(killed.args[0])
    except TimeoutError:
        code = None
    except Exception:  # noqa: BLE001 - of the program
        said.write(traceback.format_exc())
        code = 1
    finally:
        time.sleep, os.kill = sleep, kill
    return code, said.getvalue().encode("utf-8", "surrogateescape")


@functools.lru_cache(maxsize=64)
def _compiled(path: str, text: str) -> Any:
    return compile(text, path, "exec")


@contextlib.contextmanager
def _as_the_program(
    argv: list[str], environment: Mapping[bytes, bytes], cwd: Path, said: io.StringIO
) -> Iterator[None]:
    before = dict(os.environb), sys.argv, Path.cwd(), list(sys.path)
    os.environb.clear()
    os.environb.update(environment)
    sys.argv = argv
    sys.path.insert(0, str(Path(argv[0]).parent))
    os.chdir(cwd)
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            yield
    finally:
        os.environb.clear()
        os.environb.update(before[0])
        sys.argv, sys.path[:] = before[1], before[3]
        os.chdir(before[2])


def _ask_node(argv: list[str], folder: Path) -> None:
    """Write down what the site's command tells of this node."""
    environment = payload._environment({"inherit": payload._HEALTH_INHERITS}, os.fsencode, 0)
    code, said = _run_apart(argv, environment, folder, payload.HEALTH_S)
    lines = [each.strip() for each in said.decode("utf-8", "replace").splitlines()]
    told = {"name": payload._node(), "lines": [each for each in lines if each]}
    told["problem"] = f"exit {code}" if code else ""
    secure_files.write_json(folder / payload.name_of("health"), told)


def _environment(
    spec: Mapping[str, Any], folder: Path, environment: Mapping[bytes, bytes]
) -> dict[str, Any]:
    """Return what the probe tells of the node and of the trainer's interpreter and code.

    JAX is not asked for devices: that costs two seconds a cell in each session.
    """
    probe = [word for word in spec["probe"] if word != DEVICES]
    node = [sys.executable, payload.PROBE, "node", *spec.get("paths", ())]
    found, inside = (_told(argv, folder, environment) for argv in (node, probe))
    places = {**found.get("repositories", {}), **inside.get("repositories", {})}
    problems = [*found["problems"], *inside["problems"]]
    return {**found, **inside, "repositories": places, "problems": problems}


def _told(argv: Sequence[str], folder: Path, environment: Mapping[bytes, bytes]) -> dict[str, Any]:
    """Return what the probe answers; in this process where it is asked of our interpreter."""
    words = [word.replace("{xlatune.folder}", str(folder)) for word in argv]
    if words[0] == sys.executable and not environment.get(b"PYTHONPATH"):
        heard = io.StringIO()
        with _as_the_program(words[1:], environment, folder, heard):
            probe_environment.main(words[2:])
        said = heard.getvalue().encode("utf-8", "surrogateescape")
    else:
        _, said = _run_apart(words, environment, folder, payload.PROBE_S)
    told = [line for line in said.splitlines() if line.startswith(payload._PROBE_MARK)]
    if not told:
        return {"problems": [said.decode("utf-8", "replace")]}
    found: dict[str, Any] = json.loads(told[-1][len(payload._PROBE_MARK) :])
    return found


def git_but_once(top: Path, *words: str) -> str | None:
    """Ask git as the probe does; our own repository stays as it is while the tests run."""
    return _git_of_ours(*words) if top == _OURS else _git(top, *words)


@functools.cache
def _git_of_ours(*words: str) -> str | None:
    return _git(_OURS, *words)
