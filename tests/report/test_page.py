"""An HTML page: everything is escaped, nothing else is loaded, and it stays small."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import importlib.util
import json
import re
from collections.abc import Callable, Sequence
from html import unescape
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.cli import main
from pytest_xlatune.model.message import verbatim
from pytest_xlatune.model.redact import keep_secret
from pytest_xlatune.model.result import Action, Conclusion, Effect, Finding, Verdict, VerdictKind
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.report.document import Document
from pytest_xlatune.report.leaderboard import leaderboard
from pytest_xlatune.report.measured_cell import MeasuredCell, write_cells
from pytest_xlatune.report.page import html
from pytest_xlatune.report.page_plots import forest
from pytest_xlatune.report.render import markdown
from pytest_xlatune.report.study_documents import calibration, evidence, gate
from pytest_xlatune.studies.tuning import TuningStudy
from pytest_xlatune.tasks.cell_report import read_cell_report
from pytest_xlatune.tasks.files import NO_PAGES, write_all
from pytest_xlatune.tasks.reports import publish
from tests.helpers import scripted
from tests.helpers.finished import BEGUN_SUBJECT, CELL, CONCLUSION, FINISHED, HISTORY
from tests.helpers.pages import read
from tests.helpers.scripted import FAILED, UNKNOWN_FLAG, FakeExecutor, campaign, failing, run

PLANTED = "</style></script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&lt;"


def hostile() -> MeasuredCell:
    """A sweep whose every foreign text holds a script."""
    finding = Finding(cls=PLANTED, action=Action.DROP, text=PLANTED, detail=PLANTED)
    words, jobs = verbatim(PLANTED), (PLANTED,)

    def planted(values: Sequence[Any], **changes: Any) -> tuple[Any, ...]:
        return tuple(replace(value, **changes) for value in values)

    verdicts = planted(CONCLUSION.verdicts, reasons=(words,), method=words, job_ids=jobs)
    return replace(
        FINISHED,
        conclusion=replace(CONCLUSION, verdicts=verdicts, notes=(words,)),
        cells=planted([CELL], image=PLANTED, launcher=PLANTED, config_tag=PLANTED),
        history=planted(HISTORY, reason=words, findings=(finding,), job_ids=jobs),
        remarks={PLANTED: PLANTED},
        stopped=PLANTED,
        profiles=planted(FINISHED.profiles, note=PLANTED, env={"NOTE": PLANTED}),
    )


def check_own_tags_only(text: str) -> None:
    """The page's own script is the only one, nothing is loaded, no attribute runs anything."""
    page = read(text)
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == [tag for tag, _ in page.tags].count("script") == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    policy = next(said["content"] for _, said in page.tags if said.get("http-equiv"))
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert not {tag for tag, _ in page.tags} & {"img", "iframe", "link", "object", "form"}
    for tag, said in page.tags:
        assert not [name for name in said if name.startswith("on") or name in ("src", "style")], tag
        assert ":" not in said.get("href", ""), "a link leads to the files beside the page"


@pytest.mark.parametrize("document", [leaderboard, gate, calibration, evidence])
def test_every_kind_of_document_has_a_page_of_its_own_tags_only(
    document: Callable[[MeasuredCell], Document],
) -> None:
    for subject in (FINISHED, BEGUN_SUBJECT, hostile()):
        text = html(document(subject), subject, files=("leaderboard.json",))
        check_own_tags_only(text)
    assert "<script>alert(1)" in unescape(text), "foreign texts that hold scripts are shown"


def test_the_forest_says_what_was_not_seen_in_effect() -> None:
    won = Verdict(arm="won", kind=VerdictKind.FASTER, delta=0.03, ci95=(0.02, 0.04), n=4)
    unseen = replace(won, arm="unseen", effect=Effect.NOT_SEEN, unproved=("--xla_a",))
    plot = forest(Conclusion(verdicts=(won, unseen)))
    assert plot is not None
    looks = {row.name: row.looks for part in plot.parts for row in part.rows}
    assert looks == {"won": "faster", "unseen": "faster hollow"}


def test_no_value_of_a_secret_is_in_a_page_however_it_is_spelled(tmp_path: Path) -> None:
    secret = "plant-one-'\"$a<&>"
    cell = replace(scripted.CELL, deployed={"HF_TOKEN": secret})
    script = failing("same", f"{UNKNOWN_FLAG} 401 {secret}\n", FAILED)
    made = campaign(tmp_path, FakeExecutor(script), cell=cell)
    run(made)
    written = publish(made.folder, tmp_path / "reports")
    (page,) = (path for path in written if path.suffix == ".html")
    assert "401" in page.read_text(encoding="utf-8")
    assert "plant-one" not in unescape(page.read_text(encoding="utf-8"))
    # the ledger hid it before; a page of a session that knows it does not rely on that
    known = read_cell_report(made.folder)
    study = replace(cast("TuningStudy", known.study), cell=cell)
    keep_secret([secret])
    finding = Finding(cls="auth", action=Action.NONE, text=secret, detail=secret)
    told = tuple(
        replace(result, reason=verbatim(f"401 {secret}"), findings=(finding,))
        for result in known.history
    )
    known = dataclasses.replace(known, study=study, history=told)
    path = tmp_path / "a.html"
    for text in (html(known.document, known.facts), markdown(known.document)):
        write_all({path: text})
        assert "plant-one" in unescape(text)
        assert "plant-one" not in unescape(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    made = campaign(tmp_path_factory.mktemp("ended"), FakeExecutor())
    run(made)
    return made


def test_what_ails_the_page_costs_no_report(
    ended: Campaign,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    names = [path.name for path in publish(ended.folder, tmp_path / "with")]
    others = [name for name in names if not name.endswith(".html")]

    def broken(*_: object, **__: object) -> str:
        raise ImportError("half installed")

    with monkeypatch.context() as patch:
        patch.setattr("pytest_xlatune.tasks.reports.html", broken)
        with pytest.raises(ImportError):
            publish(ended.folder, tmp_path / "broken")
    assert {path.name for path in (tmp_path / "broken").rglob("*")} >= {*others}
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *of: None if name == "jinja2" else found(name)
    )
    assert [path.name for path in publish(ended.folder, tmp_path / "without")] == others
    assert main(["report", str(ended.folder), "--reports", str(tmp_path / "again")]) == 0
    assert capsys.readouterr().out.count(NO_PAGES) == 1


def test_a_job_leads_to_its_log_and_a_row_to_its_command(ended: Campaign) -> None:
    known = read_cell_report(ended.folder)
    jobs = {job for result in known.history for job in result.job_ids}
    assert known.facts.logs.keys() == jobs
    for log in known.facts.logs.values():
        folder = (ended.folder.parents[1] / log).parent
        folder.mkdir(parents=True, exist_ok=True)
        files = {"xlatune_environment.py": "import sys"}  # the payload adds it
        spec = LaunchSpec(argv=("python", "train.py"), env={"XLA_FLAGS": "--xla_a=1"}, files=files)
        (folder / "spec.json").write_text(json.dumps(spec.to_json()), encoding="utf-8")
    known = read_cell_report(ended.folder)
    text = unescape(html(known.document, known.facts))
    assert [log for log in known.facts.logs.values() if log not in text] == []
    assert set(known.facts.commands.values()) == {"XLA_FLAGS=--xla_a=1 \\\npython train.py"}
    assert "python train.py" in text
    # a command is of this machine: the data of a tuning document have none
    assert '"commands": {}' in write_cells((known.facts_to_deploy,))
