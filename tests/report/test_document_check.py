"""The check of a tuning document notices every changed digit of a table or a figure.

The document is made from a ledger of pretend trials, with a patch, a dropped and a slower profile.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.ledger import TrialEnded, TrialPlanned
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.reason import verbatim
from pytest_xlatune.model.redact import hide_quoted
from pytest_xlatune.model.result import Action, Finding, TrialResult, TrialStatus
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.words import sentence
from pytest_xlatune.tasks.publish import publish
from tests.helpers.document.attempts import shares_of
from tests.helpers.document.check import PERCENT, unaccounted
from tests.helpers.document.figures import Books
from tests.helpers.document.lines import rounds_to
from tests.report.test_tuning_document import PP, PROFILES, SPEED, Measuring


class Timed(Measuring):
    """Trials that say when they began: the screen's line goes by it.

    What a log says is written as a campaign writes it, without secrets.
    """

    def _result(self, trial: Trial) -> TrialResult:
        result = super()._result(trial)
        said = (replace(each, text=hide_quoted(each.text)) for each in result.findings)
        why = hide_quoted(sentence(result.reason))
        result = replace(result, reason=verbatim(why) if why else None, findings=tuple(said))
        if result.outcome is None:
            return result
        return replace(result, outcome=replace(result.outcome, start_s=self.at_s))


def published(
    path: Path,
    *,
    at_most: int = 1000,
    overrides: dict[str, str] | None = None,
    kind: type[Timed] = Timed,
    **changes: Any,
) -> tuple[str, str, Books]:
    """The tuning document, the leaderboard and the ledger of so many trials of one sweep."""
    cell = replace(PP, deployed={"XLA_FLAGS": "--xla_deployed=1"}, overrides=overrides or {})
    measuring = kind(cell, path, SPEED, job=14600)
    shown = tuple(each for each in measuring.study.profiles if not each.env)
    measuring.study = replace(measuring.study, **{"profiles": shown, **changes})
    measuring.open()
    measuring.run(at_most=at_most)
    publish(measuring.folder, path / "reports")
    texts = [path / "reports" / name for name in ("tiny-tuning.md", "sweep-pp8/leaderboard.md")]
    tuning, board = (each.read_text(encoding="utf-8") for each in texts)
    return tuning, board, Books(measuring.folder / "ledger.jsonl")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Books]:
    """The tuning document, the leaderboard and the ledger of one sweep."""
    return published(tmp_path_factory.mktemp("sweep"))


class OnOtherNodes(Timed):
    """From one job of the screen on the nodes are others, and slower: an epoch begins."""

    first = 0

    def _result(self, trial: Trial) -> TrialResult:
        result = super()._result(trial)
        if self.job - 14600 < self.first or result.score is None:
            return replace(result, epoch=int(self.job - 14600 >= self.first))
        tgs = (result.score.tgs or 0.0) * 0.97
        score = replace(result.score, value=math.log(tgs), tgs=tgs, step_s=7 * 4096 / tgs)
        return replace(result, epoch=1, score=score)


class OnSlots(Timed):
    """Three node slots side by side: each runs the first of its trials, then all the next."""

    slow = 0.97  # of the third slot
    dead = 0  # the number of a slot that takes no trial after so many rounds
    after = 0

    def run(self, *, at_most: int = 1000) -> None:
        cells = {each.digest: (at, each) for at, each in enumerate(self.study.cells, 1)}
        planned: set[str] = set()
        for number in range(at_most):
            pending = self.study.propose(tuple(self.history))
            new = [each for each in pending if each.id not in planned]
            planned |= {each.id for each in new}
            self.write(*(TrialPlanned(trial=each) for each in new))
            for trial in {each.cell_digest: each for each in reversed(pending)}.values():
                at, cell = cells[trial.cell_digest]
                result = self._result(trial)
                if at == self.dead and number >= self.after:
                    said = Finding(cls="node-drain", action=Action.NONE, text="drained")
                    result = TrialResult(
                        trial=trial,
                        status=TrialStatus.UNMEASURED,
                        reason=verbatim("drained"),
                        findings=(said,),
                        job_ids=result.job_ids,
                    )
                elif result.outcome is not None:
                    outcome = replace(result.outcome, nodes=cell.nodelist)
                    result = replace(result, outcome=outcome)
                if result.score is not None and at == 3:
                    tgs = (result.score.tgs or 0.0) * self.slow
                    score = replace(
                        result.score, value=math.log(tgs), tgs=tgs, step_s=7 * 4096 / tgs
                    )
                    result = replace(result, score=score)
                self.history.append(result)
                self.write(TrialEnded(result=result))


class NextDay(OnSlots):
    """Second runs and blocks of another day, on which the nodes are slower."""

    def _result(self, trial: Trial) -> TrialResult:
        result = super()._result(trial)
        if trial.stage.startswith("wave") or result.outcome is None or result.score is None:
            return result
        later = (result.outcome.start_s or 0.0) + 86400.0
        tgs = (result.score.tgs or 0.0) * 0.96
        return replace(
            result,
            outcome=replace(result.outcome, start_s=later),
            score=replace(result.score, value=math.log(tgs), tgs=tgs, step_s=7 * 4096 / tgs),
        )


SLOTS, FIVE = (
    tuple((f"node{at:03}", f"node{at + 1:03}") for at in range(1, 2 * count, 2)) for count in (3, 5)
)
MANY = tuple(profile(f"p{k}", f"--xla_p{k}=1") for k in range(17))


# a line of text, or a note in a table: of these the summary alone has figures that are compared
PROSE = re.compile(r"^(?:\| Note \||[^#|*\n]).*$", re.MULTILINE)


def changed_digits(text: str) -> list[str]:
    """The text with each digit of its tables and figures changed, one at a time."""
    code = [range(*match.span()) for match in re.finditer(r"(?s)```.*?```", text)]
    skipped: set[int] = set()
    for match in PROSE.finditer(text):
        if not any(match.start() in each for each in code):
            # the winner's delta and interval, and M
            figures = list(PERCENT.finditer(match[0]))[: 4 if match[0].startswith("★") else 0]
            own = {at for each in figures for at in range(*each.span())}
            skipped |= {match.start() + at for at in range(len(match[0])) if at not in own}
    return [
        f"{text[: match.start()]}{(int(match[0]) + 1) % 10}{text[match.end() :]}"
        for match in re.finditer("[0-9]", text)
        if match.start() not in skipped
    ]


def test_a_document_that_follows_from_its_ledger_has_no_complaint(
    made: tuple[str, str, Books],
) -> None:
    tuning, board, books = made
    assert unaccounted(tuning, books) == []
    assert unaccounted(board, books) == []
    assert "oom" in tuning
    assert "| `slow` |" in tuning
    assert "diff --git" in tuning


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(6, id="each sixth"),
        pytest.param(1, id="each", marks=pytest.mark.part("sweeps")),
    ],
)
def test_every_digit_that_is_changed_is_noticed(made: tuple[str, str, Books], step: int) -> None:
    tuning, board, books = made
    for text in (tuning, board):
        changed = changed_digits(text)
        assert len(changed) > 150
        for each in changed[::step]:
            assert unaccounted(each, books), set(each.splitlines()) - set(text.splitlines())


ASSUMED = "an assumed job noise of 0.60 % (this cell was not calibrated: 'xlatune calibrate SWEEP_"
AS_PLANNED = {"finalists": 0, "blocks": 0, "block_baselines": 0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        pytest.param({}, ASSUMED, id="of-a-cell-that-was-not-calibrated"),
        pytest.param({"sigma_prior": 0.004}, "the known job noise of 0.40 %", id="calibrated"),
        pytest.param({"sigma_prior": 1e-6}, "% that the screen shows", id="less-than-is-seen"),
        pytest.param({**AS_PLANNED, "budget": 40}, ASSUMED, id="as-planned-by-the-budget"),
        pytest.param({**AS_PLANNED, "budget": 16}, ASSUMED, id="the-smallest-layout-of-three"),
    ],
)
def test_what_a_plan_confirms_is_told_with_where_its_noise_is_from(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    tuning, board, books = published(tmp_path, at_most=7, **changes)
    (said,) = [line for line in board.splitlines() if "this plan (" in line]
    assert words in said
    assert said in tuning
    for text in (tuning, board):
        assert unaccounted(text, books) == []
        for match in re.finditer("[0-9](?=[0-9.]* %)", said):
            changed = f"{said[: match.start()]}{(int(match[0]) + 1) % 10}{said[match.end() :]}"
            assert unaccounted(text.replace(said, changed), books), changed


def test_the_bubble_is_computed_from_the_settings_again(tmp_path: Path) -> None:
    shapes = (
        profile("deeper", overrides={"num_pipeline_microbatches": "32"}),
        profile("late", overrides={"pipeline_delay_activation_forwarding": "true"}),
        profile("odd", overrides={"num_pipeline_microbatches": "12"}),
        profile("flag", "--xla_overlap=2"),
    )
    settings = {"num_pipeline_microbatches": "16", "base_num_decoder_layers": "32"}
    tuning, board, books = published(tmp_path, overrides=settings, profiles=shapes)
    assert "| `deeper` | 8 | 32 | 4 | 5.2 % | +5.2 |" in tuning
    assert "odd: 12 microbatches are not a multiple of 8 stages." in tuning
    for text, level in ((tuning, "###"), (board, "##")):
        assert unaccounted(text, books) == []
        before, section = text.split(f"\n{level} Pipeline bubble\n")
        section, *after = section.split("\n## ")
        table = section.split("\n\n")[1]
        for each in changed_digits(table):
            changed = "\n## ".join([section.replace(table, each), *after])
            assert unaccounted(f"{before}\n{level} Pipeline bubble\n{changed}", books), each


ON_SLOTS: dict[str, Any] = {
    "slots": SLOTS,
    "profiles": (*PROFILES[:2], *MANY[:11]),
    "screen_baselines": 0,
    "budget": 70,
}


@pytest.fixture(scope="module")
def on_slots(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, Books]:
    """The same of a sweep on three node slots, the third slower by 3 %."""
    return published(tmp_path_factory.mktemp("slots"), kind=OnSlots, **ON_SLOTS)


def test_a_sweep_on_slots_follows_from_its_ledger(on_slots: tuple[str, str, Books]) -> None:
    tuning, board, books = on_slots
    assert "* Node slots: 1: node[001-002]; 2: node[003-004]; 3: node[005-006]" in tuning
    assert books.winner == "overlap-2"
    assert books.slower_slots.keys() == {3}
    for text in (tuning, board):
        assert unaccounted(text, books) == []
    for each in changed_digits(board):
        assert unaccounted(each, books), set(each.splitlines()) - set(board.splitlines())


@pytest.mark.parametrize(
    ("pattern", "instead"),
    [
        pytest.param(r"\n(\| 14601 \|) 3 \|", r"\n\1 1 |", id="a job on another slot"),
        pytest.param(r"\| Job \| Slot \|", "| Job |", id="no column of slots"),
        pytest.param(r"2: node\[003-004\]", "2: host[003-004]", id="other nodes of a slot"),
        pytest.param(r"; 3: node\[005-006\]", "", id="a slot less"),
        pytest.param(r"\* Node slots.*\n", "", id="no nodes"),
        pytest.param(r"on 3 node slots", "on 4 node slots", id="another number of slots"),
        pytest.param(r"slot 3 (\(\S+\) is slower)", r"slot 2 \1", id="another slot is slower"),
        pytest.param(r"by 3\.1 %, more than noise", "by 3.2 %, more than noise", id="by more"),
        pytest.param(r"\n.*than the others by.*", "", id="no slot is slower"),
        pytest.param(r"\Z", "\nslot 1 (node[001-002]) takes no trial: x\n", id="a dead slot"),
    ],
)
def test_what_is_said_of_slots_is_compared(
    on_slots: tuple[str, str, Books], pattern: str, instead: str
) -> None:
    tuning, _, books = on_slots
    changed = re.sub(pattern, instead, tuning, count=1)
    assert changed != tuning
    assert unaccounted(changed, books)


TWICE = {**ON_SLOTS, **AS_PLANNED, "slots": FIVE, "profiles": (*PROFILES[:2], *MANY)}


@pytest.mark.part("sweeps")
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        pytest.param(OnSlots, {}, id="at once"),
        pytest.param(NextDay, {}, id="on the next day"),
        pytest.param(Timed, {"slots": (), "budget": 65}, id="on one slot, by a large budget"),
    ],
)
def test_a_sweep_with_second_runs_follows_from_its_ledger(
    tmp_path: Path, kind: type[Timed], changes: dict[str, Any]
) -> None:
    tuning, board, books = published(tmp_path, kind=kind, **{**TWICE, **changes})
    again = {each.name for each in books.jobs if each.wave == "again"}
    assert len(again) == 8
    confirmed = {each.name for each in books.jobs if each.stage == "confirm"}
    assert confirmed - {"baseline-deployed"} < again
    assert books.winner == "overlap-2"
    for text in (tuning, board):
        assert unaccounted(text, books) == []
    for each in changed_digits(board)[::23]:
        assert unaccounted(each, books), set(each.splitlines()) - set(board.splitlines())


def test_what_a_plan_with_second_runs_finds_is_computed_again(tmp_path: Path) -> None:
    _, board, books = published(tmp_path, kind=OnSlots, at_most=3, **TWICE)
    (said,) = [line for line in board.splitlines() if "this plan (57 jobs)" in line]
    known = len(unaccounted(board, books))
    for match in re.finditer("[0-9](?=[0-9.]* %)", said):
        changed = f"{said[: match.start()]}{(int(match[0]) + 1) % 10}{said[match.end() :]}"
        assert len(unaccounted(board.replace(said, changed), books)) > known, changed


@pytest.mark.parametrize("after", [2, 7], ids=["in the screen", "in a block"])
def test_what_a_dead_slot_took_along_is_in_no_figure(tmp_path: Path, after: int) -> None:
    kind = type("Dying", (OnSlots,), {"dead": 1, "after": after})
    tuning, board, books = published(tmp_path, kind=kind, **ON_SLOTS)
    assert "slot 1 (node[001-002]) takes no trial: drained" in tuning
    assert len(books.every_job) > len(books.jobs)
    for text in (tuning, board):
        assert unaccounted(text, books) == []


def test_a_block_on_two_slots_that_live_is_noticed(
    on_slots: tuple[str, str, Books], tmp_path: Path
) -> None:
    tuning, _, books = on_slots
    lines = (books.folder / "ledger.jsonl").read_text(encoding="utf-8").splitlines()
    one, other = list(books.slots)[:2]
    changed = [
        line.replace(one, "?").replace(other, one).replace("?", other)
        if '"block":1,' in line.replace(": ", ":") and "overlap-2" in line
        else line
        for line in lines
    ]
    assert changed != lines
    (tmp_path / "ledger.jsonl").write_text("\n".join(changed) + "\n", encoding="utf-8")
    assert any(
        "lies elsewhere" in each for each in unaccounted(tuning, Books(tmp_path / "ledger.jsonl"))
    )


@pytest.mark.parametrize(
    ("pattern", "instead"),
    [
        pytest.param(r"\n\| 14603 .*", "", id="a job less"),
        pytest.param(r"\n(\| 14603 .*)", r"\n\1\n\1", id="a job twice"),
        pytest.param(r"\+(9\.|10\.)", r"-\1", id="another sign"),
        pytest.param(r"★ (`overlap-2` \|)", r"\1", id="no star"),
        pytest.param(r"\n\| `same` .*", "", id="a profile less"),
        pytest.param(r"screen \| 1 \|", "confirm | 1 |", id="another stage"),
        pytest.param(r"`node001`, `node002`", "`node001`", id="a node less"),
        pytest.param(r"\Z", "\nIt gained 3.3 %.\n", id="a figure more"),
        pytest.param(
            r"\Z", "\n| Flag | Gain |\n| :--- | ---: |\n| a | b |\n", id="a table of its own"
        ),
        pytest.param(r"--xla_overlap=2\n", "--xla_overlap=2 --xla_more=1\n", id="a flag more"),
    ],
)
def test_what_is_no_digit_is_noticed_too(
    made: tuple[str, str, Books], pattern: str, instead: str
) -> None:
    tuning, _, books = made
    changed = re.sub(pattern, instead, tuning, count=1)
    assert changed != tuning
    assert unaccounted(changed, books)


def test_another_job_in_the_ledger_is_noticed(made: tuple[str, str, Books], tmp_path: Path) -> None:
    tuning, _, books = made
    text = (books.folder / "ledger.jsonl").read_text(encoding="utf-8")
    (tmp_path / "ledger.jsonl").write_text(text.replace('"14605"', '"99999"'), encoding="utf-8")
    assert unaccounted(tuning, Books(tmp_path / "ledger.jsonl"))


@pytest.mark.parametrize(
    ("value", "shown", "is_right"),
    [
        (1092.7008, "1092.7", True),
        (1092.7008, "1092.8", False),
        (0.046, "+0.05", True),
        (-0.046, "+0.05", False),
        (9.25, "9.2", True),
        (9.25, "9.3", True),
        (9.25, "9.4", False),
        (3, "3", True),
        (3, "4", False),
    ],
)
def test_a_figure_is_right_where_it_is_the_value_rounded(
    value: float, shown: str, is_right: bool
) -> None:
    assert rounds_to(value, shown) == is_right


@pytest.mark.parametrize("first", [3, 5, 7, 9])
def test_an_epoch_that_begins_in_the_middle_of_the_screen_follows_from_its_ledger(
    tmp_path: Path, first: int
) -> None:
    """A line is level past the baselines of its epoch."""
    kind = type("Changed", (OnOtherNodes,), {"first": first})
    tuning, board, books = published(tmp_path, kind=kind)
    assert unaccounted(tuning, books) == []
    assert unaccounted(board, books) == []


def test_the_parts_of_every_evidence_run_may_be_named_alone_and_together() -> None:
    """A sweep has the evidence of its baseline and of its winner; a setting acts on three parts."""
    parts = ({"communication": 0.5, "compute": 0.25, "idle": 0.125}, {"compute": 1.0})
    lines = [{"event": "evidence-recorded", "shares": {"of_step": each}} for each in parts]
    assert {0.5, 0.75, 0.875, 0.375, 1.0} <= set(shares_of(lines))
