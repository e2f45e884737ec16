"""Facts from the compiler's dumps and the profiler's captures: what was compiled, where time went.

    hlo                  lines of HLO text -> facts of the program
    hlo.dump             the folder of a dump -> its program
    hlo.difference       two programs -> what changed, in words; which profiles need no run
    trace.captures       files of a profiling window -> the time of each GPU and step
    trace.comparison     two such windows -> what made the difference

Other distributions add readers of captures: an entry point of `pytest_xlatune.captures` names a
subclass of `CaptureFacts`; the name of the entry point is the kind of facts in a report.

Only `hlo.dump` and `trace.captures` open files. Nothing here prints, or reads a clock or an
environment. A file that cannot be read is a `ParseError` that names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from pytest_xlatune.entry_points import EntryPointGroup
from pytest_xlatune.model.errors import ParseError, XlatuneError

_Source = TypeVar("_Source")
_Read = TypeVar("_Read")

# the kinds of collectives, in the order of reports
KINDS = (
    "all-gather",
    "reduce-scatter",
    "all-reduce",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
    "send",
    "recv",
)


def read_each(
    read: Callable[[_Source], _Read], sources: Iterable[_Source]
) -> tuple[list[_Read], tuple[str, ...]]:
    """Return what can be read, and for each of the others a sentence that says why not.

    Raises:
        ParseError: nothing can be read.
    """
    values, problems = [], []
    for source in sources:
        try:
            values.append(read(source))
        except XlatuneError as error:
            problems.append(str(error))
    if not values:
        raise ParseError("; ".join(problems))
    return values, tuple(problems)


def absent(path: Path, expected: str) -> str:
    """Return the message that there is no such file or folder."""
    return f"{path}: no such file or folder; expected {expected}"


def unreadable(path: Path | str, error: OSError) -> str:
    """Return the message why a file cannot be read."""
    return f"{error.filename or path}: cannot be read: {error.strerror}"


class CaptureFacts:
    """Facts from captures of evidence runs, in sentences; subclasses have no constructor arguments.

    Methods that a subclass does not define return nothing. A file that cannot be read raises an
    `XlatuneError` or an `OSError`.
    """

    def facts(self, captures: Sequence[Path]) -> Iterable[str]:
        """Return the facts in the captures of one run."""
        del captures
        return ()

    def changes(self, before: Sequence[Path], after: Sequence[Path]) -> Iterable[str]:
        """Return what changed from one run to another."""
        del before, after
        return ()


def readers() -> dict[str, CaptureFacts]:
    """Return the readers of other distributions by name.

    Raises:
        ConfigError: one of them cannot be loaded.
    """
    group = EntryPointGroup("pytest_xlatune.captures", kind="reader of captures")
    return {name: group.load_as(name, CaptureFacts, where="evidence runs") for name in group}
