"""A resolved sweep: node slots as a user asks for them, and how a sweep goes on that began."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import expand, parts
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.result import Outcome, Score, State, TrialResult, TrialStatus
from pytest_xlatune.report.render import terminal
from pytest_xlatune.studies.gate import Gate
from pytest_xlatune.sweep.declaration import Sweep
from pytest_xlatune.sweep.groups import CellSettings, DesignSettings, SiteSettings, UserOptions
from pytest_xlatune.sweep.registry import put_in_use, study_of
from pytest_xlatune.sweep.resolved import ResolvedSweep
from pytest_xlatune.tasks.plan import plan_of
from tests.helpers.history import study

DECLARED = Sweep(
    name="s",
    launcher=CommandLauncher(argv=("train.sh", "{steps}")),
    profiles=tuple(profile(f"p{k:02}", f"--xla_p{k}=1") for k in range(25)),
    cell=CellSettings(model_tag="m", parallelism="FSDP=2"),
    design=DesignSettings(budget=65),
)
SIXTEEN = expand("node[001-016]")


def resolved(declared: Sweep = DECLARED, **said: Any) -> ResolvedSweep:
    values = {"nodelist": SIXTEEN, "slots": 8, **said}
    return declared.resolve(UserOptions(values=values))


def test_the_node_list_is_split_in_its_order() -> None:
    assert parts(("d", "a", "c", "b"), 2) == (("d", "a"), ("c", "b"))
    found = resolved(nodelist=("d", "a", "c", "b"), slots=2)
    assert found.slots == (("d", "a"), ("c", "b"))
    assert found.cell.nodelist == ("d", "a")
    assert found.nodelist == ("d", "a", "c", "b")
    assert found.sweep.site.resources.nodes == 2, "of a trial"
    study = found.tuning()
    assert [each.nodelist for each in study.cells] == [("d", "a"), ("c", "b")]
    assert found.folder == resolved(nodelist=("d", "a"), slots=1).folder
    own = replace(DECLARED, site=SiteSettings(nodelist=SIXTEEN, slots=4))
    assert own.resolve().slots == parts(SIXTEEN, 4)
    assert resolved(nodes=2).slots == parts(SIXTEEN, 8), "nodes are those of a trial"
    layout: Any = resolved().tuning().layout
    assert own.finalist_count(slots=8) == layout.finalists


GATE = replace(DECLARED, profiles=DECLARED.profiles[:1], gate=Gate())


@pytest.mark.parametrize(
    ("declared", "said", "message"),
    [
        (DECLARED, {"nodelist": SIXTEEN[:15]},
         "cannot be split into 8 equal slots; leave out 7 nodes, or ask for 3 or 5 or 15 slots"),
        (DECLARED, {"nodelist": None}, "nodes of all slots"),
        (DECLARED, {"nodes": 16}, "16 nodes .*2 for each of 8"),
        (DECLARED, {"executor": "local"}, "this machine, which is one slot"),
        (GATE, {}, "gate has no slots.*leave them out"),
    ],
)  # fmt: skip
def test_slots_that_cannot_be_are_one_message(
    declared: Sweep, said: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=rf"(?s)sweep 's'.*{message}"):
        resolved(declared, **said)


def test_a_plan_says_wall_time_and_node_hours_with_slots(tmp_path: Path) -> None:
    def shown(executor: str) -> str:
        found = resolved(executor=executor)
        plan = plan_of(found, found.tuning(), workdir=tmp_path, shows_all=True)
        return "\n".join(terminal(plan))

    text, step = shown("slurm"), shown("allocation")
    for words in (
        "65 jobs to run, each on 2 nodes",
        "at most 7 h 30 min on 8 slots side by side",  # ten trials of 45 min
        "nodes: node[001-002]; node[003-004]; ",
    ):
        assert words in " ".join(text.split())
    assert "#SBATCH --nodelist='node[001-002]'" in text
    assert "srun --nodes=2 --ntasks=2 --ntasks-per-node=1 " in step
    assert "'--nodelist=node[001-002]'" in step
    assert "#SBATCH" not in step
    assert not list(tmp_path.iterdir())


def test_the_nodes_of_an_allocation_around_the_session_are_split(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[001-004]")
    found = resolved(nodelist=None, slots=2, executor="allocation")
    assert found.slots == (("node001", "node002"), ("node003", "node004"))


@pytest.mark.parametrize(
    ("status", "block", "rotates"),
    [
        pytest.param(TrialStatus.PLANNED, 0, False, id="a job of its screen is planned"),
        pytest.param(TrialStatus.MEASURED, 1, False, id="jobs of its blocks decide already"),
        pytest.param(TrialStatus.MEASURED, 0, True, id="its jobs are over: others may rotate"),
    ],
)
def test_a_screen_that_began_with_jobs_goes_on_with_jobs(
    status: TrialStatus, block: int, *, rotates: bool
) -> None:
    """A pace that is known by now made the rest of it a rotation, with one baseline left out."""
    python = CommandLauncher(argv=(sys.executable, "train.py"))
    sweep = replace(DECLARED, launcher=python, design=DesignSettings())
    found = resolved(sweep, nodelist=None, slots=1, executor="local")
    jobs = replace(found.tuning(), rotation=None).decide(()).due
    first, second = [trial for trial in jobs if not trial.is_baseline][:2]
    score = Score(value=6.0, tgs=400.0, step_s=0.1, n_steps=10, window=(5, 14))
    over = Outcome(state=State.COMPLETED, start_s=0.0, end_s=2.0)
    earlier = (
        TrialResult(trial=first, status=TrialStatus.MEASURED, score=score, outcome=over),
        TrialResult(trial=replace(second, block=block), status=status),
    )
    assert found.tuning().rotates
    assert found.tuning(earlier=earlier).rotates is rotates


def test_the_study_of_a_campaign_is_that_of_its_ledger() -> None:
    own = study(3, seed=7)
    put_in_use(own, own.to_json())
    assert study_of(own.name, json.loads(json.dumps(own.to_json()))) is own


def test_one_with_a_secret_that_no_ledger_has_is_not() -> None:
    own = study(profiles=(profile("token", env={"MY_TOKEN": "hunter2-long-and-secret"}),), seed=7)
    put_in_use(own, own.to_json())
    found = study_of(own.name, own.to_json())
    assert found is not own
    assert "hunter2" not in repr(found)
