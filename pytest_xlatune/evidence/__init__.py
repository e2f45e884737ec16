"""What the compiler did and where the time went: dumps and captures to facts.

    hlo                  lines of HLO text -> what the compiler made of the program
    hlo.dump             the folder of a dump -> its program
    hlo.difference       two programs -> what changed, in words; which profiles need no run
    trace.captures       the files of a profiling window -> where the time of each GPU and step went
    trace.comparison     two such windows -> what made the difference; shares of the step

Only `hlo.dump` and `trace.captures` open files. Nothing here prints, or reads a clock or an
environment; what cannot be read is a `ParseError` that names its file.
"""

from __future__ import annotations

from pathlib import Path


def absent(path: Path, expected: str) -> str:
    """Say that there is nothing of a name."""
    return f"{path}: no such file or folder; expected {expected}"


def unreadable(path: Path | str, error: OSError) -> str:
    """Say why a file cannot be read."""
    return f"{error.filename or path}: cannot be read: {error.strerror}"
