"""Install versions of libtpu, each into a folder of its own: install.py FOLDER VERSION..."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

if __name__ == "__main__":
    folder, *versions = sys.argv[1:]
    for version in versions:
        target = Path(folder, version)
        if not list(target.rglob("libtpu.so")):
            subprocess.run(
                [
                    *(sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"),
                    *("--disable-pip-version-check", "--target", str(target)),
                    f"libtpu=={version}",
                ],
                check=True,
            )
