"""The environment of a login with which a job's script starts, for the shells that are here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_xlatune.executors.slurm import LOGIN
from tests.helpers.tables import rows

POSIX_PROFILE = """\
echo 'Welcome; you have mail'
echo complaint >&2
(sleep 60; touch ~/slept) &
export FROM_PROFILE='one
two' SLURM_JOB_ID=profile PATH="$PATH:/site/bin"
cd /
umask 0
"""
PROFILES = {"bash": ".bash_profile", "dash": ".profile", "zsh": ".zprofile"}
TELL = "import json, os; u = os.umask(0); print(json.dumps([u, os.getcwd(), dict(os.environ)]))"
GIVEN = {"SLURM_JOB_ID": "31", "SLURM_JWT": "hush-hush", "GIVEN": "a\nb"}


class Account:
    """A user with a login shell, and a job's script that Slurm starts for them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home, self.bin = folder, folder / "home of ada", folder / "bin"
        for each in (self.home, self.bin):
            each.mkdir()

    def start(self, shell: str, last: str) -> subprocess.CompletedProcess[str]:
        """Run a script that logs in and ends with this line, as Slurm would."""
        passwd = f"ada:x:4711:4711:Ada, Countess:{self.home}:{shell}"
        script = self.folder / "slurm script"
        for path, text in (
            (self.bin / "getent", f"#!/bin/sh\necho '{passwd}'\n"),
            (script, f"#!/bin/bash\n. '{LOGIN}'\n{last}\n"),
        ):
            path.write_text(text)
            path.chmod(0o755)
        programs = f"{self.bin}:{os.environ['PATH']}"
        of_submitter = {"HOME": "/theirs", "LD_LIBRARY_PATH": "/theirs", "USER": "submitter"}
        return subprocess.run(
            [script],
            env={"PATH": programs, **of_submitter, **GIVEN},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            umask=0o027,
            timeout=240,
        )


@pytest.fixture
def account(tmp_path: Path) -> Account:
    return Account(tmp_path)


@pytest.mark.parametrize("name", PROFILES)
def test_a_job_has_the_environment_of_a_login(account: Account, name: str) -> None:
    shell = shutil.which(name)
    if shell is None:
        pytest.skip(f"no {name} is installed")
    (account.home / PROFILES[name]).write_text(POSIX_PROFILE)
    done = account.start(shell, f"{sys.executable} -c '{TELL}'")
    assert done.returncode == 0, done.stderr
    umask, cwd, environ = json.loads(done.stdout)
    assert environ["FROM_PROFILE"] == "one\ntwo"
    assert environ["PATH"].endswith(":/site/bin")
    assert environ["HOME"] == str(account.home)
    assert (environ["USER"], environ["LOGNAME"], environ["SHELL"]) == ("ada", "ada", shell)
    assert environ["SLURM_JOB_ID"] == "31", "Slurm's word counts before the profile's"
    assert environ["GIVEN"] == "a\nb"
    assert not {"XLATUNE_LOGIN", "SLURM_JWT"} & environ.keys()
    assert environ.get("LD_LIBRARY_PATH") != "/theirs"
    assert (umask, cwd) == (0o027, str(account.folder)), "it changes nothing but the environment"
    assert not (account.home / "slept").exists(), "what a profile leaves running"


IN_THE_MIDDLE = "env() { exit 1; }; printf '\\0xlatune begin\\0A=1\\0'; exit 0"


@rows(
    "shell, profile",
    {
        "a profile that ends in the middle": ("/bin/bash", IN_THE_MIDDLE),
        "an account without a shell": ("/bin/false", ""),
        "a shell that is not there": ("/no/such/shell", ""),
    },
)
def test_without_a_login_no_trial_starts(account: Account, shell: str, profile: str) -> None:
    (account.home / ".bash_profile").write_text(profile)
    done = account.start(shell, "echo started")
    assert done.returncode == 1
    assert "started" not in done.stdout
    assert f"the login shell {shell} of ada gave no environment" in done.stderr
