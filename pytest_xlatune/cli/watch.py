"""`xlatune watch`: every cell below a folder on one screen. It changes nothing."""

from __future__ import annotations

import argparse
import contextlib
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from pytest_xlatune import secure_files
from pytest_xlatune.cli.parsers import add_options, options_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.model.redact import hide_kept
from pytest_xlatune.model.text import printable
from pytest_xlatune.report.document import brief, lines
from pytest_xlatune.tasks.watch import ScreenLine, Watcher, all_lines, screen_lines

if TYPE_CHECKING:
    from rich.text import Text


_QUIT = "q\x03\x04"  # q, Ctrl-C, Ctrl-D


def add_watch(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "cells", nargs="*", metavar="CELL", help="names of sweeps or cells (default: all)"
    )
    parser.add_argument(
        "--every", type=float, default=2.0, metavar="S", help="seconds between two looks (2)"
    )
    parser.add_argument("--once", action="store_true", help="print the state of now, and end")
    add_options(parser, only=("workdir", "config"))
    parser.set_defaults(run=_watch)


@secure_files.show_only()
def _watch(arguments: argparse.Namespace) -> Output:
    from rich.console import Console, Group

    watcher = Watcher(options_of(arguments).workdir, names=arguments.cells)
    console = Console(highlight=False, emoji=False, markup=False)
    if arguments.once or not console.is_terminal:
        shown = _texts(all_lines(watcher.look(time.time()), console.width))
        for line in shown:
            line.truncate(console.width, overflow="ellipsis")
        return Output(documents=(brief("Cells", lines(*(line.plain for line in shown))),))
    from rich.live import Live

    every_s = max(arguments.every, 0.2)
    screen = Live(console=console, screen=True, auto_refresh=False)
    with contextlib.suppress(KeyboardInterrupt), _keys() as pressed, screen as live:
        while True:
            now_s, (width, height) = time.time(), console.size
            seen = watcher.look(now_s)
            shown = _texts(screen_lines(seen, width=width, height=height, now_s=now_s))
            live.update(Group(*shown), refresh=True)
            if pressed(every_s) in _QUIT:
                break
    return Output()


@contextlib.contextmanager
def _keys() -> Iterator[Callable[[float], str]]:
    """Give what waits some seconds for a key and returns it, a blank where none was pressed.

    Keys are read as they are typed, and the terminal is given back as it was.
    """

    def wait(timeout_s: float) -> str:
        time.sleep(timeout_s)
        return " "

    def pressed(timeout_s: float) -> str:
        if not select.select([sys.stdin], [], [], timeout_s)[0]:
            return " "
        return sys.stdin.read(1) or "q"  # the terminal is gone

    if not sys.stdin.isatty():
        yield wait
        return
    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield pressed
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _texts(shown: Iterable[ScreenLine]) -> list[Text]:
    from rich.text import Text

    cleaned = ([(printable(hide_kept(text)), style) for text, style in parts] for parts in shown)
    return [Text.assemble(*parts, no_wrap=True, overflow="ellipsis") for parts in cleaned]
