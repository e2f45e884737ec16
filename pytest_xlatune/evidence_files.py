"""The files of evidence: a dump's folder to a program, captures to where the time went.

Opens, bounds and names files; what is in them is the evidence room's business. Files that cannot
be read are named and the others are read. It must not know who asks, nor print.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from pytest_xlatune.errors import ConfigError, ParseError
from pytest_xlatune.evidence.captures import choose_captures, read_captures
from pytest_xlatune.evidence.drill import Drill, drill
from pytest_xlatune.evidence.dumpfiles import choose_module, module_of
from pytest_xlatune.evidence.families import FAMILIES, Family
from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.hlotext import MAX_LINE, read_hlo
from pytest_xlatune.evidence.trace import Trace
from pytest_xlatune.launchers.program import DUMP_FOLDER

MAX_SMALL = 1 << 28  # characters of a file beside a program; those of a 300 MB program have 1 << 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What is known of a profiling window besides its captures; None where it is not."""

    nodes: int | None = None
    gpus_per_node: int | None = None
    steps: int | None = None
    families: Sequence[Family] = FAMILIES


def read_program(path: Path) -> Program:
    """Read the step's program of a dump's folder, of a folder with one, or of a single text file.

    Raises:
        ConfigError: there is no such file or folder, or it cannot be opened.
        ParseError: no program in it, or one that cannot be read.
    """
    dump = path / DUMP_FOLDER  # in an attempt's folder, and in a job's of maxtext-slurm
    path = dump if dump.is_dir() else path
    try:
        if path.is_dir():
            sizes = {each.name: each.stat().st_size for each in os.scandir(path) if each.is_file()}
            folder, module = path, choose_module(sizes, where=str(path))
        elif path.is_file():
            folder = path.parent
            module = module_of(path.name, {each.name for each in os.scandir(folder)})
        else:
            raise ConfigError(_absent(path, "the folder of --xla_dump_to, or a program's text"))
        with _text(folder / module.program) as file:
            return read_hlo(
                _lines(file),
                str(folder / module.program),
                memory=_small(folder, module.memory),
                options=_small(folder, module.options),
                thunks=_small(folder, module.thunks),
            )
    except OSError as error:
        raise ConfigError(_unreadable(path, error)) from None


def read_window(
    paths: Sequence[Path], window: Window, *, step_s: float | None = None
) -> tuple[Drill, tuple[str, ...]]:
    """Drill the captures under some folders, or the files named; one window of one job.

    Args:
        paths: folders, of which every file is looked at, and files.
        window: what the captures must agree with.
        step_s: step time of a companion run without profiler, in seconds.

    Returns:
        Where the time went, and one sentence for each path or capture that is not in it.

    Raises:
        ParseError: nothing to drill, or captures that do not belong together.
    """
    problems = [
        _absent(path, "captures, or a folder of them")
        for path in paths
        if not (path.is_dir() or path.is_file())
    ]
    found = [file for path in paths for file in _files(path)]
    try:
        drilled = drill(
            _traces(choose_captures(found)),
            families=window.families,
            nodes=window.nodes,
            gpus_per_node=window.gpus_per_node,
            steps=window.steps,
            step_s=step_s,
        )
    except ParseError as error:
        raise ParseError("; ".join([*problems, str(error)])) from None
    return drilled, (*problems, *drilled.excluded)


def captures_below(path: Path) -> tuple[Path, ...]:
    """Return the captures of the one window below a folder, one file per process.

    Raises:
        ParseError: there is none, or there are two windows.
    """
    return tuple(Path(each) for each in choose_captures(_files(path)))


def _files(path: Path) -> Iterator[str]:
    if path.is_dir():
        for folder, _, names in os.walk(path):
            yield from (str(Path(folder, name)) for name in names)
    elif path.is_file():
        yield str(path)


def _traces(sources: Sequence[str]) -> Iterator[Trace | ParseError]:
    for source in sources:
        try:
            data = Path(source).read_bytes()
        except OSError as error:
            yield ParseError(_unreadable(source, error))
        else:
            yield from read_captures([(source, data)])


def _text(path: Path) -> TextIO:
    # a foreign file is refused for what is in it, not for its encoding
    return path.open(encoding="utf-8", errors="replace")


def _lines(file: TextIO) -> Iterator[str]:
    """Yield lines, of which one without end is cut where the reader refuses it."""
    return iter(lambda: file.readline(MAX_LINE + 1), "")


def _small(folder: Path, name: str | None) -> str | None:
    if name is None:
        return None
    with _text(folder / name) as file:
        text = file.read(MAX_SMALL + 1)
    if len(text) > MAX_SMALL:
        raise ParseError(f"{folder / name}: more than {MAX_SMALL} characters; is it of this dump?")
    return text


def _absent(path: Path, expected: str) -> str:
    return f"{path}: no such file or folder; expected {expected}"


def _unreadable(path: Path | str, error: OSError) -> str:
    return f"{error.filename or path}: cannot be read: {error.strerror}"
