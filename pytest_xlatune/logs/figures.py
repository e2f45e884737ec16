"""The figure that a protocol scores but step records lack: bus bandwidth.

Pure: lines in, figures out. A log is read for them when its attempt is over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pytest_xlatune.logs.grammar import plain_segments, split_origin
from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.metric import BUSBW, Logged, Metric

_NUMBER = r"[-+]?(?:\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|[nN]a[nN]|[iI]nf)"
# the line of nccl-tests:  # Avg bus bandwidth    : 360.97
_AVERAGE = re.compile(rf"# Avg bus bandwidth\s*:\s*({_NUMBER})")
# its line about errors:  # Out of bounds values : 12 FAILED
_FAILED = re.compile(r"# Out of bounds values\s*:\s*([\d,]{1,18})\s+(?i:FAILED)")
# A row of its table: size, count and type, then reduction and root if the
# collective has them; then, out of place and in place, time, algbw, busbw and #wrong, which is no
# number if nothing was checked:
#   8589934592  2147483648  float  sum  -1  44651  192.38  360.72  0  44590  192.64  361.21  N/A
_PLACE = r"(?:\s+[\d.e+]+|\s+inf){3}\s+(\S{1,18})"
_SIZE = re.compile(
    rf"\s*(?P<size>\d+)\s+\d+\s+[a-z]\w+(?:\s+[a-z]\w*)?(?:\s+-?\d+)??{_PLACE}{_PLACE}\s*$"
)


def read_figures(lines: Iterable[bytes], metric: Metric) -> Logged:
    """Return the figure of a metric in a log; none if the step records have it.

    Of several starts, the last counts; a last line without its end is ignored.
    """
    complete_lines = (line for line in lines if line.endswith(b"\n"))
    return _bus_bandwidth(complete_lines) if metric is BUSBW else Logged()


def _bus_bandwidth(lines: Iterable[bytes]) -> Logged:
    """Read the table of nccl-tests or rccl-tests: the average for one size, without errors."""
    logged, sizes, wrong, failed = Logged(), set[str](), 0, 0
    for line in lines:
        for segment in plain_segments(line):
            _, text = split_origin(segment)
            if row := _SIZE.match(text):
                sizes.add(row["size"])
                wrong += sum(int(count) for count in row.group(2, 3) if count.isdecimal())
            elif summary := _FAILED.search(text):
                failed = max(int(summary[1].replace(",", "") or 0), 1)
            elif average := _AVERAGE.search(text):
                problem = _problem(sizes, wrong or failed)
                logged = Logged(value=float(average[1]), problem=problem)
                sizes, wrong, failed = set(), 0, 0
    if wrong or failed:  # the test was cut, or its summary is in another order
        return Logged(value=logged.value, problem=_problem(sizes, wrong or failed))
    return logged


def _problem(sizes: set[str], wrong: int) -> Message | None:
    if wrong:
        return say(
            "the test counts {wrong} wrong values: the data are corrupt, its speed does not count",
            wrong=wrong,
        )
    return (
        say(
            "the test measured {sizes} sizes, and their average is no speed; measure one: give "
            "-b and -e the same size",
            sizes=len(sizes),
        )
        if len(sizes) > 1
        else None
    )
