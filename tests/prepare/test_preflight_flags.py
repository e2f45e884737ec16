"""The settings of a campaign, before anything is submitted: rules, and the target's XLA."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from pytest_xlatune.catalog.context import Context
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import Profile, parse_flags, profile
from pytest_xlatune.prepare.lint import look_at_flags, look_at_rules
from pytest_xlatune.sweep.deployed import context_of
from tests.helpers.as_xla import xla  # noqa: F401 - a fixture

KNOWN = profile("known", "--xla_cpu_multi_thread_eigen=false")
UNKNOWN = profile("unknown", "--xla_cpu_enable_warp_drive=true")
BAD_VALUE = profile("bad-value", "--xla_cpu_enable_fast_math=maybe")
BLOCKED = profile("inflated", "--xla_gpu_collective_inflation_factor=0")


def cell(**deployed: str) -> Cell:
    return Cell(model_tag="m", parallelism=Parallelism.parse("FSDP=4"), deployed=deployed)


@pytest.mark.usefixtures("xla")
@pytest.mark.parametrize(
    ("profiles", "deployed", "faults", "notes"),
    [
        pytest.param([KNOWN], "", 0, (), id="all known"),
        pytest.param(
            [KNOWN, UNKNOWN], "", 0,
            ("profile unknown: unknown to this XLA: --xla_cpu_enable_warp_drive",),
            id="an unknown one is a note",
        ),
        pytest.param(
            [KNOWN, BAD_VALUE, UNKNOWN], "", 0,
            ("profile bad-value: Couldn't interpret", "profile unknown: unknown to this XLA"),
            id="a bad value hides no unknown one",
        ),
        pytest.param([UNKNOWN], "", 2, (), id="that none is known is a fault"),
        pytest.param(
            [KNOWN], "--xla_bogus=1", 1, (), id="an unknown one that is deployed is a fault"
        ),
        pytest.param([profile("env", env={"A": "1"})], "", 0, (), id="nothing to ask"),
        pytest.param([KNOWN, BLOCKED], "", 1, (), id="a blocked one is a fault, though known"),
    ],
)  # fmt: skip
def test_the_trainers_own_xla_says_which_flags_it_knows(
    profiles: list[Profile], deployed: str, faults: int, notes: tuple[str, ...]
) -> None:
    context = Context(deployed=parse_flags(deployed))
    found = look_at_flags(profiles, context, python=sys.executable, environ=os.environ)
    assert len(found.faults) == faults, found
    assert len(found.notes) == len(notes), found
    assert all(said.startswith(note) for said, note in zip(found.notes, notes, strict=True))


@pytest.mark.usefixtures("xla")
def test_where_one_was_measured_that_another_is_refused_is_a_note() -> None:
    # a measured sweep with a profile of an unknown flag could not be asked again
    profiles, taken = [KNOWN, UNKNOWN], {KNOWN.id}
    found = look_at_flags(
        profiles, Context(), python=sys.executable, environ=os.environ, taken=taken
    )
    assert not found.faults
    assert [each.partition(":")[0] for each in found.notes] == ["profile unknown"]


def test_of_what_was_measured_nothing_is_asked() -> None:
    found = look_at_flags(
        [KNOWN, BLOCKED],
        Context(),
        python="/no/such/python",
        environ={},
        taken={KNOWN.id, BLOCKED.id},
    )
    assert not found.faults
    assert not found.notes


@pytest.mark.parametrize(
    ("python", "why"),
    [
        pytest.param("", "names no interpreter", id="no interpreter"),
        pytest.param("/no/such/python", "is not on this machine", id="in a container"),
        pytest.param("false", "cannot be asked", id="no Python at all"),
    ],
)
def test_where_xla_cannot_be_asked_the_rules_still_hold(python: str, why: str) -> None:
    found = look_at_flags([KNOWN, BLOCKED], Context(), python=python, environ=os.environ)
    assert [fault.partition(":")[0] for fault in found.faults] == ["profile inflated"]
    assert why in found.notes[-1]


def test_env_files_are_part_of_what_is_deployed(tmp_path: Path) -> None:
    env_file = tmp_path / "deployed.env.sh"
    env_file.write_text(
        'export XLA_FLAGS="$XLA_FLAGS --xla_gpu_enable_pipelined_p2p=true" NCCL_BUFFSIZE=4M\n'
    )
    launcher = CommandLauncher(argv=("/bin/true",), env_files=(str(env_file),))
    context = context_of(cell(XLA_FLAGS="--xla_gpu_autotune_level=4"), launcher)
    assert [each.name for each in context.deployed] == [
        "xla_gpu_autotune_level",
        "xla_gpu_enable_pipelined_p2p",
    ]
    threshold = profile("t", "--xla_gpu_collective_permute_decomposer_threshold=1024")
    found = look_at_rules([threshold], context)
    assert found.faults == (
        (
            "deployed: NCCL_BUFFSIZE=4M is read as 4, the rest is ignored; write 4194304 "
            "[plain-integer]"
        ),
    )


def test_an_env_file_that_only_the_nodes_can_read_makes_an_absent_partner_a_note(
    tmp_path: Path,
) -> None:
    env_file = tmp_path / "node.env.sh"
    env_file.write_text("test -e /dev/kfd.absent\n")
    launcher = CommandLauncher(argv=("/bin/true",), env_files=(str(env_file),))
    context = context_of(cell(), launcher)
    threshold = profile("t", "--xla_gpu_collective_permute_decomposer_threshold=1024")
    found = look_at_rules([threshold, BLOCKED], context)
    assert [fault.partition(":")[0] for fault in found.faults] == ["profile inflated"]
    assert "[partner]" in found.notes[0]


def test_deployed_flags_that_end_early_are_refused_with_what_is_lost() -> None:
    with pytest.raises(ConfigError, match="silently drops"):
        context_of(cell(XLA_FLAGS="--xla_a=1 , --xla_b=2"), CommandLauncher(argv=("/bin/true",)))
