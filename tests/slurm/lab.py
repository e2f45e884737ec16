"""A real Slurm cluster of four nodes on one machine, for tests and for trying things out.

    python tests/slurm/lab.py install [--accounting]   Debian's packages, by apt-get (for CI)
    python tests/slurm/lab.py start [--accounting]     munge, slurmctld, four slurmd
    python tests/slurm/lab.py env                      what to `eval` to talk to it
    python tests/slurm/lab.py stop                     every process of it, and its folder

It needs root and Debian's packages slurm-wlm and munge (with accounting: slurmdbd and
mariadb-server), and nothing else: own folder, own ports, own munge key; the machine's own Slurm,
if it has one, is not touched. The only trace outside its folder is a line in /etc/hosts that makes
the node names resolve, for JAX looks its coordinator up by that name; `stop` takes it out again.
One lab per machine. Standard library only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

FOLDER = Path("/tmp/xlatune-slurm-lab")
CONF = FOLDER / "slurm.conf"
NODES = tuple(f"node{i:03d}" for i in range(1, 5))
PORTS = {"slurmctld": 26817, "slurmdbd": 26819, "mariadb": 26806, "slurmd": 27001}
PROGRAMS = ("munged", "mungekey", "slurmctld", "slurmd", "sbatch", "srun")
ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db")
PACKAGES = ("slurm-wlm", "munge")
ACCOUNTING_PACKAGES = ("slurmdbd", "mariadb-server")
# of other tests: containers, msgfmt for the translations, a browser for the HTML pages
OTHER_PACKAGES = ("podman", "runc", "gettext", "chromium", "fonts-dejavu-core")
# for a test that kills a slurmd; the others are patient with a busy machine
QUICK_TO_SEE_A_DEAD_NODE = {"SlurmdTimeout": 5}
CGROUP_CONF = "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n"
HOSTS = Path("/etc/hosts")
HOSTS_LINE = f"127.0.0.1 {' '.join(NODES)} # xlatune slurm lab\n"
# the daemons live here and are on no ordinary user's PATH
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"


class LabError(Exception):
    """The lab cannot be started; the message says what is missing."""


def missing(*, accounting: bool = False) -> str:
    """Return what keeps the lab from starting, "" when nothing does."""
    wanted = PROGRAMS + (ACCOUNTING_PROGRAMS if accounting else ())
    absent = [name for name in wanted if shutil.which(name, path=PATH) is None]
    if absent:
        return (
            f"not installed: {', '.join(absent)} (Debian's packages {' '.join(PACKAGES)}; "
            "`python tests/slurm/lab.py install` installs them)"
        )
    return "" if os.geteuid() == 0 else "the lab needs root: four slurmd run jobs as their user"


def environment() -> dict[str, str]:
    """Return the variables that make Slurm's commands talk to the lab, and jobs log in at its home.

    A job begins with a login. A user's own profile may be slow: after a test has killed a login,
    pyenv waits a minute for the lock that it left.
    """
    first = f"{FOLDER}/bin:"
    return {"SLURM_CONF": str(CONF), "PATH": first + os.environ["PATH"].removeprefix(first)}


def is_up() -> bool:
    """Whether the lab's controller answers and all its nodes are idle or at work."""
    if not CONF.exists():
        return False
    alive = {"idle", "allocated", "mixed", "completing"}
    return len(states := _states()) == len(NODES) and set(states) <= alive


def is_configured_so() -> bool:
    """Whether the lab is as the files beside this one say, and no test has changed it."""
    return CONF.read_text() == _configuration(accounting=has_accounting())


def _configuration(*, accounting: bool) -> str:
    text = _filled(
        "slurm.conf",
        nodes=f"node[001-{len(NODES):03d}]",
        slurmd=f"[{PORTS['slurmd']}-{PORTS['slurmd'] + len(NODES) - 1}]",
        storage="accounting_storage/" + ("slurmdbd" if accounting else "none"),
    )
    if accounting:
        text += (
            "AccountingStorageHost=127.0.0.1\n"
            f"AccountingStoragePort={PORTS['slurmdbd']}\n"
            f"AccountingStoragePass={FOLDER}/munge/socket\n"  # what else would be a password
            "AccountingStorageEnforce=limits\n"
        )
    return text


def _filled(name: str, **facts: str) -> str:
    host = socket.gethostname().split(".", maxsplit=1)[0]
    template = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return template.format(**{**PORTS, "folder": FOLDER, "host": host, **facts})


def has_accounting() -> bool:
    return (FOLDER / "slurmdbd.conf").exists()


def start(*, accounting: bool = False) -> None:
    """Start the lab from nothing; what a dead one left behind is cleared away.

    Raises:
        LabError: something is missing, or a daemon does not come up.
    """
    if why := missing(accounting=accounting):
        raise LabError(why)
    stop()
    for name in ("munge", "state", "run", "log", *(f"spool.{node}" for node in NODES)):
        (FOLDER / name).mkdir(parents=True, mode=0o755)
    _make_home()
    CONF.with_name("cgroup.conf").write_text(CGROUP_CONF)
    CONF.write_text(_configuration(accounting=accounting))
    _resolve_names(present=True)
    _start_munge()
    if accounting:
        dbd = FOLDER / "slurmdbd.conf"
        dbd.write_text(_filled("slurmdbd.conf"))
        dbd.chmod(0o600)
        _start_accounting()
    start_controller()
    for node in NODES:
        start_node(node)
    _wait_for("the nodes", is_up)


def _make_home() -> None:
    """Make an empty home, and a getent that tells it as the home of each user."""
    home, getent = FOLDER / "home", FOLDER / "bin" / "getent"
    home.mkdir()
    getent.parent.mkdir()
    real = shutil.which("getent", path=PATH)
    getent.write_text(f"#!/bin/sh\n{real} \"$@\" | sed -E 's|^(([^:]*:){{5}})[^:]*|\\1{home}|'\n")
    getent.chmod(0o755)


def change(**values: object) -> None:
    """Change the lab's configuration until it is mended, e.g. SlurmdTimeout=5."""
    text = CONF.read_text()
    for name, value in values.items():
        text, count = re.subn(rf"(?m)^{name}=.*$", f"{name}={value}", text)
        assert count == 1, f"slurm.conf sets {name} {count} times"
    _configure(text)


def _configure(text: str) -> None:
    CONF.write_text(text)
    _call("scontrol", "reconfigure")


def stop() -> None:
    """End every process of the lab and remove its folder. Harmless when there is none."""
    for ask in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 5
        # a process that is asked to end may just have started another
        while (pids := processes()) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, ask)
            time.sleep(0.2)
    _resolve_names(present=False)
    shutil.rmtree(FOLDER, ignore_errors=True)
    if left := processes():
        raise LabError(f"processes {left} of the lab do not end")


def processes() -> list[int]:
    """Return the ids of the lab's processes: daemons, job steps and what jobs started."""
    marks = (f"SLURM_CONF={CONF}".encode(), f"XLATUNE_LAB={FOLDER}".encode())
    found = set()
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError, IndexError):
            pid = int(entry.name)
            # a line of /proc/<pid>/stat:  4711 (slurmd) S 1 4711 ...
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state == "Z":
                continue
            parents[pid] = int(parent)
            name = (entry / "comm").read_text().strip()
            variables = (entry / "environ").read_bytes().split(b"\0")
            ours = name.startswith(("slurm", "munged", "mariadb")) or b"SLURM_JOB_ID" in b"".join(
                variables
            )
            if ours and any(mark in variables for mark in marks):
                found.add(pid)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found - {os.getpid()})


def start_controller() -> None:
    """Start slurmctld; its saved state is read if there is any."""
    _daemon("slurmctld")
    _wait_for("slurmctld", lambda: _call("scontrol", "ping").returncode == 0)


def kill_controller() -> None:
    _kill("slurmctld")


def restart_controller_without_state() -> None:
    """Kill slurmctld and start it anew: it knows no job any more, and numbers them from 1."""
    kill_controller()
    shutil.rmtree(FOLDER / "state")
    (FOLDER / "state").mkdir()
    start_controller()


def state_saved_at() -> float:
    """Return when the controller last saved what it knows of jobs, 0 before it has done so."""
    saved = FOLDER / "state" / "job_state"
    return saved.stat().st_mtime if saved.exists() else 0.0


def start_node(node: str) -> None:
    _daemon("slurmd", "-N", node)


def kill_node(node: str) -> None:
    """Kill the slurmd of a node outright; its jobs' processes live on."""
    _kill(f"slurmd.{node}")


def mend() -> None:
    """Cancel every job and bring back every daemon and node, however they were left."""
    if has_accounting() and not pid_of("slurmdbd"):
        _start_slurmdbd()
    if _call("scontrol", "ping").returncode or not pid_of("slurmctld"):
        start_controller()
    if not is_configured_so():
        _configure(_configuration(accounting=has_accounting()))
    _call("scancel", "--user=root")
    for node in NODES:
        if not pid_of(f"slurmd.{node}"):
            start_node(node)
    _wait_for("the end of all jobs", lambda: not _call("squeue", "-h").stdout)
    states = _call("sinfo", "-h", "-N", "-p", "lab", "-o", "%N %T").stdout.splitlines()
    for node in [line.split()[0] for line in states if not line.endswith(" idle")]:
        _call("scontrol", "update", f"nodename={node}", "state=resume")
    _wait_for("idle nodes", lambda: set(_states()) == {"idle"})


def _states() -> list[str]:
    return _call("sinfo", "-h", "-N", "-p", "lab", "-o", "%T").stdout.split()


def pid_of(name: str) -> int:
    """Return the id of a daemon that runs, 0 where it does not."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((FOLDER / "run" / f"{name}.pid").read_text())
        return pid if pid in processes() else 0
    return 0


def _kill(name: str) -> None:
    if pid := pid_of(name):
        os.kill(pid, signal.SIGKILL)


def _daemon(*argv: str) -> None:
    done = _call(*argv)
    if done.returncode:
        raise LabError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr.strip()}")


def _start_munge() -> None:
    munge = FOLDER / "munge"
    _daemon("mungekey", "--create", f"--keyfile={munge}/key")
    files = ("key-file=key", "socket=socket", "pid-file=pid", "log-file=log", "seed-file=seed")
    _daemon("munged", "--force", *(f"--{each.replace('=', f'={munge}/')}" for each in files))
    _wait_for("munged", (munge / "socket").exists)


def _start_accounting() -> None:
    data = FOLDER / "mariadb"
    user = ["--no-defaults", "--user=root", f"--datadir={data}"]
    subprocess.run(
        ["mariadb-install-db", *user, "--auth-root-authentication-method=normal", "--skip-test-db"],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    grant = data / "grant.sql"
    grant.write_text(
        "create database slurm_acct_db;\n"
        "create user slurm@localhost identified by 'lab';\n"
        "grant all on slurm_acct_db.* to slurm@localhost;\n"
    )
    server = [
        "mariadbd",
        *user,
        f"--port={PORTS['mariadb']}",
        "--bind-address=127.0.0.1",
        f"--socket={data}/socket",
        f"--pid-file={data}/pid",
        f"--init-file={grant}",
        f"--log-error={FOLDER}/log/mariadb.log",
        "--innodb-buffer-pool-size=64M",
    ]
    _daemon("sh", "-c", 'setsid "$@" >/dev/null 2>&1 &', "sh", *server)
    _wait_for("mariadbd", lambda: _listens(PORTS["mariadb"]))
    _start_slurmdbd()
    _wait_for(
        "sacctmgr", lambda: _call("sacctmgr", "-i", "add", "cluster", "xlatunelab").returncode == 0
    )


def _start_slurmdbd() -> None:
    _daemon("slurmdbd")
    _wait_for("slurmdbd", lambda: _listens(PORTS["slurmdbd"]))


def _resolve_names(*, present: bool) -> None:
    """Write in place: /etc/hosts is often a mount that nothing can be renamed onto."""
    lines = HOSTS.read_text().splitlines(keepends=True)
    others = [line for line in lines if line != HOSTS_LINE]
    wanted = [*others, HOSTS_LINE] if present else others
    if wanted != lines:
        HOSTS.write_text("".join(wanted))


def _call(*argv: str) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm's, or start a daemon, which leaves our pipes when it is up."""
    return subprocess.run(
        argv,
        env={**os.environ, **environment(), "PATH": PATH, "XLATUNE_LAB": str(FOLDER)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def _wait_for(what: str, ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not ready():
        if time.monotonic() > deadline:
            raise LabError(f"{what} did not come up in 240 s; see {FOLDER / 'log'}")
        time.sleep(0.1)


def _install(*, accounting: bool) -> None:
    packages = (*PACKAGES, *OTHER_PACKAGES, *(ACCOUNTING_PACKAGES if accounting else ()))
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ("install", "-y", "--no-install-recommends", *packages)
    for words in (("update",), install):
        subprocess.run(["apt-get", "-q", *words], check=True, env=env)


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="A real Slurm of four nodes on this machine.")
    parser.add_argument("command", choices=["install", "start", "stop", "env"])
    parser.add_argument("--accounting", action="store_true", help="with slurmdbd and mariadb")
    given = parser.parse_args(argv)
    try:
        if given.command == "install":
            _install(accounting=given.accounting)
        elif given.command == "start":
            start(accounting=given.accounting)
        elif given.command == "stop":
            stop()
        else:
            sys.stdout.writelines(f"export {k}={v}\n" for k, v in environment().items())
    except LabError as error:
        sys.stderr.write(f"lab: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
