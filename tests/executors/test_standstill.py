"""A trainer that stands still is looked at before it is ended: what each of its processes does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pytest_xlatune.executors.folder import ask_what_hangs, read_standstill, write_spec
from pytest_xlatune.logs.standstill import Doing, Standstill
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers.payloads import Start, outcome
from tests.helpers.tables import rows
from tests.helpers.waiting import until

PLAIN = {"PATH": "/usr/bin:/bin"}
READS = """
import os
def wait_for_data():
    open("ready", "w").close()
    os.read(os.pipe()[0], 1)
wait_for_data()
"""


def hung(folder: Path, start: Start, *argv: str, **said: str) -> Standstill:
    """Run a trainer, ask what it does once it is ready, and return the answer."""
    write_spec(folder, LaunchSpec(argv=argv, env={**PLAIN, **said}, deadline_s=300))
    running = start(folder, grace_s=0.3, late_signal_s=0.1)
    until((folder / "ready").exists)
    until((folder / "started.json").exists)
    assert not ask_what_hangs(folder)
    until(lambda: ask_what_hangs(folder))
    running.terminate()
    running.wait()
    found = read_standstill(folder, steps={0: 7}, is_sure=True)
    assert found is not None
    return found


def test_a_python_process_below_a_shell_tells_its_stacks_and_what_it_reads(
    tmp_path: Path, start: Start
) -> None:
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


@rows(
    "argv, said",
    {
        "an interpreter that reads no environment": ((sys.executable, "-I", "train.py"), {}),
        "a program that may start a container": (
            ("sh", "-c", f"{sys.executable} train.py; true"), {}),
    },
)  # fmt: skip
def test_without_the_hook_the_kernel_still_tells(
    tmp_path: Path, start: Start, argv: tuple[str, ...], said: dict[str, str]
) -> None:
    """A process that catches the signal for itself is sent none."""
    (tmp_path / "train.py").write_text(CATCHES + READS)
    (stand,) = hung(tmp_path, start, *argv, **said).stands
    # of two processes without stacks and threads it is the one that began last
    assert (stand.doing, stand.at) == (Doing.READS, "")
    assert outcome(tmp_path).signal == 15, "no signal of ours has ended it"
    assert not (tmp_path / "caught").exists()


def test_of_one_payload_s_ranks_the_one_that_died_is_behind(tmp_path: Path, start: Start) -> None:
    """Its launcher waits for none of them: the dead one stays a zombie."""
    (tmp_path / "train.py").write_text(
        "import os, time\n"
        "if os.environ['RANK'] == '2': os._exit(3)\n"
        "open('ready' + os.environ['RANK'], 'w').close()\n"
        "time.sleep(300)\n"
    )
    (tmp_path / "launch.py").write_text(
        "import os, subprocess, sys, time\n"
        "ranks = [subprocess.Popen([sys.executable, 'train.py'], env={**os.environ,\n"
        "    'RANK': str(n), 'WORLD_SIZE': '4'}) for n in range(4)]\n"
        "while not all(os.path.exists(f'ready{n}') for n in (0, 1, 3)): time.sleep(0.05)\n"
        "open('ready', 'w').close()\n"
        "time.sleep(300)\n"
    )
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
