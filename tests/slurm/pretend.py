"""A sweep over a trainer that only pretends, so that a trial takes a second, and what it left.

Slurm, pytest, the campaign and the faults around it are real. Loaded by `conftest.py`: `tests/` is
no package.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.helpers.tell_options import TELL_OPTIONS

Project = Any  # of conftest.py, which cannot be imported from here
Wait = Callable[..., None]

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
SWEEP = """\
import sys
from pathlib import Path

import pytest

from pytest_xlatune import (
    CellSettings,
    CommandLauncher,
    DesignSettings,
    Patience,
    Protocol,
    Resources,
    SiteSettings,
    Sweep,
    profile,
)

HERE = Path(__file__).parent
SWEEP = Sweep(
    name="faults",
    cell=CellSettings(
        model_tag="pretend",
        parallelism="FSDP=2",
        deployed={"XLA_FLAGS": "--xla_deployed=1"},
        protocol=Protocol(steps=12),
    ),
    launcher=CommandLauncher(argv=(sys.executable, str(HERE / "trainer.py"))),
    profiles=(PROFILES,),
    site=SiteSettings(
        resources=Resources(time_limit_s=300, patience=Patience(PATIENCE)),
        # the trainer's own; no program would print them
        unseen=("HOLD", "SAY", "STAYS", "ONCE", "UNTIL", "MEMSTATS", "LOSS"),
    ),
    design=DesignSettings(
        screen_baselines=1,
        budget=40,
    ),
)


@pytest.mark.wave2
def test_flag(measure, profile):
    measured = measure(profile)
    assert measured.not_slower, measured.paragraph
"""


class Faults:
    """A project with the sweep above, on two nodes."""

    BUSY, NO_HOPE = BUSY, NO_HOPE

    def __init__(self, project: Project, wait_until: Wait) -> None:
        self.project = project
        self.wait_until = wait_until
        self.path: Path = project.path
        self.go = self.path / "go"

    def write(self, declared: str, *, conftest: str = "", patience: str = "") -> None:
        """Write the sweep with these profiles, the trainer beside it, and the site's conftest."""
        sweep = SWEEP.replace("PROFILES,", declared).replace("PATIENCE", patience)
        (self.path / "trainer.py").write_text(TRAINER)
        (self.path / "test_sweep.py").write_text(sweep)
        (self.path / "conftest.py").write_text(conftest)

    def hold(self, **files: str) -> None:
        """Make the victim wait for `go`."""
        self.write(self.profiles(HOLD=str(self.go)), **files)

    def hold_all(self) -> None:
        """Make every trial wait for `go`, so that others wait behind the first that runs."""
        self.write(self.profiles())
        path = self.path / "test_sweep.py"
        deployed = '"--xla_deployed=1"'
        held = f'{deployed}, "HOLD": {str(self.go)!r}'
        path.write_text(path.read_text().replace(deployed, held))

    def start(self, *args: str, slot: tuple[str, ...] = SLOT) -> subprocess.Popen[bytes]:
        process: subprocess.Popen[bytes] = self.project.start("test_sweep.py", *slot, *args)
        return process

    def run(self, *args: str, slot: tuple[str, ...] = SLOT) -> str:
        return str(self.project.run("test_sweep.py", *slot, *args))

    def victim(self, which: str = "victim-*.1", *, ranks: int = 2) -> Path:
        """Wait until the victim runs on all its ranks; return its attempt's folder."""
        found: list[Path] = []

        def is_running() -> bool:
            found[:] = self.path.glob(f"work/*/*/*/{which}/started*.json")
            return len(found) == ranks

        self.wait_until(is_running)
        return found[0].parent

    @staticmethod
    def profiles(**env: str) -> str:
        """Return the declaration of a profile with these variables, and of one more."""
        return (
            f'profile("victim", "--xla_victim=1", env={env!r}), profile("after", "--xla_after=1")'
        )

    def job(self) -> str:
        """Return the victim's first job id."""
        return next(
            str(line["submission"]["job_id"])
            for line in self.project.events("attempt-submitted")
            if line["submission"]["trial_id"].startswith("victim")
        )

    def decided(self) -> list[tuple[str, str]]:
        return [(line["next"], line["cls"]) for line in self.project.events("decided")]

    def states(self) -> list[str]:
        """How the victim's attempts ended."""
        return [
            line["outcome"]["state"]
            for line in self.project.events("attempt-ended")
            if line["trial_id"].startswith("victim")
        ]

    def finished(self, process: subprocess.Popen[bytes]) -> str:
        process.wait(240)
        return str(self.project.said)

    def assert_measured_once(self, *extra: str) -> None:
        assert sorted(self.project.measured) == sorted(["after", "baseline-deployed", *extra])
