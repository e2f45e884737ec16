"""Measured cells: a finished sweep, one that has begun, and one of another parallelism."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, DeployedFile, Parallelism, Protocol
from pytest_xlatune.model.explanation import EvidenceFact, Explanation
from pytest_xlatune.model.message import verbatim
from pytest_xlatune.model.profile import BASELINE, Profile, profile
from pytest_xlatune.model.redact import hide_assignments
from pytest_xlatune.model.result import (
    Action,
    Conclusion,
    Finding,
    Outcome,
    State,
    TrialResult,
    TrialStatus,
    Verdict,
    VerdictKind,
)
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.studies.tuning import TuningStudy
from tests.helpers.history import history, measured, noise, trial_of

NOW = datetime(2026, 11, 20, 14, 5, tzinfo=UTC)
TGS = 962.2  # of the baseline
BLOCKS = 4

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
# what they gain when they are measured once, and when they are confirmed
GAINS = {
    "overlap-2": (0.036, 0.034),
    "async-priority": (0.02, 0.009),
    "ll128": (0.02, 0.0002),
    "double-buffering": (0.02, -0.0413),
    "cp-decomposer-1g": (0.004, 0.0),
    "channels-8": (0.003, 0.0),
    "overlap-4": (-0.006, 0.0),
    "baseline-no-env": (-0.021, 0.0),
    "microbatches-16": (-0.03, 0.0),
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


def measured_cell(
    cell: Cell,
    profiles: tuple[Profile, ...],
    gains: Mapping[str, tuple[float, float]],
    *,
    first_job: int,
    **design: Any,
) -> MeasuredCell:
    """Return a sweep that has run to its end; `gains` are those of the screen and of blocks."""
    jobs = itertools.count(first_job)

    def run(trial: Trial) -> TrialResult:
        name = trial.arm
        delta = gains.get(name, (0.0, 0.0))[trial.stage == "confirm"]
        value = math.log(TGS * (1 + delta)) + noise(trial, 0.0065, seed=2)
        attempts = 2 if name == "ll128" and trial.is_screened else 1
        ran = replace(
            measured(trial, value, loss=math.nan if name == "fast-math" else 10.5),
            job_ids=tuple(str(next(jobs)) for _ in range(attempts)),
            outcome=Outcome(state=State.COMPLETED, exit_code=0, nodes=cell.nodelist),
        )
        if name == "tree":
            outcome = Outcome(state=State.NODE_FAIL, signal=9)
            why, lost = verbatim("node002 went down"), TrialStatus.UNMEASURED
            return replace(ran, score=None, status=lost, reason=why, outcome=outcome)
        if name not in DROPPED:
            return ran
        reason, finding = DROPPED[name]
        dropped = {"status": TrialStatus.DROPPED, "reason": verbatim(reason)}
        if name != "fast-math":
            dropped |= {"score": None, "outcome": Outcome(state=State.FAILED, exit_code=1)}
        return replace(ran, findings=(finding,), **dropped)

    study = TuningStudy(cell=cell, profiles=profiles, blocks=BLOCKS, budget=60, **design)
    done = history(run, of=study)
    protocol = Protocol(metric="none", dump=True)
    of_evidence = trial_of(cell, stage="evidence", protocol=protocol)
    return MeasuredCell(
        conclusion=study.decide(done).conclusion,
        cells=(cell,),
        profiles=profiles,
        history=(done[0], run(of_evidence), *done[1:]),
        written_s=NOW.timestamp(),
    )


# the numbers of the jobs cross 9999 -> 10000: they are sorted as numbers
FINISHED = measured_cell(CELL, PROFILES, GAINS, first_job=9970, screen_baselines=5, finalists=4)
HISTORY, CONCLUSION = [*FINISHED.history], FINISHED.conclusion

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
    gains = {"overlap-off": (0.05, 0.045), "overlap-two": (0.02, -0.045)}
    found = measured_cell(cell, (winner, turned, once), gains, first_job=20001, finalists=2)
    return replace(
        COVERED,
        sweep="fsdp8",
        cell_digest=cell.digest,
        cells=(Cell.from_json(cell.to_json()),),
        profiles=found.profiles,
        conclusion=found.conclusion,
        history=(),
    )
