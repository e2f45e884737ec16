"""Submit one trial through a maxtext-slurm checkout, and stand for its job until it ends.

    python -m pytest_xlatune.workers.maxtext_slurm_job --checkout DIR --model M --workspace DIR
        --name JOB -- M:TAG -N 8 -w node[001-008] -- steps=15 ...

The words after the first `--` are the arguments of `submit.sh`. The job's log is copied to our
standard output as it grows; we end with the job's exit status, and a signal to us cancels it. We
submit a copy of the checkout, in which the model's env.sh begins with the axes, which deployed
guards read, and ends with the profile. The current directory gets `followed-job.json` and links to
the dump and the captures in the job's own folder, which is found by its id since its name changes.

Each node's environment is reported in the job's log: the model's env.sh ends with
`probe_environment.py`, which a container runs once before its trainer. It is copied to
`environment.json` and `environment.1.json`, one file for each node, as other payloads write them.

If the current directory has a rotation, the model's env.sh writes it and its worker into the job's
output folder and makes each Python load the worker; journals are copied back meanwhile.

Standard library only, and nothing of ours is imported: this program judges nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

PROFILE_FILE = "profile.env.sh"
AXES_FILE = "axes.env.sh"
RECORD = "followed-job.json"  # `executors.folder` uses the same name
POLL_S = 5.0
_LOOK_S = 0.5
_ANSWER_S = 60.0  # seconds that the scheduler may take to answer
_UNKNOWN_TIMES = 3  # so many empty answers in a row mean that the job is gone
_QUIET_TIMES = 4  # readings of an ended job's log without news, because shared file systems lag
# the text of the probe, for the container's bash; only there is the output path set
_PROBE = Path(__file__).with_name("probe_environment.py")
# no program that a repository names is run
_GIT = ("git", "-c", "core.fsmonitor=", "-c", "core.hooksPath=/dev/null", "-C")
_MARK = b"xlatune-environment: "  # the beginning of its line of JSON
_PROBE_S, _MOST_NODES, _MOST_LINE = 60, 4096, 1 << 20
_ASKS = """
if [[ -n ${{OUTPUT_PATH-}} && -z ${{XLATUNE_TOLD-}} ]]; then
  export XLATUNE_TOLD=1
  timeout {limit_s} python3 - job maxtext MaxText 2>/dev/null <<'END_OF_THE_PROBE' || true
{program}
END_OF_THE_PROBE
fi
"""
# a rotation, its worker, and their places; `launchers.rotated` has the names
_SPEC, _SITE = Path("rotation.json"), Path("xlatune_site", "sitecustomize.py")
_JOURNALS, _TURNS = "rotation.*.jsonl", "xlatune_rotation"
# each node's container writes the same files, each by a rename
_ROTATES = """
if [[ -n ${{OUTPUT_PATH-}} ]]; then
  xlatune_folder=$OUTPUT_PATH/{folder} xlatune_own=$HOSTNAME.$$
  mkdir -p "$xlatune_folder/{site.parent}"
  cat >"$xlatune_folder/$xlatune_own.spec" <<'END_OF_THE_SPEC'
{spec}
END_OF_THE_SPEC
  cat >"$xlatune_folder/$xlatune_own.site" <<'END_OF_THE_WORKER'
{worker}
END_OF_THE_WORKER
  mv -f "$xlatune_folder/$xlatune_own.spec" "$xlatune_folder/{name}"
  mv -f "$xlatune_folder/$xlatune_own.site" "$xlatune_folder/{site}"
  export PYTHONPATH="$xlatune_folder/{site.parent}${{PYTHONPATH:+:$PYTHONPATH}}"
  export XLATUNE_ROTATION="$xlatune_folder/{name}"
fi
"""
_ENDED = {
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL"),
    *("OUT_OF_MEMORY", "DEADLINE", "PREEMPTED", "REVOKED"),
}
# a line of sbatch, through submit.sh:   Submitted batch job 14638
_SUBMITTED = re.compile(r"Submitted batch job (\d+)")
# the output of scontrol show job -o:   JobId=14638 ... ExitCode=1:0 ... NodeList=node[001-002]
_EXIT_CODE = re.compile(r"\bExitCode=(\d+):(\d+)")
_NODES = re.compile(r"\bNodeList=(\S+)")


# job id -> when it was first seen after waiting, in seconds since 1970
_started: dict[str, str] = {}


def main(argv: Sequence[str] | None = None) -> int:
    """Submit, follow, and return the job's exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--name", required=True, help="of the job, as submit.sh will make it")
    parser.add_argument("submit", nargs="+", help="arguments of submit.sh")
    given = list(sys.argv[1:] if argv is None else argv)
    at = given.index("--")
    arguments = parser.parse_args([*given[:at], "submit.sh"])
    stop = _EndAsked()
    copy = copy_of(arguments.checkout, Path.cwd() / "checkout", model=arguments.model)
    end_strays(arguments.name)
    job = submit(copy, given[at + 1 :], workspace=arguments.workspace, name=arguments.name)
    shutil.rmtree(copy, ignore_errors=True)  # the job runs from what submit.sh has copied
    if job is None:
        return 1
    _record(job, "submitted", arguments.workspace)
    state = follow(job, arguments.workspace, stop)
    status, words = ending(job, state)
    _record(job, state, arguments.workspace, nodes=_NODES.search(words))
    sys.stdout.write(f"xlatune: job {job} JobState={state} {words}\n")
    _link(job, arguments.workspace)
    tell_environments(job, arguments.workspace, arguments.checkout)
    return 143 if stop.is_set else status


class _EndAsked:
    """Records that we were asked to end; a job is cancelled once its id is known."""

    def __init__(self) -> None:
        self.is_set = False
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._set)

    def _set(self, *_: object) -> None:
        self.is_set = True


def copy_of(checkout: Path, copy: Path, *, model: str) -> Path:
    """Copy a checkout as `submit.sh` would, and append the profile to its model's env file.

    Files that git ignores, such as outputs, are not copied. `.git` is a link, so that the job's
    record shows how the copy differs, and `submit.sh` accepts the copy as a repository.
    """
    listed = _ask(*_GIT, str(checkout), "ls-files", "-zco", "--exclude-standard")
    if listed:
        for name in filter(None, listed.split("\0")):
            if os.path.lexists(checkout / name):  # a file may be deleted without a commit
                (copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(checkout / name, copy / name, follow_symlinks=False)
    else:
        left_out = shutil.ignore_patterns("outputs", ".git")
        shutil.copytree(checkout, copy, symlinks=True, ignore=left_out)
    git = copy / ".git"
    if (checkout / ".git").is_dir():
        git.symlink_to(checkout / ".git", target_is_directory=True)
    else:
        git.mkdir()
    env_file = copy / "configs" / f"{model}.env.sh"
    # axes come first, because deployed guards read them; the profile comes last
    deployed = env_file.read_text(encoding="utf-8") if env_file.exists() else ""
    asked, profile = (Path(name).read_text(encoding="utf-8") for name in (AXES_FILE, PROFILE_FILE))
    env_file.unlink(missing_ok=True)  # it may be a link to the checkout's own file
    probe = _ASKS.format(limit_s=_PROBE_S, program=_PROBE.read_text(encoding="utf-8").strip())
    # the probe comes after the settings, because it is not the trainer
    env_file.write_text(f"{asked}{deployed}{profile}{probe}{_rotates()}", encoding="utf-8")
    return copy


def _rotates() -> str:
    """Return the lines that put a rotation before the trainer; "" if there is none."""
    if not _SPEC.exists():
        return ""
    spec, worker = (path.read_text(encoding="utf-8").rstrip("\n") for path in (_SPEC, _SITE))
    return _ROTATES.format(folder=_TURNS, site=_SITE, spec=spec, worker=worker, name=_SPEC)


def end_strays(name: str) -> None:
    """Cancel queued jobs of this trial that an earlier, killed attempt left behind."""
    for job in jobs_named(name):
        sys.stdout.write(f"xlatune: job {job} of an earlier attempt is cancelled\n")
        _ask("scancel", job)


def jobs_named(name: str) -> list[str]:
    """Return the ids of the user's unfinished jobs with this name."""
    return _ask("squeue", "-h", "-u", getpass.getuser(), "-n", name, "-o", "%i").split()


def submit(copy: Path, arguments: Sequence[str], *, workspace: Path, name: str) -> str | None:
    """Run `submit.sh` and return the id of the job; None if it made none.

    Whatever it prints and however it ends, a job with this `name` is the one that it made, because
    there was none before.
    """
    done = subprocess.run(
        [str(copy / "submit.sh"), *arguments],
        env={**os.environ, "JOB_WORKSPACE": str(workspace), "GIT_OPTIONAL_LOCKS": "0"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    sys.stdout.write(done.stdout)
    sys.stdout.flush()
    if (match := _SUBMITTED.search(done.stdout)) is not None:
        return match[1]
    if made := jobs_named(name):
        sys.stdout.write(f"xlatune: submit.sh named no job; {made[-1]} is found by its name\n")
        return made[-1]
    sys.stdout.write(f"xlatune: submit.sh ended with {done.returncode} and no running job\n")
    return None


def follow(job: str, workspace: Path, stop: _EndAsked) -> str:
    """Copy the job's log as it grows, until the job has ended; return its last state."""
    log: BinaryIO | None = None
    state, unknown, asked_s, quiet = "PENDING", 0, float("-inf"), 0
    is_cancelled = False
    while True:
        if stop.is_set and not is_cancelled:
            is_cancelled = True
            _ask("scancel", job)
        log = log or _open_log(job, workspace)
        quiet = 0 if log is not None and _copy(log) else quiet + 1
        if _SPEC.exists():
            copy_journals(job, workspace)
        is_over = state in _ENDED or unknown >= _UNKNOWN_TIMES
        if is_over and quiet >= _QUIET_TIMES:
            return state if state in _ENDED else "UNKNOWN"
        if not is_over and time.monotonic() - asked_s >= POLL_S:
            asked_s = time.monotonic()
            seen = state_of(job)
            unknown = 0 if seen else unknown + 1
            if seen not in ("", "PENDING", "CONFIGURING"):
                _started.setdefault(job, str(time.time()))
            state, quiet = seen or state, 0
        time.sleep(_LOOK_S)


def copy_journals(job: str, workspace: Path) -> None:
    """Copy the journals of a rotation that have grown; they show progress and who died."""
    _, folder = found_by_id(job, workspace)
    for journal in sorted(folder.glob(f"{_TURNS}/{_JOURNALS}")) if folder else ():
        copy = Path(journal.name)
        with contextlib.suppress(OSError):
            if not copy.exists() or copy.stat().st_size != journal.stat().st_size:
                part = copy.with_name(f"{copy.name}.part")
                shutil.copyfile(journal, part)
                part.replace(copy)


def state_of(job: str) -> str:
    """Return the job's state in Slurm's words; "" if neither squeue nor sacct knows it."""
    text = _ask("squeue", "-t", "all", "-h", "-j", job, "-o", "%T")
    # the output of sacct:  CANCELLED by 1000
    text = text or _ask("sacct", "-X", "-n", "-P", "-j", job, "-o", "State")
    return text.split()[0] if text.split() else ""


def ending(job: str, state: str) -> tuple[int, str]:
    """Return the exit status of an ended job, and the scheduler's reason for its end."""
    job_text = _ask("scontrol", "show", "job", "-o", job)
    code, nodes = _EXIT_CODE.search(job_text), _NODES.search(job_text)
    if code is None:
        text = _ask("sacct", "-X", "-n", "-P", "-j", job, "-o", "ExitCode")
        code = re.match(r"(\d{1,9}):(\d{1,9})", text.strip())
    words = f"ExitCode={code[1]}:{code[2]}" if code else "ExitCode=unknown"
    words += f" NodeList={nodes[1]}" if nodes else ""
    if state == "COMPLETED":
        return 0, words
    number, by_signal = (int(code[1]), int(code[2])) if code else (0, 0)
    return (number or (128 + by_signal if by_signal else 1)), words


def found_by_id(job: str, workspace: Path) -> tuple[Path | None, Path | None]:
    """Return log and folder of a job by the beginning of their names; the rest changes."""
    both = sorted(workspace.glob(f"{job}-*"))
    logs = [path for path in both if path.suffix == ".log" and path.is_file()]
    folders = [path for path in both if path.is_dir()]
    return (logs[0] if logs else None), (folders[0] if folders else None)


def _open_log(job: str, workspace: Path) -> BinaryIO | None:
    log, _ = found_by_id(job, workspace)
    try:
        return log.open("rb") if log else None
    except OSError:
        return None


def _copy(log: BinaryIO) -> bool:
    new = log.read()
    sys.stdout.buffer.write(new)
    sys.stdout.flush()
    return bool(new)


def _record(job: str, state: str, workspace: Path, *, nodes: re.Match[str] | None = None) -> None:
    log, folder = found_by_id(job, workspace)
    known = {"job_id": job, "state": state, "log": str(log or ""), "folder": str(folder or "")}
    known["nodes"] = nodes[1] if nodes else ""
    known["started_s"] = _started.get(job, "")
    Path(RECORD).write_text(json.dumps(known) + "\n", encoding="utf-8")


def tell_environments(job: str, workspace: Path, checkout: Path) -> None:
    """Write the environment from each node's log line to a file, with the checkout's own commit."""
    log, _ = found_by_id(job, workspace)
    environments: dict[str, dict[str, Any]] = {}
    lines = log.open("rb") if log is not None else contextlib.nullcontext(())
    with lines as read:
        for line in read:
            if len(environments) >= _MOST_NODES or len(line) > _MOST_LINE:
                break
            if _MARK not in line:
                continue
            with contextlib.suppress(ValueError):  # torn, or another program's line
                environment = json.loads(line[line.index(_MARK) + len(_MARK) :])
                if isinstance(environment, dict) and isinstance(environment.get("name"), str):
                    environments.setdefault(environment["name"], environment)
    commit = _ask(*_GIT, str(checkout), "rev-parse", "HEAD").strip()
    changed = _ask(*_GIT, str(checkout), "status", "--porcelain", "--untracked-files=no")
    count = len(changed.splitlines())
    state = f"{count} changed file{'s' if count > 1 else ''}" if count else "clean"
    repositories = {str(checkout): f"{commit}, {state}"} if commit else {}
    for number, name in enumerate(sorted(environments)):
        environment = environments[name]
        environment["repositories"] = {**repositories, **environment.get("repositories", {})}
        file = f"environment.{number}.json" if number else "environment.json"
        Path(file).write_text(json.dumps(environment) + "\n", encoding="utf-8")


def _link(job: str, workspace: Path) -> None:
    """Link the job's captures and dump to where other trials have theirs."""
    _, folder = found_by_id(job, workspace)
    if folder is None:
        return
    for capture in sorted(folder.rglob("plugins/profile/*/*")):
        link = Path("output", capture.relative_to(folder))
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(capture)
    for name in ("xla_dump", "xla_options"):
        if (folder / name).is_dir():
            Path(name).symlink_to(folder / name, target_is_directory=True)


def _ask(*command: str) -> str:
    """Return the output of a scheduler's command; "" if it fails or is missing."""
    if shutil.which(command[0]) is None:
        return ""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main())
