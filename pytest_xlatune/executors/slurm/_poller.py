"""Watch all jobs of a campaign with one round of questions every few seconds.

A round first asks the controller, and only about our own jobs: by `scontrol show job ID`, or by one
`squeue` for our user if there are many jobs or the site forbids scontrol. Every round asks about
running jobs. Every tenth round, and the round after a job has ended, also asks about the jobs that
wait behind them. Then the round asks slurmdbd (`sacct`) about jobs that the controller has
forgotten, and reads what the payloads wrote into the attempts' folders. The controller comes first
because only it knows that a job is COMPLETING: for sacct the job is over while its processes still
hold the nodes.

A job is lost if no source knows it in three rounds while they know other jobs of ours. It takes
twenty rounds if they know none of ours, or if only slurmdbd says that the job waits or runs. A job
whose log grows is never lost. If the controller does not answer, or its answer cannot be read,
`poll` raises `SchedulerDown`.

Our jobs ask Slurm not to requeue them, so if a job had begun and waits again, a person put it back
into the queue. The campaign waits for its end, but the second start runs nothing, because the first
one claimed the trial. Such a job counts as requeued, and the next attempt is another job.

The poller submits nothing. Its memory only saves questions, and may be lost.
"""

from __future__ import annotations

import dataclasses
import getpass
import re
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

ROUND_S, PATIENCE_S = 3.0, 900.0  # see `Poller`
EMPTY_ROUNDS = 3  # rounds in which only this job is unknown until it is lost
# Rounds in which no job of ours is known until a job is lost. They take a minute, because a
# controller that restarts answers for some seconds as if there were no jobs.
ALL_EMPTY_ROUNDS = 20
QUEUE_ROUNDS = 10  # rounds between two questions about jobs that wait behind a running one
# The most jobs that are asked for one by one; more are asked for by one squeue. Without an id,
# scontrol would print all jobs of the cluster in each round: 1.5 MB for 1,500 jobs.
_ONE_BY_ONE = 8
_NO_ACCOUNTING_S = 300.0  # seconds until slurmdbd is asked again after it did not answer


@dataclass(slots=True, kw_only=True)
class Poller:
    """Returns the state of jobs.

    Attributes:
        run: runs a Slurm command.
        clock: returns the time in seconds, on a clock that never goes back.
        round_s: the least time between two rounds of questions.
        patience_s: seconds without an answer of the controller until `poll` gives up.
        is_ours: whether a job may be that of an attempt's folder, because job ids are reused.
    """

    run: Run = run_command
    clock: Callable[[], float] = time.monotonic
    round_s: float = ROUND_S
    patience_s: float = PATIENCE_S
    is_ours: Callable[[SlurmJob, Path], bool] = SlurmJob.is_in
    _asked_at_s: float | None = None  # when the last round began; None before the first
    _silent_since_s: float | None = None  # when the controller fell silent; None if it answers
    _controller_fault: str = ""  # why the controller's last answer could not be used
    _ask_accounting_at_s: float = 0.0  # slurmdbd is not asked before this time
    # The keys are folders, because a controller that lost its last seconds reuses job ids.
    _outcomes: dict[Path, Outcome] = field(default_factory=dict)  # the last one of each job
    _empty_rounds: dict[Path, int] = field(default_factory=dict)  # rounds that did not know the job
    _log_bytes: dict[Path, int] = field(default_factory=dict)  # in the last of these rounds
    _rounds_until_all: int = 0  # rounds until waiting jobs are asked for again

    def poll(self, folders: Mapping[str, Path]) -> dict[str, Outcome]:
        """Return job id -> its state, for jobs given with the folders of their attempts.

        Within `round_s` of the last round, its answers are returned again. A job that no round has
        asked for yet is pending.

        Raises:
            SchedulerDown: the controller does not answer; ask again later.
            SubmissionError: it has not answered for `patience_s`.
        """
        now_s = self.clock()
        open_jobs = {
            job_id: folder
            for job_id, folder in folders.items()
            if not self._outcomes.get(folder, _NOT_ASKED).state.is_final
        }
        if open_jobs and (self._asked_at_s is None or now_s - self._asked_at_s >= self.round_s):
            self._asked_at_s = now_s
            answers = self._ask_slurm(self._jobs_to_ask(open_jobs), now_s)
            self._outcomes |= {open_jobs[job_id]: outcome for job_id, outcome in answers.items()}
            if any(answer.state.is_final for answer in answers.values()) or self._silent_since_s:
                self._rounds_until_all = 0
        if open_jobs and self._silent_since_s is not None:
            raise self._silence_error(now_s - self._silent_since_s)
        return {
            job_id: self._outcomes.get(folder, _NOT_ASKED) for job_id, folder in folders.items()
        }

    def _jobs_to_ask(self, folders: Mapping[str, Path]) -> Mapping[str, Path]:
        """Return the jobs to ask for in this round: all, or those that do not wait in the queue."""
        active = {}
        for job_id, folder in folders.items():
            outcome = self._outcomes.get(folder)
            waits = outcome is not None and outcome.state is State.PENDING
            if not waits or folder in self._empty_rounds:
                active[job_id] = folder
        if active and len(active) < len(folders) and self._rounds_until_all > 0:
            self._rounds_until_all -= 1
            return active
        self._rounds_until_all = QUEUE_ROUNDS
        return folders

    def _ask_slurm(self, folders: Mapping[str, Path], now_s: float) -> dict[str, Outcome]:
        """Ask about jobs; return {} if the controller does not answer."""
        # read before Slurm is asked, so that a job that begins meanwhile does not look requeued
        begun = {
            job_id for job_id, folder in folders.items() if _begin_file(folder, job_id).exists()
        }
        jobs = self._ask_controller(folders)
        if jobs is None:
            self._silent_since_s = now_s if self._silent_since_s is None else self._silent_since_s
            return {}
        self._silent_since_s = None
        unfinished_in_accounting = set[str]()
        if unknown := folders.keys() - jobs.keys():
            accounted = self._our_jobs(self._ask_accounting(sorted(unknown), now_s), folders)
            for job_id, job in accounted.items():
                if job.outcome.state.is_final:
                    jobs[job_id] = job
                else:  # no proof, because slurmdbd never records the end of a job that was lost
                    unfinished_in_accounting.add(job_id)
        outcomes = {}
        for job_id, folder in folders.items():
            if job_id in jobs:
                has_begun = job_id in begun
                outcomes[job_id] = self._known_outcome(jobs[job_id], folder, has_begun=has_begun)
            else:
                needs_more = job_id in unfinished_in_accounting or not jobs
                most_rounds = ALL_EMPTY_ROUNDS if needs_more else EMPTY_ROUNDS
                outcomes[job_id] = self._unknown_outcome(job_id, folder, most_rounds)
        return outcomes

    def _ask_controller(self, folders: Mapping[str, Path]) -> dict[str, SlurmJob] | None:
        """Ask slurmctld; return None if it does not answer."""
        if len(folders) > _ONE_BY_ONE:
            return self._ask_squeue(folders)
        known: dict[str, SlurmJob] = {}
        has_answered = False
        for job_id in sorted(folders):
            answer = self.run(["scontrol", "show", "job", "-o", job_id])
            if answer.trouble is Trouble.UNKNOWN_JOB:
                has_answered = True
            elif answer.trouble is Trouble.AWAY:
                self._controller_fault = answer.error
                return None
            elif answer.trouble is not Trouble.NONE:
                return self._ask_squeue(folders)
            else:
                known |= parse_scontrol(answer.out)
                self._controller_fault = (
                    f"scontrol says nothing of job {job_id}: {answer.out!r:.80}"
                )
        # if no answer names a job or says that an id is unknown, none of them can be used
        return self._our_jobs(known, folders) if known or has_answered else None

    def _ask_squeue(self, folders: Mapping[str, Path]) -> dict[str, SlurmJob] | None:
        """Ask for all our jobs at once; return None if the controller does not answer."""
        answer = self.run(squeue("-u", getpass.getuser(), "-j", ",".join(sorted(folders))))
        if answer.trouble not in (Trouble.NONE, Trouble.UNKNOWN_JOB):
            self._controller_fault = answer.error
            return None
        known = parse_squeue(answer.out)
        if not known and answer.trouble is Trouble.NONE and answer.out.strip():
            self._controller_fault = f"squeue answers {answer.out!r:.80}"
            return None
        return self._our_jobs(known, folders)

    def _ask_accounting(self, ids: Sequence[str], now_s: float) -> dict[str, SlurmJob]:
        if now_s < self._ask_accounting_at_s:
            return {}
        answer = self.run(sacct("-j", ",".join(ids)))
        if answer.code:
            self._ask_accounting_at_s = now_s + _NO_ACCOUNTING_S
            return {}
        return parse_sacct(answer.out)

    def _known_outcome(self, job: SlurmJob, folder: Path, *, has_begun: bool) -> Outcome:
        """Return the outcome of a job that Slurm knows.

        `has_begun` says whether the job's script had begun when Slurm was asked.
        """
        self._empty_rounds.pop(folder, None)
        outcome = job.outcome
        if outcome.state.is_final:
            before = self._outcomes.get(folder, _NOT_ASKED)
            return ended(job, folder, was_requeued=before.is_requeued)
        if outcome.state is State.PENDING and has_begun:
            reason = f"{outcome.reason}, {_REQUEUED}"
            return replace(outcome, reason=reason, is_requeued=True)
        return replace(outcome, is_requeued=_has_begun_again(folder, job.job_id))

    def _unknown_outcome(self, job_id: str, folder: Path, most_rounds: int) -> Outcome:
        """Return the outcome of a job that no part of Slurm knows any more.

        The job is lost after `most_rounds` of such rounds in which its log did not grow.
        """
        if (outcome := _outcome_by_ranks(folder, job_id)) is not None:
            return outcome
        size_bytes = sum(path.stat().st_size for path in folder.glob("log.*.txt"))
        is_growing = size_bytes != self._log_bytes.setdefault(folder, size_bytes)
        self._log_bytes[folder] = size_bytes
        rounds = 1 if is_growing else self._empty_rounds.get(folder, 0) + 1
        self._empty_rounds[folder] = rounds
        if rounds >= most_rounds:
            return Outcome(
                state=State.LOST, reason=f"no part of Slurm knew the job in {rounds} rounds"
            )
        before = self._outcomes.get(folder, _NOT_ASKED)
        reason = f"unknown to Slurm, round {rounds} of {most_rounds}"
        return replace(before, reason=reason, lacks_nodes=False)

    def _our_jobs(
        self, jobs: Mapping[str, SlurmJob], folders: Mapping[str, Path]
    ) -> dict[str, SlurmJob]:
        """Return the jobs of `folders`, without other jobs that were given the same ids."""
        return {
            job_id: job
            for job_id, job in jobs.items()
            if job_id in folders and self.is_ours(job, folders[job_id])
        }

    def _silence_error(self, silent_s: float) -> SubmissionError:
        reason = f"the Slurm controller has not answered for {silent_s:.0f} s"
        reason = f"{reason}: {self._controller_fault}"
        if silent_s < self.patience_s:
            return SchedulerDown(reason)
        return SubmissionError(
            f"{reason}; gave up after {self.patience_s:.0f} s. Running jobs go on and are adopted "
            "by the next run; start it when `scontrol ping` says UP"
        )


def ended(job: SlurmJob, folder: Path, *, was_requeued: bool = False) -> Outcome:
    """Return how an attempt ended, from Slurm's outcome of its job or step and the payloads'.

    `was_requeued` says that the job had begun, and waited again when it was last asked for.
    """
    ranks = list(read_outcomes(folder).values())
    requeued = _requeued(job, folder, ranks, was_requeued=was_requeued)
    if requeued is not None:
        return requeued
    # Slurm reports a lack of memory for the step only; its job has FAILED with signal 9. A trial
    # with signal 9 would be repeated, and would run out of the host's memory again.
    if job.outcome.state is State.FAILED and (reason := _out_of_memory(folder, job)):
        job = dataclasses.replace(
            job, outcome=replace(job.outcome, state=State.OUT_OF_MEMORY, reason=reason)
        )
    if not ranks and job.outcome.state is State.FAILED:
        return replace(job.outcome, reason=f"{job.outcome.reason}{_launch_error(folder, job)}")
    outcome = merge(job.outcome, ranks)
    if outcome.state is State.FAILED and outcome.signal and (folder / CANCEL).exists():
        # we cancelled the job, and it died of the signal before Slurm reported that
        outcome = replace(outcome, state=State.CANCELLED)
    if outcome.state in _ENDED_BY_OTHERS and all_ranks_completed(folder, ranks):
        # the cancel came after the trainer's end, so the measurement counts
        return replace(outcome, state=State.COMPLETED)
    return outcome


def reused_id_outcome(folder: Path, job_id: str) -> Outcome:
    """Return the outcome of an attempt whose job id now belongs to a later job of ours."""
    reason = f"the controller forgot job {job_id} and gave its number to a later one"
    return _outcome_by_ranks(folder, job_id) or Outcome(state=State.LOST, reason=reason)


def _outcome_by_ranks(folder: Path, job_id: str) -> Outcome | None:
    """Return the outcome that the payloads of a forgotten job wrote; None if there is none."""
    ranks = list(read_outcomes(folder).values())
    if not ranks:
        return None
    if _has_silent_rank(folder, ranks):
        state, reason = State.FAILED, "Slurm has forgotten the job, and a rank wrote no outcome"
    else:
        state, reason = State.COMPLETED, "Slurm has forgotten the job"
    job = SlurmJob(job_id=job_id, outcome=Outcome(state=state, reason=reason))
    return _requeued(job, folder, ranks) or merge(job.outcome, ranks)


# states of a job that a person or Slurm ended, during its run or just after it
_ENDED_BY_OTHERS = frozenset({State.CANCELLED, State.PREEMPTED})
_NOT_ASKED = Outcome(state=State.PENDING, reason="not asked yet")
_REQUEUED = "put back into the queue after it had begun"


def _begin_file(folder: Path, job_id: str) -> Path:
    """Return the file that a job's script writes each time it begins."""
    return folder / SCRIPTS / f"{job_id}_begun"


def _has_begun_again(folder: Path, job_id: str) -> bool:
    """Return whether a job's script began again after rank 0 had claimed the trial.

    Both files were written on the same node, so their times can be compared.
    """
    try:
        claimed = (folder / name_of("claimed")).stat()
        return claimed.st_mtime_ns < _begin_file(folder, job_id).stat().st_mtime_ns
    except FileNotFoundError:
        return False


def _requeued(
    job: SlurmJob, folder: Path, ranks: Sequence[Outcome], *, was_requeued: bool = False
) -> Outcome | None:
    """Return the outcome of an attempt whose job was requeued; None if it was not.

    How the second start of such a job ended means nothing: only what the ranks of the first start
    wrote counts.
    """
    has_failed_rank = any(outcome.state in (State.FAILED, State.TIMEOUT) for outcome in ranks)
    ended_by_script = job.outcome.state in (State.COMPLETED, State.FAILED)
    if not ended_by_script or has_failed_rank or all_ranks_completed(folder, ranks):
        return None
    # if the job ended before its second start, only `was_requeued` shows that it was requeued
    if not was_requeued and not _has_begun_again(folder, job.job_id):
        return None
    merged = merge(replace(job.outcome, state=State.REQUEUED), ranks)
    return replace(merged, reason=f"{job.outcome.reason}; {_REQUEUED}", exit_code=None, signal=None)


def _has_silent_rank(folder: Path, ranks: Sequence[Outcome]) -> bool:
    """Return whether a rank began but did not write how it ended."""
    return len(list(folder.glob("claimed*.json"))) > len(ranks)


def all_ranks_completed(folder: Path, ranks: Sequence[Outcome]) -> bool:
    """Return whether every rank that began has completed."""
    have_completed = bool(ranks) and all(outcome.state is State.COMPLETED for outcome in ranks)
    return have_completed and not _has_silent_rank(folder, ranks)


# slurmstepd-n1: error: Detected 1 oom-kill event(s) in StepId=1.0. Some of your processes may have
# srun: error: n2: task 1: Out Of Memory
_OUT_OF_MEMORY = re.compile(r"oom[-_]kill event|: Out Of Memory\b")


def _out_of_memory(folder: Path, job: SlurmJob) -> str:
    """Return Slurm's line that the kernel killed a rank to free memory; "" if there is none."""
    for path in sorted((folder / SCRIPTS).glob(f"{job.job_id}_*_log.err")):
        for line in secure_files.read_text(path).splitlines():
            if _OUT_OF_MEMORY.search(line):
                return f"OUT_OF_MEMORY: {line.strip():.300}"
    return ""


def _launch_error(folder: Path, job: SlurmJob) -> str:
    """Return the last line of the job's output before the payload ran, as a reason."""
    for path in sorted((folder / SCRIPTS).glob(f"{job.job_id}_*_log.err")):
        lines = secure_files.read_text(path).splitlines()
        # left out because it says little:  srun: error: node001: task 0: Exited with exit code 2
        job_lines = [
            line.strip() for line in lines if line.strip() and not line.startswith("srun: ")
        ]
        if job_lines:
            return f"; the payload did not run: {job_lines[-1]:.300}"
    return ""
