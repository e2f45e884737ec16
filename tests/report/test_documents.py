"""What the documents of a finished sweep hold: tables, the winner, every job, JSON."""

from __future__ import annotations

import json
from dataclasses import replace

from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.result import Conclusion, LostRuns, Verdict, VerdictKind
from pytest_xlatune.report.leaderboard import leaderboard, leaderboard_json
from pytest_xlatune.report.lines import paragraph, words
from pytest_xlatune.report.render import markdown
from pytest_xlatune.report.tuning_document import tuning
from tests.report.covered import COVERED, ENV_FILE
from tests.report.finished import (
    BLOCKS,
    CONCLUSION,
    FINISHED,
    HISTORY,
    PROFILES,
)


def test_confirmed_and_screened_profiles_share_no_table() -> None:
    sections = markdown(leaderboard(FINISHED)).split("### ")
    confirmed = next(each for each in sections if each.startswith("Confirmed"))
    screened = next(each for each in sections if each.startswith("Screened:"))
    for verdict in CONCLUSION.verdicts:
        row = f"`{verdict.arm}`"
        is_screened = verdict.kind is VerdictKind.SCREENED
        assert (row in screened) == is_screened
        assert (row in confirmed) == (verdict.n == BLOCKS)


def test_only_a_faster_profile_has_a_star() -> None:
    assert "★ `overlap-2`" in markdown(leaderboard(FINISHED))
    no_winner = [each for each in CONCLUSION.verdicts if each.kind is not VerdictKind.FASTER]
    rest = Conclusion(verdicts=tuple(no_winner), reference=CONCLUSION.baseline)
    assert "★" not in markdown(leaderboard(replace(FINISHED, conclusion=rest)))
    assert "★" not in markdown(tuning([replace(COVERED, conclusion=rest)]))


def test_the_columns_compare_with_the_reference_of_the_conclusion() -> None:
    """Its own line has no delta, and a row of the baseline's name beside it has one."""
    base = CONCLUSION.baseline
    other, *rest = [each for each in CONCLUSION.verdicts if each.kind is VerdictKind.FASTER]
    swapped = replace(
        CONCLUSION,
        reference=replace(base, arm="abc123"),
        verdicts=(replace(other, arm=base.arm), *rest),
    )
    text = markdown(leaderboard(replace(FINISHED, conclusion=swapped)))
    (table,) = (each for each in text.split("### ") if each.startswith("Confirmed"))
    assert "delta % vs abc123" in table
    rows = {line.split("|")[1].strip(" ★`"): line for line in table.splitlines() if "|" in line}
    assert "| baseline |" in rows["abc123"]
    assert "FASTER" in rows[base.arm]


def test_long_tables_keep_the_top_eight_and_the_bottom_five() -> None:
    many = tuple(
        Verdict(arm=f"p{at:02}", kind=VerdictKind.SCREENED, delta=-at / 1000, n=1)
        for at in range(20)
    )
    conclusion = Conclusion(verdicts=many, reference=CONCLUSION.baseline)
    text = markdown(tuning([replace(COVERED, conclusion=conclusion)]))
    shown = [each.arm for each in many if f"`{each.arm}`" in text]
    assert shown == [each.arm for each in (*many[:8], *many[15:])]
    assert "7 more profiles between these." in text
    assert "`p12`" in markdown(leaderboard(replace(FINISHED, conclusion=conclusion)))


def test_lost_runs_hangs_and_retries_are_told_in_every_view() -> None:
    lost = LostRuns(lost=2, runs=4, to=("hang",))
    slow = Verdict(
        arm="overlap-2", kind=VerdictKind.INCONCLUSIVE, delta=0.04, n=2, lost=lost, hangs=5,
        retries=3, reasons=(f"{lost.words}, 0 of 8 of the baselines: the fast ones may be left",),
    )  # fmt: skip
    conclusion = Conclusion(verdicts=(slow,), reference=CONCLUSION.baseline)
    for document in (
        leaderboard(replace(FINISHED, conclusion=conclusion)),
        tuning([replace(COVERED, conclusion=conclusion)]),
    ):
        text = markdown(document)
        assert "inconclusive, 2 of 4 runs lost: hang |" in text
        assert "| `overlap-2` | 2 of 4 | hang | 5 | 3 |" in text
    assert words(slow) == "inconclusive, 2 of 4 runs lost: hang"
    assert "2 of 4 runs lost: hang" in paragraph(slow)
    told = json.loads(leaderboard_json(replace(FINISHED, conclusion=conclusion)))
    (verdict,) = told["conclusion"]["verdicts"]
    assert verdict["lost"] == {"lost": 2, "runs": 4, "to": ["hang"]}
    assert (verdict["hangs"], verdict["retries"]) == (5, 3)


def test_overrides_of_the_winner_are_for_the_trainer() -> None:
    best = Verdict(arm="microbatches-16", kind=VerdictKind.FASTER, delta=0.02, n=4)
    conclusion = Conclusion(verdicts=(best,), reference=CONCLUSION.baseline)
    covered = replace(COVERED, conclusion=conclusion, files=(ENV_FILE,))
    text = markdown(tuning([covered]))
    deployment = text.split("## Recommended deployment")[1].split("\n## ")[0]
    assert "Give these keys to the trainer:\n\n```\nnum_pipeline_microbatches=16\n```" in deployment
    assert "export" not in deployment


def test_a_winner_whose_settings_are_gone_is_not_read_as_no_winner() -> None:
    text = markdown(tuning([replace(COVERED, profiles=())]))
    assert "The sweep no longer names the settings of `overlap-2`." in text
    assert "Leave the deployed environment" not in text


def test_every_job_is_in_the_appendix_once_in_order() -> None:
    text = markdown(tuning([COVERED]))
    appendix = text.split("## Appendix: data sources")[1]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in appendix.splitlines()]
    jobs = [int(each) for each in rows if each.isdecimal()]
    assert jobs == sorted(int(job) for each in HISTORY for job in each.job_ids)


def test_json_holds_the_records_themselves() -> None:
    data = json.loads(leaderboard_json(FINISHED))
    assert data["schema"] == 2
    # through text and back: NaN is not equal to itself, its JSON is
    assert Conclusion.from_json(data["conclusion"]).to_json() == CONCLUSION.to_json()
    assert [Profile.from_json(each) for each in data["profiles"]] == [*PROFILES]
    trials = {each.pop("id"): each for each in data["trials"]}
    assert trials == {each.trial.id: each.to_json() for each in HISTORY}
    nan = next(each for each in HISTORY if each.trial.profile.id == "fast-math")
    assert trials[nan.trial.id]["score"]["loss"] == "nan"


def test_json_does_not_depend_on_the_order_of_the_history() -> None:
    backwards = leaderboard_json(replace(FINISHED, history=FINISHED.history[::-1]))
    assert backwards == leaderboard_json(FINISHED)
