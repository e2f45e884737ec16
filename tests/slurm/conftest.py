"""The lab for the tests: one per machine, the first test process starts it, one test at a time."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from filelock import FileLock

from pytest_xlatune.executors import Request
from pytest_xlatune.executors.slurm import SlurmExecutor
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import Outcome, State, Submission
from pytest_xlatune.model.trial import LaunchSpec, Trial
from tests.helpers.ledger_lines import whole_lines

HERE = Path(__file__).parent
ROUNDS = "lab_rounds"


def load(name: str) -> ModuleType:
    """Import a file beside this one: `tests/` is no package."""
    spec = importlib.util.spec_from_file_location(f"xlatune_slurm_{name}", HERE / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def require(lab: ModuleType, *, accounting: bool = False) -> None:
    """Skip where the lab cannot run; in CI that is an error, for there it must."""
    if why := lab.missing(accounting=accounting):
        if os.environ.get("CI"):
            pytest.fail(f"CI runs the Slurm tests and does not skip them, but {why}")
        pytest.skip(f"no Slurm to test on: {why}")


@pytest.hookimpl(tryfirst=True)  # before the tests of other parts are left out
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave all but a sample to `make test-all`.

    The tests that need slurmdbd are the last, so that the lab is started afresh for them once.
    """
    sample = load("sample").SAMPLE
    for item in items:
        is_told = item.get_closest_marker("part") or item.nodeid.rpartition("/")[2] in sample
        if item.path.parent == HERE and not is_told:
            item.add_marker(pytest.mark.part("slurm"))
    items.sort(key=lambda item: "accounting" in getattr(item, "fixturenames", ()))


@pytest.fixture(scope="session")
def lab_in_use(one_at_a_time: FileLock) -> Iterator[ModuleType]:
    """A lab that is up; the last test process to leave stops it, unless a person started it."""
    lab = load("lab")
    require(lab)
    guard = FileLock(f"{lab.FOLDER}.lock")
    me = lab.FOLDER / lab.USERS / str(os.getpid())
    # in the middle of another process's test the lab may look dead, and must not be started afresh
    with one_at_a_time, guard:
        is_up = lab.is_up()
        started_by_tests = me.parent.exists() or not is_up
        before = lab.has_accounting()
        others = [user.name for user in me.parent.iterdir()] if me.parent.exists() else []
        if not is_up or (started_by_tests and not lab.is_configured_so()):
            lab.start()
        else:
            lab.mend()  # of a process that was killed in the middle of a test
        if started_by_tests:
            lab.note_users([me.name, *others])
    yield lab
    with one_at_a_time, guard:
        if me.exists():
            me.unlink()
            if not any(Path("/proc", user.name).exists() for user in me.parent.iterdir()):
                lab.stop()
        elif lab.has_accounting() != before:  # a person's
            lab.restart(accounting=before)


@pytest.fixture(scope="session")
def one_at_a_time() -> FileLock:
    return FileLock(f"{load('lab').FOLDER}.test.lock")


@pytest.fixture(scope="session")
def accounting(lab_in_use: ModuleType) -> None:
    """Asks that the lab has slurmdbd, by being asked for."""
    require(lab_in_use, accounting=True)


@pytest.fixture
def lab(
    request: pytest.FixtureRequest,
    lab_in_use: ModuleType,
    one_at_a_time: FileLock,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[ModuleType]:
    """The lab to oneself, all nodes idle; whatever a test did to it is mended afterwards."""
    wants_accounting = "accounting" in request.fixturenames
    with one_at_a_time:
        if lab_in_use.has_accounting() != wants_accounting:
            lab_in_use.restart(accounting=wants_accounting)
        for name, value in lab_in_use.environment().items():
            monkeypatch.setenv(name, value)
        yield lab_in_use
        lab_in_use.mend()


class Trials:
    """Submits and watches trials on the lab."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.executor = self.new_executor()

    def new_executor(self, **options: Any) -> SlurmExecutor:
        """An executor that remembers nothing, as another process would have it."""
        return SlurmExecutor(**{"round_s": 0.3, **options})

    def arguments(
        self, name: str, nodelist: Sequence[str] = ("node001", "node002"), **resources: Any
    ) -> dict[str, Any]:
        return {
            "folder": self.root / name / "1",
            "job_name": f"xl-{name}",
            "comment": f"xlatune:{self.root.name}:{name}:1",
            "nodelist": tuple(nodelist),
            "resources": Resources(**{"time_limit_s": 600, **resources}),
        }

    def submit(
        self,
        name: str,
        command: str | Sequence[str],
        nodelist: Sequence[str] = ("node001", "node002"),
        *,
        spec: dict[str, Any] | None = None,
        **resources: Any,
    ) -> Submission:
        argv = ("bash", "-c", command) if isinstance(command, str) else tuple(command)
        job_id = self.executor.submit(
            LaunchSpec(argv=argv, **({"inherit": ("PATH",)} | (spec or {}))),
            Request(**self.arguments(name, nodelist, **resources)),
        )
        return Submission(
            trial_id=name, attempt=1, executor="slurm", job_id=job_id, folder=f"{name}/1"
        )

    def folder(self, submission: Submission) -> Path:
        return self.root / submission.folder

    def log(self, submission: Submission, rank: int = 0) -> str:
        return (self.folder(submission) / f"log.{rank}.txt").read_text()

    def poll(self, submission: Submission) -> Outcome:
        return self.executor.poll([submission], root=self.root)[submission.job_id]

    def end(self, submission: Submission) -> Outcome:
        """Wait until Slurm says that it is over."""
        wait_until(lambda: self.poll(submission).state.is_final)
        return self.poll(submission)

    def running(self, submission: Submission, ranks: int = 2) -> None:
        """Wait until the trainer runs on every rank."""
        folder = self.folder(submission)
        wait_until(lambda: len(list(folder.glob("started*.json"))) == ranks)
        wait_until(lambda: self.poll(submission).state is State.RUNNING)


@pytest.fixture
def trials(lab: ModuleType, tmp_path: Path) -> Trials:
    return Trials(tmp_path)


def wait_until(ready: Callable[[], bool], *, timeout_s: float = 240) -> None:
    deadline = time.monotonic() + timeout_s
    while not ready():
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s"
        time.sleep(0.1)


@pytest.fixture(name="wait_until")
def wait_until_fixture() -> Callable[..., None]:
    return wait_until


def slurm(*argv: str) -> str:
    """Run one of Slurm's commands as an operator would."""
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=240)
    return done.stdout


@pytest.fixture(name="slurm")
def slurm_fixture(lab: ModuleType) -> Callable[..., str]:
    return slurm


def is_whole(outcome: Path) -> bool:
    """Whether a payload says that its trainer ran to its end; a damaged file says nothing."""
    try:
        return bool(json.loads(outcome.read_text(encoding="utf-8"))["state"] == "completed")
    except (ValueError, TypeError, KeyError, RecursionError):
        return False


class Project:
    """A user's folder with one sweep in it, and what sessions of pytest left behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._started: list[subprocess.Popen[bytes]] = []
        shutil.copy(HERE / f"{ROUNDS}.py", path)

    def start(self, sweep: str, *args: str) -> subprocess.Popen[bytes]:
        """Start a session in the background; its words are in `said`."""
        argv = [sys.executable, "-m", "pytest", sweep, "-p", "no:cacheprovider", *args]
        argv += ["-p", ROUNDS]
        argv += ["--xlatune-workdir", str(self.path / "work")]
        argv += ["--xlatune-reports", str(self.path / "reports")]
        with (self.path / f"session.{len(self._started)}.txt").open("wb") as said:
            process = subprocess.Popen(
                argv, cwd=self.path, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._started.append(process)
        return process

    def run(self, sweep: str, *args: str, timeout_s: float = 360) -> str:
        """Run a session to its end and return its words."""
        self.start(sweep, *args).wait(timeout_s)
        return self.said

    @property
    def said(self) -> str:
        """What the last session printed, each live line as one line."""
        path = self.path / f"session.{len(self._started) - 1}.txt"
        return re.sub(r"\n  (?=\S)", " ", path.read_text(encoding="utf-8", errors="replace"))

    def end(self) -> None:
        for process in self._started:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Every event of this kind in the ledger."""
        return [
            line
            for path in sorted(self.path.glob("work/*/*/ledger*.jsonl"))
            for line in whole_lines(path)
            if line["event"] == kind
        ]

    @property
    def submitted(self) -> list[str]:
        """The trials that were submitted, by job."""
        return [line["submission"]["trial_id"] for line in self.events("attempt-submitted")]

    @property
    def measured(self) -> list[str]:
        """The trials that have a score, in the order they ended."""
        return [
            line["result"]["trial"]["profile"]["id"]
            for line in self.events("trial-ended")
            if line["result"]["status"] == "measured"
        ]

    def losses(self) -> tuple[int, int]:
        """How many trials ran to their end without a result in the ledger, and how many twice.

        One that ended before our cancel reached it is not lost: the next session reads it.
        """
        whole: dict[tuple[str, str], int] = {}  # two sweeps of one cell have the same trials
        for path in self.path.glob("work/*/*/*/*/outcome.json"):
            if is_whole(path):
                sweep = path.relative_to(self.path / "work").parts[0]
                of = sweep, path.parent.name.rpartition(".")[0]
                whole[of] = whole.get(of, 0) + 1
        ended = {Trial.from_json(line["result"]["trial"]).id for line in self.events("trial-ended")}
        left = {line["trial_id"] for line in self.events("attempt-let-go")}
        lost = sum(trial_id not in ended | left for _, trial_id in whole)
        return lost, sum(count > 1 for count in whole.values())

    def jobs(self, lab: ModuleType) -> int:
        """How many jobs Slurm itself has seen of this folder, by its job completion file."""
        completed = Path(lab.FOLDER, "log", "jobcomp.txt").read_text(encoding="utf-8")
        return completed.count(f"WorkDir={self.path}")


@pytest.fixture
def project(
    lab: ModuleType, tmp_path: Path, record_property: Callable[[str, object], None]
) -> Iterator[Project]:
    made = Project(tmp_path)
    yield made
    made.end()
    if made.events("campaign-opened"):
        lost, doubled = made.losses()
        record_property("lost", lost)
        record_property("doubled", doubled)


@pytest.fixture
def faults(project: Project, wait_until: Callable[..., None]) -> Iterator[Any]:
    """A sweep with a pretending trainer on two nodes; `pretend.py` says what it can be told."""
    made = load("pretend").Faults(project, wait_until)
    yield made
    made.go.touch()
