"""The network between slices among the facts of an evidence run, and among those of a winner."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from pytest_xlatune.tasks.artifacts import read_attempt
from tests.helpers.megascale_traces import MS, Made, traffic
from tests.tasks.test_explained import WINNER, explained


def test_the_network_between_slices_explains_a_winner(tmp_path: Path) -> None:
    def made(latency_us: int, done: int, **more: Any) -> bytes:
        messages = traffic(random.Random(3), count=200)
        for each in messages:
            each.latency_us *= latency_us
        ops = [
            (0, "send.1", "host_a", 1000, 100),
            (0, "recv.1", "host_a", 1100, 100),
            (0, "recv-done.1", "host_a", done, 3000),
        ]
        return Made(messages=messages, ops=ops, **more).data()

    slow = made(4, 2000, copies=[(8 * MS, 2500, "4096B")])
    found = explained(tmp_path, traces=(slow, made(1, 9000)))
    told = [each.text for each in found.facts if each.kind == "network"]
    assert [each.partition(":")[0] for each in told] == [
        "messages between slices",
        "stall of transfers",
        "least slack of a transfer",
        "symptoms that are gone",
    ]
    assert told[2:] == [
        "least slack of a transfer: 0.001 -> 0.008 ms",
        "symptoms that are gone: copies",
    ]
    assert found.profile == WINNER.id
    assert {each.artifacts for each in found.facts} == {
        tuple(f"{tmp_path.parent.name}/{tmp_path.name}/run/{at}" for at in (0, 1))
    }
    evidence = read_attempt("a", tmp_path, "run/0")
    [fact] = [each for each in evidence.facts if each.startswith("network: ")]
    assert fact.endswith("symptoms: copies")
