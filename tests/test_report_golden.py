"""Every rendered artefact of one sweep against its golden file.

XLATUNE_UPDATE_GOLDEN=1 rewrites the files; look at the difference before you commit it.
"""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cells import Cell, DeployedFile, Parallelism, Protocol, Stage, Trial
from pytest_xlatune.hidden import hide_assignments
from pytest_xlatune.profiles import BASELINE, Profile, profile
from pytest_xlatune.report import jsonfile, markdown, terminal
from pytest_xlatune.report.covered import Covered, Explanation, Fact
from pytest_xlatune.report.deployment import patch_of
from pytest_xlatune.report.document import Document
from pytest_xlatune.report.jsonfile import shown_cell
from pytest_xlatune.report.leaderboard import leaderboard
from pytest_xlatune.report.lines import Progress, live_line, paragraph, words
from pytest_xlatune.report.phrases import Language
from pytest_xlatune.report.tuning import tuning
from pytest_xlatune.results import (
    Action,
    Conclusion,
    Finding,
    Outcome,
    Score,
    State,
    TrialResult,
    TrialStatus,
    Verdict,
    VerdictKind,
)

GOLDEN = Path(__file__).parent / "data" / "golden"
NOW = datetime(2026, 11, 20, 14, 5, tzinfo=UTC)
TGS = 962.2  # of the baseline
BLOCKS = 4
METHOD = "Dunnett, K=4, 4 blocks of 4+2"

CELL = Cell(
    model_tag="deepseek3-671b",
    parallelism=Parallelism.parse("PP=8"),
    config_tag="sparse",
    per_device_batch_size=7,
    max_target_length=4096,
    nodelist=("node001", "node002"),
    image="jax-training:26.2",
    launcher="maxtext python3 -m MaxText.train configs/deepseek3-671b.gpu.yml cwd=/opt/maxtext",
    deployed={
        "XLA_FLAGS": "--xla_gpu_enable_command_buffer= --xla_gpu_autotune_level=0",
        "NCCL_IB_HCA": "mlx5_0,mlx5_1|mlx5_2",
        "HF_TOKEN": "do-not-print-me",
    },
    overrides={"sparse_matmul": "true"},
    devices=8,
)

OVERLAP = "--xla_gpu_experimental_parallel_collective_overlap_limit"
PROFILES = (
    profile(
        "overlap-2",
        f"{OVERLAP}=2",
        env={"NCCL_ALGO": "Ring,Tree"},
        note="two fabrics, so two collectives at a time",
    ),
    profile("async-priority", "--xla_gpu_enable_highest_priority_async_stream=true"),
    profile("ll128", env={"NCCL_PROTO": "LL128"}),
    profile("double-buffering", "--xla_gpu_enable_while_loop_double_buffering=true"),
    profile("cp-decomposer-1g", "--xla_gpu_collective_permute_decomposer_threshold=1073741824"),
    profile("channels-8", env={"NCCL_NCHANNELS_PER_NET_PEER": "8"}),
    profile("overlap-4", f"{OVERLAP}=4"),
    profile(
        "baseline-no-env",
        "--xla_gpu_enable_command_buffer=FUSION,CUBLAS --xla_gpu_autotune_level=4",
        wave="wave1",
    ),
    profile("microbatches-16", overrides={"num_pipeline_microbatches": "16"}),
    profile("pipelined-ag", "--xla_gpu_enable_pipelined_all_gather=true"),
    profile("async-permute", "--xla_gpu_enable_async_collective_permute=true"),
    profile("fast-math", "--xla_gpu_enable_fast_min_max=true"),
    profile("tree", env={"NCCL_ALGO": "Tree"}),
)
BY_ID = {each.id: each for each in (BASELINE, *PROFILES)}

OOM = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 171.96GiB | rank 3"
UNKNOWN = "F parse_flags_from_env.cc: Unknown flag: --xla_gpu_enable_async_collective_permute=true"
NAN = "completed step: 7, seconds: 28.100, loss: nan"
DROPPED: Mapping[str, tuple[str, Finding]] = {
    "pipelined-ag": (
        "out of memory: 171.96 GiB",
        Finding(cls="oom-gpu", action=Action.DROP, line=812, text=OOM, detail="171.96 GiB"),
    ),
    "async-permute": (
        "XLA does not know the flag --xla_gpu_enable_async_collective_permute",
        Finding(cls="unknown-flag", action=Action.DROP, line=3, text=UNKNOWN),
    ),
    "fast-math": (
        "the loss is not finite from step 7",
        Finding(cls="numerical-failure", action=Action.DROP, line=940, text=NAN),
    ),
}


def score(delta: float, *, loss: float = 10.5) -> Score:
    tgs = TGS * (1 + delta)
    return Score(
        value=math.log(tgs),
        tgs=tgs,
        step_s=7 * 4096 / tgs,
        n_steps=10,
        window=(5, 14),
        loss=loss,
    )


class Sweep:
    """A finished sweep, written down by hand: its history and what was concluded."""

    def __init__(self) -> None:
        self.job = 9990  # job ids cross 9999 -> 10000: sorted as numbers
        self.history: list[TrialResult] = []
        self.jobs: dict[str, list[str]] = {}

    def trial(
        self,
        profile_id: str,
        delta: float | None,
        *,
        stage: Stage = Stage.SCREEN,
        block: int = 0,
        position: int = 0,
        attempts: int = 1,
        **changes: Any,
    ) -> None:
        jobs = tuple(str(self.job + at) for at in range(attempts))
        self.job += attempts
        self.jobs.setdefault(profile_id, []).extend(jobs if stage is not Stage.EVIDENCE else ())
        trial = Trial(
            cell_digest=CELL.digest,
            profile=BY_ID[profile_id],
            protocol=Protocol(),
            study="tuning",
            stage=stage,
            block=block,
            position=position,
        )
        values: dict[str, Any] = {
            "trial": trial,
            "status": TrialStatus.MEASURED,
            "score": None if delta is None else score(delta),
            "job_ids": jobs,
            "outcome": Outcome(state=State.COMPLETED, exit_code=0, nodes=CELL.nodelist),
        }
        self.history.append(TrialResult(**values | changes))

    def verdict(self, profile_id: str, kind: str, delta: float | None, **changes: Any) -> Verdict:
        jobs = tuple(self.jobs[profile_id])
        is_confirmed = kind in {"FASTER", "SLOWER", "EQUIVALENT", "INCONCLUSIVE"}
        values: dict[str, Any] = {"profile": profile_id, "kind": VerdictKind(kind), "delta": delta}
        if delta is not None:
            values |= {"tgs": score(delta).tgs, "step_s": score(delta).step_s, "n": 1}
        if is_confirmed and delta is not None:
            values |= {
                "n": BLOCKS,
                "ci95": (delta - 0.0118, delta + 0.0118),
                "mde80": 0.0129,
                "method": METHOD,
            }
            jobs = jobs[-BLOCKS:]  # the screen's job carries no verdict
        return Verdict(**values | {"job_ids": jobs} | changes)


def finished() -> tuple[Conclusion, list[TrialResult]]:
    sweep = Sweep()
    screen = {
        "overlap-2": 0.041,
        "async-priority": 0.018,
        "ll128": 0.015,
        "double-buffering": 0.013,
        "cp-decomposer-1g": 0.012,
        "channels-8": 0.004,
        "overlap-4": -0.006,
        "baseline-no-env": -0.021,
        "microbatches-16": -0.03,
    }
    for at, (profile_id, delta) in enumerate(screen.items()):
        if at % 2 == 0:
            sweep.trial("baseline-deployed", 0.0, position=at // 2)
        sweep.trial(profile_id, delta, attempts=2 if profile_id == "ll128" else 1)
    for profile_id, (reason, finding) in DROPPED.items():
        sweep.trial(
            profile_id,
            None,
            score=score(0.002, loss=math.nan) if profile_id == "fast-math" else None,
            status=TrialStatus.DROPPED,
            reason=reason,
            findings=(finding,),
            outcome=Outcome(state=State.COMPLETED, exit_code=0)
            if profile_id == "fast-math"
            else Outcome(state=State.FAILED, exit_code=1),
        )
    sweep.trial(
        "tree",
        None,
        status=TrialStatus.UNMEASURED,
        reason="node002 went down",
        outcome=Outcome(state=State.NODE_FAIL, signal=9),
    )
    sweep.trial("baseline-deployed", 0.0, stage=Stage.EVIDENCE)
    confirmed = {
        "overlap-2": ("FASTER", 0.034, "faster by at least +2.0 %"),
        "ll128": ("EQUIVALENT", 0.0002, "no relevant difference: between -1.0 % and +1.0 %"),
        "async-priority": ("INCONCLUSIVE", 0.009, "cannot tell: between -0.1 % and +1.9 %"),
        "double-buffering": ("SLOWER", -0.0413, "slower: -3.1 % at best"),
    }
    for block in range(1, BLOCKS + 1):
        for position in (0, 1):
            sweep.trial(
                "baseline-deployed", 0.0, stage=Stage.CONFIRM, block=block, position=position
            )
        for profile_id, (_, delta, _) in confirmed.items():
            sweep.trial(profile_id, delta, stage=Stage.CONFIRM, block=block)
    screened = [profile_id for profile_id in screen if profile_id not in confirmed]
    conclusion = Conclusion(
        verdicts=(
            *(
                sweep.verdict(each, kind, delta, reasons=(why,))
                for each, (kind, delta, why) in confirmed.items()
            ),
            *(sweep.verdict(each, "SCREENED", screen[each]) for each in screened),
            *(
                sweep.verdict(each, "INVALID", None, can_run=False, reasons=(reason,))
                for each, (reason, _) in DROPPED.items()
            ),
            sweep.verdict(
                "tree", "INVALID", None, reasons=("nobody could measure it: node002 went down",)
            ),
        ),
        baseline=Verdict(
            profile="baseline-deployed",
            kind=VerdictKind.EQUIVALENT,
            n=13,
            tgs=TGS,
            step_s=score(0.0).step_s,
            job_ids=tuple(sweep.jobs["baseline-deployed"]),
        ),
        finalists=tuple(confirmed),
        bound=0.0498,
        mde80=0.0129,
        sigma=0.0058,
        alpha_spent=0.04,
        complete=True,
        notes=("1 trial was retried for its status; none for its value.",),
    )
    return conclusion, sweep.history


CONCLUSION, HISTORY = finished()
FINISHED: dict[str, Any] = {
    "cell": CELL,
    "profiles": PROFILES,
    "history": HISTORY,
    "now": NOW,
}

# nothing is known yet, and what is optional is missing
BARE = Cell(model_tag="tiny", parallelism=Parallelism.parse("FSDP=4"))
BEGUN = Conclusion(
    verdicts=(
        Verdict(profile="gone", kind=VerdictKind.INCONCLUSIVE),
        Verdict(profile="oom", kind=VerdictKind.INVALID, can_run=False),
        Verdict(
            profile="other-loss",
            kind=VerdictKind.INVALID,
            n=1,
            tgs=1500.0,
            step_s=0.0341,
            reasons=("its loss is 9.1, the baseline's 10.5",),
        ),
    ),
    baseline=Verdict(profile="baseline-deployed", kind=VerdictKind.INCONCLUSIVE),
)
BEGUN_WITH: dict[str, Any] = {"cell": BARE, "profiles": (), "history": (), "now": NOW}


ENV_FILE = DeployedFile(
    path="configs/deepseek3-671b.env.sh",
    text=hide_assignments(
        "# tuned on FSDP=8\n"
        "export HF_TOKEN=do-not-print-me\n"
        'export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_gpu_enable_command_buffer="\n'
        'export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_gpu_autotune_level=0"\n'
        "export NCCL_IB_HCA='mlx5_0,mlx5_1|mlx5_2'\n"
        ": the end\n"
    ),
)
CONFIG_FILE = DeployedFile(
    path="configs/deepseek3-671b.gpu.yml",
    text='base_config: "base.yml"\nnum_pipeline_microbatches: 8  # of the pipeline\n',
    is_shell=False,
)
EXPLAINED = Explanation(
    profile="overlap-2",
    facts=(
        Fact(
            kind="HLO",
            text="up to 2 collectives in flight instead of 1",
            artifacts=("pp8/cell/run/base.1/xla_dump", "pp8/cell/run/overlap.1/xla_dump"),
            jobs=("10008", "10009"),
        ),
        Fact(
            kind="step",
            text="a step takes 0.900 ms less (-3.1 %): exposed communication -0.850 ms",
            artifacts=("pp8/cell/run/base.1/output", "pp8/cell/run/overlap.1/output"),
            jobs=("10008", "10009"),
        ),
    ),
    is_identical=False,
    moved=-0.031,
)
COVERED = Covered(
    sweep="pp8",
    cell_digest=CELL.digest,
    written_s=NOW.timestamp(),
    cell=shown_cell(CELL),
    profiles=PROFILES,
    conclusion=CONCLUSION,
    history=tuple(HISTORY),
    files=(ENV_FILE, CONFIG_FILE),
    versions={"pytest-xlatune": "0.1.0", "python": "3.11.2"},
)
# nothing is known yet, and the playbook has stopped it
STOPPED = Covered(
    sweep="tiny",
    cell_digest=BARE.digest,
    written_s=NOW.timestamp(),
    cell=BARE,
    profiles=(),
    conclusion=BEGUN,
    history=(),
    stopped="node-drain: node002 is drained and stays so after RESUME",
)


def other_parallelism() -> Covered:
    """The same model with FSDP=8: what helped with PP=8 hurts, and another recipe wins."""
    cell = replace(CELL, parallelism=Parallelism.parse("FSDP=8"))
    winner = profile("overlap-off", f"{OVERLAP}=1", env={"NCCL_ALGO": "Ring,Tree"})
    turned = replace(BY_ID["overlap-2"], id="overlap-two")
    once = replace(BY_ID["double-buffering"], id="unrolled")
    verdicts = (
        ("overlap-off", "FASTER", 0.116, ("20011", "20012", "20013", "20014")),
        ("overlap-two", "SLOWER", -0.045, ("20021", "20022", "20023", "20024")),
        ("unrolled", "SCREENED", 0.002, ("20031",)),
    )
    conclusion = Conclusion(
        verdicts=tuple(
            Verdict(
                profile=profile_id,
                kind=VerdictKind(kind),
                delta=delta,
                ci95=None if kind == "SCREENED" else (delta - 0.01, delta + 0.01),
                n=len(jobs),
                tgs=score(delta).tgs,
                step_s=score(delta).step_s,
                job_ids=jobs,
            )
            for profile_id, kind, delta, jobs in verdicts
        ),
        baseline=replace(CONCLUSION.baseline, job_ids=("20001", "20002")),
        finalists=("overlap-off", "overlap-two"),
        bound=0.13,
        sigma=0.006,
        complete=True,
    )
    return replace(
        COVERED,
        sweep="fsdp8",
        cell_digest=cell.digest,
        cell=shown_cell(cell),
        profiles=(winner, turned, once),
        conclusion=conclusion,
        history=(),
    )


def finished_leaderboard() -> Document:
    return leaderboard(CONCLUSION, **FINISHED)


def live_lines() -> str:
    """One line for each kind of landing, as the sweep goes on."""
    lines = []
    planned = [TrialResult(trial=each.trial, status=TrialStatus.PLANNED) for each in HISTORY]
    for at, result in enumerate(HISTORY):
        is_screening = result.trial.stage is Stage.SCREEN
        later = [
            each
            for each in planned[at + 1 :]
            if not is_screening or each.trial.stage is Stage.SCREEN
        ]
        if later and at % 3 == 0:
            later[0] = TrialResult(trial=later[0].trial, status=TrialStatus.RUNNING)
        progress = Progress.of(
            [*HISTORY[: at + 1], *later], step=8 if at % 2 == 0 else None, left_s=7800 - 190 * at
        )
        verdict = CONCLUSION.verdict(result.trial.profile.id)
        if is_screening and result.score:
            verdict = Verdict(
                profile=result.trial.profile.id,
                kind=VerdictKind.SCREENED,
                delta=result.score.tgs / TGS - 1,
                n=1,
            )
        elif result.trial.block < BLOCKS:
            verdict = None
        lines.append(live_line(result, cell=CELL, verdict=verdict, progress=progress))
    return "\n".join(lines) + "\n"


def all_paragraphs() -> str:
    verdicts = (CONCLUSION.baseline, *CONCLUSION.verdicts, *BEGUN.verdicts)
    return "".join(f"[{words(each)}]\n{paragraph(each)}\n\n" for each in verdicts)


def in_terminal(width: int) -> str:
    return "\n".join(terminal.render(finished_leaderboard(), width=width)) + "\n"


ARTEFACTS: Mapping[str, Callable[[], str]] = {
    "leaderboard.md": lambda: markdown.render(finished_leaderboard()),
    "leaderboard-begun.md": lambda: markdown.render(leaderboard(BEGUN, **BEGUN_WITH)),
    # every seventh trial says all that a file of 80 kB would
    "leaderboard.json": lambda: jsonfile.render(
        CONCLUSION, **FINISHED | {"history": HISTORY[1::7]}
    ),
    "leaderboard-80.txt": lambda: in_terminal(80),
    "leaderboard-160.txt": lambda: in_terminal(160),
    "tuning.md": lambda: markdown.render(tuning([replace(COVERED, explanation=EXPLAINED)])),
    "tuning.zh.md": lambda: markdown.render(
        tuning([replace(COVERED, explanation=EXPLAINED)], Language.CHINESE)
    ),
    "tuning-two.md": lambda: markdown.render(tuning([other_parallelism(), COVERED])),
    "tuning-two.patch": lambda: patch_of([other_parallelism(), COVERED]).text,
    "tuning-stopped.md": lambda: markdown.render(tuning([STOPPED])),
    "live-lines.txt": live_lines,
    "paragraphs.txt": all_paragraphs,
}


@pytest.mark.parametrize("name", ARTEFACTS)
def test_artefact_is_as_recorded(name: str) -> None:
    path, found = GOLDEN / name, ARTEFACTS[name]()
    if os.environ.get("XLATUNE_UPDATE_GOLDEN") == "1":
        path.write_text(found, encoding="utf-8")
    expected = path.read_text(encoding="utf-8")
    difference = "\n".join(
        difflib.unified_diff(
            expected.splitlines(), found.splitlines(), f"golden/{name}", "rendered", lineterm=""
        )
    )
    assert found == expected, f"\n{difference}\nXLATUNE_UPDATE_GOLDEN=1 records the new text"


def test_every_golden_file_belongs_to_an_artefact() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == ARTEFACTS.keys()


@pytest.mark.parametrize("name", ARTEFACTS)
def test_no_secret_and_no_python_word_for_absent(name: str) -> None:
    text = ARTEFACTS[name]()
    assert "do-not-print-me" not in text
    assert "None" not in text


def test_confirmed_and_screened_profiles_share_no_table() -> None:
    sections = markdown.render(finished_leaderboard()).split("### ")
    confirmed = next(each for each in sections if each.startswith("Confirmed"))
    screened = next(each for each in sections if each.startswith("Screened once"))
    for verdict in CONCLUSION.verdicts:
        row = f"`{verdict.profile}`"
        is_screened = verdict.kind is VerdictKind.SCREENED
        assert (row in screened) == is_screened
        assert (row in confirmed) == (verdict.n == BLOCKS)


def test_only_a_faster_profile_has_a_star() -> None:
    assert "★ `overlap-2`" in markdown.render(finished_leaderboard())
    no_winner = [each for each in CONCLUSION.verdicts if each.kind is not VerdictKind.FASTER]
    rest = Conclusion(verdicts=tuple(no_winner), baseline=CONCLUSION.baseline)
    assert "★" not in markdown.render(leaderboard(rest, **FINISHED))
    assert "★" not in markdown.render(tuning([replace(COVERED, conclusion=rest)]))


def test_long_tables_keep_the_top_eight_and_the_bottom_five() -> None:
    many = tuple(
        Verdict(profile=f"p{at:02}", kind=VerdictKind.SCREENED, delta=-at / 1000, n=1)
        for at in range(20)
    )
    conclusion = Conclusion(verdicts=many, baseline=CONCLUSION.baseline)
    text = markdown.render(tuning([replace(COVERED, conclusion=conclusion)]))
    shown = [each.profile for each in many if f"`{each.profile}`" in text]
    assert shown == [each.profile for each in (*many[:8], *many[15:])]
    assert "7 more profiles between these." in text
    assert "`p12`" in markdown.render(leaderboard(conclusion, **FINISHED))


def test_why_the_winner_wins_is_not_made_up() -> None:
    text = markdown.render(tuning([COVERED]))
    why = text.split("## Why the winning flag wins")[1].split("\n## ")[0]
    assert "No evidence (HLO dump, trace) of it and of `baseline-deployed` was recorded" in why


def test_overrides_of_the_winner_are_for_the_trainer() -> None:
    best = Verdict(profile="microbatches-16", kind=VerdictKind.FASTER, delta=0.02, n=4)
    conclusion = Conclusion(verdicts=(best,), baseline=CONCLUSION.baseline)
    covered = replace(COVERED, conclusion=conclusion, files=(ENV_FILE,))
    text = markdown.render(tuning([covered]))
    deployment = text.split("## Recommended deployment")[1].split("\n## ")[0]
    assert "Give these to the trainer:\n\n```\nnum_pipeline_microbatches=16\n```" in deployment
    assert "export" not in deployment


def test_a_winner_whose_settings_are_gone_is_not_read_as_no_winner() -> None:
    text = markdown.render(tuning([replace(COVERED, profiles=())]))
    assert "The sweep no longer names the settings of `overlap-2`." in text
    assert "Leave the deployed environment" not in text


def test_every_job_is_in_the_appendix_once_in_order() -> None:
    text = markdown.render(tuning([COVERED]))
    appendix = text.split("## Appendix: data sources")[1]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in appendix.splitlines()]
    jobs = [int(each) for each in rows if each.isdecimal()]
    assert jobs == sorted(int(job) for each in HISTORY for job in each.job_ids)


def test_json_holds_the_records_themselves() -> None:
    data = json.loads(jsonfile.render(CONCLUSION, **FINISHED))
    assert data["schema"] == 1
    # through text and back: NaN is not equal to itself, its JSON is
    assert Conclusion.from_json(data["conclusion"]).to_json() == CONCLUSION.to_json()
    assert [Profile.from_json(each) for each in data["profiles"]] == [*PROFILES]
    trials = {each.pop("id"): each for each in data["trials"]}
    assert trials == {each.trial.id: each.to_json() for each in HISTORY}
    nan = next(each for each in HISTORY if each.trial.profile.id == "fast-math")
    assert trials[nan.trial.id]["score"]["loss"] == "nan"


def test_json_does_not_depend_on_the_order_of_the_history() -> None:
    backwards = jsonfile.render(CONCLUSION, **FINISHED | {"history": HISTORY[::-1]})
    assert backwards == jsonfile.render(CONCLUSION, **FINISHED)
