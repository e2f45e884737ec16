"""Host lists: Slurm's notation to names and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import compress, expand


@pytest.mark.parametrize(
    ("text", "names"),
    [
        pytest.param("node[001-003]", "node001 node002 node003", id="padding is kept"),
        pytest.param("n[098-101]", "n098 n099 n100 n101", id="padding runs full"),
        pytest.param("n[1,3,7-8]", "n1 n3 n7 n8", id="numbers and ranges"),
        pytest.param("r[1-2]n[1-2]", "r1n1 r1n2 r2n1 r2n2", id="two dimensions"),
        pytest.param("n[1-2,007],gpu-a[1-2]", "n1 n2 n007 gpu-a1 gpu-a2", id="two groups"),
    ],
)
def test_expand(text: str, names: str) -> None:
    assert expand(text) == tuple(names.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "'' is no name"),
        ("a,", "'' is no name"),
        ("n[1-", "is no name"),
        ("n[a]", "is no name"),
        ("n[3-1]", "range 3-1 is backwards"),
        ("n[0-99999999]", "more than 65536 nodes"),
        ("n[1-65536,1]", "more than 65536 nodes"),
        ("n[1-256][1-256]a,b", "more than 65536 nodes"),
        ("n1]", "'n1]' is no name"),
        ("n1 n2", "'n1 n2' is no name"),
        ("n1,n[1-2]", "n1 is named twice"),
    ],
)
def test_a_malformed_list_is_refused_with_its_text(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        expand(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("names", "text"),
    [
        pytest.param("", "", id="none"),
        pytest.param("n9 n10", "n[9-10]", id="a run over a power of ten"),
        pytest.param("n1 n02", "n[1,02]", id="different padding is no run"),
        pytest.param("0a a 1a", "0a,a,1a", id="a number and none before the same rest"),
    ],
)
def test_compress(names: str, text: str) -> None:
    assert compress(names.split()) == text


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
