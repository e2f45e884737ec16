"""A program in a terminal of its own, and the lines that a person sees in it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

# what moves no cursor:  ESC[32m   ESC[?25l   ESC[1A and ESC[2K are read by `screen`
_STYLE = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?[0-9]+[hl]|\x1b\][^\x07]*\x07")


class Terminal:
    """A process whose input and output are a pseudo-terminal of 80 columns."""

    def __init__(
        self, argv: Sequence[str], *, cwd: Path, env: Mapping[str, str], columns: int = 80
    ) -> None:
        self.columns = columns
        ours, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
        named = {"TERM": "xterm-256color", "COLUMNS": str(columns), "LINES": "30"}
        self.process = subprocess.Popen(
            argv, cwd=cwd, env={**env, **named}, stdin=its, stdout=its, stderr=its,
            start_new_session=True,
        )  # fmt: skip
        os.close(its)
        self._ours, self.said = ours, b""

    def read_until(self, is_enough: Callable[[str], bool]) -> str:
        """Read what it writes until that is enough, or the process has ended; return all of it."""
        until = time.monotonic() + 120.0
        while time.monotonic() < until and not is_enough(self.text):
            if not select.select([self._ours], [], [], 0.2)[0]:
                if self.process.poll() is not None:
                    break
                continue
            try:
                chunk = os.read(self._ours, 65536)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            self.said += chunk
        return self.text

    @property
    def text(self) -> str:
        """All that was written, without colours."""
        return _STYLE.sub("", self.said.decode("utf-8", "replace"))

    def press(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def close(self) -> int:
        try:
            return self.process.wait(timeout=60)
        finally:
            self.process.kill()
            os.close(self._ours)


def screen(text: str) -> list[str]:
    """The lines as they are left on the screen: erased ones are gone."""
    lines, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[[0-9]*[A-Z]|\r|\n|[^\x1b\r\n]+|\x1b", text):
        if part == "\n":
            row, column = row + 1, 0
            if row == len(lines):
                lines.append("")
        elif part == "\r":
            column = 0
        elif part.startswith("\x1b["):
            if part.endswith("K"):
                lines[row] = "" if part[2:-1] == "2" else lines[row][:column]
            elif part.endswith("A"):
                row = max(row - int(part[2:-1] or 1), 0)
        else:
            old = lines[row].ljust(column)
            lines[row] = old[:column] + part + old[column + len(part) :]
            column += len(part)
    return lines
