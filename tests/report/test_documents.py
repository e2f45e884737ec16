"""What the documents of a finished sweep hold: tables, the winner, every job, JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.model.cell import DeployedFile
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import MessageCode, coded, verbatim
from pytest_xlatune.model.profile import BASELINE_ID, NO_ENV_ID, Profile
from pytest_xlatune.model.result import Conclusion, LostRuns, Verdict, VerdictKind
from pytest_xlatune.model.shares import Shares
from pytest_xlatune.report.cell_documents import cell_document
from pytest_xlatune.report.leaderboard import leaderboard, leaderboard_json
from pytest_xlatune.report.lines import paragraph, words
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.report.render import markdown
from pytest_xlatune.report.tuning_document import tuning
from pytest_xlatune.studies.batch_size import BatchSize
from pytest_xlatune.studies.commit_check import Commits
from pytest_xlatune.studies.network_check import Network
from pytest_xlatune.studies.node_check import Nodes
from tests.helpers import of_studies
from tests.helpers.covered import COVERED, ENV_FILE
from tests.helpers.finished import (
    CONCLUSION,
    FINISHED,
    HISTORY,
    PROFILES,
)


def test_the_head_says_where_a_step_goes_where_evidence_does() -> None:
    shares = Shares(of_step={"all-gather": 0.2, "communication": 0.31, "compute": 0.61})
    line = "compute, 61.0 % of a step; communication alone, 31.0 %"
    assert line in markdown(leaderboard(replace(FINISHED, exposed=shares.exposed)))
    covered = replace(COVERED, exposed=shares.exposed)
    assert line in markdown(
        tuning([MeasuredCell.from_json(json.loads(json.dumps(covered.to_json())))])
    )
    assert "Time of a step" not in markdown(leaderboard(FINISHED))


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
    lost = LostRuns(lost=2, runs=4, to=(verbatim("hang"),))
    why = coded(
        MessageCode.SURVIVORS,
        "{runs}: the others may be fast",
        runs=lost.message,
    )
    slow = Verdict(
        arm="overlap-2", kind=VerdictKind.INCONCLUSIVE, delta=0.04, n=2, lost=lost, hangs=5,
        retries=3, reasons=(why,),
    )  # fmt: skip
    conclusion = Conclusion(verdicts=(slow,), reference=CONCLUSION.baseline)
    for document in (
        leaderboard(replace(FINISHED, conclusion=conclusion)),
        tuning([replace(COVERED, conclusion=conclusion)]),
    ):
        text = markdown(document)
        assert "inconclusive, 2 of 4 runs lost: hang |" in text
        assert "| `overlap-2` | 2 / 4 | hang | 5 | 3 |" in text
    assert words(slow) == "inconclusive, 2 of 4 runs lost: hang"
    assert "2 of 4 runs lost: hang" in paragraph(slow)
    told = json.loads(leaderboard_json(replace(FINISHED, conclusion=conclusion)))
    (verdict,) = told["conclusion"]["verdicts"]
    assert verdict["lost"] == {"lost": 2, "runs": 4, "to": [verbatim("hang").to_json()]}
    assert (verdict["hangs"], verdict["retries"]) == (5, 3)


def test_overrides_of_the_winner_are_for_the_trainer() -> None:
    best = Verdict(arm="microbatches-16", kind=VerdictKind.FASTER, delta=0.02, n=4)
    conclusion = Conclusion(verdicts=(best,), reference=CONCLUSION.baseline)
    covered = replace(COVERED, conclusion=conclusion, files=(ENV_FILE,))
    text = markdown(tuning([covered]))
    deployment = text.split("## Recommended deployment")[1].split("\n## ")[0]
    assert "\n\n```\nnum_pipeline_microbatches=16\n```" in deployment
    assert "export" not in deployment


def test_a_load_that_only_the_yml_knows_stands_in_the_header() -> None:
    text = "per_device_batch_size: 8.0\nmax_target_length: 8192\n"
    yml = DeployedFile(path="m.yml", text=text, is_shell=False)
    bare = replace(COVERED.cell, per_device_batch_size=None, max_target_length=None)
    covered = replace(COVERED, cells=(bare,), files=(yml,))
    assert "8 sequences per device and step, 8192 tokens" in markdown(tuning([covered]))
    assert "8192" not in markdown(tuning([COVERED]))


def test_what_single_runs_say_of_the_deployed_flags_is_one_statement() -> None:
    likely = Verdict(
        arm=NO_ENV_ID, kind=VerdictKind.SCREENED, delta=-0.2, n=2, is_likely_slower=True
    )
    for verdict, said in (
        (likely, "very likely slower"),
        (replace(likely, is_likely_slower=False), "does not show whether"),
    ):
        conclusion = Conclusion(verdicts=(verdict,), reference=CONCLUSION.baseline)
        text = markdown(tuning([replace(COVERED, conclusion=conclusion)]))
        effect = text.split("## Effect of ")[1].split("\n## ")[0]
        assert (said in effect, "very likely slower" in effect) == (
            True,
            verdict.is_likely_slower,
        )


def test_a_winner_whose_settings_are_gone_is_not_read_as_no_winner() -> None:
    text = markdown(tuning([replace(COVERED, profiles=())]))
    assert "settings of `overlap-2`." in text
    assert "Leave the deployed environment" not in text


def test_json_holds_the_records_themselves() -> None:
    data = json.loads(leaderboard_json(FINISHED))
    assert data["schema"] == 3
    # through text and back: NaN is not equal to itself, its JSON is
    assert Conclusion.from_json(data["conclusion"]).to_json() == CONCLUSION.to_json()
    assert [Profile.from_json(each) for each in data["profiles"]] == [*PROFILES]
    trials = {each.pop("id"): each for each in data["trials"]}
    assert trials == {each.trial.id: each.to_json() for each in HISTORY}
    nan = next(each for each in HISTORY if each.trial.profile.id == "fast-math")
    assert trials[nan.trial.id]["score"]["loss"] == "nan"


@pytest.mark.parametrize("steps", [100, 101])
def test_json_has_long_jobs_steps_of_baselines_alone_which_a_gate_scores_again(steps: int) -> None:
    timings = tuple((at, 28.5) for at in range(steps))
    history = [
        replace(each, score=replace(each.score, timings=timings)) if each.score else each
        for each in HISTORY
    ]
    data = json.loads(leaderboard_json(replace(FINISHED, history=tuple(history))))
    scored = [each for each in data["trials"] if each["score"]]
    assert {each["trial"]["arm"] for each in scored} > {BASELINE_ID}
    for each in scored:
        is_kept = steps == 100 or each["trial"]["arm"] == BASELINE_ID
        assert each["score"]["timings"] == ([*map(list, timings)] if is_kept else [])


def test_json_does_not_depend_on_the_order_of_the_history() -> None:
    backwards = leaderboard_json(replace(FINISHED, history=FINISHED.history[::-1]))
    assert backwards == leaderboard_json(FINISHED)


def _used(subject: MeasuredCell, *, peak: float | None, **printed: Any) -> MeasuredCell:
    """Return a subject whose runs print what they take, with a stated peak."""
    record: Any = subject.conclusion.record
    scored = tuple(
        replace(each, score=replace(each.score, **printed)) if each.score else each
        for each in subject.history
    )
    conclusion = replace(subject.conclusion, record=replace(record, peak_tflops=peak))
    return replace(subject, history=scored, conclusion=conclusion)


@pytest.mark.parametrize(
    ("subject", "arm"),
    [
        pytest.param(of_studies.nodes, "node003", id="nodes"),
        pytest.param(of_studies.batch, "pdbs-12", id="batch size"),
        pytest.param(of_studies.pairs_of_sizes, "pdbs-9-remat-policy-minimal", id="pairs"),
        pytest.param(lambda: of_studies.commit(5, 3), None, id="commits"),
    ],
)
def test_each_study_of_cells_says_mfu_and_memory_where_a_log_or_a_peak_gives_them(
    subject: Callable[[], MeasuredCell], arm: str | None
) -> None:
    bare = _used(subject(), peak=None, memory_gb=None, tflops=None)
    text = markdown(cell_document(bare))
    assert not any(each in text for each in ("MFU", "TFLOP/s", "compiled memory (GB)"))
    assert "uses" not in json.loads(leaderboard_json(bare))

    arm = arm or bare.conclusion.verdicts[0].arm
    told = _used(bare, peak=500.0, tflops=200.0, mfu=13.0, memory_gb=71.3)
    row = next(line for line in markdown(cell_document(told)).splitlines() if f"| `{arm}`" in line)
    head = next(line for line in markdown(cell_document(told)).splitlines() if "| MFU % |" in line)
    columns = dict(zip(head.split(" | "), row.split(" | "), strict=True))
    assert (columns["TFLOP/s"], columns["MFU %"]) == ("200.0", "40.00"), "of the stated peak"
    assert columns["compiled memory (GB)"] == "71.30"
    uses = json.loads(leaderboard_json(told))["uses"]
    assert uses[arm] == {"tflops": 200.0, "mfu": 40.0, "memory_gb": 71.3}

    as_printed = json.loads(leaderboard_json(_used(bare, peak=None, mfu=13.0)))["uses"]
    assert as_printed[arm]["mfu"] == 13.0, "as the logs print it"


@pytest.mark.parametrize(
    "subject",
    [
        of_studies.nodes,
        of_studies.network,
        of_studies.batch,
        of_studies.pairs_of_sizes,
        of_studies.commit,
    ],
)
def test_every_study_of_cells_has_the_same_parts_in_the_same_order(
    subject: Callable[[], MeasuredCell],
) -> None:
    parts = ("Answer", "Arms", "Pairs", "To deploy", "What this study can tell", "Jobs")
    titles = [each.title for each in cell_document(subject()).sections]
    assert titles == [each for each in parts if each in titles]
    assert {*titles} >= {*parts} - {"Pairs", "To deploy"}


def test_the_header_of_a_batch_study_names_the_sizes_that_were_measured() -> None:
    assert "8 to 18 sequences" in markdown(cell_document(of_studies.batch()))


@pytest.mark.parametrize("declared", [BatchSize, Nodes, Network, Commits])
def test_a_peak_that_is_no_figure_is_refused(declared: Callable[..., object]) -> None:
    with pytest.raises(ConfigError, match=r"peak_tflops is 0\.0, expected a positive number"):
        declared(peak_tflops=0.0)
    assert declared(peak_tflops=989.5)
