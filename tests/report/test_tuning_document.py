"""The tuning document of a model, end to end from ledgers: every figure in it is recomputed.

Two cells of one model are measured by pretend trials, written into real ledgers, and published into
one document. Then the markdown is read line by line and held against the lines of the ledgers.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.ledger import (
    LEDGER,
    CampaignOpened,
    Decided,
    FilesRead,
    Ledger,
    TrialEnded,
    TrialPlanned,
)
from pytest_xlatune.model.cell import Cell, DeployedFile, Parallelism
from pytest_xlatune.model.message import verbatim
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import (
    Action,
    Finding,
    Outcome,
    State,
    TrialResult,
    TrialStatus,
)
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.render import terminal
from pytest_xlatune.studies.tuning import TuningStudy
from pytest_xlatune.tasks.cell_report import read_cell_report
from pytest_xlatune.tasks.live import LiveLines
from pytest_xlatune.tasks.reports import publish
from tests.helpers.history import measured

SECRET = "hf_hushHushHushHushHush"  # the ledger itself holds no other
PP = Cell(
    model_tag="tiny",
    parallelism=Parallelism.parse("PP=8"),
    per_device_batch_size=7,
    max_target_length=4096,
    nodelist=("node001", "node002"),
    deployed={"XLA_FLAGS": "--xla_deployed=1", "HF_TOKEN": SECRET},
    overrides={"hf_access_token": SECRET},
)
FSDP = replace(PP, parallelism=Parallelism.parse("FSDP=8"))
OVERLAP = profile("overlap-2", "--xla_overlap=2", note="two fabrics")
PROFILES = (
    OVERLAP,
    profile("slow", "--xla_slow=1"),
    profile("same", "--xla_same=1"),
    profile("login", "--xla_login=1", env={"API_KEY": SECRET}),
    profile("oom", "--xla_oom=1"),
)
SPEED = {"overlap-2": 1.10, "slow": 0.90}
TURNED = {"overlap-2": 0.90, "slow": 1.10}  # what helps one parallelism hurts the other


class Measuring:
    """Trials of a study that come out as told, into a ledger as a campaign writes it."""

    def __init__(self, cell: Cell, workdir: Path, speed: dict[str, float], *, job: int) -> None:
        self.study = TuningStudy(
            cell=cell,
            profiles=PROFILES,
            budget=60,
            screen_baselines=3,
            finalists=2,
            blocks=3,
            block_baselines=2,
        )
        self.folder = workdir / f"sweep-{str(cell.parallelism).lower().replace('=', '')}" / "cell"
        self.ledger = Ledger(self.folder / LEDGER)
        self.speed = speed
        self.job = job
        self.at_s = 1.8e9
        self.history: list[TrialResult] = []

    def write(self, *events: Any) -> None:
        self.at_s += 60
        self.ledger.append(*events, at_s=self.at_s)

    def open(self, session: str = "s1") -> None:
        opened = CampaignOpened(
            cells=self.study.cells,
            study=self.study.name,
            sweep=self.folder.parent.name,
            session=session,
            declared=self.study.to_json(),
            versions={"pytest-xlatune": "0.1.0"},
        )
        text = 'export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_deployed=1"\n'
        files = (DeployedFile(path="configs/tiny.env.sh", text=text),)
        self.write(opened, FilesRead(files=files))

    def run(self, *, at_most: int = 1000) -> None:
        for _ in range(at_most):
            pending = self.study.decide(tuple(self.history)).due
            if not pending:
                return
            result = self._result(pending[0])
            self.history.append(result)
            self.write(TrialPlanned(trial=pending[0]), TrialEnded(result=result))

    def _result(self, trial: Trial) -> TrialResult:
        self.job += 1
        noise = int(hashlib.sha256(f"{self.job}".encode()).hexdigest()[:8], 16) / 2**32 - 0.5
        tgs = 960.0 * self.speed.get(trial.profile.id, 1.0) * (1 + 0.004 * noise)
        done: dict[str, Any] = {"trial": trial, "job_ids": (str(self.job),)}
        if trial.profile.id == "oom":
            text = f"RESOURCE_EXHAUSTED: Out of memory; the token is {SECRET}"
            finding = Finding(cls="oom-gpu", action=Action.DROP, text=text)
            outcome = Outcome(state=State.FAILED, exit_code=1)
            reason = f"out of memory ({SECRET})"
            return TrialResult(
                **done,
                status=TrialStatus.DROPPED,
                reason=verbatim(reason),
                findings=(finding,),
                outcome=outcome,
            )
        outcome = Outcome(state=State.COMPLETED, exit_code=0, nodes=PP.nodelist)
        return replace(measured(trial, math.log(tgs), loss=7.0), **done, outcome=outcome)


@pytest.fixture
def both(tmp_path: Path) -> tuple[Measuring, Measuring]:
    """Both cells of the model, measured and published one after the other."""
    pp = Measuring(PP, tmp_path, SPEED, job=14600)
    fsdp = Measuring(FSDP, tmp_path, TURNED, job=9970)
    for each in (pp, fsdp):
        each.open()
        each.run()
        publish(each.folder, tmp_path / "reports", zh=True)
    return pp, fsdp


def table_rows(markdown: str, title: str) -> list[list[str]]:
    """The rows of every table whose header begins with a title."""
    rows: list[list[str]] = []
    inside = False
    for line in markdown.splitlines():
        cells = [each.strip() for each in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells:
            inside = False
        elif cells[0] == title:
            inside = True
        elif inside and not cells[0].startswith(":-"):
            rows.append(cells)
    return rows


def results_of(folder: Path) -> list[dict[str, Any]]:
    """The results in a ledger, by reading its lines and nothing of ours."""
    lines = (folder / LEDGER).read_text(encoding="utf-8").splitlines()
    events = [json.loads(line) for line in lines]
    return [each["result"] for each in events if each["event"] == "trial-ended"]


def stage_of(trial: dict[str, Any]) -> str:
    """Where the appendix has a trial: a wave measures each profile once, a block confirms."""
    return f"{trial['stage']} {trial['block']}" if trial["block"] else "screen"


def test_every_job_of_the_appendix_is_a_line_of_a_ledger(
    both: tuple[Measuring, Measuring], tmp_path: Path
) -> None:
    text = (tmp_path / "reports/tiny-tuning.md").read_text(encoding="utf-8")
    recorded = [
        (
            result["job_ids"][0],
            f"{measuring.study.cell.parallelism} pdbs=7",
            f"`{result['trial']['profile']['id']}`",
            stage_of(result["trial"]),
            f"{result['score']['tgs']:.1f}" if result["score"] else "–",  # noqa: RUF001
        )
        for measuring in both
        for result in results_of(measuring.folder)
    ]
    appendix = table_rows(text, "Job")
    shown = [(row[0], row[1], row[2], row[3], row[6]) for row in appendix]
    assert sorted(shown) == sorted(recorded)


def test_the_next_parallelism_extends_and_shows_the_flips(
    both: tuple[Measuring, Measuring], tmp_path: Path
) -> None:
    text = (tmp_path / "reports/tiny-tuning.md").read_text(encoding="utf-8")
    assert text.startswith("# tiny: XLA tuning, PP=8 and FSDP=8\n")
    rows = {row[0]: row for row in table_rows(text, "Settings")}
    # a loser of the screen is never confirmed, so its flip is not either
    assert "single run" in rows["`--xla_overlap=2`"][-1]
    assert "single run" in rows["`--xla_slow=1`"][-1]
    assert rows["`--xla_oom=1`"][-1].startswith("cannot run on ")
    best = {row[0]: row[1] for row in table_rows(text, "Cell")}
    assert best == {"PP=8 pdbs=7": "★ `overlap-2`", "FSDP=8 pdbs=7": "★ `slow`"}
    patch = (tmp_path / "reports/tiny-tuning.patch").read_text(encoding="utf-8")
    assert patch in text
    assert patch.count("+if [[") == 2


def test_publishing_again_changes_nothing(
    both: tuple[Measuring, Measuring], tmp_path: Path
) -> None:
    reports = tmp_path / "reports"
    before = {path: path.read_bytes() for path in reports.rglob("*") if path.is_file()}
    for each in both:
        publish(each.folder, reports)
    assert {path: path.read_bytes() for path in reports.rglob("*") if path.is_file()} == before


def test_the_chinese_sibling_has_the_same_headings_rows_and_code(
    both: tuple[Measuring, Measuring], tmp_path: Path
) -> None:
    texts = [
        (tmp_path / f"reports/tiny-tuning{suffix}").read_text(encoding="utf-8")
        for suffix in (".md", ".zh.md")
    ]

    def same(text: str) -> list[str]:
        code = re.findall(r"```.*?```", text, flags=re.DOTALL)
        text = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        # a row about a job or a setting begins with its name; other rows are prose
        return [*code, *re.findall(r"^(?:## .*|\| (?:\d+|`[^|]*) \|)", text, flags=re.MULTILINE)]

    english, chinese = texts
    assert same(english) == same(chinese)
    assert len(same(english)) > 20
    # prose without a literal, a tag in capitals or a figure: nothing of English is left
    assert "faster than" not in chinese
    assert "快于" in chinese
    assert not re.search(r"^### (Confirmed|Screened)|^\| Profile ", chinese, re.MULTILINE)


def test_no_secret_is_in_any_file_or_line(
    both: tuple[Measuring, Measuring], tmp_path: Path
) -> None:
    files = [path for path in (tmp_path / "reports").rglob("*") if path.is_file()]
    assert len(files) >= 8
    for path in files:
        assert SECRET not in path.read_text(encoding="utf-8"), path
    known = read_cell_report(both[0].folder)
    assert SECRET not in "\n".join(terminal(known.document))
    assert "(hidden)" in (tmp_path / "reports/tiny-tuning.md").read_text(encoding="utf-8")


def test_a_stopped_sweep_leaves_a_whole_preliminary_document(tmp_path: Path) -> None:
    measuring = Measuring(PP, tmp_path, SPEED, job=1)
    measuring.open()
    measuring.run(at_most=4)
    reason = f"node002 is drained ({SECRET})"
    trial = measuring.history[-1].trial
    measuring.write(
        Decided(trial_id=trial.id, attempt=1, next=Next.STOP, cls="node-drain", faults=(reason,))
    )
    publish(measuring.folder, tmp_path / "reports")
    text = (tmp_path / "reports/tiny-tuning.md").read_text(encoding="utf-8")
    assert "report is preliminary." in text
    assert "The recorded reason: node-drain: node002 is drained ((hidden)): the sweep stops" in text
    assert len(table_rows(text, "Job")) == 4
    titles = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    assert len(titles) == 8, "the header and eight sections; sign flips need two parallelisms"
    board = (tmp_path / "reports/sweep-pp8/leaderboard.md").read_text(encoding="utf-8")
    assert "The recorded reason: node-drain" in board


# -- milestones ------------------------------------------------------------------------------------


def messages(feed: LiveLines) -> list[str]:
    return [message for progress in feed.news() for message in progress.messages]


def test_people_are_told_of_kickoff_half_way_and_each_confirmed_result(tmp_path: Path) -> None:
    measuring = Measuring(PP, tmp_path, SPEED, job=1)
    feed = LiveLines(measuring.folder, session_id="s1")
    measuring.open()
    (kickoff,) = messages(feed)
    assert kickoff.splitlines() == [
        "[xla-tuning] kickoff: tiny PP=8 pdbs=7",
        "- 20 jobs to run",
        "- Profiles: 5 and the baseline",
        "- Nodelist: node001,node002",
    ]
    said = []
    while True:
        count = len(measuring.history)
        measuring.run(at_most=1)
        if len(measuring.history) == count:
            break
        said += [(len(measuring.history), each) for each in messages(feed)]
    (half, text), *confirmed = said
    assert 2 * half in (len(measuring.history), len(measuring.history) + 1)
    assert text.startswith("[xla-tuning] half way: tiny PP=8 pdbs=7: ")
    assert "- Best so far: overlap-2" in text
    ((at, result),) = confirmed
    assert at == len(measuring.history), "only the last block decides"
    assert result.startswith("[xla-tuning] tiny PP=8 pdbs=7: confirmed\noverlap-2 FASTER")
    assert all(SECRET not in each for _, each in said)


def test_a_resumed_session_tells_no_old_news(tmp_path: Path) -> None:
    measuring = Measuring(PP, tmp_path, SPEED, job=1)
    measuring.open()
    measuring.run()
    feed = LiveLines(measuring.folder, session_id="s2")
    measuring.open("s2")
    assert messages(feed) == []


def test_lines_about_trials_show_no_secret(tmp_path: Path) -> None:
    measuring = Measuring(PP, tmp_path, SPEED, job=1)
    feed = LiveLines(measuring.folder, session_id="s1")
    measuring.open()
    measuring.run()
    lines = [progress.line for progress in feed.news()]
    assert any("out of memory ((hidden))" in line for line in lines)
    assert SECRET not in "\n".join(lines)
