"""Watch all jobs of a campaign with one round of questions every few seconds.

A round first asks the controller, and only about our own jobs. Every round asks about running jobs.
Every tenth round, and the round after a job has ended, also asks about the jobs that wait behind
them. Then the round asks slurmdbd (`sacct`) about jobs that the controller has forgotten, and reads
what the payloads wrote into the attempts' folders. The controller comes first because only it knows
that a job is COMPLETING: for sacct the job is over while its processes still hold the nodes.

A job is lost if no source knows it in several rounds and its log does not grow.

Our jobs ask Slurm not to requeue them, so if a job had begun and waits again, a person put it back
into the queue. The campaign waits for its end, but the second start runs nothing, because the first
one claimed the trial. Such a job counts as requeued, and the next attempt is another job.

The poller submits nothing. Its memory only saves questions, and may be lost.
"""

from __future__ import annotations

import getpass
import math
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
# Rounds until a job is lost if no job of ours is known, or if only slurmdbd says that the job waits
# or runs. They take a minute, because a controller that restarts answers for some seconds as if
# there were no jobs.
ALL_EMPTY_ROUNDS = 20
QUEUE_ROUNDS = 10  # rounds between two questions about jobs that wait behind a running one
# The most jobs that are asked for by `scontrol show job`; more are asked for by one squeue for our
# user, as on a site that forbids scontrol. Without an id, scontrol would print all jobs of the
# cluster in each round: 1.5 MB for 1,500 jobs.
_ONE_BY_ONE = 8
_NOT_ASKED = Outcome(state=State.PENDING, reason="not asked yet")
_REQUEUED = "put back into the queue after it had begun"
# slurmstepd-n1: error: Detected 1 oom-kill event(s) in StepId=1.0. Some of your processes may have
# srun: error: n2: task 1: Out Of Memory
_OUT_OF_MEMORY = re.compile(r"oom[-_]kill event|: Out Of Memory\b")


@dataclass(slots=True)
class _Watched:
    """What is remembered of a job."""

    folder: Path  # that of its attempt
    outcome: Outcome = _NOT_ASKED  # the last one
    empty_rounds: int = 0  # rounds, up to the last one, in which no part of Slurm knew the job
    log_bytes: int | None = None  # size of its logs in the last of these rounds


@dataclass(slots=True, kw_only=True)
class Poller:
    """Returns the state of jobs.

    Attributes:
        run: runs a Slurm command.
        clock: returns the time in seconds, on a clock that never goes back.
        round_s: the least time between two rounds of questions.
        is_ours: whether a job may be that of an attempt's folder, because job ids are reused.
    """

    run: Run = run_command
    clock: Callable[[], float] = time.monotonic
    round_s: float = ROUND_S
    is_ours: Callable[[SlurmJob, Path], bool] = SlurmJob.is_in
    _next_round_s: float = -math.inf
    _silence: tuple[float, str] | None = None  # since when the controller is silent, and why
    # The keys are folders, because a controller that lost its last seconds reuses job ids.
    _jobs: dict[Path, _Watched] = field(default_factory=dict)
    _rounds_until_all: int = 0  # rounds until waiting jobs are asked for again

    def poll(self, folders: Mapping[str, Path]) -> dict[str, Outcome]:
        """Return job id -> its state, for jobs given with the folders of their attempts.

        Within `round_s` of the last round, its answers are returned again. A job that no round has
        asked for yet is pending.

        Raises:
            SchedulerDown: the controller does not answer; ask again later.
            SubmissionError: it has not answered for `PATIENCE_S`.
        """
        now_s = self.clock()
        jobs = {
            job_id: self._jobs.setdefault(folder, _Watched(folder))
            for job_id, folder in folders.items()
        }
        open_jobs = {id_: job for id_, job in jobs.items() if not job.outcome.state.is_final}
        if open_jobs and now_s >= self._next_round_s:
            self._next_round_s = now_s + self.round_s
            try:
                self._ask_slurm(self._jobs_to_ask(open_jobs))
                self._silence = None
            except SchedulerDown as error:
                self._silence = (self._silence[0] if self._silence else now_s, str(error))
            if self._silence or any(job.outcome.state.is_final for job in open_jobs.values()):
                self._rounds_until_all = 0
        if open_jobs and self._silence is not None:
            silent_s = now_s - self._silence[0]
            reason = f"the Slurm controller has not answered for {silent_s:.0f} s"
            reason = f"{reason}: {self._silence[1]}"
            if silent_s < PATIENCE_S:
                raise SchedulerDown(reason)
            raise SubmissionError(
                f"{reason}; gave up after {PATIENCE_S:.0f} s. Running jobs go on and are adopted "
                "by the next run; start it when `scontrol ping` says UP"
            )
        return {job_id: job.outcome for job_id, job in jobs.items()}

    def _jobs_to_ask(self, jobs: Mapping[str, _Watched]) -> Mapping[str, _Watched]:
        """Return the jobs to ask for in this round: all, or those that do not wait in the queue."""
        active = {
            job_id: job
            for job_id, job in jobs.items()
            if job.outcome.state is not State.PENDING
            or job.empty_rounds
            or job.outcome is _NOT_ASKED
        }
        if active and len(active) < len(jobs) and self._rounds_until_all > 0:
            self._rounds_until_all -= 1
            return active
        self._rounds_until_all = QUEUE_ROUNDS
        return jobs

    def _ask_slurm(self, watched: Mapping[str, _Watched]) -> None:
        """Ask about jobs and remember the answers.

        Raises:
            SchedulerDown: the controller does not answer.
        """
        # read before Slurm is asked, so that a job that begins meanwhile does not look requeued
        begun = {
            job_id for job_id, job in watched.items() if _begin_file(job.folder, job_id).exists()
        }
        jobs = self._our_jobs(self._ask_controller(sorted(watched)), watched)
        unfinished_in_accounting = set[str]()
        if unknown := watched.keys() - jobs.keys():
            answer = self.run(sacct("-j", ",".join(sorted(unknown))))
            # a failed answer, where there is no slurmdbd, names no job
            for job_id, job in self._our_jobs(parse_sacct(answer.out), watched).items():
                if job.outcome.state.is_final:
                    jobs[job_id] = job
                else:  # no proof, because slurmdbd never records the end of a job that was lost
                    unfinished_in_accounting.add(job_id)
        for job_id, known in watched.items():
            if job_id in jobs:
                known.empty_rounds = 0
                known.outcome = _known_outcome(jobs[job_id], known, has_begun=job_id in begun)
            else:
                needs_more = job_id in unfinished_in_accounting or not jobs
                most_rounds = ALL_EMPTY_ROUNDS if needs_more else EMPTY_ROUNDS
                known.outcome = _unknown_outcome(job_id, known, most_rounds)

    def _ask_controller(self, ids: Sequence[str]) -> dict[str, SlurmJob]:
        """Return job id -> job, from slurmctld.

        Raises:
            SchedulerDown: it does not answer, or nothing that can be used.
        """
        answers = (Trouble.NONE, Trouble.UNKNOWN_JOB)
        known, text, has_answered = dict[str, SlurmJob](), "", False
        uses_squeue = len(ids) > _ONE_BY_ONE
        for job_id in () if uses_squeue else ids:
            answer = self.run(["scontrol", "show", "job", "-o", job_id])
            if answer.trouble is Trouble.AWAY:
                raise SchedulerDown(answer.error)
            if uses_squeue := answer.trouble not in answers:
                break
            text, known = answer.out, known | parse_scontrol(answer.out)
            has_answered |= answer.trouble is Trouble.UNKNOWN_JOB
        if uses_squeue:
            answer = self.run(squeue("-u", getpass.getuser(), "-j", ",".join(ids)))
            text, known = answer.out, parse_squeue(answer.out)
            if answer.trouble not in answers:
                raise SchedulerDown(answer.error)
            has_answered = answer.trouble is Trouble.UNKNOWN_JOB or not text.strip()
        if known or has_answered:
            return known
        # no answer names a job or says that an id is unknown
        raise SchedulerDown(f"Slurm's answer about job {ids[-1]} cannot be read: {text!r:.80}")

    def _our_jobs(
        self, jobs: Mapping[str, SlurmJob], watched: Mapping[str, _Watched]
    ) -> dict[str, SlurmJob]:
        """Return the jobs that are watched, without other jobs that were given the same ids."""
        return {
            job_id: job
            for job_id, job in jobs.items()
            if job_id in watched and self.is_ours(job, watched[job_id].folder)
        }


def _known_outcome(job: SlurmJob, known: _Watched, *, has_begun: bool) -> Outcome:
    outcome = job.outcome
    if outcome.state.is_final:
        return ended(job, known.folder, was_requeued=known.outcome.is_requeued)
    if outcome.state is State.PENDING and has_begun:
        return replace(outcome, reason=f"{outcome.reason}, {_REQUEUED}", is_requeued=True)
    return replace(outcome, is_requeued=_has_begun_again(known.folder, job.job_id))


def _unknown_outcome(job_id: str, known: _Watched, most_rounds: int) -> Outcome:
    if (outcome := _outcome_by_ranks(known.folder, job_id)) is not None:
        return outcome
    size_bytes = sum(path.stat().st_size for path in known.folder.glob("log.*.txt"))
    is_growing = known.log_bytes not in (None, size_bytes)
    known.log_bytes = size_bytes
    known.empty_rounds = 1 if is_growing else known.empty_rounds + 1
    if known.empty_rounds >= most_rounds:
        reason = f"no part of Slurm knew the job in {most_rounds} rounds"
        return Outcome(state=State.LOST, reason=reason)
    reason = f"unknown to Slurm, round {known.empty_rounds} of {most_rounds}"
    return replace(known.outcome, reason=reason, lacks_nodes=False)


def ended(job: SlurmJob, folder: Path, *, was_requeued: bool = False) -> Outcome:
    """Return how an attempt ended, from Slurm's outcome of its job or step and the payloads'.

    `was_requeued` says that the job had begun, and waited again when it was last asked for.
    """
    ranks, outcome = list(read_outcomes(folder).values()), job.outcome
    has_failed_rank = any(rank.state in (State.FAILED, State.TIMEOUT) for rank in ranks)
    ended_by_script = outcome.state in (State.COMPLETED, State.FAILED)
    has_completed = all_ranks_completed(folder, ranks)
    # if the job ended before its second start, only `was_requeued` shows that it was requeued
    has_begun_again = was_requeued or _has_begun_again(folder, job.job_id)
    if ended_by_script and has_begun_again and not (has_failed_rank or has_completed):
        # the end of the second start means nothing; what the ranks of the first one wrote counts
        merged = merge(replace(outcome, state=State.REQUEUED), ranks)
        reason = f"{outcome.reason}; {_REQUEUED}"
        return replace(merged, reason=reason, exit_code=None, signal=None)
    if outcome.state is State.FAILED:
        lines = script_output(folder, job.job_id)
        # Slurm reports a lack of memory for the step only; its job has FAILED with signal 9. A
        # trial with signal 9 would be repeated, and would run out of the host's memory again.
        kills = [line for line in lines if _OUT_OF_MEMORY.search(line)]
        # left out because it says little:  srun: error: node001: task 0: Exited with exit code 2
        words = [line for line in lines if not line.startswith("srun: ")]
        if kills:
            reason = f"OUT_OF_MEMORY: {kills[0]:.300}"
            outcome = replace(outcome, state=State.OUT_OF_MEMORY, reason=reason)
        elif words and not ranks:
            reason = f"{outcome.reason}; the payload did not run: {words[-1]:.300}"
            return replace(outcome, reason=reason)
    outcome = merge(outcome, ranks)
    if outcome.state is State.FAILED and outcome.signal and (folder / CANCEL).exists():
        # we cancelled the job, and it died of the signal before Slurm reported that
        outcome = replace(outcome, state=State.CANCELLED)
    if outcome.state in (State.CANCELLED, State.PREEMPTED) and has_completed:
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
    state, reason = State.COMPLETED, "Slurm has forgotten the job"
    if _has_silent_rank(folder, ranks):
        state, reason = State.FAILED, f"{reason}, and a rank wrote no outcome"
    return ended(SlurmJob(job_id=job_id, outcome=Outcome(state=state, reason=reason)), folder)


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


def _has_silent_rank(folder: Path, ranks: Sequence[Outcome]) -> bool:
    """Return whether a rank began but did not write how it ended."""
    return len(list(folder.glob("claimed*.json"))) > len(ranks)


def all_ranks_completed(folder: Path, ranks: Sequence[Outcome]) -> bool:
    """Return whether every rank that began has completed."""
    have_completed = bool(ranks) and all(outcome.state is State.COMPLETED for outcome in ranks)
    return have_completed and not _has_silent_rank(folder, ranks)


def script_output(folder: Path, job_id: str) -> list[str]:
    """Return the lines that the script of a job printed before and beside the payload."""
    texts = [
        secure_files.read_text(path)
        for path in sorted((folder / SCRIPTS).glob(f"{job_id}_*_log.err"))
    ]
    return [line.strip() for text in texts for line in text.splitlines() if line.strip()]
