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
# A row of its table: size, count and type, then reduction and root if the collective has them;
# then, out of place and in place, time, algbw, busbw and #wrong, or the largest error before
# nccl-tests 2.13:
#   8589934592  2147483648  float  sum  -1  44651  192.38  360.72  0  44590  192.64  361.21  0
#   8589934592  2147483648  float  sum      44651  192.38  360.72  2e-07  44590  192.64  361.21  nan
_SIZE = re.compile(
    r"\s*(?P<size>\d+)\s+\d+\s+(?P<type>[a-z]\w+)(?:\s+[a-z]\w*)?(?:\s+-?\d+)??"
    r"(?P<places>(?:(?:\s+(?:[\d.e+]+|inf)){3}\s+"
    r"(?:\d{1,18}|N/A|\d+e[-+]\d{1,4}\*?|-?(?:nan|inf)\*?)){2})\s*$"
)
_PLACE_COLUMNS = 4  # columns of a place; the last is #wrong or the error
# Largest error that the old table allows, by type (DeltaMaxValue of nccl-tests); integers allow
# none. Comparing with nan is false, so the old summary calls nan "0 OK".
_ALLOWED = {"half": 1e-2, "bfloat16": 1e-2, "float": 1e-5, "double": 1e-12}


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
                last_columns = row["places"].split()[_PLACE_COLUMNS - 1 :: _PLACE_COLUMNS]
                wrong += sum(_wrong(printed, row["type"]) for printed in last_columns)
            elif summary := _FAILED.search(text):
                failed = max(int(summary[1].replace(",", "") or 0), 1)
            elif average := _AVERAGE.search(text):
                problem = _problem(sizes, wrong or failed)
                logged = Logged(value=float(average[1]), problem=problem)
                sizes, wrong, failed = set(), 0, 0
    if wrong or failed:  # the test was cut, or its summary is in another order
        return Logged(value=logged.value, problem=_problem(sizes, wrong or failed))
    if sizes and logged.value is None:
        return Logged(
            problem=say(
                "the table of the test has {sizes:+size} and no line `# Avg bus bandwidth : "
                "NUMBER` after it: the test was cut, or its last lines were left out",
                sizes=len(sizes),
            )
        )
    return logged


def _wrong(printed: str, type_: str) -> int:
    """Return the number of wrong values in the last column: `17`, `N/A`, `2e-07`, `nan`.

    An error beyond what its type allows, or with rccl-tests' asterisk, counts as one.
    """
    if printed == "N/A":
        return 0
    if printed.isdecimal():
        return int(printed)
    error = float(printed.removesuffix("*"))
    return 0 if error <= _ALLOWED.get(type_, 0.0) and printed[-1] != "*" else 1


def _problem(sizes: set[str], wrong: int) -> Message | None:
    if wrong:
        return say(
            "the test counts {wrong} wrong values: the data are corrupt, so it has no speed",
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
