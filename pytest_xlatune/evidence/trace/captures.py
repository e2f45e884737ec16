"""Which files are the captures of one profiling window, and how each is read.

A window is one file per process. Its files lie in `plugins/profile/<timestamp>/`, and often in two
neighbouring timestamps, since processes do not start the profiler at the same second. Files that
cannot be read are named, and the others are read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pytest_xlatune.evidence import absent, unreadable
from pytest_xlatune.evidence.trace import Trace
from pytest_xlatune.evidence.trace._chrome import read_trace_json
from pytest_xlatune.evidence.trace._xplane import read_xplane
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow, Drill, drill
from pytest_xlatune.model.errors import ParseError

XPLANE = ".xplane.pb"
JSON = (".trace.json.gz", ".trace.json")
RIEGELI = ".xplane.riegeli"


def choose_captures(paths: Iterable[str]) -> tuple[str, ...]:
    """Choose one file per process: its xplane.pb, else its trace.json(.gz); others are ignored.

    Raises:
        ParseError: no capture, one in a format that is not read, one process in two windows.
    """
    chosen: dict[str, str] = {}
    found = sorted(set(paths))
    for suffix in (XPLANE, *JSON, RIEGELI):
        for path in found:
            if path.endswith(suffix):
                chosen.setdefault(path.removesuffix(suffix), path)
    if not chosen:
        raise ParseError(
            f"no capture among {len(found)} files; expected *{XPLANE} or *{JSON[0]} of the "
            "profiler, as under plugins/profile/<timestamp>/"
        )
    window: dict[str, str] = {}
    for stem, path in chosen.items():
        process = Path(stem).name
        if path.endswith(RIEGELI):
            raise ParseError(
                f"{path}: a riegeli capture, which is not read yet; profile with a jaxlib that "
                "writes xplane.pb"
            )
        if process in window:
            raise ParseError(
                f"{process} has two captures, {window[process]} and {path}: two profiling windows; "
                "give the folder of one"
            )
        window[process] = path
    return tuple(window.values())


def _read(paths: Iterable[str]) -> Iterator[Trace | ParseError]:
    """Read captures one by one, by the ends of their names; what cannot be read is its error."""
    for path in paths:
        try:
            data = Path(path).read_bytes()
            yield (read_trace_json if path.endswith(JSON) else read_xplane)(data, path)
        except OSError as error:
            yield ParseError(unreadable(path, error))
        except ParseError as error:
            yield error


def read_window(
    paths: Sequence[Path], window: CaptureWindow, *, step_s: float | None = None
) -> tuple[Drill, tuple[str, ...]]:
    """Drill the captures under some folders, or the files named; one window of one job.

    Return where the time went, and one sentence for each path or capture that is not in it;
    `step_s` is the step time of a companion run without profiler.

    Raises:
        ParseError: nothing to drill, or captures that do not belong together.
    """
    problems = [
        absent(path, "captures, or a folder of them")
        for path in paths
        if not (path.is_dir() or path.is_file())
    ]
    found = [file for path in paths for file in _files(path)]
    try:
        drilled = drill(_read(choose_captures(found)), window, step_s=step_s)
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
