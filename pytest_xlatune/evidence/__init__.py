"""What the compiler did and where the time went: dumps and captures to facts.

    hlo                  lines of HLO text -> what the compiler made of the program
    hlo.dump             the folder of a dump -> its program
    hlo.difference       two programs -> what changed, in words; which profiles need no run
    trace.captures       the files of a profiling window -> where the time of each GPU and step went
    trace.comparison     two such windows -> what made the difference; shares of the step

Other distributions bring readers of captures: an entry point of `pytest_xlatune.captures` names a
subclass of `CaptureFacts`; its own name is the kind of the facts in a report.

Only `hlo.dump` and `trace.captures` open files. Nothing here prints, or reads a clock or an
environment; what cannot be read is a `ParseError` that names its file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_xlatune.entry_points import EntryPointGroup
from pytest_xlatune.model.errors import ConfigError


def absent(path: Path, expected: str) -> str:
    """Say that there is no file or folder of a name."""
    return f"{path}: no such file or folder; expected {expected}"


def unreadable(path: Path | str, error: OSError) -> str:
    """Say why a file cannot be read."""
    return f"{error.filename or path}: cannot be read: {error.strerror}"


BROUGHT = EntryPointGroup("pytest_xlatune.captures", kind="reader of captures")


class CaptureFacts:
    """Facts of the captures of evidence runs, in sentences; a subclass is made without arguments.

    A method that a subclass leaves out tells nothing. A file that cannot be read is told by an
    `XlatuneError` or an `OSError`.
    """

    def facts(self, captures: Sequence[Path]) -> Iterable[str]:
        """Return what the captures of one run tell."""
        del captures
        return ()

    def changes(self, before: Sequence[Path], after: Sequence[Path]) -> Iterable[str]:
        """Return what moved from one run to another."""
        del before, after
        return ()


def readers() -> dict[str, CaptureFacts]:
    """Return the readers of other distributions by name.

    Raises:
        ConfigError: one of them cannot be loaded.
    """
    by_name: dict[str, CaptureFacts] = {}
    for name in BROUGHT:
        made = BROUGHT.load(name, where="evidence runs")()
        if not isinstance(made, CaptureFacts):
            raise ConfigError(
                f"reader of captures {name!r} of {BROUGHT.source(name)} is {type(made).__name__}, "
                "expected a pytest_xlatune.evidence.CaptureFacts"
            )
        by_name[name] = made
    return by_name
