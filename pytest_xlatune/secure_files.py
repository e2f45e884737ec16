"""Open files and folders that are this user's own: through descriptors, and without links.

Jobs run the files in our folders, so a file counts only if this user wrote it. All access to the
work directory goes through this module: a folder is opened once, without following a link, and its
content is opened relative to that descriptor. Renaming or replacing the folder then has no effect.

This user and root are trusted. Files that are only shown may belong to anybody: `open_shown`.

The payload loads this module from its file, so it uses only the standard library and imports
nothing of ours. It knows no file names.
"""

from __future__ import annotations

import contextlib
import errno
import grp
import json
import os
import pwd
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

# modes of a campaign's folders by who may read there
MODES: Mapping[str, int] = {"owner": 0o700, "group": 0o2750, "all": 0o2755}
_CLOSED = MODES["owner"]
_ACL = "system.posix_acl_access"
# errors for a path that is not a file of ours
NO_FILE = frozenset(
    {errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENOTDIR, errno.ENXIO}
)
_READ = os.O_RDONLY | os.O_NONBLOCK  # does not block on a named pipe that another program made


class NotOursError(PermissionError):
    """A file or folder that another user could have written, or that is no plain file.

    The message says what to do.
    """


def is_trusted(uid: int) -> bool:
    """Return whether a user's files count as ours."""
    return uid in (os.geteuid(), 0)


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
                raise _no_file(path) from None
            error.filename = str(path)
            raise
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
            raise NotOursError(
                f"{path} is a link, expected a folder of ours: remove the link, and find out who "
                "made it"
            ) from None
        error.filename = str(path)
        raise
    try:
        _check_folder(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_file(status: os.stat_result, path: Path) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _no_file(path)
    _check_owner(status, path)


def _check_folder(status: os.stat_result, path: Path) -> None:
    _check_owner(status, path)
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise NotOursError(
            f"{path} may be written by every user, so anything in it may be another user's: "
            f"chmod o-w {path}, or name another folder"
        )


def _check_owner(status: os.stat_result, path: Path) -> None:
    if not is_trusted(status.st_uid):
        raise NotOursError(
            f"{path} belongs to user {_name_of(status.st_uid)}, expected "
            f"{_name_of(os.geteuid())}: nothing in it is read; find out who made it"
        )


def _no_file(path: Path) -> NotOursError:
    return NotOursError(
        f"{path} is a link, a pipe, a device or a folder, expected a file of ours: nothing is read "
        "from it; find out who made it"
    )


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
    file = os.open(path, _READ | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise _no_file(path)
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
        folder.chmod(mode)


def make_folder_for(workdir: Path, name: Path | str, access: str) -> Path:
    """Create and return the folder `name` below a work directory, with the mode for `access`.

    Missing parents are created too. Existing folders of ours get the mode, unless they are reached
    through a link. An existing work directory only gets the rights that its mode lacks.
    """
    mode, folder = MODES[access], workdir / name
    make_folder(workdir, mode)
    _set_access(workdir, mode, is_top=True)  # first: by its setgid bit, new folders get its group
    make_folder(folder, mode)
    for path in (folder, *folder.parents):
        if path == workdir:
            break
        _set_access(path, mode, is_top=False)
    return folder


def _set_access(folder: Path, mode: int, *, is_top: bool) -> None:
    no_link = 0 if is_top else os.O_NOFOLLOW
    try:
        # Below the work directory no link is followed: its target would get the mode.
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | no_link)
    except OSError as error:
        if error.errno in NO_FILE:  # a link, or a folder that another user closed
            return
        raise
    try:
        status = os.fstat(descriptor)
        old_mode = stat.S_IMODE(status.st_mode)
        new_mode = old_mode | mode if is_top else mode
        if status.st_uid == os.geteuid() and old_mode != new_mode:
            os.fchmod(descriptor, new_mode)
    finally:
        os.close(descriptor)


# -- the path to a folder -------------------------------------------------------------------------


def check_path(folder: Path, *, option: str) -> None:
    """Raise NotOursError if another user could replace a folder on the path to a folder.

    It checks every folder from the root down, and the targets of links, which must exist. Each must
    belong to a trusted user, and be writable by others only with the sticky bit, which protects our
    folders from being moved.

    Raises:
        NotOursError: the message names the folder, and says what to do.
    """
    for place in (*reversed(folder.absolute().parents), folder.absolute()):
        try:
            status = place.lstat()
        except (FileNotFoundError, PermissionError):
            return  # what we create is ours, and where we cannot look, we create nothing
        if stat.S_ISLNK(status.st_mode):
            if is_trusted(status.st_uid):
                check_path(place.parent / place.readlink(), option=option)
                continue
            danger = f"is a link of user {_name_of(status.st_uid)}"
        else:
            danger = _danger(place)
        if danger:
            raise NotOursError(
                f"{option}: {place} {danger}, so another user could put a folder in the place of "
                "yours and have your jobs run their programs; take that right away (chmod "
                f"go-w {place}), or keep the work directory elsewhere ({option} DIR, such as a "
                "folder in your home)"
            )


def _may_be_root(uid: int) -> bool:
    """Return whether an owner may be root; a user namespace shows unmapped owners as one id."""
    try:
        hidden = int(Path("/proc/sys/kernel/overflowuid").read_text(encoding="ascii"))
        mapped = Path("/proc/self/uid_map").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return False
    # a line has the id inside, the id outside, and the count:  1001 1001 1
    return uid == hidden and not any(line.split()[1] == "0" for line in mapped)


def why_not_ours(path: Path) -> str:
    """Return why a file that the user did not name may be another user's; "" if it is ours.

    It checks the file, its folder, and the target of a link.
    """
    for found_path in (path, path.resolve()):
        # An owner that may be root is accepted for the folder, but not for the file.
        if not is_trusted(uid := found_path.lstat().st_uid):
            return f"{found_path} belongs to user {_name_of(uid)}"
        for place in (found_path, found_path.parent):
            if danger := _danger(place):
                return f"{place} {danger}"
    return ""


def _danger(path: Path) -> str:
    """Return how another user may write in a file or folder; "" if none may."""
    status = path.stat()
    mode = status.st_mode
    if not is_trusted(status.st_uid) and not _may_be_root(status.st_uid):
        return f"belongs to user {_name_of(status.st_uid)}"
    if mode & stat.S_ISVTX and stat.S_ISDIR(mode):
        return ""
    if mode & stat.S_IWOTH:
        return "may be written by every user"
    if mode & stat.S_IWGRP and not _is_private(path, status.st_gid):
        return f"may be written by group {_group_name(status.st_gid)}"
    return ""


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
