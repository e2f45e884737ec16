"""`xlatune jobs`: list the jobs in the ledgers; `--cancel` ends jobs that no session waits for."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from pytest_xlatune.campaign.jobs import cancel_unwaited, lost_ledger_error
from pytest_xlatune.cli.options import options_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.ledger import LEDGER, Ledger
from pytest_xlatune.ledger.state import LedgerState, replay
from pytest_xlatune.model.errors import Exit, LedgerError
from pytest_xlatune.report.document import brief, lines
from pytest_xlatune.tasks.measured import folders_of


def run_jobs(arguments: argparse.Namespace) -> Output:
    """List the jobs of each ledger; with `--cancel`, first end those that no session waits for."""
    texts: list[str] = []
    ended: list[str] = []
    problems: list[str] = []
    for folder in folders_of(options_of(arguments).workdir, arguments.sweeps):
        try:
            cancelled: list[str] = []
            if arguments.cancel:
                cancelled = [
                    f"ended {submission.executor} {submission.job_id} {submission.trial_id}"
                    for submission in cancel_unwaited(folder)
                ]
            ended += cancelled
            state = replay(Ledger(folder / LEDGER).refresh())
            if not state.opened and (error := lost_ledger_error(folder)):
                problems.append(str(error))
        except LedgerError as error:  # go on: the other ledgers can have jobs to end
            problems.append(str(error))
            continue
        texts += [*_job_lines(state), *cancelled]
    if not texts and not problems:
        texts.append("no job was submitted so far")
    elif arguments.cancel and not ended:
        texts.append("no job to end: a session waits for each job that runs")
    return Output(
        documents=(brief("Jobs", lines(*texts)),),
        problems=tuple(problems),
        problem_status=Exit.INTERNAL,
    )


def _job_lines(state: LedgerState) -> Iterator[str]:
    for trial_id, progress in state.trials.items():
        for attempt in progress.attempts.values():
            job, outcome = attempt.submission, attempt.outcome
            if job is not None:
                shown_state = "in flight" if outcome is None else str(outcome.state)
                yield f"{job.executor} {job.job_id} {trial_id} {shown_state}"
