"""What is beside the steps: the table of nccl-tests or rccl-tests, and MaxText's metrics file."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from pytest_xlatune.logs.figures import read_figures
from pytest_xlatune.logs.grammar import parse_metrics
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.metric import BUSBW, TGS, Logged, Metric

# the layout of nccl-tests 2.13:  all_reduce_perf -b 8G -e 8G -f 2 -g 8
TEST = (Path(__file__).parents[1] / "data" / "nccl_tests.txt").read_text(encoding="utf-8")
ROW = TEST.splitlines()[9]
BAD_ROW = ROW.replace("    0    41619", "   17    41619") + "\n"
# before 2.13: no root where there is none, and the greatest error instead of a count
OLD_ROW = ROW.replace("      -1 ", " ").replace("     0", "  2e-07")
OLD = TEST.replace(ROW, OLD_ROW)


def read(text: str, metric: Metric) -> Logged:
    return read_figures(text.encode().splitlines(keepends=True), metric)


WRONG = TEST.replace("    0    41619", "   17    41619")
# a table of a test -> what is wrong with it
TABLES = {
    "one size": (TEST, ""),
    "below srun -l": ("".join(f"0: {line}\n" for line in TEST.splitlines()), ""),
    "a collective without reduction": (TEST.replace("     sum      -1", ""), ""),
    "not checked": (TEST.replace("    0    41619", "  N/A    41619"), ""),
    "corrupt data": (WRONG, "17 wrong values"),
    "two sizes": (
        TEST.replace(ROW, f"{ROW}\n{ROW.replace('8589934592', '4294967296')}"), "2 sizes"),
    "the last of two runs": (WRONG.replace("360.97", "12.5") + TEST, ""),
    "a summary's FAILED": (TEST.replace("0 OK", "12 FAILED"), "12 wrong values"),
    "in other letters": (TEST.replace("0 OK", "1,200 failed"), "1200 wrong"),
    "a summary alone, its rows left out": (
        TEST.replace(f"{ROW}\n", "").replace("0 OK", "3 FAILED"), "3 wrong values"),
    "FAILED below the average": (f"{TEST}# Out of bounds values : 7 FAILED\n", "7 wrong"),
    "a second test, corrupt and cut": (TEST + BAD_ROW, "17 wrong"),
    "the errors of an old table": (OLD, ""),
    "an old table of two sizes": (
        OLD.replace(OLD_ROW, f"{OLD_ROW}\n{OLD_ROW.replace('8589934592', '1048576')}"), "2 sizes"),
    "a count of 5000 digits is no row": (
        ROW.replace("    0    41619", f"  {'9' * 5000}    41619") + "\n" + TEST, ""),
}  # fmt: skip


@pytest.mark.parametrize(("text", "said"), TABLES.values(), ids=TABLES)
def test_bus_bandwidth_is_the_average_of_one_size(text: str, said: str) -> None:
    found = read(text, BUSBW)
    assert found.value == 360.97
    assert said in sentence(found.problem)
    assert bool(said) == bool(found.problem)


def test_a_table_that_was_cut_has_no_bandwidth() -> None:
    assert read(TEST[: TEST.index("# Out of bounds")], BUSBW) == Logged()
    assert read("srun: error: n1: task 0: Killed\n", BUSBW).problem is None
    assert read(TEST, TGS) == Logged()


LOSS = 7.12345678


def line(step: float, **more: object) -> str:
    values = {
        "step": step,
        "run_name": "r",
        "learning/loss": LOSS,
        "perf/step_time_seconds": 0.123456789,
        "perf/per_device_tokens_per_sec": 8294.4001,
        "perf/per_device_tflops_per_sec": 0.0345,
    }
    return json.dumps(values | more) + "\n"


# the text of a file -> step, start and loss of its records
FILES: dict[str, tuple[str, list[tuple[int, int, float | None]]]] = {
    "a whole line": (line(3.0), [(3, 0, LOSS)]),
    "a missing value": ('{"step": 2, "perf/step_time_seconds": "fast"}', [(2, 0, None)]),
    "a loss that is infinite": (line(0, **{"learning/loss": math.inf}), [(0, 0, math.inf)]),
    "a loss of NaN": (line(0, **{"learning/loss": math.nan}), [(0, 0, math.nan)]),
    "the last start counts": (
        "".join(line(each) for each in (0, 1, 2, 1, 2, 3)),
        [(1, 1, LOSS), (2, 1, LOSS), (3, 1, LOSS)]),
    **{f"torn at {cut}": (line(0) + line(1)[:cut], [(0, 0, LOSS)]) for cut in range(1, 60, 7)},
    **{text or "nothing": (text, [])
       for text in ("", "\n\n", "[1]\n", "null", '{"step": NaN}', '{"step": true}')},
}  # fmt: skip


@pytest.mark.parametrize(("text", "records"), FILES.values(), ids=FILES)
def test_a_file_is_read_as_far_as_it_tells_steps(
    text: str, records: list[tuple[int, int, float | None]]
) -> None:
    found = parse_metrics(text)
    told = [(each.step, each.start, each.loss) for each in found]
    assert repr(told) == repr(records)  # NaN equals NaN
    figures = {(each.step_s, each.tgs, each.tflops) for each in found}
    assert figures <= {(0.123456789, 8294.4001, 0.0345), (None, None, None)}, "not rounded"
