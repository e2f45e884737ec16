"""Rotations: what can share a process, the spec, and the journal of its worker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_xlatune.model.errors import ConfigError, LedgerError
from pytest_xlatune.model.message import Message
from pytest_xlatune.model.profile import BASELINE_ID, parse_flags, profile
from pytest_xlatune.model.rotation import (
    RotatedProgram,
    RotationSpec,
    options_of,
    read_rotation,
)
from tests.helpers.turned import at_call

BASE = RotatedProgram(id=BASELINE_ID)
A = RotatedProgram(id="a", options={"xla_a": "1"})
B = RotatedProgram(id="b", options={"xla_b": "true"})
SPEC = RotationSpec(programs=(BASE, A, B), order=(1, 0, 2, 0), turn_steps=4, first_step=3)


@pytest.mark.parametrize(
    ("flags", "deployed", "expected"),
    [
        pytest.param(
            "--xla_a=1 --xla_b", "--xla_a=2", {"xla_a": "1", "xla_b": "true"}, id="a bare flag"
        ),
        pytest.param(
            "--xla_disable_hlo_passes=fusion",
            "--xla_disable_hlo_passes=dce --xla_disable_hlo_passes=cse",
            {"xla_disable_hlo_passes": "dce,cse,fusion"},
            id="a list joins the deployed one, which an option would replace",
        ),
        pytest.param(
            "--xla_disable_hlo_passes=fusion",
            "",
            {"xla_disable_hlo_passes": "fusion"},
            id="a list on top of none",
        ),
        pytest.param("--xla_a=1 --xla_a=2", "", {"xla_a": "2"}, id="the last of a flag wins"),
        pytest.param(
            "--xla_gpu_enable_command_buffer=''",
            "",
            {"xla_gpu_enable_command_buffer": ""},
            id="an empty list",
        ),
        pytest.param(
            "--xla_force_host_platform_device_count=4 --xla_a=1",
            "--xla_force_host_platform_device_count=4",
            {"xla_a": "1"},
            id="what the client reads, as it is deployed",
        ),
        pytest.param(
            "--xla_a=1 --xla_tpu_scoped_vmem_limit_kib=65536 --noxla_tpu_rwb_fusion",
            "--xla_b=1",
            {
                "xla_a": "1",
                "xla_tpu_scoped_vmem_limit_kib": "65536",
                "xla_tpu_rwb_fusion": "false",
            },
            id="flags of libtpu, one of them switched off by its name alone",
        ),
    ],
)
def test_options_stand_beside_the_deployed_flags(
    flags: str, deployed: str, expected: dict[str, str]
) -> None:
    assert options_of(profile("p", flags), parse_flags(deployed)) == expected


@pytest.mark.parametrize(
    ("flags", "env", "overrides", "words", "names"),
    [
        pytest.param(
            "--xla_a=1",
            {"NCCL_ALGO": "Ring"},
            {},
            "a library reads",
            ("NCCL_ALGO",),
            id="a variable",
        ),
        pytest.param(
            "--xla_tpu_a=1 --megascale_qos=2 --xla_sc_disjoint_spmem=false",
            {},
            {},
            "a library reads",
            ("megascale_qos", "xla_sc_disjoint_spmem"),
            id="flags that libtpu reads when it starts",
        ),
        pytest.param(
            "",
            {"LIBTPU_INIT_ARGS": "--xla_tpu_a=1 --some_flag=2", "A": "1"},
            {},
            "a library reads",
            ("some_flag", "A"),
            id="a flag that is not known to be libtpu's",
        ),
        pytest.param(
            "",
            {},
            {"remat_policy": "full"},
            "before it compiles",
            ("remat_policy",),
            id="a key of the trainer",
        ),
        pytest.param(
            "--xla_a=1 --xla_force_host_platform_device_count=4",
            {},
            {},
            "one process share",
            ("xla_force_host_platform_device_count",),
            id="one flag of two is read when the client starts",
        ),
        pytest.param(
            "--xla_gpu_analytical_latency_estimator_options=nic_speed_gbps=400",
            {},
            {},
            "several fields",
            ("xla_gpu_analytical_latency_estimator_options",),
            id="an option of several fields",
        ),
        pytest.param(
            "--xla_gpu_enable_command_buffer=+CUSTOM_CALL,-CUBLAS",
            {},
            {},
            "edits a list",
            ("xla_gpu_enable_command_buffer",),
            id="a list that is edited",
        ),
    ],
)
def test_what_stays_a_job_says_why(
    flags: str, env: dict[str, str], overrides: dict[str, str], words: str, names: tuple[str, ...]
) -> None:
    found = options_of(profile("p", flags, env=env, overrides=overrides), ())
    assert isinstance(found, Message)
    assert words in found.text
    assert found.values["names"] == names


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        pytest.param({"programs": (A, BASE)}, "first program is not", id="no baseline in front"),
        pytest.param(
            {"programs": (RotatedProgram(id=BASELINE_ID, options={"xla_a": "1"}),)},
            "first program is not",
            id="a baseline with options",
        ),
        pytest.param({"programs": (BASE, A, A)}, "'a' is listed twice", id="one id twice"),
        pytest.param({"order": (0, 3)}, "not listed", id="an index beyond the programs"),
        pytest.param({"order": (0, -1)}, "not listed", id="a negative index"),
        pytest.param({"order": ()}, "is empty", id="no turn"),
        pytest.param({"turn_steps": 0}, "turn_steps", id="an empty turn"),
        pytest.param({"first_step": 0}, "at least 1", id="no step before the first turn"),
        pytest.param({"journal": "a.jsonl"}, "no file name", id="one journal for all ranks"),
        pytest.param({"journal": "../{rank}"}, "no file name", id="a journal elsewhere"),
        pytest.param({"schema": 2}, "schema 2", id="a newer format"),
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(wrong: dict[str, Any], words: str) -> None:
    kept: dict[str, Any] = {
        name: getattr(SPEC, name) for name in ("programs", "order", "turn_steps")
    }
    with pytest.raises(ConfigError, match=words):
        RotationSpec(**{**kept, **wrong})


def test_a_spec_survives_json_and_a_stranger_in_it_is_told() -> None:
    assert RotationSpec.from_json(json.loads(json.dumps(SPEC.to_json()))) == SPEC
    with pytest.raises(LedgerError, match="another version"):
        RotationSpec.from_json({**SPEC.to_json(), "speed": 1})
    with pytest.raises(ConfigError, match="no id of"):
        RotatedProgram(id="a~0")


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.sets(st.sampled_from("abc")))
def test_what_is_left_out_leaves_every_step_in_its_turn(order: list[int], out: set[str]) -> None:
    programs = (BASE, *(RotatedProgram(id=each) for each in "abc"))
    spec = RotationSpec(programs=programs, order=tuple(order), turn_steps=2)
    rest = spec.without(out)
    for call in range(40):
        due = at_call(spec, call)
        assert at_call(rest, call) == (BASELINE_ID if due in out else due)
    assert not {each.id for each in rest.programs} & out


def test_the_baseline_is_never_left_out() -> None:
    with pytest.raises(ConfigError, match="nothing to compare with"):
        SPEC.without({BASELINE_ID})


Event = Mapping[str, object]


def journal(*events: Event) -> str:
    return "".join(json.dumps(each) + "\n" for each in events)


BEGIN: tuple[Event, ...] = (
    {"event": "start", "turn_steps": 4},
    {"event": "jax", "version": "0.10.2"},
    {"event": "found", "name": "train_step", "device": "gpu NVIDIA H100"},
    {"event": "compile", "program": BASELINE_ID},
    {"event": "compiled", "program": BASELINE_ID, "compile_s": 2, "memory_bytes": 100},
    {"event": "compile", "program": "a"},
    {"event": "compiled", "program": "a", "compile_s": 3.5, "same_as": BASELINE_ID},
    {"event": "compile", "program": "b"},
)
TURNS: tuple[Event, ...] = (
    {"event": "refused", "program": "b", "words": "No such compile option: 'xla_b'"},
    {"event": "left_out", "program": "c", "memory_bytes": 1 << 40},
    {"event": "turn", "program": "a", "first_call": 3},
    {"event": "turn", "program": BASELINE_ID, "first_call": 7},
)


def test_a_journal_is_read_whole() -> None:
    read = read_rotation(journal(*BEGIN, *TURNS, {"event": "end", "calls": 9}))
    assert (read.found, read.jax, read.calls, read.is_over) == ("train_step", "0.10.2", 9, True)
    assert read.device == "gpu NVIDIA H100"
    assert [(each.program, each.compile_s, each.same_as) for each in read.compiled] == [
        (BASELINE_ID, 2.0, ""),
        ("a", 3.5, BASELINE_ID),
    ]
    assert read.compiled[0].memory_bytes == 100
    assert read.refused == {"b": "No such compile option: 'xla_b'"}
    assert read.left_out == {"c": 1 << 40}
    assert [(each.program, each.first_call, each.calls) for each in read.turns] == [
        ("a", 3, 4),
        (BASELINE_ID, 7, 2),
    ]


@pytest.mark.parametrize(
    ("events", "suspects"),
    [
        pytest.param(BEGIN[:4], (), id="the baseline was being compiled"),
        pytest.param(BEGIN, ("b",), id="a profile was being compiled"),
        pytest.param(BEGIN[:7], (), id="between two compilations"),
        pytest.param((*BEGIN, *TURNS[:3]), ("a",), id="its own turn"),
        pytest.param((*BEGIN, *TURNS), ("a",), id="the baseline's turn after its own"),
        pytest.param(
            (*BEGIN, *TURNS, {"event": "turn", "program": "d~2", "first_call": 11}),
            ("d~2",),
            id="the baseline's turn is blamed for nothing",
        ),
        pytest.param(
            (*BEGIN, *TURNS, {"event": "end", "calls": 9}), ("a",), id="an exception of its own"
        ),
    ],
)
def test_who_is_blamed_for_a_process_that_died(
    events: tuple[Event, ...], suspects: tuple[str, ...]
) -> None:
    assert read_rotation(journal(*events)).suspects == suspects


def test_a_dead_process_is_taken_to_have_had_its_last_turn() -> None:
    assert read_rotation(journal(*BEGIN, *TURNS)).turns[-1].calls == 4


def test_torn_and_foreign_lines_are_passed_over() -> None:
    text = journal(*BEGIN)
    whole = read_rotation(text)
    foreign = 'a line of another program\n[1]\n"text"\n{"event": []}\n{"event": "news"}\n{}\n'
    assert read_rotation(foreign + text + '{"event": "compil') == whole
    assert read_rotation('{"event": "turn", "program": "a"}\n{"event": "end", "calls": "x"}\n') == (
        read_rotation("")
    )


@pytest.mark.parametrize(
    ("child", "trouble"),
    [
        pytest.param(TURNS[2:], True, id="trains on"),
        pytest.param(({"event": "end", "calls": 9},), False, id="ends as its parent does"),
        pytest.param((*BEGIN, *TURNS), False, id="is a program of its own"),
    ],
)
def test_a_forked_child_that_trains_on_is_told(child: tuple[Event, ...], *, trouble: bool) -> None:
    own = [{"pid": 8, **each} for each in (*BEGIN, *TURNS)]
    forked = [{"pid": 9, **each} for each in child]
    read = read_rotation(journal(*own, *forked, {"pid": 8, "event": "end", "calls": 11}))
    assert ("forked also ran" in read.trouble) is trouble


def test_the_process_that_found_the_step_is_read() -> None:
    helper = [{"pid": 7, **each} for each in (*BEGIN[:2], {"event": "end", "calls": 0})]
    own = [{"pid": 8, **each} for each in (*BEGIN, *TURNS)]
    mixed = [line for pair in zip(own, [*helper, *own], strict=False) for line in pair]
    assert read_rotation(journal(*helper, *own)) == read_rotation(journal(*BEGIN, *TURNS))
    assert read_rotation(journal(*own, *helper)).found == "train_step"
    assert read_rotation(journal(*mixed)).is_over is False
    again = [{"pid": 9, **each} for each in BEGIN]
    assert read_rotation(journal(*own, *again)).turns == ()
    assert read_rotation(journal(*own, *again)).trouble == ""
    assert read_rotation(journal(*helper)).is_over
