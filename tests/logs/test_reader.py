"""The reader while it reads: phases, settings, findings, and a memory that is bounded."""

from __future__ import annotations

import pytest

from pytest_xlatune.logs import LogReader, Phase, read_log
from pytest_xlatune.logs._sieve import LineFilter
from pytest_xlatune.logs._signatures import table
from tests.helpers.log_lines import ABSL, read, read_every_way, step, text_of


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


def test_a_closed_reader_takes_no_more() -> None:
    reader = LogReader()
    reader.close()
    reader.close()
    with pytest.raises(ValueError, match="was closed"):
        reader.feed(b"x")


def test_settings_are_those_of_rank_0_and_the_last_word() -> None:
    lines = [
        "1: NCCL_DEBUG=WARN",
        "0: NCCL_DEBUG=INFO",
        "2: NCCL_DEBUG=TRACE",
        "0: XLA_FLAGS=--xla_a=1",
        " 0: XLA_FLAGS=--xla_a=1 --xla_b='x y'",
        "RCCL_X=1 2",
        "0: (A pid=7) JAX_PLATFORMS=cpu",
        "XLA_PYTHON_CLIENT_MEM_FRACTION=.93",
        "the variable NCCL_IB_HCA=mlx5 is not a line of printenv",
        "Config param run_name: a: b",
        ABSL + "Config param steps: 15",
        "PATH=/usr/bin",
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
    assert next(each.step for each in whole[0].steps) == 3


def test_the_tail_is_what_is_neither_step_nor_harmless() -> None:
    lines = ["first", step(0), "n1 NCCL INFO bye", "strange end", ""]
    assert read_log([text_of(lines)]).tail == ("first", "strange end")


def test_the_sieve_lets_every_word_through_in_any_case() -> None:
    sieve = LineFilter(table().words)
    for word in table().words:
        assert sieve.may_hold(f"12 {word.upper()}!".encode())
        assert sieve.lines(f"dull 1\n{word}\ndull 2\n".encode()) == (3, [(1, word.encode())])
