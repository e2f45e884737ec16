"""A git repository of a trainer, made for a test."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

# the hashes of the commits, and with them the noise of the trials, are the same in each run
_THEN = {"GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z", "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z"}


class Repository:
    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *words: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@localhost")
        command = ("git", "-C", str(self.path), *who, *words)
        env = os.environ | _THEN
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
        return done.stdout.strip()

    def write(self, **files: str) -> None:
        """Write modules by their names."""
        for name, text in files.items():
            (self.path / f"{name}.py").write_text(text, encoding="utf-8")

    def commit(self, note: str, /, **files: str) -> str:
        self.write(**files)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "-m", note)
        return self.git("rev-parse", "HEAD")
