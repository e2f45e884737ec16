"""What a command says, in the form that is asked for: nothing else of `cli` prints or writes.

A command returns an `Output`: documents for a terminal and a page, values for `--json`, files that
it leaves. `present` gives out the one that the arguments ask for. Lines that a person gets while a
command still works go through `show`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from pytest_xlatune.model.errors import ConfigError, Exit, of_command, shown
from pytest_xlatune.model.pretty_json import pretty_json
from pytest_xlatune.model.record import Json
from pytest_xlatune.model.redact import hide_kept
from pytest_xlatune.model.text import printable
from pytest_xlatune.report.document import Document
from pytest_xlatune.report.render import terminal
from pytest_xlatune.tasks.files import NO_JINJA, has_pages


class Output(NamedTuple):
    """What a command has to say, in each form that it has.

    Attributes:
        documents: for a terminal; the first is the one of a page. Where a file that is written
            later may fail, an iterator makes them one by one: what was found is shown by then.
        json: makes the value that `--json` prints; None where nothing is to be printed.
        source: where the figures of a page come from.
        files: path -> text of the files that the command leaves; they are written first.
        notes: what else a person should know, a line each on stderr.
        problems: what could not be done, a line each on stderr; read when all is shown.
        problem_status: the exit status where there are problems.
        status: the exit status where there are none.
    """

    documents: Iterable[Document] = ()
    json: Callable[[], Json] | None = None
    source: str = ""
    files: Mapping[Path, str] = MappingProxyType({})
    notes: tuple[str, ...] = ()
    problems: Sequence[str] = ()
    problem_status: Exit = Exit.USAGE
    status: int = 0


def present(output: Output, arguments: argparse.Namespace) -> int:
    """Give out what a command found as the arguments ask; return the exit code.

    Raises:
        ConfigError: a file or the page cannot be written.
    """
    write_files(output.files)
    page: Path | None = vars(arguments).get("html")
    shown: list[Document] = []
    if vars(arguments).get("json", False):
        if output.json is not None:
            show_json(output.json())
    else:
        for document in output.documents:
            show_document(document)
            shown.append(document)
    page_document = None if page is None else next(iter(shown or output.documents), None)
    if page is not None and page_document is not None:  # what found nothing makes no page
        arguments.write_page(page_document, page, output.source)
        blank = [""] if page_document.brief else []
        show([*blank, f"written: {page}"] if shown else [])
    complain(output.notes)
    return complain(output.problems, status=output.problem_status) or output.status


def live(arguments: argparse.Namespace) -> Callable[[Iterable[str]], None]:
    """Return what tells lines while a command works: nothing is told beside one JSON document."""
    return (lambda _: None) if arguments.json else show


def show(lines: Iterable[str]) -> None:
    """Print lines as they come."""
    for line in lines:
        _say(line)


def show_json(document: Json) -> None:
    """Print one JSON document, as it stands in the files that a run writes."""
    _say(pretty_json(document, keeps_order=True).removesuffix("\n"))


def show_document(document: Document) -> None:
    """Print a document as wide as the terminal; a blank line ends one that is not brief."""
    lines = terminal(document, width=terminal_columns())
    if lines:
        _say("\n".join(lines if document.brief else [*lines, ""]))


def terminal_columns() -> int:
    """Return how wide the terminal is; 80 where the output is none."""
    return shutil.get_terminal_size().columns


def complain(problems: Iterable[str], *, status: Exit = Exit.USAGE) -> int:
    """Say on stderr what could not be done; return the exit code, 0 where there is nothing."""
    code = 0
    for problem in problems:
        _say(f"xlatune: {shown(problem)}", is_error=True)
        code = of_command(status)
    return code


def _say(line: str, *, is_error: bool = False) -> None:
    print(printable(hide_kept(line)), file=sys.stderr if is_error else sys.stdout, flush=True)


def refused(error: OSError) -> int:
    """Say that the output, which has no name, cannot be written; return the exit code.

    Nothing that is left in its buffer is tried again when Python ends.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):  # `xlatune steps ... | head`: head has what it wants
        return 0
    return complain([f"the output cannot be written: {error.strerror}"], status=Exit.INTERNAL)


def write_files(texts: Mapping[Path, str]) -> None:
    """Write files for a person, their folders too, each whole or not at all, and name them.

    Raises:
        ConfigError: one cannot be written.
    """
    for path, text in texts.items():
        try:
            write_file(path, text)
        except OSError as error:
            why = error.strerror or error
            raise ConfigError(f"{path} cannot be written: {why}; name another place") from None
    show(f"written: {path}" for path in texts)


def write_file(path: Path, text: str) -> None:
    """Write a file that a person named, wherever it is."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        # a pipe or a device: nothing takes its place, and a pipe that no program reads is an error
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_NONBLOCK), "w", encoding="utf-8") as file:
            os.set_blocking(file.fileno(), True)
            file.write(text)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
    try:
        aside.unlink(missing_ok=True)
        with aside.open("x", encoding="utf-8") as file:  # a link that another user left is refused
            file.write(text)
        aside.replace(path)
    except OSError:
        aside.unlink(missing_ok=True)  # the disk may be full
        raise


def check_page(path: Path | None) -> None:
    """Find out before anything is read that a page can be written; None asks for none.

    Raises:
        ConfigError: jinja2 is not installed, or a folder has that name.
    """
    if path is None:
        return
    if not has_pages():
        raise ConfigError(NO_JINJA)
    if path.is_dir():
        raise ConfigError(f"--html {path} is a folder; name a file in it: {path / 'page.html'}")
