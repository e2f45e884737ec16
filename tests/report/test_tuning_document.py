"""The tuning document of a model, end to end from ledgers that pretend trials were written into."""

# ruff: noqa: RUF001 - the dash of an absent value, and Chinese prose

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign.jobs import interrupted_events
from pytest_xlatune.ledger import (
    LEDGER,
    AttemptEnded,
    AttemptIntended,
    AttemptLetGo,
    AttemptSubmitted,
    CampaignOpened,
    Decided,
    Event,
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
    Submission,
    TrialResult,
    TrialStatus,
)
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.render import terminal
from pytest_xlatune.studies.tuning import TuningStudy
from pytest_xlatune.tasks.cell_report import read_cell_report
from pytest_xlatune.tasks.live import LiveLines
from pytest_xlatune.tasks.reports import publish
from tests.helpers.history import measured, noise

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
PROFILES = (
    profile("overlap-2", "--xla_overlap=2"),
    profile("slow", "--xla_slow=1"),
    profile("login", "--xla_login=1", env={"API_KEY": SECRET}),
    profile("oom", "--xla_oom=1"),
)
SPEED = {"overlap-2": 1.10, "slow": 0.90}
TURNED = {"overlap-2": 0.90, "slow": 1.10}  # what helps one parallelism hurts the other
COMPLETED = Outcome(state=State.COMPLETED, exit_code=0, nodes=PP.nodelist)


class Measuring:
    """A study whose trials are measured into a ledger, as a campaign writes it."""

    def __init__(
        self, workdir: Path, cell: Cell = PP, speed: dict[str, float] = SPEED, *, job: int = 0
    ) -> None:
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

    def write(self, *events: Event) -> None:
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
            self.job += 1
            self.write(TrialPlanned(trial=pending[0]))
            self.end(self.result(pending[0], str(self.job)))

    def end(self, result: TrialResult) -> None:
        self.history.append(result)
        self.write(TrialEnded(result=result))

    def result(self, trial: Trial, *jobs: str) -> TrialResult:
        if trial.profile.id == "oom":
            text = f"RESOURCE_EXHAUSTED: Out of memory; the token is {SECRET}"
            return TrialResult(
                trial=trial,
                status=TrialStatus.DROPPED,
                reason=verbatim(f"out of memory ({SECRET})"),
                findings=(Finding(cls="oom-gpu", action=Action.DROP, text=text),),
                outcome=Outcome(state=State.FAILED, exit_code=1),
                job_ids=jobs,
            )
        tgs = 960.0 * self.speed.get(trial.profile.id, 1.0)
        score = math.log(tgs) + noise(trial, 0.001)
        ended = replace(COMPLETED, start_s=self.at_s)
        return replace(measured(trial, score, loss=7.0), job_ids=jobs, outcome=ended)


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


Published = tuple[Path, tuple[Measuring, ...]]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """Both cells of the model, measured and published one after the other."""
    folder = tmp_path_factory.mktemp("both")
    both = (Measuring(folder, job=14600), Measuring(folder, FSDP, TURNED, job=9970))
    for measuring in both:
        measuring.open()
        measuring.run()
        publish(measuring.folder, folder / "reports", zh=True)
    return folder / "reports", both


def test_every_trial_of_the_ledgers_is_a_line_of_the_appendix(published: Published) -> None:
    reports, both = published
    recorded = [
        (
            result.job_ids[0],
            f"{measuring.study.cell.parallelism} pdbs=7",
            f"`{result.trial.profile.id}`",
            f"{result.trial.stage} {result.trial.block}" if result.trial.block else "screen",
            f"{result.score.tgs:.1f}" if result.score else "–",
        )
        for measuring in both
        for result in measuring.history
    ]
    appendix = table_rows((reports / "tiny-tuning.md").read_text(encoding="utf-8"), "Job")
    assert sorted((*row[:4], row[6]) for row in appendix) == sorted(recorded)


def test_the_next_parallelism_extends_and_shows_the_flips(published: Published) -> None:
    reports, _ = published
    text = (reports / "tiny-tuning.md").read_text(encoding="utf-8")
    assert text.startswith("# tiny: XLA tuning, PP=8 and FSDP=8\n")
    rows = {row[0]: row for row in table_rows(text, "Settings")}
    # a loser of the screen is never confirmed, so its flip is not either
    assert "single run" in rows["`--xla_overlap=2`"][-1]
    assert "single run" in rows["`--xla_slow=1`"][-1]
    assert rows["`--xla_oom=1`"][-1].startswith("cannot run on ")
    best = {row[0]: row[1] for row in table_rows(text, "Cell")}
    assert best == {"PP=8 pdbs=7": "★ `overlap-2`", "FSDP=8 pdbs=7": "★ `slow`"}
    patch = (reports / "tiny-tuning.patch").read_text(encoding="utf-8")
    assert patch in text
    assert patch.count("+if [[") == 2


def test_no_secret_is_in_any_file_or_line(published: Published) -> None:
    reports, both = published
    files = [path for path in reports.rglob("*") if path.is_file()]
    assert len(files) >= 8
    for path in files:
        assert SECRET not in path.read_text(encoding="utf-8"), path
    assert SECRET not in "\n".join(terminal(read_cell_report(both[0].folder).document))
    assert "(hidden)" in (reports / "tiny-tuning.md").read_text(encoding="utf-8")


def test_people_are_told_of_kickoff_half_way_and_each_confirmed_result(tmp_path: Path) -> None:
    measuring = Measuring(tmp_path)
    feed = LiveLines(measuring.folder, session_id="s1")
    lines: list[str] = []

    def messages() -> list[str]:
        news = list(feed.news())
        lines.extend(progress.line for progress in news)
        return [message for progress in news for message in progress.messages]

    measuring.open()
    (kickoff,) = messages()
    assert kickoff.startswith("[xla-tuning] kickoff: tiny PP=8 pdbs=7")
    said = []
    while measuring.study.decide(tuple(measuring.history)).due:
        measuring.run(at_most=1)
        said += [(len(measuring.history), message) for message in messages()]
    (half, text), (at, result) = said
    assert 2 * half in (len(measuring.history), len(measuring.history) + 1)
    assert "- Best so far: overlap-2" in text
    assert at == len(measuring.history), "only the last block decides"
    assert "confirmed\noverlap-2 FASTER" in result
    assert any("out of memory ((hidden))" in line for line in lines)
    assert SECRET not in f"{said} {lines}"
    # a resumed session tells no old news
    feed = LiveLines(measuring.folder, session_id="s2")
    measuring.open("s2")
    assert messages() == []


# -- a job of the document without a score says why ------------------------------------------------


def attempt(measuring: Measuring, trial: Trial, number: int, fate: str) -> None:
    """Submit a trial as job 15000 and so on, and write what became of it."""
    job = Submission(
        trial_id=trial.id, attempt=number, executor="slurm", job_id=f"{14999 + number}", folder="t"
    )
    cancelled = Outcome(state=State.CANCELLED, nodes=PP.nodelist, start_s=measuring.at_s)
    let_go = AttemptLetGo(trial_id=trial.id, attempt=number)
    stop = Decided(
        trial_id="other", attempt=1, next=Next.STOP, cls="budget", faults=(f"hours {SECRET}",)
    )
    ended_by_us = (let_go, *interrupted_events(job, cancelled))
    fates: dict[str, tuple[Event, ...]] = {
        "it runs": (),
        "let go": (let_go,),
        "ended by us": ended_by_us,
        "stopped": (stop, *ended_by_us),
    }
    measuring.write(
        TrialPlanned(trial=trial),
        AttemptIntended(trial_id=trial.id, attempt=number, comment="c"),
        AttemptSubmitted(submission=job),
        *fates[fate],
    )


@pytest.mark.parametrize(
    ("fate", "state", "remark"),
    [
        ("it runs", "running", "–"),
        ("let go", "running", "let go: "),
        ("ended by us", "cancelled", "no session waits"),
        ("stopped", "cancelled", "after the stop"),
    ],
)
def test_a_job_without_a_result_says_why(
    tmp_path: Path, fate: str, state: str, remark: str
) -> None:
    measuring = Measuring(tmp_path, job=14600)
    measuring.open()
    measuring.run(at_most=3)

    def jobs() -> dict[str, tuple[str, str]]:
        """State and remark of each job."""
        publish(measuring.folder, tmp_path / "reports")
        text = (tmp_path / "reports" / "tiny-tuning.md").read_text(encoding="utf-8")
        assert SECRET not in text
        appendix = text.split("## Appendix")[1]
        return {row[0]: (row[4], row[6]) for row in table_rows(appendix, "Job")}

    trial = measuring.study.decide(tuple(measuring.history)).due[0]
    attempt(measuring, trial, 1, fate)
    shown = jobs()
    assert shown["15000"][0] == state
    assert remark in shown["15000"][1]
    # a later session ends its own job, whatever stopped the one before
    measuring.open("s2")
    attempt(measuring, trial, 2, "ended by us")
    assert "no session waits" in jobs()["15001"][1]
    # measured by a third one, the jobs before keep their reasons
    measuring.open("s3")
    attempt(measuring, trial, 3, "it runs")
    measuring.end(measuring.result(trial, "15000", "15001", "15002"))
    measuring.write(AttemptEnded(trial_id=trial.id, attempt=3, outcome=COMPLETED))
    shown = jobs()
    assert shown["15000"][0] == "retried"
    assert remark in shown["15000"][1]
    assert shown["15002"] == ("completed", "–")
