"""What stands in front of a line or around it: runtimes, launchers, loggers, JSON envelopes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from pytest_xlatune.logs import LogReport
from tests.helpers.log_lines import read_every_way, step, text_of

LINES = [
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
    "logging in brackets": "[2026-01-12 07:08:09,123][INFO] ",
    "basicConfig": "INFO:root:",
    "srun below CRI": "2026-01-12T07:08:09.1Z stdout F  0: ",
    "ts": "Jan 12 07:08:09 ",
    "a date and a time": "2026-01-12 07:08:09.123 ",
    "a date and a time in brackets": "[2026-01-12 07:08:09] ",
    "a time": "07:08:09 ",
    "ISO": "2026-01-12T07:08:09 ",
    "colours": "\x1b[0;31m",
    "srun's padded label": " 0: ",
    "absl below compose": "node-7 | I0112 07:08:09.123456 140001 metric_logger.py:226] ",
}

ENVELOPES: dict[str, Callable[[str], str]] = {
    "docker's json-file": lambda line: json.dumps({"log": f"{line}\n", "stream": "stderr"}),
    "Cloud Logging": lambda line: json.dumps({"insertId": "x", "textPayload": line}),
    "Cloud Logging, structured": lambda line: json.dumps(
        {"jsonPayload": {"message": line, "logger": "x"}, "labels": {"a": "b"}}
    ),
    "a structured logger below CRI": lambda line: (
        "2026-01-12T07:08:09.1Z stdout F " + json.dumps({"level": "info", "msg": line})
    ),
    "an array of `gcloud logging read`": lambda line: (
        json.dumps({"insertId": "x", "textPayload": line, "severity": "INFO"}, indent=2) + ","
    ),
    "the same, structured": lambda line: (
        json.dumps({"jsonPayload": {"message": line}, "labels": {"a": "b"}}, indent=2) + ","
    ),
    "elements of an array": lambda line: json.dumps({"message": line}) + ",",
}


def holds_all(report: LogReport) -> None:
    assert report.xla_flags == "--xla_a=1 --xla_b=2"
    assert report.env == {"NCCL_DEBUG": "INFO"}
    assert report.config == {"steps": "15"}
    assert [(each.step, each.tgs) for each in report.steps] == [(0, 990.5), (1, 990.5), (2, 990.5)]
    classes = [each.cls for each in report.findings]
    assert classes == ["numerical-failure", "python-traceback", "python-exception", "killed"]
    assert report.findings[2].detail == "ValueError: a shape"


@pytest.mark.parametrize("around", [*PREFIXES, *ENVELOPES])
def test_what_stands_around_a_line_hides_nothing(around: str) -> None:
    wrapped = ENVELOPES.get(around) or PREFIXES[around].__add__
    holds_all(read_every_way(text_of(map(wrapped, LINES))))


@pytest.mark.parametrize(
    "around",
    ['time="07:08" msg="{}"', "b'{}\\n'", '2026-01-12,"{}",INFO', '[{{"log": "{}"}}, {{}}]'],
)
def test_a_loss_that_something_unknown_closes_is_no_less_nan(around: str) -> None:
    lines = [around.format(each) for each in (step(0), step(1), step(2, loss="nan"))]
    report = read_every_way(text_of(lines))
    assert [each.cls for each in report.findings] == ["numerical-failure"]


def test_of_a_line_that_cri_cuts_whole_fields_count_and_no_cut_flags() -> None:
    front, flags, said = "2026-01-12T07:08:09.123456789Z stdout ", "XLA_FLAGS=--xla_a=1", step(3)
    lines = [f"{front}P {flags}", f"{front}F 5", f"{front}P {said[:90]}", f"{front}F {said[90:]}"]
    report = read_every_way(text_of(lines))
    assert report.xla_flags is None
    assert "the line of XLA_FLAGS is cut and was not used" in report.notes
    assert [(each.step, each.step_s, each.loss) for each in report.steps] == [(3, 28.95, None)]


def test_a_torn_envelope_tells_no_step_that_it_does_not_end() -> None:
    whole = json.dumps({"log": step(7, loss="nan") + "\n", "stream": "stderr"})
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
    said = [*LINES[:3], "Config param dtype: x", "Config param remat: full", *LINES[3:]]
    lines = [prefix.format(rank, at) + line for at, line in enumerate(said) for rank in (1, 0)]
    report = read_every_way(text_of(lines))
    holds_all(replace(report, config={"steps": report.config["steps"]}))
    assert {each.label for each in report.steps} == {""}


def test_behind_a_prefix_that_was_learnt_a_known_one_names_the_rank() -> None:
    lines = [f"job7> {rank}: {step(at, tgs=900 + rank)}" for at in range(9) for rank in (3, 1, 0)]
    report = read_every_way(text_of(lines))
    assert [(each.label, each.tgs) for each in report.steps] == [("0", 900.0)] * 9


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
