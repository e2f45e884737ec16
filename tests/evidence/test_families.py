"""Kernels to families, families to sums, intervals to what is exposed."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_xlatune.evidence import trace
from pytest_xlatune.evidence.trace import KINDS, Kind, classify, parse_families
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow, drill, timeline
from pytest_xlatune.model.errors import ConfigError
from tests.helpers.captures import node, reconciles

TABLE = Path(trace.__file__).with_name("families.toml")
KERNELS = {
    kernel: row["name"]
    for row in tomllib.loads(TABLE.read_text())["family"]
    for kernel in row["kernels"]
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_belongs_to_the_first_family_that_finds_it(kernel: str) -> None:
    families = trace.shipped_families()
    (found,), _ = classify((kernel,), families)
    assert families[found].name == KERNELS[kernel]


def test_own_families_replace_the_built_in_ones() -> None:
    mine = parse_families(
        [{"name": "router", "kind": "communication", "pattern": "scatter"}], where="f.toml"
    )
    found = drill([node().trace()], CaptureWindow(families=mine))
    assert {row.name for row in found.families} == {"router", "other"}
    assert found.total.communication_ps == 250 * 6
    reconciles(found)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        pytest.param({}, "expected a list of families", id="no list"),
        pytest.param([{"name": "a"}], "required field `kind`", id="keys missing"),
        pytest.param(
            [{"name": "a", "kind": "computer", "pattern": ""}],
            "value 'computer'",
            id="unknown kind",
        ),
        pytest.param(
            [{"name": "a", "kind": "memory", "pattern": "("}], "pattern '\\('", id="no expression"
        ),
    ],
)
def test_wrong_families_are_a_usage_error(data: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_families(data, where="f.toml")


INTERVALS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 20), st.integers(0, len(KINDS) - 1)),
    min_size=1,
    max_size=30,
)


@given(INTERVALS)
def test_the_sweep_equals_counting_every_tick(intervals: list[tuple[int, int, int]]) -> None:
    start, size, kind = (np.array(column, np.int64) for column in zip(*intervals, strict=True))
    found, alone = timeline(start, start + size, kind)
    ticks = range(100)
    running = [[i for i, (a, n, _) in enumerate(intervals) if a <= tick < a + n] for tick in ticks]
    kinds = [{Kind(KINDS[intervals[i][2]]) for i in now} for now in running]
    assert found.sum_ps == sum(len(now) for now in running)
    assert found.busy_ps == sum(bool(now) for now in running)
    assert found.compute_ps == sum(Kind.COMPUTE in now for now in kinds)
    assert found.communication_ps == sum(Kind.COMMUNICATION in now for now in kinds)
    assert found.overlap_ps == sum({Kind.COMPUTE, Kind.COMMUNICATION} <= now for now in kinds)
    assert found.exposed_memory_ps == sum(now == {Kind.MEMORY} for now in kinds)
    assert found.busy_ps == (
        found.compute_ps + found.exposed_communication_ps + found.exposed_memory_ps
    )
    assert list(alone) == [sum(now == [i] for now in running) for i in range(len(intervals))]
