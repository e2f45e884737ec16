"""Events of an xplane as protobuf may write them, read column by column."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_xlatune.evidence.protobuf import WireError
from pytest_xlatune.evidence.trace import ABSENT, Names, columns
from pytest_xlatune.evidence.trace.columns import BLOCK, NameTable, TraceLine, decode
from pytest_xlatune.evidence.trace.xplane import CaptureFile, line_parts, read_plane
from pytest_xlatune.model.errors import ParseError
from tests.helpers.captures import msg, named, node, num, on_stream, read_xplane, uint
from tests.helpers.examples import tried


def line_of(data: bytes) -> TraceLine:
    return next(line_parts(CaptureFile(io.BytesIO(data)), 0, len(data), len(data)))


def test_odd_encodings_read_the_same_as_usual_ones() -> None:
    space = node(gpus=1)
    stats = space.stats
    string = msg(4, num(1, stats["hlo_op"]), msg(5, b"custom-call.77"))
    shuffled = msg(4, num(3, 40), string, num(2, 9_000), num(1, space.names["nvjet_gemm"]))
    wide = msg(4, num(1, 1), num(2, 9_100), num(3, 40), msg(4, num(1, stats["x"]), num(3, 1 << 63)))
    reverse = msg(4, num(2, 9_200), num(3, 40), msg(4, num(7, 2), num(1, stats["hlo_op"])))
    space.lines["/device:GPU:0"]["Stream #1(Compute)"] += [shuffled, wide, reverse]
    (device,) = space.trace().devices
    events = on_stream(device)
    assert list(events["start_ps"][-3:]) == [9_000, 9_100, 9_200]
    assert list(events["duration_ps"][-3:]) == [40, 40, 40]
    assert space.trace().names[events["op"][-3]] == "custom-call.77"


def test_a_line_of_many_blocks_keeps_every_event() -> None:
    count = 2 * BLOCK + 7
    line = msg(2, b"Stream #1") + b"".join(
        msg(4, num(1, i % 300), num(2, i * 1_000_003), num(3, i)) for i in range(count)
    )
    parts = list(decode(line_of(line), {}, intern=len))
    assert np.array_equal(np.concatenate([part["duration_ps"] for part in parts]), np.arange(count))
    assert np.array_equal(
        np.concatenate([part["offset_ps"] for part in parts]), np.arange(count) * 1_000_003
    )


SMALL = st.integers(0, 200)
NUMBER = st.one_of(SMALL, st.integers(0, 1 << 40), st.integers(0, (1 << 60)))
IDENT = st.one_of(st.integers(0, 6), st.integers(120, 135), st.just(20_000))
STAT = st.tuples(IDENT, st.sampled_from(["uint", "int", "ref", "text", "none"]), NUMBER)
EVENT = st.tuples(st.one_of(st.just(0), NUMBER), NUMBER, SMALL, st.lists(STAT, max_size=5))


def stat(ident: int, kind: str, value: int) -> bytes:
    own = {"uint": num(3, value), "int": num(4, value), "ref": num(7, value), "none": b""}
    return msg(4, num(1, ident) if ident else b"", own.get(kind, msg(5, str(value).encode())))


@settings(max_examples=tried(300))
@given(
    events=st.lists(EVENT, max_size=40),
    wanted=st.lists(st.sampled_from([1, 2, 5, 127, 128, 20_000]), unique=True, max_size=3),
)
def test_reading_in_lockstep_finds_what_reading_one_by_one_finds(
    events: list[tuple[int, int, int, list[tuple[int, str, int]]]], wanted: list[int]
) -> None:
    line = b"".join(
        msg(
            4,
            num(1, name) if name else b"",  # as protobuf writes it: zeros are left out
            num(2, offset) if offset else b"",
            num(3, size) if size else b"",
            *(stat(*each) for each in stats),
        )
        for name, offset, size, stats in events
    )
    ids = {str(each): each for each in wanted}

    def found() -> list[list[int]]:
        parts = list(decode(line_of(line), ids, intern=lambda text: -int(text) - 2))
        names = ("name", "offset_ps", "duration_ps")
        rows = [[int(i) for part in parts for i in part[each]] for each in names]
        return rows + [[int(i) for part in parts for i in part[each]] for each in ids]

    at_once = found()
    with pytest.MonkeyPatch.context() as patch:
        one_by_one = lambda block, _: list(range(len(block.name)))  # noqa: E731
        patch.setattr(columns._Block, "lockstep", one_by_one)
        assert found() == at_once
    assert at_once[:3] == [[event[i] for event in events] for i in range(3)]


@pytest.mark.parametrize(
    "stats",
    [
        pytest.param(b"\x22\x01\x08", id="an id without its number"),
        pytest.param(b"\x22\x02\x08\x80", id="an id that does not end"),
        pytest.param(msg(4, num(1, 1), b"\x18"), id="a value without its number"),
        pytest.param(b"\x22\x7f\x08\x01\x18\x01", id="longer than its event"),
    ],
)
@pytest.mark.parametrize("behind", [b"", msg(4, num(1, 1), num(3, 7))], ids=["last", "not last"])
def test_a_stat_that_is_none_is_refused(stats: bytes, behind: bytes) -> None:
    good = msg(4, num(1, 1), num(3, 7))
    with pytest.raises(ParseError, match="no readable xplane"):
        read_xplane(captured(1, good, stats + behind, good), "x")


def captured(ident: int, *stats: bytes) -> bytes:
    """A stream of events with these stats; the id belongs to `correlation_id`."""
    events = (msg(4, num(1, 1), num(2, 3), num(3, 4), each) for each in stats)
    plane = msg(2, b"/device:GPU:0") + msg(3, msg(2, b"Stream #1"), *events)
    return msg(1, plane + named(5, {ident: "correlation_id"}))


def test_the_last_of_two_values_of_a_stat_counts() -> None:
    stat = msg(4, num(1, 1), num(3, 7) + num(4, 9))
    (device,) = read_xplane(captured(1, stat, stat), "x").devices
    assert on_stream(device)["launch"].tolist() == [9, 9]


@pytest.mark.parametrize("ident", [-3, 1 << 20, 1 << 50])
def test_an_id_that_no_profiler_gives_is_refused(ident: int) -> None:
    with pytest.raises(ParseError, match="ids of names from"):
        read_xplane(captured(ident, msg(4, num(1, ident), num(3, 9))), "x")


@pytest.mark.parametrize("size", [100, 1_000, 20_000, 3_000_000])
def test_an_event_of_any_length_is_read(size: int) -> None:
    space = node(gpus=1)
    line = space.lines["/device:GPU:0"]["Stream #1(Compute)"]
    padding = msg(4, num(1, space.STATS["x"]), msg(5, b"k" * size))
    line.insert(1, msg(4, num(1, 1), num(2, 7_000), num(3, 11), padding))
    (device,) = space.trace().devices
    events = on_stream(device)
    assert (int(events["start_ps"][1]), int(events["duration_ps"][1]), events.size) == (
        7_000,
        11,
        7,
    )


def test_an_event_cut_off_by_the_end_of_the_file_is_refused() -> None:
    line = msg(2, b"Stream #1") + b"\x22"
    data = uint(1 << 3 | 2) + uint(len(line) + 20) + msg(2, b"/device:GPU:0") + line
    with pytest.raises(ParseError, match="a length of"):
        read_xplane(data, "x")
    with pytest.raises(WireError, match="cut off"):
        line_of(line)


def test_clocks_in_unix_nanoseconds_do_not_overflow() -> None:
    plane = msg(2, b"/device:GPU:0") + named(4, {1: "fusion"})
    for i, late_ns in enumerate((0, 5)):
        clock = num(3, 1_771_595_650_217_823_548 + late_ns)
        plane += msg(
            3, msg(2, f"Stream #{i}".encode()), clock, msg(4, num(1, 1), num(2, 250), num(3, 10))
        )
    (device,) = read_xplane(msg(1, plane), "x").devices
    assert [int(on_stream(device, each)["start_ps"][0]) for each in device.streams] == [250, 5_250]


def entry(key: int, name: bytes, form: str) -> bytes:
    """Encode an entry of a table, as a profiler writes it or as protobuf also allows."""
    ident, named_so = num(1, key), msg(2, name)
    parts = {
        "usual": (ident, msg(2, ident, named_so)),
        "described": (ident, msg(2, ident, named_so, msg(3, b"\x12\x01z"), msg(5, num(1, 1)))),
        "turned": (msg(2, named_so), ident),
        "long": (ident, msg(2, ident, msg(2, name * 2000))),
        "no id": (ident, msg(2, named_so)),
        "no name": (ident, msg(2, ident)),
        "name behind stats": (ident, msg(2, ident, msg(5, b""), named_so)),
        "twice": (num(1, 7), ident, msg(2, ident, named_so)),
        "empty": (),
    }[form]
    return msg(4, *parts)


FORMS = (
    "usual", "described", "turned", "long", "no id", "no name", "name behind stats", "twice",
    "empty",
)  # fmt: skip


@settings(max_examples=tried(300))
@given(
    made=st.lists(
        st.tuples(
            st.integers(0, 300),
            st.binary(max_size=200).map(lambda each: each.hex().encode()),
            st.sampled_from(FORMS),
        ),
        max_size=30,
    ),
    other=st.booleans(),
)
def test_a_table_is_read_in_every_form_that_protobuf_allows(
    made: list[tuple[int, bytes, str]], *, other: bool
) -> None:
    between = msg(3, msg(2, b"Stream #1")) if other else b""  # a line between the entries
    data = b"before" + between.join(entry(*each) for each in made)
    file, names = CaptureFile(io.BytesIO(data)), Names()
    table = NameTable(file.data, read_plane(file, 6, len(data)).event_names, names)
    expected = {}
    for key, name, form in made:
        known = {"long": name * 2000, "no name": b"", "empty": b""}
        expected[0 if form == "empty" else key] = known.get(form, name).decode()
    assert [table.name(ident) for ident in expected] == [*expected.values()]
    indices = table.index(np.array([*expected, 12_345, ABSENT, table.intern("text")], np.int64))
    shown = [*names]
    assert [shown[at] for at in indices[:-3]] == [*expected.values()]
    assert (indices[-3], indices[-2], shown[indices[-1]]) == (ABSENT, ABSENT, "text")
    for each in {"", "00"} & set(expected.values()):
        assert expected[table.wanted(column=each)["column"]] == each
