"""Submit one trial through a maxtext-slurm checkout, and represent its job until it ends.

    python -m pytest_xlatune.workers.maxtext_slurm_job --checkout DIR --model M --workspace DIR
        --name JOB -- M:TAG -N 8 -w node[001-008] -- steps=15 ...

The words after the first `--` are the arguments of `submit.sh`. The job's log is copied to standard
output as it grows; this program ends with the job's exit status, and a signal to it cancels the
job. It submits a copy of the checkout, in which the model's env.sh begins with the variables of the
axes, which the deployed file may read, and ends with the profile. The current directory gets
`followed-job.json` and links to the dump and the captures in the job's folder, which is found by
its id because the rest of its name varies.

The job's log has each node's environment: the model's env.sh ends with `probe_environment.py`,
which a container runs once before its trainer. This program copies it to `environment.json` and
`environment.1.json`, one file for each node, as other payloads do.

If the current directory has a rotation, the model's env.sh writes it and its worker into the job's
output folder and makes each Python load the worker; its journals are copied back while it runs.

It uses only the standard library and imports nothing of ours. It judges no result.
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
POLL_S = 5.0  # seconds between two questions to the scheduler
_LOOK_S = 0.5  # seconds between two looks at the log
_ANSWER_S = 60.0  # seconds that the scheduler may take to answer
_UNKNOWN_TIMES = 3  # this many empty answers in a row mean that the job is gone
# The log of an ended job is complete after so many looks without news: shared file systems lag.
_QUIET_TIMES = 4
_PROBE = Path(__file__).with_name("probe_environment.py")
# these options keep git from running programs that a repository names
_GIT = ("git", "-c", "core.fsmonitor=", "-c", "core.hooksPath=/dev/null", "-C")
_MARK = b"xlatune-environment: "  # the beginning of the probe's line of JSON
_PROBE_S = 60  # seconds that the probe may take
_MOST_NODES = 4096  # environments that are read from a log
_MOST_LINE = 1 << 20  # bytes of a line of a log
# the probe, for the container's bash: only there OUTPUT_PATH is set
_RUN_PROBE = """
if [[ -n ${{OUTPUT_PATH-}} && -z ${{XLATUNE_PROBED-}} ]]; then
  export XLATUNE_PROBED=1
  timeout {limit_s} python3 - job maxtext MaxText 2>/dev/null <<'END_OF_THE_PROBE' || true
{program}
END_OF_THE_PROBE
fi
"""
# the spec of a rotation, and its worker; `launchers.command` uses the same names
_SPEC, _SITE = Path("rotation.json"), Path("xlatune_site", "sitecustomize.py")
_JOURNALS = "rotation.*.jsonl"
_ROTATION_FOLDER = "xlatune_rotation"  # in the job's output folder
# the container of each node writes the same files, so each file is renamed into its place
_SET_UP_ROTATION = """
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
_END_STATES = {
    *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL"),
    *("OUT_OF_MEMORY", "DEADLINE", "PREEMPTED", "REVOKED"),
}
# a line of sbatch, through submit.sh:   Submitted batch job 14638
_SUBMITTED = re.compile(r"Submitted batch job (\d+)")
# the output of scontrol show job -o:   JobId=14638 ... ExitCode=1:0 ... NodeList=node[001-002]
_EXIT_CODE = re.compile(r"\bExitCode=(\d+):(\d+)")
_NODES = re.compile(r"\bNodeList=(\S+)")


def main(argv: Sequence[str] | None = None) -> int:
    """Submit, follow, and return the job's exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--checkout", type=Path, required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--name", required=True, help="the name that submit.sh gives to the job")
    parser.add_argument("submit", nargs="+", help="arguments of submit.sh")
    words = list(sys.argv[1:] if argv is None else argv)
    at = words.index("--")
    arguments = parser.parse_args([*words[:at], "submit.sh"])
    # a signal is only recorded, because the job can only be cancelled once it has an id
    stops: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: stops.append(number))
    copy = copy_of(arguments.checkout, Path.cwd() / "checkout", model=arguments.model)
    cancel_strays(arguments.name)
    job = submit(copy, words[at + 1 :], workspace=arguments.workspace, name=arguments.name)
    shutil.rmtree(copy, ignore_errors=True)  # submit.sh has made a copy for the job
    if job is None:
        return 1
    _record(job, "submitted", arguments.workspace)
    state, started_s = follow(job, arguments.workspace, stops)
    status, reason = ending(job, state)
    nodes = _NODES.search(reason)
    _record(job, state, arguments.workspace, nodes=nodes[1] if nodes else "", started_s=started_s)
    sys.stdout.write(f"xlatune: job {job} JobState={state} {reason}\n")
    _link(job, arguments.workspace)
    write_environments(job, arguments.workspace, arguments.checkout)
    return 143 if stops else status


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
    else:  # no git repository, e.g. files of an archive
        left_out = shutil.ignore_patterns("outputs", ".git")
        shutil.copytree(checkout, copy, symlinks=True, ignore=left_out)
    if (checkout / ".git").exists():
        (copy / ".git").symlink_to(checkout / ".git")
    else:
        (copy / ".git").mkdir()
    env_file = copy / "configs" / f"{model}.env.sh"
    # the axes come first, because the deployed file may read them; the profile follows it
    deployed = env_file.read_text(encoding="utf-8") if env_file.exists() else ""
    axes, profile = (Path(name).read_text(encoding="utf-8") for name in (AXES_FILE, PROFILE_FILE))
    env_file.unlink(missing_ok=True)  # it may be a link to the checkout's own file
    program = _PROBE.read_text(encoding="utf-8").strip()
    probe = _RUN_PROBE.format(limit_s=_PROBE_S, program=program)
    env_file.write_text(f"{axes}{deployed}{profile}{probe}{_rotation_lines()}", encoding="utf-8")
    return copy


def _rotation_lines() -> str:
    """Return the shell lines that set up a rotation; "" if the trial has none."""
    if not _SPEC.exists():
        return ""
    spec, worker = (path.read_text(encoding="utf-8").rstrip("\n") for path in (_SPEC, _SITE))
    return _SET_UP_ROTATION.format(
        folder=_ROTATION_FOLDER, site=_SITE, spec=spec, worker=worker, name=_SPEC
    )


def cancel_strays(name: str) -> None:
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
    if jobs := jobs_named(name):
        sys.stdout.write(f"xlatune: submit.sh named no job; {jobs[-1]} is found by its name\n")
        return jobs[-1]
    sys.stdout.write(f"xlatune: submit.sh ended with {done.returncode} and no running job\n")
    return None


def follow(job: str, workspace: Path, stops: Sequence[int]) -> tuple[str, str]:
    """Copy the job's log as it grows, until the job has ended or `stops` has a signal.

    It returns the last state, and when the job was first seen running, in seconds since 1970.
    """
    log: BinaryIO | None = None
    state, started_s, is_cancelled = "PENDING", "", False
    unknown, quiet = 0, 0  # answers without a state, and looks without news, in a row
    polled_s = float("-inf")
    while True:
        if stops and not is_cancelled:
            is_cancelled = True
            _ask("scancel", job)
        log = log or _open_log(job, workspace)
        quiet = 0 if log is not None and _copy(log) else quiet + 1
        if _SPEC.exists():
            copy_journals(job, workspace)
        is_over = state in _END_STATES or unknown >= _UNKNOWN_TIMES
        if is_over and quiet >= _QUIET_TIMES:
            return state if state in _END_STATES else "UNKNOWN", started_s
        if not is_over and time.monotonic() - polled_s >= POLL_S:
            polled_s = time.monotonic()
            answer = state_of(job)
            unknown = 0 if answer else unknown + 1
            if answer not in ("", "PENDING", "CONFIGURING"):
                started_s = started_s or str(time.time())
            state, quiet = answer or state, 0
        time.sleep(_LOOK_S)


def copy_journals(job: str, workspace: Path) -> None:
    """Copy those journals of a rotation that have grown."""
    _, folder = paths_of(job, workspace)
    if folder is None:
        return
    for journal in sorted(folder.glob(f"{_ROTATION_FOLDER}/{_JOURNALS}")):
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
    """Return the exit status of an ended job, and its exit code and nodes in Slurm's words."""
    job_text = _ask("scontrol", "show", "job", "-o", job)
    code, nodes = _EXIT_CODE.search(job_text), _NODES.search(job_text)
    if code is None:
        text = _ask("sacct", "-X", "-n", "-P", "-j", job, "-o", "ExitCode")
        code = re.match(r"(\d{1,9}):(\d{1,9})", text.strip())
    reason = f"ExitCode={code[1]}:{code[2]}" if code else "ExitCode=unknown"
    reason += f" NodeList={nodes[1]}" if nodes else ""
    if state == "COMPLETED":
        return 0, reason
    exit_code, signal_number = (int(code[1]), int(code[2])) if code else (0, 0)
    if signal_number and not exit_code:
        exit_code = 128 + signal_number
    return exit_code or 1, reason


def paths_of(job: str, workspace: Path) -> tuple[Path | None, Path | None]:
    """Return log and folder of a job, whose names begin with its id; None if not there yet."""
    paths = sorted(workspace.glob(f"{job}-*"))
    logs = [path for path in paths if path.suffix == ".log" and path.is_file()]
    folders = [path for path in paths if path.is_dir()]
    return next(iter(logs), None), next(iter(folders), None)


def _open_log(job: str, workspace: Path) -> BinaryIO | None:
    log, _ = paths_of(job, workspace)
    try:
        return log.open("rb") if log else None
    except OSError:
        return None


def _copy(log: BinaryIO) -> bool:
    """Copy what is new in a log to standard output; return whether there was anything."""
    new = log.read()
    sys.stdout.buffer.write(new)
    sys.stdout.flush()
    return bool(new)


def _record(job: str, state: str, workspace: Path, *, nodes: str = "", started_s: str = "") -> None:
    log, folder = paths_of(job, workspace)
    known = {"job_id": job, "state": state, "log": str(log or ""), "folder": str(folder or "")}
    known |= {"nodes": nodes, "started_s": started_s}
    Path(RECORD).write_text(json.dumps(known) + "\n", encoding="utf-8")


def write_environments(job: str, workspace: Path, checkout: Path) -> None:
    """Write the environment in each node's log line to a file, with the checkout's commit."""
    log, _ = paths_of(job, workspace)
    environments: dict[str, dict[str, Any]] = {}
    opened = log.open("rb") if log is not None else contextlib.nullcontext(())
    with opened as lines:
        for line in lines:
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
    state = "clean"
    if count:
        state = "1 changed file" if count == 1 else f"{count} changed files"
    repositories = {str(checkout): f"{commit}, {state}"} if commit else {}
    for number, name in enumerate(sorted(environments)):
        environment = environments[name]
        environment["repositories"] = {**repositories, **environment.get("repositories", {})}
        file = f"environment.{number}.json" if number else "environment.json"
        Path(file).write_text(json.dumps(environment) + "\n", encoding="utf-8")


def _link(job: str, workspace: Path) -> None:
    """Link the job's captures and dump into the places where other trials have theirs."""
    _, folder = paths_of(job, workspace)
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
