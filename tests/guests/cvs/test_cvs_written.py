"""A recipe goes back into the file that it was measured over, which is read again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_xlatune import profile
from pytest_xlatune.guests.cvs.reading import read_cvs
from pytest_xlatune.guests.cvs.source import leaves_of
from pytest_xlatune.guests.cvs.written import with_profile
from pytest_xlatune.model.profile import Profile
from tests.helpers.cvs_written import first, fourth

WON = profile(
    "won",
    "--xla_gpu_autotune_level=0 --xla_gpu_new_flag=true",
    env={"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eno7", "NEW_ONE": 'a "b"'},
    overrides={"remat_policy": "minimal", "attention": "cudnn_flash_te"},
)


def patched(data: Any, won: Profile = WON) -> tuple[dict[str, Any], list[str]]:
    return with_profile(json.dumps(data), won, cell="", where="config.json", nodes=4)


@pytest.mark.parametrize("data", [first(multi=True), fourth()], ids=["1", "4"])
def test_the_settings_are_in_the_file_and_nothing_else_changes(data: Any) -> None:
    after, left_out = patched(data)
    file = read_cvs(json.dumps(after), where="config.json", nodes=4)
    (cell,) = file.cells
    flags = ("xla_gpu_autotune_level", "xla_gpu_new_flag")
    assert [cell.xla_flags[name] for name in flags] == ["0", "true"]
    assert [file.env[name] for name in WON.env] == list(WON.env.values())
    assert cell.maxtext["remat_policy"] == "minimal"
    is_first = file.generation == "1"
    told = ["its XLA flags"] if is_first else []
    assert [each.partition(":")[0] for each in left_out] == told
    old, new = dict(leaves_of(data)), dict(leaves_of(after))
    assert [each for each in new if each in old] == list(old), "the order is kept"
    changed = {path for path in old if old[path] != new[path]}
    assert 0 < len(changed) <= 6, changed
    assert all(isinstance(new[each], str) for each in changed), "a text stays a text"


@pytest.mark.parametrize(
    ("data", "changes", "won", "told"),
    [
        (first(), {}, profile("won", env={"NNODES": "2"}), "NNODES: only the launcher"),
        (first(), {}, profile("won", env={"MY_TOKEN": "x"}), "MY_TOKEN: its value is secret"),
        (first(), {}, profile("won", overrides={"packing": "false"}), "packing: CVS of gen"),
        (first(), {"NVTE_FUSED_ATTN": "0"}, None, "CVS replaces it with 1"),
        (fourth(), {"XLA_FLAGS": "--xla_a=1"}, WON, "add them to the XLA_FLAGS"),
    ],
)
def test_what_has_no_place_is_told(
    data: Any, changes: dict[str, str], won: Profile | None, told: str
) -> None:
    if won is None:
        won = profile("won", env=changes)
    elif changes:
        data["container"]["env"] |= changes
    after, left_out = patched(data, won)
    assert told in " ".join(left_out)
    assert len(left_out) == 1
    assert (after == data) == (not changes)
