"""Which captures are read, which belong together, and which are left out or refused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_xlatune import evidence
from pytest_xlatune.evidence.trace import Trace, at_a_cap, captures, xplane
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow, drill
from pytest_xlatune.evidence.trace.captures import choose_captures, read_window
from pytest_xlatune.evidence.trace.step_times import StepRule
from pytest_xlatune.evidence.trace.xplane import read_xplane
from pytest_xlatune.model.errors import ParseError
from tests.helpers.captures import Space, msg, node, num, reconciles, session
from tests.helpers.waiting import until


def test_a_process_without_a_kernel_is_a_warning() -> None:
    idle = Space()
    idle.lines["/device:GPU:0"] = {}
    found = drill([idle.trace("idle.pb"), node(gpus=1).trace("busy.pb")])
    assert found.warnings == ("idle.pb: no kernel in it (1 device planes, all idle)",)
    assert found.launcher == "one process with one GPU"


@pytest.mark.parametrize(
    ("spaces", "options", "says"),
    [
        pytest.param([node()], {"gpus": 4}, "4 expected", id="a node missing"),
        pytest.param([node()], {"steps": 4}, "3 steps found", id="other number of steps"),
        pytest.param(
            [node(), node(steps=2)], {}, "not of one window", id="captures of two windows"
        ),
        pytest.param(
            [node(), node(gpus=1)], {}, "different numbers", id="captures of two launchers"
        ),
        pytest.param([], {}, "no capture was given", id="nothing at all"),
        pytest.param([session(1, 2), session(3, 4)], {}, "1.pb starts after 0.pb ends", id="apart"),
    ],
)
def test_captures_that_do_not_belong_together_are_refused(
    spaces: list[Space], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ParseError, match=says):
        drill([space.trace(f"{i}.pb") for i, space in enumerate(spaces)], CaptureWindow(**options))


@pytest.mark.parametrize(
    "text",
    [
        "12 events dropped because the buffer was full",
        "Truncated the trace",
        "collector buffer is full",
        "Exceeded max number of events",
        "7 activities lost",
    ],
)
def test_lost_events_are_noticed_and_never_averaged(text: str) -> None:
    space = node()
    space.extra = msg(3, text.encode())
    with pytest.raises(ParseError, match=text):
        drill([space.trace()])
    found = drill([space.trace("a.pb"), node().trace("b.pb")])
    assert found.sources == ("b.pb",)
    assert text in found.excluded[0]
    forced = drill([space.trace("a.pb")], CaptureWindow(force=True))
    assert (forced.total, forced.excluded) == (drill([node().trace()]).total, ())
    assert [text in warning for warning in forced.warnings] == [True], "said once"
    space.extra = msg(3, b"clock offset is large")
    assert drill([space.trace("a.pb")]).warnings == ("a.pb: clock offset is large",)


def test_a_collector_that_stopped_in_silence_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    caps = [count for count in (1 << 20, (1 << 21) + 1, 3, 600_000) if at_a_cap(count, "", "")]
    assert caps == [1 << 20, (1 << 21) + 1]
    assert at_a_cap(300_000, "", "", is_round=True)
    assert not at_a_cap(300_001, "", "", is_round=True)
    monkeypatch.setattr(evidence.trace, "_BINARY", 12)
    with pytest.raises(ParseError, match="12 kernels: the end of the window is missing"):
        drill([node(gpus=2).trace()])


def rank(*, ops: bool = True, marks: bool = False, late: int = 0) -> Space:
    """Three steps of one GPU; without `ops` no kernel names an operation, and two are one time."""
    space = Space()
    kernels = (("gemm", 0, 300), ("ncclDevKernel_AllGather", 310, 90), ("fusion", 500, 250))
    for step in range(3):
        at = step * 1000
        if marks:
            space.host("train", at, 900, "step_num", 5 + step)
        for place, (name, begin, size) in enumerate(kernels):
            space.kernel(
                0, "Stream #1", name, at + begin + late, size,
                op=name if ops else None, correlation=10 * step + place,
            )  # fmt: skip
    if not ops:
        for at in (460, 470):
            space.kernel(0, "Stream #1", "once", at + late, 5)
    return space


@pytest.mark.parametrize("odd", [0, 3], ids="rank {} is odd".format)
@pytest.mark.parametrize("late", [0, 950])
def test_a_rank_whose_kernels_name_no_operation_is_of_the_window(odd: int, late: int) -> None:
    spaces = [rank(ops=at != odd, marks=True, late=late) for at in range(4)]
    found = drill([each.trace(f"{at}.pb") for at, each in enumerate(spaces)])
    assert (found.rule, found.steps, found.even) == (StepRule.EXECUTIONS, (5, 6, 7), False)
    assert len(found.gpus) == 4
    assert found.launcher == "one process per GPU"
    steps = {gpu.source: [step.kernels for step in gpu.steps] for gpu in found.gpus}
    assert steps.pop(f"{odd}.pb") == [5, 3, 3]
    assert set(map(tuple, steps.values())) == {(3, 3, 3)}
    reconciles(found)


def test_the_rule_of_a_window_is_the_weakest_of_its_captures() -> None:
    odd = rank(ops=False, marks=True)
    for at in range(7):  # kernels that fit no number of steps
        odd.kernel(0, "Stream #1", f"stray_{at}", 2800 + at, 200)
    found = drill([rank(marks=True).trace("a.pb"), odd.trace("b.pb")])
    assert (len(found.gpus), found.rule) == (2, StepRule.WINDOWS)


@pytest.mark.parametrize("launches", [True, False], ids=["alike", "half of them by their runs"])
def test_a_window_is_the_same_whether_a_node_or_each_gpu_has_a_process(launches: bool) -> None:
    space = node(gpus=8)
    whole = drill([space.trace("n.pb")])
    host = {"/host:CPU": space.lines["/host:CPU"]}
    marks = [each for each in host["/host:CPU"]["python"] if b"\x08\x04" in each]
    split = []
    for gpu in range(8):
        one = Space()
        one.names, one.stats = space.names, space.stats
        one.lines = dict(host) if launches or gpu % 2 == 0 else {"/host:CPU": {"python": marks}}
        one.lines[f"/device:GPU:{gpu}"] = space.lines[f"/device:GPU:{gpu}"]
        split.append(one.trace(f"{gpu}.pb"))
    found = drill(split, CaptureWindow(steps=3))
    assert found.launcher == "one process per GPU"
    assert [gpu.steps for gpu in found.gpus] == [gpu.steps for gpu in whole.gpus]
    assert (found.families, found.kernels, found.ops) == (whole.families, whole.kernels, whole.ops)
    assert found.total == whole.total


KINETO = (
    b'{"schemaVersion":1,"deviceProperties":[],"traceEvents":[{"ph":"X","cat":"kernel",'
    b'"name":"ampere_sgemm","pid":0,"tid":7,"ts":1,"dur":2,"args":{"stream":7}}]}'
)
TPU = msg(1, msg(2, b"/device:CUSTOM:Megascale Trace")) + msg(
    1,
    msg(2, b"/device:TPU:0 SparseCore 1"),
    msg(3, msg(2, b"XLA Ops"), msg(4, num(1, 1), num(3, 9))),
)


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.trace.json", KINETO, r"a PyTorch \(kineto\) trace;"),
        ("a.xplane.pb", TPU, "a capture of a TPU, which"),
    ],
)
def test_a_trace_of_another_profiler_or_device_is_named(
    tmp_path: Path, name: str, data: bytes, says: str
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ParseError, match=says):
        read_window([tmp_path], CaptureWindow())
    (tmp_path / "b.xplane.pb").write_bytes(node().data())
    found, left_out = read_window([tmp_path], CaptureWindow())
    assert len(found.sources) == 1
    assert name in left_out[0]


@pytest.mark.parametrize("window", [100, 3_000])
def test_a_file_is_read_part_by_part_to_the_same_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr(xplane, "_WINDOW", window)
    monkeypatch.setattr(xplane, "_AHEAD", window)
    space = node(gpus=8, steps=80)
    space.extra = msg(4, b"node001")
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(space.data())
    one, other = captures._read_one(str(path)), space.trace(str(path))
    assert isinstance(one, Trace)
    assert drill([one]) == drill([other])
    assert one.names == other.names
    assert (one.marks == other.marks).all()
    assert one.launches[0].size
    assert np.array_equal(one.launches, other.launches)


# files of a folder -> those that are read, or why none is
CHOSEN: dict[str, tuple[list[str], list[str] | str]] = {
    "the xplane of a pair, no cache of a viewer": (
        ["t/a.xplane.pb", "t/a.trace.json.gz", "t/x.SSTABLE", "t/ALL_HOSTS.op_stats_v2.pb"],
        ["t/a.xplane.pb"]),
    "one window in two timestamps": (
        ["t1/a.xplane.pb", "t2/b.xplane.pb"], ["t1/a.xplane.pb", "t2/b.xplane.pb"]),
    "a JSON where it is alone": (["t/a.trace.json.gz"], ["t/a.trace.json.gz"]),
    "twice": (["t1/a.xplane.pb", "t2/a.xplane.pb"], "two profiling windows"),
    "a format that is not read": (["t/a.xplane.riegeli"], "riegeli"),
    "nothing of the profiler": (["t/notes.txt"], "no capture among 1 files"),
}  # fmt: skip


@pytest.mark.parametrize(("paths", "chosen"), CHOSEN.values(), ids=CHOSEN)
def test_captures_are_chosen_one_per_process(paths: list[str], chosen: list[str] | str) -> None:
    if isinstance(chosen, list):
        assert list(choose_captures(paths)) == chosen
        return
    with pytest.raises(ParseError, match=chosen):
        choose_captures(paths)


def _many(folder: Path) -> list[Path]:
    """Leave captures of one window, one of which is damaged."""
    paths = [folder / f"node{number}.xplane.pb" for number in range(5)]
    for path in paths:
        path.write_bytes(node().data()[: -5 if path is paths[3] else None])
    return paths


@pytest.mark.parametrize("is_killed", [False, True], ids=["all end", "one is killed"])
def test_captures_are_drilled_alike_side_by_side_and_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_killed: bool
) -> None:
    paths, here = _many(tmp_path), os.getpid()
    monkeypatch.setattr(captures, "_SIDE_BY_SIDE_BYTES", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr("threading.active_count", lambda: 1)

    def noted(file: Any, path: str) -> Any:
        (tmp_path / f"{os.getpid()}.pid").touch()
        if is_killed and os.getpid() != here and "node2" in path:
            os.kill(os.getpid(), signal.SIGKILL)
        return read_xplane(file, path)

    monkeypatch.setattr(captures, "read_xplane", noted)
    together = read_window(paths, CaptureWindow())
    processes = {each.stem for each in tmp_path.glob("*.pid")} - {str(here)}
    assert processes
    assert is_killed == (tmp_path / f"{here}.pid").exists()
    monkeypatch.setattr(captures, "_SIDE_BY_SIDE_BYTES", 1 << 40)
    alone = read_window(paths, CaptureWindow())
    assert together[0].to_json() == alone[0].to_json()
    assert together[1] == alone[1]
    assert "node3.xplane.pb" in " ".join(alone[1])


def _is_running(process: int) -> bool:
    try:
        # 4711 (python) S 1 4711 ...
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_no_process_stays_behind_a_command_that_is_killed(tmp_path: Path) -> None:
    paths = _many(tmp_path)
    code = f"""if True:
        import os, sys, time
        from pathlib import Path
        from pytest_xlatune.evidence.trace import captures
        def waits(file, path):
            Path({str(tmp_path)!r}, f"{{os.getpid()}}.pid").touch()
            time.sleep(3600 if "node1" in path else 0)
        captures._SIDE_BY_SIDE_BYTES, os.sched_getaffinity = 0, lambda _: {{0, 1}}
        captures.read_xplane = waits
        list(captures._read(sys.argv[1:]))
    """
    with subprocess.Popen([sys.executable, "-c", code, *paths]) as command:
        until(lambda: len(list(tmp_path.glob("*.pid"))) == 2)
        command.kill()
    processes = [int(each.stem) for each in tmp_path.glob("*.pid")]
    until(lambda: not any(map(_is_running, processes)))
