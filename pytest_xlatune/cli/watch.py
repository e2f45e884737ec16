"""`xlatune watch`: show every cell below a folder on one screen, and change nothing."""

from __future__ import annotations

import argparse
import contextlib
import time

from pytest_xlatune.cli.options import options_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.model.redact import hide_kept
from pytest_xlatune.model.text import printable
from pytest_xlatune.report.document import brief, lines
from pytest_xlatune.tasks.watch import Watcher, screen_lines

_PAUSE_S = 2.0  # seconds between two readings of the ledgers


def run_watch(arguments: argparse.Namespace) -> Output:
    """Show the screen until Ctrl-C; with `--once`, or without a terminal, return it."""
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
    with contextlib.suppress(KeyboardInterrupt), screen as live:
        while True:
            head = Text(f"Ctrl-C quits  {time.strftime('%H:%M:%S')}", style="reverse")
            live.update(Group(head, *screen_texts()), refresh=True)
            time.sleep(_PAUSE_S)
    return Output()
