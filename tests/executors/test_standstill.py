"""A trainer that stands still is looked at before it is ended: what each of its processes does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pytest_xlatune.executors import look_at_hang
from pytest_xlatune.executors.folder import ask_what_hangs, read_standstill, write_spec
from pytest_xlatune.logs.standstill import Doing, Standstill
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.trial import LaunchSpec
from tests.helpers.payloads import Start, outcome
from tests.helpers.waiting import until

PLAIN = {"PATH": "/usr/bin:/bin"}  # no py-spy may lie there
READS = """
import os
def wait_for_data():
    open("ready", "w").close()
    os.read(os.pipe()[0], 1)
wait_for_data()
"""


def hung(folder: Path, start: Start, *argv: str, **said: str) -> Standstill:
    """Run a trainer, ask what it does once it is ready, and return the answer."""
    environment = {**PLAIN, **said}
    write_spec(folder, LaunchSpec(argv=argv, env=environment, deadline_s=300))
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
    (tmp_path / "train.py").write_text(READS)
    argv = ("bash", "-c", f"{sys.executable} train.py; true")
    found = hung(tmp_path, start, *argv, XLATUNE_STACKS="always")
    (stand,) = found.stands
    assert (stand.doing, stand.at, stand.step) == (Doing.READS, "train.py:5 wait_for_data", 7)
    assert stand.on.startswith("pipe:[")
    # one rank is behind none
    assert found.behind == ()
    look = json.loads((tmp_path / "hang.json").read_text())
    assert [bool(each["stacks"]) for each in look["processes"]] == [False, True]
    assert outcome(tmp_path).state == "cancelled"
    # the log holds nothing of it: what the trainer prints is the trainer's
    assert (tmp_path / "log.0.txt").read_text() == ""


def test_the_site_s_own_customization_is_run_as_before(tmp_path: Path, start: Start) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import builtins; builtins.OF_THE_SITE = 1")
    (tmp_path / "train.py").write_text(f"OF_THE_SITE\n{READS}")
    found = hung(tmp_path, start, sys.executable, "train.py", PYTHONPATH=str(theirs))
    assert found.stands[0].at == "train.py:6 wait_for_data"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ((sys.executable, "train.py"), {"XLATUNE_STACKS": ""}),
        ((sys.executable, "-I", "train.py"), {}),
        (("sh", "-c", f"{sys.executable} train.py; true"), {}),
    ],
    ids=[
        "the profile wants no hook",
        "an interpreter that reads no environment",
        "a program that may start a container",
    ],
)
def test_without_the_hook_the_kernel_still_tells(
    tmp_path: Path, start: Start, argv: tuple[str, ...], said: dict[str, str]
) -> None:
    (tmp_path / "train.py").write_text(READS)
    (stand,) = hung(tmp_path, start, *argv, **said).stands
    # of two processes without stacks and threads it is the one that began last
    assert (stand.doing, stand.at) == (Doing.READS, "")
    assert outcome(tmp_path).signal == 15  # no signal of ours has ended it


def test_a_process_that_catches_the_signal_for_itself_is_sent_none(
    tmp_path: Path, start: Start
) -> None:
    own = "import signal\nsignal.signal(47, lambda *_: open('caught', 'w').close())\n"
    (tmp_path / "train.py").write_text(own + READS)
    hung(tmp_path, start, sys.executable, "train.py", XLATUNE_STACKS="")
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
    assert {each.rank: each.doing for each in found.stands} == {
        0: Doing.SLEEPS, 1: Doing.SLEEPS, 2: Doing.GONE, 3: Doing.SLEEPS
    }  # fmt: skip


def test_a_deadline_says_nothing_of_ranks_whose_logs_went_on(tmp_path: Path, start: Start) -> None:
    (tmp_path / "train.py").write_text("import time\nprint('x', flush=True)\ntime.sleep(300)\n")
    write_spec(tmp_path, LaunchSpec(argv=(sys.executable, "train.py"), deadline_s=2))
    start(tmp_path, grace_s=0.3).wait()
    assert outcome(tmp_path).state == "timeout"
    assert (tmp_path / "hang.json").exists()
    assert read_standstill(tmp_path, steps={}) is None


def test_an_attempt_without_a_payload_is_not_waited_for(tmp_path: Path) -> None:
    assert ask_what_hangs(tmp_path)
    assert read_standstill(tmp_path, steps={}, is_sure=True) is None


def test_a_rank_that_is_over_is_not_waited_for(tmp_path: Path) -> None:
    for name in ("started.json", "started.1.json", "outcome.json"):
        (tmp_path / name).write_text("{}")
    assert not ask_what_hangs(tmp_path)
    (tmp_path / "hang.1.json").write_text("{}")
    assert ask_what_hangs(tmp_path)
    # what a node wrote in another form costs no trial
    assert read_standstill(tmp_path, steps={}, is_sure=True) is None


def test_the_stacks_of_py_spy_are_read_with_the_main_thread_first() -> None:
    text = """\
Process 7: python train.py
Python v3.12.4 (/usr/bin/python3.12)

Thread 9 (idle): "Thread-1 (beat)"
    wait (threading.py:359)
    beat (train.py:4)
Thread 7 (active): "MainThread"
    load (train.py:9)
    <module> (train.py:12)
"""
    assert look_at_hang.parse_py_spy(text) == [
        ["train.py:9 load", "train.py:12 <module>"],
        ["threading.py:359 wait", "train.py:4 beat"],
    ]


def test_py_spy_is_asked_where_it_lies_on_the_trainer_s_path(tmp_path: Path, start: Start) -> None:
    spy = tmp_path / "bin" / "py-spy"
    spy.parent.mkdir()
    spy.write_text(
        '#!/bin/sh\necho "Thread $4 (idle): \\"MainThread\\""\necho "    loads (data.py:9)"\n'
    )
    spy.chmod(0o755)
    (tmp_path / "train.py").write_text(READS)
    found = hung(tmp_path, start, sys.executable, "train.py", PATH=f"{spy.parent}:/usr/bin:/bin")
    assert found.stands[0].at == "data.py:9 loads"
