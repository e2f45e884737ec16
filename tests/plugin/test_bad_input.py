"""Bad input ends in one clear message before anything is submitted, and loses nothing measured."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.second_looks import ALONE_AND_WITH_WORKERS, BESIDE_THE_LAB

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
        "*--xlatune-reports: *test_sweep.py is a file; name another folder*",
    ),
    "a file where the ledgers are to lie": (
        (),
        ("--xlatune-workdir=test_sweep.py/below",),
        "*--xlatune-workdir: *below cannot be made, because *test_sweep.py is a file*",
    ),
    "a wave of -m that does not exist": (
        (),
        ("-m", "wave1 or wave22"),
        "*unknown marker 'wave22' in -m; did you mean 'wave2'*",
    ),
    "too small a budget": (
        (),
        ("--xlatune-budget=5",),
        "*: sweep 'pretend': * profiles and their baselines need * jobs, the budget is 5*",
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
        ("--xlatune-config=pipe", "pipe cannot be read: it is no plain file*"),
        ("--xlatune-notify-file=pipe", "notification targets cannot be read from pipe: *"),
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
    assert in_full.count("trainr.py does not exist on this machine") == 1
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
