"""Ladders of the catalog: numbers in order, on which leaders have neighbours."""

from __future__ import annotations

import pytest

from pytest_xlatune.catalog.candidates import ladders_of
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import profile
from pytest_xlatune.studies.derived import Around, Leader

AG = "xla_gpu_all_gather_combine_threshold_bytes"


@pytest.mark.parametrize("axis", ["FSDP", "PP", "TP"])
def test_a_ladder_is_of_numbers_in_order(axis: str) -> None:
    found = ladders_of(axis)
    assert found
    for values in found.values():
        numbers = list(map(int, values))
        assert numbers == sorted(set(numbers))
        assert len(numbers) > 1
    assert "NCCL_CROSS_NIC" not in found  # a switch has nothing beside it
    assert "NCCL_PROTO" not in found


def test_a_leader_of_the_axis_has_neighbours_on_it() -> None:
    lead = Leader(profile=profile("ag-1g", f"--{AG}={1 << 30}"), estimate=0.02)
    around = Around(ladders=ladders_of("FSDP"))
    assert [each.id for each in around.made([lead], pool=[])] == ["ag-1g.2g", "ag-1g.512m"]


def test_an_unknown_axis_is_named() -> None:
    with pytest.raises(ConfigError, match="FSPD"):
        ladders_of("FSPD")
