"""The checkouts of commits: a name becomes a hash once, a hash becomes a worktree where needed.

A branch moves, so that a name is looked up when the sweep is collected and only its hash goes on,
into the cell and the ledger. A worktree may be half made (killed), deleted, edited or pruned: each
is looked at again before every submission, and made again if nothing of anyone is in it. Processes
that come at the same time take turns by a lock file. This module starts git and nothing else.
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import filelock

from pytest_xlatune import secure_files
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.checkout import CheckoutLauncher, LauncherByCell
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import CheckoutError, ConfigError
from pytest_xlatune.model.profile import BASELINE
from pytest_xlatune.model.trial import Trial

_GIT_S, _LOCK_S = 600.0, 1200.0
_KEPT_S = 14 * 86400.0  # a checkout that no submission has used for so long is removed
_SHOWN = 3  # files in a message
_MOST_PATH = 255  # characters of a word that may be a path
_SHORT = 12  # characters of a hash in a message


def of_commits(launcher: Launcher) -> CheckoutLauncher | None:
    """Return the launcher that starts commits, if this is one; None otherwise."""
    if isinstance(launcher, LauncherByCell):
        launcher = launcher.usual
    return launcher if isinstance(launcher, CheckoutLauncher) else None


def placed(launcher: CheckoutLauncher) -> CheckoutLauncher:
    """Return the launcher with the folder of its checkouts, where it names none.

    Raises:
        ConfigError: its repository is none.
    """
    repository = launcher.repository
    if not Path(repository).is_dir():
        raise ConfigError(f"repository {repository} does not exist; name a git repository")
    inside = "--path-format=absolute"
    common = _git(repository, "rev-parse", inside, "--git-common-dir").strip()
    top = Path(_git(repository, "rev-parse", inside, "--show-toplevel").strip())
    if top.resolve() != Path(repository).resolve():
        raise ConfigError(
            f"repository {repository} is a folder inside the repository {top}; name {top}"
        )
    return (
        launcher if launcher.folder else dataclasses.replace(launcher, folder=f"{common}/xlatune")
    )


def code_of(launcher: CheckoutLauncher, commit: str, *, where: str) -> str:
    """Return what `Cell.code` is for a commit: its hash.

    Args:
        launcher: names the repository.
        commit: a hash, a part of one, a branch, a tag, `HEAD~1`.
        where: asked for it, for messages.

    Raises:
        ConfigError: there is no such commit, or it is HEAD while files of it are changed.
    """
    repository = launcher.repository
    if not commit:
        raise ConfigError(
            f"{where} names no commit, and its launcher checks out commits of {repository}; name "
            "one, e.g. CellSettings(code='main')"
        )
    # `--end-of-options`: a name that begins with a dash is no option
    asked = ("rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}")
    done = _run(repository, *asked)
    if done.returncode:
        raise ConfigError(_no_commit(repository, commit, where=where, said=done.stderr))
    found = done.stdout.strip()
    if found == _git(repository, "rev-parse", "HEAD").strip() and (changed := _changed(repository)):
        raise ConfigError(
            f"{where}: {repository} has {commit} checked out, with changes that are not committed: "
            f"{_first(changed)}. What runs at {commit} would not hold them. "
            "Commit or stash them"
        )
    return found


def commits_of(
    launcher: Launcher, text: str, *, where: str, has_all: bool
) -> tuple[CheckoutLauncher, dict[str, str]]:
    """Return the launcher with its folder, and of each commit its label and what `Cell.code` is.

    Args:
        launcher: names the repository.
        text: `main..HEAD`, from the first good commit to the last bad one; or `v1,v2`.
        where: asked for it, for messages.
        has_all: whether every commit of a range is meant, by first parents; else its ends.

    Raises:
        ConfigError: there is no such commit or range, it is HEAD while files of it are changed, or
            the launcher starts no commit.
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
    if ".." not in text:
        names = [each.strip() for each in text.split(",") if each.strip()]
        codes = [code_of(launcher, name, where=where) for name in names]
    else:
        first, _, last = text.replace("...", "..").partition("..")
        codes = _range(launcher, first or "HEAD", last or "HEAD", where=where)
        codes = codes if has_all else [codes[0], codes[-1]]
    if len(set(codes)) < len(codes):
        raise ConfigError(f"{where}: {text!r} names one commit twice; name each once")
    return launcher, {_labelled(launcher.repository, each): each for each in codes}


_MOST_COMMITS = 512


def _range(launcher: CheckoutLauncher, first: str, last: str, *, where: str) -> list[str]:
    """Return the commits from where the first left the last's line, by first parents."""
    repository = launcher.repository
    end = code_of(launcher, last, where=where)
    begin = code_of(launcher, first, where=where)
    base = _run(repository, "merge-base", begin, end).stdout.strip()
    if not base:
        raise ConfigError(f"{where}: {first} and {last} have no common commit")
    listed = _git(repository, "rev-list", "--first-parent", "--reverse", f"{base}..{end}")
    after = listed.split()
    if not after:
        raise ConfigError(
            f"{where}: {first}..{last} holds no commit: {last} is {first}, or lies before it"
        )
    if _git(repository, "rev-parse", f"{after[0]}^1").strip() != base:
        raise ConfigError(
            f"{where}: {first} lies in a branch that was merged, not on the first-parent line to "
            f"{last}; name the last commit of that line before the merge"
        )
    if len(after) >= _MOST_COMMITS:
        raise ConfigError(
            f"{where}: {first}..{last} holds {len(after)} commits, at most {_MOST_COMMITS} are "
            "searched; name a later first commit, e.g. a release that was still fast"
        )
    return [base, *after]


def _labelled(repository: str, code: str) -> str:
    """Return the short hash and the subject of a commit."""
    subject = _git(repository, "log", "-1", "--format=%s", code).strip()
    return f"{code[:_SHORT]} {subject[:60]}".strip()


def same_files(launcher: CheckoutLauncher, one: str, other: str) -> bool:
    """Whether two commits, as `code_of` returns them, hold the very same files."""
    trees = {_git(launcher.repository, "rev-parse", f"{code}^{{tree}}") for code in (one, other)}
    return len(trees) == 1


def made(launcher: Launcher, cells: Iterable[Cell]) -> tuple[tuple[Cell, ...], tuple[str, ...]]:
    """Make the checkouts of cells as far as their commits have one; say why the others have none.

    Raises:
        ConfigError: no commit has one, a file of one was changed, or the trouble is no commit's.
    """
    found, why = list[Cell](), dict[str, CheckoutError]()
    for cell in cells:
        if cell.code in why:
            continue
        try:
            make(launcher, [cell])
            found.append(cell)
        except CheckoutError as error:
            why[cell.code] = error
    if why and not found:
        raise next(iter(why.values()))
    return tuple(found), tuple(map(str, why.values()))


def make(launcher: Launcher, cells: Iterable[Cell]) -> None:
    """Make the checkouts of cells, look through those there are, and remove what nothing uses.

    Raises:
        CheckoutError: one cannot be made, for a reason of its commit.
        ConfigError: for another reason, or a file of one was changed.
    """
    own = of_commits(launcher)
    if own is None:
        return
    paths = {Path(own.checkout_of(cell)) for cell in cells}
    folder = next(iter(paths)).parent
    try:
        secure_files.make_folder(folder)
        with filelock.FileLock(folder / "making.lock", timeout=_LOCK_S):
            for path in sorted(paths):
                _make(own.repository, path)
            _remove_old(own.repository, folder, used=paths)
    except filelock.Timeout:
        raise ConfigError(
            f"another session has held {folder}/making.lock for {_LOCK_S:.0f} s to make a "
            "checkout; end it if it hangs, then run again"
        ) from None
    except OSError as error:
        raise ConfigError(f"no checkout can be made in {folder}: {error}") from None


def refuse_shadowed(launcher: Launcher, cell: Cell) -> None:
    """Refuse a trainer that would run the repository's own files, whatever commit is checked out.

    A path that leads into the repository by another name stays as it is: a link, or `..` from
    elsewhere. So does an interpreter in which the repository is installed (`pip install`, with `-e`
    or as a copy), unless the checkout comes first: PYTHONPATH comes before both.

    Raises:
        ConfigError: naming the path or the package, and what to do.
    """
    own = of_commits(launcher)
    if own is None:
        return
    for word, found in _aliased(own, cell):
        raise ConfigError(
            f"checkout launcher: {word} leads to {found}, which is inside the repository, by "
            "another name. Every commit would run that file; write "
            f"{own.repository}/{found.relative_to(Path(own.repository).resolve())}"
        )
    said = cell.deployed.get("PYTHONPATH", "").split(":")
    path = shutil.which(launcher.interpreter) if launcher.interpreter else None
    if path is None or any(Path(e).is_relative_to(own.repository) for e in said if e):
        return
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    command = [path, "-I", "-c", _EDITABLE, own.repository]
    with suppress(OSError, subprocess.TimeoutExpired):  # the preflight tells its fault
        done = subprocess.run(
            command, env=kept, capture_output=True, text=True, timeout=60, check=False
        )
        if done.returncode == 0 and done.stdout.strip():
            raise ConfigError(
                f"{launcher.interpreter} has {', '.join(done.stdout.split())} installed from "
                f"{own.repository} itself (pip install): every commit would run the files there, "
                "or a copy of them. Put the folder that holds the package first: "
                f"CellSettings(deployed={{'PYTHONPATH': '{own.repository}'}}), or its src; in a "
                "trial that path becomes the checkout's"
            )


def _aliased(own: CheckoutLauncher, cell: Cell) -> Iterator[tuple[str, Path]]:
    """Yield the words of the inner command that lead into the repository by another name."""
    top, kept = Path(own.repository).resolve(), {".git", *(each.strip("/") for each in own.keep)}
    trial = Trial(
        cell_digest=cell.digest, profile=BASELINE, protocol=cell.protocol, study="x", stage="x"
    )
    spec = own.inner.launch(trial, cell)
    words = (*spec.argv, *spec.paths, *spec.env.values())
    for word in (each for text in words for each in re.split(r"[\s:='\"]+", text)):
        path = Path(spec.cwd or "/", word)
        is_named = path.is_relative_to(own.repository) and ".." not in path.parts
        if "/" not in word or is_named or len(word) > _MOST_PATH or not path.exists():
            continue
        found = path.resolve()
        if found.is_relative_to(top) and not kept & {*found.relative_to(top).parts[:1]}:
            yield word, found


# names of the packages that an interpreter imports from below a folder
_EDITABLE = """\
import importlib.metadata, json, sys
from urllib.parse import unquote, urlparse
top = sys.argv[1].rstrip("/")
for each in importlib.metadata.distributions():
    told = json.loads(each.read_text("direct_url.json") or "{}")
    path = unquote(urlparse(told.get("url", "")).path)
    if "dir_info" in told and (path == top or path.startswith(top + "/")):
        print(each.metadata["Name"])
"""


def _make(repository: str, path: Path) -> None:
    """Make one checkout, or find it as it was made; the lock is held."""
    ready = _mark(path)
    if ready.exists() and (path / ".git").exists():
        head = _run(str(path), "rev-parse", "HEAD").stdout.strip()
        changed = (*_changed(str(path)), *_added(str(path))) if head == path.name else ()
        if changed:
            raise ConfigError(
                f"the checkout {path} was changed: {_first(changed)}. What runs there "
                f"is no commit any more. Remove it (git -C {repository} worktree remove --force "
                f"--force {path}), and it is made again"
            )
        if head == path.name:
            ready.touch()
            return
    _forget(repository, path)
    try:
        # locked: `git worktree prune` on a machine that does not see it leaves its entry alone
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


# what git says where no commit can be checked out, this one or another
_OF_THE_MACHINE = re.compile(
    "cannot be asked about|No space left|quota exceeded|Read-only file system|Permission denied|"
    "Input/output error|Stale file handle|Cannot allocate memory|Too many open files"
)


def _forget(repository: str, path: Path) -> None:
    """Remove a checkout, whole or half made, and git's entry of it."""
    _mark(path).unlink(missing_ok=True)
    _run(repository, "worktree", "remove", "--force", "--force", str(path))
    if path.exists():
        shutil.rmtree(path)
    _run(repository, "worktree", "unlock", str(path))


def _mark(path: Path) -> Path:
    """Return the file that says that a checkout is whole, and when it was last used."""
    return path.with_name(f"{path.name}.ready")


def _remove_old(repository: str, folder: Path, *, used: set[Path]) -> None:
    """Remove the checkouts that no submission has used for long."""
    oldest_s = time.time() - _KEPT_S
    for mark in folder.glob("*.ready"):
        path = mark.with_suffix("")
        with suppress(OSError):
            if path not in used and mark.stat().st_mtime < oldest_s:
                _forget(repository, path)


def _changed(repository: str) -> tuple[str, ...]:
    """Return the files that differ from HEAD, of those that git knows."""
    # `.gitmodules` may say that a changed submodule is to be left out
    text = _git(repository, "status", "--porcelain", "-z", "--no-renames",
                "--ignore-submodules=none", "--untracked-files=no")  # fmt: skip
    #  M train.py\0 M config.yml\0
    return tuple(each[3:] for each in text.split("\0") if each)


def _first(files: Sequence[str]) -> str:
    more = len(files) - _SHOWN
    return ", ".join(files[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _added(checkout: str) -> tuple[str, ...]:
    """Return the Python files in a checkout that its commit does not hold: they may be imported."""
    text = _git(checkout, "ls-files", "-z", "--others", "--exclude-standard", "--", "*.py")
    return tuple(each for each in text.split("\0") if each)


def _no_commit(repository: str, commit: str, *, where: str, said: str) -> str:
    text = f"{where}: {repository} has no commit {commit!r}"
    if "ambiguous" in said:
        return f"{text} alone: several begin so. Write more of the hash"
    names = _git(repository, "for-each-ref", "--format=%(refname:short)").split()
    near = difflib.get_close_matches(commit, names, n=1)
    if near:
        return f"{text}; did you mean {near[0]!r}?"
    is_shallow = _git(repository, "rev-parse", "--is-shallow-repository").strip() == "true"
    hint = "the clone is shallow: fetch all of it (fetch-depth: 0, GIT_DEPTH: 0)"
    return f"{text}; {hint if is_shallow else 'fetch it, or name another'}"


def _git(repository: str, *words: str) -> str:
    done = _run(repository, *words)
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        # fatal: repository '/shared/lib' does not exist
        fatal = next((line for line in said.splitlines() if line.startswith("fatal: ")), said)
        raise ConfigError(f"git {words[0]} in {repository}: {fatal[-500:]}")
    return done.stdout


def _run(repository: str, *words: str) -> subprocess.CompletedProcess[str]:
    # a hook of git that runs pytest hands its own repository down by these
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # nothing that a repository names is run
    quiet = ("-c", "core.fsmonitor=", "-c", "core.hooksPath=/dev/null")
    command: Sequence[str] = ("git", *quiet, "-C", repository, *words)
    try:
        return subprocess.run(
            command,
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
