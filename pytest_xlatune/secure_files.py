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
import os
import pwd
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

# modes of a campaign's folders by who may read there
MODES: Mapping[str, int] = {"owner": 0o700, "group": 0o2750, "all": 0o2755}
_CLOSED = MODES["owner"]
_ACL = "system.posix_acl_access"
# errors for a path that is not a file of ours
NO_FILE = frozenset(
    {errno.EACCES, errno.EPERM, errno.EISDIR, errno.ELOOP, errno.ENOTDIR, errno.ENXIO}
)
# errors of a file system without hard links, such as exFAT or one of an object store
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS})
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
        name, at = (str(path), None) if parent is None else (path.name, parent.fd)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(name, flags, dir_fd=at)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR) and path.is_symlink():
                raise NotOursError(
                    f"{path} is a link, expected a folder of ours: remove the link, and find out "
                    "who made it"
                ) from None
            error.filename = str(path)
            raise
        self.path = path
        self.fd: int = _checked(descriptor, path, is_folder=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)

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
        return os.path.samestat(self.path.stat(), os.fstat(self.fd))

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
        _checked(descriptor, path, is_folder=False)
        if flags & os.O_TRUNC:
            os.ftruncate(descriptor, 0)
        os.set_blocking(descriptor, True)
        return descriptor

    def read(self, name: str, most_bytes: int = -1) -> bytes:
        """Return the content of a file of ours in it, or its first bytes. Raises as `open` does."""
        with os.fdopen(self.open(name), "rb") as file:
            return file.read(most_bytes)

    def create(self, name: str, content: bytes) -> bool:
        """Create a file with this content, whole or not at all; return False if it exists.

        Where there are no hard links, it is empty for a moment.
        """
        with self._part(name, content, None) as part:
            try:
                os.link(part, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
            except FileExistsError:
                # NFS may report this after it has made the link
                return os.stat(part, dir_fd=self.fd).st_nlink > 1
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                try:
                    os.close(self.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    return False
                os.replace(part, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
            return True

    def write(self, name: str, content: bytes, *, mode: int | None = None) -> None:
        """Replace a file atomically; several ranks may write the same one."""
        with self._part(name, content, mode) as part:
            os.replace(part, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    @contextlib.contextmanager
    def _part(self, name: str, content: bytes, mode: int | None) -> Iterator[str]:
        """Write a file beside the one that it becomes in the block; yield its name."""
        part = f".{name}.{os.uname().nodename}.{os.getpid()}"
        self.remove(part)
        try:
            descriptor = self.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode=mode)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            yield part
        finally:
            self.remove(part)  # a part of a file would fill a full disk further

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


def _checked(descriptor: int, path: Path, *, is_folder: bool) -> int:
    """Return the descriptor of a folder or plain file of ours; close any other, and raise."""
    status, error = os.fstat(descriptor), None
    if not is_folder and not stat.S_ISREG(status.st_mode):
        error = _no_file(path)
    elif not is_trusted(status.st_uid):
        error = NotOursError(
            f"{path} belongs to user {_name_of(status.st_uid)}, expected "
            f"{_name_of(os.geteuid())}: nothing in it is read; find out who made it"
        )
    elif is_folder and status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        error = NotOursError(
            f"{path} may be written by every user, so anything in it may be another user's: "
            f"chmod o-w {path}, or name another folder"
        )
    if error is not None:
        os.close(descriptor)
        raise error
    return descriptor


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
    # first the work directory: by its setgid bit, new folders get its group
    _set_access(workdir.resolve(), mode | stat.S_IMODE(workdir.stat().st_mode))
    make_folder(folder, mode)
    for path in (folder, *folder.parents):
        if path == workdir:
            break
        _set_access(path, mode)
    return folder


def _set_access(folder: Path, mode: int) -> None:
    # a folder of another user, and one that a link leads to, keep their modes
    with contextlib.suppress(PermissionError), Folder(folder) as opened:
        os.fchmod(opened.fd, mode)


# -- the path to a folder -------------------------------------------------------------------------


def check_path(folder: Path, *, option: str) -> None:
    """Raise NotOursError if another user could replace a folder on the path to a folder.

    It checks every folder from the root down, and the targets of links, which must exist. Each must
    belong to a trusted user, and be writable by others only with the sticky bit, which protects our
    folders from being moved. The message names the folder, and says what to do.
    """
    for place in (*reversed(folder.absolute().parents), folder.absolute()):
        try:
            danger = _danger(place)
        except (FileNotFoundError, PermissionError):
            return  # what we create is ours, and where we cannot look, we create nothing
        if danger:
            raise NotOursError(
                f"{option}: {place} {danger}, so another user could put a folder in the place of "
                "yours and have your jobs run their programs; take that right away (chmod "
                f"go-w {place}), or keep the work directory elsewhere ({option} DIR, such as a "
                "folder in your home)"
            )
        if place.is_symlink():
            check_path(place.parent / place.readlink(), option=option)


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
    for place in (path, path.parent, path.resolve(), path.resolve().parent):
        if danger := _danger(place):
            return f"{place} {danger}"
    return ""


def _danger(path: Path) -> str:
    """Return how another user may write in a file or folder, or move a link; "" if none may."""
    status = path.lstat()
    mode, is_folder = status.st_mode, stat.S_ISDIR(status.st_mode)
    if not (is_trusted(status.st_uid) or (is_folder and _may_be_root(status.st_uid))):
        kind = "is a link of" if stat.S_ISLNK(mode) else "belongs to"
        return f"{kind} user {_name_of(status.st_uid)}"
    if stat.S_ISLNK(mode) or (mode & stat.S_ISVTX and is_folder):
        return ""
    if mode & stat.S_IWOTH:
        return "may be written by every user"
    if mode & stat.S_IWGRP and not _is_private(path, status.st_gid):
        return "may be written by its group"
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


def open_lock(path: Path) -> int:
    """Return the descriptor of a lock file of ours, created if missing; see `Folder.open`."""
    make_folder(path.parent)
    return open_file(path, os.O_RDWR | os.O_CREAT)
