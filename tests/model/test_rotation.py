"""Rotations: what can share a process, the trial, the spec, and the journal of its worker."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import Message
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, parse_flags, profile
from pytest_xlatune.model.rotation import (
    RotatedProgram,
    RotationSpec,
    options_of,
    read_rotation,
)
from pytest_xlatune.model.trial import ROTATION, Rotation, Trial
from tests.helpers.scripted import at_call
from tests.helpers.tables import rows

BASE = RotatedProgram(id=BASELINE_ID)
A = RotatedProgram(id="a", options={"xla_a": "1"})
B = RotatedProgram(id="b", options={"xla_b": "true"})
SPEC = RotationSpec(programs=(BASE, A, B), order=(1, 0, 2, 0), turn_steps=4, first_step=3)
PASSES, COUNT = "xla_disable_hlo_passes", "xla_force_host_platform_device_count"
GRAPHS = "xla_gpu_enable_command_buffer"


ESTIMATOR = "xla_gpu_analytical_latency_estimator_options"
TPU = {"LIBTPU_INIT_ARGS": "--xla_tpu_a=1 --some_flag=2", "A": "1"}
OPTIONS: dict[str, tuple[str, str, dict[str, Any], Any]] = {
    "a list joins the deployed one, which an option would replace": (
        f"--{PASSES}=fusion", f"--{PASSES}=dce --{PASSES}=cse", {}, {PASSES: "dce,cse,fusion"}),
    "what the client reads, as it is deployed": (
        f"--{COUNT}=4 --xla_a=1", f"--{COUNT}=4", {}, {"xla_a": "1"}),
    "flags of libtpu, one of them switched off by its name alone": (
        "--xla_tpu_scoped_vmem_limit_kib=65536 --noxla_tpu_rwb_fusion", "--xla_b=1", {},
        {"xla_tpu_scoped_vmem_limit_kib": "65536", "xla_tpu_rwb_fusion": "false"}),
    "a flag that is not known to be libtpu's": (
        "", "", {"env": TPU}, ("a library reads", "some_flag", "A")),
    "a key of the trainer": (
        "", "", {"overrides": {"remat_policy": "full"}}, ("before it compiles", "remat_policy")),
    "one flag of two is read when the client starts": (
        f"--xla_a=1 --{COUNT}=4", "", {}, ("one process share", COUNT)),
    "an option of several fields": (
        f"--{ESTIMATOR}=nic_speed_gbps=400", "", {}, ("several fields", ESTIMATOR)),
    "a list that is edited": (
        f"--{GRAPHS}=+CUSTOM_CALL,-CUBLAS", "", {}, ("edits a list", GRAPHS)),
}  # fmt: skip


@rows("flags, deployed, more, expected", OPTIONS)
def test_settings_are_options_of_a_compilation_or_stay_a_job_and_say_why(
    flags: str, deployed: str, more: dict[str, Any], expected: Any
) -> None:
    found = options_of(profile("p", flags, **more), parse_flags(deployed))
    if isinstance(found, Message):
        words, *names = expected
        assert words in found.text
        assert found.values["names"] == tuple(names)
    else:
        assert found == expected


def test_a_spec_survives_json_and_one_that_makes_no_sense_is_refused() -> None:
    assert RotationSpec.from_json(json.loads(json.dumps(SPEC.to_json()))) == SPEC
    with pytest.raises(ConfigError, match="nothing to compare with"):
        SPEC.without({BASELINE_ID})
    refused: dict[str, dict[str, Any]] = {
        "first program is not": {"programs": (A, BASE)},
        "not listed": {"order": (0, 3)},
        "turn_steps": {"turn_steps": 0},
        "no file name": {"journal": "../{rank}"},
        "schema 2": {"schema": 2},
    }
    for words, wrong in refused.items():
        with pytest.raises(ConfigError, match=words):
            replace(SPEC, **wrong)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.sets(st.sampled_from("abc")))
def test_what_is_left_out_leaves_every_step_in_its_turn(order: list[int], out: set[str]) -> None:
    programs = (BASE, *(RotatedProgram(id=name) for name in "abc"))
    spec = RotationSpec(programs=programs, order=tuple(order), turn_steps=2)
    rest = spec.without(out)
    for call in range(40):
        due = at_call(spec, call)
        assert at_call(rest, call) == (BASELINE_ID if due in out else due)
    assert not {program.id for program in rest.programs} & out


COPIED = RotationSpec(
    programs=(BASE, replace(A, id="fast"), RotatedProgram(id=f"{BASELINE_ID}~2")),
    order=(0, 1, 2, 2, 1, 0),
    turn_steps=8,
    first_step=4,
)
PROTOCOL = Protocol(steps=12, autotune_cache="/shared/kernels")
CELL = Cell(model_tag="tiny", parallelism=Parallelism.parse("FSDP=4"), protocol=PROTOCOL)
PLAIN = Trial(
    arm=ROTATION,
    cell_digest=CELL.digest,
    profile=BASELINE,
    protocol=PROTOCOL,
    study="tuning",
    stage="rank",
)
ROTATED = Rotation(number=1, spec=COPIED)
TRIAL = replace(PLAIN, rotation=ROTATED)
Event = Mapping[str, object]
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
END: Event = {"event": "end", "calls": 9}


def journal(*events: Event) -> str:
    return "".join(json.dumps(event) + "\n" for event in events)


def test_identity_is_what_was_planned() -> None:
    def is_other(**changes: Any) -> bool:
        return replace(TRIAL, rotation=replace(ROTATED, **changes)).id != TRIAL.id

    assert TRIAL.id != PLAIN.id
    assert is_other(number=2)
    assert is_other(spec=replace(COPIED, order=(1, 0, 2, 2, 1, 0)))
    assert not is_other(deadline_s=9000, suspect="fast")
    assert (PLAIN.compiles_anew, TRIAL.compiles_anew) == (False, True)
    assert replace(PLAIN, arm=BASELINE_ID).is_baseline
    assert not replace(TRIAL, arm=BASELINE_ID).is_baseline
    assert (PLAIN.is_screened, TRIAL.is_screened) == (True, False)


def test_what_it_died_of_is_not_run_again_and_the_order_keeps_its_length() -> None:
    after = replace(ROTATED, died_of=("fast",))
    assert [program.id for program in after.as_run.programs] == [BASELINE_ID, f"{BASELINE_ID}~2"]
    assert after.as_run.order == (0, 0, 1, 1, 0, 0)
    assert ROTATED.as_run is COPIED
    assert after.steps == ROTATED.steps == 4 + 6 * 8
    # a suspect has the first turn of a profile
    programs = (*COPIED.programs, replace(B, id="slow"))
    slow = replace(COPIED, programs=programs, order=(0, 1, 3, 2, 3, 1))
    assert replace(ROTATED, spec=slow, suspect="slow").as_run.order == (0, 3, 1, 2, 1, 3)


def test_a_journal_is_read_whole() -> None:
    read = read_rotation(journal(*BEGIN, *TURNS, END))
    assert (read.found, read.jax, read.calls, read.is_over) == ("train_step", "0.10.2", 9, True)
    assert read.device == "gpu NVIDIA H100"
    compiled = [(each.program, each.memory_bytes, each.same_as) for each in read.compiled]
    assert compiled == [(BASELINE_ID, 100, ""), ("a", None, BASELINE_ID)]
    assert read.refused == {"b": "No such compile option: 'xla_b'"}
    assert read.left_out == {"c": 1 << 40}
    turns = [(turn.program, turn.first_call, turn.calls) for turn in read.turns]
    assert turns == [("a", 3, 4), (BASELINE_ID, 7, 2)]
    # a process that died is taken to have had its last turn
    assert read_rotation(journal(*BEGIN, *TURNS)).turns[-1].calls == 4


COPY_TURN: Event = {"event": "turn", "program": "d~2", "first_call": 11}


def test_who_is_blamed_for_a_process_that_died() -> None:
    for events, suspects in (
        (BEGIN[:4], ()),  # the baseline was being compiled
        (BEGIN, ("b",)),
        ((*BEGIN, *TURNS[:3]), ("a",)),
        ((*BEGIN, *TURNS, COPY_TURN), ("d~2",)),
    ):
        assert read_rotation(journal(*events)).suspects == suspects


def test_torn_and_foreign_lines_are_passed_over() -> None:
    text = journal(*BEGIN)
    foreign = 'a line of another program\n[1]\n"text"\n{"event": []}\n{"event": "news"}\n{}\n'
    assert read_rotation(foreign + text + '{"event": "compil') == read_rotation(text)
    damaged = '{"event": "turn", "program": "a"}\n{"event": "end", "calls": "x"}\n'
    assert read_rotation(damaged) == read_rotation("")


def of_process(pid: int, *events: Event) -> list[Event]:
    return [{"pid": pid, **event} for event in events]


def test_a_forked_child_that_trains_on_is_told() -> None:
    def trouble_of(*child: Event) -> str:
        parent = of_process(8, *BEGIN, *TURNS)
        lines = (*parent, *of_process(9, *child), *of_process(8, END))
        return read_rotation(journal(*lines)).trouble

    assert "forked also ran" in trouble_of(*TURNS[2:])
    assert not trouble_of(END), "it ends as its parent does"
    assert not trouble_of(*BEGIN, *TURNS), "it is a program of its own"
