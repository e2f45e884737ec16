"""Bad input ends in one clear message before anything is submitted, and loses nothing measured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.second_looks import ALONE_AND_WITH_WORKERS, BESIDE_THE_LAB
from tests.plugin.conftest import SWEEP_FILE

# (what is changed in the sweep file, options, what the message says)
MISTAKES = {
    "a duplicate profile id": (
        ('"same"', '"fast"'),
        (),
        "*duplicate profile id 'fast' ('--xla_fast=1' and '--xla_other=1')*",
    ),
    "a marker argument that does not exist": (
        ("@pytest.mark.wave2", '@pytest.mark.wave2(profile=["fast"])'),
        (),
        "*unknown argument 'profile' in @pytest.mark.wave2; did you mean 'profiles'*",
    ),
    "a profile id that does not exist": (
        ("@pytest.mark.wave2", '@pytest.mark.wave2(profiles=["fsat"])'),
        (),
        "*unknown profile 'fsat' in sweep 'pretend'; did you mean 'fast'*",
    ),
    "a wave without profiles": (
        ("@pytest.mark.wave2", "@pytest.mark.wave3"),
        (),
        "*unknown wave 'wave3' in sweep 'pretend'*Known: wave2*",
    ),
    "missing inputs, all of them": (
        ('        model_tag="pretend",\n        parallelism="FSDP=4",\n', ""),
        ("--xlatune-executor=slurm",),
        "*is missing the model*; the parallelism*; the nodes in Slurm*none is guessed*",
    ),
    "a marker that is nearly one": (
        ("@pytest.mark.confirm", "@pytest.mark.confrim"),
        (),
        "*unknown marker 'confrim' in test_finalist*did you mean 'confirm'*",
    ),
    "a wave that does not exist": (
        ("@pytest.mark.wave2", "@pytest.mark.wave8"),
        (),
        "*unknown marker 'wave8' in test_flag*",
    ),
    "a file where the reports are to lie": (
        (),
        ("--xlatune-reports=test_sweep.py",),
        "*--xlatune-reports: *test_sweep.py is a file*",
    ),
    "a file where the ledgers are to lie": (
        (),
        ("--xlatune-workdir=test_sweep.py/below",),
        "*--xlatune-workdir: *below *test_sweep.py is a file*",
    ),
    "a wave of -m that does not exist": (
        (),
        ("-m", "wave1 or wave22"),
        "*unknown marker 'wave22' in -m; did you mean 'wave2'*",
    ),
    "too small a budget": (
        (),
        ("--xlatune-budget=5",),
        "*: sweep 'pretend': * need * jobs, the budget is 5*",
    ),
}


# one that every worker finds when it collects, and one that ends the run before there are any
TWO_WORKERS = ("a duplicate profile id", "a wave of -m that does not exist")


@pytest.mark.parametrize(
    ("mistake", "has_workers"),
    [
        *(pytest.param(each, False, id=each) for each in MISTAKES),
        *(
            pytest.param(each, True, id=f"{each}, two workers", marks=BESIDE_THE_LAB)
            for each in TWO_WORKERS
        ),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_4(
    folder: Any, mistake: str, *, has_workers: bool
) -> None:
    change, options, message = MISTAKES[mistake]
    text = folder.read("test_sweep.py")
    if change:
        assert change[0] in text
        text = text.replace(*change)
    (folder.path / "test_sweep.py").write_text(text, encoding="utf-8")
    done = (folder.run_with_workers if has_workers else folder.run)(*options)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stdout.fnmatch_lines([message])
    done.stdout.no_fnmatch_line("*INTERNALERROR*")
    done.stdout.no_fnmatch_line("*Traceback*")
    assert not folder.submitted


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (
            "--xlatune-budget=many",
            "*found 'many', expected a whole number above 0*",
        ),
        (
            "--xlatune-parallelism=FDSP=4",
            "*unknown axis 'FDSP' *did you mean 'FSDP'*",
        ),
        ("--xlatune-config=pipe", "pipe cannot be read*"),
        ("--xlatune-notify-file=pipe", "notification targets *from pipe: *"),
    ],
)
def test_a_wrong_option_ends_the_run_before_collection(
    folder: Any, option: str, message: str
) -> None:
    os.mkfifo(folder.path / "pipe")
    done = folder.run(option)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines([f"ERROR: {message}"])


MINE = """\
import pytest
@pytest.mark.parametrize("number", [1, 2, 3])
def test_mine(number):
    pytest.fail("the same three times", pytrace=False)
"""


@pytest.mark.parametrize("has_workers", [False, True], ids=["alone", "two workers"])
def test_what_keeps_all_tests_from_running_is_said_in_full_once(
    folder: Any, *, has_workers: bool
) -> None:
    """Failures of other tests are left as they are, equal ones too."""
    text = folder.read("test_sweep.py").replace('"trainer.py"', '"trainr.py"')
    (folder.path / "test_sweep.py").write_text(text, encoding="utf-8")
    (folder.path / "test_mine.py").write_text(MINE, encoding="utf-8")
    done = (folder.run_with_workers if has_workers else folder.run)("test_mine.py")
    shown = done.stdout.str()
    # where CI is set, pytest's own summary cuts nothing off and has it again
    in_full = shown.split("= short test summary info =", maxsplit=1)[0]
    assert in_full.count("trainr.py does not exist") == 1
    assert in_full.count("The same keeps ") == 1
    assert done.parseoutcomes()["errors"] > 3
    assert in_full.splitlines().count("the same three times") == 3
    assert not folder.submitted


@pytest.mark.parametrize("run", ALONE_AND_WITH_WORKERS)
def test_without_an_ini_file_the_ledger_lies_where_pytest_was_started(
    folder: Any, tmp_path: Path, run: str
) -> None:
    """Values of options that exist as folders take part in what pytest calls its root directory."""
    for name in ("pytest.ini", "tox.ini", "pyproject.toml"):
        (folder.path / name).unlink(missing_ok=True)
    far = tmp_path / "far"
    far.mkdir()
    done = folder.run("-k", "fast", "--xlatune-workdir", str(far))
    done.assert_outcomes(passed=1)
    assert not (tmp_path / "reports").exists()
    assert (folder.path / "reports" / "pretend" / "leaderboard.md").exists()

    below = ("--rootdir", str(far), "--xlatune-workdir", str(far))
    getattr(folder, run)("-k", "fast", *below).assert_outcomes(passed=1)
    assert (far / "reports" / "pretend" / "leaderboard.md").exists()


FAULTY = """\
        profile("fast", "--xla_fast=1"),
        profile("buffer", env={"NCCL_BUFFSIZE": "16M"}),
        profile("threshold", "--xla_gpu_collective_permute_decomposer_threshold=1024"),
        profile("control-inflated", "--xla_gpu_collective_inflation_factor=2"),
"""
CONTROL = """\
        profile("fast", "--xla_fast=1"),
        profile("control-threshold", "--xla_gpu_collective_permute_decomposer_threshold=1024"),
"""


def test_faults_are_said_at_once_and_nothing_runs(folder: Any) -> None:
    folder.write(profiles=FAULTY)
    result = folder.run("-m", "wave2")
    assert result.ret != 0
    output = result.stdout.str()
    assert "nothing was submitted" in output
    assert "profile buffer: NCCL_BUFFSIZE=16M is read as 16" in output
    assert "[partner]" in output
    assert "profile control-inflated: --xla_gpu_collective_inflation_factor is never set" in output
    assert not list(folder.path.rglob("log.0.txt")), "no trial has run"


def test_a_control_is_measured(folder: Any) -> None:
    folder.write(profiles=CONTROL)
    result = folder.run("-m", "wave2")
    result.assert_outcomes(passed=2)


def test_what_only_the_targets_xla_can_say_stops_the_tests_behind_it_too(folder: Any) -> None:
    # the look at the flags is that of test_baseline; the other tests do not ask for it
    folder.pytester.makeconftest(
        """
        from pytest_xlatune.plugin import session
        from pytest_xlatune.prepare.preflight import Preflight

        session.check_flags = lambda *_, **__: Preflight(faults=("knows no flag",))
        """
    )
    text = SWEEP_FILE.replace("test_baseline(baseline", "test_baseline(preflight, baseline")
    folder.write(profiles=CONTROL, text=text)
    result = folder.run("-m", "wave1 or wave2")
    assert result.ret == 4
    assert "knows no flag" in result.stdout.str()
    assert not list(folder.path.rglob("log.0.txt")), "no trial has run"
