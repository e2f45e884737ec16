"""When two texts are one value of a flag."""

from __future__ import annotations

import pytest

from pytest_xlatune.model.text import is_relative, same_value


@pytest.mark.parametrize(
    ("one", "other", "kind", "same"),
    [
        pytest.param("true", "1", "", True, id="a switch by its words"),
        pytest.param("", "true", "bool", True, id="a bare switch is on"),
        pytest.param("", "true", "", False, id="an empty text is no switch unless it is one"),
        pytest.param("FALSE", "0", "bool", True, id="any case"),
        pytest.param("2", "true", "int64", False, id="two is not on"),
        pytest.param("1024", "1024.0", "float", False, id="an integer is not a float's text"),
        pytest.param("0.50", "0.5", "float", True, id="digits of a float"),
        pytest.param("007", "7", "int32", True, id="leading zeros"),
        pytest.param("9223372036854775807", "9223372036854775806", "", False, id="beyond a float"),
        pytest.param(
            "on", "COLLECTIVE_PIPELINING_MODE_ON", "enum", True, id="an enum's short word"
        ),
        pytest.param("off", "COLLECTIVE_PIPELINING_MODE_ON", "enum", False, id="another word"),
        pytest.param("symmetric", "COLLECTIVES_SYMMETRIC_MEMORY", "", True, id="in the middle"),
        pytest.param("n", "COLLECTIVE_PIPELINING_MODE_ON", "enum", False, id="part of a word"),
        pytest.param("FUSION,CUBLAS", "cublas,fusion", "", True, id="a list in any order"),
        pytest.param("FUSION", "FUSION,CUBLAS", "", False, id="a shorter list"),
        pytest.param("/a/B", "/a/b", "string", False, id="a path is itself"),
    ],
)
def test_spellings(one: str, other: str, kind: str, *, same: bool) -> None:
    assert same_value(one, other, kind=kind) is same
    assert same_value(other, one, kind=kind) is same


@pytest.mark.parametrize(
    ("value", "relative"),
    [("+FUSION,-CUBLAS", True), ("FUSION", False), ("", False), ("-1", False), ("+A,B", False)],
)
def test_lists_that_are_edited(value: str, *, relative: bool) -> None:
    assert is_relative(value) is relative
