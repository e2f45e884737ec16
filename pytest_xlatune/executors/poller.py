"""Watch all jobs of a campaign with one round of questions every few seconds.

A round asks the controller once (`scontrol show job`, or `squeue` where a site forbids that), then
slurmdbd (`sacct`) for the jobs that the controller has forgotten, then the job completion file,
then what the payloads wrote into the attempts' folders. The controller comes first because it alone
knows that a job is still COMPLETING: sacct calls such a job over while its processes hold the
nodes. A job of which nobody knows anything three rounds in a row is lost; a controller that does
not answer is another matter, `SchedulerDown`.

The poller knows no trial and submits nothing. What it remembers may be lost with its process: it
only spares questions.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_xlatune.errors import SubmissionError
from pytest_xlatune.executors import SchedulerDown, slurm_text
from pytest_xlatune.executors.folder import is_same_attempt, read_outcomes
from pytest_xlatune.executors.slurm_commands import Run, is_away, run_command
from pytest_xlatune.executors.slurm_text import Job
from pytest_xlatune.results import Outcome, State

ROUND_S = 3.0
PATIENCE_S = 900.0
EMPTY_ROUNDS = 3
_LITTLE_BYTES = 1 << 16
# slurmdbd was absent: how long until it is asked again
_NO_ACCOUNTING_S = 300.0


class Poller:
    """Tell where jobs stand.

    Args:
        run: runs a command of Slurm's.
        clock: monotonic seconds.
        round_s: least seconds between two rounds of questions, however often it is asked.
        patience_s: seconds without an answer of the controller after which it gives up.
        completions: the site's job completion file (`jobcomp/filetxt`), where it can be read.
    """

    def __init__(
        self,
        *,
        run: Run = run_command,
        clock: Callable[[], float] = time.monotonic,
        round_s: float = ROUND_S,
        patience_s: float = PATIENCE_S,
        completions: Path | None = None,
    ) -> None:
        self._run = run
        self._clock = clock
        self._round_s = round_s
        self._patience_s = patience_s
        self._completions = completions
        self._asked_at: float | None = None
        self._away_since: float | None = None
        self._away = ""
        self._ask_accounting_at = 0.0
        # by folder: a controller that lost its last seconds gives the same number away again
        self._last: dict[Path, Outcome] = {}
        self._empty: dict[Path, int] = {}

    def poll(self, folders: Mapping[str, Path]) -> dict[str, Outcome]:
        """Return job id -> where it stands, for every job given with its attempt's folder.

        Within `round_s` of the last round the last answers are given again; a job that no round
        has asked for is pending until one has.

        Raises:
            SchedulerDown: the controller does not answer; ask again later.
            SubmissionError: it has not answered for `patience_s`.
        """
        now = self._clock()
        open_jobs = {
            job_id: folder
            for job_id, folder in folders.items()
            if not self._last.get(folder, _UNASKED).state.is_final
        }
        if open_jobs and (self._asked_at is None or now - self._asked_at >= self._round_s):
            self._asked_at = now
            answers = self._round(open_jobs, now)
            self._last |= {open_jobs[job_id]: outcome for job_id, outcome in answers.items()}
        if open_jobs and self._away_since is not None:
            raise self._down(now - self._away_since)
        return {job_id: self._last.get(folder, _UNASKED) for job_id, folder in folders.items()}

    def _round(self, folders: Mapping[str, Path], now: float) -> dict[str, Outcome]:
        found = self._controller(folders)
        if found is None:
            self._away_since = now if self._away_since is None else self._away_since
            return {}
        self._away_since = None
        unseen = {job_id: folders[job_id] for job_id in folders.keys() - found.keys()}
        for source in (self._accounting, self._completion_file):
            if unseen:
                found |= _own(source(sorted(unseen), now), unseen)
                unseen = {job_id: folders[job_id] for job_id in unseen.keys() - found.keys()}
        answers = {job_id: self._seen(job, folders[job_id]) for job_id, job in found.items()}
        return answers | {job_id: self._unseen(folder) for job_id, folder in unseen.items()}

    def _controller(self, folders: Mapping[str, Path]) -> dict[str, Job] | None:
        """Ask slurmctld; None where it does not answer."""
        ids = sorted(folders)
        one = ids if len(ids) == 1 else []
        answer = self._run(["scontrol", "show", "job", "-o", *one])
        parse = slurm_text.parse_scontrol
        if answer.code and not _unknown_id(answer.error) and not is_away(answer.error):
            form = slurm_text.SEPARATOR.join(slurm_text.SQUEUE_FIELDS)
            answer = self._run(["squeue", "-h", "-t", "all", "-j", ",".join(ids), "-o", form])
            parse = slurm_text.parse_squeue
        if answer.code and not _unknown_id(answer.error):
            self._away = answer.error
            return None
        return _own(parse(answer.out), folders)

    def _accounting(self, ids: Sequence[str], now: float) -> dict[str, Job]:
        """Ask slurmdbd, if there is one."""
        if now < self._ask_accounting_at:
            return {}
        form = ",".join(slurm_text.SACCT_FIELDS)
        answer = self._run(
            ["sacct", "-n", "-X", "-P", f"--delimiter={slurm_text.SEPARATOR}",
             "-j", ",".join(ids), "-o", form]
        )  # fmt: skip
        if answer.code:
            self._ask_accounting_at = now + _NO_ACCOUNTING_S
            return {}
        return slurm_text.parse_sacct(answer.out)

    def _completion_file(self, ids: Sequence[str], _: float) -> dict[str, Job]:
        """Read the site's job completion file, if it is configured and readable."""
        if self._completions is None:
            return {}
        starts = tuple(f"JobId={job_id} " for job_id in ids)
        try:
            with self._completions.open(encoding="utf-8", errors="replace") as lines:
                text = "".join(line for line in lines if line.startswith(starts))
        except OSError:
            return {}
        return slurm_text.parse_scontrol(text)

    def _seen(self, job: Job, folder: Path) -> Outcome:
        self._empty.pop(folder, None)
        if not job.outcome.state.is_final:
            return job.outcome
        ranks = list(read_outcomes(folder).values())
        if not ranks and job.outcome.state is State.FAILED:
            why = _full(folder) or _last_words(folder, job)
            return replace(job.outcome, reason=f"{job.outcome.reason}{why}")
        outcome = slurm_text.merge(job.outcome, ranks)
        if outcome.state is State.CANCELLED and _is_whole(folder, ranks):
            # who cancelled came after the trainer's end: what it measured stands
            return replace(outcome, state=State.COMPLETED)
        return outcome

    def _unseen(self, folder: Path) -> Outcome:
        """Say what is left to say of a job that no part of Slurm knows any more."""
        ranks = list(read_outcomes(folder).values())
        if ranks:
            silent = _has_silent(folder, ranks)
            gone = "Slurm has forgotten the job" + (", a rank ended without a word" * silent)
            state = State.FAILED if silent else State.COMPLETED
            return slurm_text.merge(Outcome(state=state, reason=gone), ranks)
        empty = self._empty[folder] = self._empty.get(folder, 0) + 1
        if empty >= EMPTY_ROUNDS:
            return Outcome(
                state=State.LOST, reason=f"no part of Slurm knew the job in {empty} rounds"
            )
        before = self._last.get(folder, _UNASKED)
        return replace(before, reason=f"unknown to Slurm, round {empty} of {EMPTY_ROUNDS}")

    def _down(self, for_s: float) -> SubmissionError:
        said = f"the Slurm controller has not answered for {for_s:.0f} s: {self._away}"
        if for_s < self._patience_s:
            return SchedulerDown(said)
        return SubmissionError(
            f"{said}; gave up after {self._patience_s:.0f} s. Running jobs go on and are adopted "
            "by the next run; start it when `scontrol ping` says UP"
        )


_UNASKED = Outcome(state=State.PENDING, reason="not asked yet")


def _own(jobs: Mapping[str, Job], folders: Mapping[str, Path]) -> dict[str, Job]:
    """Keep the jobs asked for; a stranger that was given the same number is not one of them."""
    return {
        job_id: job
        for job_id, job in jobs.items()
        if job_id in folders
        and (not job.folder or is_same_attempt(Path(job.folder), folders[job_id]))
    }


def _has_silent(folder: Path, ranks: Sequence[Outcome]) -> bool:
    """Whether a rank began that has not said how it ended."""
    return len(list(folder.glob("claimed*.json"))) > len(ranks)


def _is_whole(folder: Path, ranks: Sequence[Outcome]) -> bool:
    """Whether every rank that began ran to its end."""
    is_good = bool(ranks) and all(each.state is State.COMPLETED for each in ranks)
    return is_good and not _has_silent(folder, ranks)


def _unknown_id(error: str) -> bool:
    # slurm_load_jobs error: Invalid job id specified
    return "invalid job id" in error.lower()


def _full(folder: Path) -> str:
    """Say so where the payload could not have written a word."""
    with contextlib.suppress(OSError):
        if shutil.disk_usage(folder).free < _LITTLE_BYTES:
            return "; no space is left in the work directory"
    return ""


def _last_words(folder: Path, job: Job) -> str:
    """Return the last line that the job said before the payload ran, for the reason."""
    for path in sorted((folder / "submitit").glob(f"{job.job_id}_*_log.err")):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        # srun: error: node001: task 0: Exited with exit code 2    says less than what is above it
        said = [line.strip() for line in lines if line.strip() and not line.startswith("srun: ")]
        if said:
            return f"; the payload did not run: {said[-1]:.300}"
    return ""
