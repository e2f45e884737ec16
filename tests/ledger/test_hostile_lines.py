"""Whatever a line or a record holds, it is read or refused with its place: no other error."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.ledger import LedgerEntry, _entry, _line
from pytest_xlatune.ledger.now import NOW, Now, read_now
from pytest_xlatune.ledger.state import replay
from pytest_xlatune.model import record, redact
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.environment import NodeEnvironment
from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.reason import verbatim
from pytest_xlatune.model.record import Record
from pytest_xlatune.stats.noise import Noise
from pytest_xlatune.sweep.earlier import CALIBRATION, Calibration, read_calibration
from tests.helpers.probes import make_cell
from tests.helpers.scripted import ScriptedExecutor, campaign, run
from tests.helpers.stories import STORY

MARK = "the hostile value"
# as they stand in a text of JSON; the last three are none of ours
HOSTILE = {
    "null": "null",
    "a text": '"nan"',
    "a list": "[]",
    "a mapping": "{}",
    "a negative number": "-1",
    "true": "true",
    "an integer of 400 digits": "9" * 400,
    "a number beyond all floats": "1e999",
    "an integer of 5,000 digits": "9" * 5000,
    "900 brackets": "[" * 900 + "]" * 900,
    "100,000 brackets": "[" * 100_000,
    "NaN": "NaN",
    "Infinity": "-Infinity",
}

UNREAD = ("100,000 brackets", "an integer of 5,000 digits")  # comes out of no reader of JSON


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Give each place of a value of JSON: the container and the key."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in list(keys):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


@pytest.mark.parametrize("hostile", HOSTILE)
def test_each_place_of_each_line_may_hold_anything(hostile: str) -> None:
    read, refused = 0, list[str]()
    for event in STORY:
        data = json.loads(_line(event, 1.0))
        for container, key in places(data):
            kept, container[key] = container[key], MARK
            line = json.dumps(data).replace(f'"{MARK}"', HOSTILE[hostile]).encode() + b"\n"
            container[key] = kept
            try:
                entry = _entry(line, number=1, path=Path("ledger.jsonl"))
            except LedgerError as error:
                refused.append(str(error))
            else:
                read += 1
                _line(entry.event, entry.at_s)
    assert refused
    assert [each for each in refused if not each.startswith("ledger.jsonl:1: ")] == []
    assert max(map(len, refused)) < 1000
    if hostile in (*UNREAD, "NaN", "Infinity"):
        assert not read


# as a text of JSON has it
ORDERS = '"a\\u001b[2J\\u009b1m\\r\\u202e\\n::error::b\\n  ::add-mask::c\\n##[error]d"'
AN_ORDER = re.compile(r"(?m)[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]|\r(?!\n)|##\[|^\s*::")


@pytest.mark.parametrize(
    "said",
    [
        *('"config_tag":""', '"sweep":"pretend"', '"job_ids":["1"]', '"nodes":[]', '"image":""'),
        *('"note":""', '"seen":"\'1\'"', '"reason":""', '"launcher":"command"'),
    ],
)
def test_a_ledger_gives_no_orders_to_a_terminal_a_document_or_a_pipeline(
    said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    each = campaign(tmp_path, ScriptedExecutor())
    run(each)
    ledger = each.setup.folder / "ledger.jsonl"
    text = ledger.read_text(encoding="utf-8")
    name, _, value = said.partition(":")
    assert said in text
    orders = f"[{ORDERS}]" if value[0] == "[" else ORDERS
    ledger.write_text(text.replace(said, f"{name}:{orders}"), encoding="utf-8")
    reports = tmp_path / "reports"
    capsys.readouterr()
    main(["report", str(ledger), "--reports", str(reports), "--export", "csv"])
    main(["report", str(ledger), "--json"])
    main(["watch", "--once", "--workdir", str(tmp_path)])
    main(["history", str(tmp_path)])
    shown = capsys.readouterr()
    found = {"stdout": shown.out, "stderr": shown.err}
    # a patch has the lines of a file as they are, and JSON is ASCII
    documents = (each for each in reports.rglob("*.*") if each.suffix not in (".patch", ".json"))
    found |= {each.name: each.read_bytes().decode() for each in documents}
    assert {name for name, text in found.items() if AN_ORDER.search(text)} == set()


@pytest.mark.parametrize("at", ["NaN", "-1", "1e999", "1e15", '"1.0"', "true", "null", "[]"])
def test_a_line_has_a_time_of_the_calendar(at: str) -> None:
    line = _line(STORY[0], 1.0).replace(b'"at":1.0', b'"at":' + at.encode())
    with pytest.raises(LedgerError, match=r"^ledger.jsonl:7: "):
        _entry(line, number=7, path=Path("ledger.jsonl"))
    good = _entry(_line(STORY[0], 1.0), number=7, path=Path("ledger.jsonl"))
    assert isinstance(good, LedgerEntry)
    replay([good])


def records(cls: type[Record] = Record) -> list[type[Record]]:
    return [each for sub in cls.__subclasses__() for each in (sub, *records(sub))]


@pytest.mark.parametrize("hostile", [each for each in HOSTILE if each not in UNREAD])
def test_each_record_is_refused_with_one_kind_of_error(
    hostile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = json.loads(HOSTILE[hostile])
    shown = redact.brief(value)
    # what a message shows of this one value is found once: it is looked through to its depth
    monkeypatch.setattr(
        record,
        "brief",
        lambda each, *most, brief=redact.brief: shown if each is value else brief(each, *most),
    )
    for cls in records():
        names = cls.__dict__.get("__dataclass_fields__")
        # other tests bring classes of modules that are gone by now
        if names is None or not cls.__module__.startswith("pytest_xlatune."):
            continue
        for said in (value, {"x": value}, *({name: value} for name in names)):
            try:
                cls.from_json(said)
            except LedgerError:
                continue


def test_a_file_beside_the_ledger_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    job = '{"at_s": 1.0, "jobs": {"1": {"state": "running", "start_s": 1e999}}}'
    for text in ("", "[" * 100_000, '{"at_s": NaN}', '{"at_s": "x"}', "[]", job):
        (tmp_path / NOW).write_text(text, encoding="utf-8")
        assert read_now(tmp_path) == Now()


NOISE = Noise(sigma_job=0.01, sigma_low=0.005, sigma_high=0.02, step_sd=None, lag1=None,
              straggler_rate=0.0, drift=0.0, steady_from=None, jobs=5)  # fmt: skip


@pytest.mark.parametrize("level", ["NaN", '"nan"', '"inf"', "1e999", "-0.1", '"0.01"', "null"])
def test_a_calibration_is_of_a_level_that_jobs_can_have(tmp_path: Path, level: str) -> None:
    cell: Cell = make_cell()
    made = Calibration(
        cell_digest=cell.digest, noise=NOISE, outlook=verbatim(""), trial_ids=(), written="2026"
    )
    text = json.dumps(made.to_json())
    (tmp_path / CALIBRATION).write_text(text, encoding="utf-8")
    assert read_calibration(tmp_path, cell) == made
    bad = text.replace('"sigma_job": 0.01', f'"sigma_job": {level}')
    (tmp_path / CALIBRATION).write_text(bad, encoding="utf-8")
    with pytest.raises(LedgerError, match="calibrate again, or remove it"):
        read_calibration(tmp_path, cell)


def test_an_environment_keeps_its_kinds() -> None:
    with pytest.raises(LedgerError):
        NodeEnvironment.from_json({"name": ["n1"]})
