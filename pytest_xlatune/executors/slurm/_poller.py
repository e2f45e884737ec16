"""Watch all jobs of a campaign with one round of questions every few seconds.

A round asks the controller for our own jobs alone (`scontrol show job ID`, or one `squeue` of our
user's where they are many or a site forbids that): those that run in each round, those that wait
behind them in every tenth, and when one has ended. Then it asks slurmdbd (`sacct`) for the jobs
that the controller has forgotten, and looks at what the payloads wrote into the attempts' folders.
The controller comes first because it alone knows that a job is still COMPLETING: sacct calls such a
job over while its processes hold the nodes.

A job is lost that none of these knows in three rounds while they know others of ours; where none
of ours is known, or slurmdbd alone says that it waits or runs, in twenty; and never while its log
grows. A controller that does not answer, or that answers without a word of any of our jobs, is
another matter: `SchedulerDown`.

A job that had begun and waits again was put back into the queue: by a person, for ours ask not to
be. It is waited for. Its second start runs nothing, because the first one claimed the trial: so it
is told as requeued, and the next attempt is another job.

The poller knows no trial and submits nothing. What it remembers may be lost with its process: it
only spares questions.
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
# nine seconds of empty answers had each running trial called lost, cancelled and submitted again
ALL_EMPTY_ROUNDS = 20  # where no job of ours is known
# `scontrol show job -o` without a number is the whole table: 1.5 MB a round beside 1,500 jobs of
# others
QUEUE_ROUNDS = 10  # rounds between two questions about the jobs that wait behind one that runs
_ONE_BY_ONE = 8  # more jobs are asked for together
_LITTLE_BYTES = 1 << 16
# slurmdbd was absent: how long until it is asked again
_NO_ACCOUNTING_S = 300.0


@dataclass(slots=True, kw_only=True)
class Poller:
    """Tell where jobs stand; `run` runs a command of Slurm's."""

    run: Run = run_command
    clock: Callable[[], float] = time.monotonic
    round_s: float = ROUND_S  # least time between two rounds of questions
    patience_s: float = PATIENCE_S  # without an answer of the controller, until it gives up
    is_ours: Callable[[SlurmJob, Path], bool] = SlurmJob.is_in
    _asked_at: float | None = None
    _away_since: float | None = None
    _away: str = ""
    _ask_accounting_at: float = 0.0
    # by folder: a controller that lost its last seconds gives the same number away again
    _last: dict[Path, Outcome] = field(default_factory=dict)
    _empty: dict[Path, int] = field(default_factory=dict)
    _grown: dict[Path, int] = field(default_factory=dict)  # bytes of the logs, when last unknown
    _rounds_to_queue: int = 0

    def poll(self, folders: Mapping[str, Path]) -> dict[str, Outcome]:
        """Return job id -> where it stands, for every job given with its attempt's folder.

        Within `round_s` of the last round the last answers are given again; a job that no round
        has asked for is pending until one has.

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
        # looked at before Slurm is asked: what began meanwhile was not put back
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
            # the books of a job that the controller lost before its end are never closed
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
        """Ask slurmctld; None where it does not answer."""
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
        # an answer without a word of what was asked for is none
        return self._asked_jobs(known, folders) if known or has_answered else None

    def _queue(self, folders: Mapping[str, Path]) -> dict[str, SlurmJob] | None:
        """Ask for our jobs together; None where the controller does not answer."""
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
        """Keep the jobs asked for; a stranger that was given the same number is not one of them."""
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
    """Return how an attempt ended, by Slurm's word of its job or step and by the payloads'.

    `was_put_back` says that the job had begun, and waited again when it was last asked for.
    """
    ranks = list(read_outcomes(folder).values())
    requeued = _requeued(job, folder, ranks, was_put_back=was_put_back)
    if requeued is not None:
        return requeued
    # signal 9 alone is tried again: such a trial ran out of the host's memory three times
    if job.outcome.state is State.FAILED and (reason := _out_of_memory(folder, job)):
        # Slurm tells it of the step alone; the job failed with the signal that ended it
        job = dataclasses.replace(
            job, outcome=replace(job.outcome, state=State.OUT_OF_MEMORY, reason=reason)
        )
    if not ranks and job.outcome.state is State.FAILED:
        why = _full(folder) or _last_words(folder, job)
        return replace(job.outcome, reason=f"{job.outcome.reason}{why}")
    outcome = merge(job.outcome, ranks)
    if outcome.state is State.FAILED and outcome.signal and (folder / CANCEL).exists():
        # told to end by us, it died of the signal before Slurm's word for it came
        outcome = replace(outcome, state=State.CANCELLED)
    if outcome.state in _TAKEN and is_whole(folder, ranks):
        # the cancel came after the trainer's end: what it measured stands
        return replace(outcome, state=State.COMPLETED)
    return outcome


def given_away(folder: Path, job_id: str) -> Outcome:
    """Return how an attempt ended whose job's number is by now that of a later job of ours."""
    reason = f"the controller forgot job {job_id} and gave its number to a later one"
    return _told_by_ranks(folder, job_id) or Outcome(state=State.LOST, reason=reason)


def _told_by_ranks(folder: Path, job_id: str) -> Outcome | None:
    """Return what the payloads wrote of a job that Slurm has forgotten; None where they did not."""
    ranks = list(read_outcomes(folder).values())
    if not ranks:
        return None
    silent = _has_silent(folder, ranks)
    gone = "Slurm has forgotten the job" + (", a rank ended without a word" * silent)
    state = State.FAILED if silent else State.COMPLETED
    job = SlurmJob(job_id=job_id, outcome=Outcome(state=state, reason=gone))
    return _requeued(job, folder, ranks) or merge(job.outcome, ranks)


_TAKEN = frozenset({State.CANCELLED, State.PREEMPTED})  # by others, in the middle or just after
_UNASKED = Outcome(state=State.PENDING, reason="not asked yet")
_PUT_BACK = "put back into the queue after it had begun"


def _begin_file(folder: Path, job_id: str) -> Path:
    """Return the file that a job's script writes anew whenever it begins."""
    return folder / SCRIPTS / f"{job_id}_begun"


def _has_restarted(folder: Path, job_id: str) -> bool:
    """Whether a job began again after its first rank had claimed the trial: it runs nothing.

    Both files are of one node, and so of one clock.
    """
    try:
        claimed = (folder / name_of("claimed")).stat()
        return claimed.st_mtime_ns < _begin_file(folder, job_id).stat().st_mtime_ns
    except FileNotFoundError:
        return False


def _requeued(
    job: SlurmJob, folder: Path, ranks: Sequence[Outcome], *, was_put_back: bool = False
) -> Outcome | None:
    """Return how an attempt ended whose job was put back into the queue; None where it was not.

    How the job ended says nothing of it then. What its ranks said of themselves before stands.
    """
    is_own = any(outcome.state in (State.FAILED, State.TIMEOUT) for outcome in ranks)
    is_of_script = job.outcome.state in (State.COMPLETED, State.FAILED)
    if not is_of_script or is_own or is_whole(folder, ranks):
        return None
    # Slurm took the end of the first start for that of the second, whose script never ran
    if not was_put_back and not _has_restarted(folder, job.job_id):
        return None
    merged = merge(replace(job.outcome, state=State.REQUEUED), ranks)
    return replace(merged, reason=f"{job.outcome.reason}; {_PUT_BACK}", exit_code=None, signal=None)


def _has_silent(folder: Path, ranks: Sequence[Outcome]) -> bool:
    """Whether a rank began that has not said how it ended."""
    return len(list(folder.glob("claimed*.json"))) > len(ranks)


def is_whole(folder: Path, ranks: Sequence[Outcome]) -> bool:
    """Whether every rank that began ran to its end."""
    is_good = bool(ranks) and all(outcome.state is State.COMPLETED for outcome in ranks)
    return is_good and not _has_silent(folder, ranks)


def _full(folder: Path) -> str:
    """Say so where the payload could not have written a word."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage(folder).free < _LITTLE_BYTES:
            return "; no space is left in the work directory"
    return ""


# slurmstepd-n1: error: Detected 1 oom-kill event(s) in StepId=1.0. Some of your processes may have
# srun: error: n2: task 1: Out Of Memory
_OUT_OF_MEMORY = re.compile(r"oom[-_]kill event|: Out Of Memory\b")


def _out_of_memory(folder: Path, job: SlurmJob) -> str:
    """Return Slurm's line that the kernel ended a rank for want of memory, "" without one."""
    for path in sorted((folder / SCRIPTS).glob(f"{job.job_id}_*_log.err")):
        for line in secure_files.read_text(path).splitlines():
            if _OUT_OF_MEMORY.search(line):
                return f"OUT_OF_MEMORY: {line.strip():.300}"
    return ""


def _last_words(folder: Path, job: SlurmJob) -> str:
    """Return the last line that the job said before the payload ran, for the reason."""
    for path in sorted((folder / SCRIPTS).glob(f"{job.job_id}_*_log.err")):
        lines = secure_files.read_text(path).splitlines()
        # srun: error: node001: task 0: Exited with exit code 2    the lines above it say more
        job_lines = [
            line.strip() for line in lines if line.strip() and not line.startswith("srun: ")
        ]
        if job_lines:
            return f"; the payload did not run: {job_lines[-1]:.300}"
    return ""
