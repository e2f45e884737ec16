"""The reader: every shape of the step line, any chunking, ranks, starts, bounded memory."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_xlatune.logs import (
    Event,
    LogReader,
    LogReport,
    NewStart,
    Phase,
    PhaseChange,
    read_log,
)
from pytest_xlatune.results import Action, Finding, StepRecord

ABSL = "I0112 07:08:09.123456 140001 metric_logger.py:226] "


def step(number: int, tgs: float = 990.5, loss: str = "7.125") -> str:
    return (
        f"completed step: {number}, seconds: 28.950, TFLOP/s/device: 261.250, "
        f"Tokens/s/device: {tgs:.3f}, total_weights: 458752, loss: {loss}"
    )


def text_of(lines: Iterable[str]) -> bytes:
    return "".join(f"{each}\n" for each in lines).encode()


def read(log: bytes, cuts: Iterable[int]) -> tuple[list[Event], LogReport]:
    reader = LogReader()
    events: list[Event] = []
    at = 0
    for cut in [*sorted(cuts), len(log)]:
        events += reader.feed(log[at:cut])
        at = cut
    events += reader.close()
    return events, reader.report()


def read_every_way(log: bytes) -> tuple[list[Event], LogReport]:
    """Read whole, byte by byte and in two chunks; all must agree."""
    whole = read(log, [])
    assert repr(read(log, range(1, len(log)))) == repr(whole)  # repr: NaN equals NaN
    for cut in range(0, len(log), max(len(log) // 12, 1)):
        assert repr(read(log, [cut])) == repr(whole)
    return whole


def only_step(line: str) -> StepRecord:
    _, report = read_every_way(f"{line}\n".encode())
    assert len(report.steps) == 1
    return report.steps[0]


SHAPES = {
    "the oldest form, a dictionary of scalars": (
        (
            "completed 7, per-step scalar metrics {'learning/loss': Array(9.25, dtype=float32), "
            "'perf/step_time_seconds': 0.5, 'perf/per_device_tflops': 33.5}"
        ),
        {"step": 7, "step_s": 0.5, "tflops": 33.5, "loss": 9.25},
    ),
    "2023-02, TFLOP/s without device": (
        "completed step: 7, seconds: 0.5, TFLOP/s: 33.5, loss: 9.25",
        {"step": 7, "step_s": 0.5, "tflops": 33.5, "loss": 9.25},
    ),
    "a copy without TFLOP/s at all": (
        "completed step: 7, seconds: 0.5, loss: 9.25",
        {"step": 7, "step_s": 0.5, "loss": 9.25},
    ),
    "2023-11, TFLOP/s/device": (
        "completed step: 7, seconds: 0.5, TFLOP/s/device: 33.5, loss: 9.25",
        {"step": 7, "step_s": 0.5, "tflops": 33.5, "loss": 9.25},
    ),
    "2024-07, Tokens/s/device": (
        "completed step: 7, seconds: 0.5, TFLOP/s/device: 33.5, Tokens/s/device: 990.5, loss: 9.25",
        {"step": 7, "step_s": 0.5, "tflops": 33.5, "tgs": 990.5, "loss": 9.25},
    ),
    "2024-08, total_weights": (
        step(7),
        {"step": 7, "step_s": 28.95, "tflops": 261.25, "tgs": 990.5, "loss": 7.125},
    ),
    "MFU inserted by a patch": (
        (
            "completed step: 7, seconds: 0.5, TFLOP/s/device: 33.5, MFU: 6.25%, "
            "Tokens/s/device: 990.5, total_weights: 8, loss: 9.25"
        ),
        {"step": 7, "step_s": 0.5, "tflops": 33.5, "mfu": 6.25, "tgs": 990.5, "loss": 9.25},
    ),
    "elastic, live slice count": (
        (
            "completed step: 7, seconds: 0.5, live slice count: 3, TFLOP/s/device: 33.5, "
            "Tokens/s/device: 990.5, total_weights: 8, loss: 9.25"
        ),
        {"step": 7, "step_s": 0.5, "tflops": 33.5, "tgs": 990.5, "loss": 9.25},
    ),
    "multi-token prediction, mtp_loss behind": (
        step(7) + ", main_model_loss: 6.5, mtp_loss: 0.75",
        {"step": 7, "step_s": 28.95, "tflops": 261.25, "tgs": 990.5, "loss": 7.125},
    ),
    "2026-04, lm_loss, perplexity and moe_lb_loss behind": (
        ABSL + step(7) + ", lm_loss: 7.125, perplexity: 1242.650, moe_lb_loss: 0.000000",
        {"step": 7, "step_s": 28.95, "tflops": 261.25, "tgs": 990.5, "loss": 7.125},
    ),
    "preference training, dpo_loss before another": (
        step(7) + ", dpo_loss: 0.693, reward_accuracy: 0.500",
        {"step": 7, "step_s": 28.95, "tflops": 261.25, "tgs": 990.5, "loss": 7.125},
    ),
    "an unformatted indexer_loss": (
        step(7) + ", indexer_loss: 1e-05",
        {"step": 7, "step_s": 28.95, "tflops": 261.25, "tgs": 990.5, "loss": 7.125},
    ),
    "scientific notation": (
        (
            "completed step: 7, seconds: 5e-1, TFLOP/s/device: 3.35e+1, Tokens/s/device: 1.0e6, "
            "total_weights: 8, loss: 9.25e-02"
        ),
        {"step": 7, "step_s": 0.5, "tflops": 33.5, "tgs": 1e6, "loss": 0.0925},
    ),
    "rampup with a colon": (
        "[Rampup Batch Size Phase]: completed step: 7, seconds: 0.5, total_weights: 8, loss: 9.25",
        {"step": 7, "step_s": 0.5, "loss": 9.25, "kind": "rampup"},
    ),
    "rampup with a comma": (
        "[Rampup Batch Size Phase], completed step: 7, seconds: 0.5, total_weights: 8, loss: 9.25",
        {"step": 7, "step_s": 0.5, "loss": 9.25, "kind": "rampup"},
    ),
    "a hidden profiler step": (
        "completed profiler activation/deactivation step: 7, total_weights: 8, loss: 9.25",
        {"step": 7, "loss": 9.25, "kind": "profiler"},
    ),
    "srun's label": ("0: " + step(7, 5.0), {"label": "0", "step": 7}),
    "srun's padded label": (" 8: " + step(7), {"label": "8", "step": 7}),
    "Open MPI's tag": ("[1,0]<stderr>:" + step(7), {"label": "0", "step": 7}),
    "Ray inside srun's label": (
        "0: (MaxTextTrainerActor pid=812, ip=10.0.0.7) " + step(7),
        {"label": "0 MaxTextTrainerActor pid=812, ip=10.0.0.7", "step": 7},
    ),
    "Ray in colour, repeated across the cluster": (
        "\x1b[36m(Actor pid=9)\x1b[0m " + step(7) + "\x1b[32m [repeated 7x across cluster]\x1b[0m",
        {"label": "Actor pid=9", "step": 7, "loss": 7.125},
    ),
    "Primus": (
        "[20260929 19:48:42][rank-0/16][INFO]     " + step(7),
        {"label": "0", "step": 7, "tgs": 990.5},
    ),
    "absl behind srun's label": ("3: " + ABSL + step(7), {"label": "3", "step": 7}),
    "a carriage return at the end": (step(7) + "\r", {"step": 7, "loss": 7.125}),
    "a progress bar in front": ("50% |###  |\r" + step(7), {"step": 7, "loss": 7.125}),
    "NUL bytes in front": ("\0\0\0" + step(7), {"step": 7, "loss": 7.125}),
}


@pytest.mark.parametrize(("line", "expected"), SHAPES.values(), ids=SHAPES.keys())
def test_every_shape_of_the_step_line(line: str, expected: dict[str, object]) -> None:
    record = only_step(line)
    assert {name: getattr(record, name) for name in expected} == expected
    if "label" not in expected:
        absent = {"step_s", "tflops", "mfu", "tgs", "loss"} - set(expected)
        if len(expected) > 3:
            assert all(getattr(record, name) is None for name in absent)


@pytest.mark.parametrize("loss", ["nan", "NaN", "inf", "-inf"])
def test_a_loss_that_is_no_number_is_kept_and_is_a_finding(loss: str) -> None:
    events, report = read_every_way(text_of(["0: " + step(3, loss=loss)]))
    assert report.steps[0].loss is not None
    assert not math.isfinite(report.steps[0].loss)
    (finding,) = report.findings
    assert (finding.cls, finding.action, finding.line) == ("numerical-failure", Action.DROP, 1)
    assert finding in events


@pytest.mark.parametrize(
    "line",
    [
        "Completed eval step: 3, seconds: 0.5, TFLOP/s/device: 3.0, loss: 1.0",
        "Completed eval after train step 3, loss=1.0",
        "eval metrics after step: 3, loss=1.0",
        "uncompleted step: 3, seconds: 0.5, loss: 1.0",
        "completed step: many, seconds: 0.5, loss: 1.0",
        "",
    ],
)
def test_what_is_no_step_line(line: str) -> None:
    _, report = read_every_way(f"{line}\n".encode())
    assert report.steps == ()
    assert report.phase is Phase.BEFORE_MEMSTATS


def test_lines_glued_by_two_writers_never_mix_their_numbers() -> None:
    glued = "completed step: 3, seconds: 0.5, TFLOP/s/device: 1.5completed step: 4, seconds: 0.7,"
    _, report = read_every_way(text_of([glued]))
    assert [(each.step, each.step_s, each.tflops) for each in report.steps] == [
        (3, 0.5, None),
        (4, 0.7, None),
    ]


TORN = {
    "within a word": ("completed step: 7, seconds: 28.950, TFLO", {"step_s": 28.95, "tgs": None}),
    "within the tokens": (step(7)[:75], {"step_s": 28.95, "tflops": 261.25, "tgs": None}),
    "within the loss": (step(7)[:-1], {"tgs": 990.5, "loss": None}),
    "at the end of the loss": (step(7), {"tgs": 990.5, "loss": 7.125}),
    "behind a comma": ("completed step: 7, seconds: 28.950,", {"step_s": 28.95, "loss": None}),
}


@pytest.mark.parametrize(("line", "expected"), TORN.values(), ids=TORN.keys())
def test_of_a_torn_last_line_only_whole_fields_count(
    line: str, expected: dict[str, object]
) -> None:
    _, report = read_every_way(text_of(["first"]) + line.encode())
    (record,) = report.steps
    assert {name: getattr(record, name) for name in expected} == expected
    assert report.lines == 2


@pytest.mark.parametrize("line", ["completed st", "completed step: 1", "completed step: "])
def test_a_step_id_that_may_be_torn_is_no_step(line: str) -> None:
    assert read_every_way(line.encode())[1].steps == ()


def test_rank_0_is_read_by_its_label_even_when_it_prints_late() -> None:
    lines = [
        f"{rank}: {step(number, 100.0 * (rank + 1))}" for number in range(3) for rank in (1, 0)
    ]
    _, report = read_every_way(text_of(lines))
    assert [(each.step, each.tgs) for each in report.steps] == [(0, 100.0), (1, 100.0), (2, 100.0)]
    assert report.starts == 1
    assert any("2 origins" in note for note in report.notes)


def test_of_ray_actors_the_head_s_own_is_read() -> None:
    lines = [
        f"0: (A pid={pid}{ip}) {step(number, tgs)}"
        for number in range(3)
        for pid, ip, tgs in ((5, ", ip=10.0.0.2", 200.0), (4, "", 100.0))
    ]
    _, report = read_every_way(text_of(lines))
    assert [each.tgs for each in report.steps] == [100.0, 100.0, 100.0]


def test_without_labels_the_first_line_of_a_step_counts_and_is_noted() -> None:
    lines = [step(number, tgs) for number in range(6) for tgs in (100.0, 200.0, 300.0)]
    _, report = read_every_way(text_of(lines))
    assert [each.tgs for each in report.steps] == [100.0] * 6
    assert report.starts == 1
    assert any("several ranks" in note for note in report.notes)


def test_a_slower_rank_is_no_new_start() -> None:
    lines = [step(0), step(1), step(2), step(0), step(3), step(1), step(2), step(4), step(3)]
    _, report = read_every_way(text_of(lines))
    assert [each.step for each in report.steps] == [0, 1, 2, 3, 4]
    assert report.starts == 1


STARTS = {
    "requeued after settings": [
        *(f"0: {step(each, 1.0)}" for each in range(8)),
        "0: XLA_FLAGS=--xla_new=1",
        *(f"0: {step(each, 2.0)}" for each in range(3)),
    ],
    "requeued without a word": [
        *(step(each, 1.0) for each in range(8)),
        *(step(each, 2.0) for each in range(3)),
    ],
    "restarted before the third step, after Memstats": [
        step(0, 1.0),
        "Memstats: After params initialized:",
        *(step(each, 2.0) for each in range(3)),
    ],
}


@pytest.mark.parametrize("lines", STARTS.values(), ids=STARTS.keys())
def test_the_last_start_counts(lines: list[str]) -> None:
    events, report = read_every_way(text_of(lines))
    assert [(each.step, each.tgs, each.start) for each in report.steps] == [
        (0, 2.0, 1),
        (1, 2.0, 1),
        (2, 2.0, 1),
    ]
    assert report.starts == 2
    assert sum(isinstance(each, NewStart) for each in events) == 1


def test_a_resumed_start_keeps_its_own_steps_and_settings() -> None:
    lines = [
        "Config param steps: 20",
        *(step(each, 1.0) for each in range(9)),
        "Config param steps: 30",
        "Memstats: After params initialized:",
        *(step(each, 2.0) for each in range(9, 12)),
    ]
    _, report = read_every_way(text_of(lines))
    assert [(each.step, each.tgs) for each in report.steps] == [(9, 2.0), (10, 2.0), (11, 2.0)]
    assert report.config == {"steps": "30"}


def test_a_second_start_that_hangs_shows_its_own_phase() -> None:
    lines = [*(step(each) for each in range(9)), "Memstats: After params initialized:"]
    _, report = read_every_way(text_of(lines))
    assert (report.last_step, report.phase, report.starts) == (None, Phase.COMPILING, 2)


def test_findings_of_an_earlier_start_ask_for_nothing() -> None:
    failed = "slurmstepd: error: Detected 1 oom_kill event in StepId=4.0"
    _, report = read_every_way(text_of([step(0), failed, "JAX_PLATFORMS=cpu", step(0)]))
    assert [(each.cls, each.action) for each in report.findings] == [("oom-host", Action.NONE)]


def test_phases_are_told_as_they_begin() -> None:
    events, report = read_every_way(
        text_of(["0: Config param steps: 3", "0: Memstats: After params initialized:", step(0)])
    )
    changes = [each for each in events if isinstance(each, PhaseChange)]
    assert [(each.phase, each.line) for each in changes] == [
        (Phase.COMPILING, 2),
        (Phase.TRAINING, 3),
    ]
    assert report.lines == 3


def test_the_reader_answers_while_it_reads() -> None:
    reader = LogReader()
    assert (reader.last_step, reader.phase) == (None, Phase.BEFORE_MEMSTATS)
    reader.feed(text_of([step(0), step(1)]) + b"RESOURCE_EXHAUSTED: Out of memory")
    assert (reader.last_step, reader.phase, reader.fatal) == (1, Phase.TRAINING, None)
    (event,) = reader.feed(b" while trying to allocate 12.50GiB.\n")
    assert isinstance(event, Finding)
    assert reader.fatal == event
    assert (event.cls, event.detail, event.line) == ("oom-gpu", "12.50 GiB", 3)


def test_a_closed_reader_takes_no_more() -> None:
    reader = LogReader()
    reader.close()
    assert reader.close() == []
    with pytest.raises(ValueError, match="was closed"):
        reader.feed(b"x")


def test_settings_are_those_of_rank_0_and_the_last_word() -> None:
    lines = [
        "1: NCCL_DEBUG=WARN",
        "0: NCCL_DEBUG=INFO",
        "2: NCCL_DEBUG=TRACE",
        "0: XLA_FLAGS=--xla_a=1",
        " 0: XLA_FLAGS=--xla_a=1 --xla_b='x y'",
        'declare -x RCCL_X="1 2"',
        "0: (A pid=7) JAX_PLATFORMS=cpu",
        "XLA_PYTHON_CLIENT_MEM_FRACTION=.93",
        "the variable NCCL_IB_HCA=mlx5 is not a line of printenv",
        "Config param run_name: a: b",
        ABSL + "Config param steps: 15",
        "PATH=/usr/bin",
    ]
    _, report = read_every_way(text_of(lines))
    assert report.xla_flags == "--xla_a=1 --xla_b='x y'"
    assert report.env == {
        "NCCL_DEBUG": "INFO",
        "RCCL_X": "1 2",
        "JAX_PLATFORMS": "cpu",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": ".93",
    }
    assert report.config == {"run_name": "a: b", "steps": "15"}


def test_a_log_that_shows_no_flags_says_so() -> None:
    assert read_log([text_of([step(0)])]).xla_flags is None
    assert read_log([b"XLA_FLAGS=\n"]).xla_flags == ""


def test_identical_findings_are_counted_and_their_number_is_bounded() -> None:
    oom = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate {} bytes."
    lines = [oom.format(1)] * 5 + [oom.format(each) for each in range(2, 50)]
    report = read_log([text_of(lines)])
    assert (report.findings[0].count, report.findings[0].line) == (5, 1)
    assert len(report.findings) == 8
    assert any("41 more findings" in note for note in report.notes)


def test_a_megabyte_without_an_end_is_not_kept() -> None:
    reader = LogReader()
    for _ in range(64):
        reader.feed(b"x" * (1 << 16))
    assert len(reader._held) == 1 << 16
    reader.feed(text_of(["", step(4)]))
    report = reader.report()
    assert (report.last_step, report.lines, report.size_bytes) == (
        4,
        2,
        (1 << 22) + len(step(4)) + 2,
    )


@pytest.mark.parametrize("junk", [65_000, 65_500, 65_536, 70_000, 140_000])
def test_a_long_line_is_cut_alike_in_every_chunking(junk: int) -> None:
    log = text_of(["a", "x" * junk + " Killed", step(3), "y" * junk + " " + step(4), step(5)])
    whole = read(log, [])
    for size in (1 << 10, 1 << 14, 40_000, 65_536, 65_537, 100_000):
        assert read(log, range(size, len(log), size)) == whole
    assert next(each.step for each in whole[1].steps) == 3


def test_steps_after_a_cancel_are_counted() -> None:
    lines = [step(0), "W0112 07:08:09.1 9 p.cc:1] SIGTERM caught at 2026", step(1), step(2)]
    _, report = read_every_way(text_of(lines))
    assert (report.last_step, report.steps_after_cancel) == (2, 2)


def test_the_tail_is_what_is_neither_step_nor_harmless() -> None:
    lines = ["first", step(0), "n1 NCCL INFO bye", "strange end", ""]
    assert read_log([text_of(lines)]).tail == ("first", "strange end")


def test_a_report_goes_to_json_and_back() -> None:
    report = read_log([text_of(["0: XLA_FLAGS=--xla_a", step(0, loss="inf"), "Killed"])])
    assert LogReport.from_json(report.to_json()) == report


PIECES = st.sampled_from(
    [
        step(3).encode(),
        b"0: " + step(4).encode(),
        b"1: " + step(4, loss="nan").encode(),
        step(0).encode(),
        b"XLA_FLAGS=--xla_a=1",
        b"Memstats: After params initialized:",
        b"Config param a: b",
        b"Killed",
        b"RESOURCE_EXHAUSTED: Out of memory",
        b"\n",
        b"\r\n",
        b"\r",
        b"\0\xff\xfe\xc3",
        b"\x1b[31m",
        b"x" * 70_000,
    ]
)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_chunking_gives_the_same_events(data: st.DataObject) -> None:
    pieces = data.draw(st.lists(st.one_of(PIECES, PIECES, st.binary(max_size=30)), max_size=25))
    log = b"".join(pieces)
    cuts = data.draw(st.lists(st.integers(0, len(log)), max_size=12))
    assert repr(read(log, cuts)) == repr(read(log, []))


WHOLE = (
    "completed step: 7, seconds: 0.512, TFLOP/s/device: 0.1, Tokens/s/device: 990.5, loss: 7.100"
)


@pytest.mark.parametrize("end", range(len("completed step: 7,"), len(WHOLE) - 5, 7))
def test_a_line_cut_short_gives_way_to_the_whole_one(end: int) -> None:
    lines = [WHOLE.replace("step: 7", "step: 6"), WHOLE[:end], WHOLE, WHOLE]
    _, report = read_every_way(text_of(lines))
    before, after = report.steps
    assert after == dataclasses.replace(before, step=7)


@pytest.mark.parametrize("end", [len("completed step: 7, seconds: 0.5"), len(WHOLE) - 2])
def test_a_line_cut_inside_a_number_does_not_tell_that_number(end: int) -> None:
    lines = [WHOLE.replace("step: 7", "step: 6"), WHOLE[:end], WHOLE.replace("step: 7", "step: 8")]
    _, report = read_every_way(text_of(lines))
    cut = report.steps[1]
    told = (cut.step_s, cut.tgs, cut.loss)
    # the last number of a whole line cannot be told from a cut one, and no score rests on it
    assert told in [(None, None, None), (0.512, 990.5, 7.1)]
