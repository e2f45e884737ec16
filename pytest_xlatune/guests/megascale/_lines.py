"""A line of a log without what launchers, loggers and shippers add; and the workers in it."""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from pytest_xlatune.guests.megascale.digest import Worker
from pytest_xlatune.logs.grammar import plain_segments, split_origin, unwrap

# libtpu cuts a list after eleven cores, and prints a number of further ones that is one too large
_LISTED = 10

# worker names:  job/task:host   job/task:host@(x,y,z):core   job/task:host@-1:0
WORKER = re.compile(
    r"(?P<job>[A-Za-z0-9_][\w.+-]*)/(?P<task>0|[1-9]\d{0,8}):(?P<host>[A-Za-z0-9_][\w.-]*)"
    r"(?:@(?P<place>\([-\d,]*\)|-?\d*):(?P<core>-?\d+))?",
    re.ASCII,
)
_HOST = re.compile(r"(?P<host>[A-Za-z0-9_][\w.-]*)", re.ASCII)
# the end of a cut list:  ... W and 14 more devices.
_MORE = re.compile(r"^(?P<worker>.*?) and (?P<more>\d{1,9}) more devices?\.?$")


@dataclass(frozen=True, slots=True)
class WorkerList:
    """The workers in a text; `cores` counts them and those that libtpu left out."""

    workers: tuple[Worker, ...] = ()
    cores: int = 0
    is_cut: bool = False
    is_whole: bool = True

    @property
    def hosts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(worker.host for worker in self.workers))


def worker_list(text: str, *, bare: bool = False) -> WorkerList:
    """Return the workers of a list; with `bare` they may be names of hosts."""
    text = text.strip()
    if not text:
        return WorkerList()
    # the location of a core has commas: worker@(x,y,z):core
    parts = re.split(r", ?(?![^()]*\))", text)
    workers: list[Worker] = []
    more, is_whole = 0, True
    for part in parts:
        name = part.strip()
        if cut := _MORE.match(name):
            name, more = cut["worker"], int(cut["more"])
        match = WORKER.fullmatch(name)
        if match:
            workers.append(Worker(job=match["job"], task=int(match["task"]), host=match["host"]))
        elif bare and (host := _HOST.fullmatch(name)):
            workers.append(Worker(host=host["host"]))
        else:
            is_whole = False
    cores = _LISTED + more if more and len(workers) > _LISTED else len(workers) + max(more - 1, 0)
    return WorkerList(tuple(workers), cores, more > 0, is_whole)


# the prefix of a logger:
#   E0000 00:00:1795339599.810613   16729 megascale_error_aggregator.cc:1100] text
_GLOG = re.compile(r"([IWEF])\d{4} \d\d:\d\d:\d+\.\d+ +\d+ ([^\s\]:]+):\d+\] ?")
# a time that a container runtime or a logger writes:  2026-01-12T07:08:09.123456Z stderr F
_TIME = re.compile(
    r"[\d-]*[T ]?\d\d:\d\d:\d\d[.,\d]*(?:Z|[+-]\d\d:?\d\d)?(?: std(?:out|err) [FP])?"
)


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line without the wrapper and the prefix of its logger."""

    text: str  # the text with its own indentation
    number: int
    origin: str  # who printed the line: its wrapper, without times
    logger: str  # the source file in the prefix of the logger; "" if there is no prefix
    is_error: bool

    @property
    def is_prefixed(self) -> bool:
        return bool(self.logger)

    @property
    def is_own(self) -> bool:
        return "megascale" in self.logger and self.is_error


def payloads(raw: bytes) -> Iterator[str]:
    """Yield the texts of a raw line: the line, or the lines in its JSON object."""
    # without a NUL two texts would join to a name; editors put a byte order mark before a file
    raw = raw.replace(b"\0", b"\xff").removeprefix(codecs.BOM_UTF8)
    if raw.lstrip()[:1] == b"{":
        payload = unwrap(raw.decode("utf-8", "replace").lstrip())
        if payload is not None:
            yield from payload.split("\n")
            return
    segments = plain_segments(raw)
    yield from segments or [""]


def unwrapped(text: str, number: int, known: Collection[str]) -> TextLine:
    """Return a line without what is written before it.

    A line without the prefix of a logger loses only what lines of an open digest had too. So a
    message that begins with `0: ` keeps it.
    """
    _, rest = split_origin(text)
    front = text[: len(text) - len(rest)]
    glog = _GLOG.search(front)
    origin = " ".join(_TIME.sub("", front[: glog.start()] if glog else front).split())
    if glog is None and origin and known and origin not in known and "" in known:
        return TextLine(text, number, "", "", is_error=False)
    is_error = glog is not None and glog[1] in "EF"
    return TextLine(rest, number, origin, glog[2] if glog else "", is_error=is_error)
