"""The checkouts of commits: a name becomes a hash once, a hash becomes a worktree when needed.

Branches move, so a name is resolved when the sweep is collected, and only the hash is used in cells
and the ledger. A worktree may be half made, deleted, edited or pruned, so each is checked before
every submission, and made again unless somebody changed files in it. A lock file makes processes
take turns. Trials are refused if they would run files that belong to no commit. Of other programs,
this module starts only git and the trainer's interpreter.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from pytest_xlatune import locks, secure_files
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.checkout import CheckoutLauncher, LauncherByCell
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import at_most, say, sentence
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.trial import Trial

_GIT_S = 600.0  # seconds after which a command of git is ended
_LOCK_S = 1200.0  # seconds to wait while another process makes checkouts
_READY = ".ready"  # suffix of the file beside a complete checkout
_MOST_PATH = 255  # characters; a longer word is no path
_MOST_COMMITS = 512  # most commits of a range
_SHORT = 12  # characters of a hash in a message


def as_checkout_launcher(launcher: Launcher) -> CheckoutLauncher | None:
    """Return the launcher if it starts the trainer from checkouts of commits, else None."""
    if isinstance(launcher, LauncherByCell):
        launcher = launcher.inner
    return launcher if isinstance(launcher, CheckoutLauncher) else None


def with_folder(launcher: CheckoutLauncher) -> CheckoutLauncher:
    """Return the launcher with a folder for its checkouts: by default inside the repository.

    Raises:
        ConfigError: its repository does not exist.
    """
    repository = launcher.repository
    folders = ("rev-parse", "--path-format=absolute", "--show-toplevel", "--git-common-dir")
    top, common = _git(repository, *folders).splitlines()
    if Path(top).resolve() != Path(repository).resolve():
        raise ConfigError(
            f"repository {repository} is a folder inside the repository {top}; name {top}"
        )
    return dataclasses.replace(launcher, folder=launcher.folder or f"{common}/xlatune")


def _that_checks_out(launcher: Launcher, where: str) -> CheckoutLauncher:
    if not isinstance(launcher, CheckoutLauncher):
        raise ConfigError(
            f"{where} names commits, which needs a launcher that starts the trainer from a commit; "
            "write launcher=CheckoutLauncher(repository=..., inner=...)"
        )
    return launcher


def hash_of(launcher: Launcher, commit: str, *, where: str) -> str:
    """Return the hash of a commit, given as hash, branch, tag or e.g. `HEAD~1`.

    Raises:
        ConfigError: there is no such commit, or it is HEAD and the repository's files were changed,
            or the launcher does not start commits.
    """
    repository = _that_checks_out(launcher, where).repository
    if not commit:
        raise ConfigError(
            f"{where} names no commit, and its launcher checks out commits of {repository}; name "
            "one, e.g. CellSettings(code='main')"
        )
    # `--end-of-options` keeps a name that begins with a dash from being taken for an option
    words = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    done = _run(repository, *words)
    if done.returncode:
        raise ConfigError(
            f"{where}: {repository} has no commit {commit!r}; write its name in full, or fetch it "
            "(of a shallow clone fetch all: fetch-depth: 0, GIT_DEPTH: 0)"
        )
    code = done.stdout.strip()
    if code == _git(repository, "rev-parse", "HEAD").strip():
        remedy = f"Commit or stash the changes in {repository}"
        _refuse_uncommitted(_changed(repository), where=where, remedy=remedy)
    return code


def commits_of(
    launcher: Launcher, text: str, *, where: str, has_all: bool
) -> tuple[CheckoutLauncher, dict[str, str]]:
    """Return the launcher with its folder, and label -> hash of each commit.

    Args:
        launcher: the launcher of the sweep.
        text: `v1,v2`, or a range such as `main..HEAD` with both its ends.
        where: what names the commits, for messages.
        has_all: whether a range means every commit along first parents, or only its ends.

    Raises:
        ConfigError: there is no such commit or range, it has HEAD and the repository's files were
            changed, or the launcher does not start commits.
    """
    launcher = _that_checks_out(launcher, where)
    if not text:
        raise ConfigError(
            f"{where} compares commits, so it needs their names (--xlatune-commits main..HEAD)"
        )
    launcher = with_folder(launcher)
    if ".." in text:
        codes = _range(launcher, text, where=where)
        codes = codes if has_all else [codes[0], codes[-1]]
    else:
        names = [name.strip() for name in text.split(",") if name.strip()]
        codes = [hash_of(launcher, name, where=where) for name in names]
    if len(set(codes)) < len(codes):
        raise ConfigError(f"{where}: {text!r} names one commit twice; name each once")
    subjects = _git(launcher.repository, "log", "--no-walk=unsorted", "--format=%s", *codes)
    labels = zip(codes, subjects.split("\n"), strict=False)
    return launcher, {f"{code[:_SHORT]} {subject[:60]}".strip(): code for code, subject in labels}


def _range(launcher: CheckoutLauncher, text: str, *, where: str) -> list[str]:
    """Return the hashes of a range's commits along first parents, both ends included."""
    repository = launcher.repository
    first, _, last = text.replace("...", "..").partition("..")
    begin, end = (hash_of(launcher, name or "HEAD", where=where) for name in (first, last))
    base = _run(repository, "merge-base", begin, end).stdout.strip()
    words = ("rev-list", "--first-parent", "--reverse", f"{base or begin}..{end}")
    after = _git(repository, *words).split()
    is_line = bool(after) and _run(repository, "rev-parse", f"{after[0]}^1").stdout.strip() == base
    if not is_line or len(after) >= _MOST_COMMITS:
        raise ConfigError(
            f"{where}: {text} is no range of 1 to {_MOST_COMMITS - 1} commits along first parents; "
            f"begin with a first-parent ancestor of {last or 'HEAD'}, e.g. a release"
        )
    return [base, *after]


def _refuse_uncommitted(files: Sequence[str], *, where: str, remedy: str) -> None:
    """Raise ConfigError if there are files that would run instead of a commit's."""
    if files:
        names = sentence(say("{files}", files=at_most(3, files)))
        raise ConfigError(
            f"{where}: no commit has these files, and they would run: {names}. {remedy}"
        )


def refuse_shadowed(launcher: Launcher, cell: Cell) -> None:
    """Refuse a trainer that would run the repository's own files instead of the checkout's.

    That happens if a path reaches the repository under another name, e.g. through a link or `..`,
    or if the repository is installed in the interpreter (`pip install`, with `-e` or as a copy) and
    the checkout does not come first in PYTHONPATH.

    Raises:
        ConfigError: the message names the paths or packages, and says what to do.
    """
    checkouts = as_checkout_launcher(launcher)
    if checkouts is None:
        return
    trial = Trial(
        cell_digest=cell.digest, profile=BASELINE, protocol=cell.protocol, study="x", stage="x"
    )
    spec = checkouts.inner.launch(trial, cell)
    uncommitted = []
    for text in (*spec.argv, *spec.paths, *spec.env.values()):
        for word in re.split(r"[\s:='\"]+", text):
            target = _reached_in_repository(checkouts, word, cwd=spec.cwd)
            if target is not None:
                uncommitted.append(f"{target} by the name {word}")
    top = checkouts.repository
    python_path = cell.deployed.get("PYTHONPATH", "").split(":")
    if not any(Path(path).is_relative_to(top) for path in python_path if path):
        uncommitted += _installed(top, launcher.interpreter)
    remedy = (
        f"Name files by their paths in {top}; put the folder of an installed package first "
        f"(CellSettings(deployed={{'PYTHONPATH': '{top}'}})), which becomes the checkout's"
    )
    _refuse_uncommitted(uncommitted, where="checkout launcher", remedy=remedy)


def _reached_in_repository(launcher: CheckoutLauncher, word: str, *, cwd: str) -> Path | None:
    """Return the path in the repository that a word reaches under another name; else None.

    Paths below the repository's own path, which the checkout's replaces, are allowed, and so are
    folders in `launcher.keep`, which are shared.
    """
    path, top = Path(cwd or "/", word), Path(launcher.repository).resolve()
    is_replaced = path.is_relative_to(launcher.repository) and ".." not in path.parts
    if "/" not in word or is_replaced or len(word) > _MOST_PATH or not path.exists():
        return None
    target = path.resolve()
    shared = {".git", *(name.strip("/") for name in launcher.keep)}
    if not target.is_relative_to(top) or shared & {*target.relative_to(top).parts[:1]}:
        return None
    return target


# a program that prints the packages that its interpreter has installed from inside a folder
_PACKAGES = """\
import importlib.metadata, json, sys
from urllib.parse import unquote, urlparse
for package in importlib.metadata.distributions():
    origin = json.loads(package.read_text("direct_url.json") or "{}")
    path = unquote(urlparse(origin.get("url", "")).path) + "/"
    if "dir_info" in origin and path.startswith(sys.argv[1] + "/"):
        print("the installed package", package.metadata["Name"])
"""


def _installed(repository: str, interpreter: str) -> Sequence[str]:
    """Return the packages that an interpreter has from a repository; () if it does not run."""
    path = shutil.which(interpreter) if interpreter else None
    env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    with suppress(OSError, subprocess.SubprocessError):
        command = [path or interpreter, "-I", "-c", _PACKAGES, repository]
        text = subprocess.check_output(
            command, env=env, stderr=subprocess.DEVNULL, text=True, timeout=60
        )
        return text.splitlines()
    return ()  # the preflight reports an interpreter that does not run


def _changed(repository: str, *, untracked: str = "no") -> list[str]:
    """Return the files that differ from HEAD, and untracked Python files.

    `untracked` is the value of git's option --untracked-files; "no" leaves them out.
    """
    text = _git(repository, "status", "--porcelain", "-z", "--no-renames",
                f"--untracked-files={untracked}")  # fmt: skip
    # output of `git status -z`:  M train.py\0?? jax.py\0
    lines = [line for line in text.split("\0") if line]
    return [line[3:] for line in lines if line[:2] != "??" or line.endswith(".py")]


def make(launcher: Launcher, cells: Iterable[Cell]) -> None:
    """Make or check the checkouts of cells.

    Raises:
        ConfigError: a checkout cannot be made, or a file in it was changed.
    """
    checkouts = as_checkout_launcher(launcher)
    if checkouts is None:
        return
    paths = {Path(checkouts.checkout_of(cell)) for cell in cells}
    folder = next(iter(paths)).parent
    try:
        secure_files.make_folder(folder)
        with locks.held(folder / "making.lock", wait_s=_LOCK_S) as is_held:
            if not is_held:
                raise TimeoutError("another process makes checkouts")
            for path in sorted(paths):
                _make(checkouts.repository, path)
    except OSError as error:
        raise ConfigError(f"no checkout can be made in {folder}: {error}") from None


def _make(repository: str, path: Path) -> None:
    """Make or check one checkout, whose folder has the name of its hash; the lock is held."""
    ready = path.with_name(path.name + _READY)
    is_made = ready.exists() and (path / ".git").exists()
    if is_made and _run(str(path), "rev-parse", "HEAD").stdout.strip() == path.name:
        command = f"git -C {repository} worktree remove --force --force {path}"
        remedy = f"Remove this checkout ({command}), and it is made again"
        changed = _changed(str(path), untracked="all")
        _refuse_uncommitted(changed, where=f"the checkout {path}", remedy=remedy)
        return
    # a checkout that is not complete is removed, with its entry in the repository
    ready.unlink(missing_ok=True)
    _run(repository, "worktree", "remove", "--force", "--force", str(path))
    if path.exists():
        shutil.rmtree(path)
    _run(repository, "worktree", "unlock", str(path))
    try:
        # locked, so that `git worktree prune` on a machine without this folder spares it
        _git(repository, "worktree", "add", "--quiet", "--force", "--force", "--lock", "--detach",
             str(path), path.name)  # fmt: skip
    except ConfigError as error:
        raise ConfigError(
            f"the checkout of {path.name[:_SHORT]} cannot be made: {error}; mend what git names, "
            "or leave the commit out"
        ) from None
    if (path / ".gitmodules").exists():
        raise ConfigError(
            f"commit {path.name[:_SHORT]} of {repository} has submodules, which a checkout does "
            "not get; name a repository that holds the trainer without them"
        )
    ready.touch()


def _git(repository: str, *words: str) -> str:
    done = _run(repository, *words)
    if done.returncode:
        errors = done.stderr.strip() or f"exit code {done.returncode}"
        # the line that says the cause:  fatal: repository '/shared/lib' does not exist
        fatal = next((line for line in errors.splitlines() if line.startswith("fatal: ")), errors)
        raise ConfigError(f"git {words[0]} in {repository}: {fatal[-500:]}")
    return done.stdout


def _run(repository: str, *words: str) -> subprocess.CompletedProcess[str]:
    # a git hook that runs pytest passes its own repository in these variables
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # these options keep git from running programs that a repository names
    no_programs = ("-c", "core.fsmonitor=", "-c", "core.hooksPath=/dev/null")
    try:
        return subprocess.run(
            ("git", *no_programs, "-C", repository, *words),
            env={**clean, "LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_GIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"git cannot be asked about {repository}: {error}") from None
