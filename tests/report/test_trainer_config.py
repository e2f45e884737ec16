"""The trainer's configuration: what is read of it, and that a change touches nothing else."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from pytest_xlatune.report._deployed_files import values_of, with_value

TEXT = """\
# what every model shares
base_config:   "base.yml"  # MaxText's own
remat_policy: 'full'
steps: 0015 # of a trial
empty:
"quoted key": 1e-3
axes: ['data',
       'fsdp']
rules:
  - [a, b]
note: |
  two
  lines
"""


def test_what_is_read() -> None:
    assert values_of(TEXT) == {
        "base_config": "base.yml", "remat_policy": "full", "steps": "0015", "empty": "",
        "quoted key": "1e-3", "note": "two\nlines\n",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value", "line"),
    [
        ("base_config", "my.yml", "base_config:   my.yml  # MaxText's own"),
        ("remat_policy", "minimal", "remat_policy: minimal"),
        ("steps", "a: b #", 'steps: "a: b #" # of a trial'),
        ("empty", "no", "empty: no"),
        ("new", "1", "new: 1"),
    ],
)
def test_one_line_changes(key: str, value: str, line: str) -> None:
    made = with_value(TEXT, key, value)
    assert made is not None
    before, after = TEXT.splitlines(), made.splitlines()
    assert line in after
    assert len(set(before) - set(after)) == (key != "new")
    assert values_of(made) == {**values_of(TEXT), key: value}


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("k: [1]\n", id="a list"),
        pytest.param("k: |\n  a\n", id="a text of several lines"),
        pytest.param("k: 1\nk: 2\n", id="a key that stands twice"),
        pytest.param("k: &it 1\nother: *it\n", id="a value that another key refers to"),
        pytest.param("{% if x %}\nk: 1\n", id="no YAML"),
        pytest.param("{a: 1}\n", id="a table in one line"),
    ],
)
def test_what_has_no_single_value_is_left_alone(text: str) -> None:
    assert with_value(text, "k", "3") is None


CHARACTERS = st.characters(categories=("L", "N", "P", "S", "Zs"), exclude_characters="\ufeff")


@given(st.text(CHARACTERS, max_size=20))
def test_any_value_is_read_back(value: str) -> None:
    made = with_value(TEXT, "remat_policy", value)
    assert made is not None
    assert str(YAML(typ="base").load(io.StringIO(made))["remat_policy"]) == value


@given(st.text("ak:'\"#&*[]{}|>-? \n", max_size=30))
def test_no_text_is_an_accident(text: str) -> None:
    made = with_value(text, "k", "3")
    assert made is None or values_of(made)["k"] == "3"
