"""Writes the spec into the folder of an attempt, and reads there what the payload wrote."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from pytest_xlatune import secure_files
from pytest_xlatune.executors import payload
from pytest_xlatune.launchers.command import WORKERS
from pytest_xlatune.logs.standstill import HangLook, Standstill, standstill
from pytest_xlatune.model.environment import NodeEnvironment
from pytest_xlatune.model.errors import ConfigError, LedgerError, XlatuneError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.hosts import expand
from pytest_xlatune.model.record import Json, Record, Time, read_json
from pytest_xlatune.model.redact import (
    command_without_secrets,
    hide,
    hide_assignments,
    secrets_of,
    without_secrets,
)
from pytest_xlatune.model.result import Action, Finding, Outcome, State
from pytest_xlatune.model.rotation import JOURNAL, RANK
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.workers import probe_environment

DEVICES = "devices"  # the last word of a probe that asks JAX for the devices
_JOURNALS = JOURNAL.replace(RANK, "*")  # a pattern of the journals of all ranks of a rotation
_OUR_PROGRAMS = (payload.PROBE, *WORKERS)  # the names of the programs of `workers` in a spec
_MOST_BYTES = 1 << 24  # the largest file that is read back; ours have some kilobytes
_QUIET_S = 60.0  # a log that has not grown for this long may be that of a rank that hangs
FOLLOWED = "followed-job.json"  # written if the trial's process itself submits a job and follows it
_HARD = "hard:"  # the beginning of a line of the site's command that names a hard error
_MOST_LINES = 20  # the most lines of a node's report that the ledger keeps
_MOST_CHARS = 300  # the most characters that it keeps of such a line
_R = TypeVar("_R", bound=Record)


class ProcessRecord(Record, frozen=True, kw_only=True):
    """A process, recorded so that a later process with the same id is not taken for it."""

    host: str  # where it runs
    boot_id: str  # the id of the boot that it belongs to
    pid: int  # its id
    start_ticks: int  # when it started, in clock ticks since boot
    at_s: Time  # when this was recorded, in seconds since the epoch by the host's clock

    def __post_init__(self) -> None:
        if self.pid < 1:
            raise ConfigError(f"pid is {self.pid}, expected the id of a process")

    @property
    def is_here(self) -> bool:
        """Whether this machine can tell if the process runs."""
        return self.host == os.uname().nodename

    @property
    def is_alive(self) -> bool:
        """Whether the process runs here and now."""
        now = payload.identity(self.pid)
        return now["start_ticks"] > 0 and now.items() <= self.to_json().items()


def start_detached(
    argv: Sequence[str], environment: Mapping[Any, Any], cwd: Path, *, log: Path
) -> int:
    """Start a program in a session of its own, as a child of nobody; return its process id.

    Its output is appended to `log`.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    with os.fdopen(secure_files.open_file(log, flags), "ab") as file:
        done = subprocess.run(
            ["/bin/sh", "-c", 'setsid "$@" >&2 & echo $!', "sh", *argv],
            env=environment,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=file,
            check=True,
        )
    return int(done.stdout)


def write_spec(folder: Path, spec: LaunchSpec) -> str:
    """Create the folder and the `spec.json` that the payload reads; return the spec's digest.

    What holds a secret goes into a separate file, which is deleted when the attempt is over. A
    process list shows the digest, so that file has a random text too: the digest then reveals
    nothing about the secrets. That text is used again if the folder has one, so that an equal spec
    has the same digest, because the job of that spec may have been accepted.
    """
    secure_files.make_folder(folder)
    plain, secrets = _split_secrets(spec)
    spec_bytes, secret_bytes = json.dumps(plain).encode("ascii"), b""
    with secure_files.Folder(folder) as opened:
        if any(secrets.values()):
            salt = os.urandom(16).hex()
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
                salt = str(read_json(opened.read(payload.SECRETS))["salt"])
            secret_bytes = json.dumps({**secrets, "salt": salt}).encode("ascii")
            opened.write(payload.SECRETS, secret_bytes, mode=0o600)
        opened.write(payload.SPEC, spec_bytes)
    return payload.digest_of(spec_bytes, secret_bytes)


def _split_secrets(spec: LaunchSpec) -> tuple[dict[str, Json], dict[str, Any]]:
    """Return a spec with a mark in place of every text that holds a secret, and what holds them."""
    known = secrets_of(spec.env)

    def marked(text: str, redacted: str) -> str:
        return text if text == hide(redacted, known) else payload.SECRET_MARK

    shown = zip(spec.argv, command_without_secrets(spec.argv), strict=True)
    argv = [marked(word, redacted) for word, redacted in shown]
    redacted_env = without_secrets(spec.env)
    env = {name: marked(value, redacted_env[name]) for name, value in spec.env.items()}
    files = {
        # our programs hold no secret, and other ranks may read them when rank 0 has ended
        name: text if name in _OUR_PROGRAMS else marked(text, hide_assignments(text))
        for name, text in spec.files.items()
    }
    secrets = {
        "argv": [*spec.argv] if payload.SECRET_MARK in argv else [],
        "env": {name: spec.env[name] for name in env if env[name] == payload.SECRET_MARK},
        "files": {name: spec.files[name] for name in files if files[name] == payload.SECRET_MARK},
    }
    return {**spec.to_json(), "argv": argv, "env": env, "files": files}, secrets


def read_spec(folder: Path) -> LaunchSpec | None:
    """Return the spec that the payload was given; None if it cannot be read."""
    try:
        return read_record(folder / payload.SPEC, LaunchSpec)
    except (LedgerError, OSError):
        return None


def read_claim(folder: Path) -> ProcessRecord | None:
    """Return the process of the payload that runs rank 0; None before there is one."""
    return _process(folder, "claimed")


def read_started(folder: Path) -> ProcessRecord | None:
    """Return the process of the trainer of rank 0; None before it is started."""
    return _process(folder, "started")


def _process(folder: Path, kind: str) -> ProcessRecord | None:
    try:
        return read_record(folder / payload.name_of(kind), ProcessRecord)
    except LedgerError:  # how the attempt ended is known from its outcome or from the scheduler
        return None


def read_outcomes(folder: Path) -> Mapping[int, Outcome]:
    """Return the outcome of each rank that has ended so far, by rank; 0 is the first.

    A rank whose file cannot be read has failed, and its outcome says so by `is_unreadable`.
    """
    outcomes = {}
    # rank 0's file is opened in any case, which fails if the folder is another user's
    first = folder / payload.name_of("outcome")
    for rank, path in [(0, first), *sorted(_by_rank(folder.glob("outcome.*.json")).items())]:
        try:
            if (outcome := read_record(path, Outcome)) is not None:
                outcomes[rank] = outcome
        # no exception is raised, because it would stop every test of every session
        except LedgerError as error:
            reason = str(error)
            outcomes[rank] = Outcome(state=State.FAILED, reason=reason, is_unreadable=True)
    return outcomes


def with_probe(spec: LaunchSpec, *, devices: bool, health: tuple[str, ...] = ()) -> LaunchSpec:
    """Return a spec whose trial also reports what it ran on.

    With `devices` the probe also asks JAX for the devices. `health` is the site's command that
    reports what a node's log says; () if there is none.

    If the probe needs another container, it runs only with `devices`. If the launcher names no
    probe, the trial reports nothing, because the trainer may run on other nodes than the payload.
    """
    spec = msgspec.structs.replace(spec, node_health=health) if health else spec
    if not spec.probe:
        return spec
    probe = () if spec.is_probe_dear else spec.probe
    if devices:
        probe = (*spec.probe, DEVICES)
    program = _program(Path(probe_environment.__file__).name)
    return msgspec.structs.replace(spec, probe=probe, files={**spec.files, payload.PROBE: program})


def with_worker(spec: LaunchSpec) -> LaunchSpec:
    """Return the spec of a rotation with the text of its worker; any other spec is unchanged."""
    workers = [name for name in WORKERS if name in spec.files]
    files = {**spec.files, **{name: _program("rotate.py") for name in workers}}
    return msgspec.structs.replace(spec, files=files)


def _program(name: str) -> str:
    """Return the text of a program of `workers`; importing the program would start its work."""
    return Path(probe_environment.__file__).with_name(name).read_text(encoding="utf-8")


class NodeHealth(Record, frozen=True, kw_only=True):
    """What the site's command reported about a node: `health.json`."""

    name: str  # of the node
    problem: str  # why the command failed; "" if it succeeded
    lines: tuple[str, ...]


def _records(folder: Path, pattern: str, kind: type[_R]) -> list[_R]:
    """Return the records of an attempt's nodes; an unreadable one must not cost the trial."""
    records = []
    for path in sorted(folder.glob(pattern)):
        with contextlib.suppress(LedgerError, OSError):
            records.append(read_record(path, kind))
    return [record for record in records if record is not None]


def read_environments(folder: Path) -> tuple[NodeEnvironment, ...]:
    """Return the environments of the nodes that the attempt ran on; () if it reported none."""
    environments = _records(folder, "environment*.json", NodeEnvironment)
    return tuple(sorted(environments, key=lambda environment: environment.name))


def node_findings(folder: Path) -> tuple[Finding, ...]:
    """Return what the site's command reported about an attempt's nodes; () if there is none.

    A line `hard: ...` names a hard error, whatever the exit status of the command is. If the
    command succeeded, all the remaining lines are findings too; if it failed, the last of them
    says why. The `source` of a finding is the node.
    """
    spec = read_spec(folder)
    if spec is None or not spec.node_health:
        return ()
    texts: list[tuple[FailureClass, str, str]] = []
    reports = _records(folder, "health*.json", NodeHealth)
    for report in reports:
        hard = [line for line in report.lines if line.lower().startswith(_HARD)][:_MOST_LINES]
        soft = [line for line in report.lines if not line.lower().startswith(_HARD)]
        if report.problem:
            why = ": ".join((report.problem, *soft[-1:]))
            texts.append((FailureClass.NODE_UNASKED, report.name, why))
            soft = []
        named = (line[len(_HARD) :].strip() for line in hard)
        texts += [(FailureClass.NODE_FAULT, report.name, line) for line in named]
        texts += [(FailureClass.NODE_SAID, report.name, line) for line in soft[:_MOST_LINES]]
    if not reports:
        why = "the command was not run: the job was ended, or its launcher runs it elsewhere"
        texts.append((FailureClass.NODE_UNASKED, "", why))
    return tuple(
        Finding(cls=cls, action=Action.NONE, text=text[:_MOST_CHARS], source=node)
        for cls, node, text in texts
    )


def ask_what_hangs(folder: Path) -> bool:
    """Ask each payload of an attempt to record what its processes do; return whether all did.

    A payload that has ended is not waited for, so the result is True if none runs.
    """
    started = _by_rank([*folder.glob("started*.json")])
    running = {rank for rank in started if not (folder / payload.name_of("outcome", rank)).exists()}
    if not running:
        return True
    if not (folder / payload.HUNG).exists():
        with contextlib.suppress(OSError):
            secure_files.write_bytes(folder / payload.HUNG, b"")
    return all((folder / payload.name_of("hang", rank)).exists() for rank in running)


def read_standstill(
    folder: Path, *, steps: Mapping[int, int], is_sure: bool = False
) -> Standstill | None:
    """Return which rank of a hanging attempt is behind; None if that is not known.

    `steps` is the last step of each rank. `is_sure` says that the attempt certainly hung, for
    example because its deadline ended it; otherwise its logs must have been quiet for `_QUIET_S`.
    """
    hang_looks = _records(folder, "hang*.json", HangLook)
    if not is_sure and not all(hang_look.quiet_s >= _QUIET_S for hang_look in hang_looks):
        return None
    first_look_s = min((hang_look.at_s for hang_look in hang_looks), default=0.0)
    ended = {
        rank: f"signal {outcome.signal}" if outcome.signal else f"exit {outcome.exit_code}"
        for rank, outcome in read_outcomes(folder).items()
        if outcome.end_s is not None and outcome.end_s < first_look_s
    }
    ranks = {*_by_rank(folder.glob("started*.json"))}
    return standstill(hang_looks, steps=steps, ended=ended, ranks=ranks)


def log_files(folder: Path) -> Mapping[int, Path]:
    """Return the logs that exist, by rank."""
    return dict(sorted(_by_rank(folder.glob("log.*.txt")).items()))


def journals(folder: Path) -> tuple[str, ...]:
    """Return the journals of the processes of a rotation, in the order of their ranks."""
    paths = sorted(_by_rank(folder.glob(_JOURNALS)).items())
    texts = (secure_files.read_bytes(path, most_bytes=_MOST_BYTES) for _, path in paths)
    return tuple(text.decode("utf-8", "replace") for text in texts)


def journal_bytes(folder: Path) -> int:
    """Return how many bytes the processes of a rotation have written; 0 before they begin."""
    return sum(path.lstat().st_size for path in folder.glob(_JOURNALS))


def _by_rank(paths: Iterable[Path]) -> dict[int, Path]:
    """Return files by the rank in their names; other files are left out."""
    by_rank = {}
    for path in paths:
        # log.12.txt    outcome.12.json    started.json (of rank 0)
        middle = path.name.split(".")[1:-1]
        rank = middle[0] if middle else "0"
        if re.fullmatch(r"[0-9]{1,9}", rank):
            by_rank[int(rank)] = path
    return by_rank


def with_followed_job(outcome: Outcome, folder: Path) -> Outcome:
    """Return an outcome with id, nodes and start of the job that the trial made, if it made one."""
    try:
        job = read_json_file(folder / FOLLOWED) or {}
        nodes = expand(job["nodes"]) if job.get("nodes") else outcome.nodes
        start_s = float(job["started_s"]) if job.get("started_s") else outcome.start_s
        return msgspec.structs.replace(
            outcome, job=str(job.get("job_id", "")), nodes=nodes, start_s=start_s
        )
    except (XlatuneError, OSError, ValueError, AttributeError, TypeError):
        return outcome  # the trial writes this file, so its content may be anything


def read_json_file(path: Path) -> Json | None:
    """Return the JSON of a file; None if there is none.

    Raises:
        LedgerError: the file is not ours, is too large, or holds no JSON.
        OSError: the file system does not answer.
    """
    try:
        text = secure_files.read_bytes(path, most_bytes=_MOST_BYTES)
    except FileNotFoundError:
        return None
    except secure_files.NotOursError as error:
        raise LedgerError(str(error)) from None
    except OSError as error:
        if error.errno not in secure_files.NO_FILE:
            raise
        raise LedgerError(f"{path}: {error.strerror}") from None
    try:
        data = read_json(text, is_strict=True)
    except ValueError as error:
        why = f" ({error})" if text else ""
        raise LedgerError(
            f"{path}: found {text[:60]!r}, expected JSON{why}; the file was damaged after it was "
            "written"
        ) from None
    return "null" if data is None else data  # None means that there is no file


def read_record(path: Path, kind: type[_R]) -> _R | None:
    """Return the record in a file; None if there is no file. Raises as `read_json_file` does."""
    data = read_json_file(path)
    try:
        return None if data is None else kind.from_json(data)
    except LedgerError as error:
        raise LedgerError(f"{path}: {error}") from None
