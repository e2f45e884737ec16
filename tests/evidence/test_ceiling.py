"""No setting wins more than its ceiling: played jobs with known gains, and real traces."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune import cli
from pytest_xlatune.catalog.entries import ceilings as classes
from pytest_xlatune.catalog.entries import load
from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow, drill
from pytest_xlatune.evidence.trace.ceilings import (
    CLASSES,
    Bounds,
    Ceilings,
    Roofline,
    ceilings,
    peak_of,
    peaks,
    roofline,
)
from pytest_xlatune.evidence.trace.xplane import read_xplane
from pytest_xlatune.ledger import EvidenceRecorded
from pytest_xlatune.model.channels import PARTS
from pytest_xlatune.model.errors import ParseError
from pytest_xlatune.model.profile import profile
from pytest_xlatune.report.words import sentence
from pytest_xlatune.tasks.artifacts import read_attempt
from pytest_xlatune.tasks.ceiling import ceiling_document, upward
from tests.evidence.test_real_captures import REAL, TRACES
from tests.helpers.captures import Space, node, trace_json
from tests.helpers.hlo_programs import DATA, VERSIONS, body, entry, loop, made, program
from tests.helpers.played_steps import (
    FULL,
    SETTINGS,
    TICK_PS,
    Job,
    Op,
    captures,
    period,
    play,
    some_job,
)

JOBS = int(os.environ.get("XLATUNE_PLAYED_JOBS", "30"))
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "ceiling.md"


UNASKED = Roofline(unknown="not asked")


def looked_at(spaces: Sequence[Space], roof: Roofline = UNASKED, **more: Any) -> Ceilings:
    bounds = Bounds()
    traces = [each.trace(f"host-{number}.xplane.pb") for number, each in enumerate(spaces)]
    step_s = more.pop("step_s", None)
    drilled = drill(traces, CaptureWindow(**more), step_s=step_s, observe=[bounds])
    return ceilings(bounds, drilled, roof)


def least_of(job: Job, *, by: float) -> Roofline:
    """The roofline of a job whose kernels that compute can take so much of their work."""
    work = [
        sum(max(1, round(each.work[device][step] * by)) for each in job.ops
            if each.kind == "compute")
        for device in range(job.devices) for step in range(job.steps)
    ]  # fmt: skip
    # a played device multiplies on each of its streams
    peak = FULL * len({each.stream for each in job.ops if each.kind == "compute"})
    return Roofline(least_s=min(work) / peak * TICK_PS * 1e-12, devices=job.devices)


def test_no_setting_of_a_played_job_wins_more_than_its_ceiling() -> None:
    shares = []
    for number in range(JOBS):
        job = some_job(number)
        before = play(job)
        found = looked_at(captures(job, before), least_of(job, by=0.5))
        assert sum(found.parts.values()) == pytest.approx(1)
        for name, (of, act) in SETTINGS.items():
            changed = act(job)
            gain = period(job, before) / period(changed, play(changed)) - 1
            ceiling = found.of(of).gain
            if ceiling is not None:
                assert gain <= ceiling + 1e-6, (number, name)
                shares.append(gain / ceiling if ceiling > 1e-6 else 0)
    assert max(shares) > 0.99, "a ceiling that nothing reaches says little"


def kernels(*ops: tuple[str, str, Sequence[int]], needs: bool = True, **more: Any) -> Job:
    """A job of ops one behind the other: name, kind, and ticks on each device."""
    made = tuple(
        Op(name, kind, tuple((FULL * ticks,) * 4 for ticks in of_devices),
           (ops[at - 1][0],) if needs and at else ())
        for at, (name, kind, of_devices) in enumerate(ops)
    )  # fmt: skip
    return Job(ops=made, devices=len(ops[0][2]), steps=4, **more)


@pytest.mark.parametrize(
    ("job", "name", "gain"),
    [
        pytest.param(
            kernels(("a", "compute", [60]), ("b", "communication", [10])), "communication",
            70 / 60 - 1, id="a collective behind all computation",
        ),
        pytest.param(
            kernels(("a", "compute", [60]), ("b", "communication", [10]), needs=False),
            "communication", 60 / 50 - 1, id="one beside a kernel that is never seen alone",
        ),
        pytest.param(
            kernels(("a", "compute", [60]), ("b", "communication", [10]), needs=False,
                    compute_slowed=2),
            "communication", 65 / 55 - 1,
            id="one that is hidden: what runs beside it may be all of its doing",
        ),
        pytest.param(
            kernels(("a", "compute", [40, 80]), ("b", "communication", [10, 10])), "communication",
            90 / 80 - 1, id="a wait for a late device is no communication",
        ),
        pytest.param(
            kernels(("a", "compute", [60]), ("b", "copies", [6])), "copies", 66 / 60 - 1,
            id="a copy behind all computation",
        ),
        pytest.param(
            kernels(("a", "compute", [60]), python=25, waits_for_device=True), "idle", 85 / 60 - 1,
            id="the host between two steps",
        ),
        pytest.param(
            kernels(("a", "compute", [60]), ("b", "communication", [10]), python=30,
                    waits_for_device=True),
            "communication", 100 / 90 - 1, id="what the host takes is not of communication",
        ),
        pytest.param(
            kernels(("a", "compute", [60])), "compute", 1.0, id="compute at half of its peak",
        ),
    ],
)  # fmt: skip
def test_a_ceiling_is_what_the_step_keeps_without_its_class(
    job: Job, name: str, gain: float
) -> None:
    found = looked_at(captures(job, play(job)), least_of(job, by=0.5))
    assert found.of(name).gain == pytest.approx(gain, abs=2e-4)


def op(name: str, kind: str, *needs: str, ticks: int = 10, **more: Any) -> Op:
    return Op(name, kind, ((FULL * ticks,) * 4,), needs, **more)


@pytest.mark.parametrize(
    ("job", "setting"),
    [
        pytest.param(
            Job(ops=(
                op("s", "compute"), op("k1", "compute", "s", label="k"),
                op("j", "compute", "s", lane=1), op("k2", "compute", "k1", "j", label="k"),
                op("t", "communication", "k1", "j"),
            ), devices=1, steps=4, shared=2, compute_slowed=2),
            "undisturbed collectives", id="a kernel that another of its kind slows elsewhere",
        ),
        pytest.param(
            Job(ops=(
                op("s", "compute", ticks=1), op("t", "communication", "s"),
                op("c1", "copies", "t"), op("c2", "copies", "s"), op("b", "compute", "c2"),
            ), devices=1, steps=4),
            "no copy", id="a copy that is behind one of a collective in its stream",
        ),
        pytest.param(
            Job(ops=(
                op("a", "compute"), op("c1", "copies", "a", ticks=1), op("c2", "copies", ticks=1),
                op("b", "compute", "c2", lane=1),
            ), devices=1, steps=4),
            "no copy", id="computation that would run beside other computation",
        ),
        pytest.param(
            Job(ops=(op("a", "compute"), op("b", "compute", lane=1)), devices=1, steps=4, launch=9),
            "a quick host", id="kernels of two streams that a host launches too late",
        ),
    ],
)  # fmt: skip
def test_what_several_streams_win_is_below_the_ceiling(job: Job, setting: str) -> None:
    of, act = SETTINGS[setting]
    before, changed = play(job), act(job)
    gain = period(job, before) / period(changed, play(changed)) - 1
    assert 0.1 < gain <= (looked_at(captures(job, before)).of(of).gain or 0) + 1e-6


def test_the_device_that_all_wait_for_need_not_be_in_the_captures() -> None:
    job = kernels(("a", "compute", [40, 40, 80]), ("b", "communication", [10] * 3))
    before, changed = play(job), SETTINGS["compute at its roofline"][1](job)
    gain = period(job, before) / period(changed, play(changed)) - 1
    spaces = captures(job, before)
    for seen, told in ((spaces, False), (spaces[:2], True), (spaces[:1], True)):
        found = looked_at(seen, least_of(job, by=0.5))
        assert gain <= (found.of("compute").gain or 0)
        notes = [each for each in found.notes if f"{len(seen)} device" in each and "of 3" in each]
        assert bool(notes) is told


def test_the_step_without_the_profiler_has_smaller_gaps_and_the_same_kernels() -> None:
    job = kernels(
        ("a", "compute", [60]), ("b", "communication", [10]), python=30, waits_for_device=True
    )
    spaces = captures(job, play(job))
    free = looked_at(spaces, step_s=80e-6)
    assert free.of("communication").gain == pytest.approx(80 / 70 - 1, abs=2e-4)
    assert free.of("idle").gain == pytest.approx(100 / 60 - 1, abs=2e-4)
    slow = looked_at(spaces, step_s=200e-6)
    assert slow.of("communication").gain == pytest.approx(100 / 90 - 1, abs=2e-4)
    assert slow.of("idle").gain == pytest.approx(200 / 60 - 1, abs=2e-4)


def test_without_launches_a_gap_counts_for_each_class_that_has_a_kernel() -> None:
    job = kernels(
        ("a", "compute", [60]), ("b", "communication", [10]), python=30, waits_for_device=True
    )
    spaces = captures(job, play(job), knows_launches=False)
    found = looked_at(spaces)
    assert found.of("communication").gain == pytest.approx(100 / 60 - 1, abs=2e-4)
    assert found.of("copies").gain == 0
    assert any("launches are not in it" in each for each in found.notes)


def test_a_step_that_the_window_cuts_is_left_out() -> None:
    job = kernels(("a", "compute", [60]), ("b", "communication", [10]), launch=1)
    played = play(job)
    (whole,) = captures(job, played)
    (cut,) = captures(job, played)
    # the first kernel of the second step is lost
    del cut.lines["/device:GPU:0"]["Stream #0"][1]
    found = looked_at([cut])
    assert found.of("communication").gain == pytest.approx(
        looked_at([whole]).of("communication").gain or 0
    )
    assert any("1 step with another number of kernels" in each for each in found.notes)


def test_a_capture_without_a_step_is_one_stretch_and_says_so() -> None:
    space = Space()
    for start, name in ((0, "nvjet_gemm"), (600, "ncclDevKernel_AllReduce"), (700, "nvjet_gemm")):
        space.kernel(0, "Stream #1", name, start * TICK_PS, 100 * TICK_PS)
    found = looked_at([space])
    assert found.step_s == pytest.approx(800e-6)
    assert any("no step can be told" in each for each in found.notes)
    assert found.parts["idle"] == pytest.approx(500 / 800)


def test_two_steps_of_which_none_is_whole_are_refused() -> None:
    space = node(steps=2, gpus=1)
    # of the second step a copy is left, so that the first has no end that is known
    for line in space.lines["/device:GPU:0"].values():
        del line[:-1]
    with pytest.raises(ParseError, match="no whole step"):
        looked_at([space], steps=None)


BY_HAND = 6 * 2 * 512 * 2048 * 8192 * 8  # products of a layer, forward and back; eight layers


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", ["fsdp", "fsdp-ag", "fsdp-db", "fsdp-ov"])
def test_the_flop_of_a_program_do_not_depend_on_its_dialect_or_flags(
    version: str, name: str
) -> None:
    assert program(version, name).flop == BY_HAND


LEFT, RIGHT = "%a = {}[8,4]{{1,0}} parameter(0)", "%b = {}[4,16]{{1,0}} parameter(1)"
DIMS = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
LIBRARY = (
    '%c = (bf16[8,16]{1,0}, s8[64]{0}) custom-call(%a, %b), custom_call_target="__cublas$gemm", '
    'backend_config={"gemm_backend_config":{"dot_dimension_numbers":'
    '{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}'
)


@pytest.mark.parametrize(
    ("operand", "product", "flop", "narrow"),
    [
        pytest.param("bf16", f"%c = bf16[8,16] dot(%a, %b), {DIMS}", 1024, 0, id="bf16"),
        pytest.param("f64", f"%c = f64[8,16] dot(%a, %b), {DIMS}", 1024, 0, id="wide ones"),
        pytest.param("f8e4m3fn", f"%c = f32[8,16] dot(%a, %b), {DIMS}", 0, 1024, id="8 bits"),
        pytest.param("s4", f"%c = s32[8,16] dot(%a, %b), {DIMS}", 0, 0, id="4 bits: not known"),
        pytest.param("bf16", LIBRARY, 1024, 0, id="a library's"),
        pytest.param(
            "bf16", f"%c = bf16[8,16] dot(bf16[8,4]{{1,0}} %a, bf16[4,16] %b), {DIMS}", 1024, 0,
            id="with the shapes of its operands",
        ),
        pytest.param(
            "bf16", f"%c = bf16[8,16] dot(%x, %b), {DIMS}", 0, 0, id="of what is not there"
        ),
        pytest.param(
            "bf16", "%c = bf16[8,16] dot(%a, %b), lhs_contracting_dims={7}", 0, 0,
            id="over a dimension that is not there",
        ),
        pytest.param(
            "bf16", f"%c = bf16[8,16] dot(%a, %b), lhs_contracting_dims={{{'9' * 40}}}", 0, 0,
            id="over one of forty digits",
        ),
        pytest.param(
            "bf16", "%c = bf16[8,4,4,16] dot(%a, %b), lhs_contracting_dims={}", 4096, 0,
            id="an outer product",
        ),
    ],
)  # fmt: skip
def test_a_product_counts_two_flop_for_each_that_is_added(
    operand: str, product: str, flop: int, narrow: int
) -> None:
    found = made(entry(LEFT.format(operand), RIGHT.format(operand), product))
    assert (found.flop, found.flop_narrow) == (flop, narrow)


def test_products_count_as_often_as_they_run_and_not_in_branches() -> None:
    product = (LEFT.format("bf16"), RIGHT.format("bf16"), f"%c = bf16[8,16] dot(%a, %b), {DIMS}")
    inner = body("inner", *product)
    assert made(inner, entry(loop("w", "inner", 5))).flop == 5 * 1024
    assert made(inner, entry(loop("w", "inner", None))).flop == 1024, "at least"
    choose = "%x = f32[4] conditional(%p, %t), branch_computations={%inner, %inner}"
    assert made(inner, entry(choose)).flop == 0


STEP = program("0.12.0", "fsdp")


@pytest.mark.parametrize(
    ("asked", "modules", "tflops", "least_ms", "says"),
    [
        pytest.param(STEP, {"jit_train_step"}, None, BY_HAND / 989.5e9, "", id="an H100's"),
        pytest.param(STEP, {"jit_train_step(12)"}, 500.0, BY_HAND / 500e9, "", id="a given peak"),
        pytest.param(STEP, set(), None, BY_HAND / 989.5e9, "", id="kernels that name no module"),
        pytest.param(None, set(), None, None, "give --program", id="no dump"),
        pytest.param(
            replace(STEP, target="sm_9.9"), set(), None, None, "give --peak-tflops",
            id="a device without a peak",
        ),
        pytest.param(
            STEP, {"jit_eval"}, None, None, "the capture of jit_eval", id="another module"
        ),
        pytest.param(
            replace(STEP, flop=0), set(), None, None, "no matrix product", id="no product"
        ),
    ],
)  # fmt: skip
def test_the_roofline_of_a_program(
    asked: Program | None,
    modules: set[str],
    tflops: float | None,
    least_ms: float | None,
    says: str,
) -> None:
    found = roofline(asked, modules, tflops)
    assert found.least_s == (None if least_ms is None else pytest.approx(least_ms / 1e3))
    assert says in found.unknown


def test_a_program_that_takes_longer_than_the_device_computed_is_of_another() -> None:
    job = kernels(("a", "compute", [60]))
    found = looked_at(captures(job, play(job)), Roofline(least_s=70e-6)).of("compute")
    assert found.gain is None
    assert "program or peak are of another one" in found.unknown


def test_peaks_name_their_data_sheets_and_are_found_by_the_target_of_a_program() -> None:
    for name, each in peaks().items():
        assert re.search(r"https://www\.(nvidia|amd)\.com/", each.source), name
        assert each.tflops_narrow == pytest.approx(2 * each.tflops, rel=1e-3)
    named = [peak_of(each) for each in ("sm_9.0a", "sm_90", "sm_100a", "sm_10.0", "gfx942")]
    assert [each.architecture for each in named if each] == [
        "sm_90", "sm_90", "sm_100", "sm_100", "gfx942"
    ]  # fmt: skip
    assert [peak_of(each) for each in ("cpu", "unknown", "sm_7.5", "gfx90a")] == [None] * 4


def test_each_setting_of_the_catalog_is_told_what_bounds_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert [each.name for each in classes()] == [*CLASSES]
    assert sorted(aim for each in classes() for aim in each.aims) == sorted(PARTS)
    for each in load().entries:
        assert bool(each.ceilings) == (bool(each.aims) and not each.is_key), each.slug
    cli.main(["flags", "show", "xla_gpu_enable_pipelined_all_gather"])
    assert "ceiling:  communication: such a setting hides collectives" in capsys.readouterr().out


def written(folder: Path, job: Job) -> Path:
    for number, each in enumerate(captures(job, play(job))):
        (folder / f"host-{number}.xplane.pb").write_bytes(each.data())
    return folder


def test_the_command_says_what_a_sweep_cannot_see(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = kernels(("a", "compute", [600, 604]), ("b", "communication", [5, 5]))
    folder = written(tmp_path, job)
    assert cli.main(["ceiling", str(folder), "--sees", "1.5"]) == 0
    told = capsys.readouterr().out
    assert (
        "no setting of communication can be seen: at most +0.9%, and the sweep sees +1.5%" in told
    )
    assert "what settings of compute can win is not known: no dump" in told
    cli.main(["ceiling", str(folder), "--json"])
    document = json.loads(capsys.readouterr().out)
    assert Ceilings.from_json(document).of("communication").gain == pytest.approx(5 / 604, rel=1e-2)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nowhere/"], "no such file or folder"),
        (["{cut}"], "truncated, damaged"),
        (["{capture}", "--peak-tflops", "0"], "expected a number above 0"),
        (["{capture}", "--sees", "nan"], "expected a number above 0"),
        (["{capture}", "--program", "nowhere/"], "no such file or folder"),
    ],
)
def test_what_cannot_be_read_is_told(
    arguments: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capture, cut = tmp_path / "a.xplane.pb", tmp_path / "b.trace.json.gz"
    capture.write_bytes(node(gpus=1).data())
    cut.write_bytes(trace_json(50, cut=True))
    named = [each.format(capture=capture, cut=cut) for each in arguments]
    try:
        status = cli.main(["ceiling", *named])
    except SystemExit as error:
        status = int(str(error.code))
    assert status == 2
    assert says in " ".join(capsys.readouterr().err.split())


def test_a_ceiling_is_rounded_up() -> None:
    assert [upward(each) for each in (0.0, 0.0301, 0.03, 1e-5)] == [
        "+0.0%",
        "+3.1%",
        "+3.0%",
        "+0.1%",
    ]


H100 = DATA / "jaxlib-0.11.2"


@pytest.fixture(scope="module")
def of_h100(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dump of a real H100's step, as its compiler called it."""
    folder = tmp_path_factory.mktemp("h100")
    text = gzip.decompress((H100 / "step.txt.gz").read_bytes())
    (folder / "module_0001.jit_train_step.sm_9.0_gpu_after_optimizations.txt").write_bytes(text)
    return folder


def shown(name: str, dump: Path, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    assert (
        cli.main(["ceiling", str(H100 / f"{name}.trace.json.gz"), "--program", str(dump), *more])
        == 0
    )
    return capsys.readouterr().out


def test_what_graphs_won_on_a_real_h100_is_below_the_ceiling_of_launches(
    of_h100: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launches, graphs = (
        Ceilings.from_json(json.loads(shown(each, of_h100, capsys, "--json")))
        for each in ("launches", "graphs")
    )
    gain = launches.step_s / graphs.step_s - 1
    assert 0.7 < gain < 0.8
    assert gain < launches.gains["idle"] < 6
    assert launches.gains["communication"] == 0
    assert launches.of_peak == pytest.approx(0.02, abs=0.01)


def log_of(steps: int, *, step_s: float) -> str:
    """The step lines of a trainer, the first two of them slow."""
    return "".join(
        f"completed step: {number}, seconds: {step_s if number > 1 else 9:.4f}, "
        "TFLOP/s/device: 1.000, Tokens/s/device: 1000.000, total_weights: 1, loss: 9.000\n"
        for number in range(steps)
    )


def test_an_evidence_run_records_the_ceilings_of_its_step(of_h100: Path, tmp_path: Path) -> None:
    attempt = tmp_path / "s" / "e.1"
    captures_of_it = attempt / "plugins" / "profile" / "1"
    captures_of_it.mkdir(parents=True)
    shutil.copy(H100 / "graphs.trace.json.gz", captures_of_it)
    shutil.copytree(of_h100, attempt / "xla_dump")
    # without a step time of its own there is no ceiling: the profiler lengthens gaps
    silent = read_attempt("e", tmp_path, "s/e.1", profiled_at=10)
    assert silent.shares is not None
    assert (silent.shares.ceilings, silent.shares.to_win) == (None, None)
    log = attempt / "log.0.txt"  # the trainer's
    log.write_text(log_of(15, step_s=0.0009))
    found = read_attempt("e", tmp_path, "s/e.1", profiled_at=10).shares
    assert found is not None
    assert found.ceilings is not None
    assert set(found.ceilings) == {"communication", "compute", "copies", "idle"}
    assert found.ceilings["communication"] == 0
    said = sentence(found.to_win)
    assert "no setting of communication can win more than +0.0 %" in said
    assert "of its peak" in said
    recorded = read_attempt("e", tmp_path, "s/e.1", profiled_at=10)
    text = (attempt / "pgle.pbtxt").read_text() if recorded.pgle else ""
    assert ("costs { name:" in text) == bool(recorded.pgle)
    # the shorter the step without the profiler, the less its gaps can win
    log.write_text(log_of(15, step_s=0.002))
    slower = read_attempt("e", tmp_path, "s/e.1", profiled_at=10).shares
    assert slower is not None
    assert slower.ceilings is not None
    assert slower.ceilings["idle"] > found.ceilings["idle"] - 1e-9
    assert EvidenceRecorded.from_json(silent.to_json()) == silent
    # steps that the profiler was in are none without it
    log.write_text(log_of(15, step_s=0.0009))
    assert read_attempt("e", tmp_path, "s/e.1", profiled_at=4).shares == silent.shares
    # other trials of the profile say it better
    told = read_attempt("e", tmp_path, "s/e.1", profiled_at=4, step_s=0.0009).shares
    assert told == found


def test_settings_that_make_another_program_are_not_bounded() -> None:
    flags = "--xla_gpu_enable_pipelined_all_gather=true"
    assert load().is_bounded(profile("a", flags))
    assert load().is_bounded(profile("b", env={"NCCL_IB_QPS_PER_CONNECTION": "4"}))
    assert not load().is_bounded(profile("c", f"{flags} --xla_gpu_unheard_of=1"))
    assert not load().is_bounded(profile("d", flags, overrides={"remat_policy": "full"}))
    (precision,) = (each for each in load().entries if each.slug == "f32-dots-by-bf16")
    assert not load().is_bounded(profile("e", f"--{precision.name}=true"))
    # another order of summation: a collective of the same products
    for name in ("reduce_scatter", "all_gather"):
        combined = f"--xla_gpu_{name}_combine_threshold_bytes=1073741824"
        assert load().is_bounded(profile("f", combined))


def test_the_page_shows_what_the_command_prints(
    of_h100: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = shown("graphs", of_h100, capsys)
    example = [line.strip() for line in told.splitlines() if line.strip()]
    page = [line.strip() for line in PAGE.read_text(encoding="utf-8").splitlines()]
    assert [line for line in example if line not in page] == []


@pytest.mark.parametrize("name", REAL or [None])
def test_idle_time_of_a_real_amd_capture_is_that_of_its_truth(name: str | None) -> None:
    if name is None:
        pytest.skip(f"no captures in {TRACES.name}: set XLATUNE_TRACE_DATA to a folder with some")
    bounds = Bounds()
    trace = read_xplane((TRACES / f"{name}.xplane.pb").read_bytes(), name)
    drilled = drill([trace], observe=[bounds])
    found = ceilings(bounds, drilled, Roofline(unknown="no dump"))
    assert sum(found.parts.values()) == pytest.approx(1)
    (truth,) = json.loads((TRACES / f"{name}.truth.json").read_text())["devices"].values()
    if len(drilled.steps) == 1:
        assert found.of("idle").gaps_s == pytest.approx(truth["idle_in_span_ps"] * 1e-12)
        assert found.of("idle").gain is not None
    assert found.of("communication").own_s == 0


@pytest.mark.jax
def test_a_cpu_has_parts_of_a_step_and_no_ceiling(cpu_capture: Path) -> None:
    bounds = Bounds()
    drilled = drill([read_xplane(cpu_capture.read_bytes(), "cpu")], observe=[bounds])
    found = ceilings(bounds, drilled, Roofline(least_s=1e-9))
    assert found.gains == {}
    assert {each.unknown for each in found.rows} == {"the devices share the cores of a CPU"}
    assert sum(found.parts.values()) == pytest.approx(1)
    assert ceiling_document(found).sections
