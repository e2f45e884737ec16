"""A finished sweep, written down by hand: its cell, its trials and what was concluded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
from pytest_xlatune.model.message import say, verbatim
from pytest_xlatune.model.profile import BASELINE, profile
from pytest_xlatune.model.result import (
    Action,
    Conclusion,
    Finding,
    Outcome,
    Score,
    State,
    TrialResult,
    TrialStatus,
    TuningRecord,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.report.measured_cell import MeasuredCell
from tests.helpers.history import trial_of

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
        value=math.log(tgs), tgs=tgs, step_s=7 * 4096 / tgs, n_steps=10, window=(5, 14), loss=loss
    )


class Sweep:
    def __init__(self) -> None:
        self.job = 9990  # job ids cross 9999 -> 10000: sorted as numbers
        self.history: list[TrialResult] = []
        self.jobs: dict[str, list[str]] = {}

    def trial(
        self,
        profile_id: str,
        delta: float | None,
        *,
        stage: str = "wave1",
        block: int = 0,
        position: int = 0,
        attempts: int = 1,
        **changes: Any,
    ) -> None:
        jobs = tuple(str(self.job + at) for at in range(attempts))
        self.job += attempts
        self.jobs.setdefault(profile_id, []).extend(jobs if stage != "evidence" else ())
        protocol = Protocol(metric="none", dump=True) if stage == "evidence" else Protocol()
        trial = trial_of(
            CELL, BY_ID[profile_id], protocol=protocol, stage=stage, block=block, position=position
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
        values: dict[str, Any] = {"arm": profile_id, "kind": VerdictKind(kind), "delta": delta}
        if delta is not None:
            values |= {"tgs": score(delta).tgs, "step_s": score(delta).step_s, "n": 1}
        if is_confirmed and delta is not None:
            values |= {
                "n": BLOCKS,
                "ci95": (delta - 0.0118, delta + 0.0118),
                "mde80": 0.0129,
                "method": verbatim(METHOD),
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
            reason=verbatim(reason),
            findings=(finding,),
            outcome=Outcome(state=State.COMPLETED, exit_code=0)
            if profile_id == "fast-math"
            else Outcome(state=State.FAILED, exit_code=1),
        )
    sweep.trial(
        "tree",
        None,
        status=TrialStatus.UNMEASURED,
        reason=verbatim("node002 went down"),
        outcome=Outcome(state=State.NODE_FAIL, signal=9),
    )
    sweep.trial("baseline-deployed", 0.0, stage="evidence")
    confirmed = {
        "overlap-2": ("FASTER", 0.034, "faster: +2.2 % to +4.6 % (95 %)"),
        "ll128": ("EQUIVALENT", 0.0002, "no relevant difference: between -1.0 % and +1.0 %"),
        "async-priority": ("INCONCLUSIVE", 0.009, "cannot tell: between -0.1 % and +1.9 %"),
        "double-buffering": ("SLOWER", -0.0413, "slower: -3.1 % at best"),
    }
    for block in range(1, BLOCKS + 1):
        for position in (0, 1):
            sweep.trial("baseline-deployed", 0.0, stage="confirm", block=block, position=position)
        for profile_id, (_, delta, _) in confirmed.items():
            sweep.trial(profile_id, delta, stage="confirm", block=block)
    screened = [profile_id for profile_id in screen if profile_id not in confirmed]
    conclusion = Conclusion(
        verdicts=(
            *(
                sweep.verdict(each, kind, delta, reasons=(verbatim(why),))
                for each, (kind, delta, why) in confirmed.items()
            ),
            *(sweep.verdict(each, "SCREENED", screen[each]) for each in screened),
            *(
                sweep.verdict(each, "INVALID", None, can_run=False, reasons=(verbatim(reason),))
                for each, (reason, _) in DROPPED.items()
            ),
            sweep.verdict(
                "tree",
                "INVALID",
                None,
                reasons=(
                    say("it could not be measured: {why}", why=verbatim("node002 went down")),
                ),
            ),
        ),
        reference=Verdict(
            arm="baseline-deployed",
            kind=VerdictKind.EQUIVALENT,
            n=13,
            tgs=TGS,
            step_s=score(0.0).step_s,
            job_ids=tuple(sweep.jobs["baseline-deployed"]),
        ),
        record=TuningRecord(finalists=tuple(confirmed), bound=0.0498, mde80=0.0129, sigma=0.0058),
        alpha=0.04,
        complete=True,
        notes=(verbatim("1 trial was retried for its status; none for its value."),),
    )
    return conclusion, sweep.history


CONCLUSION, HISTORY = finished()
FINISHED = MeasuredCell(
    conclusion=CONCLUSION,
    cells=(CELL,),
    profiles=PROFILES,
    history=tuple(HISTORY),
    written_s=NOW.timestamp(),
)
