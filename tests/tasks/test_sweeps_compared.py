"""Two ledgers of one cell at two times: what is compared, what is not, and what is told of it."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.ledger import LEDGER
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.result import Outcome
from pytest_xlatune.studies.tuning import TuningStudy
from pytest_xlatune.tasks.compare_sweeps import compare_sweeps
from pytest_xlatune.tasks.publish import read_known
from tests.helpers import scripted
from tests.helpers.scripted import OK, ScriptedExecutor, campaign, log, run
from tests.tasks.test_sides import side

SECRET = "plant-one-two-three"


def swept(root: Path, image: str, *, fast: float, base: float = 1000.0, more: str = "") -> Path:
    """Run a sweep whose arms have these speeds; return the folder of its ledger."""

    def script(trial_id: str, attempt: int) -> tuple[str, Outcome]:
        speed = base * (fast if trial_id.startswith("fast") else 1.0)
        return log(speed * (1 + (sum(trial_id.encode()) % 7 - 3) / 2000)), OK

    cell = replace(
        scripted.CELL,
        image=image,
        deployed={**scripted.CELL.deployed, "HF_TOKEN": SECRET, "NCCL_ALGO": image[-1]},
    )
    profiles = (
        *scripted.PROFILES,
        profile(f"only-{image[-1]}", "--xla_only=1"),
        profile("renamed", f"--xla_renamed={image[-1]}"),
    )
    study = TuningStudy(cell=cell, profiles=profiles, budget=40)
    made = campaign(root, ScriptedExecutor(script), cell=cell, study=study)
    run(made)
    return made.setup.folder


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = tmp_path_factory.mktemp("two")
    return (
        swept(root / "then", "train:1", fast=1.10),
        swept(root / "now", "train:2", fast=1.03, base=1050.0),
    )


def told(capsys: pytest.CaptureFixture[str], a: Path, b: Path, *more: str) -> dict[str, object]:
    assert main(["compare", str(a), str(b), "--json", *more]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_the_change_of_each_arm_is_told_with_its_interval(two: tuple[Path, Path]) -> None:
    found = compare_sweeps(*two)
    then, now = map(read_known, two)
    by_arm = {each.now.arm: each for each in found.arms}
    assert set(by_arm) == {"fast", "same"}
    for arm, each in by_arm.items():
        assert (each.then, each.now) == (then.conclusion.verdict(arm), now.conclusion.verdict(arm))
        assert (each.change is None) == (None in (each.then.ci95, each.now.ci95))
    fast = by_arm["fast"].change
    assert fast is not None
    assert fast[0] == pytest.approx(1.03 / 1.10 - 1, abs=0.004)
    assert fast[2] < 0, "it gains less now"
    assert found.reference is not None
    assert found.reference[1] < math.expm1(math.log(1.05)) < found.reference[2]
    assert found.only == (("only-1",), ("only-2",))
    assert found.other_settings == ("renamed",)
    assert {(e.what, e.then, e.now) for e in found.differs} >= {
        ("image", "train:1", "train:2"),
        ("deployed NCCL_ALGO", "1", "2"),
    }


def test_it_is_read_in_a_terminal_and_as_json(
    two: tuple[Path, Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "220")
    assert main(["compare", *map(str, two)]) == 0
    said = capsys.readouterr().out
    for words in (
        "Winner then (A): ★ fast +10",
        "Winner now (B): ★ fast +3",
        "No block holds trials of both sweeps",
        "smaller gain now",
        "only in A: only-1",
        "other settings under the same name, not compared: renamed",
        "train:2",
    ):
        assert words in said
    assert SECRET not in said
    found = told(capsys, two[0] / LEDGER, two[1])
    assert SECRET not in json.dumps(found)
    compared = compare_sweeps(*two)
    assert json.dumps(found) == json.dumps(compared.to_json())


def test_what_cannot_be_compared_is_refused_with_what_to_do(
    two: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = side(tmp_path / "logs", 1000.0, 1001.0)
    nothing = tmp_path / LEDGER
    nothing.touch()
    for argv, words in (
        ([two[0], logs], "one of them is a ledger, the other is not"),
        ([two[0], two[0] / LEDGER], "the same ledger"),
        ([*two, "--gate", "0.01"], "Gate(stored=...)"),
        ([two[0].parents[1], two[1]], "name one of"),
        ([nothing, two[1]], "is no ledger of a sweep: it is empty"),
    ):
        assert main(["compare", *map(str, argv)]) in (2, 3), words
        assert words in capsys.readouterr().err


def test_a_copy_of_a_ledger_under_another_name_is_one(
    two: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "january.jsonl"
    shutil.copy(two[0] / LEDGER, copy)
    found = told(capsys, copy, two[1])
    assert found["only_a"] == ["only-1"]
    assert "copy" not in str(found["notes"])
    assert "one is a copy: a job that stands in both" in str(told(capsys, copy, two[0])["notes"])


def test_the_slots_of_a_sweep_are_told_apart(tmp_path: Path) -> None:
    nodes = tuple(f"node00{number}" for number in range(1, 5))
    cell = replace(scripted.CELL, nodelist=nodes[:2])
    folders = []
    for slots in ((), (nodes[:2], nodes[2:])):
        study = TuningStudy(cell=cell, profiles=scripted.PROFILES, budget=40, slots=slots)
        root = tmp_path / f"{len(slots)}"
        made = campaign(root, ScriptedExecutor(), cell=cell, study=study)
        made.turn()
        folders.append(made.setup.folder)
    found = compare_sweeps(*folders)
    assert [(each.then, each.now) for each in found.differs if "slots" in each.what] == [
        ("node[001-002]", "node[001-002]; node[003-004]")
    ]


def test_a_sweep_that_has_only_begun_is_told_to_be_preliminary(
    two: tuple[Path, Path], tmp_path: Path
) -> None:
    begun = campaign(tmp_path / "begun", ScriptedExecutor())
    for _ in range(2):
        begun.turn()
    found = compare_sweeps(two[0], begun.setup.folder)
    assert "B is not over: its verdicts are preliminary" in found.notes
    assert found.reference is None
    assert all(each.change is None for each in found.arms)
