"""Run the trials of a queue inside one allocation, each as an srun step, in the queue's order.

It runs beside the session, inside a user's own `salloc` or `sbatch`. Like the payload it is
standard library only and imports nothing of ours but the payload's file, so a node needs an
interpreter alone. It judges no trial: it writes down how srun ended, and what that means is worked
out elsewhere.

The folder of an allocation (its name is `held-<number>`) and the queue beside it, written by the
session (<) and by the driver (>):

    < held.json          the allocation's job id, where the driver was started
    < end                asks for no further step
    > driving            whose lock is held by the driver; so there is one
    > driver.json        how far it is: see `_Word`
    < ../steps/<number>-<attempt>.json   one trial: folder, nodes, words of srun, limit
    > <attempt>/taken.json   written once, before srun is started: by which allocation
    > <attempt>/srun.json    its process, for a driver that comes after this one
    > <attempt>/ended.json   srun's exit status, after its step has left the nodes

A step never stands beside another on a node: the driver starts none there, and srun without
`--overlap` waits where one that it does not know of still runs. A step that has not left its nodes
after its srun has ended keeps them.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field  # not ours: this file runs by itself
from pathlib import Path
from typing import Any

HELD_JSON, DRIVER_JSON, END, DRIVING = "held.json", "driver.json", "end", "driving"
STEPS = "steps"  # the queue, beside the folders of its allocations
TAKEN, SRUN, ENDED = "taken.json", "srun.json", "ended.json"
STEERING = ("SBATCH_", "SQUEUE_", "SACCT_", "SINFO_", "SCONTROL_", "SCANCEL_", "SRUN_", "SLURM_")
# without the token SLURM_JWT, which the session's own commands have: trainers inherit what srun is
# given, and inside a job Slurm knows its user without one
KEPT = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS"})
Kinds = Mapping[str, type | tuple[type, ...]]  # name -> of which kind its value is
_NUMBER = (int, float)
_LAST_S = 1 << 37  # seconds since the epoch, of the year 6325
TOOK: Kinds = {"held": str, "allocation": str, "step": str, "at_s": _NUMBER}
CAME_TO: Kinds = {"code": int, "end_s": _NUMBER}
WORD: Kinds = {"until_s": (*_NUMBER, type(None)), "longest_s": _NUMBER, "took": int,
               "is_full": bool, "why": str}  # fmt: skip
_ENTRY: Kinds = {"folder": str, "nodes": list, "step": str, "limit_s": _NUMBER, "srun": list}
_PROCESS: Kinds = {"host": str, "boot_id": str, "pid": int, "start_ticks": int}
IDLE_S = 300.0  # with nothing to run, until it ends
SPARE = 1.25  # times the longest step so far: what the next one may take
SPARE_S = 20.0  # and the end of an allocation on top
_POLL_S = 0.1
_ASK_S = 1.0  # between two looks whether a step has left its nodes, or the allocation runs
_FRESH_S = 2.0  # for which its end is believed to be as Slurm said
_LOCK_S = 2.0  # a session that looks whether a driver runs has the lock for a moment
_AGAIN_S = 10.0  # after a step that could not begin, until another is tried
_RUNNING = "RUNNING"
# of a job that may yet run a step
_ALIVE = frozenset({_RUNNING, "", "PENDING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED",
                    "SIGNALING", "RESIZING", "STAGE_OUT"})  # fmt: skip
_UNKNOWN = "Invalid job id"  # of a job that Slurm has forgotten
_COMMAND_S = 60.0
_LAST_WORDS = 2000  # characters of a command's error that are kept


def _payload() -> Any:
    """Return the payload's module, from its file where nothing of ours can be imported."""
    if __package__:
        from pytest_xlatune.executors import payload

        return payload
    path = Path(__file__).parents[1] / "payload.py"
    spec = importlib.util.spec_from_file_location("payload", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is missing")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(slots=True, kw_only=True)
class _Step:
    """A trial that was taken and has not ended."""

    name: str  # of the attempt
    folder: Path
    nodes: frozenset[str]  # () are all
    step: str  # its name, as squeue shows it
    srun: subprocess.Popen[bytes] | None  # None: adopted from a driver that is dead
    began_s: float
    code: int | None = None  # of srun, once that is over
    asked_s: float = 0.0  # when squeue was asked last whether it has left its nodes
    end_s: float = 0.0  # when it was seen to have left them


@dataclass(slots=True, kw_only=True)
class Driver:
    """One allocation's driver; see the module."""

    held: Path
    job_id: str
    payload: Any
    running: list[_Step] = field(default_factory=list)
    until_s: float | None = None  # the end of the allocation, seconds since the epoch
    longest_s: float = 0.0
    took: int = 0
    is_full: bool = False  # nothing further fits into the time that is left, or can begin
    why: str = ""  # where that is not the time
    state: str = ""  # of the allocation, Slurm's word; "" while Slurm has not said it
    is_answered: bool = False  # whether Slurm said it when it was asked last
    _over: set[str] = field(default_factory=set)  # entries of the queue that are no more ours
    _told: dict[str, Any] = field(default_factory=dict)
    _not_before_s: float = 0.0  # when a step may be tried again
    _asked_s: float = 0.0  # when Slurm was asked last for the allocation
    _started_s: float = 0.0  # when a step was started last
    _entries: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # of the queue, as read
    _well_s: float = -1.0  # when a step was seen to have ended well, so that the allocation ran

    def drive(self) -> None:
        """Take and end steps until nothing is left to do, or no time."""
        self._look()
        self._adopt()
        idle_since_s = time.monotonic()
        well: list[_Step] = []
        while True:
            for each, code in self._ended():
                if code:  # it may keep others from beginning
                    self._close(each, code)
                else:
                    well.append(each)
            started = self._start()
            if started:
                self._started_s = time.monotonic()  # all else waits while it starts up
            else:
                while well:
                    self._close(well.pop(0), 0)
                self._tell()
                if self.running and self._is_quiet():
                    self._look()  # when none waits for it, so that the next start need not
            if self.running or started:
                idle_since_s = time.monotonic()
            elif self._is_over():
                return
            elif time.monotonic() - idle_since_s > IDLE_S:
                if self.is_answered:
                    return
                self._look()  # while the controller is away, trials may wait for its answer
                idle_since_s = time.monotonic()
            self._wait()

    def _is_quiet(self) -> bool:
        """Whether what Slurm said will soon be old, and no step is just starting up."""
        now_s = time.monotonic()
        return now_s - self._asked_s > _FRESH_S / 2 and now_s - self._started_s > _POLL_S

    def _is_over(self) -> bool:
        return self.is_full or self.state not in _ALIVE or (self.held / END).exists()

    def _still_runs(self) -> bool:
        """Whether the allocation can run a step; one that has ended takes no trial."""
        now_s = time.monotonic()
        is_known = self.is_answered and self.state == _RUNNING
        is_fresh = now_s - self._asked_s < _FRESH_S
        ran_just_now = self._well_s > max(self._asked_s, now_s - _POLL_S)
        if is_known and is_fresh and ran_just_now:
            return True
        # what ran a moment ago may have ended since; what did not is asked less often
        if is_known or now_s - self._asked_s > _ASK_S:
            self._look()
        return self.is_answered and self.state == _RUNNING

    def _wait(self) -> None:
        """Sleep until an srun ends, or a moment."""
        descriptors = []
        try:
            for each in self.running:
                if each.srun is not None and each.code is None:
                    with contextlib.suppress(ProcessLookupError):
                        descriptors.append(os.pidfd_open(each.srun.pid))
            if descriptors:
                select.select(descriptors, [], [], _POLL_S)
            else:
                time.sleep(_POLL_S)
        finally:
            for each_one in descriptors:
                os.close(each_one)

    # -- steps that end ---------------------------------------------------------------------------

    def _ended(self) -> list[tuple[_Step, int]]:
        """Take the steps that have left their nodes out of those that run."""
        found = []
        for each in list(self.running):
            if each.srun is not None and each.code is None:
                each.code = each.srun.poll()
                if each.code is None:
                    continue
            elif each.srun is None and self._has_srun(each.folder):
                continue
            if each.code == 0:
                self._well_s = time.monotonic()
            if each.code == 0 or self._has_left(each):
                each.end_s = time.time()
                if each.code == 0:
                    self.longest_s = max(self.longest_s, each.end_s - each.began_s)
                self.running.remove(each)
                found.append((each, -1 if each.code is None else each.code))
        return found

    def _has_srun(self, folder: Path) -> bool:
        """Whether the srun that a dead driver started here still runs."""
        known = self._read(folder / SRUN, _PROCESS)
        if known is None or [known["host"], known["boot_id"]] != [*self.payload.boot()]:
            return False
        return bool(self.payload.start_ticks(known["pid"]) == known["start_ticks"])

    def _has_left(self, each: _Step) -> bool:
        """Whether a step whose srun did not end well, or is not ours, holds no node any more."""
        now_s = time.monotonic()
        if now_s - each.asked_s < _ASK_S:
            return False
        each.asked_s = now_s
        asked = _run(["squeue", "-h", "-s", "-j", self.job_id, "-o", "%j"])
        return asked is not None and each.step not in asked.split()

    def _close(self, each: _Step, code: int) -> None:
        if code == 0 or any(each.folder.glob("claimed*.json")):
            self._not_before_s = 0.0
        elif not (each.folder / self.payload.CANCEL).exists():
            self._could_not_begin()
        if code and not (each.folder / self.payload.name_of("claimed")).exists():
            (each.folder / self.payload.CANCEL).touch()  # a payload that comes late starts nothing
        self.payload.write_json(each.folder / ENDED, {"code": code, "end_s": each.end_s})
        self.payload.close_files(each.folder / "submitit")

    def _could_not_begin(self) -> None:
        """Wait a while before the next step; where that cannot begin either, take no further one.

        A controller that was killed and restarted may refuse steps of an allocation for good.
        """
        now_s = time.monotonic()
        if now_s < self._not_before_s:
            return  # it was tried at the same time
        if self._not_before_s:
            self.is_full, self.why = True, "srun could not start a step, twice"
        self._not_before_s = now_s + _AGAIN_S

    def _adopt(self) -> None:
        """Take over what a driver that was killed had started here."""
        for name, entry in self._queue():
            taken = self._read(Path(entry["folder"]) / TAKEN, TOOK)
            if taken is None:
                continue
            self._over.add(name)
            if taken["held"] == self.held.name and not (Path(entry["folder"]) / ENDED).exists():
                self.took += 1
                self.running.append(self._step(name, entry, None, began_s=taken["at_s"]))

    # -- steps that begin -------------------------------------------------------------------------

    def _start(self) -> int:
        """Start each trial whose nodes are free; one that waits lets none past on its nodes."""
        busy: set[str] = set()
        for each in self.running:
            busy |= each.nodes or {""}
        started = 0
        for name, entry in self._queue():
            folder, nodes = Path(entry["folder"]), frozenset(entry["nodes"])
            if (folder / self.payload.CANCEL).exists():
                self._over.add(name)
                continue
            if "" in busy or (busy and not nodes) or not busy.isdisjoint(nodes):
                busy |= nodes or {""}
                continue
            if self._is_over() or time.monotonic() < self._not_before_s:
                return started
            if not self._still_runs() or not self._fits(entry["limit_s"]):
                return started
            busy |= nodes or {""}
            is_taken = self._take(folder, entry["step"])
            self._over.add(name)
            if is_taken:
                self.running.append(self._launch(name, entry))
                self.took += 1
                started += 1
        return started

    def _queue(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """Yield what no allocation has taken, as far as is known, in order."""
        names = sorted(each.name for each in (self.held.parent / STEPS).glob("[0-9]*.json"))
        for name in names:
            if name in self._over:
                continue
            entry = self._entries.get(name) or self._entry(name)
            if entry is not None:
                self._entries[name] = entry  # it is written once
                yield name, entry

    def _entry(self, name: str) -> Any:
        """Return an entry of the queue; None where it is not ours, and then it is left out."""
        path = self.held.parent / STEPS / name
        try:
            entry = json.loads(self.payload.owned.read_bytes(path))
        except self.payload.NotOursError as error:
            why = str(error)
        except (OSError, ValueError, RecursionError):
            return None
        else:
            if not is_of(entry, _ENTRY):
                return None
            if Path(entry["folder"]).parent == self.held.parent:
                return entry
            why = f"{path}: its folder does not lie beside the queue"
        sys.stderr.write(f"left out: {why}\n")
        self._over.add(name)
        return None

    def _fits(self, limit_s: float) -> bool:
        """Whether a trial fits into the time that is left; a person may have given more."""
        if not self._has_time(limit_s):
            self._look()
            self.is_full = not self._has_time(limit_s)
        return not self.is_full

    def _has_time(self, limit_s: float) -> bool:
        if self.until_s is None:
            return True
        known_s = self.longest_s * SPARE + SPARE_S
        return time.time() + (min(limit_s, known_s) if self.longest_s else limit_s) <= self.until_s

    def _take(self, folder: Path, step: str) -> bool:
        """Write down that this allocation runs the attempt; False where another does."""
        said: dict[str, Any] = {"held": self.held.name, "allocation": self.job_id, "step": step}
        said["at_s"] = time.time()
        part = folder / f".{TAKEN}.{os.getpid()}"
        self.payload.write_json(part, said)
        try:
            os.link(part, folder / TAKEN)  # unlike a rename it fails where the name is taken
        except FileExistsError:
            return False
        finally:
            part.unlink()
        return True

    def _launch(self, name: str, entry: Mapping[str, Any]) -> _Step:
        folder = Path(entry["folder"])
        log = folder / "submitit" / f"{self.job_id}_0_log.err"
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        with os.fdopen(self.payload.owned.open_file(log, append), "ab") as said:
            try:
                srun = subprocess.Popen(
                    ["srun", f"--jobid={self.job_id}", *entry["srun"]],
                    env=_environment(),
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                said.write(f"srun could not be started: {error}\n".encode())
                step = self._step(name, entry, None, began_s=time.time())
                step.code = 127
                return step
        self.payload.write_json(folder / SRUN, self.payload.identity(srun.pid))
        return self._step(name, entry, srun, began_s=time.time())

    def _step(
        self,
        name: str,
        entry: Mapping[str, Any],
        srun: subprocess.Popen[bytes] | None,
        *,
        began_s: float,
    ) -> _Step:
        return _Step(
            name=name,
            folder=Path(entry["folder"]),
            nodes=frozenset(entry["nodes"]),
            step=entry["step"],
            srun=srun,
            began_s=began_s,
        )

    # -- words ------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Ask Slurm how the allocation is and when it ends; without an answer nothing changes."""
        said = _run(["scontrol", "show", "job", "-o", self.job_id])
        self._asked_s, self.is_answered = time.monotonic(), said is not None
        if said is None:
            return
        # JobState=RUNNING    JobState=CANCELLED
        self.state = said.partition(" JobState=")[2].partition(" ")[0] or "UNKNOWN"
        # EndTime=1795173260    EndTime=Unknown
        end = said.partition(" EndTime=")[2].partition(" ")[0]
        self.until_s = float(end) if end.isdecimal() else None

    def _read(self, path: Path, kinds: Kinds) -> Any:
        return _read(path, kinds, self.payload)

    def _tell(self) -> None:
        word = {
            "until_s": self.until_s,
            "longest_s": self.longest_s,
            "took": self.took,
            "is_full": self.is_full,
            "why": self.why,
        }
        if word != self._told:
            self.payload.write_json(self.held / DRIVER_JSON, word)
            self._told = word


def _environment() -> dict[str, str]:
    """Return our own environment without what would steer Slurm's commands."""
    return {k: v for k, v in os.environ.items() if not k.startswith(STEERING) or k in KEPT}


def _run(argv: list[str]) -> str | None:
    """Return what a command prints, "" for a job that Slurm has forgotten; None where it fails."""
    try:
        done = subprocess.run(
            argv,
            env={**_environment(), "LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_COMMAND_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        sys.stderr.write(f"{' '.join(argv)}: {done.stderr[-_LAST_WORDS:]}\n")
        return "" if _UNKNOWN in done.stderr else None
    return done.stdout


def is_of(found: Any, kinds: Kinds) -> bool:
    """Whether a value is a mapping that has each of these names, with a value of its kind."""
    is_mapping = isinstance(found, dict) and all(
        isinstance(found.get(name), kind) for name, kind in kinds.items()
    )
    times = ("at_s", "end_s")
    return is_mapping and all(0 <= found[name] < _LAST_S for name in times if name in kinds)


def _read(path: Path, kinds: Kinds, payload: Any) -> Any:
    """Return a file's mapping; None where it has none of these kinds, or is not ours."""
    try:
        found = json.loads(payload.owned.read_bytes(path))
    except payload.NotOursError as error:
        sys.stderr.write(f"{error}\n")
        return None
    except (OSError, ValueError, RecursionError):
        return None
    return found if is_of(found, kinds) else None


def main(held: str) -> None:
    """Drive the allocation of a folder, unless another driver does."""
    folder, payload = Path(held), _payload()
    said = _read(folder / HELD_JSON, {"job_id": str}, payload)
    if said is None:
        raise SystemExit(f"{folder / HELD_JSON} cannot be read: nothing is started here")
    job_id = said["job_id"]
    with os.fdopen(payload.owned.open_lock(folder / DRIVING)) as lock:
        until_s = time.monotonic() + _LOCK_S
        while not _locked(lock.fileno()):
            if time.monotonic() > until_s:
                return
            time.sleep(_POLL_S)
        Driver(held=folder, job_id=job_id, payload=payload).drive()


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


if __name__ == "__main__":
    main(*sys.argv[1:])
