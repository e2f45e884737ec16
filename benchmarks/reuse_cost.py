"""What a session costs in which everything is measured already, in CPU seconds.

    python benchmarks/reuse_cost.py [--profiles 400 2000] [--bar 20]

A simulated cluster measures a sweep once, and its ledger is written as a campaign writes it. Then a
fresh process's work is timed: the ledger is read and replayed, and each profile's test asks twice
for its verdict of the screen, as fixture and test do; finalists and winner are asked for too. All
of it is to grow no faster than the profiles: 2,000 of them are to cost at most 20 s.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from simcluster import Cluster, World, drive
from tabulate import tabulate

from pytest_xlatune.ledger import (
    AttemptEnded,
    AttemptIntended,
    AttemptSubmitted,
    Event,
    Ledger,
    TrialEnded,
    TrialPlanned,
)
from pytest_xlatune.ledger.state import replay
from pytest_xlatune.model.result import Outcome, State, Submission, TrialResult
from pytest_xlatune.studies import Answered, Ask, Question
from pytest_xlatune.studies.tuning import TuningStudy

BAR_S = 20.0
ASKED = 2  # times that a test asks for its verdict


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


def cost(profiles: int) -> tuple[float, float, int]:
    """Return CPU seconds of reading the ledger, of the answers, and how many trials there are."""
    measured = study_of(profiles)
    _, history = drive(measured, Cluster(world_of(profiles), 1), 1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.jsonl"
        Ledger(path).append(*lines_of(history), at_s=0.0)
        study = study_of(profiles)
        begun = time.process_time()
        state = replay(Ledger(path).refresh())
        known = state.history(study.name)
        read = time.process_time()
        for each in study.profiles:
            question = Question(about=Ask.SCREENED, name=each.id, wave=each.wave)
            for _ in range(ASKED):
                # what a waiting process looks at before it asks
                if study.propose(known) or study.answer(known, question).state is Answered.NOT_YET:
                    sys.exit(f"{each.id}: the sweep is not measured to its end")
        for number in range(5):
            study.answer(known, Question(about=Ask.RANKED, number=number))
        study.answer(known, Question(about=Ask.BEST))
        return read - begun, time.process_time() - read, len(known)


def main() -> int:
    """Print a table; return 1 where the largest sweep costs more than the bar."""
    parser = argparse.ArgumentParser(description="CPU seconds of a session that reuses all")
    parser.add_argument("--profiles", type=int, nargs="+", default=[400, 2000])
    parser.add_argument("--bar", type=float, default=BAR_S, help="seconds for the last of them")
    options = parser.parse_args()
    rows: list[list[str]] = []
    first = last = 0.0
    for profiles in options.profiles:
        read_s, ask_s, trials = cost(profiles)
        last = read_s + ask_s
        first = first or last / profiles
        rows.append(
            [
                f"{profiles}",
                f"{trials}",
                f"{read_s:.2f}",
                f"{ask_s:.2f}",
                f"{last:.2f}",
                f"{last / profiles / first:.2f}",
            ]
        )
    headers = ["profiles", "trials", "ledger, s", "answers, s", "all, s", "a profile, of the first"]
    print(tabulate(rows, headers=headers, disable_numparse=True, tablefmt="github"))
    return 0 if last <= options.bar else 1


if __name__ == "__main__":
    sys.exit(main())
