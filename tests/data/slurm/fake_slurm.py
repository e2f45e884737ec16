"""A Slurm of one file for machines without one: linked as sbatch, srun, squeue and so on.

Its state is a folder, `slurm` beside the folder of the links: `<id>.json` per job, `calls`, one
line per command that was run, and `given`, the names in the environment of the last sbatch. It runs
the batch script it is given, with one srun task per node. It keeps no accounting.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parents[1] / "slurm"
NODES = tuple(f"node{i:03d}" for i in range(1, 5))


def expand(text: str) -> list[str]:
    prefix, _, inside = text.rstrip("]").partition("[")
    if not inside:
        return text.split(",")
    low, _, high = inside.partition("-")
    return [f"{prefix}{i:0{len(low)}}" for i in range(int(low), int(high or low) + 1)]


def jobs() -> dict[str, dict[str, str]]:
    return {path.stem: json.loads(path.read_text()) for path in HERE.glob("*.json")}


def save(job: dict[str, str]) -> None:
    # scancel and the job's watcher may write at once
    part = HERE / f"{job['JobId']}.{os.getpid()}.part"
    part.write_text(json.dumps(job))
    part.rename(HERE / f"{job['JobId']}.json")


def fail(text: str) -> int:
    sys.stderr.write(f"{text}\n")
    return 1


def sbatch(argv: list[str]) -> int:
    script = Path(argv[-1]).read_text()
    (HERE / "given").write_text("\n".join(sorted(os.environ)))
    given = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", script, flags=re.MULTILINE))
    options = {key: shlex.split(value)[0] if value else "" for key, value in given.items()}
    nodes = expand(options.get("nodelist", NODES[0]))
    if set(nodes) - set(NODES):
        return fail("sbatch: error: Batch job submission failed: Invalid node name specified")
    job_id = str(1 + max(map(int, jobs()), default=0))
    save(
        {
            "JobId": job_id,
            "JobName": options["job-name"],
            "JobState": "RUNNING",
            "Reason": "None",
            "ExitCode": "0:0",
            "SubmitTime": str(int(time.time())),
            "StartTime": str(int(time.time())),
            "EndTime": "Unknown",
            "NodeList": options.get("nodelist", NODES[0]),
            "WorkDir": options["chdir"],
            "Comment": options["comment"],
        }
    )
    output = options["output"].replace("%j", job_id)
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": os.environ["HOME"],
        "XLATUNE_LOGIN": "yes",  # the profile of the user who runs the tests knows no fake
        "SLURM_JOB_ID": job_id,
        "SLURM_JOB_NODELIST": ",".join(nodes),
    }
    watcher = [sys.executable, __file__, "watch", job_id, argv[-1]]
    with Path(output).open("w") as log:
        subprocess.Popen(
            watcher, env=environ, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            cwd=options["chdir"], start_new_session=True,
        )  # fmt: skip
    sys.stdout.write(f"Submitted batch job {job_id}\n")
    return 0


def watch(job_id: str, script: str) -> int:
    done = subprocess.Popen(["/bin/bash", script])
    # beside the job, which scancel writes: neither may undo the other
    (HERE / f"{job_id}.pid").write_text(str(done.pid))
    code = done.wait()
    if left := jobs().get(job_id):
        state = "COMPLETED" if code == 0 else "FAILED"
        state = left.get("doom", state)
        save(left | {"JobState": state, "ExitCode": f"{code % 256}:0", "EndTime": "1"})
    return 0


def srun(argv: list[str]) -> int:
    options = {}
    while argv[0].startswith("--"):
        name = argv.pop(0)
        if "=" not in name and name != "--unbuffered":
            options[name] = argv.pop(0)
    job_id, nodes = os.environ["SLURM_JOB_ID"], os.environ["SLURM_JOB_NODELIST"].split(",")
    tasks = []
    for rank, node in enumerate(nodes):
        names = {
            key: options[key].replace("%j", job_id).replace("%t", str(rank)) for key in options
        }
        environ = {**os.environ, "SLURM_PROCID": str(rank), "SLURMD_NODENAME": node,
                   "SLURM_NTASKS": str(len(nodes))}  # fmt: skip
        with Path(names["--output"]).open("a") as out, Path(names["--error"]).open("a") as err:
            tasks.append(subprocess.Popen(argv, env=environ, stdout=out, stderr=err))

    def end(*_: object) -> None:
        for task in tasks:
            task.terminate()

    signal.signal(signal.SIGTERM, end)
    while any(task.poll() is None for task in tasks):
        if any(task.poll() for task in tasks):
            end()
        time.sleep(0.05)
    return max(128 - code if code < 0 else code for code in (task.returncode for task in tasks))


def scontrol(argv: list[str]) -> int:
    wanted = argv[3:] or list(jobs())
    found = [jobs()[job_id] for job_id in wanted if job_id in jobs()]
    if not found and argv[3:]:
        return fail("slurm_load_jobs error: Invalid job id specified")
    lines = (" ".join(f"{key}={value}" for key, value in job.items()) for job in found)
    sys.stdout.writelines(f"{line} \n" for line in lines)
    return 0


def squeue(argv: list[str]) -> int:
    columns = dict(zip("iTNSerjZkV", (
        "JobId", "JobState", "NodeList", "StartTime", "EndTime", "Reason", "JobName", "WorkDir",
        "Comment", "SubmitTime"), strict=True))  # fmt: skip
    form = argv[argv.index("-o") + 1]
    name = argv[argv.index("-n") + 1] if "-n" in argv else ""
    for job in jobs().values():
        if name in ("", job["JobName"]):
            line = form
            for letter, column in columns.items():
                line = line.replace(f"%{letter}", job[column])
            sys.stdout.write(f"{line}\n")
    return 0


def sacct(_: list[str]) -> int:
    return fail("Slurm accounting storage is disabled")


def scancel(argv: list[str]) -> int:
    for job_id in argv:
        job = jobs().get(job_id)
        if job is not None and job["JobState"] in ("RUNNING", "PENDING"):
            save(job | {"doom": "CANCELLED"})
            while not (pid := (HERE / f"{job_id}.pid")).exists() or not pid.read_text():
                time.sleep(0.02)
            subprocess.run(["pkill", "-TERM", "-P", pid.read_text()], check=False)
    return 0


def main() -> int:
    name, argv = Path(sys.argv[0]).stem, sys.argv[1:]
    if argv[:1] == ["watch"]:
        return watch(*argv[1:])
    with (HERE / "calls").open("a") as calls:
        calls.write(f"{name}\n")
    return int(globals()[name](argv))


if __name__ == "__main__":
    sys.exit(main())
