"""Open files and folders that are this user's own: through descriptors, and without links.

Jobs run the files in our folders, so a file counts only if this user wrote it. All access to the
work directory goes through this module: a folder is opened once, without following a link, and its
content is opened relative to that descriptor. Renaming or replacing the folder then has no effect.

This user and root are trusted; in a folder that the user shares with a group (`share_with_group`,
by `--xlatune-access group`), the members of that group are too. Files that are only shown may
belong to anybody: `open_shown`.

The payload loads this module from its file, so it uses only the standard library and imports
nothing of ours. It knows no file names.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import grp
import json
import os
import pwd
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

# modes of a campaign's folders by who may read there; members of the group may also write
MODES: Mapping[str, int] = {"owner": 0o700, "group": 0o2770, "all": 0o2755}
_CLOSED = MODES["owner"]
_ACL = "system.posix_acl_access"
_TRUST = "trust the members of its group (--xlatune-access group)"
# errors for a path that is not a file of ours
NO_FILE = frozenset(
    {errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENOTDIR, errno.ENXIO}
)
_READ = os.O_RDONLY | os.O_NONBLOCK  # does not block on a named pipe that another program made


class NotOursError(PermissionError):
    """A file or folder that another user could have written, or no plain file.

    The message says what to do.
    """


# a folder whose files may belong to a group -> the work directory with that group
_SHARED: dict[Path, Path] = {}


def share_with_group(workdir: Path, *others: Path) -> None:
    """Trust the members of a work directory's group in this folder and in `others`."""
    for folder in (workdir, *others):
        _SHARED.update(dict.fromkeys((folder.absolute(), folder.resolve()), workdir))


def _shared_at(path: Path) -> Path | None:
    """Return the work directory whose group shares a file or folder; None if it is not shared."""
    place = path.absolute()
    return next((_SHARED[folder] for folder in (place, *place.parents) if folder in _SHARED), None)


def is_trusted(uid: int, path: Path | None = None) -> bool:
    """Return whether a user's files count as ours, at a path that a group may share."""
    if uid in (os.geteuid(), 0):
        return True
    shared = None if path is None or not _SHARED else _shared_at(path)
    return shared is not None and _is_member(uid, _group(shared))


def _group(path: Path) -> int:
    """Return the group of a work directory; before it exists, the group that it will get."""
    if os.path.exists(path):  # noqa: PTH110 - it raises where we may not look
        return path.stat().st_gid
    above = (parent for parent in path.parents if os.path.exists(parent))  # noqa: PTH110
    return _group_in(next(above, Path("/")))


def _group_in(folder: Path) -> int:
    """Return the group for a shared folder that is created in this one.

    It is this folder's group if the folder is group-writable, even without the setgid bit. In a
    folder where every user may write, such as a scratch folder, it is our own group.
    """
    status = folder.stat()
    # Without this, the sessions of other members would be refused in a folder without setgid.
    is_shared = status.st_mode & stat.S_IWGRP and not status.st_mode & stat.S_ISVTX
    is_kept = status.st_mode & stat.S_ISGID or (is_shared and _is_own_group(status.st_gid))
    return status.st_gid if is_kept else os.getegid()


def _is_own_group(gid: int) -> bool:
    return gid in {os.getegid(), *os.getgroups()}


@functools.cache
def _is_member(uid: int, gid: int) -> bool:
    """Return whether this machine lists a user as member of a group of which we are members."""
    if not _is_own_group(gid):
        return False
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return False
    return gid in os.getgrouplist(user.pw_name, user.pw_gid)


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class Folder:
    """A folder of ours that is held open; later changes of its path have no effect.

    It is opened by its path, or by its name in the opened folder `parent`.

    Raises:
        NotOursError: another user made it or may write in it, or the path is a link.
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, *, parent: Folder | None = None) -> None:
        self.path = path
        self.fd = _open_folder(path, parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1

    @property
    def mode(self) -> int:
        """The mode of the folder, without the sticky bit."""
        return stat.S_IMODE(os.fstat(self.fd).st_mode) & 0o2777

    @property
    def mode_of_files(self) -> int:
        """The mode of files in it: the folder's if that is one of `MODES`, else for us alone."""
        return (self.mode if self.mode in MODES.values() else _CLOSED) & 0o666

    @property
    def is_in_place(self) -> bool:
        """Whether the path still leads to this folder."""
        by_path, by_descriptor = self.path.stat(), os.fstat(self.fd)
        return os.path.samestat(by_path, by_descriptor)

    def open(self, name: str, flags: int = _READ, *, mode: int | None = None) -> int:
        """Return the descriptor of a regular file of ours in the folder; O_CREAT creates it.

        A created file gets `mode`, whatever the umask; see `mode_of_files`.

        Raises:
            NotOursError: it is a link, a pipe, a device, or another user's file.
            OSError: it cannot be opened.
        """
        path = self.path / name
        safe = flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        if flags & os.O_CREAT:
            with contextlib.suppress(FileExistsError):
                created = os.open(name, safe | os.O_EXCL, 0o600, dir_fd=self.fd)
                os.set_blocking(created, True)
                os.fchmod(created, self.mode_of_files if mode is None else mode)
                return created
            if flags & os.O_EXCL:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
            # with O_CREAT, another user's link would make us create a file at its target
            safe &= ~os.O_CREAT
        try:
            # The file is truncated only after its owner has been checked.
            descriptor = os.open(name, safe & ~os.O_TRUNC, dir_fd=self.fd)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):
                raise _refused("no file", path) from None
            raise _explained(error, path, name, self.fd) from None
        try:
            _check_file(os.fstat(descriptor), path)
            if flags & os.O_TRUNC:
                os.ftruncate(descriptor, 0)
            os.set_blocking(descriptor, True)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def read(self, name: str, most_bytes: int = -1) -> bytes:
        """Return the content of a file of ours in it, or its first bytes. Raises as `open` does."""
        with os.fdopen(self.open(name), "rb") as file:
            return file.read(most_bytes)

    def create(self, name: str, content: bytes) -> bool:
        """Create a file with this content; return False if it exists."""
        try:
            descriptor = self.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        except FileExistsError:
            return False
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        return True

    def write(self, name: str, content: bytes, *, mode: int | None = None) -> None:
        """Replace a file atomically; several ranks may write the same one."""
        part = f".{name}.{os.uname().nodename}.{os.getpid()}"
        self.remove(part)
        descriptor = self.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode=mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
        except BaseException:
            self.remove(part)  # a part of a file would fill a full disk further
            raise

    def has(self, name: str) -> bool:
        """Return whether the folder contains anything with this name."""
        with contextlib.suppress(FileNotFoundError):
            os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            return True
        return False

    def remove(self, name: str) -> None:
        """Remove a file, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)

    def below(self, name: str) -> Folder:
        """Return a folder in this one, created with the same mode if it is missing."""
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=self.fd)
            os.chmod(name, self.mode, dir_fd=self.fd)
        return Folder(self.path / name, parent=self)


def _open_folder(path: Path, parent: Folder | None) -> int:
    """Open a folder by its path, or by its name in an opened folder."""
    name, at = (str(path), None) if parent is None else (path.name, parent.fd)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        descriptor = os.open(name, flags, dir_fd=at)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR) and path.is_symlink():
            raise _refused("a link", path) from None
        raise _explained(error, path, name, at) from None
    try:
        _check_folder(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_file(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _refused("no file", path)
    if not is_trusted(status.st_uid, path):
        raise _refused("another's", path, status.st_uid)


def _check_folder(status: os.stat_result, path: Path) -> None:
    if not is_trusted(status.st_uid, path):
        raise _refused("another's", path, status.st_uid)
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise _refused("open", path)


_REFUSALS = {
    "a link": (
        "{path} is a link, expected a folder of ours: remove the link, and find out who made it"
    ),
    "no file": (
        "{path} is a link, a pipe, a device or a folder, expected a file of ours: nothing is read "
        "from it; find out who made it"
    ),
    "another's": (
        "{path} belongs to user {user}, expected {expected}: nothing in it is read. If members of "
        "a group share the work directory, use --xlatune-access group; else find out who made it"
    ),
    "open": (
        "{path} may be written by every user, so anything in it may be another user's: "
        "chmod o-w {path}, or name another folder"
    ),
    "closed": (
        "{path} is closed to you, because user {user} made it without access for the group; name "
        "a work directory that was made with --xlatune-access group"
    ),
}


def _refused(kind: str, path: Path, uid: int = 0) -> NotOursError:
    expected, user = _name_of(os.geteuid()), _name_of(uid)
    return NotOursError(_REFUSALS[kind].format(path=path, expected=expected, user=user))


def _explained(error: OSError, path: Path, name: str, at: int | None) -> OSError:
    """Return the error for a file or folder that cannot be opened; it names the owner."""
    error.filename = str(path)
    if error.errno == errno.EACCES:
        with contextlib.suppress(OSError):
            uid = os.stat(name, dir_fd=at, follow_symlinks=False).st_uid
            return error if uid == os.geteuid() else _refused("closed", path, uid)
    return error


# -- by path --------------------------------------------------------------------------------------


def open_file(path: Path, flags: int = _READ) -> int:
    """Return the descriptor of a file of ours; see `Folder.open`."""
    with Folder(path.parent) as folder:
        return folder.open(path.name, flags)


def read_bytes(path: Path, *, most_bytes: int = -1) -> bytes:
    """Return a file of ours, or its first bytes. Raises as `Folder` and its `open` do."""
    with Folder(path.parent) as folder:
        return folder.read(path.name, most_bytes)


def read_text(path: Path) -> str:
    """Return the text of a file of ours; bytes that are no UTF-8 are replaced."""
    return read_bytes(path).decode("utf-8", "replace")


def open_shown(path: Path) -> int:
    """Return the descriptor of a plain file that is only read, whoever owns it; links are followed.

    Raises:
        NotOursError: it is a folder, or a pipe or device on which reading might block.
        OSError: it cannot be opened.
    """
    try:
        file = os.open(path, _READ | os.O_CLOEXEC)
    except OSError as error:
        raise _explained(error, path, str(path), None) from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise _refused("no file", path)
    return file


def read_named(path: Path, *, encoding: str = "utf-8") -> str:
    """Return the text of a file that the user named.

    It raises as `open_shown` does, and ValueError if the text has another encoding.
    """
    with os.fdopen(open_shown(path), "rb") as file:
        return file.read().decode(encoding)


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file of ours atomically."""
    with Folder(path.parent) as folder:
        folder.write(path.name, content)


def write_json(path: Path, data: Mapping[str, Any] | list[str]) -> None:
    """Replace a file of ours atomically by JSON data."""
    write_bytes(path, json.dumps(data).encode("ascii"))


def restrict_modes(folder: Path) -> None:
    """Restrict the modes of other programs' files in a folder to those that our files have."""
    if not folder.is_dir():
        return
    with Folder(folder) as opened:
        for name in os.listdir(opened.fd):  # noqa: PTH208 - below the descriptor
            with contextlib.suppress(OSError):
                file = opened.open(name)
                try:
                    os.fchmod(file, stat.S_IMODE(os.fstat(file).st_mode) & opened.mode)
                finally:
                    os.close(file)


# -- folders that we make -------------------------------------------------------------------------


def make_folder(folder: Path, mode: int | None = None) -> None:
    """Create a folder and its missing parents, whatever the umask.

    They get `mode`; by default that of the parent if it is one of `MODES`, else they are closed to
    all other users.
    """
    if folder.is_dir():
        return
    make_folder(folder.parent, mode)
    if mode is None:
        above = stat.S_IMODE(folder.parent.stat().st_mode)
        mode = above if above in MODES.values() else _CLOSED
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        if mode == MODES["group"] and folder.stat().st_gid != (gid := _group_in(folder.parent)):
            os.chown(folder, -1, gid)
        folder.chmod(mode)


def make_folder_for(workdir: Path, name: Path | str, access: str) -> Path:
    """Create and return the folder `name` below a work directory, with the mode for `access`.

    Missing parents are created too. Existing folders of ours get the mode, and for a group also the
    group of the work directory, unless they are reached through a link. An existing work directory
    is opened as far as necessary, but never closed.
    """
    mode, folder = MODES[access], workdir / name
    make_folder(folder, mode)
    for path in (folder, *folder.parents):
        _set_access(path, mode, workdir, access=access)
        if path == workdir:
            break
    return folder


def _set_access(folder: Path, mode: int, workdir: Path, *, access: str) -> None:
    is_top = folder == workdir
    no_link = 0 if is_top else os.O_NOFOLLOW
    try:
        # It is opened without links: else a member's link could have us open its target to all.
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | no_link)
    except OSError as error:
        if error.errno in NO_FILE:  # a link, or a folder that another user closed
            return
        raise
    try:
        status, gid = os.fstat(descriptor), workdir.stat().st_gid
        if status.st_uid != os.geteuid():
            return
        if access == "group" and status.st_gid != gid and _is_own_group(gid):
            os.fchown(descriptor, -1, gid)
        old_mode = stat.S_IMODE(status.st_mode)
        new_mode = mode
        if is_top:
            new_mode = old_mode if access == "owner" else old_mode | mode
        if old_mode != new_mode:
            os.fchmod(descriptor, new_mode)
    finally:
        os.close(descriptor)


# -- the path to a folder -------------------------------------------------------------------------


def check_path(folder: Path, *, option: str, shared: Path | None = None) -> None:
    """Raise NotOursError if another user could replace a folder on the path to a folder.

    It checks every folder from the root down, and the targets of links, which must exist. Each must
    belong to a trusted user, and be writable by others only with the sticky bit, which protects our
    folders from being moved. `shared` is the work directory whose group is trusted; with None, the
    message asks the user to trust it.

    Raises:
        NotOursError: the message names the folder, and says what to do.
    """
    shared = shared or _shared_at(folder)
    for place in (*reversed(folder.absolute().parents), folder.absolute()):
        try:
            status = place.lstat()
        except (FileNotFoundError, PermissionError):
            return  # what we create is ours, and where we cannot look, we create nothing
        if stat.S_ISLNK(status.st_mode):
            if not is_trusted(status.st_uid, shared):
                danger = f"is a link of user {_name_of(status.st_uid)}"
                raise _unsafe_path(place, danger, option, [])
            check_path(place.parent / place.readlink(), option=option, shared=shared)
            continue
        danger, remedies = _danger(place, shared)
        if danger:
            raise _unsafe_path(place, danger, option, remedies)


def _may_be_roots(uid: int) -> bool:
    """Return whether a user namespace hides an owner, so that root looks like any stranger."""
    try:
        hidden = int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
        mapped = Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return False
    # a line has the id inside, the id outside, and the count:  1001 1001 1
    return uid == hidden and not any(line.split()[1] == "0" for line in mapped)


def why_not_ours(path: Path) -> str:
    """Return why a file that was found, not named, may be another user's; "" if it is ours.

    It checks the file, its folder, and the target of a link.
    """
    for found_path in (path, path.resolve()):
        # In a user namespace root and strangers may share an id, which only a folder may have.
        if not is_trusted(uid := found_path.lstat().st_uid):
            return f"{found_path} belongs to user {_name_of(uid)}"
        for place in (found_path, found_path.parent):
            danger, _ = _danger(place, None)
            if danger:
                return f"{place} {danger}"
    return ""


def _danger(path: Path, shared: Path | None) -> tuple[str, list[str]]:
    """Return how another user may write in a folder ("" if not), and what to do about it.

    `shared` is the work directory whose group is trusted.
    """
    status = path.stat()
    mode = status.st_mode
    if not is_trusted(status.st_uid, shared) and not _may_be_roots(status.st_uid):
        is_theirs = mode & stat.S_IWGRP and _is_member(status.st_uid, status.st_gid)
        remedies = [_how_to_trust(status.st_gid, shared)] if is_theirs else []
        return f"belongs to user {_name_of(status.st_uid)}", remedies
    if mode & stat.S_ISVTX and stat.S_ISDIR(mode):
        return "", []
    # only the owner of a folder can change its mode
    is_own = status.st_uid == os.geteuid()
    if mode & stat.S_IWOTH:
        return "may be written by every user", [f"chmod o-w {path}"] if is_own else []
    gid = status.st_gid
    if mode & stat.S_IWGRP and not _is_private(path, gid):
        if shared is not None and _is_own_group(gid) and gid == _group(shared):
            return "", []
        remedies = [f"chmod g-w {path}"] if is_own else []
        remedies += [_how_to_trust(gid, shared)] if _is_own_group(gid) else []
        return f"may be written by group {_group_name(gid)}", remedies
    return "", []


def _how_to_trust(gid: int, shared: Path | None) -> str:
    if shared is None:
        return _TRUST
    name = _group_name(gid)
    return f"give the work directory that group (mkdir -p {shared}; chgrp -R {name} {shared})"


def _is_private(folder: Path, gid: int) -> bool:
    """Return whether a group is root's, or a user's private group without other members."""
    with contextlib.suppress(OSError):
        os.getxattr(folder, _ACL)
        return False  # an access control list may name users that the mode does not show
    if gid == 0:
        return True
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _unsafe_path(folder: Path, danger: str, option: str, remedies: Sequence[str]) -> NotOursError:
    advice = "".join(f"{remedy}, or " for remedy in remedies)
    return NotOursError(
        f"{option}: {folder} {danger}, so another user could put a folder in the place of yours "
        f"and have your jobs run their programs; {advice}keep the work directory elsewhere "
        f"({option} DIR, such as a folder in your home)"
    )


# -- the machine's folder, and locks --------------------------------------------------------------


def runtime_folder() -> Path:
    """Return this user's folder for files that last until the machine reboots; it is created.

    It is logind's folder if there is one, else below /tmp. XDG_RUNTIME_DIR and TMPDIR are not used,
    because jobs, `su` and containers may have those of another session, while all sessions of the
    machine must share the folder.

    Raises:
        NotOursError: another user made it, or others may write in it.
    """
    uid = os.geteuid()
    above = Path(f"/run/user/{uid}")
    is_usable = above.is_dir() and above.stat().st_uid == uid and os.access(above, os.W_OK)
    folder = above / "xlatune" if is_usable else Path(f"/tmp/xlatune-{uid}")  # noqa: S108 - checked
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    with Folder(folder) as opened:
        if os.fstat(opened.fd).st_uid != uid or opened.mode & 0o022:
            raise NotOursError(
                f"{folder} may be written by others, expected a folder of yours with mode 0700: "
                f"look into it, then chmod 700 {folder}, or set XLATUNE_MACHINE_LOCK to the path "
                "of another lock file"
            )
        os.fchmod(opened.fd, _CLOSED)
    return folder


def mode_in(folder: Path) -> int:
    """Return the mode of files in a folder of ours; see `Folder.mode_of_files`."""
    with Folder(folder) as opened:
        return opened.mode_of_files


def open_lock(path: Path) -> int:
    """Return the descriptor of a lock file of ours, created if missing; it does not lock it.

    The content stays as it is.

    Raises:
        NotOursError: it is a link, another user's file, or in a folder where others may write.
        OSError: it cannot be opened.
    """
    make_folder(path.parent)
    return open_file(path, os.O_RDWR | os.O_CREAT)
