"""What the code of today concludes of the committed runs, from their trials alone.

    python sweeps/quickstart/concluded.py

It drives each study anew, with the results of the run in the place of jobs, and writes the
conclusion into the JSON of reports/example; `example.py` makes the documents of that. So a change
of a verdict or of a word needs no new run. A run that today's code would have planned otherwise is
refused: then the example has to be run again. A test compares the committed JSON with it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.pretty_json import pretty_json
from pytest_xlatune.model.result import Conclusion, TrialResult
from pytest_xlatune.report.leaderboard import SCHEMA as BOARD
from pytest_xlatune.report.measured_cell import SCHEMA as DOCUMENT
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.studies import Asked, Study
from pytest_xlatune.studies.batch_size import BatchSize
from pytest_xlatune.studies.commit_check import CommitStudy
from pytest_xlatune.studies.network_check import Network
from pytest_xlatune.studies.node_check import Nodes
from pytest_xlatune.studies.tuning import RotationRule, TuningStudy

BESIDE = {"id", "slot"}  # what a report says of a trial beside its result
EXAMPLE = Path(__file__).parents[2] / "reports" / "example"


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedRun:
    """The results of a run, and the files that hold its conclusion."""

    cell: Cell
    results: tuple[TrialResult, ...]
    boards: tuple[Path, ...] = ()  # whole reports of one cell
    documents: tuple[Path, ...] = ()  # the data of tuning documents of one cell
    profiles: tuple[Any, ...] = ()
    commits: tuple[str, ...] = ()


def read(board: Path, *documents: Path) -> CommittedRun:
    """Return the run of a report; the data of a tuning document have its evidence runs too."""
    told = json.loads(board.read_text(encoding="utf-8"))
    trials = [{k: v for k, v in each.items() if k not in BESIDE} for each in told["trials"]]
    return CommittedRun(
        cell=Cell.from_json(told["cell"]),
        results=tuple(map(TrialResult.from_json, trials)),
        boards=(board,),
        documents=documents,
        profiles=tuple(told["profiles"]),
        commits=tuple(told["conclusion"]["record"].get("commits", ())),
    )


def asked(cell: Cell, *, budget: int) -> Asked:
    """Return what a sweep file without profiles hands to its study."""

    def refuse(path: str) -> Any:
        raise AssertionError(f"no example reads {path}")

    return Asked(
        cell=cell,
        variants={},
        profiles=(),
        others={},
        selected=None,
        budget=budget,
        seed=0,
        loss_tolerance=0.02,
    )


def runs() -> Iterator[tuple[Study, CommittedRun]]:
    """Yield each committed run with its study, as its sweep file declares it."""
    from pytest_xlatune.model.profile import Profile

    rotated = {"screen_baselines": 1, "finalists": 2, "blocks": 3, "block_baselines": 2,
               "budget": 40, "rotation": RotationRule()}  # fmt: skip
    for name, documents, design in (
        ("quickstart", ["quickstart"], rotated),
        ("maxtext-cpu", ["tiny-cpu"], {"screen_baselines": 2, "finalists": 1, "blocks": 4,
                                       "block_baselines": 1, "budget": 24}),
    ):  # fmt: skip
        beside = (EXAMPLE / f"{each}-tuning.json" for each in documents)
        run = read(EXAMPLE / name / "leaderboard.json", *beside)
        profiles = tuple(map(Profile.from_json, run.profiles))
        yield (
            TuningStudy(cell=run.cell, profiles=profiles, **design),
            run,
        )
    run = read(EXAMPLE / "batch" / "batch.json")
    sized = replace(run.cell, per_device_batch_size=4)
    yield BatchSize(start=4, largest=16).study(asked(sized, budget=20)), run
    run = read(EXAMPLE / "commits" / "commits.json")
    cells = tuple(replace(run.cell, code=each.partition(" ")[0]) for each in run.commits)
    yield CommitStudy(cells=cells, labels=run.commits, is_search=True, budget=60), run
    for name, declared in (("nodes", Nodes()), ("network", Network())):
        run = read(EXAMPLE / name / f"{name}.json")
        listed = {node for each in run.results if each.outcome for node in each.outcome.nodes}
        on_all = replace(run.cell, nodelist=tuple(sorted(listed)))
        yield declared.study(asked(on_all, budget=50)), run


def concluded(study: Study, run: CommittedRun) -> Conclusion:
    """Return what the study concludes of the run's results.

    Raises:
        SystemExit: today's code plans other trials.
    """
    left = {_place(each): each for each in run.results}
    history: list[TrialResult] = []
    while trials := study.decide(history).due:
        for trial in trials:
            found = left.pop((trial.arm, trial.stage, trial.block, trial.position), None)
            if found is None:
                raise SystemExit(f"{trial.id} was not run: run the example again")
            history.append(replace(found, trial=trial))
    if left:
        raise SystemExit(f"{len(left)} trials are planned no more: run the example again")
    return study.decide(history).conclusion


def _place(result: TrialResult) -> tuple[str, str, int, int]:
    trial = result.trial
    return trial.arm, trial.stage, trial.block, trial.position


def _today(trial: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trial of a report as today's code writes it."""
    beside = {name: trial[name] for name in BESIDE if name in trial}
    own = {name: value for name, value in trial.items() if name not in BESIDE}
    return {**beside, **TrialResult.from_json(own).to_json()}


def written() -> Mapping[Path, str]:
    """Return the committed JSON files with today's conclusions."""
    found = {}
    for study, run in runs():
        told = concluded(study, run).to_json()
        for path in run.boards:
            data = json.loads(path.read_text(encoding="utf-8"))
            today = {"schema": BOARD, "conclusion": told, "trials": [*map(_today, data["trials"])]}
            found[path] = pretty_json({**data, **today})
        for path in run.documents:
            data = json.loads(path.read_text(encoding="utf-8"))
            cells: Sequence[Mapping[str, Any]] = data["cells"]
            data["schema"] = DOCUMENT
            data["cells"] = [
                MeasuredCell.from_json({**each, "conclusion": told}).to_json() for each in cells
            ]
            found[path] = pretty_json(data)
    return found


def main() -> None:
    """Write them."""
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
