"""The tuning document of a model, end to end from ledgers of campaigns that pretend to run."""

# ruff: noqa: RUF001 - the dash of an absent value

from __future__ import annotations

import re
import zlib
from pathlib import Path

import pytest
from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.campaign.jobs import interrupted_events
from pytest_xlatune.ledger import AttemptLetGo, AttemptSubmitted, Decided, Event, FilesRead, Ledger
from pytest_xlatune.model.cell import Cell, DeployedFile, Parallelism
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import Outcome, State
from pytest_xlatune.report.render import terminal
from pytest_xlatune.tasks.cell_report import read_cell_report
from pytest_xlatune.tasks.live import LiveLines
from pytest_xlatune.tasks.reports import publish
from tests.helpers import scripted
from tests.helpers.scripted import FAILED, OK, FakeExecutor, run

SECRET = "hf_hushHushHushHushHush"
PP = replace(
    scripted.CELL,
    model_tag="tiny",
    parallelism=Parallelism.parse("PP=8"),
    per_device_batch_size=7,
    nodelist=("node001", "node002"),
    deployed={"XLA_FLAGS": "--xla_deployed=1", "HF_TOKEN": SECRET},
)
FSDP = replace(PP, parallelism=Parallelism.parse("FSDP=8"))
PROFILES = (
    profile("overlap-2", "--xla_overlap=2"),
    profile("slow", "--xla_slow=1"),
    profile("same", "--xla_same=1"),
    profile("oom", "--xla_oom=1"),
)


def begun(
    folder: Path, cell: Cell = PP, faster: str = "overlap-2", *, holds: bool = False
) -> Campaign:
    """A campaign in which one profile gains 10 % and the other of the two loses 10 %."""

    def script(trial_id: str, _: int) -> tuple[str, Outcome]:
        if trial_id.startswith("oom"):
            return f"RESOURCE_EXHAUSTED: Out of memory; the token is {SECRET}\n", FAILED
        is_changed = trial_id.startswith(("overlap-2", "slow"))
        speed = 1000.0 + is_changed * (100.0 if trial_id.startswith(faster) else -100.0)
        return scripted.log(speed + zlib.crc32(trial_id.encode()) % 100 / 50), OK

    executor = FakeExecutor(script)
    executor.holds = holds
    made = scripted.campaign(folder, executor, profiles=PROFILES, cell=cell)
    text = 'export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_deployed=1"\n'
    files = (DeployedFile(path="configs/tiny.env.sh", text=text),)
    made.ledger.append(FilesRead(files=files), at_s=1.8e9)
    return made


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


Published = tuple[Path, tuple[Campaign, ...]]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Published:
    """Both cells of the model, measured and published one after the other."""
    folder = tmp_path_factory.mktemp("both")
    # what helps one parallelism hurts the other
    both = (begun(folder / "pp8"), begun(folder / "fsdp8", FSDP, faster="slow"))
    for made in both:
        run(made)
        publish(made.folder, folder / "reports", zh=True)
    return folder / "reports", both


def test_every_trial_of_the_ledgers_is_a_line_of_the_appendix(published: Published) -> None:
    reports, both = published
    recorded = [
        (
            result.job_ids[0],
            f"{made.study.cells[0].parallelism} pdbs=7",
            f"`{result.trial.profile.id}`",
            f"{result.trial.stage} {result.trial.block}" if result.trial.block else "screen",
            f"{result.score.tgs:.1f}" if result.score else "–",
        )
        for made in both
        for result in made.view().history
    ]
    appendix = table_rows((reports / "tiny-tuning.md").read_text(encoding="utf-8"), "Job")
    assert sorted((*row[:4], row[6]) for row in appendix) == sorted(recorded)


def test_the_next_parallelism_extends_and_shows_the_flips(published: Published) -> None:
    reports, _ = published
    text = (reports / "tiny-tuning.md").read_text(encoding="utf-8")
    rows = {row[0]: row for row in table_rows(text, "Settings")}
    # a loser of the screen is never confirmed, so its flip is not either
    assert rows["`--xla_overlap=2`"][-1] == "opposite, not confirmed"
    assert rows["`--xla_slow=1`"][-1] == "opposite, not confirmed"
    assert rows["`--xla_oom=1`"][-1] == "–"
    best = {row[0]: row[1] for row in table_rows(text, "Cell")}
    assert best == {"PP=8 pdbs=7": "★ `overlap-2`", "FSDP=8 pdbs=7": "★ `slow`"}
    patch = (reports / "tiny-tuning.patch").read_text(encoding="utf-8")
    assert patch in text
    assert patch.count("+if [[") == 2


def test_no_secret_is_in_any_file_or_line(published: Published) -> None:
    reports, both = published
    files = [path for path in reports.rglob("*") if path.is_file()]
    assert len(files) >= 7
    for path in (*files, both[0].ledger.path):
        assert SECRET not in path.read_text(encoding="utf-8"), path
    assert SECRET not in "\n".join(terminal(read_cell_report(both[0].folder).document))
    assert "(hidden)" in (reports / "tiny-tuning.md").read_text(encoding="utf-8")


def test_people_are_told_of_kickoff_half_way_and_each_confirmed_result(tmp_path: Path) -> None:
    made = begun(tmp_path)
    feed = LiveLines(made.folder, session_id="first")
    lines: list[str] = []

    def messages() -> list[str]:
        news = list(feed.news())
        lines.extend(progress.line for progress in news)
        return [message for progress in news for message in progress.messages]

    (kickoff,) = messages()
    assert kickoff.startswith("[xla-tuning] kickoff: tiny PP=8 pdbs=7")
    assert re.search(r"^- \d+ (to \d+ )?jobs to run$", kickoff, re.MULTILINE)
    said = []
    while not made.view().stopped and made.view().pending:
        made.turn()
        ended = sum(bool(result.job_ids) for result in made.view().history)
        said += [(ended, message) for message in messages()]
    (half, text), (at, result) = said
    assert half < ended <= 2 * half, "of the jobs that were planned then"
    assert "- Best so far: overlap-2" in text
    assert at == ended, "only the last block decides"
    assert "confirmed\noverlap-2 FASTER" in result
    assert SECRET not in f"{said} {lines}"
    # a resumed session tells no old news
    scripted.campaign(tmp_path, FakeExecutor(), profiles=PROFILES, cell=PP, session="second")
    feed = LiveLines(made.folder, session_id="second")
    assert messages() == []


@pytest.mark.parametrize(
    ("fate", "state", "remark"),
    [
        ("it runs", "running", "–"),
        ("let go", "running", "–"),
        ("ended by us", "cancelled", "no session waits"),
        ("stopped", "cancelled", "no session waits"),
    ],
)
def test_a_job_without_a_result_says_why(
    tmp_path: Path, fate: str, state: str, remark: str
) -> None:
    made = begun(tmp_path, holds=True)
    made.turn()
    made.turn()
    (submitted, *_) = (
        event.submission
        for event in (entry.event for entry in Ledger(made.ledger.path).refresh())
        if isinstance(event, AttemptSubmitted)
    )
    let_go = AttemptLetGo(trial_id=submitted.trial_id, attempt=1)
    stop = Decided(
        trial_id="other", attempt=1, next=Next.STOP, cls="budget", detail=f"hours {SECRET}"
    )
    cancelled = Outcome(state=State.CANCELLED, nodes=PP.nodelist, start_s=1.0)
    ended_by_us = (let_go, *interrupted_events(submitted, cancelled))
    fates: dict[str, tuple[Event, ...]] = {
        "it runs": (),
        "let go": (let_go,),
        "ended by us": ended_by_us,
        "stopped": (stop, *ended_by_us),
    }
    made.ledger.append(*fates[fate], at_s=1.8e9)
    publish(made.folder, tmp_path / "reports")
    text = (tmp_path / "reports" / "tiny-tuning.md").read_text(encoding="utf-8")
    assert SECRET not in text
    (row,) = table_rows(text.split("## Appendix")[1], "Job")
    assert row[4] == state
    assert remark in row[6]
