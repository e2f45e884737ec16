"""A plan tells what will be: scripts, every profile, bubbles, what cannot run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.profile import BASELINE, profile
from pytest_xlatune.model.text import ABSENT
from pytest_xlatune.prepare.preflight import check_shape
from pytest_xlatune.report import bubble
from pytest_xlatune.report.document import Document, markdown, terminal
from pytest_xlatune.sweep.declaration import CompileCheck, Sweep, load_sweep
from pytest_xlatune.sweep.groups import CellSettings, DesignSettings, UserOptions
from pytest_xlatune.sweep.resolved import ResolvedSweep
from pytest_xlatune.tasks.plan import plan_of
from pytest_xlatune.tasks.runs import run_preflight
from tests.helpers.tables import DATA

SWEEPS = Path(__file__).parents[2] / "sweeps"
LOCAL = {"executor": "local"}
DECLARED = Sweep(
    name="s",
    launcher=CommandLauncher(argv=("train.sh", "{steps}", "{overrides}")),
    profiles=(profile("a", "--xla_gpu_autotune_level=2"),),
    cell=CellSettings(model_tag="m", parallelism="FSDP=2"),
    design=DesignSettings(screen_baselines=2, finalists=1, blocks=4, block_baselines=1),
)


def plan_text(resolved: ResolvedSweep, folder: Path, *, shows_all: bool = True) -> str:
    plan = plan_of(resolved, resolved.study(), workdir=folder, shows_all=shows_all)
    return " ".join(" ".join(terminal(plan, width=400)).split())


DOUBTFUL = replace(
    DECLARED,
    profiles=(
        profile("a", "--xla_gpu_autotune_level=2"),
        profile("b", "--xla_gpu_autotune_level=2"),
        profile("c", env={"NCCL_MAX_NCHANELS": "8"}),
        profile("d", overrides={"remat_polcy": "full"}),
        profile("e", "--xla_gpu_enable_latency_hiding_schedular=true"),
        profile("f", env={"NCCL_BUFFSIZE": "16M"}),
        profile("g", env={"HSA_ENABLE_SDMA": "0", "NCCL_ALGO": "Ring"}),
    ),
)
COMPILED = CompileCheck(memory_limit_gib=1)
NODES = {"nodelist": ("node001", "node002")}
CONTAINER = {
    **LOCAL,
    "image": f"rocm/jax:1@sha256:{'0' * 64}",
    "container": {"runtime": "podman"},
    "deployed": {"HF_TOKEN": "hunter2-and-more", "HF_HOME": "/shared/hf"},
}
UNSEEN = "a profile that sets HSA_ENABLE_SDMA cannot win"
SCRIPT = ("--nodelist='node[001-002]'", "--account=me", "--no-requeue")
Words = tuple[str, ...]
PLANS: dict[str, tuple[Sweep, dict[str, Any], Words, Words]] = {
    "the script of a job": (
        DECLARED, {**NODES, "slurm": {"account": "me"}},
        tuple(f"#SBATCH {option}" for option in SCRIPT), ()),
    "on this machine there is no script": (DECLARED, LOCAL, (), ("#SBATCH",)),
    "a deployed secret is not shown where a container reads it": (
        DECLARED, CONTAINER,
        ("export HF_HOME=/shared/hf", "export HF_TOKEN=(hidden)"), ("hunter2",)),
    "what would measure nothing": (
        DOUBTFUL, NODES,
        ("same settings as a, so", "did you mean NCCL_MAX_NCHANNELS?", "did you mean remat_policy?",
         "did you mean --xla_gpu_enable_latency_hiding_scheduler?", "forbids the sweep: ", UNSEEN),
        ()),
    "a variable that nothing shows may win where that is said": (
        DOUBTFUL, {**NODES, "unseen": ("HSA_*",)}, (), (UNSEEN,)),
}  # fmt: skip


@pytest.mark.parametrize(("declared", "values", "shown", "hidden"), PLANS.values(), ids=PLANS)
def test_a_plan_says(
    declared: Sweep, values: dict[str, Any], shown: Words, hidden: Words, tmp_path: Path
) -> None:
    resolved = declared.resolve(UserOptions(values=values))
    said = plan_text(resolved, tmp_path)
    assert [words for words in shown if words not in said] == []
    assert [words for words in hidden if words in said] == []
    assert not list(tmp_path.iterdir()), "nothing is written for a plan"
    assert "#SBATCH" not in plan_text(resolved, tmp_path, shows_all=False)


def flagship(**changes: Any) -> ResolvedSweep:
    deployed = {"XLA_FLAGS": "--xla_gpu_enable_latency_hiding_scheduler=true"}
    values = {"model_tag": "mixtral-8x22b", "deployed": deployed} | LOCAL | changes
    return load_sweep(SWEEPS / "test_pp8.py").resolve(UserOptions(values=values))


def test_a_cell_whose_layers_do_not_divide_is_refused_before_it_begins(tmp_path: Path) -> None:
    def shaped(**layers: str) -> tuple[ResolvedSweep, tuple[str, ...]]:
        model = {"model_name": "deepseek3-671b", **layers}  # 58 layers in the pipeline
        resolved = flagship(model_tag="deepseek3-671b", overrides=model)
        found = run_preflight(resolved, tmp_path, is_first=True, is_busy=False, cells=())
        return resolved, found.faults

    resolved, (fault,) = shaped()
    refused = "cannot run: 58 layers do not divide into 8 stages"
    assert fault.startswith(f"cell {resolved.cell.label!r} {refused}")
    assert "set pipeline_parallel_layers=56" in fault
    assert f"refused: {fault}" in plan_text(resolved, tmp_path)
    mended, faults = shaped(pipeline_parallel_layers="56")
    assert not faults
    assert "What cannot run" not in plan_text(mended, tmp_path)
    # a profile of another shape is told, and refuses no other
    odd = profile("m-12", overrides={"num_pipeline_microbatches": "12"})
    launcher = mended.sweep.launcher
    said = check_shape(launcher, mended.cell, [odd], files=())
    assert (said.faults, "12 microbatches" in said.notes[0]) == ((), True)
    # keys of a trainer of one's own may mean something else
    other = check_shape(CommandLauncher(argv=("t",)), resolved.cell, [odd], files=())
    assert (other.faults, other.notes) == ((), ())


def cell(parallelism: str = "PP=8", **overrides: str) -> Cell:
    return Cell(model_tag="m", parallelism=Parallelism.parse(parallelism), overrides=overrides)


def shape(stages: int, microbatches: int, repeats: int, delay: int = 1) -> bubble.Pipeline:
    return bubble.Pipeline(
        stages=stages, microbatches=microbatches, repeats=repeats or None, delay=delay
    )


CELLS = dict(
    line.split(": ", 1)
    for line in (DATA / "pipelines.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
)


@pytest.mark.parametrize("name", CELLS)
def test_the_shape_follows_from_the_cell_or_says_why_not(name: str) -> None:
    words, _, expected = CELLS[name].partition(" -> ")
    axes, *settings = words.split()
    overrides = dict(setting.split("=") for setting in settings)
    found = bubble.pipeline_of(cell(axes, **overrides), BASELINE, {})
    if found.refused:
        assert expected in found.refused
    else:
        assert found == shape(*map(int, expected.split()))
    if "model_name" in overrides and found.repeats is not None:
        # the file that all models share says less than the model's name
        file = {bubble.LAYERS[1]: "16"}
        assert bubble.pipeline_of(cell(axes, **overrides), BASELINE, file) == found


def test_a_plan_predicts_the_change_where_a_profile_shapes_the_pipeline() -> None:
    """The bubble is the share of iterations in which a stage waits: 7 of 15 in the baseline."""
    shapes = (shape(8, 8, 4), shape(1, 8, 1), shape(8, 16, 1, delay=2))
    assert [each.bubble for each in shapes] == pytest.approx([7 / 39, 0.0, 14 / 30])
    flag = profile("flag", "--xla_a=1")
    more, odd = (profile(f"m-{n}", overrides={bubble.MICROBATCHES: n}) for n in ("16", "9"))
    section = bubble.bubbles(cell(**{bubble.REPEATS: "1"}), (flag, more, odd))
    assert section is not None
    text = markdown(Document(title="t", header=(), sections=(section,)))
    assert f"| `baseline-deployed` | 8 | 8 | 1 | 46.7 % | {ABSENT} |" in text
    assert "| `m-16` | 8 | 16 | 1 | 30.4 % | +30.4 |" in text
    assert "9 microbatches are not a multiple of 8 stages" in text
    assert "flag" not in text
    assert bubble.bubbles(cell(), [flag]) is None
    assert bubble.bubbles(cell("FSDP=8"), [more]) is None
