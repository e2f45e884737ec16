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
import json
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
    read_outcomes,
    read_record,
    read_started,
    start_detached,
    write_spec,
)
from pytest_xlatune.executors.slurm import LOGIN, SHOWN_DIGEST, arguments_of
from pytest_xlatune.executors.slurm._commands import (
    SEPARATOR,
    SlurmJob,
    Trouble,
    needed,
    parse_scontrol,
)
from pytest_xlatune.executors.slurm._poller import all_ranks_completed, ended, script_output
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
            AllocationOver: the allocation is over, too short for the trial, or lacks its nodes.
            ConfigError: the harness reserves an option of the resources.
            SchedulerDown: the controller is away.
        """
        folder = request.folder.resolve()
        # an unreadable step is started again, which is safe: only one payload can claim the attempt
        with contextlib.suppress(LedgerError):
            if (known := read_record(folder / STEP, SrunStep)) is not None:
                return known.job_id
        arguments_of(request)  # raises if an option is not allowed
        if faults := self._allocation_faults(request.nodelist, request.resources.time_limit_s):
            raise AllocationOver(
                f"allocation {self._allocation_id} takes no further trial: {'; '.join(faults)}. "
                "Start another salloc and run again; finished trials are kept"
            )
        words = step_words(request, self._allocation_id, digest=write_spec(folder, spec))
        secure_files.make_folder(folder / SCRIPTS)
        with secure_files.Folder(folder) as opened:
            script = _SCRIPT.format(
                umask=0o777 & ~opened.mode_of_files,
                ended=ENDED,
                login=shlex.quote(str(LOGIN)),
                srun=shlex.join(words),
            )
            opened.write(SCRIPT, script.encode())
        argv = ("/bin/bash", str(folder / SCRIPT))
        log = folder / SCRIPTS / f"{self._allocation_id}_0_log.err"
        pid = start_detached(argv, needed(), folder, log=log)
        step = SrunStep(
            job_id=f"step-{1 + len(list(folder.parent.glob(f'*/{STEP}')))}",
            allocation=self._allocation_id,
            name=request.job_name,
            nodes=request.nodelist,
            process=ProcessRecord(**payload.identity(pid), at_s=time.time()),
        )
        secure_files.write_bytes(folder / STEP, json.dumps(step.to_json()).encode("ascii"))
        _log.info("%s is %s, in allocation %s", request.job_name, step.job_id, self._allocation_id)
        return step.job_id

    def poll(self, submissions: Sequence[Submission], *, root: Path) -> Mapping[str, Outcome]:
        """Read the folders, and ask Slurm about the rest at intervals of a few seconds."""
        outcomes: dict[str, Outcome] = {}
        steps: dict[str, tuple[Path, SrunStep]] = {}
        for submission in submissions:
            folder = (root / submission.folder).resolve()
            reason = f"{folder / STEP} is gone, and only this file names the step"
            try:
                step = read_record(folder / STEP, SrunStep)
            except LedgerError as error:
                step, reason = None, str(error)
            if step is not None:
                steps[submission.job_id] = (folder, step)
                continue
            with contextlib.suppress(OSError):
                (folder / payload.CANCEL).touch()
            outcomes[submission.job_id] = Outcome(
                state=State.FAILED, reason=reason, is_unreadable=True
            )
        # the poller wants a folder for each job, but an allocation has none
        polled = self._poller.poll(
            {step.allocation: folder.parent / step.allocation for folder, step in steps.values()}
        )
        return outcomes | {
            job_id: self._outcome_of(folder, step, polled[step.allocation])
            for job_id, (folder, step) in steps.items()
        }

    def cancel(self, submissions: Sequence[Submission], *, root: Path) -> None:
        """End these steps by SIGTERM, which their payloads obey.

        A payload that is stopped is continued, because it would not see the signal.

        Raises:
            SchedulerDown: the controller cannot be asked; a trial that has not begun will not
                begin, because the mark in its folder forbids it.
            SubmissionError: scancel refused.
        """
        folders = [root / submission.folder for submission in submissions]
        for folder in folders:  # all of them first, because a step begins when another one ends
            with contextlib.suppress(OSError):  # on a full disk the mark cannot be written
                (folder / payload.CANCEL).touch()
        for folder in folders:
            step = None
            with contextlib.suppress(LedgerError):
                step = read_record(folder / STEP, SrunStep)
            if step is None or _read_end(folder) is not None:
                continue
            ids, trouble = self._ids_of(step)
            if trouble is Trouble.AWAY:
                raise SchedulerDown(f"squeue does not name the steps of {step.allocation}")
            for number in ("TERM", "CONT") if ids else ():
                _log.info("Slurm is asked to send SIG%s to step %s", number, ", ".join(ids))
                answer = self._run(["scancel", f"--signal={number}", *ids])
                if answer.trouble is Trouble.AWAY:
                    raise SchedulerDown(f"scancel: {answer.error}")
                # scancel refuses a step that has ended meanwhile, which is fine
                if answer.trouble is Trouble.FOR_GOOD and "step" not in answer.error.lower():
                    raise SubmissionError(f"scancel: {answer.error}")

    def _ids_of(self, step: SrunStep) -> tuple[list[str], Trouble]:
        """Return Slurm's ids of a step, [] if it is over or unknown, and why it is unknown."""
        row = f"%i{SEPARATOR}%j"
        answer = self._run(["squeue", "-h", "-s", "-j", step.allocation, "-o", row])
        rows = (line.split(SEPARATOR) for line in answer.out.splitlines())
        return [row[0] for row in rows if row[1:] == [step.name]], answer.trouble

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
            return self._allocation_faults(nodelist, resources.time_limit_s)
        except SchedulerDown as error:
            return (str(error),)

    def _allocation_faults(self, nodelist: Sequence[str], limit_s: float) -> tuple[str, ...]:
        if not self._allocation_id:
            return (_NOT_INSIDE,)
        name = f"allocation {self._allocation_id}"
        answer = self._run(["scontrol", "show", "job", "-o", self._allocation_id])
        job = parse_scontrol(answer.out).get(self._allocation_id)
        if job is None and answer.trouble is Trouble.AWAY:
            raise SchedulerDown(f"scontrol does not show {name}: {answer.error}")
        # an allocation that is COMPLETING or suspended runs no step
        if job is None or not job.outcome.reason.startswith("RUNNING"):
            why = answer.error or (job.outcome.reason if job else "Slurm does not know it")
            return (f"{name} ({_JOB}) does not run: {why}; start another salloc",)
        faults = []
        if absent := [node for node in nodelist if node not in job.outcome.nodes]:
            faults.append(
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
        return tuple(faults)

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
        # after its node died, the allocation's sbatch waits to start its script again
        is_requeued = polled.state is State.PENDING and polled.reason.startswith(
            ("PENDING", "REQUEUE")
        )
        cut_off_s = (polled.end_s or math.inf) - _END_MARGIN_S
        is_cut_off = polled.state.is_final and (end is None or end.end_s > cut_off_s)
        if end is not None and end.code == 0:
            outcome = Outcome(state=State.COMPLETED, end_s=end.end_s)
        elif is_requeued or is_cut_off:
            state = State.REQUEUED if is_requeued else polled.state
            outcome = _cut_off_outcome(folder, step.allocation, polled, state)
        elif polled.state.is_final or (
            (end is not None or not is_alive)
            and self._is_over(folder, step, has_end=end is not None)
        ):
            end = end or SrunEnd(code=-1, end_s=time.time())
            outcome = _failed_outcome(folder, step.allocation, end)
        elif (started := read_started(folder)) is None:
            return Outcome(state=State.PENDING, reason="starting", allocation=step.allocation)
        else:
            return Outcome(
                state=State.RUNNING,
                nodes=step.nodes or polled.nodes,
                start_s=started.at_s,
                reason=polled.reason,
                is_suspended=polled.is_suspended,
                allocation=step.allocation,
            )
        outcome = msgspec.structs.replace(outcome, start_s=step.process.at_s)
        merged = ended(SlurmJob(job_id=step.allocation, outcome=outcome), folder)
        return msgspec.structs.replace(merged, allocation=step.allocation)

    def _is_over(self, folder: Path, step: SrunStep, *, has_end: bool) -> bool:
        """Return whether a step no longer holds a node although its allocation goes on.

        `has_end` says whether the script has written the end of srun.
        """
        ids, trouble = self._ids_of(step)
        if ids or trouble is not Trouble.NONE:
            return False
        answer = self._run(["scontrol", "show", "job", "-o", step.allocation])
        job = parse_scontrol(answer.out).get(step.allocation)
        if job is None or not job.outcome.reason.startswith("RUNNING"):
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


def _read_end(folder: Path) -> SrunEnd | None:
    """Return the end of srun; None before the end. An unreadable file counts as a failure."""
    try:
        return read_record(folder / ENDED, SrunEnd)
    except LedgerError:
        return SrunEnd(code=-1, end_s=(folder / ENDED).lstat().st_mtime)


def _failed_outcome(folder: Path, allocation: str, end: SrunEnd) -> Outcome:
    """Return the outcome of a step whose srun failed, from what srun printed."""
    ranks = list(read_outcomes(folder).values())
    lines = script_output(folder, allocation)
    text = "\n".join(lines)
    cancelled = _CANCELLED.search(text)
    has_failed_rank = any(rank.state in (State.FAILED, State.TIMEOUT) for rank in ranks)
    is_by_trial = _ENDED_BY_SRUN in text or has_failed_rank
    cause, limit = (cancelled[0], cancelled["limit"]) if cancelled else ("", None)
    # The trainer never ran. As FAILED it would be blamed, and a second failure drops a profile.
    other_lines = [line for line in lines if not line.startswith("srun: ")] or lines or [""]
    not_begun = f"its step did not begin, srun ended with {end.code}: {other_lines[-1]:.300}"
    rules = (  # the first that holds decides
        (all_ranks_completed(folder, ranks), State.COMPLETED, "srun was lost"),
        # the script was killed, and the step has left the nodes
        (end.code < 0, State.FAILED if ranks else State.LOST, "the script of its step was killed"),
        (ranks and not has_failed_rank and (folder / payload.CANCEL).exists(), State.CANCELLED, ""),
        (limit, State.TIMEOUT, "TIMEOUT: the step's limit"),
        (cause and not is_by_trial, State.CANCELLED, f"CANCELLED: {cause}"),
        (not any(folder.glob("claimed*.json")), State.LOST, not_begun),
        (True, State.FAILED, f"FAILED: srun ended with {end.code}"),
    )
    state, reason = next((state, reason) for holds, state, reason in rules if holds)
    outcome = Outcome(state=state, reason=reason, end_s=end.end_s)
    if state is not State.FAILED or end.code < 0:
        return outcome
    if end.code > _SHELL_SIGNAL:
        return msgspec.structs.replace(outcome, signal=end.code - _SHELL_SIGNAL)
    return msgspec.structs.replace(outcome, exit_code=end.code)


# state of an ended allocation -> state of a trial that it cut off
_STATE_IF_CUT_OFF: Mapping[State, State] = {
    State.TIMEOUT: State.PREEMPTED,  # the time limit is not the trial's own
    State.COMPLETED: State.LOST,
    State.FAILED: State.LOST,
}


def _cut_off_outcome(folder: Path, allocation: str, polled: Outcome, state: State) -> Outcome:
    """Return the outcome of an attempt whose allocation is over: completed, or cut off by that."""
    state, when = _STATE_IF_CUT_OFF.get(state, state), ""
    # as CANCELLED it would look like a person's cancel and stop the sweep
    if state is State.CANCELLED and not any(folder.glob("claimed*.json")):
        state, when = State.PREEMPTED, " before the trial began"
    reason = f"allocation {allocation} ended{when}: {polled.reason}"
    if all_ranks_completed(folder, list(read_outcomes(folder).values())):
        state, reason = State.COMPLETED, ""
    return Outcome(state=state, reason=reason, end_s=polled.end_s)
