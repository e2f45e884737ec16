"""Lines of a log, and a reader of them that is asked in every way at once."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_xlatune.logs import LogReader, LogReport
from pytest_xlatune.logs.patterns import step_pattern
from pytest_xlatune.model.result import Finding

ABSL = "I0112 07:08:09.123456 140001 metric_logger.py:226] "


def step(number: int, tgs: float = 990.5, loss: str = "7.125") -> str:
    return (
        f"completed step: {number}, seconds: 28.950, TFLOP/s/device: 261.250, "
        f"Tokens/s/device: {tgs:.3f}, total_weights: 458752, loss: {loss}"
    )


def text_of(lines: Iterable[str]) -> bytes:
    return "".join(f"{each}\n" for each in lines).encode()


def read(
    log: bytes, cuts: Iterable[int], *, is_in_full: bool = False, pattern: str = ""
) -> tuple[LogReport, Finding | None]:
    """Return the report, and the line after which the program cannot go on.

    `is_in_full`: no line of a step is read by the shape of another.
    """
    reader = LogReader(step_pattern(pattern) if pattern else None)
    if is_in_full:
        reader._step_shapes = None
    at = 0
    for cut in [*sorted(cuts), len(log)]:
        reader.feed(log[at:cut])
        at = cut
    reader.close()
    return reader.report(), reader.fatal


def read_every_way(log: bytes) -> LogReport:
    """Read whole, in full, byte by byte and in two chunks; all must agree."""
    whole = read(log, [])
    assert repr(read(log, [], is_in_full=True)) == repr(whole)
    assert repr(read(log, range(1, len(log)))) == repr(whole)  # repr: NaN equals NaN
    for cut in range(0, len(log), max(len(log) // 12, 1)):
        assert repr(read(log, [cut])) == repr(whole)
    return whole[0]
