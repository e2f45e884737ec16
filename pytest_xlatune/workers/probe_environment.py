"""Report what a trial ran on: the node, the code, the packages and the devices of its trainer.

    python probe_environment.py node PATH...                 by the payload's Python
    python probe_environment.py trainer PROGRAM [devices]    by the trainer's Python
    python probe_environment.py job PROGRAM...               the same where no payload runs

The payload runs the first two before it starts a trainer, when nothing is measured yet. Only the
text of this file goes to the node. A job that others start runs the last before its trainer,
without touching devices. It prints one line, `xlatune-environment: {...}`, with texts under node,
packages, devices, code and repositories. What it cannot find is left out. With `devices` it imports
JAX and asks it; otherwise it uses only the standard library.

PROGRAM is a script or the name of a module; of several, the first that exists. The Python files
that it may import are hashed, so that an edit of the trainer between two trials is noticed without
git, but an edit of an unrelated file beside it is not.
"""

from __future__ import annotations

import ast
import grp
import hashlib
import importlib.util
import json
import os
import pwd
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

MARK = "xlatune-environment: "
FILE = "xlatune_environment.py"  # its name in an attempt's folder
_GIT_S = 10.0
# settings in the configuration of a repository that would make git run programs
_RUNS_NOTHING = ("-c", "core.fsmonitor=", "-c", "core.hooksPath=/dev/null")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_MOST_FILES, _MOST_BYTES = 3000, 1 << 26
# folders of a trainer that contain none of its own code
_FOREIGN = {"site-packages", "node_modules", "__pycache__"}
# a sweep file is not part of the trainer, and users edit it between sessions
_OF_TESTS = re.compile(r"test_.*\.py|conftest\.py")
# a program with one of these may run files that its imports do not name
_DYNAMIC = re.compile(
    r"import_module|__import__|importlib|runpy|\bexec\(|subprocess|os\.(?:exec|spawn|system|popen)"
    r"|sys\.path|Popen"
)
# names of installed packages:  jaxlib-0.10.2.dist-info    nvidia_nccl_cu12-2.27.3.dist-info
_INSTALLED = re.compile(
    r"(jax|jaxlib|libtpu|libtpu[-_]nightly|jax[-_](?:cuda|rocm)\d*[-_](?:plugin|pjrt)|maxtext|flax"
    r"|nvidia[-_](?:cuda[-_]runtime|cudnn|nccl|cublas)(?:[-_]cu\d+)?|transformer[-_]engine\w*"
    r"|rccl|numpy)-([^-]+)(?:-[^-]+)?\.(?:dist|egg)-info",
    re.IGNORECASE,
)
# the driver's version: NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5
# 22:23:56 UTC 2024 NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release
# Build
_NVIDIA = re.compile(r"Kernel Module\D*?(?:x86_64|aarch64)?\s+(\d+(?:\.\d+)+)")


def node_facts(root: Path = Path("/")) -> dict[str, str]:
    """Return kernel, processor, driver and GPUs from the node's files below `root`."""
    cpu = re.search(r"^(?:model name|Model)\s*: (.*)", _read(root / "proc/cpuinfo"), re.MULTILINE)
    nvidia = _NVIDIA.search(_read(root / "proc/driver/nvidia/version"))
    amd = _read(root / "sys/module/amdgpu/version").strip()
    models = [
        re.search(r"Model:\s*(.*)", _read(path))
        for path in root.glob("proc/driver/nvidia/gpus/*/information")
    ]
    names = [match.group(1).strip() for match in models if match]
    # gfx_target_version 90402    (0 for a CPU)
    targets = [
        re.search(r"gfx_target_version (\d{1,9})", _read(path))
        for path in root.glob("sys/class/kfd/kfd/topology/nodes/*/properties")
    ]
    names += [_gfx(int(match.group(1))) for match in targets if match and match.group(1) != "0"]
    gpus = ", ".join(f"{names.count(name)} x {name}" for name in sorted(set(names)))
    return {
        "kernel": os.uname().release,
        "CPU": f"{os.cpu_count()} x {cpu.group(1) if cpu else os.uname().machine}",
        "driver": f"NVIDIA {nvidia.group(1)}" if nvidia else f"amdgpu {amd}" if amd else "",
        "GPUs": gpus,
    }


def _gfx(version: int) -> str:
    """Return the name of an AMD GPU's architecture: 90402 is gfx942, 90010 is gfx90a."""
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def packages(root: Path = Path("/")) -> dict[str, str]:
    """Return name -> version of the relevant installed packages, without importing them."""
    versions: dict[str, str] = {}
    for folder in sys.path:
        try:
            names = sorted(path.name for path in Path(folder).iterdir())
        except OSError:
            continue
        for name in names:
            match = _INSTALLED.fullmatch(name)
            if match:
                versions.setdefault(match.group(1).lower().replace("_", "-"), match.group(2))
    cuda = re.search(r'"cuda"\s*:\s*\{[^}]*"version"\s*:\s*"([^"]+)"',
                     _read(root / "usr/local/cuda/version.json"))  # fmt: skip
    return {
        "python": sys.version.split()[0],
        **versions,
        "CUDA": cuda.group(1) if cuda else "",
        "ROCm": _read(root / "opt/rocm/.info/version").strip(),
    }


def devices() -> dict[str, str]:
    """Return what JAX sees in one process, with versions of the runtime and the collectives."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax

    local = jax.local_devices()
    facts = {
        "devices": f"{len(local)} x {local[0].device_kind}",
        "platform": local[0].platform,
        "runtime": " ".join(str(local[0].client.platform_version).split()),
    }
    if local[0].platform in ("gpu", "cuda", "rocm"):
        facts.update(_collectives())
    return facts


def _collectives() -> dict[str, str]:
    import ctypes

    wheels = (Path(folder, "nvidia/nccl/lib/libnccl.so.2") for folder in sys.path)
    named = {
        "NCCL": [*(str(wheel) for wheel in wheels if wheel.exists()), "libnccl.so.2"],
        "RCCL": ["librccl.so.1", "/opt/rocm/lib/librccl.so.1"],
    }
    for name, path in ((name, path) for name, paths in named.items() for path in paths):
        try:
            version, library = ctypes.c_int(), ctypes.CDLL(path)
            failed = library.ncclGetVersion(ctypes.byref(version))
        except (OSError, AttributeError):
            continue
        if not failed:
            return {name: version_of(version.value)}
    return {}


def version_of(code: int) -> str:
    """Return the version for a code of `ncclGetVersion`; before 2.9 it had a digit less.

    nccl.h: NCCL_VERSION(X,Y,Z) is X*1000 + Y*100 + Z up to 2.8, X*10000 + Y*100 + Z from 2.9.
    """
    unit = 10000 if code >= 10000 else 1000  # noqa: PLR2004 - 22703 is 2.27.3, 2804 is 2.8.4
    major, rest = divmod(code, unit)
    return f"{major}.{rest // 100}.{rest % 100}"


def folder_of(program: str) -> str:
    """Return the folder of a script, or of a module's package; "" if it does not exist."""
    if program.endswith(".py"):
        return str(Path(program).absolute().parent)
    try:
        spec = importlib.util.find_spec(program.partition(".")[0]) if program else None
    except (ImportError, ValueError):
        spec = None
    places = list(spec.submodule_search_locations or ()) if spec else []
    return os.path.realpath(places[0]) if places else ""


def code_digest(folder: str, program: str = "") -> str:
    """Return a digest of the Python files that a program may import, without sweep files.

    These are the script, the files that its imports name, and complete packages. For a module, and
    for a script whose imports are not clear, it is all files in and below `folder`; in a folder
    with thousands of them, such as a home, only those directly in it.
    """
    imported = _imported(Path(program).absolute()) if program.endswith(".py") else None
    below = _python_files(folder) if imported is None else imported
    digest, left = hashlib.blake2b(digest_size=6), _MOST_BYTES
    for path in below:
        try:
            with open(path, "rb", opener=_plain) as file:
                text = file.read(max(left, 0))
        except OSError:
            continue
        left -= len(text)
        name = os.fsencode(path.relative_to(folder))
        digest.update(b"%d %s %d " % (len(name), name, len(text)) + text)
    files = "1 Python file" if len(below) == 1 else f"{len(below)} Python files"
    return f"{digest.hexdigest()} of {files}" if below else ""


def _imported(script: Path) -> list[Path] | None:
    """Return a script and the files beside it that it imports; None if that is not clear."""
    files, asked = set[Path](), [script]
    while asked:
        path = asked.pop()
        if path in files:
            continue
        if len(files) > _MOST_FILES:
            return None
        files.add(path)
        try:
            with open(path, encoding="utf-8", opener=_plain) as file:
                text = file.read()
            tree = ast.parse(text)
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            return None
        if _DYNAMIC.search(text):
            return None
        for name in _names(tree):
            module = script.parent / f"{name}.py"
            package = script.parent / name
            asked += [module] if module.exists() else []
            asked += [Path(file) for file in _python_files(str(package)) if package.is_dir()]
    return sorted(files)


def _names(tree: ast.Module) -> set[str]:
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").partition(".")[0])
    return names - {""}


def _python_files(folder: str) -> list[Path]:
    below: list[Path] = []
    seen = 0
    for here, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if _is_own(Path(here, name)))
        below += (
            Path(here, name)
            for name in sorted(names)
            if name.endswith(".py") and name != FILE and not _OF_TESTS.fullmatch(name)
        )
        seen += len(names) + len(folders)
        if len(below) > _MOST_FILES or seen > 20 * _MOST_FILES:
            below = [path for path in below if str(path.parent) == folder]
            break
    return below


def _is_own(folder: Path) -> bool:
    is_foreign = folder.name.startswith(".") or folder.name in _FOREIGN
    return not is_foreign and not (folder / "pyvenv.cfg").exists()


def repositories(paths: Iterable[str]) -> dict[str, str]:
    """Return the git repository of each path -> its commit, and how many files were changed."""
    states: dict[str, str] = {}
    asked = set[Path | None]([None])
    for path in paths:
        place = Path(path).absolute()  # an interpreter may be a link into another repository
        above = (place, *place.parents)
        top = next((folder for folder in above if os.path.lexists(folder / ".git")), None)
        if top is None or top in asked:
            continue
        asked.add(top)
        commit = (_git(top, "rev-parse", "HEAD") or "").strip()
        if not commit and _is_ours(top):
            commit = _head(top)
        if _COMMIT.fullmatch(commit):
            changed = _git(
                *(top, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=none")
            )
            count = 0 if changed is None else len(changed.splitlines())
            files = f"{count} changed file{'s' if count > 1 else ''}" if count else "clean"
            listed = (_git(top, "ls-files", "-v") or "").splitlines()
            # files that git was told to ignore may have changed:  h local.yml    S config.yml
            hidden = sum(line[:1].islower() or line[:1] == "S" for line in listed)
            more = f", {hidden} that git does not look at" if hidden else ""
            state = files if changed is not None else "changes unknown"
            states[str(top)] = f"{commit}, {state}{more}"
    return states


def _is_ours(top: Path) -> bool:
    """Return whether this user or root owns the repository, and no other user may write in it.

    Git runs programs that a repository's settings name, such as filters, and a stranger's
    repository once gave a private file as its commit.
    """
    git, folder = top / ".git", _folder(top)
    common = folder / _read(folder / "commondir").strip()
    try:
        above, link = top.stat(), git.lstat()
        stats = [path.stat() for path in (git, folder, common, common / "config")]
    except OSError:
        return False
    is_open = above.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH or any(
        entry.st_mode & (stat.S_IWOTH if _is_private(entry.st_gid) else stat.S_IWGRP | stat.S_IWOTH)
        for entry in stats
    )
    return {entry.st_uid for entry in (above, link, *stats)} <= {os.geteuid(), 0} and not is_open


def _is_private(group: int) -> bool:
    """Return whether a group is root's, or this user's private group."""
    try:
        user, entry = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(group)
    except KeyError:
        return False
    return not group or (entry.gr_name == user and set(entry.gr_mem) <= {user})


def _folder(top: Path) -> Path:
    """Return the git folder of a repository; that of a worktree is elsewhere."""
    git = top / ".git"
    # the file `.git` of a worktree has:  gitdir: /shared/trainer/.git/worktrees/a
    return top / _read(git).partition("gitdir:")[2].strip() if git.is_file() else git


def _git(top: Path, *words: str) -> str | None:
    # git refuses repositories of root, which are trusted; others as its settings say
    ours = ("-c", f"safe.directory={top.resolve()}") if _is_ours(top) else ()
    command = ["git", *_RUNS_NOTHING, *ours, "-C", str(top), *words]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # git would skip an empty `.git` and use the next repository above
    environ["GIT_CEILING_DIRECTORIES"] = str(top.resolve().parent)
    try:
        done = subprocess.run(
            command,
            env={**environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")


def _head(top: Path) -> str:
    git = _folder(top)
    head = _read(git / "HEAD").strip()
    name = head.partition("ref:")[2].strip()
    if not name.startswith("refs/") or ".." in name:
        return head
    common = git / _read(git / "commondir").strip()
    line = rf"^([0-9a-f]{{40,64}}) {re.escape(name)}$"
    packed = re.search(line, _read(common / "packed-refs"), re.MULTILINE)
    return _read(common / name).strip() or (packed.group(1) if packed else "")


def _read(path: Path | str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace", opener=_plain) as file:
            return file.read(1 << 20)
    except OSError:
        return ""


def _plain(path: str, flags: int) -> int:
    """Open a regular file, but no pipe or device, on which reading might block."""
    opened = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError(path)
    return opened


def main(argv: Sequence[str]) -> None:
    """Print all facts; a failing question is reported and does not affect the others."""
    kind, *rest = argv
    asked: dict[str, Callable[[], dict[str, str]]]
    asked = {"node": node_facts, "repositories": lambda: repositories(rest)}
    if kind in ("trainer", "job"):
        program = next((word for word in rest if folder_of(word)), rest[0])
        folder = folder_of(program)
        asked = {
            **({} if kind == "trainer" else {"node": node_facts}),
            "packages": packages,
            "code": lambda: {folder: code_digest(folder, program)} if folder else {},
            "repositories": lambda: repositories([folder] if folder else []),
        }
        if "devices" in rest[1:]:
            asked["devices"] = devices
    facts, problems = dict[str, Any](), list[str]()
    if kind == "job":
        facts["name"] = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
        problems.append("devices: not asked, the trainer is about to take them")
    for name, ask in asked.items():
        if name == "devices":  # XLA may end the process, e.g. for an unknown flag
            _tell(facts, [*problems, "devices: JAX gave no answer"])
        try:
            facts[name] = {key: text for key, text in ask().items() if text}
        except Exception as error:  # noqa: BLE001 - whatever a plugin raises
            problems.append(f"{name}: {type(error).__name__}: {str(error).strip()[:200]}")
    _tell(facts, problems)


def _tell(facts: dict[str, Any], problems: list[str]) -> None:
    # a library may have printed something without a newline
    sys.stdout.write(f"\n{MARK}{json.dumps({**facts, 'problems': problems})}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
