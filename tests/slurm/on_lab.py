"""What the tests do on the lab: trials, sessions of a sweep, a sweep whose trainer pretends.

The trainer only pretends, so that a trial takes a second; Slurm, pytest, the campaign and the
faults around it are real.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.executors import Executor, Request
from pytest_xlatune.executors.slurm import SlurmExecutor
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import Outcome, State, Submission
from pytest_xlatune.model.trial import LaunchSpec, Trial
from tests.helpers.tell_options import TELL_OPTIONS
from tests.helpers.waiting import until
from tests.helpers.words import events_in
from tests.plugin.conftest import DESIGN, HEAD, edited
from tests.slurm import lab

ROUNDS = "lab_rounds"
# a plugin for the sessions: they ask Slurm twice a second, for a trial takes a second
QUICKEN = """\
import functools

def pytest_configure():
    from pytest_xlatune.executors.slurm import SlurmExecutor
    from pytest_xlatune.executors.slurm.allocation import AllocationExecutor
    for each in (SlurmExecutor, AllocationExecutor):
        each.__init__ = functools.partialmethod(each.__init__, round_s=0.5)
"""
TRIALS = 3  # of the sweep of `Faults`: a baseline, the profile with the fault, one more
SLOT = ("--xlatune-nodelist", "node[001-002]")

# a session that begins on nodes where others run asks them for fifteen seconds first
BUSY = """\
from pytest_xlatune.executors.slurm import nodes
nodes._SRUN_WAIT_S = 1
"""
# a node that is resumed is given twelve seconds to answer; that of these tests is dead
NO_HOPE = """\
from pytest_xlatune.executors.slurm import nodes
nodes._RESUME_WAITS_S = nodes._SILENT_WAITS_S = (0.5, 0.5)
"""

# Rank 0 prints MaxText's lines. HOLD: every rank waits for that file first. SAY: a line printed
# after so many steps as UNTIL says, and the job fails with it; with STAYS it stands still instead.
# ONCE: a file that is made then, and after which all is well.
TRAINER = f"""\
import os, pathlib, sys, time
{TELL_OPTIONS}"""
TRAINER += """\
get = os.environ.get
hold, say, stays = get("HOLD"), get("SAY"), get("STAYS")
once = pathlib.Path(os.environ["ONCE"]) if "ONCE" in os.environ else None
is_well = (say is None and stays is None) or (once is not None and once.exists())
print("Show all environment variables:")
print(f"XLA_FLAGS={os.environ['XLA_FLAGS']}", flush=True)
while hold and not os.path.exists(hold):
    time.sleep(0.05)
if os.environ["SLURM_PROCID"] != "0":
    while stays and not is_well:
        time.sleep(1)
    sys.exit(0)
if "MEMSTATS" in os.environ:
    print("Memstats: After params initialized:", flush=True)
for step in range(12 if is_well else int(get("UNTIL", "0"))):
    line = (f"completed step: {step}, seconds: 0.512, TFLOP/s/device: 0.1, "
            f"Tokens/s/device: 1000.{step}, total_weights: 512, loss: {get('LOSS', '7.1')}")
    print(line, flush=True)
if not is_well:
    if once:
        once.touch()
    if say:
        print(say, flush=True)
    while stays:
        time.sleep(1)
    sys.exit(1)
"""


WAVE2 = """

@pytest.mark.wave2
def test_flag(measure, profile):
    measured = measure(profile)
    assert measured.not_slower, measured.paragraph
"""


class Trials:
    executor_name = "slurm"
    layout = "{name}/1"  # the folder of an attempt
    inherit: tuple[str, ...] = ("PATH",)

    def __init__(self, root: Path) -> None:
        self.root = root
        self.executor: Any = self.new_executor()

    def new_executor(self, **options: Any) -> Executor:
        """An executor that remembers nothing, as another process would have it."""
        return SlurmExecutor(**{"round_s": 0.3, **options})

    def arguments(
        self, name: str, nodelist: Sequence[str] = ("node001", "node002"), **resources: Any
    ) -> dict[str, Any]:
        return {
            "folder": self.root / self.layout.format(name=name),
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
        launched = LaunchSpec(argv=argv, **({"inherit": self.inherit} | (spec or {})))
        return self.launch(name, launched, nodelist, **resources)

    def launch(
        self,
        name: str,
        spec: LaunchSpec,
        nodelist: Sequence[str] = ("node001", "node002"),
        **resources: Any,
    ) -> Submission:
        request = Request(**self.arguments(name, nodelist, **resources))
        return Submission(
            trial_id=name,
            attempt=1,
            executor=self.executor_name,
            job_id=self.executor.submit(spec, request),
            folder=self.layout.format(name=name),
        )

    def folder(self, submission: Submission) -> Path:
        return self.root / submission.folder

    def log(self, submission: Submission, rank: int = 0) -> str:
        return (self.folder(submission) / f"log.{rank}.txt").read_text()

    def poll(self, submission: Submission) -> Outcome:
        outcome: Outcome = self.executor.poll([submission], root=self.root)[submission.job_id]
        return outcome

    def end(self, submission: Submission) -> Outcome:
        until(lambda: self.poll(submission).state.is_final)
        return self.poll(submission)

    def running(self, submission: Submission, ranks: int = 2) -> None:
        """Wait until the trainer runs on every rank."""
        folder = self.folder(submission)
        until(lambda: len(list(folder.glob("started*.json"))) == ranks)
        until(lambda: self.poll(submission).state is State.RUNNING)


def slurm(*argv: str) -> str:
    """Run one of Slurm's commands as an operator would."""
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=240)
    return done.stdout


class Project:
    """A user's folder with one sweep in it, and what sessions of pytest left behind."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._started: list[subprocess.Popen[bytes]] = []
        (path / f"{ROUNDS}.py").write_text(QUICKEN, encoding="utf-8")

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
        return events_in(self.path.glob("work/*/*/ledger*.jsonl"), kind)

    @property
    def submitted(self) -> list[str]:
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

        One that ended before our cancel reached it is not lost: the next session reads it. On a
        disk that was full the file of an end is empty.
        """
        whole: dict[tuple[str, str], int] = {}  # two sweeps of one cell have the same trials
        for path in self.path.glob("work/*/*/*/*/outcome.json"):
            if path.stat().st_size and json.loads(path.read_text())["state"] == "completed":
                sweep = path.relative_to(self.path / "work").parts[0]
                of = sweep, path.parent.name.rpartition(".")[0]
                whole[of] = whole.get(of, 0) + 1
        ended = {Trial.from_json(line["result"]["trial"]).id for line in self.events("trial-ended")}
        left = {line["trial_id"] for line in self.events("attempt-let-go")}
        lost = sum(trial_id not in ended | left for _, trial_id in whole)
        return lost, sum(count > 1 for count in whole.values())

    @property
    def jobs(self) -> int:
        """How many jobs Slurm itself has seen of this folder, by its job completion file."""
        completed = Path(lab.FOLDER, "log", "jobcomp.txt").read_text(encoding="utf-8")
        return completed.count(f"WorkDir={self.path}")


def declare(**profiles: dict[str, str]) -> str:
    """Return the declaration of profiles, by their names, with these variables."""
    return ", ".join(
        f'profile("{name}", "--xla_{name}=1", env={env!r})' for name, env in profiles.items()
    )


class Faults:
    """A project with the sweep above, on two nodes."""

    def __init__(self, project: Project) -> None:
        self.project = project
        self.path = project.path
        self.go = self.path / "go"

    def write(
        self, declared: str, *, conftest: str = "", patience: str = "", held: bool = False
    ) -> None:
        """Write the sweep with these profiles, the trainer beside it, and the site's conftest.

        `held`: every trial waits for `go`, so that others wait behind the first that runs.
        """
        patient = f"resources=Resources(time_limit_s=300, patience=Patience({patience}))"
        # the trainer's own variables; no program would print them
        unseen = ("HOLD", "SAY", "STAYS", "ONCE", "UNTIL", "MEMSTATS", "LOSS")
        sweep = edited(
            HEAD + WAVE2,
            ('"pretend",\n    cell', '"faults",\n    cell'),
            ("FSDP=4", "FSDP=2"),
            ("deployed={", f'deployed={{"HOLD": {str(self.go)!r}, ' if held else "deployed={"),
            (', "{steps}", "{trial}"', ""),
            ("        PROFILES\n", f"{declared},"),
            ('executor="local"', f"{patient}, unseen={unseen}"),
            (DESIGN, "        screen_baselines=1, budget=40,\n"),
        )
        (self.path / "trainer.py").write_text(TRAINER)
        (self.path / "test_sweep.py").write_text(sweep)
        (self.path / "conftest.py").write_text(conftest)

    def start_held(
        self, *args: str, slot: tuple[str, ...] = SLOT, **files: Any
    ) -> subprocess.Popen[bytes]:
        """Start a session, and wait until the victim runs, which waits for `go`."""
        self.write(self.profiles(HOLD=str(self.go)), **files)
        session = self.start(*args, slot=slot)
        self.victim()
        return session

    def start(self, *args: str, slot: tuple[str, ...] = SLOT) -> subprocess.Popen[bytes]:
        return self.project.start("test_sweep.py", *slot, *args)

    def run(self, *args: str, slot: tuple[str, ...] = SLOT) -> str:
        return self.project.run("test_sweep.py", *slot, *args)

    def victim(self, which: str = "victim-*.1") -> Path:
        """Wait until the victim runs on all its ranks; return its attempt's folder."""
        found: list[Path] = []

        def is_running() -> bool:
            found[:] = self.path.glob(f"work/*/*/*/{which}/started*.json")
            return len(found) == 2

        until(is_running)
        return found[0].parent

    @staticmethod
    def profiles(**env: str) -> str:
        """Return the declaration of a profile with these variables, and of one more."""
        return declare(victim=env, after={})

    def job(self) -> str:
        return next(
            str(line["submission"]["job_id"])
            for line in self.project.events("attempt-submitted")
            if line["submission"]["trial_id"].startswith("victim")
        )

    def decided(self) -> list[tuple[str, str]]:
        return [(line["next"], line["cls"]) for line in self.project.events("decided")]

    def states(self) -> list[str]:
        return [
            line["outcome"]["state"]
            for line in self.project.events("attempt-ended")
            if line["trial_id"].startswith("victim")
        ]

    def finished(self, process: subprocess.Popen[bytes]) -> str:
        process.wait(240)
        return self.project.said

    def released(self, process: subprocess.Popen[bytes]) -> str:
        """Let the trials that wait go on, and return what the session said in the end."""
        self.go.touch()
        return self.finished(process)

    def assert_measured_once(self) -> None:
        assert sorted(self.project.measured) == ["after", "baseline-deployed", "victim"]

    def assert_complete(self, said: str) -> None:
        assert "2 passed" in said, said
        self.assert_measured_once()

    def assert_undisturbed(self, said: str) -> None:
        """Each trial was measured by the first job that was submitted for it."""
        self.assert_complete(said)
        assert self.decided() == []
        assert len(self.project.submitted) == TRIALS

    def assert_run_again(self, said: str, *, state: str, cls: str) -> None:
        """The victim's first attempt ended in a state, and the second one was measured."""
        self.assert_complete(said)
        assert self.states() == [state, "completed"]
        assert self.decided() == [("retry", cls)]


def put_before(folder: Path, programs: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Put scripts before Slurm's own programs on PATH; {real} in a text is that program."""
    for name, text in programs.items():
        script = folder / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(text.replace("{real}", str(shutil.which(name))))
        script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")


def processes_with(word: str) -> list[Path]:
    """Return the processes of this machine, by their folders in /proc, whose argv has this word."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if word.encode() in path.read_bytes().split(b"\0"):
                found.append(path.parent)
    return found
