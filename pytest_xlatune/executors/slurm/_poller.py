"""Watch all jobs of a campaign with one round of questions every few seconds.

A round asks the controller about our own jobs only (`scontrol show job ID`, or one `squeue` for our
user if there are many, or if the site forbids that): in each round about running jobs, and about
those that wait behind them in every tenth, or when a job has ended. Then it asks slurmdbd (`sacct`)
about jobs that the controller has forgotten, and reads what the payloads wrote into the attempts'
folders. The controller comes first because only it knows that a job is COMPLETING: for sacct the
job is over while its processes still hold the nodes.

A job is lost if all of these do not know it in three rounds while they know other jobs of ours. It
takes twenty rounds if they know none of ours, or if only slurmdbd says that it waits or runs; and a
job whose log grows is never lost. If the controller does not answer, or mentions none of our jobs,
that is `SchedulerDown` instead.

A job that had begun and waits again was put back into the queue by a person, since our jobs ask not
to be. It is waited for, but its second start runs nothing, because the first one claimed the trial.
So it counts as requeued, and the next attempt is another job.

The poller knows no trial and submits nothing. Its memory only saves questions, and may be lost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from pytest_xlatune import secure_files
from pytest_xlatune.executors import SchedulerDown
from pytest_xlatune.executors.folder import read_outcomes
from pytest_xlatune.executors.payload import CANCEL, name_of
from pytest_xlatune.executors.slurm._commands import (
    Run,
    SlurmJob,
    Trouble,
    merge,
    parse_sacct,
    parse_scontrol,
    parse_squeue,
    run_command,
    sacct,
    squeue,
)
from pytest_xlatune.executors.slurm._script import SCRIPTS
from pytest_xlatune.model.errors import SubmissionError
from pytest_xlatune.model.result import Outcome, State

ROUND_S = 3.0
PATIENCE_S = 900.0
EMPTY_ROUNDS = 3
# after nine seconds of empty answers, all running trials were once cancelled and submitted again
ALL_EMPTY_ROUNDS = 20  # rounds in which no job of ours is known until a job is lost
# `scontrol show job -o` without ids prints all jobs: 1.5 MB in each round with 1,500 jobs of others
QUEUE_ROUNDS = 10  # rounds between two questions about jobs that wait behind a running one
_ONE_BY_ONE = 8  # so many jobs are asked for one by one, and more together
_LITTLE_BYTES = 1 << 16
_NO_ACCOUNTING_S = 300.0  # seconds until slurmdbd is asked again after it did not answer


@dataclass(slots=True, kw_only=True)
class Poller:
    """Tell the state of jobs; `run` runs a Slurm command."""

    run: Run = run_command
    clock: Callable[[], float] = time.monotonic
    round_s: float = ROUND_S  # least time between two rounds of questions
    patience_s: float = PATIENCE_S  # seconds without an answer of the controller until it gives up
    is_ours: Callable[[SlurmJob, Path], bool] = SlurmJob.is_in
    _asked_at: float | None = None
    _away_since: float | None = None
    _away: str = ""
    _ask_accounting_at: float = 0.0
    # keyed by folder, because a controller that lost its last seconds reuses job ids
    _last: dict[Path, Outcome] = field(default_factory=dict)
    _empty: dict[Path, int] = field(default_factory=dict)
    # bytes of the logs when the job was last unknown
    _grown: dict[Path, int] = field(default_factory=dict)
    _rounds_to_queue: int = 0

    def poll(self, folders: Mapping[str, Path]) -> dict[str, Outcome]:
        """Return job id -> its state, for jobs given with the folders of their attempts.

        Within `round_s` of the last round, the last answers are returned again; a job that no round
        has asked for yet is pending.

        Raises:
            SchedulerDown: the controller does not answer; ask again later.
            SubmissionError: it has not answered for `patience_s`.
        """
        now = self.clock()
        open_jobs = {
            job_id: folder
            for job_id, folder in folders.items()
            if not self._last.get(folder, _UNASKED).state.is_final
        }
        if open_jobs and (self._asked_at is None or now - self._asked_at >= self.round_s):
            self._asked_at = now
            answers = self._round(self._due(open_jobs), now)
            self._last |= {open_jobs[job_id]: outcome for job_id, outcome in answers.items()}
            if any(answer.state.is_final for answer in answers.values()) or self._away_since:
                self._rounds_to_queue = 0
        if open_jobs and self._away_since is not None:
            raise self._down(now - self._away_since)
        return {job_id: self._last.get(folder, _UNASKED) for job_id, folder in folders.items()}

    def _due(self, folders: Mapping[str, Path]) -> Mapping[str, Path]:
        """Return the jobs to ask for in this round."""
        active = {
            job_id: folder
            for job_id, folder in folders.items()
            if self._last.get(folder, _UNASKED).state is not State.PENDING
            or folder not in self._last
            or folder in self._empty
        }
        if active and len(active) < len(folders) and self._rounds_to_queue > 0:
            self._rounds_to_queue -= 1
            return active
        self._rounds_to_queue = QUEUE_ROUNDS
        return folders

    def _round(self, folders: Mapping[str, Path], now: float) -> dict[str, Outcome]:
        # read before Slurm is asked, so that a job that begins meanwhile does not look requeued
        started = {
            job_id for job_id, folder in folders.items() if _begin_file(folder, job_id).exists()
        }
        jobs = self._controller(folders)
        if jobs is None:
            self._away_since = now if self._away_since is None else self._away_since
            return {}
        self._away_since = None
        open_in_books = set[str]()
        if unseen := folders.keys() - jobs.keys():
            booked = self._asked_jobs(self._accounting(sorted(unseen), now), folders)
            # slurmdbd never records the end of a job that the controller lost
            open_in_books = {
                job_id for job_id in booked if not booked[job_id].outcome.state.is_final
            }
            jobs |= {job_id: job for job_id, job in booked.items() if job_id not in open_in_books}
        return {
            job_id: self._seen(jobs[job_id], folder, was_begun=job_id in started)
            if job_id in jobs
            else self._unseen(
                job_id,
                folder,
                ALL_EMPTY_ROUNDS if job_id in open_in_books or not jobs else EMPTY_ROUNDS,
            )
            for job_id, folder in folders.items()
        }

    def _controller(self, folders: Mapping[str, Path]) -> dict[str, SlurmJob] | None:
        """Ask slurmctld; None if it does not answer."""
        if len(folders) > _ONE_BY_ONE:
            return self._queue(folders)
        known: dict[str, SlurmJob] = {}
        has_answered = False
        for job_id in sorted(folders):
            answer = self.run(["scontrol", "show", "job", "-o", job_id])
            if answer.trouble is Trouble.UNKNOWN_JOB:
                has_answered = True
            elif answer.trouble is Trouble.AWAY:
                self._away = answer.error
                return None
            elif answer.trouble is not Trouble.NONE:
                return self._queue(folders)
            else:
                known |= parse_scontrol(answer.out)
                self._away = f"scontrol says nothing of job {job_id}: {answer.out!r:.80}"
        # an answer that mentions no job that was asked for does not count
        return self._asked_jobs(known, folders) if known or has_answered else None

    def _queue(self, folders: Mapping[str, Path]) -> dict[str, SlurmJob] | None:
        """Ask for all our jobs at once; None if the controller does not answer."""
        answer = self.run(squeue("-u", getpass.getuser(), "-j", ",".join(sorted(folders))))
        if answer.trouble not in (Trouble.NONE, Trouble.UNKNOWN_JOB):
            self._away = answer.error
            return None
        known = parse_squeue(answer.out)
        if not known and answer.trouble is Trouble.NONE and answer.out.strip():
            self._away = f"squeue answers {answer.out!r:.80}"
            return None
        return self._asked_jobs(known, folders)

    def _accounting(self, ids: Sequence[str], now: float) -> dict[str, SlurmJob]:
        """Ask slurmdbd, if there is one."""
        if now < self._ask_accounting_at:
            return {}
        answer = self.run(sacct("-j", ",".join(ids)))
        if answer.code:
            self._ask_accounting_at = now + _NO_ACCOUNTING_S
            return {}
        return parse_sacct(answer.out)

    def _seen(self, job: SlurmJob, folder: Path, *, was_begun: bool) -> Outcome:
        self._empty.pop(folder, None)
        outcome = job.outcome
        if outcome.state.is_final:
            before = self._last.get(folder, _UNASKED)
            return ended(job, folder, was_put_back=before.is_requeued)
        if outcome.state is State.PENDING and was_begun:
            reason = f"{outcome.reason}, {_PUT_BACK}"
            return replace(outcome, reason=reason, is_requeued=True)
        return replace(outcome, is_requeued=_has_restarted(folder, job.job_id))

    def _unseen(self, job_id: str, folder: Path, most: int) -> Outcome:
        """Return the outcome of a job that no part of Slurm knows any more."""
        if (outcome := _told_by_ranks(folder, job_id)) is not None:
            return outcome
        size_bytes = sum(path.stat().st_size for path in folder.glob("log.*.txt"))
        is_growing = size_bytes != self._grown.setdefault(folder, size_bytes)
        self._grown[folder] = size_bytes
        empty = self._empty[folder] = 1 if is_growing else self._empty.get(folder, 0) + 1
        if empty >= most:
            return Outcome(
                state=State.LOST, reason=f"no part of Slurm knew the job in {empty} rounds"
            )
        before = self._last.get(folder, _UNASKED)
        reason = f"unknown to Slurm, round {empty} of {most}"
        return replace(before, reason=reason, lacks_nodes=False)

    def _asked_jobs(
        self, jobs: Mapping[str, SlurmJob], folders: Mapping[str, Path]
    ) -> dict[str, SlurmJob]:
        """Return the jobs that were asked for, without another user's job with a reused number."""
        return {
            job_id: job
            for job_id, job in jobs.items()
            if job_id in folders and self.is_ours(job, folders[job_id])
        }

    def _down(self, for_s: float) -> SubmissionError:
        reason = f"the Slurm controller has not answered for {for_s:.0f} s: {self._away}"
        if for_s < self.patience_s:
            return SchedulerDown(reason)
        return SubmissionError(
            f"{reason}; gave up after {self.patience_s:.0f} s. Running jobs go on and are adopted "
            "by the next run; start it when `scontrol ping` says UP"
        )


def ended(job: SlurmJob, folder: Path, *, was_put_back: bool = False) -> Outcome:
    """Return how an attempt ended, from Slurm's outcome of its job or step and the payloads'.

    `was_put_back` says that the job had begun, and waited again when it was last asked for.
    """
    ranks = list(read_outcomes(folder).values())
    requeued = _requeued(job, folder, ranks, was_put_back=was_put_back)
    if requeued is not None:
        return requeued
    # signal 9 alone would be retried: such a trial ran out of the host's memory three times
    if job.outcome.state is State.FAILED and (reason := _out_of_memory(folder, job)):
        # Slurm reports that for the step only; the job failed with the signal that ended it
        job = dataclasses.replace(
            job, outcome=replace(job.outcome, state=State.OUT_OF_MEMORY, reason=reason)
        )
    if not ranks and job.outcome.state is State.FAILED:
        why = _full(folder) or _last_words(folder, job)
        return replace(job.outcome, reason=f"{job.outcome.reason}{why}")
    outcome = merge(job.outcome, ranks)
    if outcome.state is State.FAILED and outcome.signal and (folder / CANCEL).exists():
        # we cancelled it, and it died of the signal before Slurm reported the cancel
        outcome = replace(outcome, state=State.CANCELLED)
    if outcome.state in _TAKEN and is_whole(folder, ranks):
        # the cancel came after the trainer's end, so the measurement counts
        return replace(outcome, state=State.COMPLETED)
    return outcome


def given_away(folder: Path, job_id: str) -> Outcome:
    """Return the outcome of an attempt whose job id now belongs to a later job of ours."""
    reason = f"the controller forgot job {job_id} and gave its number to a later one"
    return _told_by_ranks(folder, job_id) or Outcome(state=State.LOST, reason=reason)


def _told_by_ranks(folder: Path, job_id: str) -> Outcome | None:
    """Return the outcome from the payloads of a job that Slurm has forgotten; None without one."""
    ranks = list(read_outcomes(folder).values())
    if not ranks:
        return None
    silent = _has_silent(folder, ranks)
    gone = "Slurm has forgotten the job" + (", a rank ended without a word" * silent)
    state = State.FAILED if silent else State.COMPLETED
    job = SlurmJob(job_id=job_id, outcome=Outcome(state=state, reason=gone))
    return _requeued(job, folder, ranks) or merge(job.outcome, ranks)


# ended by others, during or just after the run
_TAKEN = frozenset({State.CANCELLED, State.PREEMPTED})
_UNASKED = Outcome(state=State.PENDING, reason="not asked yet")
_PUT_BACK = "put back into the queue after it had begun"


def _begin_file(folder: Path, job_id: str) -> Path:
    """Return the file that a job's script writes each time it begins."""
    return folder / SCRIPTS / f"{job_id}_begun"


def _has_restarted(folder: Path, job_id: str) -> bool:
    """Return whether a job began again after a first rank claimed the trial, to run nothing.

    Both files were written on one node, so their times compare.
    """
    try:
        claimed = (folder / name_of("claimed")).stat()
        return claimed.st_mtime_ns < _begin_file(folder, job_id).stat().st_mtime_ns
    except FileNotFoundError:
        return False


def _requeued(
    job: SlurmJob, folder: Path, ranks: Sequence[Outcome], *, was_put_back: bool = False
) -> Outcome | None:
    """Return the outcome of an attempt whose job was requeued; None if it was not.

    The end of such a job means nothing; what its ranks wrote before counts.
    """
    is_own = any(outcome.state in (State.FAILED, State.TIMEOUT) for outcome in ranks)
    is_of_script = job.outcome.state in (State.COMPLETED, State.FAILED)
    if not is_of_script or is_own or is_whole(folder, ranks):
        return None
    # Slurm takes the end of the first start for that of the second, whose script never ran
    if not was_put_back and not _has_restarted(folder, job.job_id):
        return None
    merged = merge(replace(job.outcome, state=State.REQUEUED), ranks)
    return replace(merged, reason=f"{job.outcome.reason}; {_PUT_BACK}", exit_code=None, signal=None)


def _has_silent(folder: Path, ranks: Sequence[Outcome]) -> bool:
    """Return whether a rank began but did not write how it ended."""
    return len(list(folder.glob("claimed*.json"))) > len(ranks)


def is_whole(folder: Path, ranks: Sequence[Outcome]) -> bool:
    """Return whether every rank that began ran to its end."""
    is_good = bool(ranks) and all(outcome.state is State.COMPLETED for outcome in ranks)
    return is_good and not _has_silent(folder, ranks)


def _full(folder: Path) -> str:
    """Return a note if the disk is full, so that the payload could not write."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage(folder).free < _LITTLE_BYTES:
            return "; no space is left in the work directory"
    return ""


# slurmstepd-n1: error: Detected 1 oom-kill event(s) in StepId=1.0. Some of your processes may have
# srun: error: n2: task 1: Out Of Memory
_OUT_OF_MEMORY = re.compile(r"oom[-_]kill event|: Out Of Memory\b")


def _out_of_memory(folder: Path, job: SlurmJob) -> str:
    """Return Slurm's line that the kernel killed a rank for want of memory; "" if there is none."""
    for path in sorted((folder / SCRIPTS).glob(f"{job.job_id}_*_log.err")):
        for line in secure_files.read_text(path).splitlines():
            if _OUT_OF_MEMORY.search(line):
                return f"OUT_OF_MEMORY: {line.strip():.300}"
    return ""


def _last_words(folder: Path, job: SlurmJob) -> str:
    """Return the last line of the job's output before the payload ran, as a reason."""
    for path in sorted((folder / SCRIPTS).glob(f"{job.job_id}_*_log.err")):
        lines = secure_files.read_text(path).splitlines()
        # the lines above this one say more:  srun: error: node001: task 0: Exited with exit code 2
        job_lines = [
            line.strip() for line in lines if line.strip() and not line.startswith("srun: ")
        ]
        if job_lines:
            return f"; the payload did not run: {job_lines[-1]:.300}"
    return ""
