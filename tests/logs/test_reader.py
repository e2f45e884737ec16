"""The reader of logs: step lines, what stands around a line, ranks and starts; in any chunking."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.logs import LogReader, LogReport, Phase, _course, read_log
from pytest_xlatune.model.result import Action
from tests.helpers.log_lines import ABSL, read, read_every_way, step, text_of
from tests.helpers.second_looks import tried


def shapes() -> dict[str, tuple[str, dict[str, object]]]:
    """Of `tests/data/step_lines.txt`: the name of a shape, its line, and what it tells."""
    text = (Path(__file__).parents[1] / "data" / "step_lines.txt").read_text(encoding="utf-8")
    blocks = [block.splitlines() for block in text.strip().split("\n\n")[1:]]
    return {name[2:]: (ast.literal_eval(line), json.loads(told)) for name, told, line in blocks}


SHAPES = shapes()


@pytest.mark.parametrize(("line", "expected"), SHAPES.values(), ids=SHAPES.keys())
def test_every_shape_of_the_step_line(line: str, expected: dict[str, object]) -> None:
    (record,) = read_every_way(f"{line}\n".encode()).steps
    figures = ("step_s", "tflops", "mfu", "tgs", "loss")
    if "label" not in expected and len(expected) > 3:
        expected = dict.fromkeys(figures) | expected
    assert {name: getattr(record, name) for name in expected} == expected


@pytest.mark.parametrize("loss", ["nan", "NaN", "inf", "-inf"])
def test_a_loss_that_is_no_number_is_kept_and_is_a_finding(loss: str) -> None:
    report = read_every_way(text_of(["0: " + step(3, loss=loss)]))
    assert not math.isfinite(report.steps[0].loss or 0.0)
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


WHOLE = (
    "completed step: 7, seconds: 0.512, TFLOP/s/device: 0.1, Tokens/s/device: 990.5, loss: 7.100"
)
BEFORE, BEHIND = (WHOLE.replace("step: 7", f"step: {at}") for at in (6, 8))
ALL = (0.512, 0.1, 990.5, 7.1)
# a log; seconds, TFLOP/s, TGS and loss of its step 7
CUT: dict[str, tuple[str, tuple[float | None, ...]]] = {
    "torn within a word": (WHOLE[:39], (0.512, None, None, None)),
    "torn within the tokens": (WHOLE[:72], (0.512, 0.1, None, None)),
    "torn within the loss": (WHOLE[:-1], (0.512, 0.1, 990.5, None)),
    "torn at the end of the loss": (step(7), (28.95, 261.25, 990.5, 7.125)),
    "torn behind a comma": (WHOLE[:34], (0.512, None, None, None)),
    "glued to the next": (f"{WHOLE[:53]}{BEHIND}\n", (0.512, None, None, None)),
    "cut inside the first number": (f"{WHOLE[:31]}\n{BEHIND}\n", (None, None, None, None)),
    # the last number of a whole line cannot be told from a cut one, and no score rests on it
    "cut inside the last number": (f"{WHOLE[:-2]}\n{BEHIND}\n", ALL),
    "followed by another program's words": (
        f"{WHOLE}E0112 07:08:09.000001      77 a.cc:1] Check failed: x\n", ALL),
    **{f"cut short at {end}, and then whole": (f"{WHOLE[:end]}\n{WHOLE}\n{WHOLE}\n", ALL)
       for end in range(len("completed step: 7,"), len(WHOLE) - 5, 7)},
}  # fmt: skip


@pytest.mark.parametrize(("log", "figures"), CUT.values(), ids=CUT)
def test_of_a_cut_line_only_whole_fields_count(log: str, figures: tuple[float | None, ...]) -> None:
    report = read_every_way(f"{BEFORE}\n{log}".encode())
    (record,) = [each for each in report.steps if each.step == 7]
    assert (record.step_s, record.tflops, record.tgs, record.loss) == figures
    assert report.lines == log.count("\n") + (not log.endswith("\n")) + 1
    assert ("xla-check-fail" in [each.cls for each in report.findings]) == ("Check" in log)


PIECES = (
    *(b"%b%b" % (label, step(4, loss=loss).encode())
      for label, loss in ((b"", "7.1"), (b"0: ", "7.1"), (b"1: ", "nan"))),
    *(step(0).encode(), b"XLA_FLAGS=--xla_a=1", b"Config param a: b", b"Killed"),
    *(b"Memstats: After params initialized:", b"RESOURCE_EXHAUSTED: Out of memory"),
    *(b"\n", b"\r\n", b"\r", b"\0\xff\xfe\xc3", b"\x1b[31m", b"x" * 70_000),
)  # fmt: skip
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
LABELS = ("{}: ", "", "(A pid=7{}, ip=10.0.0.{}) ", f"{{}}: {ABSL}", "[1,{}]<stdout>:")
LOSSES = (
    *("7.125", "-0.0", "0.5", "12", "1234567890123456.5", "nan", "7.", "999999999"),
    *("4294967295.5", "0.99999999999999", "999999999999999"),
)


@st.composite
def same_shapes(draw: st.DrawFn) -> bytes:
    """A line with other digits, and as it is."""
    line, rng = draw(st.sampled_from(LINES)), draw(st.randoms())
    other = (str(rng.randrange(10)) if each.isdigit() and rng.random() < 0.7 else each
             for each in line)  # fmt: skip
    return text_of(["".join(other), line])


@st.composite
def runs(draw: st.DrawFn) -> bytes:
    """Consecutive step lines of some ranks."""
    first, steps, by, ranks = (
        draw(st.integers(*each)) for each in ((0, 2000), (1, 12), (1, 3), (1, 3))
    )
    label, loss = draw(st.sampled_from(LABELS)), draw(st.sampled_from(LOSSES))
    return text_of(
        f"{label.format(rank, rank)}{step(each, loss=loss)}"
        for each in range(first, first + steps * by, by)
        for rank in range(ranks)
    )


PARTS = st.one_of(st.sampled_from(PIECES), st.binary(max_size=30), same_shapes(), runs(), runs())


@settings(max_examples=tried(300), deadline=None)
@given(
    log=st.lists(PARTS, max_size=16).map(b"".join),
    cuts=st.lists(st.floats(0, 1), max_size=12),
    most=st.sampled_from(((100_000, 8192), (20, 8), (3, 30))),
)
def test_any_chunking_and_every_short_way_gives_the_same_report(
    log: bytes, cuts: list[float], most: tuple[int, int]
) -> None:
    """A line is read by the shape of one before it, and a run of them together."""
    with pytest.MonkeyPatch.context() as patched:
        for name, count in zip(("MOST_STEPS", "MORE_STEPS"), most, strict=True):
            patched.setattr(_course, name, count)
        whole = repr(read(log, []))
        ends = [at + 1 for at, byte in enumerate(log) if byte == ord("\n")]
        assert repr(read(log, [int(cut * len(log)) for cut in cuts])) == whole
        assert repr(read(log, ends)) == whole
        assert repr(read(log, [], is_in_full=True)) == whole


def test_the_reader_answers_while_it_reads() -> None:
    reader = LogReader()
    assert (reader.last_step, reader.phase) == (None, Phase.BEFORE_MEMSTATS)
    reader.feed(text_of(["0: Config param steps: 3", "0: Memstats: After params initialized:"]))
    assert reader.phase is Phase.COMPILING
    reader.feed(text_of([step(0), step(1)]) + b"RESOURCE_EXHAUSTED: Out of memory")
    assert (reader.last_step, reader.phase, reader.fatal) == (1, Phase.TRAINING, None)
    reader.feed(b" while trying to allocate 12.50GiB.\n")
    (finding,) = reader.findings
    assert reader.fatal == finding
    assert (finding.cls, finding.detail, finding.line) == ("oom-gpu", "12.50 GiB", 5)
    for _ in range(64):
        reader.feed(b"x" * (1 << 16))
    assert len(reader._held) == 1 << 16, "a line without an end is not kept"
    reader.feed(text_of(["", step(4)]))
    assert (reader.last_step, reader.report().lines) == (4, 7)
    reader.close()
    reader.close()
    with pytest.raises(ValueError, match="was closed"):
        reader.feed(b"x")


def test_settings_are_those_of_rank_0_and_the_last_word() -> None:
    lines = [
        *("1: NCCL_DEBUG=WARN", "0: NCCL_DEBUG=INFO", "2: NCCL_DEBUG=TRACE", "RCCL_X=1 2"),
        *("0: XLA_FLAGS=--xla_a=1", " 0: XLA_FLAGS=--xla_a=1 --xla_b='x y'"),
        *("0: (A pid=7) JAX_PLATFORMS=cpu", "XLA_PYTHON_CLIENT_MEM_FRACTION=.93", "PATH=/usr/bin"),
        "the variable NCCL_IB_HCA=mlx5 is not a line of printenv",
        *("Config param run_name: a: b", ABSL + "Config param steps: 15"),
    ]
    report = read_every_way(text_of(lines))
    assert report.xla_flags == "--xla_a=1 --xla_b='x y'"
    assert report.env == {
        "NCCL_DEBUG": "INFO",
        "RCCL_X": "1 2",
        "JAX_PLATFORMS": "cpu",
        "XLA_PYTHON_CLIENT_MEM_FRACTION": ".93",
    }
    assert report.config == {"run_name": "a: b", "steps": "15"}
    assert read_log([text_of([step(0)])]).xla_flags is None
    assert read_log([b"XLA_FLAGS=\n"]).xla_flags == ""


def test_identical_findings_are_counted_and_their_number_is_bounded() -> None:
    oom = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate {} bytes."
    lines = [oom.format(1)] * 5 + [oom.format(each) for each in range(2, 50)]
    report = read_log([text_of(lines)])
    assert (report.findings[0].count, report.findings[0].line) == (5, 1)
    assert len(report.findings) == 8
    lines = ["first", step(0), "n1 NCCL INFO bye", "strange end", ""]
    assert read_log([text_of(lines)]).tail == ("first", "strange end"), "no step, nothing harmless"


@pytest.mark.parametrize("junk", [65_000, 65_500, 65_536, 70_000, 140_000])
def test_a_long_line_is_cut_alike_in_every_chunking(junk: int) -> None:
    log = text_of(["a", "x" * junk + " Killed", step(3), "y" * junk + " " + step(4), step(5)])
    whole = read(log, [])
    for size in (1 << 10, 1 << 14, 40_000, 65_536, 65_537, 100_000):
        assert read(log, range(size, len(log), size)) == whole
    assert next(each.step for each in whole[0].steps) == 3


EIGHT = [step(each, 1.0) for each in range(8)]
NEW = [step(each, 2.0) for each in range(3)]
MEMSTATS = "Memstats: After params initialized:"
OF_NEW = [(0, 2.0), (1, 2.0), (2, 2.0)]
# lines -> (step, TGS) of each step that counts, number of starts, and a part of the notes
LOGS: dict[str, tuple[list[str], list[tuple[int, float]], int, str]] = {
    "rank 0 by its label, even if it prints late": (
        [f"{rank}: {step(at, 2.0 + rank)}" for at in range(3) for rank in (1, 0)],
        OF_NEW, 1, "2 origins"),
    "of Ray's actors the head's own": (
        [f"0: (A pid={pid}{ip}) {step(at, tgs)}" for at in range(3)
         for pid, ip, tgs in ((5, ", ip=10.0.0.2", 1.0), (4, "", 2.0))],
        OF_NEW, 1, "2 origins"),
    "without labels the first line of a step": (
        [step(at, tgs) for at in range(3) for tgs in (2.0, 3.0, 4.0)], OF_NEW, 1, "several ranks"),
    "a slower rank is no new start": (
        [step(at, 1.0) for at in (0, 1, 2, 0, 3, 1, 2, 4, 3)],
        [(at, 1.0) for at in range(5)], 1, "several ranks"),
    "behind a prefix that was learnt a known one names the rank": (
        [f"job7> {rank}: {step(at, 2.0 + rank)}" for at in range(3) for rank in (3, 1, 0)],
        OF_NEW, 1, "origins"),
    "requeued after settings": (
        [f"0: {line}" for line in (*EIGHT, "XLA_FLAGS=--xla_new=1", *NEW)], OF_NEW, 2, "2 starts"),
    "requeued without a word": ([*EIGHT, *NEW], OF_NEW, 2, "2 starts"),
    "restarted before the third step, after Memstats": (
        [EIGHT[0], MEMSTATS, *NEW], OF_NEW, 2, "2 starts"),
    "a resumed start": (
        ["Config param steps: 20", *EIGHT, "Config param steps: 30", MEMSTATS, step(8, 2.0)],
        [(8, 2.0)], 2, "2 starts"),
    "a second start that hangs": ([*EIGHT, MEMSTATS], [], 2, "2 starts"),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "steps", "starts", "note"), LOGS.values(), ids=LOGS)
def test_one_rank_and_the_last_start_count(
    lines: list[str], steps: list[tuple[int, float]], starts: int, note: str
) -> None:
    failed = "slurmstepd: error: Detected 1 oom_kill event in StepId=4.0"
    report = read_every_way(text_of([failed, *lines]))
    assert [(each.step, each.tgs) for each in report.steps] == steps
    assert {each.start for each in report.steps} <= {starts - 1}
    assert report.starts == starts
    assert note in " ".join(report.notes)
    assert report.phase is (Phase.TRAINING if steps else Phase.COMPILING)
    assert report.config in ({}, {"steps": "30"})
    of_earlier = [(each.cls, each.action is Action.NONE) for each in report.findings]
    assert of_earlier == [("oom-host", starts > 1)]


AROUND_LINES = [
    "XLA_FLAGS=--xla_a=1 --xla_b=2",
    "NCCL_DEBUG=INFO",
    "Config param steps: 15",
    step(0),
    step(1),
    step(2, loss="nan"),
    "Traceback (most recent call last):",
    "ValueError: a shape",
    "Killed",
]

PREFIXES = {
    "nothing": "",
    "CRI": "2026-01-12T07:08:09.123456789Z stderr F ",
    "kubectl --prefix": "[pod/train-0-abcde/trainer] ",
    "kubectl --prefix --timestamps": "[pod/train-0-abcde/trainer] 2026-01-12T07:08:09.123456789Z ",
    "compose": "trainer-1  | ",
    "journald": "Jan 12 07:08:09 gpu017 run.sh[812]: ",
    "rank": "[rank0]: ",
    "torchrun": "[default0]:",
    "logging": "2026-01-12 07:08:09,123 - root - INFO - ",
    "logging, level first": "2026-01-12 07:08:09,123 INFO trainer: ",
    "basicConfig": "INFO:root:",
    "srun below CRI": "2026-01-12T07:08:09.1Z stdout F  0: ",
    "ts": "Jan 12 07:08:09 ",
    "a date and a time in brackets": "[2026-01-12 07:08:09] ",
    "ISO": "2026-01-12T07:08:09 ",
    "colours": "\x1b[0;31m",
    "srun's padded label": " 0: ",
    "absl below compose": "node-7 | I0112 07:08:09.123456 140001 metric_logger.py:226] ",
}


ENVELOPES: dict[str, Callable[[str], object]] = {
    "docker's json-file": lambda line: {"log": f"{line}\n", "stream": "stderr"},
    "Cloud Logging": lambda line: {"insertId": "x", "textPayload": line},
    "Cloud Logging, structured": lambda line: {
        "jsonPayload": {"message": line, "logger": "x"}, "labels": {"a": "b"}
    },
    "a structured logger": lambda line: {"level": "info", "msg": line},
}  # fmt: skip


def enveloped(around: str, line: str) -> str:
    kind, _, how = around.partition(" in ")
    envelope = ENVELOPES[kind](line)
    if how == "an array of `gcloud logging read`":
        return json.dumps(envelope, indent=2) + ","
    return {"": "", "CRI": PREFIXES["CRI"]}[how] + json.dumps(envelope)


def holds_all(report: LogReport) -> None:
    assert report.xla_flags == "--xla_a=1 --xla_b=2"
    assert report.env == {"NCCL_DEBUG": "INFO"}
    assert report.config == {"steps": "15"}
    assert [(each.step, each.tgs) for each in report.steps] == [(0, 990.5), (1, 990.5), (2, 990.5)]
    classes = [each.cls for each in report.findings]
    assert classes == ["numerical-failure", "python-traceback", "python-exception", "killed"]
    assert report.findings[2].detail == "ValueError: a shape"


ARRAY = " in an array of `gcloud logging read`"
MORE = (f"Cloud Logging{ARRAY}", f"Cloud Logging, structured{ARRAY}", "a structured logger in CRI")


@pytest.mark.parametrize("around", [*PREFIXES, *ENVELOPES, *MORE])
def test_what_stands_around_a_line_hides_nothing(around: str) -> None:
    front = PREFIXES.get(around)
    wrapped = [enveloped(around, line) if front is None else front + line for line in AROUND_LINES]
    holds_all(read_every_way(text_of(wrapped)))


@pytest.mark.parametrize(
    "around",
    ['time="07:08" msg="{}"', "b'{}\\n'", '2026-01-12,"{}",INFO', '[{{"log": "{}"}}, {{}}]'],
)
def test_a_loss_that_something_unknown_closes_is_no_less_nan(around: str) -> None:
    lines = [around.format(each) for each in (step(0), step(1), step(2, loss="nan"))]
    report = read_every_way(text_of(lines))
    assert [each.cls for each in report.findings] == ["numerical-failure"]


def test_what_a_runtime_cuts_tells_no_more_than_its_whole_fields() -> None:
    front, flags, said = "2026-01-12T07:08:09.123456789Z stdout ", "XLA_FLAGS=--xla_a=1", step(3)
    lines = [f"{front}P {flags}", f"{front}F 5", f"{front}P {said[:90]}", f"{front}F {said[90:]}"]
    report = read_every_way(text_of(lines))
    assert report.xla_flags is None
    assert "the line of XLA_FLAGS is cut and was not used" in report.notes
    assert [(each.step, each.step_s, each.loss) for each in report.steps] == [(3, 28.95, None)]
    whole = enveloped("docker's json-file", step(7, loss="nan"))
    for end in range(len(whole) - 30, len(whole)):
        report = read_every_way(text_of([step(6)]) + whole[:end].encode())
        losses = {each.loss for each in report.steps if each.step == 7}
        assert all(loss is None or math.isnan(loss) for loss in losses)


@pytest.mark.parametrize(
    "prefix",
    [
        "{0}@gpu{1:03d}> ",
        "<< task {0} of 8, pid 7{0}12 >> ",
        "07:08:{1:02d}.{1}51 worker/{0} :: ",
        "#{0}# I0112 07:08:09.123456 140001 metric_logger.py:226] ",
        "2026-01-12T07:08:09.1Z stdout F @{0}@ ",
    ],
)
def test_a_prefix_that_no_table_has_is_learnt_and_names_no_rank(prefix: str) -> None:
    said = [
        *AROUND_LINES[:3],
        "Config param dtype: x",
        "Config param remat: full",
        *AROUND_LINES[3:],
    ]
    lines = [prefix.format(rank, at) + line for at, line in enumerate(said) for rank in (1, 0)]
    report = read_every_way(text_of(lines))
    holds_all(replace(report, config={"steps": report.config["steps"]}))
    assert {each.label for each in report.steps} == {""}


def test_a_text_that_varies_is_no_prefix() -> None:
    lines = [
        *(f"{word} and then Config param {word}: 1" for word in ("one", "two", "three")),
        *(f"{'x' * at}> {step(at)}" for at in range(1, 9)),
        *(f"[Rampup Batch Size Phase] {step(at)}" for at in range(9, 20)),
        "the variable NCCL_IB_HCA=mlx5 is not a line of printenv",
        "four and then ValueError: x",
    ]
    report = read_every_way(text_of(lines))
    assert (report.env, len(report.steps)) == ({}, 19)
    assert [each.kind for each in report.steps][8:] == ["rampup"] * 11
    assert not [each for each in report.findings if each.cls == "python-exception"]
