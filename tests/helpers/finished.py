"""A finished sweep, written down by hand; one that has begun, and one of another parallelism."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, DeployedFile, Parallelism, Protocol
from pytest_xlatune.model.explanation import EvidenceFact, Explanation
from pytest_xlatune.model.message import Message, say, verbatim
from pytest_xlatune.model.profile import BASELINE, BASELINE_ID, profile
from pytest_xlatune.model.redact import hide_assignments
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
METHOD = verbatim("Dunnett, K=4, 4 blocks of 4+2")

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
NOTE = "two fabrics, so two collectives at a time"
GRAPHS = "--xla_gpu_enable_command_buffer=FUSION,CUBLAS --xla_gpu_autotune_level=4"
PROFILES = (
    profile("overlap-2", f"{OVERLAP}=2", env={"NCCL_ALGO": "Ring,Tree"}, note=NOTE),
    profile("async-priority", "--xla_gpu_enable_highest_priority_async_stream=true"),
    profile("ll128", env={"NCCL_PROTO": "LL128"}),
    profile("double-buffering", "--xla_gpu_enable_while_loop_double_buffering=true"),
    profile("cp-decomposer-1g", "--xla_gpu_collective_permute_decomposer_threshold=1073741824"),
    profile("channels-8", env={"NCCL_NCHANNELS_PER_NET_PEER": "8"}),
    profile("overlap-4", f"{OVERLAP}=4"),
    profile("baseline-no-env", GRAPHS, wave="wave1"),
    profile("microbatches-16", overrides={"num_pipeline_microbatches": "16"}),
    profile("pipelined-ag", "--xla_gpu_enable_pipelined_all_gather=true"),
    profile("async-permute", "--xla_gpu_enable_async_collective_permute=true"),
    profile("fast-math", "--xla_gpu_enable_fast_min_max=true"),
    profile("tree", env={"NCCL_ALGO": "Tree"}),
)
BY_ID = {each.id: each for each in (BASELINE, *PROFILES)}
# what the first nine gain in the screen, and four of them when they are confirmed
SCREEN = (0.041, 0.018, 0.015, 0.013, 0.012, 0.004, -0.006, -0.021, -0.03)
CONFIRMED: Mapping[str, tuple[str, float, str]] = {
    "overlap-2": ("FASTER", 0.034, "faster: +2.2 % to +4.6 % (95 %)"),
    "ll128": ("EQUIVALENT", 0.0002, "no relevant difference: between -1.0 % and +1.0 %"),
    "async-priority": ("INCONCLUSIVE", 0.009, "cannot tell: between -0.1 % and +1.9 %"),
    "double-buffering": ("SLOWER", -0.0413, "slower: -3.1 % at best"),
}
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


LOST = "node002 went down"  # what became of the last one


def score(delta: float, *, loss: float = 10.5) -> Score:
    tgs = TGS * (1 + delta)
    return Score(
        value=math.log(tgs), tgs=tgs, step_s=7 * 4096 / tgs, n_steps=10, window=(5, 14), loss=loss
    )


def trial_result(
    jobs: Iterator[int],
    name: str,
    delta: float | None,
    stage: str = "wave1",
    *,
    block: int = 0,
    position: int = 0,
    attempts: int = 1,
    **changes: Any,
) -> TrialResult:
    protocol = Protocol(metric="none", dump=True) if stage == "evidence" else Protocol()
    place = {"stage": stage, "block": block, "position": position}
    values: dict[str, Any] = {
        "trial": trial_of(CELL, BY_ID[name], protocol=protocol, **place),
        "status": TrialStatus.MEASURED,
        "score": None if delta is None else score(delta),
        "job_ids": tuple(str(next(jobs)) for _ in range(attempts)),
        "outcome": Outcome(state=State.COMPLETED, exit_code=0, nodes=CELL.nodelist),
    }
    return TrialResult(**values | changes)


def results() -> Iterator[TrialResult]:
    # the numbers of the jobs cross 9999 -> 10000: they are sorted as numbers
    ran = functools.partial(trial_result, itertools.count(9990))
    for at, (profile_, delta) in enumerate(zip(PROFILES, SCREEN, strict=False)):
        if at % 2 == 0:
            yield ran(BASELINE_ID, 0.0, position=at // 2)
        yield ran(profile_.id, delta, attempts=2 if profile_.id == "ll128" else 1)
    for name, (reason, finding) in DROPPED.items():
        is_nan = name == "fast-math"
        yield ran(
            name,
            None,
            score=score(0.002, loss=math.nan) if is_nan else None,
            status=TrialStatus.DROPPED,
            reason=verbatim(reason),
            findings=(finding,),
            outcome=Outcome(
                state=State.COMPLETED if is_nan else State.FAILED, exit_code=int(not is_nan)
            ),
        )
    yield ran(
        "tree",
        None,
        status=TrialStatus.UNMEASURED,
        reason=verbatim(LOST),
        outcome=Outcome(state=State.NODE_FAIL, signal=9),
    )
    yield ran(BASELINE_ID, 0.0, "evidence")
    for block in range(1, BLOCKS + 1):
        for position in (0, 1):
            yield ran(BASELINE_ID, 0.0, "confirm", block=block, position=position)
        for name, (_, delta, _) in CONFIRMED.items():
            yield ran(name, delta, "confirm", block=block)


HISTORY = [*results()]


def jobs_of(name: str) -> tuple[str, ...]:
    scored = (each for each in HISTORY if each.trial.stage != "evidence")
    return tuple(job for each in scored if each.trial.profile.id == name for job in each.job_ids)


def verdict(name: str, kind: str, delta: float | None, *reasons: Message) -> Verdict:
    jobs = jobs_of(name)
    values: dict[str, Any] = {"arm": name, "kind": VerdictKind(kind), "delta": delta}
    if delta is not None:
        values |= {"tgs": score(delta).tgs, "step_s": score(delta).step_s, "n": 1}
        if name in CONFIRMED:
            interval = (delta - 0.0118, delta + 0.0118)
            values |= {"n": BLOCKS, "ci95": interval, "mde80": 0.0129, "method": METHOD}
            jobs = jobs[-BLOCKS:]  # the screen's job carries no verdict
    return Verdict(**values, can_run=name not in DROPPED, reasons=reasons, job_ids=jobs)


def verdicts() -> Iterator[Verdict]:
    for name, (kind, delta, why) in CONFIRMED.items():
        yield verdict(name, kind, delta, verbatim(why))
    for profile_, delta in zip(PROFILES, SCREEN, strict=False):
        if profile_.id not in CONFIRMED:
            yield verdict(profile_.id, "SCREENED", delta)
    for name, (reason, _) in DROPPED.items():
        yield verdict(name, "INVALID", None, verbatim(reason))
    lost = say("it could not be measured: {why}", why=verbatim(LOST))
    yield verdict("tree", "INVALID", None, lost)


CONCLUSION = Conclusion(
    verdicts=tuple(verdicts()),
    reference=Verdict(
        arm=BASELINE_ID,
        kind=VerdictKind.EQUIVALENT,
        n=13,
        tgs=TGS,
        step_s=score(0.0).step_s,
        job_ids=jobs_of(BASELINE_ID),
    ),
    record=TuningRecord(finalists=tuple(CONFIRMED), bound=0.0498, mde80=0.0129, sigma=0.0058),
    alpha=0.04,
    complete=True,
    notes=(verbatim("1 trial was retried for its status; none for its value."),),
)
FINISHED = MeasuredCell(
    conclusion=CONCLUSION,
    cells=(CELL,),
    profiles=PROFILES,
    history=tuple(HISTORY),
    written_s=NOW.timestamp(),
)

# nothing is known yet, and what is optional is missing
BARE = Cell(model_tag="tiny", parallelism=Parallelism.parse("FSDP=4"))
BEGUN = Conclusion(
    verdicts=(
        Verdict(arm="gone", kind=VerdictKind.INCONCLUSIVE),
        Verdict(arm="oom", kind=VerdictKind.INVALID, can_run=False),
        Verdict(
            arm="other-loss",
            kind=VerdictKind.INVALID,
            n=1,
            tgs=1500.0,
            step_s=0.0341,
            reasons=(verbatim("its loss is 9.1, the baseline's 10.5"),),
        ),
    ),
    reference=Verdict(arm="baseline-deployed", kind=VerdictKind.INCONCLUSIVE),
)
BEGUN_SUBJECT = MeasuredCell(conclusion=BEGUN, cells=(BARE,), written_s=NOW.timestamp())

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
    text=(
        'base_config: "base.yml"\nnum_pipeline_microbatches: 8  # of the pipeline\n'
        "num_pipeline_repeats: 2\n"
    ),
    is_shell=False,
)


def fact(kind: str, text: str, folder: str) -> EvidenceFact:
    artifacts = tuple(f"pp8/cell/run/{name}.1/{folder}" for name in ("base", "overlap"))
    return EvidenceFact(kind=kind, text=text, artifacts=artifacts, jobs=("10008", "10009"))


SHORTER = "a step takes 0.900 ms less (-3.1 %): exposed communication -0.850 ms"
EXPLAINED = Explanation(
    profile="overlap-2",
    facts=(
        fact("HLO", "up to 2 collectives in flight instead of 1", "xla_dump"),
        fact("step", SHORTER, "output"),
    ),
    is_identical=False,
    moved=-0.031,
)
COVERED = replace(
    FINISHED,
    sweep="pp8",
    cell_digest=CELL.digest,
    cells=(Cell.from_json(CELL.to_json()),),
    files=(ENV_FILE, CONFIG_FILE),
    versions={"pytest-xlatune": "0.1.0", "python": "3.11.2"},
)
# nothing is known yet, and the playbook has stopped it
STOPPED = replace(
    BEGUN_SUBJECT,
    sweep="tiny",
    cell_digest=BARE.digest,
    stopped="node-drain: node002 is drained and stays so after RESUME",
)


def other_parallelism() -> MeasuredCell:
    """The same model with FSDP=8: what helped with PP=8 hurts, and another recipe wins."""
    cell = replace(CELL, parallelism=Parallelism.parse("FSDP=8"))
    winner = profile("overlap-off", f"{OVERLAP}=1", env={"NCCL_ALGO": "Ring,Tree"})
    turned = replace(BY_ID["overlap-2"], id="overlap-two")
    once = replace(BY_ID["double-buffering"], id="unrolled")
    verdicts = (
        ("overlap-off", "FASTER", 0.116, 20011, 4),
        ("overlap-two", "SLOWER", -0.045, 20021, 4),
        ("unrolled", "SCREENED", 0.002, 20031, 1),
    )
    conclusion = Conclusion(
        verdicts=tuple(
            Verdict(
                arm=arm,
                kind=VerdictKind(kind),
                delta=delta,
                ci95=None if n == 1 else (delta - 0.01, delta + 0.01),
                n=n,
                tgs=score(delta).tgs,
                step_s=score(delta).step_s,
                job_ids=tuple(str(first + at) for at in range(n)),
            )
            for arm, kind, delta, first, n in verdicts
        ),
        reference=replace(CONCLUSION.baseline, job_ids=("20001", "20002")),
        record=TuningRecord(finalists=("overlap-off", "overlap-two"), bound=0.13, sigma=0.006),
        complete=True,
    )
    return replace(
        COVERED,
        sweep="fsdp8",
        cell_digest=cell.digest,
        cells=(Cell.from_json(cell.to_json()),),
        profiles=(winner, turned, once),
        conclusion=conclusion,
        history=(),
    )
