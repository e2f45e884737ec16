"""The step line: every shape of it, glued, torn or cut, in any chunking."""

from __future__ import annotations

import ast
import json
import math
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_xlatune.logs import Phase, _course
from pytest_xlatune.model.result import Action
from tests.helpers.examples import tried
from tests.helpers.log_lines import ABSL, read, read_every_way, step, text_of


def shapes() -> dict[str, tuple[str, dict[str, object]]]:
    """Of `tests/data/step_lines.txt`: the name of a shape, its line, and what it tells."""
    text = (Path(__file__).parents[1] / "data" / "step_lines.txt").read_text(encoding="utf-8")
    blocks = [block.splitlines() for block in text.strip().split("\n\n")[1:]]
    return {name[2:]: (ast.literal_eval(line), json.loads(told)) for name, told, line in blocks}


SHAPES = shapes()


@pytest.mark.parametrize(("line", "expected"), SHAPES.values(), ids=SHAPES.keys())
def test_every_shape_of_the_step_line(line: str, expected: dict[str, object]) -> None:
    (record,) = read_every_way(f"{line}\n".encode()).steps
    assert {name: getattr(record, name) for name in expected} == expected
    if "label" not in expected:
        absent = {"step_s", "tflops", "mfu", "tgs", "loss"} - set(expected)
        if len(expected) > 3:
            assert all(getattr(record, name) is None for name in absent)


@pytest.mark.parametrize("loss", ["nan", "NaN", "inf", "-inf"])
def test_a_loss_that_is_no_number_is_kept_and_is_a_finding(loss: str) -> None:
    report = read_every_way(text_of(["0: " + step(3, loss=loss)]))
    assert report.steps[0].loss is not None
    assert not math.isfinite(report.steps[0].loss)
    (finding,) = report.findings
    assert (finding.cls, finding.action, finding.line) == ("numerical-failure", Action.DROP, 1)


@pytest.mark.parametrize(
    "line",
    [
        "Completed eval step: 3, seconds: 0.5, TFLOP/s/device: 3.0, loss: 1.0",
        "Completed eval after train step 3, loss=1.0",
        "eval metrics after step: 3, loss=1.0",
        "uncompleted step: 3, seconds: 0.5, loss: 1.0",
        "completed step: many, seconds: 0.5, loss: 1.0",
        "",
        # torn, so that the step id may lack a digit
        *("completed st", "completed step: ", "completed step: 1"),
    ],
)
def test_what_is_no_step_line(line: str) -> None:
    report = read_every_way(line.encode() + b"\n" * ("," in line))
    assert report.steps == ()
    assert report.phase is Phase.BEFORE_MEMSTATS


def test_another_program_in_the_same_line_changes_no_figure() -> None:
    step = "completed step: {}, seconds: 0.5, Tokens/s/device: 990.5, loss: 7.3"
    other = "E0112 07:08:09.000001      77 a.cc:1] Check failed: x"
    report = read_every_way(text_of([step.format(0), step.format(1) + other]))
    assert [record.loss for record in report.steps] == [7.3, 7.3]
    assert [finding.cls for finding in report.findings] == ["xla-check-fail"]


def test_lines_glued_by_two_writers_never_mix_their_numbers() -> None:
    glued = "completed step: 3, seconds: 0.5, TFLOP/s/device: 1.5completed step: 4, seconds: 0.7,"
    report = read_every_way(text_of([glued]))
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
    report = read_every_way(text_of(["first"]) + line.encode())
    (record,) = report.steps
    assert {name: getattr(record, name) for name in expected} == expected
    assert report.lines == 2


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


@settings(max_examples=tried(150), deadline=None)
@given(st.data())
def test_any_chunking_gives_the_same_report(data: st.DataObject) -> None:
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
    report = read_every_way(text_of(lines))
    before, after = report.steps
    assert after == before._replace(step=7)


@pytest.mark.parametrize("end", [len("completed step: 7, seconds: 0.5"), len(WHOLE) - 2])
def test_a_line_cut_inside_a_number_does_not_tell_that_number(end: int) -> None:
    lines = [WHOLE.replace("step: 7", "step: 6"), WHOLE[:end], WHOLE.replace("step: 7", "step: 8")]
    report = read_every_way(text_of(lines))
    cut = report.steps[1]
    told = (cut.step_s, cut.tgs, cut.loss)
    # the last number of a whole line cannot be told from a cut one, and no score rests on it
    assert told in [(None, None, None), (0.512, 990.5, 7.1)]


LINES: list[str] = [
    *(str(line) for line, _ in SHAPES.values()),
    *(step(7, loss=loss) for loss in ("nan", "1e-05", "-0.5", "7.", "9" * 40)),
    *("INFO:absl:" + step(7), "[rank3]: " + step(12), "2026-01-12T07:08:09.1Z stdout F " + step(7)),
    *('{"log": "' + step(7) + '"}', step(7) + step(8), "x" + step(7), "Memstats: After params"),
    *(f"2026-01-12T07:08:09.1Z stdout P {step(7, loss='7.1')}", f"job7> {step(7)}"),
    "completed profiler activation/deactivation step: 7, loss: 7.4 Config param steps: 15",
    "0: I0112 07:08:09.6 1 e:6] completed step:5: I0112 07:08:09.6 1 e:6] completed step: 0,",
    *("Config param steps: 15", step(7)[:-7], step(7).replace(", Tokens/s/device: 990.500", "")),
]


@settings(max_examples=tried(150), deadline=None)
@given(st.lists(st.tuples(st.sampled_from(LINES), st.randoms()), min_size=2, max_size=12))
def test_a_shape_that_was_read_before_reads_as_it_does_alone(
    drawn: list[tuple[str, random.Random]],
) -> None:
    lines = []
    for line, rng in drawn:
        said = [str(rng.randrange(10)) if each.isdigit() and rng.random() < 0.7 else each
                for each in line]  # fmt: skip
        lines.append("".join(said))
    log = text_of([*lines, *(line for line, _ in drawn)])
    assert repr(read(log, [])) == repr(read(log, [], is_in_full=True))


SEGMENTS = st.lists(
    st.tuples(
        st.integers(0, 2000),  # first step
        st.integers(1, 12),  # steps
        st.sampled_from((1, 2, 3)),  # lines of each
        st.sampled_from(
            ("{}: ", "", "(A pid=7{}, ip=10.0.0.{}) ", f"{{}}: {ABSL}", "[1,{}]<stdout>:")
        ),
        st.sampled_from(
            (
                *("7.125", "-0.0", "0.5", "12", "1234567890123456.5", "nan", "7."),
                *("999999999", "4294967295.5", "0.99999999999999", "999999999999999"),
            )
        ),
    ),
    max_size=8,
)  # fmt: skip


@given(SEGMENTS, st.integers(1, 3), st.sampled_from(((100_000, 8192), (20, 8), (3, 30))))
def test_a_run_of_step_lines_is_read_as_each_line_is(
    segments: list[tuple[int, int, int, str, str]], by: int, kept: tuple[int, int]
) -> None:
    log = text_of(
        f"{prefix.format(rank, rank)}{step(each, loss=loss)}"
        for first, steps, ranks, prefix, loss in segments
        for each in range(first, first + steps * by, by)
        for rank in range(ranks)
    )
    with pytest.MonkeyPatch.context() as patched:
        for name, count in zip(("MOST_STEPS", "MORE_STEPS"), kept, strict=True):
            patched.setattr(_course, name, count)
        whole = read(log, [])
        ends = [at + 1 for at, byte in enumerate(log) if byte == ord("\n")]
        assert repr(read(log, ends)) == repr(whole)
        assert repr(read(log, [], is_in_full=True)) == repr(whole)
