"""The batch script: what keeps trials comparable, and what cannot be submitted.

`tests/data/slurm/script.sh` is the whole script as the pinned submitit renders it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import pytest_xlatune
from pytest_xlatune.executors import Request
from pytest_xlatune.executors.slurm import LOGIN, SlurmExecutor
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.resources import Resources
from tests.helpers import golden
from tests.helpers.played import ARGUMENTS
from tests.helpers.tables import rows

RECORD = Path(__file__).parents[1] / "data" / "slurm" / "script.sh"
PACKAGE = Path(pytest_xlatune.__file__).parent


def with_options(**options: str) -> dict[str, Any]:
    named = {key.replace("__", "."): value for key, value in options.items()}
    return {"resources": Resources(options=named)}


def script_of(folder: Path, **changed: Any) -> str:
    return SlurmExecutor().preview("", Request(folder=folder, **{**ARGUMENTS, **changed}))[1]


def test_the_script_is_as_recorded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/venv/bin/python")
    text = script_of(folder)
    golden.check(
        RECORD, text.replace(str(folder), "/shared/t1/1").replace(str(PACKAGE), "/package")
    )
    assert not list(folder.iterdir()), "a dry run writes nothing"


def test_options_for_srun_reach_srun_and_a_site_may_log_in_itself(folder: Path) -> None:
    options = {"cpus_per_task": "8", "srun__mpi": "none", "srun__label": "", "export": "NONE"}
    lines = script_of(folder, **with_options(**options)).splitlines()
    assert "#SBATCH --cpus-per-task=8" in lines
    (srun,) = (line for line in lines if line.startswith("srun "))
    assert " --cpus-per-task=8 --mpi=none --label " in srun
    assert "#SBATCH --export=NONE" in lines
    assert not {"#SBATCH --export=ALL", f". {LOGIN}"} & {*lines}


@rows(
    "changed, message",
    {
        "a space in the name": ({"job_name": "a b"}, "job name 'a b': expected"),
        "a line break in the comment": ({"comment": "a\nb"}, "job comment"),
        "pins": (with_options(nodelist="n1"), "'nodelist' is set by"),
        "dashes": (with_options(**{"--signal": "1"}), "'--signal' is set by"),
        "secrets": (with_options(export="ALL"), "'export' is 'ALL', expected NONE"),
        "no option's name": (with_options(**{"a b": "1"}), "Slurm option 'a b': expected"),
        "counts that differ": ({"resources": Resources(nodes=3)}, "3 nodes .* 2"),
    },
)
def test_what_cannot_be_submitted_is_refused(
    folder: Path, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        script_of(folder, **changed)
