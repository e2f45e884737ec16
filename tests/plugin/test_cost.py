"""What a sweep will cost is said before it spends anything, and a person is asked above a limit."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.executors import slurm
from pytest_xlatune.executors.slurm import driver
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.ledger import AttemptEnded, AttemptSubmitted, LedgerEntry
from pytest_xlatune.model.errors import ConfigError, Exit
from pytest_xlatune.model.profile import profile
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import Outcome, State, Submission
from pytest_xlatune.report.document import Bullets, Section, Table
from pytest_xlatune.studies.network_check import Network
from pytest_xlatune.studies.node_check import Nodes
from pytest_xlatune.sweep.declaration import Sweep
from pytest_xlatune.sweep.groups import CellSettings, DesignSettings, Said
from pytest_xlatune.sweep.resolved import ResolvedSweep
from pytest_xlatune.tasks.cost import Cost, cost_of, kept_elsewhere, refuse_unasked, ways_of

DESIGN = """\
        screen_baselines=2,
        finalists=2,
        blocks=3,
        block_baselines=1,
        budget=40,
"""


WALL = (
    "17 h 44 min one after the other, without time in the queue; 1 d 1 h with it (a mean of "
    "12 min each)"
)
TRIAL_S = 720.0


def cost(**changes: Any) -> Cost:
    values: dict[str, Any] = {"jobs": 38, "measured": 12, "nodes": 8, "trial_s": 1680.0}
    return Cost(**{**values, **changes})


def test_a_plan_names_jobs_node_hours_and_wall_time() -> None:
    known = cost(known=12, queue_s=720.0, queued_s=90000.0)
    assert known.node_hours == pytest.approx(38 * 8 * 1680 / 3600)
    assert known.lines == (
        "38 jobs to run, each on 8 nodes; 12 trials are measured already and used again",
        "about 142 node-hours: a trial takes 28 min, the mean of 12 here",
        WALL,
    )
    bound = cost(measured=0)
    assert "at most 142 node-hours" in bound.lines[1]
    assert "at most, its limit; none has run here" in bound.lines[1]
    assert bound.lines[2].startswith("at most 17 h 44 min one after the other")
    assert cost(jobs=0).lines == (
        "0 jobs to run, each on 8 nodes; 12 trials are measured already and used again",
    )
    assert cost(trial_s=None).words == "unknown node-hours"
    assert cost(nodes=3.75, measured=0).lines[0] == "38 jobs to run, on 3.8 nodes each on average"


@pytest.mark.parametrize(
    ("limit_h", "is_said", "is_refused"),
    [(None, False, False), (100.0, False, True), (100.0, True, False), (150.0, False, False)],
)
def test_a_person_is_asked_above_the_limit_of_the_site(
    limit_h: float | None, is_said: bool, is_refused: bool
) -> None:
    def ask() -> None:
        refuse_unasked(cost(), limit_h=limit_h, is_said=is_said, sweep="pp8")

    if is_refused:
        with pytest.raises(ConfigError, match=r"at most 142 node-hours .*Above 100 .*-yes"):
            ask()
    else:
        ask()


def test_nothing_is_submitted_before_a_person_says_yes(
    folder: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder.path / "xlatune.toml").write_text("ask-above = 0.5\n", encoding="utf-8")
    asked = folder.run("-k", "fast")
    assert asked.ret == Exit.USAGE
    asked.stdout.fnmatch_lines(["*would cost at most * node-hours*--xlatune-yes"])
    assert not folder.submitted
    folder.run("-k", "fast", "--xlatune-yes").assert_outcomes(passed=1)
    assert len(folder.submitted) == 3
    # what trials really take is known now: seconds
    folder.run("-m", "wave2").assert_outcomes(passed=2, xfailed=1)

    monkeypatch.chdir(folder.path)
    assert main(["plan", "test_sweep.py"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"What it costs \* \d+ jobs to run, each on 1 node; 5 trials are", said)
    assert re.search(r"about 0.\d node-hours: a trial takes \d+ s, the mean of \d+ here", said)
    assert "wave2, measured" in said


def test_a_budget_that_can_only_rank_is_refused(folder: Any) -> None:
    text = folder.read("test_sweep.py").replace(DESIGN, "        budget=8,\n")
    assert "budget=8" in text
    text = text.replace("def test_finalist", "def not_test_finalist")
    (folder.path / "test_sweep.py").write_text(text, encoding="utf-8")
    refused = folder.run("-m", "wave2")
    assert refused.ret == Exit.USAGE
    refused.stdout.fnmatch_lines(["*could only rank its profiles: 8 jobs screen 3 profiles*"])
    assert not folder.submitted
    plan = folder.run("--xlatune-plan")
    plan.stdout.fnmatch_lines(["*ranking only*"])
    ranked = folder.run("-m", "wave2", "--xlatune-yes")
    ranked.assert_outcomes(passed=2, xfailed=1)


def test_trials_measured_from_another_folder_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    above, cell = tmp_path, Path("pretend/cell")  # few folders lie in it, unlike in pytest's own
    project = above / "project"
    kept, below = project / ".xlatune", project / "sweeps"
    (kept / cell).mkdir(parents=True)
    (kept / cell / "ledger.jsonl").write_text("{}\n")
    below.mkdir()
    for here, workdir in ((below, below / ".xlatune"), (above, project / "x/.xlatune")):
        monkeypatch.chdir(here)
        (said,) = kept_elsewhere(cell, workdir)
        assert f"{kept} holds trials of this very cell" in said
        assert f"--xlatune-workdir {kept}" in said
    monkeypatch.chdir(project)
    assert kept_elsewhere(cell, kept) == ()
    assert kept_elsewhere(Path("pretend/other"), below / ".xlatune") == ()


def checked(study: Any, *, nodes: int) -> ResolvedSweep:
    """A check of nodes, each of which runs jobs of its own."""
    declared = Sweep(
        name="s",
        launcher=CommandLauncher(argv=("train.sh", "{steps}")),
        study=study,
        cell=CellSettings(model_tag="m", parallelism="FSDP=8"),
        design=DesignSettings(budget=600),
    )
    names = tuple(f"node{at:03d}" for at in range(1, nodes + 1))
    return declared.resolve(Said(values={"nodelist": names}))


@pytest.mark.parametrize(
    ("study", "nodes", "jobs", "wall"),
    [
        pytest.param(Nodes(), 32, 32, "at most 45 min in 1 wave, ", id="nodes"),
        pytest.param(Network(), 16, 120, "at most 11 h 15 min in 15 waves, ", id="network"),
        pytest.param(Network(), 9, 36, "at most 6 h 45 min in 9 waves, ", id="odd network"),
    ],
)
def test_jobs_on_nodes_of_their_own_run_in_waves(
    study: Any, nodes: int, jobs: int, wall: str, tmp_path: Path
) -> None:
    found = checked(study, nodes=nodes)
    cost = cost_of(found, found.study(), (), [])
    assert cost.jobs == jobs
    assert cost.lines[-1].startswith(f"{wall}jobs on other nodes at the same time")
    own = 1 if isinstance(study, Nodes) else 2
    assert cost.node_hours == pytest.approx(jobs * own * 0.75), "waves cost no less"
    assert ways_of(found, found.study(), (), [], folder=tmp_path) is None


def pinned(**said: Any) -> ResolvedSweep:
    declared = Sweep(
        name="s",
        launcher=CommandLauncher(argv=("train.sh", "{steps}")),
        profiles=tuple(profile(f"p{k:02}", f"--xla_p{k}=1") for k in range(25)),
        cell=CellSettings(model_tag="m", parallelism="FSDP=2"),
    )
    return declared.resolve(Said(values={"nodelist": ("node001", "node002"), **said}))


def ran(waits_s: Sequence[float], *, executor: str = "slurm", depth: int = 2) -> list[LedgerEntry]:
    """The ledger of trials that follow one another, each handed in `depth` trials before."""
    starts: list[float] = []
    events: list[tuple[float, Any]] = []
    for at, wait_s in enumerate(waits_s):
        asked_s = starts[at - depth] if at >= depth else 1000.0
        free_s = starts[-1] + TRIAL_S + 2 if starts else 0.0
        starts.append(max(asked_s + wait_s, free_s))
        job = Submission(trial_id=f"t{at}", attempt=1, executor=executor, job_id=f"{at}", folder="")
        done = Outcome(
            state=State.COMPLETED, start_s=starts[-1], end_s=starts[-1] + TRIAL_S,
            nodes=("node001", "node002"),
        )  # fmt: skip
        events.append((asked_s, AttemptSubmitted(submission=job)))
        ended = AttemptEnded(trial_id=job.trial_id, attempt=1, outcome=done)
        events.append((starts[-1] + TRIAL_S, ended))
    return [
        LedgerEntry(number=number, at_s=at_s, event=event)
        for number, (at_s, event) in enumerate(events, 1)
    ]


def compared(found: Section | None) -> tuple[str, dict[str, tuple[str, str]]]:
    """What is said of the ways, and of each its hours and node-hours."""
    assert found is not None
    said, rows = "", {}
    for block in found.blocks:
        if isinstance(block, Bullets):
            said += " ".join(map(str, block.items))
        if isinstance(block, Table):
            rows = {row[0]: (row[2], row[3]) for row in block.rows}
    return said, rows


def ways(entries: list[LedgerEntry], folder: Path, **said: Any) -> Any:
    resolved = pinned(**said)
    return compared(ways_of(resolved, resolved.study(), (), entries, folder=folder))


# quantiles of an exponential distribution of mean 40 min, in no order
WAITS_S = [-2400 * math.log(1 - ((7 * k) % 50 + 0.5) / 50) for k in range(50)]


def test_what_waited_for_our_own_trials_is_no_wait_in_the_queue(tmp_path: Path) -> None:
    # nodes are free at once: each began 2 s after the one before it, which took 12 min
    entries = ran([1.0] * 20)
    cost = cost_of(pinned(), pinned().study(), (), entries)
    assert cost.trial_s == TRIAL_S
    assert cost.queue_s is not None
    assert cost.queue_s < 30
    assert cost.queued_s == pytest.approx(cost.jobs * TRIAL_S, rel=0.01), "no hours twice"
    said, rows = ways(entries, tmp_path)
    assert "the mean of 20 in the ledger; 19 of them began as soon as" in said
    assert rows["jobs, 1 waiting"][0] == rows["jobs, 2 waiting"][0] == "10.0"


def test_a_plan_compares_the_ways_by_the_waits_of_the_ledger(tmp_path: Path) -> None:
    entries = ran(WAITS_S)
    cost = cost_of(pinned(), pinned().study(), (), entries)
    assert cost.queue_s == pytest.approx(2400, rel=0.15)
    said, rows = ways(entries, tmp_path)
    assert re.search(r"a job waits \d+ min in the queue, the mean of 50 in the ledger", said)
    # benchmarks/ways_of_running.py, through the study itself: 35.3 and 25.3 h
    assert float(rows["jobs, 1 waiting"][0]) == pytest.approx(35.3, rel=0.15)
    assert float(rows["jobs, 2 waiting"][0]) == pytest.approx(25.3, rel=0.15)
    assert rows["jobs, 2 waiting"][1] == "20.0"
    # no allocation has waited yet and Slurm says nothing: no hours of it are made up
    assert "how long an allocation waits in the queue is not known" in said
    assert not re.search(r"\d", rows["allocations of 4 h"][0])
    match = re.search(r"waits less than (\d+) h", said)
    assert match is not None
    assert 4 <= int(match[1]) <= 12
    four = rows["jobs, 2 waiting, 4 slots of 2 nodes"]
    assert float(four[0]) < float(rows["jobs, 2 waiting"][0]) / 2


def held(folder: Path, number: int, *, asked_s: float, began_s: float) -> None:
    run = folder / "run"
    own = run / f"held-{number}"
    own.mkdir(parents=True)
    said = {"job_id": f"{number}", "work_dir": "", "session": "s", "nodelist": ["node001"],
            "resources": Resources().to_json(), "asked_s": asked_s}  # fmt: skip
    (own / driver.HELD_JSON).write_text(json.dumps(said))
    over = Outcome(state=State.TIMEOUT, end_s=began_s + 4 * 3600)
    (own / "over.json").write_text(json.dumps(over.to_json()))
    for at in range(2):
        trial = run / f"t{number}-{at}.1"
        trial.mkdir()
        taken = {"held": own.name, "allocation": "1", "step": "s", "at_s": began_s + 800 * at}
        (trial / driver.TAKEN).write_text(json.dumps(taken))


def test_the_waits_of_allocations_are_those_that_we_asked_for(tmp_path: Path) -> None:
    for number, at_s in enumerate(itertools.accumulate([1000.0, 30000.0, 30000.0]), 1):
        held(tmp_path, number, asked_s=at_s, began_s=at_s + 2400)
    entries = ran([1.0] * 9, executor="allocation")
    cost = cost_of(pinned(), pinned().study(), (), entries)
    assert cost.queue_s is None, "a step that waits for its turn is no job in the queue"
    said, rows = ways(entries, tmp_path)
    assert "an allocation waits 40 min in the queue, the mean of 3 in the ledger" in said
    # 11.3 h through the study
    assert float(rows["allocations of 4 h"][0]) == pytest.approx(11.3, rel=0.1)
    assert not re.search(r"\d", rows["jobs, 2 waiting"][0]), "no job has waited yet"


def test_slurm_is_asked_where_nothing_was_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Resources] = []

    def expected(*, resources: Resources, **_: Any) -> float:
        asked.append(resources)
        return 600.0 if resources.time_limit_s < 4 * 3600 else 3600.0

    monkeypatch.setattr(slurm, "expected_wait", expected)
    said, rows = ways([], tmp_path)
    assert "a job waits 10 min in the queue: sbatch --test-only expects it now" in said
    assert "an allocation waits 1 h in the queue: sbatch --test-only" in said
    assert "45 min, its limit" in said
    assert [each.time_limit_s for each in asked] == [2700, 4 * 3600]
    assert all(re.search(r"\d", hours) for hours, _ in rows.values())


def test_nothing_is_made_up_where_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def silent(**_: Any) -> str:
        asked.append(1)
        return "sbatch: command not found"

    monkeypatch.setattr(slurm, "expected_wait", silent)
    said, rows = ways([], tmp_path)
    assert not rows
    assert len(asked) == 1, "a Slurm that is away is asked once"
    for what in ("a job", "an allocation"):
        assert f"how long {what} waits in the queue is not known: none was measured here" in said
    assert "sbatch: command not found" in said
    here = pinned(nodelist=None, executor="local")
    assert ways_of(here, here.study(), (), [], folder=tmp_path) is None
