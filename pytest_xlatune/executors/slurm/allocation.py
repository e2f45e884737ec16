"""Run trials as srun steps of the allocation that the session was started in: salloc, sbatch.

A trial is an entry of a queue (`driver` lists the files), and a driver inside the allocation works
the queue off without any session. So an allocation is bound to a trial only when the trial begins:
where one ends, in whatever way, the next session's allocation goes on with the queue, and what has
begun there and left no outcome is told as preempted, lost, or what else Slurm says.

Every method may be called by any process whose turn it is; all that is known is in files.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import os
import re
import shlex
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_xlatune import owned
from pytest_xlatune.executors import Request, SchedulerDown, Sight, payload
from pytest_xlatune.executors.folder import (
    read_claim,
    read_outcomes,
    read_started,
    write_spec,
)
from pytest_xlatune.executors.slurm import (
    LOGIN,
    SHOWN_DIGEST,
    OnSlurm,
    arguments_of,
    driver,
    look,
    site_options,
)
from pytest_xlatune.executors.slurm._commands import (
    SEPARATOR,
    Run,
    SlurmJob,
    Trouble,
    parse_scontrol,
    run_command,
    unneeded_names,
)
from pytest_xlatune.executors.slurm._held import (
    JOB_VARIABLE,
    OVER,
    Held,
    faults,
    held_in,
    is_damaged,
    is_of,
    let_go_unreadable,
    number_of,
    read,
    release,
    time_note,
)
from pytest_xlatune.executors.slurm._poller import ROUND_S, Poller, ended, given_away, is_whole
from pytest_xlatune.executors.slurm._script import SCRIPTS
from pytest_xlatune.model.errors import SubmissionError
from pytest_xlatune.model.hosts import compress, expand
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import Outcome, State, Submission
from pytest_xlatune.model.trial import LaunchSpec

_log = logging.getLogger("pytest_xlatune.executors")
_STARTS = 5  # of a driver that takes nothing
_START_S = 5.0  # between two of them
_HARDER_S = 15.0  # after which an end is asked for by SIGKILL
_BEFORE_S = 30.0  # a step that failed so long before its allocation ended did so by itself
# slurmstepd: error: *** STEP 4711.3 ON node001 CANCELLED AT 2026-11-23T09:12:01 DUE TO TIME LIMIT
_CANCELLED = re.compile(r"STEP \S+ ON \S+ CANCELLED AT \S+(?P<limit> DUE TO TIME LIMIT)?")
# srun: launch/slurm: _step_signal: Terminating StepId=4711.3
_BY_SRUN = "Terminating StepId="
_SHELL_SIGNAL = 128
_NODES_VARIABLE = "SLURM_JOB_NODELIST"  # of the user's own allocation


class AllocationExecutor(OnSlurm):
    """An `Executor` inside an allocation.

    Args:
        environ: names the allocation around this session.
        run, sleep: the outside world, for tests.
        round_s: see `Poller`.
    """

    name = "allocation"
    holds_nodes = True

    def __init__(
        self,
        *,
        environ: Mapping[str, str] = os.environ,
        run: Run = run_command,
        sleep: Callable[[float], None] = time.sleep,
        round_s: float = ROUND_S,
    ) -> None:
        super().__init__(run=run, sleep=sleep)
        self._environ = environ
        self._poller = Poller(run=run, round_s=round_s, is_ours=is_of)
        self._starts: dict[Path, list[float]] = defaultdict(list)  # of drivers, by their allocation

    # -- the contract -----------------------------------------------------------------------------

    def submit(self, spec: LaunchSpec, request: Request) -> str:
        """Put the attempt into the queue; the job id is its place in it: `step-12`.

        Raises:
            ConfigError: an option of the resources is ours to set.
            SchedulerDown: the controller is away.
            SubmissionError: there is no allocation, or it does not hold the nodes.
        """
        folder = request.folder.resolve()
        queue = folder.parent / driver.STEPS
        if (number := _place(queue, folder.name)) is not None:
            if not (folder / driver.TAKEN).exists():
                self._provide(folder.parent, request)
            return f"step-{number}"
        _entry(request)  # raises where an option, or the name, cannot be
        self._provide(folder.parent, request)
        entry = _entry(request, write_spec(folder, spec))
        payload.make_folder(folder / SCRIPTS)
        payload.make_folder(queue)
        number = 1 + max((_number(each) for each in queue.glob("[0-9]*-*.json")), default=0)
        payload.write_json(queue / f"{number:06d}-{folder.name}.json", entry)
        _log.info("%s is step-%d of the queue", request.job_name, number)
        return f"step-{number}"

    def poll(self, submissions: Sequence[Submission], *, root: Path) -> Mapping[str, Outcome]:
        """Look into the folders; ask Slurm for the allocations once in a few seconds at most."""
        runs: dict[Path, list[Submission]] = defaultdict(list)
        for each in submissions:
            runs[(root / each.folder).resolve().parent].append(each)
        found: dict[str, Outcome] = {}
        for run, mine in runs.items():
            allocations = self._look(run)
            outcomes = {each.job_id: self._standing(root / each.folder, allocations)
                        for each in mine}  # fmt: skip
            left = [each for each in mine if not outcomes[each.job_id].state.is_final]
            if left and allocations and not any(_is_taken(root / each.folder) for each in left):
                _refuse_full(allocations[-1][0])
            for held, said in allocations:  # a driver that was killed leaves its steps to the next
                if left and not said.state.is_final and not held.is_ending:
                    self._drive(held)
            found |= outcomes
        return found

    def cancel(self, submissions: Sequence[Submission], *, root: Path) -> None:
        """End these steps by SIGTERM, and by SIGKILL where they are asked again.

        Raises:
            SchedulerDown: the controller cannot be asked; a trial that has not begun never will.
            SubmissionError: scancel refused.
        """
        steps: dict[str, dict[str, bool]] = defaultdict(dict)
        for each in submissions:
            folder, mark = root / each.folder, root / each.folder / payload.CANCEL
            was_asked = mark.exists() and time.time() - mark.stat().st_mtime > _HARDER_S
            with contextlib.suppress(OSError):  # a full disk takes no mark
                if not mark.exists():
                    mark.touch()
            taken = read(folder / driver.TAKEN, driver.TOOK)
            if taken is not None and not (folder / driver.ENDED).exists():
                steps[taken["allocation"]][taken["step"]] = was_asked
        for allocation, names in steps.items():
            asked = ["squeue", "-h", "-s", "-j", allocation, "-o", f"%i{SEPARATOR}%j"]
            answer = self._run(asked)
            if answer.trouble is Trouble.AWAY:
                raise SchedulerDown(f"squeue does not name the steps of {allocation}")
            rows = [line.split(SEPARATOR) for line in answer.out.splitlines()]
            for step_id, name in (row for row in rows if len(row) == 2):  # noqa: PLR2004
                if name in names:
                    self._cancel_step(step_id, is_hard=names[name])

    def _cancel_step(self, step_id: str, *, is_hard: bool) -> None:
        _log.info("Slurm is asked to cancel step %s", step_id)
        answer = self._run(["scancel", *([] if is_hard else ["--signal=TERM"]), step_id])
        if answer.trouble is Trouble.AWAY:
            raise SchedulerDown(f"scancel: {answer.error}")
        # a step that has ended meanwhile is as good
        if (
            answer.code
            and "step" not in answer.error.lower()
            and answer.trouble is Trouble.FOR_GOOD
        ):
            raise SubmissionError(f"scancel: {answer.error}")

    # -- before anything is submitted -------------------------------------------------------------

    @property
    def _own(self) -> str:
        """The id of the allocation around this session; "" where it is in none."""
        return self._environ.get(JOB_VARIABLE, "")

    def own_nodes(self) -> tuple[str, ...]:
        """Return the nodes of the allocation around this session."""
        return expand(self._environ.get(_NODES_VARIABLE, ""))

    def faults(self, *, nodelist: Sequence[str], resources: Resources) -> tuple[str, ...]:
        """Say that no allocation can be had; see `_held.faults`."""
        return faults(
            nodelist=nodelist,
            resources=resources,
            environ=self._environ,
            run=self._run,
        )

    def time_note(self) -> str:
        """Say how long the allocation around this session still lasts."""
        return time_note(self._own, run=self._run)

    def busy_note(self, nodelist: Sequence[str]) -> str:
        """Say nothing: in one's own allocation other jobs are no trouble."""
        del nodelist
        return ""

    def look(
        self,
        paths: Sequence[str],
        *,
        checks: Sequence[tuple[str, str]],
        nodelist: Sequence[str],
        options: Mapping[str, str],
    ) -> Sight:
        """Ask the nodes by a step of the allocation."""
        return look(
            paths,
            checks=checks,
            nodelist=nodelist,
            options=options,
            allocation=self._own,
            run=self._run,
        )

    def release(self, folder: Path) -> None:
        """Have the drivers of the ledger in this folder take no further step."""
        release(folder)

    def preview(self, trial_id: str, request: Request) -> tuple[str, str]:
        """Return the words of the step."""
        title = f"`{trial_id}` as a step of the allocation that is held"
        return title, f"{shlex.join(step_words(request))}\n"

    # -- allocations ------------------------------------------------------------------------------

    def _look(self, run: Path) -> list[tuple[Held, Outcome]]:
        """Return the allocations of a run and where each stands."""
        known = held_in(run)
        let_go_unreadable(run, known)
        left = {each.job_id: each.folder for each in known if each.job_id and each.over is None}
        answers = self._poller.poll(left) if left else {}
        found = []
        for each in known:
            said = each.over or answers.get(each.job_id, Outcome(state=State.PENDING))
            if each.over is None and left.get(each.job_id, each.folder) != each.folder:
                said = given_away(each.folder, each.job_id)
            if said.state.is_final and each.over is None:
                payload.write_json(each.folder / OVER, said.to_json())
                _log.info("allocation %s is over: %s", each.job_id, said.reason)
            found.append((each, said))
        return found

    def _provide(self, run: Path, request: Request) -> None:
        """See that the allocation will take a trial and has a driver, or raise."""
        known = held_in(run)
        if not known:
            self._refuse_faults(request)
        held = next((each for each in known if each.job_id == self._own), None)
        if held is None:
            held = self._enter(run)
        _refuse_full(held)
        (held.folder / driver.END).unlink(missing_ok=True)
        self._drive(held)

    def _enter(self, run: Path) -> Held:
        """Take up the allocation around this session."""
        job_id = self._own
        if not job_id:
            raise SubmissionError(
                f"{JOB_VARIABLE} is not set: there is no allocation to go on in. Start another "
                "salloc"
            )
        answer = self._run(["scontrol", "show", "job", "-o", job_id])
        job = parse_scontrol(answer.out).get(job_id)
        if job is None:
            kind = SchedulerDown if answer.trouble is Trouble.AWAY else SubmissionError
            raise kind(f"allocation {job_id} cannot be asked for: {answer.error}")
        folder = _next(run)
        payload.make_folder(folder)
        said = {
            "job_id": job_id,
            "work_dir": job.folder or "/",
            "submitted_s": job.submitted_s,
        }
        payload.write_json(folder / driver.HELD_JSON, said)
        return held_in(run)[-1]

    def _refuse_faults(self, request: Request) -> None:
        found = faults(
            nodelist=request.nodelist,
            resources=request.resources,
            environ=self._environ,
            run=self._run,
        )
        if found:
            raise SubmissionError("; ".join(found))

    def _drive(self, held: Held) -> None:
        """Start a driver beside us, unless one runs; with the environment of a login."""
        starts, now_s = self._starts[held.folder], time.monotonic()
        if (starts and now_s - starts[-1] < _START_S) or held.is_driven:
            return
        said = held.folder / "driver.txt"
        if len(starts) >= _STARTS and not held.word.get("took"):
            last = owned.read_text(said).strip()
            raise SubmissionError(
                f"the driver of allocation {held.job_id} ends as soon as it starts: "
                f"{last[-500:]!r}; see {said}"
            )
        starts.append(now_s)
        script = held.folder / "driver.sh"
        words = [sys.executable, "-I", "-S", driver.__file__, str(held.folder)]
        lines = (f". {shlex.quote(str(LOGIN))}", "unset SLURM_JWT", f"exec {shlex.join(words)}")
        owned.write_bytes(script, "\n".join(("#!/bin/bash", *lines, "")).encode())
        dropped = set(unneeded_names(os.environ))
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with os.fdopen(owned.open_file(said, append), "ab") as file:
            # its parent is gone at once: the driver outlives the session, and warns none of its end
            subprocess.run(
                ["/bin/sh", "-c", 'setsid /bin/bash "$1" &', "sh", str(script)],
                env={name: value for name, value in os.environ.items() if name not in dropped},
                cwd=held.folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                check=True,
            )
        _log.info("started a driver of allocation %s", held.job_id)

    # -- where an attempt stands ------------------------------------------------------------------

    def _standing(self, folder: Path, allocations: Sequence[tuple[Held, Outcome]]) -> Outcome:
        taken = read(folder / driver.TAKEN, driver.TOOK)
        if taken is None:
            found = _unreadable(folder) or self._in_queue(folder, allocations)
            if not found.state.is_final:
                return found
            # no later allocation may run what has an outcome
            (folder / payload.CANCEL).touch()
            if (taken := read(folder / driver.TAKEN, driver.TOOK)) is None:
                return found
        held, said = next(
            (pair for pair in allocations if pair[0].folder.name == taken["held"]),
            (None, Outcome(state=State.LOST, reason="its allocation is not known")),
        )
        word = _word(folder / driver.ENDED)
        now = self._ended(folder, taken, word, held, said) or _running(folder, said)
        return dataclasses.replace(now, allocation=taken["allocation"])

    def _in_queue(self, folder: Path, allocations: Sequence[tuple[Held, Outcome]]) -> Outcome:
        """Say why an attempt has not begun."""
        if (folder / payload.CANCEL).exists():
            return Outcome(state=State.CANCELLED, reason="cancelled before it began")
        for held, said in allocations:
            if said.state is State.RUNNING and held.takes:
                return Outcome(
                    state=State.PENDING, reason=f"waits for its turn in allocation {held.job_id}"
                )
        if not allocations:
            return Outcome(state=State.PENDING, reason="waits for an allocation")
        held, said = allocations[-1]
        if not said.state.is_final:
            return dataclasses.replace(
                said,
                state=State.PENDING,
                reason=f"allocation {held.job_id}: {said.reason}",
                start_s=None,
            )
        if held.job_id == self._environ.get(JOB_VARIABLE, held.job_id):
            # the next attempt says that no allocation is left
            why = f"allocation {held.job_id} was over before it began: {said.reason}"
            return Outcome(state=State.PREEMPTED, reason=why)
        return Outcome(state=State.PENDING, reason="waits for another allocation")

    def _ended(
        self,
        folder: Path,
        taken: Mapping[str, Any],
        word: Mapping[str, Any] | None,
        held: Held | None,
        said: Outcome,
    ) -> Outcome | None:
        """Return how a step ended; None while it runs, or while that is not certain."""
        job_id = taken["allocation"]
        if word is not None and word["code"] == 0:
            done = Outcome(state=State.COMPLETED, start_s=taken["at_s"], end_s=word["end_s"])
            return ended(SlurmJob(job_id=job_id, outcome=done), folder)
        if said.state.is_final:
            until_s = said.end_s or math.inf
            ended_s = math.inf if word is None else word["end_s"]
            if ended_s > until_s - _BEFORE_S:
                cut = _with_allocation(folder, taken, said)
                is_begun = any(folder.glob("claimed*.json"))
                # read as a person's cancel it would stop the sweep
                if cut.state is State.CANCELLED and not is_begun:
                    why = f"allocation {job_id} was over before it began: {said.reason}"
                    return dataclasses.replace(cut, state=State.PREEMPTED, reason=why)
                return cut
        if word is None:
            return None
        if not said.state.is_final and not self._now(held).reason.startswith("RUNNING"):
            return None  # the allocation ends too, and that may be why
        return ended(SlurmJob(job_id=job_id, outcome=_failed(folder, taken, word)), folder)

    def _now(self, held: Held | None) -> Outcome:
        """Return where an allocation stands by Slurm's word of just now; unknown is lost."""
        if held is None:
            return Outcome(state=State.LOST)
        job = parse_scontrol(self._run(["scontrol", "show", "job", "-o", held.job_id]).out)
        known = job.get(held.job_id)
        return Outcome(state=State.LOST) if known is None else known.outcome


def step_words(request: Request) -> tuple[str, ...]:
    """Return how an attempt is started inside an allocation, whose id the driver adds.

    Raises:
        ConfigError: an option of the resources is ours to set.
    """
    return ("srun", *_entry(request)["srun"])


def _entry(request: Request, digest: str = SHOWN_DIGEST) -> dict[str, Any]:
    """Return what the driver has to know of a trial."""
    folder, resources, nodes = request.folder.resolve(), request.resources, request.nodelist
    arguments_of(request)  # raises where an option, or the name, cannot be
    _, srun = site_options(resources.options)
    count = len(nodes) or resources.nodes or 1
    words = [
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
        *payload.quick_words(folder, digest),
    ]
    return {
        "folder": str(folder),
        "nodes": list(nodes),
        "step": request.job_name,
        "limit_s": resources.time_limit_s,
        "srun": words,
    }


def _next(run: Path) -> Path:
    """Return the folder of another allocation: of a number that none has, readable or not."""
    return run / f"held-{1 + max(map(number_of, run.glob('held-*')), default=0)}"


def _is_taken(folder: Path) -> bool:
    """Whether an allocation has taken an attempt."""
    return (folder / driver.TAKEN).exists()


def _refuse_full(held: Held) -> None:
    """Raise where an allocation takes no further trial."""
    if held.over or held.word.get("is_full"):
        why = held.word.get("why") or "no time is left for another trial"
        left = held.over.reason if held.over else why
        raise SubmissionError(
            f"allocation {held.job_id} takes no further trial: {left}. Start another "
            "salloc and run again: what was measured stays"
        )


def _unreadable(folder: Path) -> Outcome | None:
    """Return the failure of an attempt of which it cannot be read which allocation took it."""
    path = folder / driver.TAKEN
    if not is_damaged(path, driver.TOOK):
        return None
    said = f"{path}: it does not say which allocation took the attempt"
    return Outcome(state=State.FAILED, reason=said, is_unreadable=True)


def _word(path: Path) -> Mapping[str, Any] | None:
    """Return how srun ended; of a word that cannot be read when it was said, and no good end."""
    word: Mapping[str, Any] | None = read(path, driver.CAME_TO)
    if word is None and is_damaged(path, driver.CAME_TO):
        return {"code": -1, "end_s": path.lstat().st_mtime}
    return word


def _running(folder: Path, said: Outcome) -> Outcome:
    started, claim = read_started(folder), read_claim(folder)
    if started is None:
        reason = "starting" if claim is None else "its payload has started"
        return Outcome(state=State.PENDING, reason=reason)
    ranks = read_outcomes(folder)
    reason = "its ranks have ended; the step has not" if 0 in ranks else said.reason
    return Outcome(
        state=State.RUNNING,
        nodes=said.nodes,
        start_s=started.at_s,
        reason=reason,
        is_suspended=said.is_suspended,
    )


def _failed(folder: Path, taken: Mapping[str, Any], word: Mapping[str, Any]) -> Outcome:
    """Return how a step ended whose srun did not end well, by what that said."""
    code, ranks = word["code"], read_outcomes(folder)
    at = {"start_s": taken["at_s"], "end_s": word["end_s"]}
    if is_whole(folder, list(ranks.values())):
        return Outcome(state=State.COMPLETED, reason="srun was lost", **at)
    if code < 0:  # srun itself was killed, and the step has left the nodes
        state = State.FAILED if ranks else State.LOST
        return Outcome(state=state, reason="srun was killed", **at)
    said = "".join(_said(folder))
    cancelled = _CANCELLED.search(said)
    is_own = any(each.state in (State.FAILED, State.TIMEOUT) for each in ranks.values())
    if cancelled and cancelled["limit"]:
        return Outcome(state=State.TIMEOUT, reason="TIMEOUT: the step's limit", **at)
    if cancelled and _BY_SRUN not in said and not is_own:
        return Outcome(state=State.CANCELLED, reason=f"CANCELLED: {cancelled[0]}", **at)
    # as a failure of the program the second one would drop the profile
    if not any(folder.glob("claimed*.json")):  # which says nothing of the trainer
        lines = [each.strip() for each in said.splitlines() if each.strip()]
        own = [each for each in lines if not each.startswith("srun: ")] or lines or [""]
        why = f"its step did not begin, srun ended with {code}: {own[-1]:.300}"
        return Outcome(state=State.LOST, reason=why, **at)
    signal = max(code - _SHELL_SIGNAL, 0) or None
    return Outcome(
        state=State.FAILED,
        exit_code=None if signal else code,
        signal=signal,
        reason=f"FAILED: srun ended with {code}",
        **at,
    )


# how an allocation ended -> what that is for a trial that was cut off by it
_CUT_OFF: Mapping[State, State] = {
    State.TIMEOUT: State.PREEMPTED,  # not the trial's own limit
    State.COMPLETED: State.LOST,
    State.FAILED: State.LOST,
}


def _with_allocation(folder: Path, taken: Mapping[str, Any], said: Outcome) -> Outcome:
    """Return how an attempt ended whose allocation is over: by itself, or with that."""
    ranks = list(read_outcomes(folder).values())
    reason = f"allocation {taken['allocation']} ended: {said.reason}"
    state = _CUT_OFF.get(said.state, said.state)
    if is_whole(folder, ranks):
        state, reason = State.COMPLETED, ""
    cut = dataclasses.replace(
        said, state=state, reason=reason, start_s=taken["at_s"], exit_code=None, signal=None
    )
    return ended(SlurmJob(job_id=taken["allocation"], outcome=cut), folder)


def _said(folder: Path) -> Iterator[str]:
    for path in sorted((folder / SCRIPTS).glob("*_log.err")):
        with contextlib.suppress(OSError):
            yield owned.read_text(path)


def _place(queue: Path, name: str) -> int | None:
    found = [_number(each) for each in queue.glob("[0-9]*-*.json")
             if each.name.partition("-")[2] == f"{name}.json"]  # fmt: skip
    return found[0] if found else None


def _number(path: Path) -> int:
    return int(path.name.partition("-")[0])
