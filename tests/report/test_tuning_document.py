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
    tables = re.findall(rf"(?m)^\| {title} +\|.*\n\| [:-].*\n((?:\|.*\n)*)", markdown)
    lines = [line for table in tables for line in table.splitlines()]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_two_parallelisms_are_one_document_of_all_their_jobs_without_a_secret(
    tmp_path: Path,
) -> None:
    # what helps one parallelism hurts the other
    both = (begun(tmp_path / "pp8"), begun(tmp_path / "fsdp8", FSDP, faster="slow"))
    reports = tmp_path / "reports"
    for made in both:
        run(made)
        publish(made.folder, reports, zh=True)
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
    text = (reports / "tiny-tuning.md").read_text(encoding="utf-8")
    appendix = table_rows(text, "Job")
    assert sorted((*row[:4], row[6]) for row in appendix) == sorted(recorded)
    # a loser of the screen is never confirmed, so its flip is not either
    flips = {row[0]: row[-1] for row in table_rows(text, "Settings")}
    flip = "opposite, not confirmed"
    wanted = {"`--xla_overlap=2`": flip, "`--xla_slow=1`": flip, "`--xla_oom=1`": "–"}
    assert flips | wanted == flips
    best = {row[0]: row[1] for row in table_rows(text, "Cell")}
    assert best == {"PP=8 pdbs=7": "★ `overlap-2`", "FSDP=8 pdbs=7": "★ `slow`"}
    patch = (reports / "tiny-tuning.patch").read_text(encoding="utf-8")
    assert patch in text
    assert patch.count("+if [[") == 2
    assert "(hidden)" in text
    files = [path for path in reports.rglob("*") if path.is_file()]
    assert len(files) >= 7
    for path in (*files, both[0].ledger.path):
        assert SECRET not in path.read_text(encoding="utf-8"), path
    assert SECRET not in "\n".join(terminal(read_cell_report(both[0].folder).document))


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


@pytest.mark.parametrize("fate", ["it runs", "let go", "ended by us", "stopped"])
def test_a_job_without_a_result_says_why(tmp_path: Path, fate: str) -> None:
    made = begun(tmp_path, holds=True)
    made.turn()
    made.turn()
    entries = Ledger(made.ledger.path).refresh()
    submission = next(
        entry.event.submission for entry in entries if isinstance(entry.event, AttemptSubmitted)
    )
    let_go = AttemptLetGo(trial_id=submission.trial_id, attempt=1)
    stop = Decided(
        trial_id="other", attempt=1, next=Next.STOP, cls="budget", detail=f"hours {SECRET}"
    )
    cancelled = Outcome(state=State.CANCELLED, nodes=PP.nodelist, start_s=1.0)
    ended = interrupted_events(submission, cancelled)
    fates: dict[str, tuple[Event, ...]] = {
        "it runs": (),
        "let go": (let_go,),
        "ended by us": (let_go, *ended),
        "stopped": (stop, let_go, *ended),
    }
    made.ledger.append(*fates[fate], at_s=1.8e9)
    publish(made.folder, tmp_path / "reports")
    text = (tmp_path / "reports" / "tiny-tuning.md").read_text(encoding="utf-8")
    assert SECRET not in text
    (row,) = table_rows(text.split("## Appendix")[1], "Job")
    is_over = fate in ("ended by us", "stopped")
    assert row[4] == ("cancelled" if is_over else "running")
    assert ("no session waits" if is_over else "–") in row[6]
