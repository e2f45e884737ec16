"""Collectives joined with the program, who waited for whom, idle by cause; what is written out."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from pytest_xlatune import profiles_for
from pytest_xlatune.cli import main
from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.protobuf import LENGTH, fields, text
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow, drill
from pytest_xlatune.evidence.trace.captures import pgle_profile, read_window
from pytest_xlatune.evidence.trace.collectives import (
    CollectiveTime,
    Communication,
    IdleCause,
    Watch,
    groups_of,
    ranks_of,
)
from pytest_xlatune.model.profile import PGLE
from tests.evidence.test_real_captures import REAL, TRACES
from tests.helpers.captures import Space, msg, node, num
from tests.helpers.hlo_programs import body, entry, loop, made

US = 1_000_000  # picoseconds


def watched(space: Space, program: Program | None = None) -> Communication:
    watch = Watch()
    found = drill([space.trace()], observe=[watch])
    return watch.result(found, program)


def step_of(op: str, kernel: str, durations_us: list[list[int]]) -> Space:
    """Make steps of one collective: for each step, what its kernel takes on each device."""
    space = Space()
    for step, devices in enumerate(durations_us):
        at = step * 10_000 * US
        space.host("train", at, 9_000 * US, "step_num", 5 + step)
        for gpu, duration in enumerate(devices):
            launch = 1 + step * 100 + gpu * 2
            # it ends everywhere at once: it began later where it is shorter
            begin = at + (2_000 - duration) * US
            space.kernel(gpu, "S1", "gemm", at, 10 * US, op="dot.1", correlation=launch)
            space.kernel(gpu, "S2", kernel, begin, duration * US, op=op, correlation=launch + 1)
            for each in (launch, launch + 1):
                space.host("cuLaunchKernel", at, 1, "correlation_id", each)
    return space


def streams(space: Space) -> Space:
    for plane, lines in space.lines.items():
        if plane.startswith("/device"):
            for name in list(lines):
                lines[name.replace("S", "Stream #")] = lines.pop(name)
    return space


GROUPS = "replica_groups=[1,4]<=[4]"


@pytest.mark.parametrize(
    ("op", "kernel", "instruction", "size_bytes", "factor"),
    [
        pytest.param(
            "all-gather-start.2",
            "ncclDevKernel_AllGather_RING_LL",
            "%all-gather-start.2 = (f32[1000], f32[4000]) all-gather-start(%p), " + GROUPS,
            4000 * 4,
            3 / 4,
            id="all-gather: the whole result",
        ),
        pytest.param(
            "reduce-scatter.1",
            "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL",
            "%reduce-scatter.1 = bf16[1000] reduce-scatter(%p), " + GROUPS + ", to_apply=%add",
            4 * 1000 * 2,
            3 / 4,
            id="reduce-scatter: the whole input",
        ),
        pytest.param(
            "all-reduce.7",
            "ncclDevKernel_AllReduce_Sum_f32_TREE_LL",
            "%all-reduce.7 = f32[5000] all-reduce(%p), replica_groups={{0,1,2,3}}, to_apply=%add",
            5000 * 4,
            2 * 3 / 4,
            id="all-reduce: twice",
        ),
    ],
)
def test_bandwidths_equal_a_computation_by_hand(
    op: str, kernel: str, instruction: str, size_bytes: int, factor: float
) -> None:
    space = streams(step_of(op, kernel, [[400, 100, 300, 200], [160, 240, 200, 120]]))
    found = watched(space, made(entry(instruction)))
    (row,) = found.rows
    # by hand: the shortest kernels take 100 and 120 us, so a transfer takes 110 us on average;
    # the kernels of all devices take 215 us on average, of which 105 us are wait
    assert (row.kind, row.size_bytes, row.ranks, row.executions) == (
        op.partition(".")[0].removesuffix("-start"), size_bytes, 4, 1.0,
    )  # fmt: skip
    assert row.transfer_s == pytest.approx(110e-6)
    assert row.duration_s == pytest.approx(215e-6)
    assert row.wait_s == pytest.approx(105e-6)
    assert row.algbw == pytest.approx(size_bytes / 110e-6)
    assert row.busbw == pytest.approx(size_bytes / 110e-6 * factor)
    assert row.exposed_s == pytest.approx(215e-6)
    assert found.unmatched == ()
    # step 5: device 1 came last, the others waited 300 + 200 + 100; step 6: device 3, 40 + 120 + 80
    assert found.late is not None
    assert found.late.device == "a.xplane.pb /device:GPU:1"
    assert found.late.imposed_s == pytest.approx(600e-6 / 2), "a step"
    assert found.late.of_all == pytest.approx(600 / 840)


def test_an_operation_is_counted_as_often_as_it_runs_in_a_loop() -> None:
    space = Space()
    for step in range(2):
        space.host("train", step * 1000, 900, "step_num", step)
        for turn in range(3):
            launch = step * 10 + turn + 1
            space.host("cuLaunchKernel", step * 1000 + 1, 1, "correlation_id", launch)
            at = step * 1000 + turn * 100
            kernel = "ncclDevKernel_SendRecv"
            space.kernel(0, "Stream #1", kernel, at, 50, op="cp.1", correlation=launch)
    permute = "%cp.1 = f32[4] collective-permute(%p), source_target_pairs={{0,1}}"
    found = watched(space, made(body("b", permute), entry(loop("w", "b", 3))))
    (row,) = found.rows
    assert (row.kind, row.executions, row.transfer_s) == ("collective-permute", 3.0, None)
    assert row.busbw == row.algbw == pytest.approx(16 / 50e-12)
    assert found.late is None


def test_without_a_program_the_kind_is_that_of_the_kernel_and_no_bytes_are_known() -> None:
    space = streams(step_of("fusion.1", "ncclDevKernel_AllGather_RING_LL", [[5, 7], [5, 7]]))
    found = watched(space)
    (row,) = found.rows
    assert (row.kind, row.size_bytes, row.busbw) == ("all-gather", None, None)
    assert row.transfer_s == pytest.approx(5e-6)
    unknown = watched(space, made(entry("%x = f32[4] copy(%p)")))
    assert unknown.unmatched == ("fusion.1",)


ALL_REDUCE = "%ar.1 = f32[4000] all-reduce(%p), replica_groups={}, to_apply=%add"


@pytest.mark.parametrize(
    ("groups", "shortest", "late"),
    [
        pytest.param("{{0,1},{2,3}}", ((0, 1), (2, 3)), (0, 3), id="neighbours, as a list"),
        pytest.param("[2,2]<=[4]", ((0, 1), (2, 3)), (0, 3), id="neighbours, counted"),
        pytest.param("[2,2]<=[2,2]T(1,0)", ((0, 2), (1, 3)), (0, 3), id="every second"),
        pytest.param("mesh['a'=2,'b'=2] {'a'}", ((0, 2), (1, 3)), (0, 3), id="an axis of a mesh"),
    ],
)
def test_waits_are_counted_within_the_group_of_a_collective(
    groups: str, shortest: tuple[tuple[int, int], ...], late: tuple[int, ...]
) -> None:
    durations = [100, 400, 300, 120]
    space = streams(step_of("ar.1", "ncclDevKernel_AllReduce", [durations] * 2))
    found = watched(space, made(entry(ALL_REDUCE.format(groups))))
    (row,) = found.rows
    by_hand = [min(durations[each] for each in group) for group in shortest]  # us, of each group
    assert row.ranks == 2
    assert row.transfer_s == pytest.approx(sum(by_hand) / 2 * 1e-6)
    assert row.duration_s == pytest.approx(230e-6)
    assert row.algbw == pytest.approx(16_000 / (sum(by_hand) / 2 * 1e-6))
    assert row.busbw == row.algbw  # 2 (n - 1) / n of two ranks is 1
    waits = dict.fromkeys(late, 0)
    for group, least in zip(shortest, by_hand, strict=True):
        (last,) = (each for each in group if durations[each] == least)
        waits[last] += sum(durations[each] - least for each in group)
    most = max(waits, key=lambda each: waits[each])
    assert found.late is not None
    assert found.late.device == f"a.xplane.pb /device:GPU:{most}"
    assert found.late.imposed_s == pytest.approx(waits[most] * 1e-6)
    assert not found.notes


def shifted(begins_us: list[int]) -> Space:
    """Make one step of a collective of 100 us that begins at another time on each device."""
    space = Space()
    space.host("train", 0, 9_000 * US, "step_num", 5)
    for gpu, begin in enumerate(begins_us):
        space.host("cuLaunchKernel", 0, 1, "correlation_id", gpu + 1)
        kernel = "ncclDevKernel_AllReduce"
        at = begin * US
        space.kernel(gpu, "Stream #1", kernel, at, 100 * US, op="ar.1", correlation=gpu + 1)
    return space


def test_kernels_that_do_not_overlap_are_no_group() -> None:
    begins = [0, 500, 10, 510]  # 0 runs with 2, and 1 with 3
    right, wrong = (
        watched(shifted(begins), made(entry(ALL_REDUCE.format(groups))))
        for groups in ("{{0,2},{1,3}}", "{{0,1},{2,3}}")
    )
    assert right.rows[0].transfer_s == pytest.approx(100e-6)
    assert not right.notes
    assert (wrong.rows[0].transfer_s, wrong.late) == (None, None)
    assert "does not tell who waited" in wrong.notes[0]
    assert watched(shifted(begins)).rows[0].transfer_s is None, "all devices are no group either"
    together = watched(shifted([0, 5, 10, 15]))
    assert together.rows[0].transfer_s == pytest.approx(100e-6)
    assert "as if each collective went over all devices" in together.notes[0]


@pytest.mark.parametrize(
    ("groups", "processes", "is_told"),
    [
        pytest.param("[2,2]<=[4]", 2, True, id="each process is a group"),
        pytest.param("[2,2]<=[2,2]T(1,0)", 2, True, id="the k-th of each process"),
        pytest.param("{{0,3},{1,2}}", 2, False, id="another one of each process"),
        pytest.param("[2,2]<=[4]", 4, False, id="two of four processes"),
        pytest.param("{{0,1},{2},{3}}", 2, False, id="groups of several sizes"),
        pytest.param("[1,4]<=[4]", 4, True, id="all"),
    ],
)
def test_waits_are_told_where_it_does_not_matter_which_process_is_which(
    groups: str, processes: int, is_told: bool
) -> None:
    devices = 4 // processes
    traces = [shifted([0] * devices).trace(f"{name}.xplane.pb") for name in "abcd"[:processes]]
    watch = Watch()
    found = watch.result(drill(traces, observe=[watch]), made(entry(ALL_REDUCE.format(groups))))
    assert (found.rows[0].transfer_s is not None) == is_told
    assert bool(found.notes) != is_told


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("", None),
        ("{}", ((0, 1, 2, 3),)),
        ("{{0,3},{1,2}}", ((0, 3), (1, 2))),
        ("{{0,1}}", None),
        ("{{0,1},{2,9}}", None),
        ("[4,1]<=[4]", ((0,), (1,), (2,), (3,))),
        ("[2,2]<=[2,2]T(1,0)", ((0, 2), (1, 3))),
        ("[2,4]<=[8]", None),
        ("[2,2]<=[2,2]T(1,1)", None),
        ("[2,3]<=[4]", None),
        ("[2,0]<=[0]", None),
        ("[2,0]<=[4]", None),
        ("[2,2]", None),
        ("mesh['a'=2,'b'=2] {'b'}", ((0, 1), (2, 3))),
        ("mesh['a'=2,'b'=2] {'a','b'}", ((0, 1, 2, 3),)),
        ("mesh['a'=2,'b'=2] {'b','a'}", ((0, 2, 1, 3),)),
        ("mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}", ((0, 2), (1, 3))),
        ("mesh['a'=2,'b'=2], device_ids=([8]) {'b'}", None),
        ("mesh['a'=2,'b'=2], device_ids=(0,2,1,3) {'b'}", None),
        ("mesh['a'=4] {'a':(1)2}", None),
        ("mesh['a'=2,'b'=2] {'a','a'}", None),
        ("mesh['a'=0,'b'=2] {'a'}", None),
        ("anything", None),
    ],
)
def test_groups_are_read_in_every_dialect(
    groups: str, expected: tuple[tuple[int, ...], ...] | None
) -> None:
    assert groups_of(groups, 4) == expected


@pytest.mark.parametrize(
    ("groups", "ranks"),
    [
        ("{{0,1},{2,3}}", 2),
        ("{{0,1,2,3,4,5,6,7}}", 8),
        ("[2,4]<=[8]", 4),
        ("[4,2]<=[2,4]T(1,0)", 2),
        ("mesh['axis_0'=8] {'axis_0'}", 8),
        ("mesh['pp'=2,'fsdp'=4] {'fsdp'}", 4),
        ("mesh['pp'=2,'fsdp'=4] {'pp','fsdp'}", 8),
        ("mesh['pp'=2] {'tp'}", None),
        ("mesh['pp'=4] {'pp':(1)2}", None),
        ("mesh['pp'=2,'tp'=4], device_ids=([4,2]T(1,0)) {'tp'}", 4),
        ("", None),
    ],
)
def test_ranks_are_read_from_groups_in_every_dialect(groups: str, ranks: int | None) -> None:
    assert ranks_of(groups) == ranks


def test_exposed_time_that_two_share_is_counted_once() -> None:
    space = Space()
    space.host("train", 0, 900, "step_num", 5)
    for launch, (stream, kernel, at, size) in enumerate(
        (
            ("Stream #1", "gemm", 0, 100),
            ("Stream #2", "ncclDevKernel_AllGather", 50, 150),  # alone from 100 to 120
            ("Stream #3", "ncclDevKernel_ReduceScatter", 120, 80),  # both from 120 to 200
        ),
        1,
    ):
        space.host("cuLaunchKernel", 1, 1, "correlation_id", launch)
        space.kernel(0, stream, kernel, at, size, op=kernel, correlation=launch)
    found = watched(space)
    exposed = {row.kind: row.exposed_s * 1e12 for row in found.rows}
    assert exposed == pytest.approx({"all-gather": 20 + 40, "reduce-scatter": 40})
    total = drill([space.trace()]).total
    assert sum(exposed.values()) == pytest.approx(total.exposed_communication_ps)


def test_idle_time_has_the_cause_that_the_launch_of_the_next_kernel_tells() -> None:
    space = Space()
    space.host("train", 0, 900, "step_num", 5)
    kernels = (
        ("gemm", 0, 100, 0),
        ("gemm", 200, 50, 150),  # idle 100..200, launched at 150
        ("ncclDevKernel_AllGather", 300, 50, 210),  # idle 250..300, launched before
        ("MemcpyD2D", 360, 10, 320),  # idle 350..360
    )
    for launch, (kernel, at, size, launched) in enumerate(kernels, 1):
        space.host("cuLaunchKernel", launched, 1, "correlation_id", launch)
        space.kernel(0, "Stream #1", kernel, at, size, op=kernel, correlation=launch)
    found = watched(space)
    total = drill([space.trace()]).total
    assert {cause: round(value * 1e12) for cause, value in found.idle_s.items()} == {
        IdleCause.HOST: 50,
        IdleCause.STARTED_LATE: 110,
    }
    assert sum(found.idle_s.values()) * 1e12 == pytest.approx(total.idle_ps)


def test_collectives_go_to_json_and_back() -> None:
    found = watched(node())
    assert Communication.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert all(isinstance(row, CollectiveTime) for row in found.rows)


def metadata(paths: dict[str, str]) -> bytes:
    """Encode a plane with the HLO of a module, whose operations have paths."""
    instructions = b"".join(
        msg(2, msg(1, name.encode()), msg(2, b"fusion"), msg(7, msg(2, path.encode())))
        for name, path in paths.items()
    )
    proto = msg(1, msg(1, b"jit_f"), msg(3, msg(1, b"main"), instructions))
    stat = msg(5, num(1, 1), msg(6, proto))
    return msg(1, msg(2, b"/host:metadata"), msg(4, num(1, 1), msg(2, num(1, 1), stat)))


def test_operations_of_two_compilations_are_matched_by_their_paths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, number, size in (("a", 3, 100), ("b", 71, 300)):
        space = Space()
        for step in range(2):
            space.host("train", step * 1000 * US, 900 * US, "step_num", step)
            for launch, op in enumerate((f"fusion.{number}", f"copy.{number}"), step * 2 + 1):
                space.host("cuLaunchKernel", step * 1000 * US, 1, "correlation_id", launch)
                at = (step * 1000 + launch) * US
                space.kernel(0, "Stream #1", op, at, size * US, op=op, correlation=launch)
        space.extra = metadata({f"fusion.{number}": "jit(step)/mlp/dot_general"})
        (tmp_path / name).mkdir()
        (tmp_path / name / "n.xplane.pb").write_bytes(space.data())
    both = [str(tmp_path / "a"), "--", str(tmp_path / "b")]
    assert main(["drill", *both, "--by-path", "--full-names"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["jit(step)/mlp/dot_general", "0.100", "0.300", "+0.200"] in rows
    assert ["copy", "0.100", "0.300", "+0.200"] in rows


def of_jax(data: bytes) -> dict[str, float]:
    """Convert a capture to a profile by JAX's own converter."""
    profiler = pytest.importorskip("jax._src.lib", reason="needs JAX")._profiler
    found = {}
    profile = profiler.get_fdo_profile(data)
    for number, _, begin, end in fields(profile, 0, len(profile)):
        assert number == 1
        name, cost = "", 0.0
        for part, kind, start, stop in fields(profile, begin, end):
            if kind == LENGTH:
                name = text(profile, start, stop)
            elif part == 2:
                (cost,) = struct.unpack("<d", profile[start:stop])
        found[name] = cost
    return found


@pytest.mark.parametrize("name", [each for each in REAL if "gemm" in each] or [None])
def test_the_profile_for_the_scheduler_equals_that_of_jax_on_a_real_capture(
    name: str | None,
) -> None:
    if name is None:
        pytest.skip("no captures: set XLATUNE_TRACE_DATA to a folder with some")
    path = TRACES / f"{name}.xplane.pb"
    found, _ = read_window([path], CaptureWindow())
    lines = [line.split() for line in pgle_profile(found).splitlines()]
    ours = {json.loads(words[3]): float(words[5]) for words in lines}
    assert ours == pytest.approx(of_jax(path.read_bytes()), abs=1e-5)
    assert len(ours) == 4


def test_a_written_profile_is_offered_as_a_candidate_that_a_sweep_file_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "n.xplane.pb").write_bytes(node().data())
    path = tmp_path / "step.pbtxt"
    assert main(["drill", str(tmp_path / "n.xplane.pb"), "--pgle", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"a candidate setting: --{PGLE}={path}" in lines
    assert f"in a sweep file: profiles_for(..., pgle={str(path)!r})" in lines
    first = profiles_for("FSDP", device="sm_90", pgle=str(path))[0]
    assert [f"--{each.name}={each.value}" for each in first.flags] == [f"--{PGLE}={path}"]
    assert path.read_text().startswith('costs { name: "')


def test_only_one_variant_is_written_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "n.xplane.pb").write_bytes(node().data())
    asked = ["drill", str(tmp_path), "--", str(tmp_path), "--pgle", str(tmp_path / "p")]
    assert main(asked) == 2
    assert "writes one variant" in capsys.readouterr().err
    assert not (tmp_path / "p").exists()
