"""An HTML page: everything is escaped, nothing else is loaded, and it stays small."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import importlib.util
import json
import math
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import cast

import pytest
from msgspec.structs import replace

from pytest_xlatune.cli import main
from pytest_xlatune.model.message import verbatim
from pytest_xlatune.model.profile import BASELINE, profile
from pytest_xlatune.model.redact import keep_secret
from pytest_xlatune.model.result import (
    Action,
    Conclusion,
    Effect,
    Finding,
    Outcome,
    SettingKind,
    State,
    TrialResult,
    TrialSetting,
    TrialStatus,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.report.cell_documents import cell_document
from pytest_xlatune.report.document import Document, Table, Text, literal
from pytest_xlatune.report.leaderboard import leaderboard
from pytest_xlatune.report.measured_cell import MeasuredCell, write_cells
from pytest_xlatune.report.page import html, page_of
from pytest_xlatune.report.page_plots import PlotAxis, forest, strips
from pytest_xlatune.report.render import markdown
from pytest_xlatune.report.study_documents import calibration, evidence, gate
from pytest_xlatune.studies.tuning import TuningStudy
from pytest_xlatune.tasks.cell_report import read_cell_report
from pytest_xlatune.tasks.files import NO_PAGES, write_all
from pytest_xlatune.tasks.reports import publish
from tests.helpers import of_studies, scripted
from tests.helpers.covered import BEGUN_SUBJECT
from tests.helpers.finished import CELL, CONCLUSION, FINISHED, HISTORY, score
from tests.helpers.pages import read
from tests.helpers.scripted import (
    FAILED,
    UNKNOWN_FLAG,
    FakeExecutor,
    Script,
    campaign,
    ordinary,
    run,
)

PLANTED = "</style></script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&lt;"


def hostile() -> MeasuredCell:
    """A sweep whose every foreign text holds a script."""
    finding = Finding(cls=PLANTED, action=Action.DROP, text=PLANTED, detail=PLANTED)
    history = tuple(
        replace(each, reason=verbatim(PLANTED), findings=(finding,), job_ids=(PLANTED,))
        for each in HISTORY
    )
    verdicts = tuple(
        replace(each, reasons=(verbatim(PLANTED),), method=verbatim(PLANTED), job_ids=(PLANTED,))
        for each in CONCLUSION.verdicts
    )
    return replace(
        FINISHED,
        conclusion=replace(CONCLUSION, verdicts=verdicts, notes=(verbatim(PLANTED),)),
        cells=(replace(CELL, image=PLANTED, launcher=PLANTED, config_tag=PLANTED),),
        history=history,
        remarks={PLANTED: PLANTED},
        stopped=PLANTED,
        profiles=tuple(
            replace(each, note=PLANTED, env={"NOTE": PLANTED}) for each in FINISHED.profiles
        ),
    )


def check_own_tags_only(text: str) -> None:
    """The page's own script is the only one, nothing is loaded, no attribute runs anything."""
    page = read(text)
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    assert len(scripts) == [tag for tag, _ in page.tags].count("script") == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    policy = next(said["content"] for tag, said in page.tags if said.get("http-equiv"))
    assert f"script-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert not {tag for tag, _ in page.tags} & {"img", "iframe", "link", "object", "form"}
    for tag, said in page.tags:
        assert not [name for name in said if name.startswith("on") or name in ("src", "style")], tag
        assert ":" not in said.get("href", ""), "a link leads to the files beside the page"


def test_foreign_text_is_never_markup() -> None:
    subject = hostile()
    page = page_of(leaderboard(subject), subject, files=(PLANTED,))
    page = dataclasses.replace(page, files=("leaderboard.json",))
    text = html(page)
    check_own_tags_only(text)
    assert "<script>alert(1)" in unescape(text), "it is shown as it is"


def test_equal_findings_of_an_arm_are_one_row_with_all_their_jobs() -> None:
    finding = Finding(cls="hang", action=Action.RETRY, text="no step", detail="d", count=2)
    first, second, *_ = (each for each in HISTORY if each.trial.is_baseline)
    history = tuple(
        replace(each, findings=(finding,), job_ids=(job,))
        for each, job in ((first, "7"), (second, "8"))
    )
    made = page_of(leaderboard(FINISHED), replace(FINISHED, history=history))
    (part,) = (each for each in made.parts if each.title == "Findings")
    (table,) = part.blocks
    assert isinstance(table, Table)
    assert table.rows == (("`baseline-deployed`", "hang", "retry", "d", "`no step`", "4", "7, 8"),)


@pytest.mark.parametrize(
    "subject",
    [pytest.param(FINISHED, id="a finished sweep"), pytest.param(BEGUN_SUBJECT, id="a begun one")],
)
@pytest.mark.parametrize("document", [leaderboard, gate, calibration, evidence])
def test_every_kind_of_document_has_a_page(
    document: Callable[[MeasuredCell], Document], subject: MeasuredCell
) -> None:
    made = document(subject)
    text = html(page_of(made, subject))
    check_own_tags_only(text)
    page = read(text)
    titles = {made.title, *(each.title for each in made.sections)}
    assert not [each for each in titles if each.replace("`", "") not in page.text]


def test_single_runs_stand_apart_from_confirmed_arms() -> None:
    text = html(page_of(leaderboard(FINISHED), FINISHED))
    parts = re.findall(r"<tbody>\n<tr><th scope=\"rowgroup\".*?</tbody>", text, re.DOTALL)
    *measured, dropped = parts
    assert "Dropped: cannot run here" in dropped
    for arm in re.findall(r'data-arm="([^"]+)"', dropped):
        verdict = CONCLUSION.verdict(arm)
        assert verdict is not None
        assert not verdict.can_run
    for part, is_single in zip(measured, (False, True), strict=True):
        arms = re.findall(r'data-arm="([^"]+)"', part)
        assert arms
        for arm in arms:
            verdict = CONCLUSION.verdict(arm)
            assert verdict is not None
            assert (verdict.kind is VerdictKind.SCREENED) == is_single


@pytest.mark.parametrize(
    "values", [(962.2,), (962.2, 962.201), (1e6, 1e6 + 2), (-0.03, 0.02), (0.0,), (-5e-7, -4e-7)]
)
def test_the_ticks_of_an_axis_are_told_apart(values: tuple[float, ...]) -> None:
    ticks = PlotAxis(values).ticks()
    assert len(ticks) > 2
    assert len({each.text for each in ticks}) == len(ticks)
    assert [float(each.text) for each in ticks] == sorted(float(each.text) for each in ticks)


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        pytest.param((33_500.0, 39_100.0), ["34000", "35000", "36000"], id="thousands"),
        pytest.param((1.2e-5, 3.1e-5), ["0.000015", "0.00002", "0.000025"], id="small ones"),
    ],
)
def test_a_tick_is_a_number_as_people_write_it(values: tuple[float, ...], texts: list[str]) -> None:
    assert [each.text for each in PlotAxis(values).ticks()][:3] == texts


def test_a_forest_of_next_to_nothing_does_not_look_like_one_of_much() -> None:
    verdicts = tuple(
        Verdict(arm=f"node00{at}", kind=VerdictKind.EQUIVALENT, delta=at * 1e-5, n=7)
        for at in range(3)
    )
    plot = forest(Conclusion(verdicts=verdicts))
    assert plot is not None
    places = [each.at for part in plot.parts for each in part.rows if each.at is not None]
    assert max(places) - min(places) < 1.0, "percent of the width"
    assert [each.text for each in plot.ticks if each.at in (0.0, 100.0)] == []


def test_strips_do_not_reach_below_no_time_however_slow_a_step_is() -> None:
    slow = replace(score(0.0), timings=tuple((at, 28.8 if at % 3 else 288.0) for at in range(15)))
    plot = strips([replace(HISTORY[0], score=replace(slow, step_s=28.8, window=(5, 14)))])
    assert plot is not None
    assert "from -100.0 % at the bottom" in plot.caption


@pytest.mark.parametrize(
    ("subject", "said"),
    [
        pytest.param(
            of_studies.batch,
            r"recommended: per_device_batch_size=12 with [\d.]+ TGS\.",
            id="a batch size",
        ),
        pytest.param(
            of_studies.nodes,
            r"12 nodes: slower: node003 -7\.\d % \(.* to .*\), node007 -\d\.\d % \(.* to .*\)\.",
            id="slow nodes",
        ),
        pytest.param(
            of_studies.network,
            r"8 nodes, 16 of 28 pairs: slower: node004 -[56]\.\d % \(.* to .*\)\.",
            id="a node in a network",
        ),
        pytest.param(
            of_studies.commit,
            r".* 0+8 change 7, -\d\.\d % \(.* to .*\)\.",
            id="a slow commit",
        ),
    ],
)
def test_a_study_opens_with_a_sentence(subject: Callable[[], MeasuredCell], said: str) -> None:
    first = cell_document(subject()).sections[0].blocks[0]
    assert isinstance(first, Text)
    assert re.fullmatch(said, first.text.replace("\\", "")), first.text


def test_a_value_is_shown_as_it_is_asked_for_without_quotes() -> None:
    flag = TrialSetting(
        name="xla_a", kind=SettingKind.FLAG, asked="4", effect=Effect.IN_EFFECT, seen="'4'"
    )
    history = (replace(HISTORY[0], settings=(flag,)), *HISTORY[1:])
    subject = replace(FINISHED, history=history)
    rows = [
        row
        for table in read(html(page_of(leaderboard(subject), subject))).tables
        for row in table
        if any("xla_a" in cell for cell in row) and "asked" not in row
    ]
    assert ["4", "4"] in [[row[2], row[4]] for row in rows if len(row) == 6]


def test_a_large_sweep_fits_a_page() -> None:
    timings = tuple((at, 0.5 + 0.01 * math.sin(at * at)) for at in range(500))
    history = tuple(
        TrialResult(
            trial=Trial(
                cell_digest=CELL.digest,
                profile=BASELINE if at % 10 == 0 else profile(f"arm-{at}", f"--xla_a{at}=1"),
                protocol=CELL.protocol,
                study="tuning",
                stage="wave2",
                position=at,
            ),
            status=TrialStatus.MEASURED,
            score=replace(score(0.001 * (at % 7)), timings=timings, step_s=0.5, window=(5, 499)),
            job_ids=(str(10_000 + at),),
            findings=(Finding(cls="stragglers", action=Action.NONE, text="x" * 500),),
            outcome=Outcome(
                state=State.COMPLETED, exit_code=0, start_s=600.0 * at, end_s=600.0 * at + 500
            ),
        )
        for at in range(1000)
    )
    subject = replace(FINISHED, history=history)
    text = html(page_of(leaderboard(subject), subject))
    assert len(text.encode()) < 2_000_000
    assert "The first 240 of 1000 trials are shown" in text


def test_no_value_of_a_secret_is_in_a_page_however_it_is_spelled(tmp_path: Path) -> None:
    secret = "plant-one-'\"$a<&>"
    cell = replace(scripted.CELL, deployed={"HF_TOKEN": secret})
    made = campaign(tmp_path, FakeExecutor(_quoting(secret)), cell=cell)
    run(made)
    written = publish(made.folder, tmp_path / "reports")
    pages = [each for each in written if each.suffix == ".html"]
    assert len(pages) == 1
    for each in pages:
        text = each.read_text(encoding="utf-8")
        assert "401" in text
        assert "plant-one" not in unescape(text)
    # the ledger hid it before; a page of a session that knows it does not rely on that
    known = read_cell_report(made.folder)
    known = dataclasses.replace(known, study=replace(cast("TuningStudy", known.study), cell=cell))
    keep_secret([secret])
    told = tuple(
        replace(each, reason=verbatim(f"401 {secret}"), findings=(_finding(secret),))
        for each in known.history
    )
    known = dataclasses.replace(known, history=told)
    document = known.document
    for name, text in (
        ("a.html", html(page_of(document, known.facts))),
        ("a.md", markdown(document)),
    ):
        write_all({tmp_path / name: text})
        assert "plant-one" in unescape(text)
        assert "plant-one" not in unescape((tmp_path / name).read_text(encoding="utf-8"))


def _finding(text: str) -> Finding:
    return Finding(cls="auth", action=Action.NONE, text=text, detail=text)


def _quoting(secret: str) -> Script:
    def script(trial_id: str, attempt: int) -> tuple[str, Outcome]:
        if trial_id.startswith("same"):
            return f"{UNKNOWN_FLAG} 401 {secret}\n", FAILED
        return ordinary(trial_id, attempt)

    return script


def test_without_jinja2_one_line_says_so_and_nothing_else_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = campaign(tmp_path, FakeExecutor())
    run(made)
    with_page = publish(made.folder, tmp_path / "with")
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *of: None if name == "jinja2" else found(name, *of),
    )
    without = publish(made.folder, tmp_path / "without")
    assert [each.name for each in without] == [
        each.name for each in with_page if each.suffix != ".html"
    ]
    for each in without:
        twin = tmp_path / "with" / each.relative_to(tmp_path / "without")
        assert each.read_bytes() == twin.read_bytes()
    workdir = made.folder.parents[1]
    argv = ["report", "--workdir", str(workdir), "--reports", str(tmp_path / "again")]
    assert main(argv) == 0
    assert capsys.readouterr().out.count(NO_PAGES) == 1


def test_a_fault_of_the_page_costs_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = campaign(tmp_path, FakeExecutor())
    run(made)

    def broken(_: object) -> str:
        raise ImportError("half installed")

    monkeypatch.setattr("pytest_xlatune.tasks.reports.html", broken)
    with pytest.raises(ImportError):
        publish(made.folder, tmp_path / "reports")
    left = {each.name for each in (tmp_path / "reports").rglob("*") if each.is_file()}
    assert left >= {
        "leaderboard.md",
        "leaderboard.json",
        "pretend-tuning.md",
        "pretend-tuning.json",
    }


def test_an_arm_that_was_not_seen_in_effect_is_hollow_whatever_its_verdict() -> None:
    won = Verdict(arm="won", kind=VerdictKind.FASTER, delta=0.03, ci95=(0.02, 0.04), n=4)
    unseen = replace(won, arm="unseen", effect=Effect.NOT_SEEN, unproved=("--xla_a",))
    plot = forest(Conclusion(verdicts=(won, unseen)))
    assert plot is not None
    looks = {each.name: each.looks for part in plot.parts for each in part.rows}
    assert looks == {"won": "faster", "unseen": "faster hollow"}


def test_a_job_leads_to_its_log_and_a_row_to_its_command(tmp_path: Path) -> None:
    made = campaign(tmp_path, FakeExecutor())
    run(made)
    known = read_cell_report(made.folder)
    jobs = {job for result in known.history for job in result.job_ids}
    assert known.facts.logs.keys() == jobs
    for log in known.facts.logs.values():
        folder = (made.folder.parents[1] / log).parent
        folder.mkdir(parents=True, exist_ok=True)
        files = {"xlatune_environment.py": "import sys"}  # the payload adds it
        spec = LaunchSpec(argv=("python", "train.py"), env={"XLA_FLAGS": "--xla_a=1"}, files=files)
        (folder / "spec.json").write_text(json.dumps(spec.to_json()), encoding="utf-8")
    known = read_cell_report(made.folder)
    assert set(known.facts.commands) == {literal(result.trial.arm) for result in known.history}
    text = unescape(html(page_of(known.document, known.facts)))
    for log, command in zip(known.facts.logs.values(), known.facts.commands.values(), strict=False):
        assert log in text
        assert command == "XLA_FLAGS=--xla_a=1 \\\npython train.py"
        assert "python train.py" in text
    # a command is of this machine: the data of a tuning document have none
    assert '"commands": {}' in write_cells((known.facts_to_deploy,))
