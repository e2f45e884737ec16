"""What documents, messages and claims of a sweep hold, how they are written, and golden files."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.model import text as figures
from pytest_xlatune.model.cell import DeployedFile
from pytest_xlatune.model.message import MessageCode, coded, verbatim
from pytest_xlatune.model.profile import BASELINE_ID, NO_ENV_ID, Profile
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
from pytest_xlatune.report.cell_documents import cell_document
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
    plain,
)
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
from pytest_xlatune.report.render import markdown, terminal
from pytest_xlatune.report.tuning_document import tuning
from tests.helpers import cells, golden, history
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
from tests.helpers.history import CELL, trial_of
from tests.helpers.tables import rows
from tests.helpers.tuned import Machine, mixed


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
def test_json_has_long_jobs_steps_of_baselines_alone_which_a_gate_scores_again(steps: int) -> None:
    timings = tuple((at, 28.5) for at in range(steps))
    subject = replace(FINISHED, history=cells.scored_with(HISTORY, timings=timings))
    scored = [each for each in json.loads(leaderboard_json(subject))["trials"] if each["score"]]
    assert {each["trial"]["arm"] for each in scored} > {BASELINE_ID}
    for each in scored:
        is_kept = steps == 100 or each["trial"]["arm"] == BASELINE_ID
        assert each["score"]["timings"] == ([*map(list, timings)] if is_kept else [])


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
    small = Table(
        columns=columns("Profile", *titles, "~verdict", "~settings"),
        rows=(("slow", *figures, "very likely slower", "in effect"),),
    )
    for width in range(40, 120):
        assert max(map(len, terminal(document(small), width=width))) <= width
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
