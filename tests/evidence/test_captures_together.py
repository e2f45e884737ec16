"""Which captures are read, which belong together, and which are left out or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.evidence.trace.breakdown import CaptureWindow, drill
from pytest_xlatune.evidence.trace.captures import choose_captures, read_window
from pytest_xlatune.model.errors import ParseError
from tests.evidence.captures import Space, msg, named, node, num, reconciles


def task(start_ns: int, stop_ns: int) -> bytes:
    stats = {1: "profile_start_time", 2: "profile_stop_time"}
    return msg(
        1,
        msg(2, b"Task Environment"),
        msg(6, num(1, 1), num(3, start_ns)),
        msg(6, num(1, 2), num(3, stop_ns)),
        named(5, stats),
    )


def test_windows_that_do_not_overlap_in_time_are_refused() -> None:
    one, two = node(), node()
    one.extra, two.extra = task(1_000, 2_000), task(3_000, 4_000)
    assert one.trace().stopped_unix_ns == 2_000
    with pytest.raises(ParseError, match=r"b\.pb starts after a\.pb ends"):
        drill([one.trace("a.pb"), two.trace("b.pb")])


def test_a_process_without_a_kernel_is_a_warning() -> None:
    idle = Space()
    idle.lines["/device:GPU:0"] = {}
    found = drill([idle.trace("idle.pb"), node(gpus=1).trace("busy.pb")])
    assert found.warnings == ("idle.pb: no kernel in it (1 device planes, all idle)",)
    assert found.launcher == "one process with one GPU"


@pytest.mark.parametrize(
    ("spaces", "options", "says"),
    [
        pytest.param([node()], {"nodes": 2, "gpus_per_node": 2}, "4 expected", id="a node missing"),
        pytest.param([node()], {"steps": 4}, "3 steps found", id="other number of steps"),
        pytest.param(
            [node(), node(steps=2)], {}, "not of one window", id="captures of two windows"
        ),
        pytest.param(
            [node(), node(gpus=1)], {}, "different numbers", id="captures of two launchers"
        ),
        pytest.param([], {}, "no capture was given", id="nothing at all"),
    ],
)
def test_captures_that_do_not_belong_together_are_refused(
    spaces: list[Space], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ParseError, match=says):
        drill([space.trace(f"{i}.pb") for i, space in enumerate(spaces)], CaptureWindow(**options))


@pytest.mark.parametrize(
    ("files", "gpus", "launcher"),
    [
        pytest.param(2, 1, "one process per GPU", id="a file per GPU"),
        pytest.param(2, 8, "one process per node, 8 GPUs each", id="a file per node"),
        pytest.param(1, 1, "one process with one GPU", id="one file, one GPU"),
    ],
)
def test_the_launcher_is_inferred_from_devices_per_file(
    files: int, gpus: int, launcher: str
) -> None:
    found = drill([node(gpus=gpus).trace(f"{i}.pb") for i in range(files)])
    assert found.launcher == launcher
    assert len(found.gpus) == files * gpus
    reconciles(found)


def test_dropped_events_are_surfaced_and_never_averaged() -> None:
    space = node()
    space.extra = msg(3, b"12 events dropped because the buffer was full")
    with pytest.raises(ParseError, match="12 events dropped"):
        drill([space.trace("a.pb")])
    found = drill([space.trace("a.pb"), node().trace("b.pb")])
    assert found.sources == ("b.pb",)
    assert "12 events dropped" in found.excluded[0]


@pytest.mark.parametrize(
    ("paths", "chosen"),
    [
        pytest.param(
            ["t/a.xplane.pb", "t/a.trace.json.gz", "t/x.SSTABLE", "t/ALL_HOSTS.op_stats_v2.pb"],
            ["t/a.xplane.pb"],
            id="the xplane of a pair, no cache of a viewer",
        ),
        pytest.param(
            ["t1/a.xplane.pb", "t2/b.xplane.pb"],
            ["t1/a.xplane.pb", "t2/b.xplane.pb"],
            id="one window in two timestamps",
        ),
        pytest.param(["t/a.trace.json.gz"], ["t/a.trace.json.gz"], id="a JSON where it is alone"),
        pytest.param(["t1/a.xplane.pb", "t2/a.xplane.pb"], "two profiling windows", id="twice"),
        pytest.param(["t/a.xplane.riegeli"], "riegeli", id="a format that is not read"),
        pytest.param(["t/notes.txt"], "no capture among 1 files", id="nothing of the profiler"),
    ],
)
def test_captures_are_chosen_one_per_process(paths: list[str], chosen: list[str] | str) -> None:
    if isinstance(chosen, list):
        assert list(choose_captures(paths)) == chosen
        return
    with pytest.raises(ParseError, match=chosen):
        choose_captures(paths)


def test_a_capture_that_cannot_be_read_leaves_the_others_readable(tmp_path: Path) -> None:
    files = {"a.xplane.pb": b"", "b.xplane.pb": node().data(), "c.trace.json.gz": b"{"}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    found, left_out = read_window([tmp_path], CaptureWindow())
    assert found.sources == (str(tmp_path / "b.xplane.pb"),)
    names = [Path(each.partition(":")[0]).name for each in left_out]
    assert names == ["a.xplane.pb", "c.trace.json.gz"]
