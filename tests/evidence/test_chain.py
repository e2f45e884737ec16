"""Following events from many places at once finds what following them one by one finds."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_xlatune.evidence.protobuf import WireError
from pytest_xlatune.evidence.trace import columns as chain
from tests.helpers.examples import tried


def one_by_one(data: bytes, start: int, end: int) -> tuple[list[int], int]:
    """The definition, written down once more."""
    found, at = [], start
    while at < end and data[at] == chain.TAG:
        length, width = data[at + 1], 2
        if length >= 0x80:
            if data[at + 2] >= 0x80:
                break
            length, width = length & 0x7F | data[at + 2] << 7, 3
        found.append(at)
        at += width + length
    return found, at


def event(body: bytes) -> bytes:
    size = len(body)
    length = [size] if size < 0x80 else [size & 0x7F | 0x80, size >> 7]
    return bytes([chain.TAG, *length]) + body


def profiled(count: int, seed: int, treacherous: float) -> bytes:
    """Events as a profiler writes them, with bytes in them that look like the tag of one."""
    rng = random.Random(seed)

    def number() -> bytes:
        treachery = rng.random() < treacherous
        return bytes([chain.TAG if treachery else rng.randrange(128)])

    def stat() -> bytes:
        return event(bytes([chain.OPENING]) + number() + b"\x18" + number())

    made = []
    for _ in range(count):
        stats = b"".join(stat() for _ in range(rng.randrange(1, 30 if rng.random() < 0.1 else 4)))
        times = b"\x10" + number() + b"\x18" + number()
        made.append(event(bytes([chain.OPENING]) + number() + times + stats))
    return b"".join(made)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chain, "SHORT", 256)
    monkeypatch.setattr(chain, "PARTS", 16)


def check(data: bytes, start: int, end: int) -> None:
    try:
        expected: object = one_by_one(data, start, end)
    except IndexError:
        with pytest.raises(WireError, match="cut off"):
            chain.follow(data, start, end)
        return
    tags, at = chain.follow(data, start, end)
    assert (tags.tolist(), at) == expected


@pytest.mark.parametrize("treacherous", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(8))
def test_a_profilers_events_are_found(seed: int, treacherous: float) -> None:
    data = b"head" + profiled(800, seed, treacherous)
    check(data, 4, len(data))


def test_most_of_them_are_found_at_once() -> None:
    data = profiled(800, 1, 0.1)
    found, at = chain._at_once(np.frombuffer(data, np.uint8), 0, len(data))
    assert len(found) > 400
    assert found.tolist() == one_by_one(data, 0, at)[0]


@settings(deadline=None, max_examples=tried(150))
@given(
    st.integers(0, 10**6),
    st.integers(0, 300),
    st.integers(0, 300),
    st.binary(max_size=40),
    st.binary(max_size=9),
)
def test_something_between_and_behind_changes_nothing(
    seed: int, before: int, behind: int, between: bytes, after: bytes
) -> None:
    data = profiled(before, seed, 0.2) + between + profiled(behind, seed + 1, 0.2) + after
    check(data, 0, len(data))
    check(data, 0, max(0, len(data) - 5))


@settings(deadline=None, max_examples=tried(150))
@given(st.lists(st.sampled_from([0x22, 0x08, 0x00, 0x02, 0x80, 0xFF, 0x10]), max_size=1500))
def test_any_bytes_are_followed_alike(found: list[int]) -> None:
    check(bytes(found), 0, len(found))
