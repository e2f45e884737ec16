"""The checkouts of commits: a name becomes a hash once, a hash becomes a worktree when needed.

Branches move, so a name is resolved when the sweep is collected, and only the hash is used in cells
and the ledger. A worktree may be half made, deleted, edited or pruned, so each is checked before
every submission, and made again if it contains nobody's changes. A lock file makes processes take
turns. If files would run that belong to no commit, it refuses, always with the same message. This
module starts git and nothing else.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from pytest_xlatune import locks, secure_files
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.checkout import CheckoutLauncher, LauncherByCell
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import CheckoutError, ConfigError
from pytest_xlatune.model.message import at_most, say, sentence
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.trial import Trial

_GIT_S, _LOCK_S = 600.0, 1200.0
_READY = ".ready"  # suffix of a file beside a checkout that is complete; its time is the last use
_KEPT_S = 14 * 86400.0  # seconds after which an unused checkout is removed
_MOST_PATH = 255  # characters; a longer word is no path
_MOST_COMMITS = 512  # most commits of a range
_SHORT = 12  # characters of a hash in a message


def of_commits(launcher: Launcher) -> CheckoutLauncher | None:
    """Return the launcher if it starts commits, else None."""
    if isinstance(launcher, LauncherByCell):
        launcher = launcher.usual
    return launcher if isinstance(launcher, CheckoutLauncher) else None


def placed(launcher: CheckoutLauncher) -> CheckoutLauncher:
    """Return the launcher with a folder for its checkouts, if it names none.

    Raises:
        ConfigError: its repository does not exist.
    """
    repository = launcher.repository
    inside = ("rev-parse", "--path-format=absolute", "--show-toplevel", "--git-common-dir")
    top, common = _git(repository, *inside).splitlines()
    if Path(top).resolve() != Path(repository).resolve():
        raise ConfigError(
            f"repository {repository} is a folder inside the repository {top}; name {top}"
        )
    return dataclasses.replace(launcher, folder=launcher.folder or f"{common}/xlatune")


def code_of(launcher: CheckoutLauncher, commit: str, *, where: str) -> str:
    """Return the hash of a commit, given as hash, branch, tag or e.g. `HEAD~1`.

    Raises:
        ConfigError: there is no such commit, or it is HEAD and files of it were changed.
    """
    repository = launcher.repository
    if not commit:
        raise ConfigError(
            f"{where} names no commit, and its launcher checks out commits of {repository}; name "
            "one, e.g. CellSettings(code='main')"
        )
    # `--end-of-options` keeps a name that begins with a dash from being taken for an option
    asked = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    done = _run(repository, *asked)
    if done.returncode:
        names = _git(repository, "for-each-ref", "--format=%(refname:short)").split()
        near = difflib.get_close_matches(commit, names, n=1)
        what = f"did you mean {near[0]!r}?" if near else "fetch it, or write it in full"
        if not near and _git(repository, "rev-parse", "--is-shallow-repository") == "true\n":
            what = "the clone is shallow: fetch all of it (fetch-depth: 0, GIT_DEPTH: 0)"
        raise ConfigError(f"{where}: {repository} has no commit {commit!r}; {what}")
    code = done.stdout.strip()
    if code == _git(repository, "rev-parse", "HEAD").strip():
        remedy = f"Commit or stash what is changed in {repository}"
        _refuse_others(_changed(repository), where=where, remedy=remedy)
    return code


def commits_of(
    launcher: Launcher, text: str, *, where: str, has_all: bool
) -> tuple[CheckoutLauncher, dict[str, str]]:
    """Return the launcher with its folder, and label -> hash of each commit.

    `text` is `v1,v2` or a range `main..HEAD`, from the first good commit to the last bad one. With
    `has_all`, a range means every commit along first parents, otherwise only its ends.

    Raises:
        ConfigError: there is no such commit or range, it is HEAD and files of it were changed, or
            the launcher starts no commits.
    """
    if not isinstance(launcher, CheckoutLauncher):
        raise ConfigError(
            f"{where} compares commits, which needs a launcher that starts one; write "
            "launcher=CheckoutLauncher(repository=..., inner=...)"
        )
    if not text:
        raise ConfigError(
            f"{where} compares commits, so it needs their names (--xlatune-commits main..HEAD)"
        )
    launcher = placed(launcher)
    if ".." in text:
        codes = _range(launcher, text, where=where)
        codes = codes if has_all else [codes[0], codes[-1]]
    else:
        names = [name.strip() for name in text.split(",") if name.strip()]
        codes = [code_of(launcher, name, where=where) for name in names]
    if len(set(codes)) < len(codes):
        raise ConfigError(f"{where}: {text!r} names one commit twice; name each once")
    subjects = _git(launcher.repository, "log", "--no-walk=unsorted", "--format=%s", *codes)
    labels = zip(codes, subjects.split("\n"), strict=False)
    return launcher, {f"{code[:_SHORT]} {subject[:60]}".strip(): code for code, subject in labels}


def _range(launcher: CheckoutLauncher, text: str, *, where: str) -> list[str]:
    """Return the commits of a range along first parents."""
    repository = launcher.repository
    first, _, last = text.replace("...", "..").partition("..")
    begin, end = (code_of(launcher, name or "HEAD", where=where) for name in (first, last))
    base = _run(repository, "merge-base", begin, end).stdout.strip()
    listed = ("rev-list", "--first-parent", "--reverse", f"{base or begin}..{end}")
    after = _git(repository, *listed).split()
    is_line = bool(after) and _run(repository, "rev-parse", f"{after[0]}^1").stdout.strip() == base
    if not is_line or len(after) >= _MOST_COMMITS:
        raise ConfigError(
            f"{where}: {text} is no range of 1 to {_MOST_COMMITS - 1} commits by first parents; "
            f"name a first commit on that line before {last or 'HEAD'}, e.g. a release"
        )
    return [base, *after]


def same_files(launcher: CheckoutLauncher, one: str, other: str) -> bool:
    """Return whether two commits, given by hash, contain exactly the same files."""
    trees = {_git(launcher.repository, "rev-parse", f"{code}^{{tree}}") for code in (one, other)}
    return len(trees) == 1


def _refuse_others(files: Iterable[str], *, where: str, remedy: str) -> None:
    """Raise ConfigError if there are files that would run instead of a commit's."""
    if named := [*files]:
        listed = sentence(say("{files}", files=at_most(3, named)))
        raise ConfigError(f"{where}: no commit holds these, and they would run: {listed}. {remedy}")


def refuse_shadowed(launcher: Launcher, cell: Cell) -> None:
    """Refuse a trainer that would run the repository's own files instead of the checkout's.

    That happens if a path reaches the repository under another name, e.g. through a link or `..`,
    or if the repository is installed in the interpreter (`pip install`, with `-e` or as a copy) and
    the checkout does not come first in PYTHONPATH.

    Raises:
        ConfigError: the message names the paths or packages, and says what to do.
    """
    starter = of_commits(launcher)
    if starter is None:
        return
    trial = Trial(
        cell_digest=cell.digest, profile=BASELINE, protocol=cell.protocol, study="x", stage="x"
    )
    spec = starter.inner.launch(trial, cell)
    texts = (*spec.argv, *spec.paths, *spec.env.values())
    others = [
        f"{led} by the name {word}"
        for word in (word for text in texts for word in re.split(r"[\s:='\"]+", text))
        if (led := _led_by(starter, word, cwd=spec.cwd)) is not None
    ]
    before = cell.deployed.get("PYTHONPATH", "").split(":")
    if not any(Path(path).is_relative_to(starter.repository) for path in before if path):
        others += _installed(starter.repository, launcher.interpreter)
    top = starter.repository
    remedy = (
        f"Name files by their paths in {top}; put the folder of an installed package first "
        f"(CellSettings(deployed={{'PYTHONPATH': '{top}'}})), which becomes the checkout's"
    )
    _refuse_others(others, where="checkout launcher", remedy=remedy)


def _led_by(starter: CheckoutLauncher, word: str, *, cwd: str) -> Path | None:
    """Return the place in the repository that a word reaches under another name; else None."""
    path, top = Path(cwd or "/", word), Path(starter.repository).resolve()
    is_named = path.is_relative_to(starter.repository) and ".." not in path.parts
    if "/" not in word or is_named or len(word) > _MOST_PATH or not path.exists():
        return None
    led, kept = path.resolve(), {".git", *(name.strip("/") for name in starter.keep)}
    is_inside = led.is_relative_to(top) and not kept & {*led.relative_to(top).parts[:1]}
    return led if is_inside else None


# prints the packages that an interpreter imports from below a folder
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
    """Return the packages that an interpreter has from a repository; () if it does not answer."""
    path = shutil.which(interpreter) if interpreter else None
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    with suppress(OSError, subprocess.SubprocessError):
        command = [path or interpreter, "-I", "-c", _PACKAGES, repository]
        text = subprocess.check_output(
            command, env=kept, stderr=subprocess.DEVNULL, text=True, timeout=60
        )
        return text.splitlines()
    return ()  # the preflight reports the interpreter


def _changed(repository: str, *, new: str = "no") -> list[str]:
    """Return the files that differ from HEAD; with `new`, git's option, untracked files too."""
    # `.gitmodules` may exclude changed submodules
    text = _git(repository, "status", "--porcelain", "-z", "--no-renames",
                "--ignore-submodules=none", f"--untracked-files={new}")  # fmt: skip
    # output of `git status -z`:  M train.py\0?? jax.py\0
    lines = [line for line in text.split("\0") if line]
    return [line[3:] for line in lines if line[:2] != "??" or line.endswith(".py")]


def made(launcher: Launcher, cells: Iterable[Cell]) -> tuple[tuple[Cell, ...], tuple[str, ...]]:
    """Make the checkouts of cells; return those that have one, and why the others have none.

    Raises:
        ConfigError: no commit has one, a file in one was changed, or the cause is not a commit.
    """
    able, why = list[Cell](), dict[str, CheckoutError]()
    for cell in cells:
        try:
            if cell.code not in why:
                make(launcher, [cell])
                able.append(cell)
        except CheckoutError as error:
            why[cell.code] = error
    if why and not able:
        raise next(iter(why.values()))
    return tuple(able), tuple(map(str, why.values()))


def make(launcher: Launcher, cells: Iterable[Cell]) -> None:
    """Make or check the checkouts of cells, and remove those that nobody uses.

    Raises:
        CheckoutError: one cannot be made for a reason of its commit.
        ConfigError: for another reason, or a file in one was changed.
    """
    starter = of_commits(launcher)
    if starter is None:
        return
    paths = {Path(starter.checkout_of(cell)) for cell in cells}
    folder = next(iter(paths)).parent
    try:
        secure_files.make_folder(folder)
        with locks.held(folder / "making.lock", wait_s=_LOCK_S) as is_ours:
            if not is_ours:
                raise TimeoutError("another process makes checkouts")
            for path in sorted(paths):
                _make(starter, path)
            for mark in folder.glob(f"*{_READY}"):
                path = mark.with_suffix("")
                with suppress(OSError):
                    if path not in paths and mark.stat().st_mtime < time.time() - _KEPT_S:
                        _forget(starter.repository, path)
    except OSError as error:
        raise ConfigError(f"no checkout can be made in {folder}: {error}") from None


# errors of git that concern the machine, not a commit
_OF_THE_MACHINE = re.compile(
    "cannot be asked about|No space left|quota exceeded|Read-only file system|Permission denied|"
    "Input/output error|Stale file handle|Cannot allocate memory|Too many open files"
)


def _make(starter: CheckoutLauncher, path: Path) -> None:
    """Make or check one checkout; the caller holds the lock."""
    ready, repository = path.with_name(path.name + _READY), starter.repository
    is_made = ready.exists() and (path / ".git").exists()
    if is_made and _run(str(path), "rev-parse", "HEAD").stdout.strip() == path.name:
        forget = f"git -C {repository} worktree remove --force --force {path}"
        remedy = f"Remove this checkout ({forget}), and it is made again"
        _refuse_others(_changed(str(path), new="all"), where=f"the checkout {path}", remedy=remedy)
        ready.touch()
        return
    _forget(repository, path)
    try:
        # locked, so that `git worktree prune` on a machine without this folder spares it
        _git(repository, "worktree", "add", "--quiet", "--force", "--force", "--lock", "--detach",
             str(path), path.name)  # fmt: skip
        if (path / ".gitmodules").exists():
            _git(str(path), "submodule", "--quiet", "update", "--init", "--recursive")
    except ConfigError as error:
        if _OF_THE_MACHINE.search(str(error)):
            raise
        raise CheckoutError(
            f"the checkout of {path.name[:_SHORT]} cannot be made: {error}; mend what git names, "
            "or leave the commit out"
        ) from None
    ready.touch()


def _forget(repository: str, path: Path) -> None:
    """Remove a checkout, complete or not, and git's entry of it."""
    path.with_name(path.name + _READY).unlink(missing_ok=True)
    _run(repository, "worktree", "remove", "--force", "--force", str(path))
    if path.exists():
        shutil.rmtree(path)
    _run(repository, "worktree", "unlock", str(path))


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
    # so that no program named by a repository is run
    quiet = ("-c", "core.fsmonitor=", "-c", "core.hooksPath=/dev/null")
    try:
        return subprocess.run(
            ("git", *quiet, "-C", repository, *words),
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
