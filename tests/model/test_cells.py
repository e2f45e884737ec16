"""Cells and trials: what is held fixed, and the identity that a ledger lives by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.executors import JOB_NAME_PREFIX, request_for, slurm
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import Profile, profile
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.trial import ConfirmDesign, Trial

CELL = Cell(
    model_tag="llama3.1-405b",
    parallelism=Parallelism.parse("PP=2,FSDP=4"),
    per_device_batch_size=7,
    max_target_length=4096,
    devices=8,
)
TRIAL = Trial(
    cell_digest=CELL.digest,
    profile=profile("overlap-2", "--xla_a=1"),
    protocol=CELL.protocol,
    study="tuning",
    stage="wave2",
)


@pytest.mark.parametrize("text", ["FSDP=8", "pp=2, fsdp=4", "TP=1", "DP=2,TP=2,EP=2"])
def test_parallelism_reads_what_it_writes(text: str) -> None:
    parsed = Parallelism.parse(text)
    assert Parallelism.parse(str(parsed)) == parsed


@pytest.mark.parametrize(
    ("make", "values", "message"),
    [
        (Parallelism.parse, {"text": "8"}, "expected AXIS=DEGREE"),
        (Parallelism.parse, {"text": "FSDP=0"}, "expected AXIS=DEGREE"),
        (Parallelism.parse, {"text": "FSDP=2,FSDP=4"}, "given twice"),
        (Parallelism.parse, {"text": "FDSP=8"}, "did you mean 'FSDP'"),
        (CELL, {"devices": 16}, "multiply to 8, but the cell has 16 devices"),
        (CELL, {"parallelism": Parallelism.parse("PP=8"), "devices": 12}, "multiply to 8"),
        *((CELL, {"model_tag": tag}, "model tag") for tag in ("", "../x", "-x", "a/b")),
        *(
            (CELL, {"per_device_batch_size": size}, r"_batch_size is .*expected a number above 0")
            for size in (0, float("inf"), float("nan"))
        ),
        *((Protocol, {name: 0}, f"{name} is 0") for name in ("steps", "min_steps", "deadline_s")),
        (Protocol, {"metric": ""}, "expected 'tgs' .* or 'none'"),
    ],
    ids=str,
)
def test_what_can_be_no_cell_is_refused(make: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(make, **values) if isinstance(make, Cell) else make(**values)


def test_label_and_invariant() -> None:
    assert CELL.label == "llama3.1-405b PP=2,FSDP=4 pdbs=7"
    assert CELL.tokens_per_device_step == 28672
    assert replace(CELL, max_target_length=None).tokens_per_device_step is None
    stages = Cell(model_tag="m", parallelism=Parallelism.parse("PP=8"), devices=64)
    assert stages.devices == 64, "stages over slices share the devices of all"


def test_a_cell_is_told_apart_by_what_it_holds_fixed() -> None:
    def digest(**settings: Any) -> str:
        return replace(CELL, protocol=Protocol(**settings)).digest

    assert replace(CELL, nodelist=("node001",)).digest != CELL.digest
    assert Cell.from_json(CELL.to_json()).digest == CELL.digest
    assert CELL.digest is CELL.digest, "worked out once: it is asked for with every trial"
    assert digest(metric="busbw") != digest()
    assert digest(deadline_s=9) == CELL.digest


@pytest.mark.parametrize(
    ("changes", "is_other"),
    [
        ({"profile": profile("overlap-2", "--xla_a=2")}, True),
        ({"stage": "confirm"}, True),
        ({"block": 1}, True),
        ({"design": ConfirmDesign(arms=3, blocks=4, baselines=2)}, True),
        ({"cell_digest": "0" * 16}, True),
        ({"protocol": Protocol(steps=25)}, True),
        ({"profile": profile("overlap-2", "--xla_a=1", note="because", wave="wave9")}, False),
        ({"protocol": replace(CELL.protocol, deadline_s=9)}, False),
    ],
    ids=lambda value: str(value)[:60],
)
def test_identity_covers_what_matters_and_ignores_words_and_patience(
    changes: dict[str, object], is_other: bool
) -> None:
    assert (replace(TRIAL, **changes).id != TRIAL.id) is is_other


def job_name_of(name: str) -> str:
    trial = replace(TRIAL, profile=Profile(id=name), arm=name)
    folder, resources = Path("/work"), Resources()
    request = request_for(trial, 1, run="first", folder=folder, nodelist=(), resources=resources)
    return request.job_name


# an id:  overlap-2+ag-1g.2g
@given(st.from_regex(r"[a-z0-9][a-z0-9._+-]{0,63}", fullmatch=True))
def test_every_profile_has_a_job_name_that_slurm_takes(name: str) -> None:
    assert slurm._JOB_NAME.fullmatch(job_name_of(name))
    assert job_name_of(name).startswith(JOB_NAME_PREFIX)


def test_names_that_differ_in_what_is_replaced_stay_apart() -> None:
    assert len({job_name_of(name) for name in ("a+b", "a_b", "a+b+c", "a_b+c")}) == 4
