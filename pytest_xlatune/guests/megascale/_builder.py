"""Build one digest line by line; a line is recognised by its key and its form.

First, the prefixes of launchers, loggers and log collectors are removed.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Collection, Iterator
from typing import NamedTuple

import msgspec

from pytest_xlatune.guests.megascale.digest import (
    UNKNOWN,
    UNRECOVERABLE,
    Cause,
    Digest,
    FirstError,
    Launch,
    LaunchedProgram,
    Link,
    TpuState,
    Worker,
    WorkerMessage,
    cause_of_prose,
    cause_of_word,
)
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
        cores: the number of these workers and of the cores that libtpu left out, together.
        is_cut: whether libtpu listed only the first cores.
    """

    workers: tuple[Worker, ...]
    cores: int
    is_cut: bool


def worker_list(text: str) -> WorkerList:
    """Return the workers of a list; if no entry names a job, each is the name of a host."""
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

    `known` has the origins of the open digests; "" is the origin of lines without a wrapper. If a
    digest of such lines is open, what looks like a new wrapper is text, e.g. the `0: ` at the
    beginning of a message, unless the prefix of a logger follows it.
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


_STRAY_LINES = 2000  # the most other lines between two lines of a digest
_MOST_LINES = 20_000  # the most lines of one digest
_MOST_MESSAGE_CHARS = 1 << 16
_IDLE_LAUNCH = -(1 << 31)  # the launch id that libtpu prints for a core without a program
_NO_TIME = "1970-01-01T00:00:00"  # the time that libtpu prints if there is none

_CAUSE, _CULPRITS = "Potential cause", "Potential culprit workers"
_ERROR_TIME, _ERROR_TYPE = "First error timestamp", "First error type"
# documents write "TPU stats"; the binaries of four libtpu versions hold only "TPU states"
_STATES = ("TPU states", "TPU stats")
_SPARSE, _LINKS = "Sparse Core States", "Workers with suspected networking issues"
_PARTS = (*_STATES, _SPARSE, _LINKS)  # the keys of the parts of the table
_KEYS = ("Full error digest", _CAUSE, _CULPRITS, _ERROR_TIME, _ERROR_TYPE, *_PARTS)
_BREAKDOWN = "Tag:PC breakdown"
_LAUNCH_KEYS = ("Launch ID", "Module", "Fingerprint", "Sample worker", _BREAKDOWN)
KEY = re.compile(rf"(?P<key>{'|'.join((*_KEYS, *_LAUNCH_KEYS))}):(?P<value>.*)")
_PROGRAM = re.compile(r"(?P<module>.*?) ?Fingerprint:(?P<fingerprint>.*)")
# the state of cores, with the workers W; that of a sparse core has no op, which is on a line before
# 15@9:777(all-reduce.5@while_body.17): W, W       9:777(all-reduce.5): W       2@3:555: W, W
_STATE = re.compile(
    r"(?:(?P<count>\d{1,9})@)?(?P<tag>-?\d{1,18}):(?P<pc>-?\d{1,18})(?:\((?P<op>.*?)\))?: "
    r"(?P<who>\S.*)"
)
_SPARSE_HLO = re.compile(r"(?P<hlo>[^\s:]+(?: [^\s:]+)*):")
_LINK = re.compile(r"src: (?P<src>\S+) dst: (?P<dst>\S+)")
_PLACEHOLDER = re.compile(r"<[a-z_ ]+[_ ]?\d*>")  # <host_name_1>
_STEP = re.compile(r"completed step: \d+, seconds: ")  # a line of the trainer within a message
# beginnings of the lines that follow the messages of errors
_AFTER_MESSAGE = ("Please inspect the error log of these", "Full error digest:")


class DigestBuilder:
    """A digest while its lines are read; `stray` counts the other lines since its last line."""

    def __init__(self, first: TextLine) -> None:
        self.stray = 0
        self._first = self._last = first.number
        self._has_own_logger = first.is_megascale_error
        self._is_prefixed = first.is_prefixed
        self._is_in_message = False
        self._part = ""  # the key of the part of the table
        self._elements = 0  # the number of lines of a kind that only digests have
        self._keys: dict[str, str] = {}  # key -> its first value
        self._is_example = False  # whether it has a placeholder of a document
        self._prose_cause: Cause | None = None  # the cause by the first sentence
        self._workers_of_prose: tuple[Worker, ...] = ()  # the workers after the first sentence
        self._links: list[Link] = []
        self._launches: list[Launch] = []
        self._sparse: list[TpuState] = []
        self._sparse_hlo: str | None = None  # the op of the next states of sparse cores
        self._message: list[str] = []  # the lines of the messages of unrecoverable errors

    def has_key(self, key: str) -> bool:
        """Return whether this digest has had a line with that key."""
        return key in self._keys

    @property
    def is_over(self) -> bool:
        """Whether no further line can belong to the digest."""
        return self.stray > _STRAY_LINES or self._last - self._first > _MOST_LINES

    def read(self, line: TextLine, body: str) -> bool:
        """Read a line, or count it as a stray one; return whether it is part of the digest."""
        is_of_digest = self._read_line(line, body)
        if is_of_digest:
            self.stray, self._last = 0, line.number
        else:
            self.stray += 1
        return is_of_digest

    def _read_line(self, line: TextLine, body: str) -> bool:
        """Read a line; return whether it is part of the digest."""
        if self._is_in_message:
            is_after = not self._is_prefixed and body.startswith(_AFTER_MESSAGE)
            if not (line.is_prefixed or is_after):
                has_room = sum(map(len, self._message)) < _MOST_MESSAGE_CHARS
                if has_room and not _STEP.search(body):
                    self._message.append(line.text)
                return True
            self._is_in_message = False
        self._is_example = self._is_example or _PLACEHOLDER.search(body) is not None
        if self._prose_cause is None and (cause := cause_of_prose(body)):
            self._read_head(cause, body)
            return True
        label = self._prose_cause.workers if self._prose_cause else ""
        if label and not self._workers_of_prose and body.startswith(label):
            self._elements += 1
            self._workers_of_prose = worker_list(body[len(label) :]).workers
            return True
        if match := KEY.match(body):
            return self._read_key(match["key"], match["value"].strip())
        return self._read_row(body)

    def _read_head(self, cause: Cause, body: str) -> None:
        """Read the first sentence, which names a cause."""
        self._prose_cause = cause
        self._elements += 1
        if cause.enum == UNRECOVERABLE:
            self._message = [cause.prose.sub("", body, count=1).lstrip()]
            self._is_in_message = True
        elif cause.workers and body.startswith(cause.workers):
            self._workers_of_prose = worker_list(body[len(cause.workers) :]).workers

    def _read_key(self, key: str, value: str) -> bool:
        """Read a line that begins with a key; return whether it is part of the digest."""
        if key in _LAUNCH_KEYS:
            return bool(self._part) and self._read_launch_key(key, value)
        if key in _PARTS:
            self._part = key
        if key not in self._keys:
            self._keys[key] = value
            self._elements += 1
        return True

    def _read_launch_key(self, key: str, value: str) -> bool:
        """Read a line about a launch that begins with a key; return whether it is one."""
        last = self._launches[-1] if self._launches else None
        if key == "Launch ID":
            if not re.fullmatch(r"-?\d{1,19}", value):
                return False
            ident = None if int(value) == _IDLE_LAUNCH else int(value)
            # in layout 0.0.24 the module comes before the id
            if last and last.launch_id is None and not last.states:
                last.launch_id = ident
            else:
                self._launches.append(Launch(launch_id=ident))
        elif key == _BREAKDOWN:
            self._keys[key] = ""
        elif key == "Module":
            match = _PROGRAM.match(value)
            if match is None or last is None:
                self._launches.append(last := Launch(launch_id=None))
            module, fingerprint = match.groups() if match else (value, "")
            program = LaunchedProgram(
                module=module.strip() or None, fingerprint=fingerprint.strip() or None
            )
            last.programs.append(program)
        elif last is None or not last.programs:
            return False
        elif key == "Fingerprint":
            last.programs[-1].fingerprint = value or None
        elif workers := worker_list(value).workers:
            last.programs[-1].sample = str(workers[0])
        return True

    def _read_row(self, body: str) -> bool:
        """Read a state or a link; return whether it is one."""
        if _LINKS in self._keys and (match := _LINK.match(body)):
            src, dst = (worker_list(match[end].rstrip(",")).workers for end in ("src", "dst"))
            if src and dst:
                self._links.append(Link(src[0], dst[0]))
            return True
        is_sparse = self._part == _SPARSE
        match = _STATE.match(body)
        if match and (match["op"] is None) == is_sparse and (is_sparse or self._has_table):
            self._read_state(match)
            return True
        if is_sparse and (match := _SPARSE_HLO.fullmatch(body)):
            self._sparse_hlo = match["hlo"]
            return True
        return False

    @property
    def _has_table(self) -> bool:
        """Whether the line above the table of states was read."""
        return any(key in self._keys for key in _STATES)

    def _read_state(self, match: re.Match[str]) -> None:
        """Read the state of cores from a match of `_STATE`."""
        listed = worker_list(match["who"])
        op: str | None = match["op"]
        # the name of the op may have an @, so the last one counts:  all-reduce.5@while_body.17
        name, at, computation = (op or "").rpartition("@")
        state = TpuState(
            tag=int(match["tag"]),
            pc=int(match["pc"]),
            hlo=self._sparse_hlo if op is None else (name if at else op) or None,
            computation=(computation if at else "") or None,
            hosts=tuple(dict.fromkeys(worker.host for worker in listed.workers)),
            cores=int(match["count"]) if match["count"] else listed.cores,
            is_cut=listed.is_cut,
        )
        if op is None:
            self._sparse.append(state)
            return
        if not self._launches:
            self._launches.append(Launch(launch_id=None))
        self._launches[-1].states.append(state)

    def digest(self) -> Digest | None:
        """Return the digest so far; None if the text only quotes a digest."""
        word = self._keys.get(_CAUSE, "")
        # the prose differs a little from version to version; the word after the key does not
        cause = cause_of_word(word) or self._prose_cause
        if cause is None or self._is_example:
            return None
        # The sentence that no cause is known may be the whole digest. It accuses no host, so it
        # does no harm if it is only quoted.
        if self._elements < 2 and not self._has_own_logger and cause.enum != UNKNOWN:  # noqa: PLR2004
            return None
        messages = _messages(self._message)
        culprits = self._workers_of_prose or tuple(message.worker for message in messages)
        if _CULPRITS in self._keys:
            culprits = worker_list(self._keys[_CULPRITS]).workers
        time = self._keys.get(_ERROR_TIME, "")
        error_type = self._keys.get(_ERROR_TYPE)
        return Digest(
            layout=self._layout(word),
            cause=cause.enum,
            culprits=tuple(dict.fromkeys(culprits)),
            links=tuple(dict.fromkeys(self._links)),
            first_error=FirstError(error_type, None if time.startswith(_NO_TIME) else time or None)
            if error_type
            else None,
            launches=tuple(self._launches),
            sparse=tuple(self._sparse),
            messages=messages,
            has_table=self._has_table,
            line=self._first,
        )

    def _layout(self, word: str) -> str:
        """Return the first libtpu that printed digests of this form."""
        if _ERROR_TYPE in self._keys:
            return "0.0.52"
        if _BREAKDOWN in self._keys:
            return "0.0.40"
        return "0.0.11" if "_" in word else "0.0.24"


def _messages(lines: list[str]) -> tuple[WorkerMessage, ...]:
    """Return each quoted error; a line with a worker starts one."""
    messages: list[tuple[Worker, list[str]]] = []
    for line in lines:
        text = line if messages else line.lstrip()
        match = WORKER.match(text)
        # documents write a blank before the colon
        colon = re.match(r" ?: ?", text[match.end() :]) if match else None
        if match and colon:
            worker = Worker(job=match["job"], task=int(match["task"]), host=match["host"])
            messages.append((worker, [text[match.end() + colon.end() :]]))
        elif messages:
            messages[-1][1].append(line)
    return tuple(WorkerMessage(worker, "\n".join(text).rstrip("\n")) for worker, text in messages)
