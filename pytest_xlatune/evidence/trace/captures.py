"""Find the captures of a profiling window and read each of them.

A window has one file for each process in `plugins/profile/<timestamp>/`, often in two neighbouring
timestamps, because processes do not start the profiler in the same second. Files that cannot be
read are reported, and the others are read.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent import futures
from contextlib import suppress
from multiprocessing import get_context, parent_process
from pathlib import Path

from pytest_xlatune.evidence import absent, unreadable
from pytest_xlatune.evidence.trace import Trace
from pytest_xlatune.evidence.trace._chrome import read_trace_json
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow, Drill, drill
from pytest_xlatune.evidence.trace.xplane import read_xplane
from pytest_xlatune.model.errors import ParseError

XPLANE = ".xplane.pb"
JSON = (".trace.json.gz", ".trace.json")
RIEGELI = ".xplane.riegeli"


def choose_captures(paths: Iterable[str]) -> tuple[str, ...]:
    """Choose one file for each process: its xplane.pb, else its trace.json(.gz).

    Raises:
        ParseError: no capture, one in an unsupported format, or one process in two windows.
    """
    chosen: dict[str, str] = {}
    files = sorted(set(paths))
    # The JSON ends silently at a million events: of 1.35 million events, 29 % of the kernel time
    # and the whole third step were missing.
    for suffix in (XPLANE, *JSON, RIEGELI):
        for path in files:
            if path.endswith(suffix):
                chosen.setdefault(path.removesuffix(suffix), path)
    if not chosen:
        raise ParseError(
            f"no capture among {len(files)} files; expected *{XPLANE} or *{JSON[0]} of the "
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


_SIDE_BY_SIDE_BYTES = 1 << 25  # below this size, processes cost more than they save
_MOST_PROCESSES = 8  # each process needs the memory of a capture


def _read(paths: Sequence[str]) -> Iterator[Trace | ParseError]:
    """Yield captures one by one; one that cannot be read is represented by its error.

    Large ones are read in processes, a few ahead of the consumer. If a process is killed, perhaps
    for lack of memory, this process reads the rest.
    """
    is_large = sum(Path(path).stat().st_size for path in paths) >= _SIDE_BY_SIDE_BYTES
    # a fork must not happen while another thread holds a lock
    may_fork = sys.platform == "linux" and threading.active_count() == 1
    cores = len(os.sched_getaffinity(0)) if may_fork else 1
    done = 0
    if is_large and len(paths) > 1 and cores > 1:
        count = min(len(paths), cores, _MOST_PROCESSES)
        ahead: deque[futures.Future[Trace | ParseError]] = deque()
        pool = futures.ProcessPoolExecutor(count, get_context("fork"), _end_with_parent)
        with pool, suppress(futures.BrokenExecutor):
            for path in paths:
                ahead.append(pool.submit(_read_one, path))
                if len(ahead) > count:
                    yield ahead.popleft().result()
                    done += 1
            while ahead:
                yield ahead.popleft().result()
                done += 1
    yield from map(_read_one, paths[done:])


def _read_one(path: str) -> Trace | ParseError:
    try:
        if path.endswith(JSON):
            return read_trace_json(Path(path).read_bytes(), path)
        with Path(path).open("rb", buffering=0) as file:
            return read_xplane(file, path)
    except OSError as error:
        return ParseError(unreadable(path, error))
    except ParseError as error:
        return error


def _end_with_parent() -> None:
    """End this process when its parent is killed, because it would wait for ever."""

    def wait() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def read_window(paths: Sequence[Path], window: CaptureWindow) -> tuple[Drill, tuple[str, ...]]:
    """Drill the captures under some folders, or single files, of one window of one job.

    Returns where the time went, and a sentence for each path or capture that is left out.

    Raises:
        ParseError: there is nothing to drill, or the captures do not belong together.
    """
    problems = [
        absent(path, "captures, or a folder of them")
        for path in paths
        if not (path.is_dir() or path.is_file())
    ]
    files = [file for path in paths for file in _files(path)]
    if problems and not files:
        raise ParseError("; ".join(problems))
    try:
        drilled = drill(_read(choose_captures(files)), window)
    except ParseError as error:
        raise ParseError("; ".join([*problems, str(error)])) from None
    return drilled, (*problems, *drilled.excluded)


def captures_below(path: Path) -> tuple[Path, ...]:
    """Return the captures of the one window below a folder, one file for each process.

    Raises:
        ParseError: there is none, or there are two windows.
    """
    return tuple(Path(capture) for capture in choose_captures(_files(path)))


def _files(path: Path) -> Iterator[str]:
    if path.is_dir():
        for folder, _, names in os.walk(path):
            paths = (str(Path(folder, name)) for name in names)
            yield from filter(os.path.isfile, paths)  # reading a pipe might block
    elif path.is_file():
        yield str(path)
