"""A submission to Slurm: its script, its login, and an sbatch that tells nothing."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import pytest_xlatune
from pytest_xlatune.executors import Request, SchedulerDown, payload
from pytest_xlatune.executors.slurm import LOGIN, SlurmExecutor, _commands
from pytest_xlatune.executors.slurm._commands import Reply, run_command
from pytest_xlatune.model.errors import ConfigError, SubmissionError
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.trial import LaunchSpec
from tests.executors.replies import NO_ACCOUNTING, Scripted, row
from tests.helpers import golden
from tests.helpers.payloads import is_gone
from tests.helpers.tables import rows
from tests.helpers.waiting import until
from tests.slurm.faults import FAULTS, SAMPLE

ROOT = Path(__file__).parents[2]
OPTIONS = {"partition": "lab", "contiguous": ""}
RESOURCES = Resources(time_limit_s=61, options=OPTIONS)
ARGUMENTS: dict[str, Any] = {
    "job_name": "xl-overlap-2",
    "comment": "xlatune:cell:t1:1",
    "nodelist": ("node001", "node002"),
    "resources": RESOURCES,
}


def script_of(folder: Path, *, nodes: int = 0, **options: Any) -> str:
    named = {key.replace("__", "."): value for key, value in options.items()}
    resources = replace(RESOURCES, nodes=nodes, options=named or OPTIONS)
    request = Request(folder=folder, **{**ARGUMENTS, "resources": resources})
    return SlurmExecutor().preview("", request)[1]


def test_the_script_is_as_recorded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/venv/bin/python")
    package = str(Path(pytest_xlatune.__file__).parent)
    text = script_of(folder).replace(str(folder), "/shared/t1/1").replace(package, "/package")
    golden.check(ROOT / "tests" / "data" / "slurm" / "script.sh", text)
    assert not list(folder.iterdir()), "a dry run writes nothing"


def test_options_for_srun_reach_srun(folder: Path) -> None:
    lines = script_of(folder, cpus_per_task="8", srun__mpi="none", srun__label="").splitlines()
    assert "#SBATCH --cpus-per-task=8" in lines
    (srun,) = (line for line in lines if line.startswith("srun "))
    assert " --cpus-per-task=8 --mpi=none --label " in srun


@rows(
    "changed, message",
    {
        "pins": ({"nodelist": "n1"}, "'nodelist' is set by"),
        "secrets": ({"export": "ALL"}, "'export' is set by"),
        "counts that differ": ({"nodes": 3}, "3 nodes .* 2"),
    },
)
def test_refused_options(folder: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        script_of(folder, **changed)


SPEC = LaunchSpec(argv=("true",), inherit=("PATH",))


def request_of(folder: Path) -> Request:
    return Request(folder=folder, **ARGUMENTS)


def executor(**changed: Reply | Sequence[Reply]) -> SlurmExecutor:
    answers = {"squeue": Reply(code=0), "sacct": NO_ACCOUNTING, **changed}
    return SlurmExecutor(run=Scripted(**answers), sleep=lambda _: None)


def put_sbatch(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> Path:
    """Put an sbatch first on PATH; return its folder."""
    wrapper = folder / "wrapper" / "sbatch"
    wrapper.parent.mkdir()
    wrapper.write_text(f"#!/bin/bash\n{text}")
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{wrapper.parent}:{os.environ['PATH']}")
    return wrapper.parent


def test_an_sbatch_without_a_word(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_sbatch(tmp_path, monkeypatch, "exit 0\n")
    with pytest.raises(SubmissionError, match=r"sbatch ended with 0.*\(tried 6 times\)") as caught:
        executor().submit(SPEC, request_of(folder))
    assert not isinstance(caught.value, SchedulerDown)
    # where it was taken after all, it starts no trainer beside the next attempt
    assert (folder / payload.CANCEL).exists()
    other = tmp_path / "taken" / "cell" / "session" / "t1.1"
    running = Reply(code=0, out=row("RUNNING", WorkDir=str(other)))
    taken = executor(sacct=[Reply(code=0), running])
    assert taken.submit(SPEC, request_of(other)) == "31", "it was seen to be taken"


def test_an_sbatch_that_hangs(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_commands, "COMMAND_TIMEOUT_S", 0.5)
    # as a shell's script does: what hangs is a child that keeps the pipe open
    place = put_sbatch(tmp_path, monkeypatch, 'sleep 1000 &\necho $! > "${0%/*}/pid"\nwait\n')
    none = executor()

    def told() -> bool:
        with pytest.raises(SchedulerDown, match=r"sbatch did not answer in \S+ s"):
            none.submit(SPEC, request_of(folder))
        return (place / "pid").exists()

    until(told)
    pid = int((place / "pid").read_text())
    until(lambda: is_gone(pid))


def test_the_baseline_of_another_sweep_on_the_same_cell_is_another_job(tmp_path: Path) -> None:
    # one session and one trial: only the folders differ
    ours, theirs = (tmp_path / name / "cell" / "session" / "t1.1" for name in ("one", "two"))
    running = row("RUNNING", WorkDir=f"/seen/otherwise{theirs}")
    slurm = executor(sacct=Reply(code=0, out=running))
    assert (slurm.find(request_of(ours)), slurm.find(request_of(theirs))) == ("", "31")
    with pytest.raises(SchedulerDown, match="squeue does not say whether"):
        executor(squeue=Reply(code=0, out="\001\377 garbage")).find(request_of(ours))


def test_the_environment_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS")
    for name in (*kept, "SLURM_TIME_FORMAT", "LC_ALL", "SQUEUE_FORMAT", "SLURM_JOB_ID"):
        monkeypatch.setenv(name, "ours")
    found = dict(line.partition("=")[::2] for line in run_command(["env"]).out.splitlines())
    assert (found["SLURM_TIME_FORMAT"], found["LC_ALL"]) == ("%s", "C")
    assert {name for name, value in found.items() if value == "ours"} == {*kept}
    assert run_command(["no-squeue"]).error == "no-squeue: command not found"
    # half an answer is none
    monkeypatch.setattr(_commands, "COMMAND_TIMEOUT_S", 0.5)
    late = run_command(["sh", "-c", "echo 31; exec sleep 60"])
    assert (late.is_late, late.out) == (True, "")


def test_every_test_that_make_slurm_faults_and_the_sample_name_is_there() -> None:
    for name in (*FAULTS, *(f"tests/slurm/{name}" for name in SAMPLE)):
        path, _, test = name.partition("[")[0].partition("::")
        assert f"def {test}(" in (ROOT / path).read_text(encoding="utf-8"), name


def test_an_sbatch_of_another_session(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_xlatune.executors.slurm._SBATCH_OVER_S", 0.1)
    (folder / "submitit").mkdir()
    with (folder / "submitit" / "sbatch.lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(SchedulerDown, match="of another session"):
            executor().submit(SPEC, request_of(folder))
    assert not list((folder / "submitit").glob("*submission*"))


PROFILE = """\
echo 'Welcome; you have mail'
echo complaint >&2
(sleep 60; touch ~/slept) &
export FROM_PROFILE='one
two' SLURM_JOB_ID=profile PATH="$PATH:/site/bin"
cd /
umask 0
"""
TELL = "import json, os; u = os.umask(0); print(json.dumps([u, os.getcwd(), dict(os.environ)]))"
GIVEN = {"SLURM_JOB_ID": "31", "SLURM_JWT": "hush-hush", "GIVEN": "a\nb"}


def start(folder: Path, shell: str, profile: str, last: str) -> subprocess.CompletedProcess[str]:
    """Run a script that logs ada in, and ends with a line, as Slurm would start it."""
    home, getent = folder / "home of ada", folder / "bin" / "getent"
    script = folder / "slurm script"
    home.mkdir()
    getent.parent.mkdir()
    for name in (".bash_profile", ".profile", ".zprofile"):
        (home / name).write_text(profile)
    passwd = f"ada:x:4711:4711:Ada, Countess:{home}:{shell}"
    getent.write_text(f"#!/bin/sh\necho '{passwd}'\n")
    script.write_text(f"#!/bin/bash\n. '{LOGIN}'\n{last}\n")
    for path in (getent, script):
        path.chmod(0o755)
    of_submitter = {"HOME": "/theirs", "LD_LIBRARY_PATH": "/theirs", "USER": "submitter"}
    return subprocess.run(
        [script],
        env={"PATH": f"{getent.parent}:{os.environ['PATH']}", **of_submitter, **GIVEN},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        umask=0o027,
        timeout=240,
    )


@pytest.mark.parametrize("name", ["bash", "dash", "zsh"])
def test_a_job_has_the_environment_of_a_login(tmp_path: Path, name: str) -> None:
    shell = shutil.which(name)
    if shell is None:
        pytest.skip(f"no {name} is installed")
    done = start(tmp_path, shell, PROFILE, f"{sys.executable} -c '{TELL}'")
    assert done.returncode == 0, done.stderr
    umask, cwd, environ = json.loads(done.stdout)
    home = tmp_path / "home of ada"
    assert environ["FROM_PROFILE"] == "one\ntwo"
    assert environ["PATH"].endswith(":/site/bin")
    names = ("HOME", "USER", "LOGNAME", "SHELL")
    assert [environ[name] for name in names] == [str(home), "ada", "ada", shell]
    assert environ["SLURM_JOB_ID"] == "31", "Slurm's word counts before the profile's"
    assert environ["GIVEN"] == "a\nb"
    assert not {"XLATUNE_LOGIN", "SLURM_JWT"} & environ.keys()
    assert environ.get("LD_LIBRARY_PATH") != "/theirs"
    assert (umask, cwd) == (0o027, str(tmp_path)), "it changes nothing but the environment"
    assert not (home / "slept").exists(), "what a profile leaves running"


IN_THE_MIDDLE = "env() { exit 1; }; printf '\\0xlatune begin\\0A=1\\0'; exit 0"


@rows(
    "shell, profile",
    {
        "a profile that ends in the middle": ("/bin/bash", IN_THE_MIDDLE),
        "an account without a shell": ("/bin/false", ""),
        "a shell that is not there": ("/no/such/shell", ""),
    },
)
def test_without_a_login_no_trial_starts(tmp_path: Path, shell: str, profile: str) -> None:
    done = start(tmp_path, shell, profile, "echo started")
    assert done.returncode == 1
    assert "started" not in done.stdout
    assert f"the login shell {shell} of ada gave no environment" in done.stderr
