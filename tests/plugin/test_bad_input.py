"""Bad input ends in one clear message before anything is submitted, and loses nothing measured."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_xlatune.model.errors import Exit
from tests.helpers.repositories import Repository
from tests.helpers.second_looks import ALONE_AND_WITH_WORKERS, BESIDE_THE_LAB
from tests.plugin.conftest import HEAD, STANDARD, SWEEP_FILE, Folder, declaring

SLURM = ("--xlatune-executor=slurm",)
AXES = '        model_tag="pretend",\n        parallelism="FSDP=4",\n'


def wave2(new: str) -> tuple[str, str]:
    return "@pytest.mark.wave2", new


COMMITS = declaring("study=Commits()", commits=True)
SECOND = "from msgspec.structs import replace\nOTHER = replace(SWEEP, name='other')\n"
# id -> (sweep file or its change, options, what the message says)
Case = tuple[str | tuple[str, str], tuple[str, ...], str]
MISTAKES: dict[str, Case] = {
    "a duplicate profile id": (
        ('"same"', '"fast"'), (),
        "*duplicate profile id 'fast' ('--xla_fast=1' and '--xla_other=1')*"),
    "a marker argument that does not exist": (
        wave2('@pytest.mark.wave2(profile=["fast"])'), (),
        "*unknown argument 'profile' in @pytest.mark.wave2; did you mean 'profiles'*"),
    "a profile id that does not exist": (
        wave2('@pytest.mark.wave2(profiles=["fsat"])'), (),
        "*unknown profile 'fsat' in sweep 'pretend'; did you mean 'fast'*"),
    "a marker that is nearly one": (
        ("@pytest.mark.confirm", "@pytest.mark.confrim"), (),
        "*unknown marker 'confrim' in test_finalist*did you mean 'confirm'*"),
    "a test of a wave that derives nothing": (
        ("(measure, profile)", "(measure, derived)"), (), "*derives nothing in wave2*"),
    "missing inputs, all of them": (
        (AXES, ""), SLURM,
        "*is missing the model*; the parallelism*; the nodes in Slurm*none is guessed*"),
    "a wave of -m that does not exist": (
        "", ("-m", "wave1 or wave22"), "*unknown marker 'wave22' in -m; did you mean 'wave2'*"),
    "a file where the reports are to lie": (
        "", ("--xlatune-reports=test_sweep.py",), "*--xlatune-reports: *test_sweep.py is a file*"),
    "a misspelt option": (
        "", ("--xlatune-budgt=3",), "ERROR: unknown option '--xlatune-budgt' *mean '*-budget'*"),
    "settings in a pipe": ("", ("--xlatune-config=pipe",), "ERROR: pipe cannot be read*"),
    "a misspelt table of formats": (
        "", ("--xlatune-step-pattern=torchtitn",), "*did you mean 'torchtitan'*"),
    "standard tests in a class": (
        f"{HEAD}class TestIt:\n    SWEEP = SWEEP\n    tests = standard_tests(SWEEP)\n", (),
        "*standard_tests(...) is in a class*"),
    "standard tests of a sweep of another name": (
        f"{HEAD}MINE = SWEEP\ndel SWEEP\ntests = standard_tests(MINE)\n", (),
        "*write tests = standard_tests(SWEEP)*"),
    "two sweeps in a module": (
        f"{STANDARD}{SECOND}more = standard_tests(OTHER)\n", (), "*a module has one sweep*"),
    "standard tests of no sweep": (
        f"{HEAD}\ntests = standard_tests(None)\n", (), "*standard_tests(None): expected a Sweep*"),
    "a check of nodes without nodes": (declaring("study=Nodes()"), (), "*compares cells*"),
    "nodes that no check has found": (
        declaring("study=Nodes()"), ("--xlatune-nodelist=@healthy",),
        "*'@healthy', but *healthy.nodes cannot be read*"),
    "commits without a range": (COMMITS, (), "*(--xlatune-commits main..HEAD)*"),
    "a range of no commit": (
        COMMITS, ("--xlatune-commits", "main..HEAD"), "*is no range of 1 to 511*"),
    "one commit by two names": (
        COMMITS, ("--xlatune-commits", "main,HEAD"), "*names one commit twice*"),
    "a batch size that is not passed on": (
        declaring("study=BatchSize(start=4)"), (), "*does not pass per_device_batch_size*"),
}  # fmt: skip
# one that every worker finds when it collects, and one that ends the run before there are any
TWO_WORKERS = ("a duplicate profile id", "a wave of -m that does not exist")


@pytest.mark.parametrize(
    ("mistake", "run"),
    [
        *(pytest.param(each, "run", id=each) for each in MISTAKES),
        *(pytest.param(each, "run_with_workers", marks=BESIDE_THE_LAB) for each in TWO_WORKERS),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_4(folder: Folder, mistake: str, run: str) -> None:
    change, options, message = MISTAKES[mistake]
    if isinstance(change, tuple):
        folder.edit("test_sweep.py", change)
    elif change:
        folder.write(text=change)
    os.mkfifo(folder.path / "pipe")
    Repository(folder.path / "trainer").commit("one", train="")
    done = getattr(folder, run)(*options)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    lines = pytest.LineMatcher([*done.outlines, *done.errlines])
    lines.fnmatch_lines([message])
    lines.no_fnmatch_line("*INTERNALERROR*")
    lines.no_fnmatch_line("*Traceback*")
    assert not folder.submitted


@pytest.mark.parametrize("planted", ["link", "fifo"])
def test_a_folder_of_sessions_that_is_none_of_ours_is_one_message(
    folder: Folder, planted: str
) -> None:
    sessions = folder.path / ".xlatune" / "sessions"
    sessions.parent.mkdir(mode=0o700)
    if planted == "link":
        sessions.symlink_to(folder.path)
    else:
        os.mkfifo(sessions)
    done = folder.run("-k", "baseline")
    assert done.ret == Exit.INTERNAL
    done.stdout.fnmatch_lines([f"*{sessions}*"])
    done.stdout.no_fnmatch_line("*Traceback*")
    done.stdout.no_fnmatch_line("*secure_files.py*")


@pytest.mark.parametrize("run", ALONE_AND_WITH_WORKERS)
def test_what_keeps_all_tests_from_running_is_said_in_full_once(folder: Folder, run: str) -> None:
    folder.edit("test_sweep.py", ('"trainer.py"', '"trainr.py"'))
    done = getattr(folder, run)()
    # where CI is set, pytest's own summary cuts nothing off and has it again
    in_full = done.stdout.str().split("= short test summary info =", maxsplit=1)[0]
    assert in_full.count("(in full at ") > 2
    assert done.parseoutcomes()["errors"] > 3
    assert getattr(folder, run)("-x").ret == pytest.ExitCode.USAGE_ERROR, "-x is no interrupt"
    assert not folder.submitted


def test_without_an_ini_file_the_ledger_lies_where_pytest_was_started(
    folder: Folder, tmp_path: Path
) -> None:
    """Values of options that exist as folders take part in what pytest calls its root directory."""
    for name in ("pytest.ini", "tox.ini", "pyproject.toml"):
        (folder.path / name).unlink(missing_ok=True)
    far, report = tmp_path / "far", Path("reports/pretend/leaderboard.md")
    far.mkdir()
    there = ("-k", "fast", "--xlatune-workdir", str(far))
    for root, more in ((folder.path, ()), (far, ("--rootdir", str(far)))):
        folder.run(*there, *more).assert_outcomes(passed=1)
        assert (root / report).exists()
        assert not (tmp_path / "reports").exists()


THRESHOLD = '"--xla_gpu_collective_permute_decomposer_threshold=1024"'
FAULTY = f"""\
        profile("fast", "--xla_fast=1"),
        profile("buffer", env={{"NCCL_BUFFSIZE": "16M"}}),
        profile("threshold", {THRESHOLD}),
        profile("control-inflated", "--xla_gpu_collective_inflation_factor=2"),
"""
CONTROL = f"""\
        profile("fast", "--xla_fast=1"),
        profile("control-threshold", {THRESHOLD}),
"""


def test_faults_are_said_at_once_and_nothing_runs_but_a_control_is_measured(folder: Folder) -> None:
    folder.write(profiles=FAULTY)
    refused = folder.run("-m", "wave2")
    shown = refused.stdout.str()
    assert refused.ret != 0
    assert "nothing was submitted" in shown
    assert "profile buffer: NCCL_BUFFSIZE=16M is read as 16" in shown
    assert "[partner]" in shown
    assert "profile control-inflated: --xla_gpu_collective_inflation_factor is never set" in shown
    assert not list(folder.path.rglob("log.0.txt")), "no trial has run"
    folder.write(profiles=CONTROL)
    folder.run("-m", "wave2").assert_outcomes(passed=2)


def test_what_only_the_targets_xla_can_say_stops_the_tests_behind_it_too(folder: Folder) -> None:
    # the look at the flags is that of test_baseline; the other tests do not ask for it
    folder.put(
        "conftest.py",
        "from pytest_xlatune.plugin import session\n"
        "from pytest_xlatune.prepare.preflight import Preflight\n"
        "session.check_flags = lambda *_, **__: Preflight(faults=('knows no flag',))\n",
    )
    text = SWEEP_FILE.replace("test_baseline(baseline", "test_baseline(preflight, baseline")
    folder.write(profiles=CONTROL, text=text)
    refused = folder.run("-m", "wave1 or wave2")
    assert refused.ret == 4
    assert "knows no flag" in refused.stdout.str()
    assert not list(folder.path.rglob("log.0.txt")), "no trial has run"
