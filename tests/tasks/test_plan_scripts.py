"""A plan shows the exact submission script of a trial on Slurm, and none on this machine."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.ledger import EvidenceRecorded, Ledger, TrialEnded, TrialPlanned
from pytest_xlatune.model.profile import BASELINE, profile
from pytest_xlatune.model.result import TrialResult, TrialStatus
from pytest_xlatune.model.shares import Shares
from pytest_xlatune.report.render import terminal
from pytest_xlatune.studies.evidence_run import EvidenceStudy
from pytest_xlatune.studies.gate import Gate
from pytest_xlatune.sweep.declaration import CompileCheck, Sweep
from pytest_xlatune.sweep.groups import CellSettings, DesignSettings, UserOptions
from pytest_xlatune.tasks.plan import plan_of

DECLARED = Sweep(
    name="s",
    launcher=CommandLauncher(argv=("train.sh", "{steps}")),
    profiles=(profile("a", "--xla_a=1"),),
    cell=CellSettings(model_tag="m", parallelism="FSDP=2"),
    design=DesignSettings(screen_baselines=2, finalists=1, blocks=4, block_baselines=1),
)


def planned(
    folder: Path, said: UserOptions, declared: Sweep = DECLARED, *, shows_all: bool = True
) -> str:
    resolved = declared.resolve(said)
    plan = plan_of(resolved, resolved.study(), workdir=folder, shows_all=shows_all)
    return "\n".join(terminal(plan))


def test_the_script_and_where_settings_stand(tmp_path: Path) -> None:
    said = planned(
        tmp_path,
        UserOptions(
            values={"nodelist": ("node001", "node002"), "slurm": {"account": "me"}},
            places={"nodelist": "--xlatune-nodelist", "slurm": "xlatune.toml"},
        ),
    )
    for line in (
        "#SBATCH --nodelist='node[001-002]'",
        "#SBATCH --account=me",
        "#SBATCH --no-requeue",
        "#SBATCH --job-name=xlt-baseline-deployed-",
        "for sbatch; the other",
        "nodelist: --xlatune-nodelist",
        "slurm: xlatune.toml",
    ):
        assert line in said, line
    assert not list(tmp_path.rglob("*.pkl")), "nothing is written for a plan"
    assert not list(tmp_path.iterdir())


def test_a_plan_is_short_unless_all_of_it_is_asked_for(tmp_path: Path) -> None:
    options = UserOptions(values={"nodelist": ("node001",)})
    short, long = (planned(tmp_path, options, shows_all=whole) for whole in (False, True))
    assert "train.sh 15" in short
    assert "#SBATCH" not in short
    assert len(short.splitlines()) + 25 < len(long.splitlines())


def test_on_this_machine_there_is_none(tmp_path: Path) -> None:
    said = planned(tmp_path, UserOptions(values={"executor": "local"}))
    assert "#SBATCH" not in said
    assert "Where settings come from" not in said


def test_a_deployed_secret_is_not_shown_where_a_container_reads_it(tmp_path: Path) -> None:
    said = planned(
        tmp_path,
        UserOptions(
            values={
                "executor": "local",
                "image": f"rocm/jax:1@sha256:{'0' * 64}",
                "container": {"runtime": "podman"},
                "deployed": {"HF_TOKEN": "hunter2-and-more", "HF_HOME": "/shared/hf"},
            }
        ),
    )
    assert "export HF_HOME=/shared/hf" in said
    assert "export HF_TOKEN=(hidden)" in said
    assert "hunter2" not in said


def test_recorded_evidence_tells_where_a_step_goes(tmp_path: Path) -> None:
    resolved = DECLARED.resolve(UserOptions(values={"executor": "local"}))
    trial = EvidenceStudy(cell=resolved.cell, profile=BASELINE).trial
    shares = Shares(of_step={"communication": 0.031})
    events = (
        TrialPlanned(trial=trial),
        TrialEnded(result=TrialResult(trial=trial, status=TrialStatus.MEASURED, job_ids=("7",))),
        EvidenceRecorded(trial_id=trial.id, shares=shares),
    )
    Ledger(tmp_path / resolved.folder / "ledger.jsonl").append(*events, at_s=1.0)
    said = planned(tmp_path, UserOptions(values={"executor": "local"}))
    assert "communication alone, 3.1 % of a step" in said


def test_a_gate_says_that_it_compiles_nothing_first(tmp_path: Path) -> None:
    asked = UserOptions(values={"nodelist": ("node001",)})
    gate = replace(DECLARED, gate=Gate(), design=DesignSettings(), compile_check=CompileCheck())
    assert "no compile check" in planned(tmp_path, asked, declared=gate)


def test_a_plan_names_what_would_measure_nothing(tmp_path: Path) -> None:
    declared = replace(
        DECLARED,
        launcher=CommandLauncher(argv=("train.sh", "{steps}", "{overrides}")),
        profiles=(
            profile("a", "--xla_gpu_autotune_level=2"),
            profile("b", "--xla_gpu_autotune_level=2"),
            profile("c", env={"NCCL_MAX_NCHANELS": "8"}),
            profile("d", overrides={"remat_polcy": "full"}),
            profile("e", "--xla_gpu_enable_latency_hiding_schedular=true"),
            profile("f", env={"NCCL_BUFFSIZE": "16M"}),
        ),
    )
    said = " ".join(planned(tmp_path, UserOptions(values={"nodelist": ("n1",)}), declared).split())
    for words in (
        "same settings as a:",
        "did you mean NCCL_MAX_NCHANNELS?",
        "did you mean remat_policy?",
        "did you mean --xla_gpu_enable_latency_hiding_scheduler?",
        "forbids the sweep: ",
        "NCCL_BUFFSIZE=16M is read as 16",
    ):
        assert words in said, words
    asked = replace(DECLARED, profiles=(profile("a", "--xla_gpu_autotune_level=2"),))
    assert "objects to" not in planned(tmp_path, UserOptions(values={"nodelist": ("n1",)}), asked)
