"""The options that a trial's XLA dumped beside its program: its own word on what was in effect."""

from __future__ import annotations

import os
from pathlib import Path

from pytest_xlatune.errors import ParseError

_MOST_CHARACTERS = 1 << 20  # a dump of every option that is not at its default has some 1 << 13


def dumped_options(folder: Path) -> dict[str, str] | None:
    """Return the step's options from a folder of `--xla_dump_to`; None where none are dumped.

    Options at their default are not in it, nor are those about the dump and the host.
    """
    if not folder.is_dir():
        return None
    from pytest_xlatune.evidence.dumpfiles import (  # noqa: PLC0415 - most trials dump nothing
        choose_module,
        read_debug_options,
    )

    try:
        sizes = {each.name: each.stat().st_size for each in os.scandir(folder) if each.is_file()}
        name = choose_module(sizes, where=str(folder)).options
        if name is None:
            return None
        with (folder / name).open(encoding="utf-8", errors="replace") as file:
            return read_debug_options(file.read(_MOST_CHARACTERS))
    except (OSError, ParseError):
        return None  # an attempt that died early left no whole dump
