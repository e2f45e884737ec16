"""Run trials as srun steps of the allocation around the session (salloc or sbatch).

An attempt is a script that runs one srun. The script has its own process session and outlives the
process that started it. Besides the files that the package's docstring lists, the folder of such an
attempt has:

    < step.json    the allocation, the step's name and nodes, the process of the script
    < step.sh      the script: the environment of a login, then srun
    > ended.json   srun's exit status and the time, written by the script when srun is over

So any process can find the state of a step: by `ended.json`, by the script's process if it is on
the same machine, and by `squeue --steps`. Two steps never run side by side on a node: the campaign
starts one step at a time there, and srun without `--overlap` waits while another step runs.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from pytest_xlatune import secure_files
from pytest_xlatune.executors import AllocationOver, Request, SchedulerDown, payload
from pytest_xlatune.executors.folder import (
    ProcessRecord,
    read_json_file,
    read_outcomes,
    read_started,
    start_detached,
    write_spec,
)
from pytest_xlatune.executors.slurm import LOGIN, SHOWN_DIGEST, arguments_of
from pytest_xlatune.executors.slurm._commands import (
    SEPARATOR,
    SlurmJob,
    Trouble,
    parse_scontrol,
    unneeded_names,
)
from pytest_xlatune.executors.slurm._poller import (
    all_ranks_completed,
    ended,
    script_output,
)
from pytest_xlatune.executors.slurm._script import SCRIPTS, site_options
from pytest_xlatune.executors.slurm.nodes import OnSlurm
from pytest_xlatune.model.errors import LedgerError, SubmissionError
from pytest_xlatune.model.hosts import compress, expand
from pytest_xlatune.model.record import Record, Time
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import Outcome, State, Submission
from pytest_xlatune.model.text import duration
from pytest_xlatune.model.trial import LaunchSpec

_log = logging.getLogger("pytest_xlatune.executors")
STEP, ENDED, SCRIPT = "step.json", "ended.json", "step.sh"
_JOB, _NODES = "SLURM_JOB_ID", "SLURM_JOB_NODELIST"  # variables of the user's own allocation
_NOT_INSIDE = f"found no allocation ({_JOB} is not set); start pytest inside salloc or sbatch"
# only a step that ended less than this before its allocation can have been ended by it
_END_MARGIN_S = 30.0
# slurmstepd: error: *** STEP 4711.3 ON node001 CANCELLED AT 2026-11-23T09:12:01 DUE TO TIME LIMIT
_CANCELLED = re.compile(r"STEP \S+ ON \S+ CANCELLED AT \S+(?P<limit> DUE TO TIME LIMIT)?")
# srun: launch/slurm: _step_signal: Terminating StepId=4711.3
_ENDED_BY_SRUN = "Terminating StepId="
_SHELL_SIGNAL = 128
# EndTime=1795173260    EndTime=Unknown
_END_TIME = re.compile(r"\bEndTime=(\d+)\b")
# The script of an attempt. It unsets what the user's shell profile sets for Slurm's commands, which
# would change what srun does, and SLURM_JWT, which a trainer does not need.
_SCRIPT = """\
#!/bin/bash
end() {{
  code=$?
  umask {umask:03o}
  printf '{{"code": %d, "end_s": %s}}\\n' "$code" "$(date +%s.%N)" >.{ended}
  ln .{ended} {ended}
}}
trap end EXIT
. {login}
for name in ${{!SBATCH_*}} ${{!SLURM_*}} ${{!SRUN_*}}; do
  case $name in SLURM_CONF | SLURM_CONF_SERVER | SLURM_CLUSTERS) ;; *) unset "$name" ;; esac
done
{srun}
"""
_STEP_ROW = f"%i{SEPARATOR}%j"


class SrunStep(Record, frozen=True, kw_only=True):
    """A step that was started.

    Attributes:
        job_id: the name of the step in the ledger, e.g. `step-12`.
        allocation: Slurm's id of the allocation.
        name: the name of the step in Slurm.
        nodes: the nodes on which it runs.
        process: the script's process, which waits for the end of srun.
    """

    job_id: str
    allocation: str
    name: str
    nodes: tuple[str, ...]
    process: ProcessRecord


class SrunEnd(Record, frozen=True, kw_only=True):
    """The end of srun: its exit status as in a shell; -1 if it is unknown."""

    code: int
    end_s: Time


class AllocationExecutor(OnSlurm):
    """An `Executor` inside an allocation.

    Args:
        environ: the variables that name the allocation around this session.
        **outside: see `OnSlurm`.
    """

    name = "allocation"
    holds_nodes = True

    def __init__(self, *, environ: Mapping[str, str] = os.environ, **outside: Any) -> None:
        super().__init__(**outside)
        self._environ = environ
        # A poller tells our jobs by the working directory, but that of an allocation is the user's.
        # So any job with its id is taken for it; another user's job has no step of ours.
        self._poller.is_ours = lambda *_: True

    # -- the contract -----------------------------------------------------------------------------

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        """Start the attempt; the job id is its number among the ledger's steps: `step-12`.

        Raises:
            AllocationOver: the allocation is over, or too short for the trial.
            ConfigError: the harness reserves an option of the resources.
            SchedulerDown: the controller is away.
            SubmissionError: the allocation has lost the nodes.
        """
        folder = request.folder.resolve()
        # an unreadable step is started again, which is safe: only one payload can claim the attempt
        with contextlib.suppress(LedgerError):
            if (known := _read_step(folder)) is not None:
                return known.job_id
        arguments_of(request)  # raises if an option is not allowed
        faults, lacking = self._allocation(request.nodelist, request.resources.time_limit_s)
        if faults:
            raise AllocationOver(
                f"allocation {self._allocation_id} takes no further trial: {'; '.join(faults)}. "
                "Start another salloc and run again; finished trials are kept"
            )
        if lacking:  # only these nodes are lost, and trials on other nodes may go on
            raise SubmissionError(lacking)
        words = step_words(request, self._allocation_id, digest=write_spec(folder, spec))
        secure_files.make_folder(folder / SCRIPTS)
        step = SrunStep(
            job_id=f"step-{1 + len(list(folder.parent.glob(f'*/{STEP}')))}",
            allocation=self._allocation_id,
            name=request.job_name,
            nodes=request.nodelist,
            process=_start(folder, words, self._allocation_id),
        )
        secure_files.write_json(folder / STEP, step.to_json())
        _log.info("%s is %s, in allocation %s", request.job_name, step.job_id, self._allocation_id)
        return step.job_id

    def poll(self, submissions: Sequence[Submission], *, root: Path) -> Mapping[str, Outcome]:
        """Read the folders, and ask Slurm about the rest at intervals of a few seconds."""
        outcomes: dict[str, Outcome] = {}
        undecided: list[tuple[str, Path, SrunStep]] = []
        for submission in submissions:
            folder = (root / submission.folder).resolve()
            try:
                step, end = _read_step(folder), _read_end(folder)
                gone = f"{folder / STEP} is gone, and only this file names the step"
            except LedgerError as error:
                step, end, gone = None, None, str(error)
            if step is None:
                with contextlib.suppress(OSError):
                    (folder / payload.CANCEL).touch()
                outcomes[submission.job_id] = Outcome(
                    state=State.FAILED, reason=gone, is_unreadable=True
                )
            elif end is not None and end.code == 0:
                outcomes[submission.job_id] = _ended(folder, step, State.COMPLETED, "", end.end_s)
            else:
                undecided.append((submission.job_id, folder, step))
        if undecided:
            # the poller wants a folder for each job, but an allocation has none
            allocations = {
                step.allocation: folder.parent / step.allocation for _, folder, step in undecided
            }
            polled = self._poller.poll(allocations)
            for job_id, folder, step in undecided:
                outcomes[job_id] = self._outcome_of(folder, step, polled[step.allocation])
        return outcomes

    def cancel(self, submissions: Sequence[Submission], *, root: Path) -> None:
        """End these steps by SIGTERM, which their payloads obey.

        A payload that is stopped is continued, because it would not see the signal.

        Raises:
            SchedulerDown: the controller cannot be asked; a trial that has not begun will not
                begin, because the mark in its folder forbids it.
            SubmissionError: scancel refused.
        """
        for submission in submissions:
            folder = root / submission.folder
            with contextlib.suppress(OSError):  # on a full disk the mark cannot be written
                (folder / payload.CANCEL).touch()
            with contextlib.suppress(LedgerError):
                step = _read_step(folder)
                if step is not None and _read_end(folder) is None:
                    self._cancel_step(step)

    def _cancel_step(self, step: SrunStep) -> None:
        answer = self._run(["squeue", "-h", "-s", "-j", step.allocation, "-o", _STEP_ROW])
        if answer.trouble is Trouble.AWAY:
            raise SchedulerDown(f"squeue does not name the steps of {step.allocation}")
        rows = [line.split(SEPARATOR) for line in answer.out.splitlines()]
        steps = [row[0] for row in rows if row[1:] == [step.name]]
        for step_id, number in itertools.product(steps, ("TERM", "CONT")):
            _log.info("Slurm is asked to send SIG%s to step %s", number, step_id)
            answer = self._run(["scancel", f"--signal={number}", step_id])
            if answer.trouble is Trouble.AWAY:
                raise SchedulerDown(f"scancel: {answer.error}")
            # scancel refuses a step that has ended meanwhile, which is fine
            if answer.trouble is Trouble.FOR_GOOD and "step" not in answer.error.lower():
                raise SubmissionError(f"scancel: {answer.error}")

    # -- before anything is submitted -------------------------------------------------------------

    @property
    def _allocation_id(self) -> str:
        """The id of the allocation around this session; "" if there is none."""
        return self._environ.get(_JOB, "")

    def own_nodes(self) -> tuple[str, ...]:
        """Return the nodes of the allocation around this session."""
        return expand(self._environ.get(_NODES, ""))

    def faults(self, *, nodelist: Sequence[str], resources: Resources) -> tuple[str, ...]:
        """Return what keeps trials from running in the allocation, one sentence for each fault."""
        try:
            faults, lacking = self._allocation(nodelist, resources.time_limit_s)
        except SchedulerDown as error:
            return (str(error),)
        return (*faults, *([lacking] if lacking else []))

    def _allocation(self, nodelist: Sequence[str], limit_s: float) -> tuple[list[str], str]:
        """Return why the allocation takes no trial, and a fault on nodes that it lacks or ""."""
        if not self._allocation_id:
            return [_NOT_INSIDE], ""
        name = f"allocation {self._allocation_id}"
        answer = self._run(["scontrol", "show", "job", "-o", self._allocation_id])
        job = parse_scontrol(answer.out).get(self._allocation_id)
        if job is None and answer.trouble is Trouble.AWAY:
            raise SchedulerDown(f"scontrol does not show {name}: {answer.error}")
        if job is None or not _can_run_steps(job.outcome):
            why = answer.error or (job.outcome.reason if job else "Slurm does not know it")
            return [f"{name} ({_JOB}) does not run: {why}; start another salloc"], ""
        faults, lacking = [], ""
        if absent := [node for node in nodelist if node not in job.outcome.nodes]:
            lacking = (
                f"{compress(absent)} is not in {name}, which has {compress(job.outcome.nodes)}; "
                "name nodes of the allocation, or leave the node list out to use all its nodes"
            )
        # OverSubscribe=NO    OverSubscribe=OK
        if "OverSubscribe=OK" in answer.out:
            faults.append(
                f"{name} may share its nodes with other jobs; start it by salloc --exclusive"
            )
        end = _END_TIME.search(answer.out)
        left_s = max(float(end[1]) - time.time(), 0.0) if end else math.inf
        if left_s < limit_s:
            faults.append(
                f"{name} ends in {duration(left_s)}, but a trial may take {duration(limit_s)} "
                "(time_limit_s); ask for a longer allocation, or limit trials by "
                "Resources(time_limit_s=...)"
            )
        return faults, lacking

    def preview(self, trial_id: str, request: Request) -> tuple[str, str]:
        """Return the command of the step."""
        title = f"`{trial_id}` as a step of the allocation around this session"
        return title, f"{shlex.join(step_words(request))}\n"

    # -- the outcome of an attempt ----------------------------------------------------------------

    def _outcome_of(self, folder: Path, step: SrunStep, polled: Outcome) -> Outcome:
        """Return the outcome so far of a step; `polled` is that of the allocation."""
        # in this order, because a script writes its end before its process is gone
        is_alive = step.process.is_alive
        end = _read_end(folder)
        if end is not None and end.code == 0:
            return _ended(folder, step, State.COMPLETED, "", end.end_s)
        if polled.state is State.PENDING and polled.reason.startswith(("PENDING", "REQUEUE")):
            # after its node died, the allocation's sbatch waits to start its script again
            return _cut_off_outcome(folder, step, polled, State.REQUEUED)
        if polled.state.is_final:
            cut_off_s = (polled.end_s or math.inf) - _END_MARGIN_S
            if end is None or end.end_s > cut_off_s:
                return _cut_off_outcome(folder, step, polled, polled.state)
        elif (end is None and is_alive) or not self._is_over(folder, step, has_end=end is not None):
            return _running_outcome(folder, step, polled)
        return _failed_outcome(folder, step, end or SrunEnd(code=-1, end_s=time.time()))

    def _is_over(self, folder: Path, step: SrunStep, *, has_end: bool) -> bool:
        """Return whether a step no longer holds a node although its allocation goes on.

        `has_end` says whether the script has written the end of srun.
        """
        steps = self._run(["squeue", "-h", "-s", "-j", step.allocation, "-o", _STEP_ROW])
        names = [line.partition(SEPARATOR)[2] for line in steps.out.splitlines()]
        if steps.code or step.name in names:
            return False
        answer = self._run(["scontrol", "show", "job", "-o", step.allocation])
        job = parse_scontrol(answer.out).get(step.allocation)
        if job is None or not _can_run_steps(job.outcome):
            return False  # the next round shows how the allocation ended
        if not has_end and not any(folder.glob("claimed*.json")):
            with contextlib.suppress(OSError):  # so that a payload that starts late runs nothing
                (folder / payload.CANCEL).touch()
        return True


def step_words(request: Request, allocation: str = "", digest: str = SHOWN_DIGEST) -> list[str]:
    """Return the srun command of an attempt.

    `allocation` is an allocation's id; "" means the one around the shell that runs the command.
    """
    folder, resources, nodes = request.folder.resolve(), request.resources, request.nodelist
    _, srun = site_options(resources.options)
    count = len(nodes) or resources.nodes or 1
    return [
        "srun",
        *([f"--jobid={allocation}"] if allocation else []),
        f"--nodes={count}",
        f"--ntasks={count * resources.tasks_per_node}",
        f"--ntasks-per-node={resources.tasks_per_node}",
        f"--job-name={request.job_name}",
        f"--time={math.ceil(resources.time_limit_s / 60)}",
        f"--chdir={folder}",
        "--export=ALL",
        "--kill-on-bad-exit=1",
        *([f"--nodelist={compress(nodes)}"] if nodes else []),
        *srun,
        *payload.payload_argv(folder, digest),
    ]


def _start(folder: Path, words: Sequence[str], allocation: str) -> ProcessRecord:
    """Start the script of an attempt, with hardly anything of our environment."""
    text = _SCRIPT.format(
        umask=0o777 & ~secure_files.mode_in(folder),
        ended=ENDED,
        login=shlex.quote(str(LOGIN)),
        srun=shlex.join(words),
    )
    secure_files.write_bytes(folder / SCRIPT, text.encode())
    dropped = set(unneeded_names(os.environ))
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    argv = ("/bin/bash", str(folder / SCRIPT))
    log = folder / SCRIPTS / f"{allocation}_0_log.err"
    pid = start_detached(argv, environment, folder, log=log)
    return ProcessRecord(**payload.identity(pid), at_s=time.time())


def _read_step(folder: Path) -> SrunStep | None:
    """Return the step of an attempt; None if it was not started.

    Raises:
        LedgerError: its file cannot be read.
    """
    data = read_json_file(folder / STEP)
    return None if data is None else SrunStep.from_json(data)


def _read_end(folder: Path) -> SrunEnd | None:
    """Return the end of srun; None before the end. An unreadable file counts as a failure."""
    path = folder / ENDED
    try:
        data = read_json_file(path)
        return None if data is None else SrunEnd.from_json(data)
    except LedgerError:
        return SrunEnd(code=-1, end_s=path.lstat().st_mtime)


def _can_run_steps(allocation: Outcome) -> bool:
    """Return whether an allocation can run a step, which it cannot if COMPLETING or suspended."""
    return allocation.reason.startswith("RUNNING")


def _running_outcome(folder: Path, step: SrunStep, polled: Outcome) -> Outcome:
    """Return the outcome of a step that is not over; `polled` is that of the allocation."""
    if (started := read_started(folder)) is None:
        return Outcome(state=State.PENDING, reason="starting", allocation=step.allocation)
    return Outcome(
        state=State.RUNNING,
        nodes=step.nodes or polled.nodes,
        start_s=started.at_s,
        reason=polled.reason,
        is_suspended=polled.is_suspended,
        allocation=step.allocation,
    )


def _ended(
    folder: Path,
    step: SrunStep,
    state: State,
    reason: str,
    end_s: float | None,
    *,
    exit_code: int | None = None,
    signal: int | None = None,
) -> Outcome:
    """Return the outcome of a step that is over, completed by what its ranks wrote."""
    outcome = Outcome(state=state, reason=reason, exit_code=exit_code, signal=signal)
    outcome = msgspec.structs.replace(outcome, start_s=step.process.at_s, end_s=end_s)
    merged = ended(SlurmJob(job_id=step.allocation, outcome=outcome), folder)
    return msgspec.structs.replace(merged, allocation=step.allocation)


def _failed_outcome(folder: Path, step: SrunStep, end: SrunEnd) -> Outcome:
    """Return the outcome of a step whose srun failed, from what srun printed."""
    ranks = list(read_outcomes(folder).values())
    lines = script_output(folder, step.allocation)
    cancelled = _CANCELLED.search("\n".join(lines))
    is_by_srun = any(_ENDED_BY_SRUN in line for line in lines)
    has_failed_rank = any(rank.state in (State.FAILED, State.TIMEOUT) for rank in ranks)
    state, reason = State.FAILED, f"FAILED: srun ended with {end.code}"
    exit_code, signal = None, None
    if all_ranks_completed(folder, ranks):
        state, reason = State.COMPLETED, "srun was lost"
    elif end.code < 0:  # the script was killed, and the step has left the nodes
        state = State.FAILED if ranks else State.LOST
        reason = "the script of its step was killed"
    elif ranks and not has_failed_rank and (folder / payload.CANCEL).exists():
        state, reason = State.CANCELLED, ""
    elif cancelled and cancelled["limit"]:
        state, reason = State.TIMEOUT, "TIMEOUT: the step's limit"
    elif cancelled and not is_by_srun and not has_failed_rank:
        state, reason = State.CANCELLED, f"CANCELLED: {cancelled[0]}"
    elif not any(folder.glob("claimed*.json")):
        # The trainer never ran. As FAILED it would be blamed, and a second failure drops a profile.
        other_lines = [line for line in lines if not line.startswith("srun: ")] or lines or [""]
        why = f"its step did not begin, srun ended with {end.code}: {other_lines[-1]:.300}"
        state, reason = State.LOST, why
    elif end.code > _SHELL_SIGNAL:
        signal = end.code - _SHELL_SIGNAL
    else:
        exit_code = end.code
    return _ended(folder, step, state, reason, end.end_s, exit_code=exit_code, signal=signal)


# state of an ended allocation -> state of a trial that it cut off
_STATE_IF_CUT_OFF: Mapping[State, State] = {
    State.TIMEOUT: State.PREEMPTED,  # the time limit is not the trial's own
    State.COMPLETED: State.LOST,
    State.FAILED: State.LOST,
}


def _cut_off_outcome(folder: Path, step: SrunStep, polled: Outcome, state: State) -> Outcome:
    """Return the outcome of an attempt whose allocation is over: completed, or cut off by that."""
    state = _STATE_IF_CUT_OFF.get(state, state)
    reason = f"allocation {step.allocation} ended: {polled.reason}"
    if all_ranks_completed(folder, list(read_outcomes(folder).values())):
        state, reason = State.COMPLETED, ""
    # as CANCELLED it would look like a person's cancel and stop the sweep
    elif state is State.CANCELLED and not any(folder.glob("claimed*.json")):
        state = State.PREEMPTED
        reason = f"allocation {step.allocation} ended before the trial began: {polled.reason}"
    return _ended(folder, step, state, reason, polled.end_s)
