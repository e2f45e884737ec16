"""What a session costs in which everything is measured already, by the number of profiles.

    python benchmarks/reuse_cost.py [--profiles 200 800 2000] [--bar 20]

A simulated cluster measures a sweep once, and its ledger is written as a campaign writes it. Then
the command that a user types, pytest on the sweep file, runs in a process of its own: it reads the
ledger, asks for the verdict of each profile and writes the reports. CPU seconds are the operating
system's, those of its own processes included. All of it is to grow no faster than the profiles:
2,000 of them are to cost at most 20 s.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from costs import used
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
from pytest_xlatune.studies.tuning import TuningStudy
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


def study_of(profiles: int) -> TuningStudy:
    """Return a sweep of so many profiles, three of them faster."""
    world = world_of(profiles)
    return TuningStudy(cell=world.cell(), profiles=world.declared(), budget=world.budget)


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


def measure(profiles: int, folder: Path) -> int:
    """Leave a sweep file and the ledger of its sweep, measured to its end; return its trials."""
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
    Ledger(path).append(opened, *lines_of(history), at_s=1e9)
    return len(history)


def main() -> int:
    """Print a table; return 1 where the largest sweep costs more than the bar."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--profiles", type=int, nargs="+", default=[200, 800, 2000])
    parser.add_argument("--bar", type=float, default=BAR_S, help="seconds for the last of them")
    options = parser.parse_args()
    rows, cpu_s = [], 0.0
    for profiles in options.profiles:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            trials = measure(profiles, folder)
            used([*RUN, "--collect-only"], folder)  # compiles the modules
            cost = used(RUN, folder)
        cpu_s = cost.cpu_s
        rows.append([profiles, trials, cpu_s, 1e3 * cpu_s / profiles, cost.peak_mb])
    headers = ["profiles", "trials", "CPU s", "ms a profile", "peak MB"]
    print(tabulate(rows, headers=headers, floatfmt=("", "", ".1f", ".1f", ".0f")))
    return 0 if cpu_s <= options.bar else 1


if __name__ == "__main__":
    sys.exit(main())
