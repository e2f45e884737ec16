"""Remove what launchers, loggers and shippers put before a line of a log; parse worker names."""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

import msgspec

from pytest_xlatune.guests.megascale.digest import Worker
from pytest_xlatune.logs.grammar import plain_segments, split_origin, unwrap

# libtpu cuts a list of cores after eleven. The number of further cores that it prints is one too
# large.
_LISTED_CORES = 11

# worker names:  job/task:host   job/task:host@(x,y,z):core   job/task:host@-1:0
WORKER = re.compile(
    r"(?P<job>[A-Za-z0-9_][\w.+-]*)/(?P<task>0|[1-9]\d{0,8}):(?P<host>[A-Za-z0-9_][\w.-]*)"
    r"(?:@(?P<place>\([-\d,]*\)|-?\d*):(?P<core>-?\d+))?",
    re.ASCII,
)
_HOST = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)
# the end of a cut list:  ... W and 14 more devices.
_MORE = re.compile(r"^(?P<worker>.*?) and (?P<more>\d{1,9}) more devices?\.?$")


class WorkerList(NamedTuple):
    """The workers that were read from a text.

    Attributes:
        workers: the workers; what is no worker is left out.
        cores: the number of these, and of the cores that libtpu left out.
        is_cut: whether libtpu listed only the first cores.
    """

    workers: tuple[Worker, ...]
    cores: int
    is_cut: bool


def worker_list(text: str) -> WorkerList:
    """Return the workers of a list; where none has a job, an entry is the name of a host."""
    workers: list[Worker] = []
    more = 0
    # the location of a core has commas: worker@(x,y,z):core
    for part in re.split(r", ?(?![^()]*\))", text.strip()):
        name = part.strip()
        if cut := _MORE.match(name):
            name, more = cut["worker"], int(cut["more"])
        if match := WORKER.fullmatch(name):
            workers.append(Worker(job=match["job"], task=int(match["task"]), host=match["host"]))
        elif "/" not in text and _HOST.fullmatch(name):
            workers.append(Worker(host=name))
    cores = min(len(workers), _LISTED_CORES) + more - 1 if more else len(workers)
    return WorkerList(tuple(workers), cores, more > 0)


# the prefix of a logger:
#   E0000 00:00:1795339599.810613   16729 megascale_error_aggregator.cc:1100] text
_GLOG = re.compile(r"([IWEF])\d{4} \d\d:\d\d:\d+\.\d+ +\d+ ([^\s\]:]+):\d+\] ?")
# a time that a container runtime or a logger writes:  2026-01-12T07:08:09.123456Z stderr F
_TIME = re.compile(
    r"[\d-]*[T ]?\d\d:\d\d:\d\d[.,\d]*(?:Z|[+-]\d\d:?\d\d)?(?: std(?:out|err) [FP])?"
)


class TextLine(msgspec.Struct, frozen=True):
    """A line without its wrapper and without the prefix of a logger.

    Attributes:
        text: the text with its own indentation.
        number: the number of the line in the log, from 1.
        origin: the wrapper without times, which tells who printed the line.
        logger: the source file in the prefix of the logger; "" if there is no prefix.
        is_error: whether the prefix marks an error.
    """

    text: str
    number: int
    origin: str
    logger: str
    is_error: bool

    @property
    def is_prefixed(self) -> bool:
        """Whether the line had the prefix of a logger."""
        return bool(self.logger)

    @property
    def is_megascale_error(self) -> bool:
        """Whether Megascale's own logger printed the line as an error."""
        return "megascale" in self.logger and self.is_error


def texts_of_line(raw: bytes) -> Iterator[str]:
    """Yield the texts of a raw line: the line, or the lines in its JSON object."""
    # A NUL becomes a byte that is in no name, so that the texts around it do not join to a name.
    # Editors put a byte order mark before a file.
    raw = raw.replace(b"\0", b"\xff").removeprefix(codecs.BOM_UTF8)
    if raw.lstrip()[:1] == b"{":
        payload = unwrap(raw.decode("utf-8", "replace").lstrip())
        if payload is not None:
            yield from payload.split("\n")
            return
    segments = plain_segments(raw)
    yield from segments or [""]


def without_prefix(text: str, number: int, known: Collection[str]) -> TextLine:
    """Return a line without its wrapper and the prefix of its logger.

    `known` has the origins of the open digests, "" for lines without a wrapper. With "" in it, a
    line without a logger's prefix loses only a wrapper that is in `known`. So a message that begins
    with `0: ` keeps that text.
    """
    _, rest = split_origin(text)
    front = text[: len(text) - len(rest)]
    glog = _GLOG.search(front)
    wrapper = front[: glog.start()] if glog else front
    # the time that a container runtime writes does not tell who printed the line
    origin = " ".join(_TIME.sub("", wrapper).split())
    if glog is None and origin and origin not in known and "" in known:
        return TextLine(text, number, "", "", is_error=False)
    is_error = glog is not None and glog[1] in "EF"
    return TextLine(rest, number, origin, glog[2] if glog else "", is_error=is_error)
