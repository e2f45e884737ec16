"""Real users of this machine, made for a test and removed after it, and what they do as themselves.

It needs root. Two are in a group together, the third is a stranger. What a user does runs in a fork
of this process, for another user may not read our interpreter: modules that it needs have to be
imported before.
"""

from __future__ import annotations

import contextlib
import encodings.ascii
import encodings.utf_8_sig
import grp
import hashlib
import os
import pickle
import pwd
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_LOADED = (
    encodings.ascii,
    encodings.utf_8_sig,
    grp,
    hashlib,
)  # the package imports them when it needs them


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    name: str
    uid: int
    gid: int

    def does(self, work: Callable[[], Any], *, umask: int = 0o002) -> Any:
        """Return what a function returns for this user; what it raises is returned as text."""
        reader, writer = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # xdist's worker has threads
            pid = os.fork()
        if not pid:
            answer = f"{self.name} was not let begin"
            with contextlib.suppress(BaseException):
                os.initgroups(self.name, self.gid)
                os.setresgid(self.gid, self.gid, self.gid)
                os.setresuid(self.uid, self.uid, self.uid)
                os.umask(umask)
                try:
                    answer = work()
                except BaseException as error:  # noqa: BLE001 - it is told to the test
                    answer = f"{type(error).__name__}: {error}"
                os.write(writer, pickle.dumps(answer))
            os._exit(0)
        os.close(writer)
        with os.fdopen(reader, "rb") as file:
            said = file.read()
        os.waitpid(pid, 0)
        return pickle.loads(said)


@dataclass(frozen=True, slots=True, kw_only=True)
class People:
    """Two colleagues in a group, a stranger, and a folder that all may enter."""

    ann: Person
    ben: Person
    stranger: Person
    team: int
    root: Path

    def project(self, *, mode: int = 0o2775) -> Path:
        """Return a folder of Ann's that belongs to the group."""
        folder = self.root / "project"
        folder.mkdir()
        os.chown(folder, self.ann.uid, self.team)
        folder.chmod(mode)
        return folder


@contextlib.contextmanager
def made() -> Iterator[People]:
    """Make the users; skip where that cannot be."""
    if os.geteuid() or not shutil.which("useradd"):
        if os.environ.get("CI"):
            pytest.fail("users can be made by root alone, with useradd")
        pytest.skip("users can be made by root alone, with useradd")
    stem = f"xlt{os.getpid()}"
    names = [f"{stem}{letter}" for letter in "abs"]
    root = Path(tempfile.mkdtemp(prefix="xlatune-people-", dir="/tmp"))
    root.chmod(0o755)
    try:
        _run("groupadd", f"{stem}team")
        for name in names:
            others = ["-G", f"{stem}team"] if name != names[2] else []
            _run("useradd", "--no-create-home", "--user-group", *others, name)
        known = [pwd.getpwnam(name) for name in names]
        ann, ben, stranger = (
            Person(name=each.pw_name, uid=each.pw_uid, gid=each.pw_gid) for each in known
        )
        team = grp.getgrnam(f"{stem}team").gr_gid
        for each in known:  # of an earlier user of this number
            shutil.rmtree(f"/tmp/xlatune-{each.pw_uid}", ignore_errors=True)
        yield People(ann=ann, ben=ben, stranger=stranger, team=team, root=root)
    finally:
        for name in names:
            _run("userdel", name, check=False)
        _run("groupdel", f"{stem}team", check=False)
        shutil.rmtree(root)


def _run(*argv: str, check: bool = True) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert not (check and done.returncode), done.stderr
