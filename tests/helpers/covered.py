"""What a tuning document covers: the finished sweep, one that has begun, another parallelism."""

from __future__ import annotations

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, DeployedFile, Parallelism
from pytest_xlatune.model.explanation import EvidenceFact, Explanation
from pytest_xlatune.model.message import verbatim
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.redact import hide_assignments
from pytest_xlatune.model.result import Conclusion, TuningRecord, Verdict, VerdictKind
from pytest_xlatune.report.measured_cell import MeasuredCell
from tests.helpers.finished import BY_ID, CELL, CONCLUSION, FINISHED, NOW, OVERLAP, score

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
