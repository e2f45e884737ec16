"""What trials tell of their nodes, through a campaign: where nodes differ, what a change begins."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.model.environment import NodeEnvironment
from pytest_xlatune.model.message import Message, sentence
from pytest_xlatune.model.profile import Profile, profile
from pytest_xlatune.model.result import Outcome
from pytest_xlatune.tasks.reports import publish
from tests.helpers import scripted


def node(name: str, jaxlib: str = "0.9.0", kernel: str = "6.8", **more: str) -> NodeEnvironment:
    return NodeEnvironment(name=name, node={"kernel": kernel}, packages={"jaxlib": jaxlib, **more})


def swept(
    folder: Path,
    tells: Callable[[int, str], Sequence[NodeEnvironment]],
    *,
    head: Callable[[int], str] = lambda _: "",
    profiles: tuple[Profile, ...] = scripted.PROFILES,
    nodes: tuple[str, ...] = (),
) -> Campaign:
    """Run a sweep whose trials tell what `tells` says of their number and their name."""
    ran: list[str] = []

    def script(trial_id: str, attempt: int) -> tuple[str, Outcome]:
        ran.append(trial_id)
        text, outcome = scripted.ordinary(trial_id, attempt)
        return head(len(ran)) + text, replace(outcome, nodes=nodes)

    executor = scripted.FakeExecutor(script)
    executor.tells = lambda trial_id: tells(len(ran), trial_id)
    made = scripted.campaign(folder, executor, profiles=profiles)
    scripted.run(made)
    return made


def views(made: Campaign, folder: Path) -> tuple[dict[str, Any], str]:
    """The record in the JSON of the leaderboard, and its markdown."""
    publish(made.folder, folder / "reports")
    place = folder / "reports" / "pretend"
    board = json.loads((place / "leaderboard.json").read_text(encoding="utf-8"))
    text = (place / "leaderboard.md").read_text(encoding="utf-8")
    return board["record"], " ".join(text.replace("\\", "").split())


def said_of(record: dict[str, Any]) -> list[str]:
    """The sentences of what changed on the way."""
    return [sentence(Message.from_json(each)) for each in record["changes"]]


def epochs(made: Campaign) -> list[int]:
    return [each.epoch for each in made.view().history]


def test_nodes_that_differ_are_named_and_no_change(tmp_path: Path) -> None:
    nodes = [node("n1"), node("n2"), node("n3", jaxlib="0.10.2", kernel="6.9")]
    made = swept(tmp_path, lambda *_: nodes)
    record, text = views(made, tmp_path)
    assert record["differing"] == [
        "kernel: 6.8 on n1, n2, 6.9 on n3",
        "jaxlib: 0.9.0 on n1, n2, 0.10.2 on n3",
    ]
    assert "The nodes differ: kernel: 6.8 on n1, n2, 6.9 on n3; jaxlib: 0.9.0 on n1, n2" in text
    assert set(epochs(made)) == {0}
    assert [each["name"] for each in record["nodes"]] == ["n1", "n2", "n3"]


@pytest.mark.parametrize("is_upgraded", [False, True], ids=["as it was", "upgraded meanwhile"])
def test_a_node_that_tells_nothing_once_is_as_it_was(is_upgraded: bool, tmp_path: Path) -> None:
    """Its probe was late: that is no change, and its next answer is held against its last."""

    def tells(number: int, _: str) -> Sequence[NodeEnvironment]:
        late = [] if number == 3 else [node("n2", "0.10" if is_upgraded and number > 3 else "0.9")]
        return [node("n1"), *late]

    made = swept(tmp_path, tells, nodes=("n1", "n2"))
    record, _ = views(made, tmp_path)
    assert said_of(record) == (["on n2 changed: jaxlib 0.9 -> 0.10"] if is_upgraded else [])
    assert set(epochs(made)) == ({0, 1} if is_upgraded else {0})


@pytest.mark.parametrize("variable", ["LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PATH"])
def test_a_profile_that_asks_for_other_libraries_begins_no_epoch(
    variable: str, tmp_path: Path
) -> None:
    """Else every trial of it, and every one after it, would be alone in an epoch."""
    other = profile("other", "--xla_other=1", env={variable: "/opt/other"})

    def tells(_: int, trial_id: str) -> Sequence[NodeEnvironment]:
        return [node("n1", jaxlib="0.11.0" if trial_id.startswith("other") else "0.9.0")]

    made = swept(tmp_path, tells, profiles=(*scripted.PROFILES, other))
    record, _ = views(made, tmp_path)
    assert said_of(record) == []
    assert set(epochs(made)) == {0}
    assert record["nodes"][0]["packages"] == {"jaxlib": "0.9.0"}


def test_a_driver_that_changes_below_such_a_profile_still_does(tmp_path: Path) -> None:
    other = profile("other", "--xla_other=1", env={"LD_LIBRARY_PATH": "/opt/other"})
    made = swept(
        tmp_path,
        lambda number, _: [node("n1", kernel="6.8" if number < 3 else "6.9")],
        profiles=(*scripted.PROFILES, other),
    )
    record, _ = views(made, tmp_path)
    assert said_of(record) == ["on n1 changed: kernel 6.8 -> 6.9"]
