"""The files of an XLA dump: the step's program, those beside it, and how they are read."""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from pytest_xlatune.evidence import absent, unreadable
from pytest_xlatune.evidence.hlo import MAX_LINE, Program, read_hlo
from pytest_xlatune.model.cell import DUMP_FOLDER
from pytest_xlatune.model.errors import ConfigError, ParseError

# module_0001.jit_train_step.sm_9.0a_gpu_after_optimizations.txt
# module_0000.jit_train_step.cpu_after_optimizations.txt
_PROGRAM = re.compile(r"(.*?)\.((?:sm_|gfx)[\w.]+?_gpu|cpu)_after_optimizations\.txt")


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """The files of one module of a dump; None where there is no such file."""

    program: str
    memory: str | None
    options: str | None
    thunks: str | None


def choose_module(sizes: Mapping[str, int], *, where: str) -> Module:
    """Choose the program with the largest text: the training step; and the files beside it.

    Args:
        sizes: size in bytes by name, of the files of one dump folder.
        where: what to call the folder in the message.

    Raises:
        ParseError: no compiled program among them.
    """
    programs = [name for name in sizes if _PROGRAM.fullmatch(name)]
    if not programs:
        raise ParseError(
            f"{where}: no *_after_optimizations.txt among {len(sizes)} files; expected the folder "
            "of --xla_dump_to. With a hit in the compilation cache nothing is dumped: set "
            "JAX_ENABLE_COMPILATION_CACHE=false"
        )
    return module_of(max(programs, key=lambda name: (sizes[name], name)), sizes)


def module_of(program: str, names: Container[str]) -> Module:
    """Return a program's files; of one with another name than a dump's, itself alone."""
    match = _PROGRAM.fullmatch(program)
    prefix = match.group(1) if match else ""

    def beside(name: str) -> str | None:
        return name if match and name in names else None

    return Module(
        program=program,
        memory=beside(program.removesuffix(".txt") + "-memory-usage-report.txt"),
        options=beside(f"{prefix}.debug_options"),
        thunks=beside(f"{prefix}.thunk_sequence.txt"),
    )


MAX_SMALL = 1 << 28  # characters of a file beside a program; those of a 300 MB program have 1 << 25


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
            raise ConfigError(absent(path, "the folder of --xla_dump_to, or a program's text"))
        with _text(folder / module.program) as file:
            return read_hlo(
                _lines(file),
                str(folder / module.program),
                memory=_small(folder, module.memory),
                options=_small(folder, module.options),
                thunks=_small(folder, module.thunks),
            )
    except OSError as error:
        raise ConfigError(unreadable(path, error)) from None


def _text(path: Path) -> TextIO:
    # the content of a foreign file is refused, not its encoding
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
