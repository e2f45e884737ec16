"""Show the output of a command in the requested form; nothing else in `cli` prints or writes.

A command returns an `Output`: documents for a terminal, values for `--json`, and files that it
leaves. `present` shows the form that the arguments request. Lines that appear while a
command still works go through `show`.
"""

from __future__ import annotations

import argparse
import contextlib
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
from pytest_xlatune.report.document import Document, terminal


class Output(NamedTuple):
    """The output of a command, in each form that it has.

    Attributes:
        documents: for a terminal. If making a later one can fail, this is an iterator, so that the
            earlier ones are already shown.
        json: a function that makes the value for `--json`; None if nothing is to be printed.
        files: path -> text of the files that the command leaves; they are written first.
        problems: what could not be done, each a line on stderr; read after the documents, because
            making them can add problems.
        problem_status: the exit status if there are problems.
        status: the exit status if there are no problems.
    """

    documents: Iterable[Document] = ()
    json: Callable[[], Json] | None = None
    files: Mapping[Path, str] = MappingProxyType({})
    problems: Sequence[str] = ()
    problem_status: Exit = Exit.USAGE
    status: int = 0


def present(output: Output, arguments: argparse.Namespace) -> int:
    """Show the output of a command as the arguments request; return the exit code.

    Raises:
        ConfigError: a file cannot be written.
    """
    write_files(output.files)
    if not vars(arguments).get("json", False):
        for document in output.documents:
            show_document(document)
    elif output.json is not None:
        show_json(output.json())
    return complain(output.problems, status=output.problem_status) or output.status


def show(lines: Iterable[str]) -> None:
    """Print each line as soon as it is known."""
    for line in lines:
        _print_line(line)


def show_json(document: Json) -> None:
    """Print one JSON document, in the layout of the files that a run writes."""
    _print_line(pretty_json(document, keeps_order=True).removesuffix("\n"))


def show_document(document: Document) -> None:
    """Print a document as wide as the terminal, with a blank line after it unless it is brief."""
    lines = terminal(document, width=shutil.get_terminal_size().columns)
    if lines:
        _print_line("\n".join(lines if document.brief else [*lines, ""]))


def complain(problems: Iterable[str], *, status: Exit = Exit.USAGE) -> int:
    """Print on stderr what could not be done; return the exit code, 0 if there are no problems."""
    code = 0
    for problem in problems:
        _print_line(f"xlatune: {shown(problem)}", is_error=True)
        code = of_command(status)
    return code


def _print_line(line: str, *, is_error: bool = False) -> None:
    print(printable(hide_kept(line)), file=sys.stderr if is_error else sys.stdout, flush=True)


def refused_output(error: OSError) -> int:
    """Report that stdout cannot be written; return the exit code.

    The buffer of stdout then goes to /dev/null, so that Python does not fail again when it ends.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):  # `xlatune steps ... | head`: head has read enough
        return 0
    return complain([f"the output cannot be written: {error.strerror}"], status=Exit.INTERNAL)


def write_files(texts: Mapping[Path, str]) -> None:
    """Write files and their folders, each file whole or not at all, and print their names.

    Raises:
        ConfigError: a file cannot be written.
    """
    for path, text in texts.items():
        temporary = path.with_name(f".{path.name}.{os.uname().nodename}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.unlink(missing_ok=True)
            with temporary.open("x", encoding="utf-8") as file:  # "x" follows no link of a stranger
                file.write(text)
            temporary.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):  # on a full disk, a part of the file would remain
                temporary.unlink()
            why = error.strerror or error
            raise ConfigError(f"{path} cannot be written: {why}; name another place") from None
    show(f"written: {path}" for path in texts)
