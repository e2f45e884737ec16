"""The batch script: what keeps trials comparable, and what cannot be submitted.

`tests/data/slurm/script.sh` is the whole script as the pinned submitit renders it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import pytest_xlatune
from pytest_xlatune.executors import Request, payload
from pytest_xlatune.executors.slurm import LOGIN, SHOWN_DIGEST, SlurmExecutor
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.resources import Resources
from tests.helpers import golden
from tests.helpers.played import ARGUMENTS

RECORD = Path(__file__).parents[1] / "data" / "slurm" / "script.sh"
PACKAGE = Path(pytest_xlatune.__file__).parent


def with_options(**options: str) -> dict[str, Any]:
    named = {key.replace("__", "."): value for key, value in options.items()}
    return {"resources": Resources(options=named)}


def script_of(folder: Path, **changed: Any) -> str:
    return SlurmExecutor().preview("", Request(folder=folder, **{**ARGUMENTS, **changed}))[1]


@pytest.fixture
def interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/venv/bin/python")


@pytest.mark.usefixtures("interpreter")
def test_the_script_says_all_that_keeps_trials_comparable(folder: Path) -> None:
    script = script_of(folder)
    lines = script.splitlines()
    for option in ("nodelist='node[001-002]'", "exclusive", "no-requeue", "signal=CONT@1",
                   "export=ALL", "nodes=2", "ntasks-per-node=1", "job-name=xl-overlap-2", "time=2",
                   "comment=xlatune:cell:t1:1", f"chdir={folder}", "partition=lab",
                   "contiguous"):  # fmt: skip
        assert f"#SBATCH --{option}" in lines
    assert lines.index(f". {LOGIN}") < lines.index("unset SLURM_JWT")
    srun = next(line for line in lines if line.startswith("srun "))
    assert " --export=ALL --kill-on-bad-exit=1 " in srun
    assert srun.endswith(
        f" /opt/venv/bin/python -I -S -B {payload.__file__} {folder} {SHOWN_DIGEST}"
    )
    assert "USR2" not in script
    assert not list(folder.iterdir()), "a dry run writes nothing"


@pytest.mark.usefixtures("interpreter")
def test_the_script_is_as_recorded(folder: Path) -> None:
    text = script_of(folder).replace(str(folder), "/shared/t1/1").replace(str(PACKAGE), "/package")
    golden.check(RECORD, text)


def test_options_for_srun_reach_srun(folder: Path) -> None:
    given = with_options(cpus_per_task="8", srun__mpi="none", srun__label="")
    script = script_of(folder, **given)
    srun = next(line for line in script.splitlines() if line.startswith("srun "))
    assert " --cpus-per-task=8 --mpi=none --label " in srun
    assert "#SBATCH --cpus-per-task=8" in script


def test_slurm_logs_in_where_the_site_wants_it_to(folder: Path) -> None:
    lines = script_of(folder, **with_options(export="NONE")).splitlines()
    assert "#SBATCH --export=NONE" in lines
    assert "#SBATCH --export=ALL" not in lines
    assert f". {LOGIN}" not in lines


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        pytest.param({"job_name": "a b"}, "job name 'a b': expected", id="a space in the name"),
        pytest.param({"job_name": ""}, "job name '': expected", id="no name"),
        pytest.param({"comment": "a\nb"}, "job comment", id="a line break in the comment"),
        pytest.param(with_options(nodelist="n1"), "'nodelist' is set by", id="pins"),
        pytest.param(with_options(no_requeue=""), "'no_requeue' is set by", id="underscores"),
        pytest.param({"resources": Resources(options={"--signal": "1"})}, "'--signal' is set by",
                     id="dashes"),
        pytest.param(with_options(export="ALL"), "'export' is 'ALL', expected NONE", id="secrets"),
        pytest.param({"resources": Resources(options={"a b": "1"})}, "Slurm option 'a b': expected",
                     id="no option's name"),
        pytest.param({"resources": Resources(nodes=3)}, "3 nodes .* 2", id="counts that differ"),
    ],
)  # fmt: skip
def test_what_cannot_be_submitted_is_refused(
    folder: Path, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        script_of(folder, **changed)
