"""A recipe goes back into the file that it was measured over: text kept, settings read again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_xlatune import profile
from pytest_xlatune.guests.cvs.reading import CvsFile, read_cvs
from pytest_xlatune.guests.cvs.recipe import recipe_of, untaken, with_values
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import Profile
from tests.helpers.cvs_written import first, fourth

WON = profile(
    "won",
    "--xla_gpu_autotune_level=0 --xla_gpu_new_flag=true",
    env={"NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eno7", "NEW_ONE": 'a "b"'},
    overrides={"remat_policy": "minimal", "attention": "cudnn_flash_te"},
)
CASES = {
    "1": (first(multi=True), 2),
    "4": (fourth(), 4),
}


def read(text: str, nodes: int) -> CvsFile:
    return read_cvs(text, where="config.json", nodes=nodes)


def patched(text: str, nodes: int, won: Profile = WON) -> tuple[str, tuple[str, ...]]:
    file = read(text, nodes)
    recipe = recipe_of(file, file.cells[0], won)
    made = with_values(text, recipe.changes, where="config.json")
    lost = untaken(file, read(made, nodes), cell=file.cells[0], profile=won, recipe=recipe)
    return made, (*recipe.left_out, *lost)


def flat(text: str) -> dict[tuple[Any, ...], Any]:
    from pytest_xlatune.guests.cvs.reading import leaves_of

    return dict(leaves_of(json.loads(text)))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("indent", [2, "\t", None])
def test_reading_the_patched_file_gives_the_settings_and_nothing_else_changes(
    name: str, indent: Any
) -> None:
    data, nodes = CASES[name]
    before = json.dumps(data, indent=indent)
    after, left_out = patched(before, nodes)
    file = read(after, nodes)
    assert file.generation == name
    assert file.xla_flags["xla_gpu_autotune_level"] == "0"
    assert file.xla_flags["xla_gpu_new_flag"] == "true"
    assert file.env["NCCL_DEBUG"] == "INFO"
    assert file.env["NCCL_SOCKET_IFNAME"] == "eno7"
    assert file.env["NEW_ONE"] == 'a "b"'
    assert file.cells[0].maxtext["remat_policy"] == "minimal"
    assert [each for each in left_out if "reading" in each] == []
    assert [each.partition(":")[0] for each in left_out] == (
        ["flags of generation 1"] if name == "1" else []
    )
    old, new = flat(before), flat(after)
    assert [each for each in new if each in old] == list(old), "the order is kept"
    changed = {path for path in old if old[path] != new[path]}
    assert 0 < len(changed) <= 6, changed
    assert all(isinstance(new[each], str) for each in changed)
    lines = before.splitlines()
    kept = [line for line in after.splitlines() if line in lines]
    assert len(kept) >= len(lines) - 14 or indent is None


def test_several_sweeps_that_run_keep_their_own_keys() -> None:
    data = fourth()
    data["runs"] = [each for each in data["sweeps"] if not each.startswith("_")]
    after, left_out = patched(json.dumps(data), 4)
    one, other = read(after, 4).cells
    assert not left_out
    assert (one.maxtext["remat_policy"], other.maxtext["remat_policy"]) == ("minimal", "minimal")
    assert one.maxtext["attention"] == "cudnn_flash_te"
    assert other.maxtext["attention"] == "dot_product"


@pytest.mark.parametrize("spelt", ["text", "list", "dashes"])
def test_flags_keep_their_spelling(spelt: str) -> None:
    data = fourth()
    spellings: dict[str, Any] = {
        "text": "--xla_gpu_autotune_level=4",
        "list": ["--xla_gpu_autotune_level=4"],
        "dashes": {"--xla_gpu_autotune_level": 4},
    }
    data["train_params"]["xla_flags"] = spellings[spelt]
    after, left_out = patched(json.dumps(data), 4)
    assert not left_out
    flags = json.loads(after)["train_params"]["xla_flags"]
    assert isinstance(flags, type(spellings[spelt]))
    assert read(after, 4).xla_flags["xla_gpu_autotune_level"] == "0"


def test_flags_of_the_environment_stay_there() -> None:
    data = fourth()
    del data["train_params"]["xla_flags"]
    data["container"]["env"]["XLA_FLAGS"] = "--xla_gpu_deployed=1"
    after, left_out = patched(json.dumps(data), 4)
    assert not left_out
    text = read(after, 4).env["XLA_FLAGS"]
    assert text.startswith("--xla_gpu_deployed=1 --xla_gpu_autotune_level=0 ")


def test_what_has_no_place_is_told() -> None:
    won = profile("won", env={"NNODES": "2", "MY_TOKEN": "x"}, overrides={"packing": "false"})
    after, left_out = patched(json.dumps(first()), 1, won)
    assert [each.partition(":")[0] for each in left_out] == ["NNODES", "MY_TOKEN", "packing"]
    assert json.loads(after) == first()


def test_a_key_that_stands_twice_is_changed_where_it_counts() -> None:
    text = '{"a": {"x": "1"},\r\n\t"a" : {"x": "2" , "y":[1,\n2 ] } }'
    assert with_values(text, {("a", "x"): 3}, where="f") == text.replace('"2"', '"3"')
    assert with_values(text, {("a", "y", 1): 3}, where="f") == text.replace("\n2", "\n3")
    assert with_values("{}", {("a", "b"): 1}, where="f") == '{"a": {"b": 1}}'
    with pytest.raises(ConfigError, match="holds no keys"):
        with_values(text, {("a", "x", "z"): 3}, where="f")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


@given(
    data=st.dictionaries(st.text(max_size=3), VALUES, max_size=4),
    path=st.lists(st.text(max_size=3), min_size=1, max_size=3),
    value=st.booleans() | st.text(max_size=4),
    indent=st.sampled_from([None, 0, 2, "\t"]),
    ascii_only=st.booleans(),
)
def test_any_object_has_the_value_and_the_rest_as_before(
    data: Any, path: list[str], value: Any, indent: Any, *, ascii_only: bool
) -> None:
    text = json.dumps(data, indent=indent, ensure_ascii=ascii_only)
    wanted = json.loads(text)
    below = wanted
    for key in path[:-1]:
        below = below.setdefault(key, {}) if isinstance(below, dict) else None
    if not isinstance(below, dict):
        with pytest.raises(ConfigError):
            with_values(text, {tuple(path): value}, where="f")
        return
    old = below.get(path[-1])
    below[path[-1]] = (
        str(value).lower() if isinstance(old, str) and value in (True, False) else value
    )
    assert json.loads(with_values(text, {tuple(path): value}, where="f")) == wanted
