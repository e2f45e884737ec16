"""Cells, their nodes and trials: what is held fixed, and the identity that a ledger lives by."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.executors import JOB_NAME_PREFIX, request_for
from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import compress, expand
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


@pytest.mark.parametrize(
    ("make", "values", "message"),
    [
        (Parallelism.parse, {"text": "FSDP=0"}, "expected AXIS=DEGREE"),
        (Parallelism.parse, {"text": "FSDP=2,FSDP=4"}, "given twice"),
        (Parallelism.parse, {"text": "FDSP=8"}, "did you mean 'FSDP'"),
        (CELL, {"devices": 16}, "multiply to 8, but the cell has 16 devices"),
        (CELL, {"parallelism": Parallelism.parse("PP=8"), "devices": 12}, "multiply to 8"),
        *((CELL, {"model_tag": tag}, "model tag") for tag in ("", "../x")),
        *((CELL, {"per_device_batch_size": size}, "a number above 0") for size in (0, math.nan)),
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
    assert Parallelism.parse("pp=2, fsdp=4") == CELL.parallelism
    assert CELL.tokens_per_device_step == 28672
    assert replace(CELL, max_target_length=None).tokens_per_device_step is None
    stages = Cell(model_tag="m", parallelism=Parallelism.parse("PP=8"), devices=64)
    assert stages.devices == 64, "stages over slices share the devices of all"


def test_a_cell_is_told_apart_by_what_it_holds_fixed() -> None:
    def digest(**settings: Any) -> str:
        return replace(CELL, protocol=Protocol(**settings)).digest

    assert replace(CELL, nodelist=("node001",)).digest != CELL.digest
    assert Cell.from_json(CELL.to_json()).digest == CELL.digest
    assert digest(metric="busbw") != digest()
    assert digest(deadline_s=9) == CELL.digest


def test_identity_covers_what_matters_and_ignores_words_and_patience() -> None:
    def ids(*changes: dict[str, Any]) -> set[str]:
        return {replace(TRIAL, **each).id for each in changes}

    others = ids(
        {"profile": profile("overlap-2", "--xla_a=2")},
        {"stage": "confirm"},
        {"block": 1},
        {"design": ConfirmDesign(arms=3, blocks=4, baselines=2)},
        {"cell_digest": "0" * 16},
        {"protocol": Protocol(steps=25)},
    )
    assert len(others - {TRIAL.id}) == 6
    noted = profile("overlap-2", "--xla_a=1", note="because", wave="wave9")
    patient = replace(CELL.protocol, deadline_s=9)
    assert ids({"profile": noted}, {"protocol": patient}) == {TRIAL.id}


def job_name_of(name: str) -> str:
    trial = replace(TRIAL, profile=Profile(id=name), arm=name)
    folder, resources = Path("/work"), Resources()
    request = request_for(trial, 1, run="first", folder=folder, nodelist=(), resources=resources)
    return request.job_name


# an id:  overlap-2+ag-1g.2g
@given(st.from_regex(r"[a-z0-9][a-z0-9._+-]{0,63}", fullmatch=True))
def test_every_profile_has_a_job_name_that_slurm_takes(name: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,200}", job_name_of(name))
    assert job_name_of(name).startswith(JOB_NAME_PREFIX)


def test_names_that_differ_in_what_is_replaced_stay_apart() -> None:
    assert len({job_name_of(name) for name in ("a+b", "a_b", "a+b+c", "a_b+c")}) == 4


def test_host_lists() -> None:
    for text, names in (
        ("node[001-003]", "node001 node002 node003"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2"),
        ("n[1-2,007],gpu-a[1-2]", "n1 n2 n007 gpu-a1 gpu-a2"),
    ):
        assert expand(text) == tuple(names.split())
    for names, text in (
        ("", ""),
        ("n9 n10", "n[9-10]"),
        ("n1 n02", "n[1,02]"),  # different padding is no run
        ("0a a 1a", "0a,a,1a"),
    ):
        assert compress(names.split()) == text
    for text, message in (
        ("", "'' is no name"),
        ("n[1-", "is no name"),
        ("n[3-1]", "range 3-1 is backwards"),
        ("n[1-256][1-256]a,b", "more than 65536 nodes"),
        ("n1 n2", "'n1 n2' is no name"),
        ("n1,n[1-2]", "n1 is named twice"),
    ):
        with pytest.raises(ConfigError, match=message) as caught:
            expand(text)
        assert repr(text) in str(caught.value)


NAMES = st.lists(
    st.one_of(
        st.from_regex(r"[A-Za-z][A-Za-z0-9._-]{0,8}", fullmatch=True),
        st.builds("node{:03d}".format, st.integers(0, 1200)),
        st.builds("gpu-a{}-ib".format, st.integers(0, 30)),
    ),
    min_size=1,
    unique=True,
)


@given(NAMES)
def test_expand_reads_back_what_compress_wrote(names: list[str]) -> None:
    assert expand(compress(names)) == tuple(names)


@given(st.text("n01[]-, a", max_size=12))
def test_any_text_is_names_or_a_config_error(text: str) -> None:
    try:
        names = expand(text)
    except ConfigError:
        return
    assert all(names)
    assert expand(compress(names)) == names
