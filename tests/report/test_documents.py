"""What documents, exports, messages and claims of a sweep hold, and how they are written."""

# ruff: noqa: RUF001 - the dash of an absent value

from __future__ import annotations

import csv
import io
import json
import math
import re
import sys
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.campaign import Campaign
from pytest_xlatune.campaign.jobs import interrupted_events
from pytest_xlatune.cli import main
from pytest_xlatune.ledger import AttemptLetGo, AttemptSubmitted, Decided, Event, FilesRead, Ledger
from pytest_xlatune.model import text as figures
from pytest_xlatune.model.cell import Cell, DeployedFile, Parallelism
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import MessageCode, coded, verbatim
from pytest_xlatune.model.metric import BUSBW, Figure
from pytest_xlatune.model.profile import BASELINE_ID, NO_ENV_ID, Profile, profile
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import (
    Conclusion,
    Effect,
    LostRuns,
    Outcome,
    State,
    TrialResult,
    TrialStatus,
    TuningRecord,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.model.text import printable
from pytest_xlatune.report.claims import Claim, faster, faster_by, no_regression
from pytest_xlatune.report.deployment import patch_of
from pytest_xlatune.report.document import (
    Bullets,
    Code,
    Document,
    Section,
    Table,
    Text,
    columns,
    literal,
    markdown,
    plain,
    terminal,
)
from pytest_xlatune.report.exports import EXPORTS, Exported, export_of, exported
from pytest_xlatune.report.language import ENGLISH, Language
from pytest_xlatune.report.leaderboard import jobs_table, leaderboard, leaderboard_json
from pytest_xlatune.report.lines import (
    ending_text,
    in_columns,
    live_line,
    paragraph,
    progress_text,
    stop_message,
    words,
)
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.report.study_documents import cell_document
from pytest_xlatune.report.tuning_document import tuning
from pytest_xlatune.sweep.groups import RunSettings
from pytest_xlatune.sweep.settings import resolve_options
from pytest_xlatune.tasks.cell_report import read_cell_report
from pytest_xlatune.tasks.live import LiveLines
from pytest_xlatune.tasks.reports import publish
from tests.helpers import cells, golden, history, scripted
from tests.helpers.finished import (
    BEGUN,
    BEGUN_SUBJECT,
    CONCLUSION,
    COVERED,
    ENV_FILE,
    EXPLAINED,
    FINISHED,
    HISTORY,
    PROFILES,
    STOPPED,
    other_parallelism,
)
from tests.helpers.history import CELL, Machine, mixed, trial_of
from tests.helpers.scripted import FAILED, OK, FakeExecutor, campaign, run
from tests.helpers.second_looks import tried
from tests.helpers.tables import rows


def concluded(subject: MeasuredCell, *verdicts: Verdict) -> MeasuredCell:
    """The subject with these verdicts alone."""
    conclusion = Conclusion(verdicts=verdicts, reference=CONCLUSION.baseline)
    return replace(subject, conclusion=conclusion)


def test_long_tables_keep_the_top_eight_and_the_bottom_five() -> None:
    many = tuple(
        Verdict(arm=f"p{at:02}", kind=VerdictKind.SCREENED, delta=-at / 1000, n=1)
        for at in range(20)
    )
    text = markdown(tuning([concluded(COVERED, *many)]))
    shown = [each.arm for each in many if f"`{each.arm}`" in text]
    assert shown == [each.arm for each in (*many[:8], *many[15:])]
    assert "7 more profiles between these." in text
    assert "`p12`" in markdown(leaderboard(concluded(FINISHED, *many)))


def test_lost_runs_hangs_and_retries_are_told_in_every_view() -> None:
    lost = LostRuns(lost=2, runs=4, to=(verbatim("hang"),))
    why = coded(MessageCode.SURVIVORS, "{runs}: the others may be fast", runs=lost.message)
    slow = Verdict(arm="overlap-2", kind=VerdictKind.INCONCLUSIVE, delta=0.04, n=2, reasons=(why,))
    slow = replace(slow, lost=lost, hangs=5, retries=3)
    for document in (leaderboard(concluded(FINISHED, slow)), tuning([concluded(COVERED, slow)])):
        assert "| `overlap-2` | 2 of 4 runs lost: hang | 5 | 3 |" in markdown(document)
    assert "2 of 4 runs lost: hang" in paragraph(slow)


YML = DeployedFile(
    path="m.yml", text="per_device_batch_size: 8.0\nmax_target_length: 8192\n", is_shell=False
)
BARE = replace(COVERED.cell, per_device_batch_size=None, max_target_length=None)
BEST = Verdict(arm="microbatches-16", kind=VerdictKind.FASTER, delta=0.02, n=4)
NO_ENV = Verdict(arm=NO_ENV_ID, kind=VerdictKind.SCREENED, delta=-0.2, n=2)


def test_what_a_section_of_the_tuning_document_says() -> None:
    overrides = concluded(replace(COVERED, files=(ENV_FILE,)), BEST)
    text = markdown(tuning([overrides])).split("## Recommended deployment")[1].split("\n## ")[0]
    assert "\n\n```\nnum_pipeline_microbatches=16\n```" in text
    assert "export" not in text
    # a load that only the yml knows stands in the header
    text = markdown(tuning([replace(COVERED, cells=(BARE,), files=(YML,))]))
    assert "8 sequences per device and step, 8192 tokens" in text
    assert "own batch" not in text
    # single runs that tell of the deployed flags are one statement
    once = concluded(COVERED, replace(NO_ENV, is_likely_slower=True))
    text = markdown(tuning([once])).split("## Effect of ")[1].split("\n## ")[0]
    assert "very likely slower" in text
    assert "does not show whether" not in text
    # a winner whose settings are gone is not read as no winner
    text = markdown(tuning([replace(COVERED, profiles=())]))
    assert "settings of `overlap-2`." in text
    assert "Leave the deployed environment" not in text


def test_json_holds_the_records_themselves() -> None:
    text = leaderboard_json(FINISHED)
    data = json.loads(text)
    # through text and back: NaN is not equal to itself, its JSON is
    assert Conclusion.from_json(data["conclusion"]).to_json() == CONCLUSION.to_json()
    assert [Profile.from_json(each) for each in data["profiles"]] == [*PROFILES]
    trials = {each.pop("id"): each for each in data["trials"]}
    assert trials == {each.trial.id: each.to_json() for each in HISTORY}
    assert leaderboard_json(replace(FINISHED, history=FINISHED.history[::-1])) == text


@pytest.mark.parametrize("steps", [100, 101])
def test_json_has_no_steps_of_long_jobs(steps: int) -> None:
    timings = tuple((at, 28.5) for at in range(steps))
    subject = replace(FINISHED, history=cells.scored_with(HISTORY, timings=timings))
    scored = [each for each in json.loads(leaderboard_json(subject))["trials"] if each["score"]]
    assert {each["trial"]["arm"] for each in scored} > {BASELINE_ID}
    for each in scored:
        assert each["score"]["timings"] == ([*map(list, timings)] if steps == 100 else [])


EFFECTS = {"p3": 0.04, "p5": 0.05, "channels": 0.03, "p9": -0.2}


def test_a_figure_is_that_of_ordinary_jobs() -> None:
    """`p5` is fast in turns and not as it is deployed: no figure of its turns stands anywhere."""
    sweep = mixed()
    done = history.history(Machine(EFFECTS, deployed={"p5": 0.0}, sigma=0.002), of=sweep)
    subject = MeasuredCell(
        conclusion=sweep.decide(done).conclusion,
        cells=(history.CELL,),
        profiles=sweep.profiles,
        history=tuple(done),
        written_s=1.79e9,
    )
    text = markdown(leaderboard(subject))
    rows = {line.split("|")[1].strip(" ★`"): line for line in text.splitlines() if "|" in line}
    for arm, shown in (("p3", "FASTER"), ("channels", "FASTER"), ("p6", "screened")):
        assert shown in rows[arm]
    assert "EQUIVALENT" in rows["p5"]
    assert "+5." not in rows["p5"]
    trials = json.loads(leaderboard_json(subject))["trials"]
    turns = [{**each} for each in trials if each.get("rotation")]
    assert [each.pop("id") for each in turns]
    assert [TrialResult.from_json(each) for each in turns]


def stopped(reason: str, **changes: Any) -> str:
    pending = TrialResult(trial=HISTORY[-1].trial, status=TrialStatus.PLANNED)
    values: dict[str, Any] = {
        "cell": COVERED.cell,
        "reason": reason,
        "conclusion": CONCLUSION,
        "history": (*HISTORY[:-1], pending),
        "artifacts": ".xlatune/pp8/cell",
    }
    return stop_message(**values | changes)


def test_the_stop_message_has_all_that_a_decision_needs() -> None:
    said = stopped(
        "node-drain: node002 is drained: bad nic",
        nodes=("node002",),
        evidence="PENDING (ReqNodeNotAvail)",
        recovery=("node-drain: resumed node002",),
    )
    golden.check(Path(__file__).parents[1] / "data" / "stop.txt", f"{said}\n")
    bare = {"cell": replace(COVERED.cell, nodelist=()), "history": ()}
    none = replace(CONCLUSION, verdicts=())
    said = stopped("submission-refused: Invalid account", conclusion=none, **bare)
    assert "Failing node(s): not known; recovery attempted: none; outcome: no evidence" in said
    assert "- Profiles tested so far: 0\n- Pending profiles in queue: none\n" in said
    assert "Failing node" not in stopped("budget: it is spent", is_failure=False)
    # the decision names the node, whatever other nodes its sentence holds
    said = stopped("node-drain: gpu12 is drained (asked by gpu1's owner)", nodes=("gpu12",))
    assert "Failing node(s): gpu12; recovery" in said


def test_a_sweep_without_a_winner_never_rules_out_a_gain_that_is_a_loss() -> None:
    bound, words = -0.142, "every setting that was decided is slower, by 14.2 % at least (95 %)."
    lost = tuple(each for each in CONCLUSION.verdicts if each.kind is not VerdictKind.FASTER)
    over = replace(CONCLUSION, verdicts=lost, record=TuningRecord(bound=bound))
    assert ending_text(ENGLISH, over, stopped="").endswith(words)


GAIN = Verdict(
    arm="overlap-2", kind=VerdictKind.FASTER, delta=0.03, ci95=(0.021, 0.039), n=4, mde80=0.013
)
LEVEL = replace(GAIN, kind=VerdictKind.EQUIVALENT, delta=0.001, ci95=(-0.006, 0.008))
WIDE = replace(GAIN, kind=VerdictKind.INCONCLUSIVE, delta=0.004, ci95=(-0.015, 0.024))
LOSS = replace(GAIN, kind=VerdictKind.SLOWER, delta=-0.03, ci95=(-0.04, -0.02))
ONCE = Verdict(arm="overlap-2", kind=VerdictKind.SCREENED, delta=0.09, n=1)
BROKEN = Verdict(arm="overlap-2", kind=VerdictKind.INVALID, reasons=(verbatim("out of memory"),))


CLAIMS: dict[str, tuple[Callable[[Verdict], Claim], tuple[bool, ...]]] = {
    "faster": (faster, (True, False, False)),
    "faster by 2 %": (lambda v: faster_by(v, 0.02), (True, False, False)),
    "faster by 2.5 %": (lambda v: faster_by(v, 0.025), (False, False, False)),
    "no regression": (no_regression, (True, True, False)),
}


@rows("claim, expected", CLAIMS)
def test_a_claim_holds_only_of_a_verdict_that_shows_it(
    claim: Callable[[Verdict], Claim], expected: tuple[bool, ...]
) -> None:
    assert tuple(bool(claim(verdict)) for verdict in (GAIN, LEVEL, WIDE)) == expected
    with pytest.raises(TypeError, match="say faster_by"):
        claim(GAIN)(by=0.02)
    for refused, reason in ((ONCE, "n = 1"), (BROKEN, "out of memory")):
        assert not claim(refused)
        assert reason in repr(claim(refused))
    # pytest cuts the middle out of 240 characters and more
    words = verbatim("r" * 300)
    shown = repr(claim(replace(GAIN, arm="p" * 64, method=words, reasons=(words,))))
    assert len(shown) <= 240
    for figure in ("+3.0 %", "[+2.1, +3.9]", "n = 4", "FASTER"):
        assert figure in shown[:200]


ASKED = replace(GAIN, effect=Effect.ASKED, unproved=("NCCL_ALGO",))


def test_a_gate_says_first_what_it_decides() -> None:
    for verdict in (WIDE, replace(LEVEL, n=1), ASKED):
        assert no_regression(verdict).text.startswith("cannot tell: ")
    # a loss is a loss, whatever caused it
    for verdict in (LOSS, replace(LOSS, effect=Effect.ASKED, unproved=("NCCL_ALGO",))):
        assert no_regression(verdict).text.startswith("regression: ")
    # settings that nothing shows in effect support no claim
    assert not ASKED.wins
    for claim in (faster(ASKED), faster_by(ASKED, 0.01)):
        assert (bool(claim), claim.is_undecided) == (False, True)
    assert faster(replace(GAIN, effect=Effect.ASKED)), "declared as not to be seen"


GOLDEN = Path(__file__).parents[1] / "data" / "golden"


def live_lines() -> str:
    """One line for each kind of landing."""
    planned = [TrialResult(trial=each.trial, status=TrialStatus.PLANNED) for each in HISTORY]
    lines = []
    for at in (0, 10, 14, 17, 18, len(HISTORY) - 1):
        done = HISTORY[: at + 1]
        left = len(HISTORY) - len(done)
        progress = progress_text([*done, *planned[at + 1 :]], left=(left, left), trial_s=190.0)
        verdict = CONCLUSION.verdict(done[-1].trial.profile.id)
        lines.append(in_columns(live_line(done[-1], verdict=verdict, progress=progress)))
    return "\n".join(lines) + "\n"


def all_paragraphs() -> str:
    verdicts = (CONCLUSION.baseline, *CONCLUSION.verdicts, *BEGUN.verdicts)
    return "".join(f"[{words(each)}]\n{paragraph(each)}\n\n" for each in verdicts)


def in_terminal(width: int) -> str:
    return "\n".join(terminal(leaderboard(FINISHED), width=width)) + "\n"


def study(name: str) -> str:
    """The document of a study of cells whose jobs print what they use."""
    subject = cells.subject(name)
    record: Any = subject.conclusion.record
    conclusion = replace(subject.conclusion, record=replace(record, peak_tflops=500.0))
    history = cells.scored_with(subject.history, tflops=200.0, memory_gb=71.3)
    subject = replace(subject, history=history, conclusion=conclusion)
    return markdown(cell_document(subject))


# a figure with more digits than all processors agree on:  0.030129384712093
_LONG_FRACTION = re.compile(r"-?\d+\.\d{10,}(?:e-?\d+)?")
ARTEFACTS: Mapping[str, Callable[[], str]] = {
    "leaderboard.md": lambda: markdown(leaderboard(FINISHED)),
    "leaderboard-begun.md": lambda: markdown(leaderboard(BEGUN_SUBJECT)),
    # Every seventh trial says all that a file of 80 kB would. Processors differ in the last digits.
    "leaderboard.json": lambda: _LONG_FRACTION.sub(
        lambda match: f"{float(match[0]):.9g}",
        leaderboard_json(replace(FINISHED, history=FINISHED.history[1::7])),
    ),
    "leaderboard-80.txt": lambda: in_terminal(80),
    "leaderboard-160.txt": lambda: in_terminal(160),
    "tuning.md": lambda: markdown(tuning([replace(COVERED, explanation=EXPLAINED)])),
    "tuning.zh.md": lambda: markdown(
        tuning([replace(COVERED, explanation=EXPLAINED)], Language.CHINESE)
    ),
    "tuning-two.md": lambda: markdown(tuning([other_parallelism(), COVERED])),
    "tuning-two.patch": lambda: patch_of([other_parallelism(), COVERED]).text,
    "tuning-stopped.md": lambda: markdown(tuning([STOPPED])),
    **{f"{name}.md": partial(study, name) for name in cells.WORLDS},
    "live-lines.txt": live_lines,
    "paragraphs.txt": all_paragraphs,
}


@pytest.mark.parametrize("name", ARTEFACTS)
def test_artefact_is_as_recorded(name: str) -> None:
    text = ARTEFACTS[name]()
    assert "do-not-print-me" not in text
    assert "None" not in text, "Python's word for absent"
    golden.check(GOLDEN / name, text)


def test_every_golden_file_belongs_to_an_artefact() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == ARTEFACTS.keys()


ANY_TEXT = st.text(st.characters(codec="utf-8"), max_size=60) | st.sampled_from(
    ["|", "a|b`c|d`", "`", "``", "\n## x", "<b>*x*", "\\|", "--f=a|b", "\r\n\x0b\x85\u2028"]
)


FIGURES: dict[Callable[[Any], str], list[tuple[Any, str]]] = {
    figures.points: [(0.034, "+3.4"), (-0.0, "+0.0"), (-0.0004, "-0.04"), (math.nan, "nan")],
    figures.interval: [((0.012, 0.034), "[+1.2, +3.4]"), ((-0.0003, 0.2), "[-0.03, +20.0]")],
    figures.rate: [(994.9, "994.9"), (15321.44, "15321.4"), (7.3, "7.300")],
    figures.significant: [(28.8203, "28.82"), (0.07104, "0.07104"), (math.nan, "nan")],
    figures.duration: [
        *((97200, "1 d 3 h"), (86400, "1 d"), (7800, "2 h 10 min"), (7200, "2 h")),
        *((61, "2 min"), (60, "1 min"), (0.2, "1 s"), (-5, "0 s")),
    ],
}


def test_figures() -> None:
    for write, shown in FIGURES.items():
        assert [write(value) for value, _ in shown] == [text for _, text in shown]
        assert write(None) == figures.ABSENT


def test_jobs_stand_in_the_order_of_their_start_though_numbers_of_processes_begin_anew() -> None:
    def result(job: str, start_s: float | None) -> TrialResult:
        ended = Outcome(state=State.COMPLETED, start_s=start_s)
        status = TrialStatus.MEASURED
        return TrialResult(trial=trial_of(CELL), status=status, job_ids=(job,), outcome=ended)

    starts = {"32539.327731": 10.0, "9990.99": 30.0, "9": 20.0, "512_4": None}
    history = tuple(result(*each) for each in starts.items())
    table = jobs_table([("", replace(FINISHED, history=history))])
    assert table is not None
    assert [row[0] for row in table.rows] == ["32539.327731", "9", "9990.99", "512_4"]


COLUMNS = columns("~Profile", "~Flags", ">TGS")


def document(*blocks: Table | Text | Bullets | Code) -> Document:
    return Document(title="t", header=(), sections=(Section(title="s", blocks=blocks),))


@given(rows=st.lists(st.tuples(ANY_TEXT, ANY_TEXT, ANY_TEXT), max_size=5))
def test_foreign_text_never_breaks_a_markdown_table(rows: list[tuple[str, str, str]]) -> None:
    cells = tuple((literal(first), plain(second), literal(third)) for first, second, third in rows)
    table = Table(title="x", columns=COLUMNS, rows=cells)
    lines = markdown(document(table)).splitlines()
    body = lines[lines.index("### x") + 2 :]
    assert len(body) == 2 + len(rows)
    for line in body:
        assert len(re.findall(r"(?<!\\)\|", line)) == 1 + len(COLUMNS)
        assert line.count("`") % 2 == 0


def test_markup_is_text() -> None:
    text = markdown(document(Text(text="a *b* <c> \\d `e *f* <g> \\h`")))
    assert text.endswith("a \\*b\\* \\<c> \\\\d `e *f* <g> \\h`\n")
    text = markdown(document(Code(text="echo ```\n", language="bash")))
    assert text.endswith("\n````bash\necho ```\n````\n")


@given(
    rows=st.lists(st.tuples(ANY_TEXT, ANY_TEXT), max_size=4),
    width=st.integers(40, 200),
    note=ANY_TEXT,
)
@example(rows=[("0" * 39 + " 0", "")], width=40, note="")
@settings(deadline=None)
def test_no_line_is_wider_than_the_terminal(
    rows: list[tuple[str, str]], width: int, note: str
) -> None:
    cells = tuple((literal(first), literal(second), "994.9") for first, second in rows)
    table = Table(title=plain(note), columns=COLUMNS, rows=cells)
    blocks = (table, Text(text=plain(note)), Bullets(items=(literal(note),)))
    lines = terminal(document(*blocks), width=width)
    for line in lines:
        assert len(line) <= width or len(line.split()) == 1, "a word is not broken, a line is"
    assert all(printable(line) == line and "`" not in line for line in lines)


FLAG = "--xla_gpu_experimental_parallel_collective_overlap_limit=2"
LONG = "stack.overlap-2+ag-1g+rs-256m+pipelined-all-reduce+latency-hiding"[:64]


def test_ids_and_flags_are_never_broken_and_tables_fit() -> None:
    titles = (">TGS", ">step (s)", ">delta % vs baseline-deployed", ">95 %", ">n")
    figures = ("800.7", "0.6394", "-20.0", "[+1.2, +5.6]", "1")
    said = "unknown-flag (--xla_cpu_enable_warp_drive=true): dropped"
    table = Table(
        columns=columns("~Profile", "~Flags", *titles, "~reason"),
        rows=tuple(
            (literal(name), literal(f"{FLAG} A=1"), *figures, plain(said)) for name in (LONG, "a")
        ),
    )
    for width in (60, 120):
        lines = terminal(document(table), width=width)
        assert max(map(len, lines)) <= max(width, 66)
        text = "\n".join(lines)
        for word in (LONG, FLAG, "[+1.2, +5.6]", "--xla_cpu_enable_warp_drive=true"):
            assert word in text, "in one piece, on one line"


GITHUB = ".github-benchmark.json"


def texts(report: Exported) -> dict[str, str]:
    """Suffix of a file -> its text, of all formats."""
    of_formats = [export_of(name).texts(report, key="k") for name in EXPORTS.ours]
    return {suffix: text for made in of_formats for suffix, text in made.items()}


def csv_rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline="")))


def check_github(text: str) -> list[dict[str, Any]]:
    """Read it as `extractCustomBenchmarkResult` of the action does, and what it then calls."""
    found: list[dict[str, Any]] = json.loads(text, parse_constant=pytest.fail)
    assert isinstance(found, list)
    for each in found:
        assert set(each) <= {"name", "value", "unit", "range", "extra"}
        assert isinstance(each["value"], int | float)
        assert each["value"] > 0, "a ratio to the value before is taken"
        assert all(isinstance(each[key], str) for key in ("name", "unit"))
    assert len({each["name"] for each in found}) == len(found), "a name is one line of the chart"
    return found


def repr_of(value: float | None) -> str:
    return "" if value is None else repr(value)


def test_each_trial_is_a_row_of_a_table() -> None:
    report = exported(leaderboard_json(FINISHED), sweep="pp8", study="tuning")
    found = texts(report)
    assert "do-not-print-me" not in str(found)
    for row, (trial_id, result) in zip(csv_rows(found[".trials.csv"]), report.trials, strict=True):
        assert (row["trial"], row["status"]) == (trial_id, result.status)
        assert row["figure"] == repr_of(result.score.tgs if result.score else None)
        assert row["job_ids"].split() == [*result.job_ids]
    github = {entry["name"]: entry["value"] for entry in check_github(found[GITHUB])}
    tgs = {
        f"{FINISHED.cell.label}: {verdict.arm}": verdict.tgs
        for verdict in report.arms
        if verdict.tgs
    }
    assert github == tgs


HARD = st.sampled_from(['"', "\\", "\n", "\\n", "\r", "\0", ",", "{", "}", "=", "'", "#", "\u2028"])
HOSTILE = st.lists(ANY_TEXT | HARD, max_size=6).map("".join)


@settings(max_examples=tried(40))
@given(
    arms=st.lists(HOSTILE.map("a{}z".format), min_size=1, max_size=4, unique=True),
    text=HOSTILE,
    value=st.floats(allow_nan=True, allow_infinity=True) | st.none(),
)
def test_names_and_texts_may_hold_any_character(
    arms: list[str], text: str, value: float | None
) -> None:
    ends = (value, value) if value is not None else None
    one = Verdict(arm="", kind=VerdictKind.SCREENED, n=1, delta=value, ci95=ends, tgs=1.5)
    one = replace(one, reasons=(verbatim(text),), job_ids=(text,))
    figure = Figure(metric=BUSBW, value=90.0)
    verdicts = tuple(replace(one, arm=arm, figure=figure) for arm in arms)
    report = replace(
        exported(leaderboard_json(FINISHED), sweep="pp8", study="tuning"),
        sweep=text,
        cell=replace(FINISHED.cell, config_tag=text),
        conclusion=Conclusion(verdicts=verdicts),
    )
    found = texts(report)
    for written in found.values():
        written.encode()
    rows = csv_rows(found[".arms.csv"])
    assert [printable(row["arm"]) for row in rows] == [*map(printable, arms)]
    for row in rows:
        assert {printable(row["reasons"]), printable(row["sweep"])} == {printable(text)}
        assert {row["delta"], row["ci95_low"], row["ci95_high"]} == {repr_of(value)}
        assert (row["verdict"], row["figure"], row["n"]) == ("SCREENED", "90.0", "1")
    for entry in check_github(found[GITHUB]):
        assert (entry["value"], entry["unit"]) == (90.0, "GB/s")


def test_files_lie_beside_the_report_and_without_a_client_nothing_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = campaign(tmp_path, FakeExecutor())
    run(held)
    reports = tmp_path / "reports"
    argv = ["report", str(held.folder), "--reports", str(reports), "--export"]
    for name in ("mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)
        assert main([*argv, name]) == 2
        assert f"install pytest-xlatune[{name}]" in capsys.readouterr().err
        assert not reports.exists()
    assert main([*argv, "csv,github-benchmark"]) == 0
    text = (reports / "pretend" / "leaderboard.json").read_text(encoding="utf-8")
    for suffix, written in texts(exported(text, sweep="pretend", study="tuning")).items():
        assert (reports / "pretend" / f"leaderboard{suffix}").read_bytes().decode() == written


def test_formats_are_a_list_of_known_ones() -> None:
    def options(text: str) -> RunSettings:
        return resolve_options({"xlatune_export": text}, {}, {}, root=Path("/project"))

    assert options("csv, github-benchmark,csv").export == ("csv", "github-benchmark")
    with pytest.raises(ConfigError, match="unknown format 'cvs' in the list; did you mean 'csv'"):
        options("cvs")


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
OF_TINY = (
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
    made = scripted.campaign(folder, executor, profiles=OF_TINY, cell=cell)
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
    feed = LiveLines(made.folder, tmp_path, session_id="first")
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
    scripted.campaign(tmp_path, FakeExecutor(), profiles=OF_TINY, cell=PP, session="second")
    feed = LiveLines(made.folder, tmp_path, session_id="second")
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
