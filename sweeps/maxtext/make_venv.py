"""Make the virtual environment that MaxText runs in on a CPU: `make maxtext` calls this.

    python sweeps/maxtext/make_venv.py FOLDER [--python PYTHON]

MaxText pins a JAX of its own and wants Python 3.12, so it never shares an environment with pytest:
trials start it as a process. It declares no dependencies that a CPU could install; what it imports
is in `pins/`, with the versions that were tried. Where no Python 3.12 is to be found, 0.2.3 runs on
3.11. Again for a folder that is complete does nothing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

PINS = Path(__file__).parent / "pins"
# Python -> the newest MaxText that runs on it; 0.2.3 says 3.12 and needs no more than 3.11
RELEASES = {"3.12": "0.2.5", "3.11": "0.2.3"}
MARK = ".maxtext"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--python", help="the interpreter, of 3.12 or 3.11 (default: found)")
    arguments = parser.parse_args()
    python, version = find_python([arguments.python] if arguments.python else candidates())
    release = RELEASES[version]
    mark = arguments.folder / MARK
    if mark.is_file() and mark.read_text(encoding="utf-8") == release:
        print(f"MaxText {release} is in {arguments.folder}")
        return 0
    print(f"MaxText {release} on Python {version} into {arguments.folder}: about 2 minutes")
    subprocess.run([python, "-m", "venv", "--clear", str(arguments.folder)], check=True)
    # MaxText by itself: what it declares from 0.2 on is CUDA and TPU stacks, as extras
    install(arguments.folder, "--no-deps", "--ignore-requires-python", f"maxtext=={release}")
    pins = ("-r", str(PINS / f"{release}.in"), "-c", str(PINS / f"{release}.txt"))
    install(arguments.folder, *pins)
    mark.write_text(release, encoding="utf-8")
    return 0


def install(folder: Path, *what: str) -> None:
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    # without .pyc files every run would import for 7 seconds longer
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run([*pip, "--disable-pip-version-check", *what], check=True, env=environ)


def candidates() -> list[str]:
    """Return interpreters by preference, pyenv's too: its shims work for one version at a time."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = []
    for version in RELEASES:
        found += [f"python{version}", *map(str, root.glob(f"versions/{version}.*/bin/python3"))]
    return found


def find_python(names: list[str]) -> tuple[str, str]:
    """Return the first interpreter of a version that a MaxText runs on, and that version."""
    asks = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    seen = []
    for name in names:
        path = shutil.which(name)
        if path is None:
            continue
        said = subprocess.run([path, "-c", asks], capture_output=True, text=True, check=False)
        version = said.stdout.strip()
        if version in RELEASES:
            return path, version
        seen.append(f"{path} ({version or 'does not start'})")
    sys.exit(
        f"MaxText needs Python 3.12, or 3.11 for its 0.2.3; found {', '.join(seen) or 'neither'}. "
        "Name one with --python"
    )


if __name__ == "__main__":
    sys.exit(main())
