"""Which of a heap of files are the captures of one profiling window, and how each is read.

A window is one file per process. Its files lie in `plugins/profile/<timestamp>/`, and often in two
neighbouring timestamps, for processes do not start the profiler at the same second. Pure: names in,
names out; bytes in, traces out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import PurePath

from pytest_xlatune.errors import ParseError
from pytest_xlatune.evidence.trace import Trace
from pytest_xlatune.evidence.tracejson import read_trace_json
from pytest_xlatune.evidence.xplane import read_xplane

XPLANE = ".xplane.pb"
JSON = (".trace.json.gz", ".trace.json")
RIEGELI = ".xplane.riegeli"


def choose_captures(paths: Iterable[str]) -> tuple[str, ...]:
    """Choose one file per process: its xplane.pb, else its trace.json(.gz); others are ignored.

    Raises:
        ParseError: no capture, one in a format that is not read, one process in two windows.
    """
    chosen: dict[tuple[str, str], str] = {}
    found = sorted(set(paths))
    for suffix in (XPLANE, *JSON):
        for path in found:
            pure = PurePath(path)
            if pure.name.endswith(suffix):
                key = (str(pure.parent), pure.name.removesuffix(suffix))
                chosen.setdefault(key, path)
    for path in found:
        pure = PurePath(path)
        key = (str(pure.parent), pure.name.removesuffix(RIEGELI))
        if pure.name.endswith(RIEGELI) and key not in chosen:
            raise ParseError(
                f"{path}: a riegeli capture, which is not read yet; profile with a jaxlib that "
                "writes xplane.pb"
            )
    if not chosen:
        raise ParseError(
            f"no capture among {len(found)} files; expected *{XPLANE} or *{JSON[0]} of the "
            "profiler, as under plugins/profile/<timestamp>/"
        )
    window: dict[str, str] = {}
    for (_, process), path in chosen.items():
        if process in window:
            raise ParseError(
                f"{process} has two captures, {window[process]} and {path}: two profiling windows; "
                "give the folder of one"
            )
        window[process] = path
    return tuple(window.values())


def read_capture(data: bytes | memoryview, source: str) -> Trace:
    """Read a capture by what its name ends with.

    Raises:
        ParseError: it cannot be read.
    """
    return (read_trace_json if source.endswith(JSON) else read_xplane)(data, source)


def read_captures(
    files: Iterable[tuple[str, bytes | memoryview]],
) -> Iterator[Trace | ParseError]:
    """Read captures one by one; one that cannot be read is its error, and the others follow."""
    for source, data in files:
        try:
            yield read_capture(data, source)
        except ParseError as error:
            yield error
