"""Sessions of pytest inside a test: a tenth of the CPU of a session in a process of its own.

A trial has run when `submit` returns: its payload runs in this process, and so does a trainer that
is a plain Python file (a millisecond instead of half a second).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import os
import pkgutil
import runpy
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

from pytest_xlatune import secure_files
from pytest_xlatune.executors import Request, payload
from pytest_xlatune.executors.folder import DEVICES, write_spec
from pytest_xlatune.executors.local import LocalExecutor
from pytest_xlatune.model.result import StudyRecord
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.sweep.registry import KINDS
from pytest_xlatune.workers import probe_environment
from tests.helpers.waiting import LIMIT_S

# a program with one of these words needs a process of its own
NEEDS_A_PROCESS = (
    *("jax", "runpy", "subprocess", "multiprocessing", "threading"),
    *("signal.signal", "setsid", "setrlimit"),
)


# and so does a trainer that is told to wait, to kill itself, or where its modules are
APART = {b"SLEEP_S", b"HOLD", b"MARK", b"PYTHONPATH"}


class QuickExecutor(LocalExecutor):
    """The local executor whose trials are over when they are submitted."""

    beside = ""  # the trials of this profile run as ever, beside the session that looks at them

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        folder, here = request.folder, {os.uname().nodename, "localhost"}
        is_beside = self.beside and folder.name.startswith(f"{self.beside}-")
        if is_beside or set(request.nodelist) - here or request.resources.nodes > 1:
            return super().submit(spec, request)  # which refuses other nodes
        job = folder / "job.txt"  # the payload of every trial has the process of this session
        if not job.exists():
            digest = write_spec(folder, spec)
            secure_files.write_bytes(job, f"{os.getpid()}.{time.monotonic_ns()}".encode())
            with mock.patch.multiple(payload, **QUICK):
                payload.run(str(folder), digest=digest)
            secure_files.restrict_modes(folder)
        return secure_files.read_text(job)


def _start(
    spec: Mapping[str, Any], at: payload._Attempt, *, log: str = "", **_: object
) -> SimpleNamespace:
    """Run a program of a trial to its end: the trainer, or one with a log of its own."""
    folder = at.folder
    # JAX is not asked for devices: that costs two seconds a cell in each session
    argv = [os.fsdecode(payload.filled(word, at)) for word in spec["argv"] if word != DEVICES]
    environment = payload.environment_of(spec, at)
    cwd = Path(spec.get("cwd") or folder.path)
    limit_s = payload.PROBE_S if log else spec["deadline_s"]
    program = _in_this_process(argv, environment)
    code, said = (
        _run_here(program, argv, environment, cwd)
        if program
        else _run_apart(argv, environment, cwd, limit_s)
    )
    with (folder.path / (log or payload.log_name(at.rank))).open("ab") as written:
        written.write(said)
    # a program that was ended at its deadline has no code yet
    ended = -9 if code is None else code
    return SimpleNamespace(pid=os.getpid(), returncode=ended, poll=lambda: code)


def _ended_by_itself(*_: object) -> None:
    """Wait for no process, and leave none behind: `_start` has done both."""


# what of the payload watches a process
QUICK: dict[str, Any] = {
    "_Attempt": lambda folder, rank: SimpleNamespace(
        folder=folder, rank=rank, reason="", wait=lambda _: None
    ),
    "_start": _start,
    "_wait_for": _ended_by_itself,
    "_end_everything": _ended_by_itself,
    "_LATE_SIGNAL_S": 0.0,
}


def _in_this_process(
    argv: list[str], environment: Mapping[bytes, bytes]
) -> Callable[[], object] | None:
    """Return the program that our own interpreter can run here, if it is one."""
    scripts = [at for at, word in enumerate(argv) if word.endswith(".py")][:1]
    if not scripts or argv[0] != sys.executable or environment.keys() & APART:
        return None
    script, words = argv[scripts[0]], argv[scripts[0] + 1 :]
    if Path(script).name == payload.PROBE:
        return lambda: probe_environment.main(words)
    with contextlib.suppress(OSError):
        text = Path(script).read_text(encoding="utf-8")
        if scripts == [1] and not any(word in text for word in NEEDS_A_PROCESS):
            return lambda: runpy.run_path(script, run_name="__main__")
    return None


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


def _run_here(
    program: Callable[[], object], argv: list[str], environment: Mapping[bytes, bytes], cwd: Path
) -> tuple[int, bytes]:
    said, code = io.StringIO(), 0
    environ = {os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()}
    with contextlib.ExitStack() as stack:
        patched = stack.enter_context(pytest.MonkeyPatch.context())
        stack.enter_context(mock.patch.dict(os.environ, environ, clear=True))
        stack.enter_context(contextlib.redirect_stdout(said))
        stack.enter_context(contextlib.redirect_stderr(said))
        patched.setattr("sys.argv", argv[1:])
        patched.setattr("sys.path", [str(Path(argv[1]).parent), *sys.path])
        patched.chdir(cwd)
        try:
            program()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                said.write(f"{end.code}\n")
        except Exception:  # noqa: BLE001 - of the program
            said.write(traceback.format_exc())
            code = 1
    return code, said.getvalue().encode("utf-8", "surrogateescape")


def load_everything() -> None:
    """Import the product and what it needs, before the first session inside a test.

    Such a session forgets what it has imported itself, and numpy cannot be imported twice.
    """
    import pytest_xlatune

    for name in ("scipy.stats", "submitit", "tabulate", "jinja2"):
        importlib.import_module(name)
    for each in pkgutil.walk_packages(pytest_xlatune.__path__, "pytest_xlatune."):
        if ".workers." not in each.name and not each.name.endswith("__main__"):
            importlib.import_module(each.name)


def run_inside(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    """Run pytest in this process; a trial of this machine has run when it is submitted.

    The test must ask for the fixture `loaded` before `pytester`. Kills and Ctrl-C need
    `pytester.runpytest_subprocess`, two workers `run_with_workers`.
    """
    workers = [
        each for each, after in itertools.pairwise((*args, ""))
        if each.startswith("-n") and (each[2:] or after) != "0"
    ]  # fmt: skip
    assert not workers, args
    with quick_trials(), warnings.catch_warnings(), pytest.MonkeyPatch.context() as patched:
        warnings.simplefilter("default")  # the filters of our own session are no user's
        patched.setattr(sys, "argv", ["pytest", "-p", "xlatune", *args])  # the record quotes it
        # an alarm of the test's own limit would only fail the session's test that waits just then
        return pytester.runpytest_inprocess("-p", "xlatune", f"--timeout={LIMIT_S:.0f}", *args)


@contextlib.contextmanager
def quick_trials() -> Iterator[None]:
    """Have a trial of this machine run when it is submitted: for our command in this process."""
    # a conftest of the session may put something into the executor and into the product's modules
    executor = type(QuickExecutor.__name__, (QuickExecutor,), {})
    with _kept_modules(), pytest.MonkeyPatch.context() as patched:
        patched.setattr("pytest_xlatune.executors.local.LocalExecutor", executor)
        patched.setattr("pytest_xlatune.campaign.TURN_S", 0.05 if QuickExecutor.beside else 0.0)
        patched.setattr("os.fsync", lambda _: None)  # no power fails meanwhile
        yield


def run_with_workers(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    """Run pytest in a process of its own, for `-n 2`; a trial has run when it is submitted."""
    # a folder of its own, beside no `pytest_xlatune`: the installed one is what is tested
    tests = pytester.path.parent / "path-of-the-tests" / "tests"
    if not tests.exists():
        tests.parent.mkdir()
        tests.symlink_to(Path(__file__).parents[1])
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(tests.parent), prepend=os.pathsep)
        return pytester.runpytest_subprocess(
            *("-p", "xlatune", "-p", "tests.helpers.quick_plugin"), *args, timeout=240
        )


@contextlib.contextmanager
def _kept_modules() -> Iterator[None]:
    """Take back what a session puts into the modules of the product, and into its registries."""
    ours = [each for name, each in sys.modules.items() if name.startswith("pytest_xlatune")]
    tables = [*map(vars, ours), KINDS, StudyRecord._kinds]
    before = [dict(each) for each in tables]
    try:
        yield
    finally:
        for table, names in zip(tables, before, strict=True):
            table.clear()
            table.update(names)
