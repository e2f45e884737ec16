"""What other users of a machine cannot do: run their program as us, empty our files, end our jobs.

Each attack is made by a real user, in the way that worked once.
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
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_xlatune.executors import LOCK_VARIABLE, machine_lock, payload
from pytest_xlatune.executors.folder import read_outcomes, read_spec, write_spec
from pytest_xlatune.ledger import LEDGER, Ledger, Noted
from pytest_xlatune.model.trial import LaunchSpec
from pytest_xlatune.sweep.groups import RunSettings
from pytest_xlatune.sweep.settings import resolve_options
from pytest_xlatune.tasks.runs import open_folder
from pytest_xlatune.workers import probe_environment
from tests.helpers.payloads import PATH
from tests.helpers.tables import rows

# the package imports them when it needs them, and another user may not read our interpreter
_LOADED = (encodings.ascii, encodings.utf_8_sig, grp, hashlib)


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


@pytest.fixture(scope="module")
def everyone() -> Iterator[People]:
    """Make the users; skip where that cannot be."""
    if os.geteuid() or not shutil.which("useradd"):
        end = pytest.fail if os.environ.get("CI") else pytest.skip
        end("users can be made by root alone, with useradd")
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


CELL = "sweep/cell"


@pytest.fixture
def people(everyone: People) -> Iterator[People]:
    yield everyone
    everyone.root.chmod(0o755)
    subprocess.run(["rm", "-rf", *map(str, everyone.root.iterdir())], check=True)


def opened(project: Path, access: str = "owner") -> Callable[[], Path]:
    """Return the work of a session that begins: it makes its folders, or is refused."""

    def work() -> Path:
        settings = RunSettings(workdir=project / ".xlatune", access=access)  # type: ignore[arg-type]
        return open_folder(settings, CELL)

    return work


def leaves(word: str, at: Path) -> LaunchSpec:
    return LaunchSpec(argv=("sh", "-c", f"echo {word} >> {at}"), env=PATH)


def ran(folder: Path, digest: str, lock: str = "") -> Callable[[], Any]:
    return lambda: payload.run(str(folder), lock, digest)


def modes(folder: Path) -> str:
    status = folder.stat()
    return f"{stat.S_IMODE(status.st_mode):o}"


# -- who made a folder on the way, and what it is --------------------------------------------------

BY_GROUP = "may be written by its group"


@rows(
    "owner, group, mode, words",
    {
        "a group may write in it": ("ann", "team", 0o2775, BY_GROUP),
        "a group may read it": ("ann", "team", 0o2755, ""),
        "sticky, of all": ("ann", "team", 0o1777, ""),
        "a group of the user alone": ("ann", "ann", 0o775, ""),
        "a stranger's folder": ("stranger", "stranger", 0o777, "belongs to user"),
        "a stranger's link": ("stranger", "stranger", 0, "is a link"),
        "root's, and a group may write in it": ("root", "team", 0o2770, BY_GROUP),
    },
)
def test_who_made_a_folder_on_the_way(
    people: People, owner: str, group: str, mode: int, words: str
) -> None:
    project = people.root / "project"
    uids = {"root": 0, "ann": people.ann.uid, "stranger": people.stranger.uid}
    gids = {"team": people.team, "ann": people.ann.gid, "stranger": people.stranger.gid}
    if mode:
        project.mkdir()
    else:
        project.symlink_to("/tmp")
    os.chown(project, uids[owner], gids[group], follow_symlinks=False)
    if mode:
        project.chmod(mode)
    said = people.ann.does(opened(project))
    if not words:
        assert said == project / ".xlatune" / CELL
        made = (said, said.parent, said.parent.parent)
        assert [modes(each)[-3:] for each in made] == ["700", "700", "700"], "whatever the umask"
        return
    assert said.startswith("ConfigError: --xlatune-workdir: ")
    assert f"{project} {words}" in said
    if words != BY_GROUP:
        assert people.stranger.name in said
        return
    assert list(project.iterdir()) == [], "nothing was made"
    assert "--xlatune-workdir DIR" in said


def submitted(people: People, cell: Path) -> tuple[Path, str, Path]:
    """Return the folder of a job of Ann's, its digest, and the file that its trainer writes."""
    said, folder = people.root / "said", cell / "session" / "trial.1"
    said.touch()
    said.chmod(0o666)
    return folder, people.ann.does(lambda: write_spec(folder, leaves("ann", said))), said


WORDS = {"a folder in its place": "{folder} belongs to user {ben}", "a link": "is a link",
         "opened to all": "by every user"}  # fmt: skip


@rows("way", {way: way for way in WORDS})
def test_a_changed_attempt_runs_nothing_as_us(people: People, way: str) -> None:
    """The project was closed when the job was submitted, and is open while the job waits."""
    project = people.project(mode=0o2755)
    cell = people.ann.does(opened(project))
    folder, digest, said = submitted(people, cell)
    project.chmod(0o2775)
    link = project / "link"

    def swap() -> None:
        (project / ".xlatune").rename(project / "aside")
        folder.mkdir(parents=True)
        write_spec(folder, leaves("ben", said))
        (cell / LEDGER).write_text('{"schema":4}\n')

    if way == "opened to all":
        folder.chmod(0o777)
    else:
        assert people.ben.does(swap if way != "a link" else lambda: link.symlink_to(folder)) is None
    answer = people.ann.does(ran(link if way == "a link" else folder, digest))
    assert WORDS[way].format(folder=folder, ben=people.ben.name) in str(answer)
    assert said.read_text() == ""
    if way != "a folder in its place":
        return
    assert [each.name for each in folder.iterdir()] == ["spec.json"], "nothing was written there"
    assert people.ann.does(lambda: read_spec(folder)) is None
    assert "belongs to user" in people.ann.does(lambda: read_outcomes(folder)[0].reason)
    assert "belongs to user" in people.ann.does(lambda: Ledger(cell / LEDGER).refresh())


@pytest.mark.parametrize("has_secret", [False, True], ids=["spec.json", "secrets.json"])
def test_a_job_runs_what_was_submitted(tmp_path: Path, *, has_secret: bool) -> None:
    """Not even what this user's own other program wrote into its folder since."""
    folder, at = tmp_path / "t.1", tmp_path / "said"
    spec = LaunchSpec(argv=("sh", "-c", f"echo $API_KEY >> {at}"), env={**PATH, "API_KEY": "k-1"})
    digest = write_spec(folder, spec)
    assert write_spec(folder, spec) == digest, "a job that was accepted unseen still runs"
    name = payload.SECRETS if has_secret else payload.SPEC
    kept = (folder / name).read_text()
    (folder / name).write_text(kept.replace("k-1", "k-2") if has_secret else f"{kept} ")
    argv = [sys.executable, "-I", "-S", payload.__file__, str(folder), digest]
    subprocess.run(argv, check=True)
    outcome = read_outcomes(folder)[0]
    assert outcome.state == "failed"
    assert "spec.json was changed" in outcome.reason
    assert not at.exists()


# -- what is found above files of ours -------------------------------------------------------------


def above(people: People, way: str) -> tuple[Path, Person]:
    """Return a folder above Ann's, and who may put a file there by this way."""
    folder = people.root / "above"
    folder.mkdir()
    owner, group, mode, who = {
        "sticky": (0, 0, 0o1777, people.stranger),
        "open to all": (people.ann.uid, people.ann.gid, 0o777, people.stranger),
        "open to a group": (people.ann.uid, people.team, 0o2775, people.ben),
        "a stranger's": (people.stranger.uid, people.stranger.gid, 0o755, people.stranger),
        "her own": (people.ann.uid, people.ann.gid, 0o755, people.ann),
        "her own in a sticky one": (0, 0, 0o1777, people.ann),
    }[way]
    os.chown(folder, owner, group)
    folder.chmod(mode)
    inside = folder / "ann"
    inside.mkdir()
    os.chown(inside, people.ann.uid, people.ann.gid)
    return inside, who


WAYS = ("sticky", "open to all", "open to a group", "a stranger's")
OWN = ("her own", "her own in a sticky one")


# a repository that names a program in two ways
MAKES = """
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
cd {at}
printf '#!/bin/sh\\ntouch {ran}.$(id -u)\\n' >evil.sh
chmod 755 evil.sh
git init -q
git -c user.name=x -c user.email=x commit --allow-empty -qm x
git config core.fsmonitor {at}/evil.sh
git config core.hooksPath {at}
"""


@pytest.mark.parametrize("kind", ["a folder", "a link", "a file"])
@pytest.mark.parametrize("way", [*WAYS, *OWN])
def test_another_s_repository_above_ours_runs_nothing(
    people: People, monkeypatch: pytest.MonkeyPatch, way: str, kind: str
) -> None:
    monkeypatch.setenv("HOME", str(people.root))
    inside, who = above(people, way)
    top, ran = inside.parent, people.root / "ran"
    at = top if kind == "a folder" else people.root / "other"

    def makes() -> None:
        at.mkdir(exist_ok=True)
        subprocess.run(["sh", "-ec", MAKES.format(at=at, ran=ran)], check=True)
        if kind == "a link":
            (top / ".git").symlink_to(at / ".git")
        elif kind == "a file":
            (top / ".git").write_text(f"gitdir: {at}/.git\n")

    people.root.chmod(0o777)  # where the other kinds have their repository
    assert who.does(makes) is None
    found = people.ann.does(lambda: probe_environment.repositories([str(inside)]))
    assert not list(people.root.glob("ran.*")), "no program was run"
    # git refuses a repository in a folder of another user, whoever owns what is in it
    assert list(found) == ([str(top)] if way == "her own" else [])
    assert all(each[40:] == ", clean" for each in found.values())


@pytest.mark.parametrize("kind", ["a file", "a link", "open to all"])
@pytest.mark.parametrize("way", [*WAYS, *OWN])
def test_another_s_settings_above_ours_are_not_read(people: People, way: str, kind: str) -> None:
    inside, who = above(people, way)
    path = inside.parent / "xlatune.toml"

    def writes() -> None:
        at = inside.parent / "other.toml" if kind == "a link" else path
        at.write_text('model = "evil"\n')
        at.chmod(0o666 if kind == "open to all" else 0o644)
        if kind == "a link":
            path.symlink_to(at)

    assert who.does(writes) is None
    read = people.ann.does(lambda: resolve_options({}, {}, {}, root=inside).for_sweeps)
    assert not isinstance(read, str), read
    is_ours = way in OWN and kind != "open to all"
    assert read.values == ({"model_tag": "evil"} if is_ours else {})
    assert read.file == (str(path) if is_ours else "")
    assert read.ignored_file.startswith("" if is_ours else f"{path} is not read: {inside.parent}")
    assert bool(read.ignored_file) is not is_ours
    named = {"xlatune_config": str(path)}
    assert people.ann.does(lambda: resolve_options(named, {}, {}, root=inside).for_sweeps.file)


# -- a stranger at the machine's lock --------------------------------------------------------------


def test_a_stranger_s_runtime_folder(people: People, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(LOCK_VARIABLE, raising=False)
    monkeypatch.setenv("TMPDIR", "/var/tmp")
    place = Path(f"/tmp/xlatune-{people.ann.uid}")
    people.stranger.does(lambda: place.mkdir(mode=0o777))
    try:
        said = people.ann.does(machine_lock)
        assert f"{place} belongs to user {people.stranger.name}" in said
    finally:
        place.rmdir()
    assert people.ann.does(machine_lock) == place / "machine.lock"
    assert modes(place) == "700"
    place.chmod(0o777)
    assert "written by every user" in people.ann.does(machine_lock)
    (place / "machine.lock").unlink(missing_ok=True)
    place.rmdir()


def test_a_stranger_s_link_as_the_machine_s_lock_is_not_followed(people: People) -> None:
    cell = people.ann.does(opened(people.project(mode=0o755)))
    folder, digest, said = submitted(people, cell)
    kept, shared = people.root / "diary", people.root / "shared"
    kept.write_text("dear diary\n")
    os.chown(kept, people.ann.uid, people.ann.gid)
    shared.mkdir()
    shared.chmod(0o1777)
    lock = shared / "machine.lock"
    people.stranger.does(lambda: lock.symlink_to(kept))
    assert "is a link" in people.ann.does(ran(folder, digest, str(lock)))["reason"]
    assert kept.read_text() == "dear diary\n"
    assert said.read_text() == ""


# -- a group that may read a work directory --------------------------------------------------------


@rows("access, readers", {"all": ("all", "ben stranger"), "group": ("group", "ben"),
                          "owner": ("owner", "")})  # fmt: skip
def test_others_read_what_is_open_to_them(people: People, access: str, readers: str) -> None:
    project, note = people.project(mode=0o2755), Noted(text="it began")
    cell = people.ann.does(opened(project, access), umask=0o077)
    people.ann.does(lambda: Ledger(cell / LEDGER).append(note, at_s=1.0), umask=0o077)
    for name, person in (("ben", people.ben), ("stranger", people.stranger)):
        shown = person.does(lambda: len(Ledger(cell / LEDGER, shows_only=True).refresh()))
        assert (shown == 1) is (name in readers)
        said = person.does(lambda: Ledger(cell / LEDGER).append(note, at_s=2.0))
        assert said.startswith("LedgerError")
        assert "PermissionError" in person.does((cell / "x").touch)
    if "stranger" in readers:  # it is shown, and not gone on with
        said = people.stranger.does(lambda: Ledger(cell / LEDGER).refresh())
        assert said.startswith(f"LedgerError: {cell} belongs to user {people.ann.name}")


def test_a_link_in_a_work_directory_opens_no_other_folder_to_the_group(people: People) -> None:
    project, private = people.project(mode=0o2755), people.root / "private"
    people.ann.does(opened(project, "group"))
    private.mkdir(mode=0o700)
    os.chown(private, people.ann.uid, people.ann.gid)
    sweep = project / ".xlatune" / "sweep"

    def swap() -> None:
        sweep.rename(project / "aside")
        sweep.symlink_to(private)

    assert people.ann.does(swap) is None
    people.ann.does(opened(project, "group"))
    assert (modes(private), private.stat().st_gid) == ("700", people.ann.gid)
