"""Report what a trial ran on: the node, the code, the packages and the devices of its trainer.

    python probe_environment.py node PATH...                 by the payload's Python
    python probe_environment.py trainer PROGRAM [devices]    by the trainer's Python
    python probe_environment.py job PROGRAM...               both, in a job without our payload

The payload runs the first two commands while nothing is measured. A job that another
program submits runs the third before its trainer, without touching devices. Only the text of this
file is sent to the node. It prints one line, `xlatune-environment: {...}`, with texts under node,
packages, devices, code and repositories; what it cannot find is left out. With `devices` it imports
JAX and asks it; otherwise it uses only the standard library.

PROGRAM is a script or the name of a module; of several, the first that exists is used. The Python
files that it may import are hashed. So an edit of the trainer between two trials is noticed without
git, and an edit of an unrelated file beside it makes no difference.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

MARK = "xlatune-environment: "
FILE = "xlatune_environment.py"  # its name in an attempt's folder
_GIT_S = 10.0  # seconds that a command of git may take
# these options keep git from running programs that a repository names
_NO_PROGRAMS = ("-c", "core.fsmonitor=", "-c", "core.hooksPath=/dev/null")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_MOST_FILES, _MOST_BYTES = 3000, 1 << 26  # of Python files that are hashed
_MOST_ENTRIES = 20 * _MOST_FILES  # of folders that are searched for them
# folders beside a trainer that contain none of its own code
_FOREIGN = {"site-packages", "node_modules", "__pycache__"}
# files of tests: a sweep file is not part of the trainer, and users edit it between sessions
_TEST_FILE = re.compile(r"test_.*\.py|conftest\.py")
# words in a program that may run files that its imports do not name
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
# the driver's version in one of these lines:
# NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024
# NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build
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
    driver = f"amdgpu {amd}" if amd else ""
    return {
        "kernel": os.uname().release,
        "CPU": f"{os.cpu_count()} x {cpu.group(1) if cpu else os.uname().machine}",
        "driver": f"NVIDIA {nvidia.group(1)}" if nvidia else driver,
        "GPUs": ", ".join(f"{names.count(name)} x {name}" for name in sorted(set(names))),
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
    """Return what JAX sees in one process, with the version of the runtime."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    import jax

    local = jax.local_devices()
    return {
        "devices": f"{len(local)} x {local[0].device_kind}",
        "platform": local[0].platform,
        "runtime": " ".join(str(local[0].client.platform_version).split()),
    }


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

    For a script they are the script itself, and the files and packages beside it that its imports
    name. For a module, and for a script whose imports are not clear, they are all files in and
    below `folder`; if these are thousands, as in a home, only the files directly in it.
    """
    imported = _imported(Path(program).absolute()) if program.endswith(".py") else None
    paths = _python_files(folder) if imported is None else imported
    digest, bytes_left = hashlib.blake2b(digest_size=6), _MOST_BYTES
    for path in paths:
        try:
            with open(path, "rb", opener=_open_regular) as file:
                text = file.read(max(bytes_left, 0))
        except OSError:
            continue
        bytes_left -= len(text)
        name = os.fsencode(path.relative_to(folder))
        digest.update(b"%d %s %d " % (len(name), name, len(text)) + text)
    files = "1 Python file" if len(paths) == 1 else f"{len(paths)} Python files"
    return f"{digest.hexdigest()} of {files}" if paths else ""


def _imported(script: Path) -> list[Path] | None:
    """Return a script and the files beside it that it imports; None if that is not clear."""
    files, pending = set[Path](), [script]
    while pending:
        path = pending.pop()
        if path in files:
            continue
        if len(files) > _MOST_FILES:
            return None
        files.add(path)
        try:
            with open(path, encoding="utf-8", opener=_open_regular) as file:
                text = file.read()
            tree = ast.parse(text)
        except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
            return None
        if _DYNAMIC.search(text):
            return None
        for name in _imported_names(tree):
            module = script.parent / f"{name}.py"
            package = script.parent / name
            if module.exists():
                pending.append(module)
            if package.is_dir():
                pending += _python_files(str(package))
    return sorted(files)


def _imported_names(tree: ast.Module) -> set[str]:
    """Return the top-level names of the absolute imports in a program."""
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").partition(".")[0])
    return names - {""}


def _python_files(folder: str) -> list[Path]:
    """Return the Python files in and below a folder; if they are too many, only those in it."""
    files: list[Path] = []
    n_entries = 0
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if _may_have_code(Path(parent, name)))
        files += (
            Path(parent, name)
            for name in sorted(names)
            if name.endswith(".py") and name != FILE and not _TEST_FILE.fullmatch(name)
        )
        n_entries += len(names) + len(folders)
        if len(files) > _MOST_FILES or n_entries > _MOST_ENTRIES:
            files = [path for path in files if str(path.parent) == folder]
            break
    return files


def _may_have_code(folder: Path) -> bool:
    """Return whether a folder may have code of the trainer; not a virtual environment or cache."""
    is_foreign = folder.name.startswith(".") or folder.name in _FOREIGN
    return not is_foreign and not (folder / "pyvenv.cfg").exists()


def repositories(paths: Iterable[str]) -> dict[str, str]:
    """Return the git repository of each path -> its commit, and how many files were changed."""
    states: dict[str, str] = {}
    done = set[Path]()
    for path in paths:
        place = Path(path).absolute()  # not resolved: an interpreter may link out of its repository
        above = (place, *place.parents)
        top = next((folder for folder in above if os.path.lexists(folder / ".git")), None)
        if top is None or top in done:
            continue
        done.add(top)
        commit = (_git(top, "rev-parse", "HEAD") or "").strip()
        if not _COMMIT.fullmatch(commit):
            continue  # git refuses a stranger's repository
        changed = _git(
            top, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=none"
        )
        count = len((changed or "").splitlines())
        state = "changes unknown" if changed is None else "clean"
        if count:
            state = "1 changed file" if count == 1 else f"{count} changed files"
        states[str(top)] = f"{commit}, {state}"
    return states


def _git(top: Path, *words: str) -> str | None:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    # git would skip an empty `.git` and use the next repository above
    environ["GIT_CEILING_DIRECTORIES"] = str(top.resolve().parent)
    try:
        done = subprocess.run(
            ["git", *_NO_PROGRAMS, "-C", str(top), *words],
            env={**environ, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode("utf-8", "replace")


def _read(path: Path | str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace", opener=_open_regular) as file:
            return file.read(1 << 20)
    except OSError:
        return ""


def _open_regular(path: str, flags: int) -> int:
    """Open a regular file, but no pipe or device, on which reading might block."""
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(path)
    return descriptor


def main(argv: Sequence[str]) -> None:
    """Print all facts; a function that fails is reported and does not affect the others."""
    kind, *rest = argv
    readers: dict[str, Callable[[], dict[str, str]]] = {}
    if kind in ("node", "job"):
        readers["node"] = node_facts
    if kind == "node":
        readers["repositories"] = lambda: repositories(rest)
    else:
        program = next((word for word in rest if folder_of(word)), rest[0])
        folder = folder_of(program)
        readers["packages"] = packages
        readers["code"] = lambda: {folder: code_digest(folder, program)} if folder else {}
        readers["repositories"] = lambda: repositories([folder] if folder else [])
        if "devices" in rest[1:]:
            readers["devices"] = devices
    facts, problems = dict[str, Any](), list[str]()
    if kind == "job":
        facts["name"] = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
        problems.append("devices: not asked, the trainer is about to take them")
    for name, read in readers.items():
        if name == "devices":  # the last line if XLA ends the process, e.g. for an unknown flag
            _print(facts, [*problems, "devices: JAX gave no answer"])
        try:
            facts[name] = {key: text for key, text in read().items() if text}
        except Exception as error:  # noqa: BLE001 - whatever a plugin raises
            problems.append(f"{name}: {type(error).__name__}: {str(error).strip()[:200]}")
    _print(facts, problems)


def _print(facts: dict[str, Any], problems: list[str]) -> None:
    # a library may have printed something without a newline
    sys.stdout.write(f"\n{MARK}{json.dumps({**facts, 'problems': problems})}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
