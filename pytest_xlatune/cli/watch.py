"""`xlatune watch`: show every cell below a folder on one screen, and change nothing."""

from __future__ import annotations

import argparse
import contextlib
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator

from pytest_xlatune.cli.options import options_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.model.redact import hide_kept
from pytest_xlatune.model.text import printable
from pytest_xlatune.report.document import brief, lines
from pytest_xlatune.tasks.watch import Watcher, screen_lines

_QUIT = "q\x03\x04"  # q, Ctrl-C, Ctrl-D


def run_watch(arguments: argparse.Namespace) -> Output:
    """Show the screen until a person quits; with `--once`, or without a terminal, return it."""
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    watcher = Watcher(options_of(arguments).workdir, names=arguments.cells)
    console = Console(highlight=False, emoji=False, markup=False)

    def screen_texts() -> list[Text]:
        screen = screen_lines(watcher.statuses(time.time()), console.width)
        texts = [Text(printable(hide_kept(line)), no_wrap=True) for line in screen]
        for text in texts:
            text.truncate(console.width, overflow="ellipsis")
        return texts

    if arguments.once or not console.is_terminal:
        return Output(documents=(brief("Cells", lines(*(text.plain for text in screen_texts()))),))
    screen = Live(console=console, screen=True, auto_refresh=False)
    with contextlib.suppress(KeyboardInterrupt), _one_key_at_a_time(), screen as live:
        while True:
            head = Text(f"q quits  {time.strftime('%H:%M:%S')}", style="reverse")
            live.update(Group(head, *screen_texts()), refresh=True)
            if _pressed(max(arguments.every, 0.2)) in _QUIT:
                break
    return Output()


def _pressed(timeout_s: float) -> str:
    """Wait up to `timeout_s` for a key; return it, or a blank if none was pressed."""
    if not sys.stdin.isatty():
        time.sleep(timeout_s)
        return " "
    if not select.select([sys.stdin], [], [], timeout_s)[0]:
        return " "
    return sys.stdin.read(1) or "q"  # "" is the end of input: the terminal is gone


@contextlib.contextmanager
def _one_key_at_a_time() -> Iterator[None]:
    """Read keys as they are typed, and restore the terminal afterwards."""
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
