"""The export to Weights & Biases, offline, read back from its own files: tox -e wandb."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.guests.wandb import WandbExport
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.report.exports import check_exports
from pytest_xlatune.tasks.cell_report import read_cell_report
from pytest_xlatune.tasks.reports import publish
from tests.helpers.scripted import FakeExecutor, campaign, run

wandb = pytest.importorskip("wandb", reason="W&B is not installed: tox -e wandb has it")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the client


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)


BLOCK, FRAME, HEAD = 32_768, 7, 7  # bytes; a file is a log of LevelDB behind a head of its own
WHOLE, FIRST, LAST = 1, 2, 4


def records(folder: Path) -> list[Any]:
    """Every record of an offline run, which `wandb sync` would send.

    Format: github.com/google/leveldb, doc/log_format.md.
    """
    from wandb.proto import wandb_internal_pb2

    (path,) = folder.glob("*.wandb")
    data, at, found, parts = path.read_bytes(), HEAD, [], b""
    assert data[:4] == b":W&B"
    while at + FRAME <= len(data):
        if BLOCK - at % BLOCK < FRAME:  # the rest of a block is empty
            at += BLOCK - at % BLOCK
            continue
        size, kind = struct.unpack("<HB", data[at + 4 : at + FRAME])
        part = data[at + FRAME : at + FRAME + size]
        parts = part if kind in (WHOLE, FIRST) else parts + part
        at += FRAME + size
        if kind in (WHOLE, LAST):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            found.append(record)
    return found


def summary_of(found: list[Any]) -> dict[str, Any]:
    items = [item for each in found for item in each.summary.update]
    return {item.key or item.nested_key[0]: json.loads(item.value_json) for item in items}


def test_the_figures_are_read_back(tmp_path: Path) -> None:
    held = campaign(tmp_path, FakeExecutor())
    run(held)
    check_exports(("wandb",))
    written = publish(held.folder, tmp_path / "reports", exports=("csv", "wandb"))
    kept = json.loads(written[-1].read_text(encoding="utf-8"))
    assert written[-1].name == "leaderboard.wandb.json"
    verdicts = {each.arm: each for each in read_cell_report(held.folder).conclusion.verdicts}
    assert set(kept["arms"]) == {*verdicts, "baseline-deployed"}
    for arm, verdict in verdicts.items():
        found = records(tmp_path / kept["arms"][arm]["folder"])
        summary = summary_of(found)
        assert (summary["delta"], summary["tgs"]) == (verdict.delta, verdict.tgs)
        assert (summary["verdict"], summary["is_winner"]) == (verdict.kind, arm == "fast")
        (one,) = [each.run for each in found if each.HasField("run")][:1]
        assert (one.run_group.startswith("pretend tuning"), one.project) == (True, "pretend")
        text = b"".join(each.SerializeToString() for each in found)
        assert b"pytest" not in text, "no command line"


def test_without_a_key_nothing_begins_and_no_prompt_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(ConfigError, match="set WANDB_API_KEY"):
        WandbExport().check()
