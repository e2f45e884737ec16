"""`xlatune watch`: every cell below a folder on one screen, over and over. It changes nothing."""

from __future__ import annotations

import argparse
import contextlib
import select
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pytest_xlatune import owned
from pytest_xlatune.cli.parsers import add_options, options_of
from pytest_xlatune.model.text import counted, interval, points
from pytest_xlatune.report.lines import words

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from pytest_xlatune.tasks.watch import Seen

_QUIT = "q\x03\x04"  # q, Ctrl-C, Ctrl-D
_WHY, _RANKED, _EVENTS = 8, 6, 4  # lines of a cell that is shown in full
_STYLE = {"running": "green", "complete": "cyan", "stopped": "red", "cannot be read": "red"}


def add_watch(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "cells", nargs="*", metavar="CELL", help="names of sweeps or cells; all without one"
    )
    parser.add_argument(
        "--every", type=float, default=2.0, metavar="S", help="seconds between two looks (2)"
    )
    parser.add_argument("--once", action="store_true", help="print how they stand now, and end")
    add_options(parser, only=("workdir", "config"))
    parser.set_defaults(run=_watch)


@owned.show_only()
def _watch(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from pytest_xlatune.tasks.watch import Watcher

    folder = options_of(arguments).workdir
    watcher = Watcher(folder, names=arguments.cells)
    console = Console(highlight=False, emoji=False, markup=False)
    if arguments.once or not console.is_terminal:
        console.print(_shown(watcher.look(time.time()), console))
        return 0
    from rich.live import Live

    every_s = max(arguments.every, 0.2)
    screen = Live(console=console, screen=True, auto_refresh=False)
    with contextlib.suppress(KeyboardInterrupt), _keys() as pressed, screen as live:
        while True:
            live.update(_shown(watcher.look(time.time()), console, is_live=True), refresh=True)
            if pressed(every_s) in _QUIT:
                break
    return 0


class _Keys:
    """The keys that are typed; none where the input is no terminal."""

    def __init__(self, *, is_terminal: bool) -> None:
        self._is_terminal = is_terminal

    def __call__(self, timeout_s: float) -> str:
        """Wait for a key; return it, or a blank when the time is over."""
        if not self._is_terminal:
            time.sleep(timeout_s)
            return " "
        if not select.select([sys.stdin], [], [], timeout_s)[0]:
            return " "
        return sys.stdin.read(1) or "q"  # the terminal is gone


@contextlib.contextmanager
def _keys() -> Iterator[_Keys]:
    """Read keys as they are typed, and give the terminal back as it was."""
    if not sys.stdin.isatty():
        yield _Keys(is_terminal=False)
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield _Keys(is_terminal=True)
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _shown(cells: Sequence[Seen], console: Console, *, is_live: bool = False) -> RenderableType:
    """Lay the cells out: those that may still change in full, as many as fit; the others a line."""
    from rich.console import Group
    from rich.text import Text

    lines: list[RenderableType] = []
    left = console.height - 1 if is_live else sys.maxsize
    if is_live:
        at = time.strftime("%H:%M:%S")
        head = f"q quits  {at}  {counted(len(cells), 'cell')}  xlatune watch"
        lines.append(Text(head, style="reverse", no_wrap=True, overflow="ellipsis"))
        left -= 1
    others = len(cells)
    for each in cells:
        others -= 1
        is_full = each.is_active or bool(each.why) or len(cells) == 1
        block = list(_cell(each, console.width)) if is_full else []
        if not block or len(block) + others > left:
            block = [_line(each)]
        if len(block) > left:
            lines.append(Text(f"and {others + 1} more: name one, or make the window higher"))
            break
        lines += block
        left -= len(block)
    return Group(*lines)


def _line(cell: Seen, *, is_alone: bool = True) -> RenderableType:
    """Tell a cell in one line; where its block follows, that shows the rest."""
    from rich.text import Text

    has_best = is_alone and cell.ranking
    best = f", best {cell.ranking[0].arm} {points(cell.ranking[0].delta)} %" if has_best else ""
    said = cell.why if is_alone and cell.why else f"{cell.progress}{best}"
    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"{cell.sweep} ", style="bold").append(f"{cell.label} ")
    text.append(cell.standing, style=_STYLE.get(cell.standing, "yellow"))
    return text.append(f": {' '.join(said.split())}" if said else "")


def _cell(cell: Seen, width: int) -> Iterator[RenderableType]:
    """Give the lines of a cell, each one line high."""
    from rich.text import Text

    def line(text: str, style: str = "") -> Text:
        return Text(text, style=style, no_wrap=True, overflow="ellipsis")

    yield line("─" * width, "dim")
    yield _line(cell, is_alone=False)
    for why in textwrap.wrap(cell.why, max(width - 2, 20), max_lines=_WHY, placeholder=" ..."):
        yield line(f"  {why}", "yellow")
    for each in cell.running:
        yield line(f"  {each.trial.profile.id} (job {each.job_id}) {each.words}", "bold")
    if cell.ranking:
        name = max(20, width - 44)
        yield line(f"  {'profile':<{name}} {'delta %':>8} {'95 %':>14}  n verdict", "dim")
    for verdict in cell.ranking[:_RANKED]:
        arm = verdict.arm if len(verdict.arm) <= name else f"{verdict.arm[: name - 1]}…"
        figures = f"{points(verdict.delta):>8} {interval(verdict.ci95):>14} {verdict.n:>2}"
        yield line(f"  {arm:<{name}} {figures} {words(verdict)}")
    for at_s, text in cell.events[:_EVENTS]:
        yield line(f"  {time.strftime('%H:%M', time.localtime(at_s))} {text}", "dim")
