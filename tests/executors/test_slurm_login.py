"""The environment of a login with which a job's script starts, for the shells that are here."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_xlatune.executors.slurm import LOGIN

POSIX_PROFILE = """\
echo 'Welcome; you have mail'
echo complaint >&2
export FROM_PROFILE='one
two' SLURM_JOB_ID=profile PATH="$PATH:/site/bin"
cd /
umask 0
"""
C_PROFILE = """\
echo 'Welcome; you have mail'
setenv FROM_PROFILE csh
setenv SLURM_JOB_ID profile
setenv PATH "${PATH}:/site/bin"
cd /
umask 0
"""
PROFILES = {
    "bash": (".bash_profile", POSIX_PROFILE, "one\ntwo"),
    "dash": (".profile", POSIX_PROFILE, "one\ntwo"),
    "zsh": (".zprofile", POSIX_PROFILE, "one\ntwo"),
    "tcsh": (".login", C_PROFILE, "csh"),
}
Start = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Start a job's script as Slurm would, for a user with this login shell."""

    def start(
        shell: str, *, last: str = "", environ: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        commands = tmp_path / "bin"
        commands.mkdir()
        home = tmp_path / "home of ada"
        home.mkdir(exist_ok=True)
        passwd = f"ada:x:4711:4711:Ada, Countess:{home}:{shell}"
        (commands / "getent").write_text(f"#!/bin/sh\necho '{passwd}'\n")
        (commands / "getent").chmod(0o755)
        script = tmp_path / "slurm script"
        tell = "import json, os; u = os.umask(0); print(json.dumps([u, os.getcwd(), *os.environ]))"
        last = last or f"{sys.executable} -c '{tell.replace('*os.environ', 'dict(os.environ)')}'"
        script.write_text(f"#!/bin/bash\n. {LOGIN}\n{last}\n")
        script.chmod(0o755)
        return subprocess.run(
            [script],
            env={
                "PATH": f"{commands}:{os.environ['PATH']}",
                "HOME": "/of/the/submitter",
                "LD_LIBRARY_PATH": "/of/the/submitter",
                "USER": "submitter",
                **(environ or {}),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            umask=0o027,
            timeout=240,
        )

    return start


@pytest.mark.parametrize("name", PROFILES)
def test_a_job_has_the_environment_of_a_login(start: Start, tmp_path: Path, name: str) -> None:
    shell = shutil.which(name)
    if shell is None:
        pytest.skip(f"no {name} is installed")
    file, profile, told = PROFILES[name]
    (tmp_path / "home of ada").mkdir()
    (tmp_path / "home of ada" / file).write_text(profile)
    done = start(shell, environ={"SLURM_JOB_ID": "31", "SLURM_JWT": "hush-hush", "GIVEN": "a\nb"})
    assert done.returncode == 0, done.stderr
    umask, cwd, environ = json.loads(done.stdout)
    assert environ["FROM_PROFILE"] == told
    assert environ["PATH"].endswith(":/site/bin")
    assert environ["HOME"] == str(tmp_path / "home of ada")
    assert (environ["USER"], environ["LOGNAME"], environ["SHELL"]) == ("ada", "ada", shell)
    assert environ["SLURM_JOB_ID"] == "31", "Slurm's word counts before the profile's"
    assert environ["GIVEN"] == "a\nb"
    assert not {"XLATUNE_LOGIN", "SLURM_JWT"} & environ.keys()
    assert environ.get("LD_LIBRARY_PATH") != "/of/the/submitter"
    assert (umask, cwd) == (0o027, str(tmp_path)), "a login changes nothing but the environment"


def test_functions_that_a_profile_exports_are_there(start: Start, tmp_path: Path) -> None:
    (tmp_path / "home of ada").mkdir()
    (tmp_path / "home of ada" / ".bash_profile").write_text(
        'module() { echo "loaded $2"; }\nexport -f module\n'
    )
    done = start("/bin/bash", last="module load rocm")
    assert done.stdout == "loaded rocm\n", done.stderr


def test_what_a_profile_leaves_running_is_not_waited_for(start: Start, tmp_path: Path) -> None:
    home = tmp_path / "home of ada"
    home.mkdir()
    (home / ".bash_profile").write_text("(sleep 60; touch ~/slept) &\n")
    done = start("/bin/bash", last="echo started")
    assert done.stdout == "started\n", done.stderr
    assert not (home / "slept").exists()


def test_what_a_shell_is_told_by_the_site_is_there(start: Start, tmp_path: Path) -> None:
    # neither file may be changed by a test, so the script reads copies of its own
    text = LOGIN.read_text(encoding="utf-8")
    site = tmp_path / "environment"
    site.write_text(
        "# comment\nexport EDITOR=vi\nLANG=\"C.UTF-8\"\nPATH='/first:/usr/bin:/bin'\n"
        "no assignment\n2BAD=1\nA B=1\nLAST=x=y"
    )
    assert "/etc/environment /etc/default/locale" in text
    own = tmp_path / "login.sh"
    own.write_text(text.replace("/etc/environment /etc/default/locale", f"'{site}' /no/such/file"))
    script = tmp_path / "sh"
    script.write_text('#!/bin/sh\n[ "$1" = -c ] && eval "$2"\n')  # reads no profile
    script.chmod(0o755)
    names = "EDITOR LANG PATH LAST"
    done = start(str(script), last=f'for name in {names}; do echo "${{!name}}"; done')
    assert done.returncode == 0, done.stderr
    whole = (tmp_path / "slurm script").read_text().replace(str(LOGIN), str(own))
    (tmp_path / "slurm script").write_text(whole)
    done = subprocess.run(
        [tmp_path / "slurm script"], env={"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["vi", "C.UTF-8", "/first:/usr/bin:/bin", "x=y"]


@pytest.mark.parametrize(
    ("shell", "profile"),
    [
        pytest.param("/bin/bash", "exit 0", id="a profile that ends the shell"),
        pytest.param(
            "/bin/bash",
            "env() { exit 1; }; printf '\\0xlatune begin\\0A=1\\0'; exit 0",
            id="a profile that ends in the middle",
        ),
        pytest.param("/bin/false", "", id="an account without a shell"),
        pytest.param("/no/such/shell", "", id="a shell that is not there"),
    ],
)
def test_without_a_login_no_trial_starts(
    start: Start, tmp_path: Path, shell: str, profile: str
) -> None:
    (tmp_path / "home of ada").mkdir()
    (tmp_path / "home of ada" / ".bash_profile").write_text(profile)
    done = start(shell, last="echo started")
    assert done.returncode == 1
    assert "started" not in done.stdout
    assert f"the login shell {shell} of ada gave no environment" in done.stderr
