"""What a measured sweep costs, by the number of profiles: asked again, reported, compared.

    python benchmarks/reuse_cost.py [--profiles 200 800 2000] [--bar 20]
    python benchmarks/reuse_cost.py --profiles 200 --steps 13000    a ledger of 100 MB

A simulated cluster measures a sweep once, and its ledger is written as a campaign writes it. Then
the commands that a user types run, each in a process of its own: pytest on the sweep file reads the
ledger, asks for the verdict of each profile and writes the reports; `xlatune report` and `xlatune
history`. CPU seconds are the operating system's, those of its own processes included. All of it is
to grow no faster than the profiles: pytest on 2,000 of them is to cost at most 20 s.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from costs import COMMAND, used
from msgspec.structs import replace
from simcluster import Cluster, World, drive
from tabulate import tabulate

from pytest_xlatune.ledger import (
    LEDGER,
    AttemptEnded,
    AttemptIntended,
    AttemptSubmitted,
    CampaignOpened,
    Event,
    Ledger,
    TrialEnded,
    TrialPlanned,
)
from pytest_xlatune.model.result import Outcome, State, Submission, TrialResult
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.sweep.groups import UserOptions

BAR_S = 20.0
RUN = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=junit.xml"]
SWEEP = """\
import sys

from pytest_xlatune import (
    CellSettings, CommandLauncher, DesignSettings, SiteSettings, Sweep, profile, standard_tests
)

FLAG = "--xla_gpu_all_reduce_combine_threshold_bytes"
SWEEP = Sweep(
    name="reused",
    cell=CellSettings(model_tag="simulated", parallelism="FSDP=8"),
    launcher=CommandLauncher(argv=(sys.executable, "-c", "pass")),
    site=SiteSettings(executor="local"),
    design=DesignSettings(budget={budget}),
    profiles=tuple(profile(f"p{{at:03d}}", f"{{FLAG}}={{1000 + at}}") for at in range({profiles})),
)
tests = standard_tests(SWEEP)
"""


class Tried(Cluster):
    """A cluster that leaves no trial without a score: a new session tries such a trial again."""

    def run(self, trials: Sequence[Trial]) -> list[TrialResult]:
        """Run trials until each has a score, as a campaign does."""
        found = super().run(trials)
        return [each if each.score else self.run([each.trial])[0] for each in found]


def world_of(profiles: int) -> World:
    """Return the world that it is measured in."""
    return World(
        name="reused",
        effects=(0.03, 0.03, 0.03),
        profiles=profiles,
        budget=profiles + profiles // 6 + 60,
    )


def lines_of(history: Sequence[TrialResult]) -> Iterator[Event]:
    """Give the events of a campaign that measured a history, each trial at its first attempt."""
    for at, result in enumerate(history):
        trial_id, job = result.trial.id, str(at)
        of = Submission(trial_id=trial_id, attempt=1, executor="local", job_id=job, folder=job)
        yield TrialPlanned(trial=result.trial)
        yield AttemptIntended(trial_id=trial_id, attempt=1, comment=job)
        yield AttemptSubmitted(submission=of)
        outcome = Outcome(state=State.COMPLETED, exit_code=0)
        yield AttemptEnded(trial_id=trial_id, attempt=1, outcome=outcome)
        yield TrialEnded(result=result)


def longer(result: TrialResult, steps: int) -> TrialResult:
    """Return a result as that of a longer job: its last steps all took what its steady ones did."""
    score = result.score
    if score is None or score.step_s is None:
        return result
    more = tuple((at, score.step_s) for at in range(len(score.timings), steps))
    return replace(result, score=replace(score, timings=(*score.timings, *more)))


def measure(profiles: int, folder: Path, steps: int) -> Path:
    """Leave a sweep file and the ledger of its sweep, measured to its end; return the ledger."""
    world, declared = world_of(profiles), {}
    text = SWEEP.format(profiles=profiles, budget=world.budget)
    (folder / "test_reused.py").write_text(text, encoding="utf-8")
    exec(text, declared)
    resolved = declared["SWEEP"].resolve(UserOptions())
    study = resolved.study()
    _, history = drive(study, Tried(world, 1), 1)
    opened = CampaignOpened(
        cells=study.cells, study=study.name, sweep="reused", session="s", declared=study.to_json()
    )
    path = folder / ".xlatune" / resolved.folder / LEDGER
    path.parent.mkdir(parents=True)
    Ledger(path).append(opened, *lines_of([longer(each, steps) for each in history]), at_s=1e9)
    return path


def main() -> int:
    """Print a table; return 1 where the largest sweep costs more than the bar."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profiles", type=int, nargs="+", default=[200, 800, 2000])
    parser.add_argument("--steps", type=int, default=0, help="of each job; 15 at least")
    parser.add_argument("--bar", type=float, default=BAR_S, help="seconds for the last of them")
    options = parser.parse_args()
    rows, cpu_s = [], 0.0
    for profiles in options.profiles:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            ledger_mb = measure(profiles, folder, options.steps).stat().st_size / 1e6
            used([*RUN, "--collect-only"], folder)  # compiles the modules
            session = used(RUN, folder)
            report, history = (
                used([*COMMAND, *words], folder) for words in (["report"], ["history", "."])
            )
        cpu_s = session.cpu_s
        costs = [
            figure for cost in (session, report, history) for figure in (cost.cpu_s, cost.peak_mb)
        ]
        rows.append([profiles, ledger_mb, 1e3 * cpu_s / profiles, *costs])
    headers = ["profiles", "ledger, MB", "ms a profile", "pytest, CPU s", "peak MB"]
    headers += ["report, CPU s", "peak MB", "history, CPU s", "peak MB"]
    print(tabulate(rows, headers=headers, floatfmt=("", ".1f", ".1f", *(".1f", ".0f") * 3)))
    return 0 if cpu_s <= options.bar else 1


if __name__ == "__main__":
    sys.exit(main())
