"""A plan tells what will be: every declared profile, how many jobs, and what cannot run."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import profile
from pytest_xlatune.prepare.preflight import check_shape
from pytest_xlatune.report.render import markdown
from pytest_xlatune.stats.design import Plan
from pytest_xlatune.studies.tuning import TuningStudy
from pytest_xlatune.sweep.declaration import Sweep, load_sweep
from pytest_xlatune.sweep.groups import CellSettings, UserOptions
from pytest_xlatune.sweep.resolved import ResolvedSweep
from pytest_xlatune.tasks.cost import cost_of
from pytest_xlatune.tasks.plan import plan_of
from pytest_xlatune.tasks.runs import run_preflight
from tests.helpers.knobs import CELL, SINGLES
from tests.helpers.resolved import campaign_of
from tests.helpers.scripted import FakeExecutor, run

SWEEPS = Path(__file__).parents[2] / "sweeps"
FLAGS = {"XLA_FLAGS": "--xla_gpu_enable_latency_hiding_scheduler=true"}


def flagship(name: str = "pp8", **said: Any) -> ResolvedSweep:
    values = {"model_tag": "mixtral-8x22b", "executor": "local", "deployed": FLAGS}
    return load_sweep(SWEEPS / f"test_{name}.py").resolve(UserOptions(values=values | said))


def planned(resolved: ResolvedSweep, folder: Path) -> str:
    return markdown(plan_of(resolved, resolved.study(), workdir=folder))


@pytest.mark.parametrize("name", ["pp8", "fsdp8", "tp8", "hybrid"])
def test_all_declared_profiles_stand_in_the_plan_of_a_sweep_with_derived_waves(
    name: str, tmp_path: Path
) -> None:
    resolved = flagship(name)
    text = planned(resolved, tmp_path)
    trials, _, commands = text.partition("## Trials")[2].partition("## Commands")
    for each in resolved.sweep.profiles:
        rows = [line for line in trials.splitlines() if f"| `{each.id}-{each.wave}." in line]
        assert len(rows) == 1, each.id
        assert f"`{each.id}`" in commands
        # of the waves behind the stacks nothing is known yet but these
        assert (f"{each.wave}, later |" in rows[0]) == (each.wave != "wave1"), rows[0]


def test_a_plan_tells_the_jobs_as_planned_and_at_most() -> None:
    study = TuningStudy(cell=CELL, profiles=SINGLES[:9], budget=50)
    assert isinstance(study.layout, Plan)
    fewest = study.layout.jobs
    assert (study.outlook(()).left, study.outlook(()).at_most) == (fewest, 50)
    assert fewest < 50
    assert f"{fewest} jobs, up to 50 " in sentence(study.outlook(()).lines[0])
    # a sweep that states its blocks has no others
    stated = replace(study, finalists=2, blocks=4)
    assert stated.outlook(()).at_most == stated.outlook(()).left
    declared = Sweep(
        name="s",
        launcher=CommandLauncher(argv=("train.sh", "{steps}")),
        profiles=SINGLES[:9],
        cell=CellSettings(model_tag="m", parallelism="PP=8"),
    )
    found = declared.resolve(UserOptions(values={"nodelist": ("node001", "node002")}))
    cost = cost_of(found, found.study(), (), [])
    assert (cost.jobs, cost.most) == (fewest, 50)
    assert cost.lines[0] == f"{fewest} to 50 jobs to run, each on 2 nodes"
    assert cost.node_hours == pytest.approx(50 * 2 * 0.75), "a person is asked about the most"
    known = dataclasses.replace(cost, known=3)
    assert known.lines[1].startswith(f"about {math.ceil(fewest * 1.5)} to 75 node-hours")
    assert " to 1 d 13 h one after the other" in known.lines[2]


PIPELINE = {"model_name": "deepseek3-671b"}  # 58 layers in the pipeline


def test_a_cell_whose_layers_do_not_divide_is_refused_before_it_begins(tmp_path: Path) -> None:
    refused = "58 layers do not divide into 8 stages"
    resolved = flagship(model_tag="deepseek3-671b", overrides=PIPELINE)
    found = run_preflight(resolved, tmp_path, is_first=True, is_busy=False, cells=())
    (fault,) = found.faults
    assert fault.startswith(f"cell {resolved.cell.label!r} cannot run: {refused}")
    assert "set pipeline_parallel_layers=56" in fault
    assert f"refused: {fault}" in " ".join(planned(resolved, tmp_path).split())
    mended = flagship(
        model_tag="deepseek3-671b", overrides=PIPELINE | {"pipeline_parallel_layers": "56"}
    )
    assert not run_preflight(mended, tmp_path, is_first=True, is_busy=False, cells=()).faults
    assert "What cannot run" not in planned(mended, tmp_path)
    # a profile of another shape is told, and keeps no other from running
    odd = profile("m-12", overrides={"num_pipeline_microbatches": "12"})
    said = check_shape(mended.sweep.launcher, mended.cell, [odd], files=())
    assert said.faults == ()
    (note,) = said.notes
    assert "'m-12'" in note
    assert "12 microbatches" in note
    # and no job of it is submitted
    executor = FakeExecutor()
    study = TuningStudy(cell=mended.cell, profiles=(odd, profile("a", "--xla_a=1")), budget=20)
    launcher = mended.sweep.launcher
    each = campaign_of(tmp_path, executor, study, launcher=launcher)
    each.open()
    run(each)
    verdict = each.conclude().verdict("m-12")
    assert verdict is not None
    assert (verdict.can_run, verdict.job_ids) == (False, ())
    assert executor.submitted
    assert not any(name.startswith("m-12") for name in executor.submitted)
    # keys of a trainer of one's own may mean something else
    other = check_shape(CommandLauncher(argv=("t",)), resolved.cell, [odd], files=())
    assert (other.faults, other.notes) == ((), ())


@pytest.mark.parametrize(
    ("unseen", "is_told"),
    [
        pytest.param((), True, id="a variable without a witness is told"),
        pytest.param(("HSA_*",), False, id="one that the sweep declares unseen is not"),
    ],
)
def test_a_plan_tells_which_variables_can_make_no_winner(
    unseen: tuple[str, ...], is_told: bool, tmp_path: Path
) -> None:
    sweep = flagship().sweep
    sets = profile("quiet", env={"HSA_ENABLE_SDMA": "0", "NCCL_ALGO": "Ring"})
    sweep = replace(sweep, profiles=(sets,), site=replace(sweep.site, unseen=unseen))
    resolved = sweep.resolve(UserOptions(values={"model_tag": "m", "executor": "local"}))
    assert (
        "a profile that sets HSA_ENABLE_SDMA cannot win" in planned(resolved, tmp_path)
    ) is is_told
