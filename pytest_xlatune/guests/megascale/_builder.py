"""Build one digest line by line; a line is recognised by its key and its form, in four layouts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from pytest_xlatune.guests.megascale._lines import WORKER, TextLine, WorkerList, worker_list
from pytest_xlatune.guests.megascale.digest import (
    Cause,
    Digest,
    LaunchedProgram,
    Layout,
    TpuState,
    Worker,
    cause_of_prose,
    cause_of_word,
    judge_cause,
)

_STRAY_LINES = 2000  # the most other lines between two lines of a digest
_MOST_LINES = 20_000  # the most lines of one digest
_MOST_MESSAGE_CHARS = 1 << 16
_IDLE_LAUNCH = -(1 << 31)  # the launch id that libtpu prints for a core without a program
_NO_TIME = "1970-01-01T00:00:00"  # the time that libtpu prints if there is none
# the beginning of the first sentence, which a document may break anywhere after these words
HEAD = re.compile(r"(?:Megascale detects a hang\b|Some workers have halted with an\b)")


class _Key(NamedTuple):
    """The meaning of a key at the beginning of a line.

    Attributes:
        part: part of the table that follows the key; "" if its value is on the same line.
        layout: the first layout with the key; None if all layouts have it.
    """

    part: str = ""
    layout: Layout | None = None


_LINKS = "Workers with suspected networking issues"
_KEYS = {
    "Full error digest": _Key(),
    "Potential cause": _Key(),
    "Potential culprit workers": _Key(),
    "First error timestamp": _Key(layout=Layout.LATE_2026),
    "First error type": _Key(layout=Layout.LATE_2026),
    # documents write "TPU stats"; the binaries of four libtpu versions hold only "TPU states"
    "TPU states": _Key("states"),
    "TPU stats": _Key("states"),
    "TPU program fingerprints": _Key("fingerprints", Layout.EARLY_2025),
    "Sparse Core States": _Key("sparse"),
    _LINKS: _Key("links"),
}
_LAUNCH_KEYS = ("Launch ID", "Module", "Fingerprint", "Sample worker", "Tag:PC breakdown")
KEY = re.compile(rf"(?P<key>{'|'.join((*_KEYS, *_LAUNCH_KEYS))}):(?P<value>.*)")
_STATE_KEYS = {"TPU states", "TPU stats"}
_PROGRAM = re.compile(r"(?P<module>.*?) ?Fingerprint:(?P<fingerprint>.*)")
# the state of cores, with the workers W; that of a sparse core has no op, which is on a line before
# 15@9:777(all-reduce.5@while_body.17): W, W       9:777(all-reduce.5): W       2@3:555: W, W
_STATE = re.compile(
    r"(?:(?P<count>\d{1,9})@)?(?P<tag>-?\d{1,18}):(?P<pc>-?\d{1,18})(?:\((?P<op>.*?)\))?: "
    r"(?P<who>\S.*)"
)
_SPARSE_HLO = re.compile(r"(?P<hlo>[^\s:]+(?: [^\s:]+)*):")
_LINK = re.compile(r"src: (?P<src>\S+) dst: (?P<dst>\S+)")
# a row of a table in layout 0.0.11:  host-3: 777      host-3, host-4: 777
_OLD_STATE = re.compile(
    r"(?P<hosts>[A-Za-z0-9_][\w.-]*(?:, ?[A-Za-z0-9_][\w.-]*)*): (?P<value>[0-9a-fx]+)", re.ASCII
)
# a sentence in place of a cause's label:  The host that has a bad TPU is:
_LABEL = re.compile(r"The hosts? that (?:have|has) [A-Za-z ]{1,60} (?:are|is):")
_PLACEHOLDER = re.compile(r"<[a-z_ ]+[_ ]?\d*>")  # <host_name_1>
_STEP = re.compile(r"completed step: \d+, seconds: ")  # a line of the trainer within a message
# beginnings of the lines that follow the messages of errors
_AFTER_MESSAGE = ("Please inspect the error log of these", "Full error digest:")


class _Launch(msgspec.Struct):
    """A launch in the table while its lines are read."""

    ident: int | None = None  # the launch id; None if the text has none
    programs: list[LaunchedProgram] = msgspec.field(default_factory=list)
    states: list[tuple[TpuState, WorkerList]] = msgspec.field(default_factory=list)
    begins_with_module: bool = False  # whether the module comes before the id, as in layout 0.0.24

    @property
    def known_ident(self) -> int | None:
        """The launch id; None if the text has none, or if the cores have no program."""
        return None if self.ident == _IDLE_LAUNCH else self.ident

    @property
    def is_complete(self) -> bool:
        """Whether no line of the launch seems to be missing.

        There must be states, a program for a launch id, and a state of each program's sample
        worker, unless libtpu has cut a list of workers.
        """
        listed = {str(worker) for _, workers in self.states for worker in workers.workers}
        samples = {program.sample for program in self.programs} - {None}
        has_samples = samples <= listed or any(workers.is_cut for _, workers in self.states)
        return bool(self.states) and has_samples and bool(self.programs or self.ident is None)

    def states_with_program(self) -> Iterator[TpuState]:
        """Yield the states, with module and fingerprint if all programs share them."""
        module = _shared_value(program.module for program in self.programs)
        fingerprint = _shared_value(program.fingerprint for program in self.programs)
        for state, _ in self.states:
            yield replace(state, launch_id=self.known_ident, module=module, fingerprint=fingerprint)


class DigestBuilder:
    """A digest while its lines are read.

    Attributes:
        first, last: the numbers of its first line and of its last line so far.
        stray: the number of other lines since its last line.
        took_line: whether the line that was read last is part of the digest.
    """

    def __init__(self, first: TextLine) -> None:
        self.first = self.last = first.number
        self.stray = 0
        self.took_line = False
        self._has_own_logger = first.is_megascale_error
        self._is_prefixed = first.is_prefixed
        # the part of the table; or "message", or "named" if the workers are on the next line
        self._part = ""
        self._elements = 0  # the number of lines that only a digest has
        self._keys: dict[str, str] = {}  # key -> its first value
        self._is_example = False  # whether it has a placeholder of a document
        self._has_ended = False  # whether a line says that nothing follows
        self._has_unreadable_part = False  # whether a part of it could not be read
        self._prose_cause: Cause | None = None  # the cause by the first sentence
        self._cause_word: str | None = None  # the text after "Potential cause:"
        self._culprits: WorkerList | None = None  # the workers after "Potential culprit workers:"
        self._workers_of_prose: WorkerList | None = None  # the workers after the first sentence
        self._links: list[tuple[Worker, Worker]] = []
        self._launches: list[_Launch] = []
        # part -> host -> value, from the tables of layout 0.0.11
        self._values_by_host: dict[str, dict[str, str]] = {"states": {}, "fingerprints": {}}
        self._sparse: list[TpuState] = []
        self._sparse_hlo: str | None = None  # the op of the next states of sparse cores
        self._message: list[str] = []  # the lines of the messages of unrecoverable errors
        self._layout_hints: set[Layout] = set()

    def has_key(self, key: str) -> bool:
        """Return whether this digest has had a line with that key."""
        return key in self._keys

    @property
    def is_over(self) -> bool:
        """Whether no further line can belong to the digest."""
        is_long = self.last - self.first > _MOST_LINES
        return self._has_ended or self.stray > _STRAY_LINES or is_long

    def includes(self, line: TextLine) -> bool:
        """Return whether a line that looks like the beginning of a digest is a part of this one."""
        return self._part == "message" and self._is_prefixed and not line.is_prefixed

    def read(self, line: TextLine, body: str, *, is_torn: bool) -> None:
        """Read a line of the digest, or count a line of something else."""
        self.took_line = self._read_line(line, body)
        if self.took_line:
            self.stray = 0
            self.last = line.number
            if is_torn and not self._has_ended:
                self._has_unreadable_part = True
        else:
            self.stray += 1

    def _read_line(self, line: TextLine, body: str) -> bool:
        """Read a line; return whether it is part of the digest."""
        if "megascale" in line.logger and body.startswith("Skip writing error digest"):
            self._has_ended = True
            return True
        if self._part == "message":
            is_after = not self._is_prefixed and body.startswith(_AFTER_MESSAGE)
            if not (line.is_prefixed or is_after):
                has_room = sum(map(len, self._message)) < _MOST_MESSAGE_CHARS
                if has_room and not _STEP.search(body):
                    self._message.append(line.text)
                return True
            self._part = ""
        if not body:
            return False
        self._is_example = self._is_example or _PLACEHOLDER.search(body) is not None
        if self._prose_cause is None and (cause := cause_of_prose(body)):
            self._read_head(cause, body)
            return True
        if self._read_workers(line, body):
            return True
        if match := KEY.match(body):
            return self._read_key(line, match["key"], match["value"].strip())
        return self._read_row(line, body)

    def _read_workers(self, line: TextLine, body: str) -> bool:
        """Read the workers on the line after the first sentence, or on the next one.

        Return whether the line belongs to them.
        """
        if self._part == "named":
            self._part = ""
            workers = worker_list(body, allow_hosts=True)
            if workers.is_readable and not line.is_prefixed and not KEY.match(body):
                self._workers_of_prose = workers
                return True
        label = self._prose_cause.workers if self._prose_cause else ""
        if self._workers_of_prose is not None or not label:
            return False
        if body.startswith(label):
            end = len(label)
        elif other := _LABEL.match(body):
            end = other.end()
        else:
            return False
        self._elements += 1
        if names := body[end:].strip():
            self._workers_of_prose = self._read_list(names, allow_hosts=True)
        else:
            self._part = "named"
        return True

    def _read_head(self, cause: Cause, body: str) -> None:
        """Read the first sentence, which names a cause."""
        self._prose_cause = cause
        self._elements += 1
        match = cause.prose.match(body)
        if cause.enum == "UNRECOVERABLE_ERROR":
            self._message = [body[match.end() if match else 0 :].lstrip()]
            self._part = "message"
        elif cause.workers and body.startswith(cause.workers):
            self._workers_of_prose = self._read_list(body[len(cause.workers) :], allow_hosts=True)

    def _read_list(self, text: str, *, allow_hosts: bool = False) -> WorkerList:
        """Return the workers of a list, and note if a part of it cannot be read."""
        workers = worker_list(text, allow_hosts=allow_hosts)
        if not workers.is_readable:
            self._has_unreadable_part = True
        return workers

    def _read_key(self, line: TextLine, key: str, value: str) -> bool:
        """Read a line that begins with a key; return whether it is part of the digest."""
        known = _KEYS.get(key)
        if known is None:
            return self._part in ("states", "sparse", "links") and self._read_launch_key(key, value)
        self._part = known.part or self._part
        if known.layout:
            self._layout_hints.add(known.layout)
        if key == "Potential cause" and self._cause_word is None:
            self._read_cause(value, indent=len(line.text) - len(line.text.lstrip()))
        elif key == "Potential culprit workers" and self._culprits is None:
            self._culprits = self._read_list(value, allow_hosts=True)
        if key not in self._keys:
            self._keys[key] = value
            self._elements += 1
        return True

    def _read_cause(self, value: str, *, indent: int) -> None:
        """Read the text after "Potential cause:"; its form tells the layout."""
        if re.fullmatch(r"[A-Za-z_ ]{1,60}", value):
            self._cause_word = value
            if "_" in value:
                self._layout_hints.add(Layout.EARLY_2025)
            elif indent >= 4:  # noqa: PLR2004
                self._layout_hints.add(Layout.EARLY_2026)

    def _read_launch_key(self, key: str, value: str) -> bool:
        """Read a line about a launch that begins with a key; return whether it is one."""
        last = self._launches[-1] if self._launches else None
        if key == "Launch ID":
            if not re.fullmatch(r"-?\d{1,19}", value):
                return False
            if last and last.begins_with_module and last.ident is None and not last.states:
                last.ident = int(value)
            else:
                self._launches.append(_Launch(ident=int(value)))
        elif key == "Tag:PC breakdown":
            self._layout_hints.add(Layout.EARLY_2026)
        elif key == "Module":
            self._read_module(value, last)
        elif last is None or not last.programs:
            return False
        elif key == "Fingerprint":
            last.programs[-1] = replace(last.programs[-1], fingerprint=value or None)
        elif workers := self._read_list(value).workers:
            last.programs[-1] = replace(last.programs[-1], sample=str(workers[0]))
        return True

    def _read_module(self, value: str, last: _Launch | None) -> None:
        """Read a module, with its fingerprint if that is on the same line."""
        match = _PROGRAM.match(value)
        if match is None:  # in layout 0.0.24 the fingerprint is on the next line
            self._layout_hints.add(Layout.LATE_2025)
            program = LaunchedProgram(module=value or None, fingerprint=None)
            self._launches.append(_Launch(programs=[program], begins_with_module=True))
            return
        self._layout_hints.add(Layout.EARLY_2026)
        if last is None or last.begins_with_module:
            last = _Launch()
            self._launches.append(last)
        module, fingerprint = match["module"].strip(), match["fingerprint"].strip()
        program = LaunchedProgram(module=module or None, fingerprint=fingerprint or None)
        last.programs.append(program)

    def _read_row(self, line: TextLine, body: str) -> bool:
        """Read a state, a link, or a row of a table of layout 0.0.11; return whether it is one."""
        if _LINKS in self._keys and (match := _LINK.match(body)):
            ends = [worker_list(match[end].rstrip(",")).workers for end in ("src", "dst")]
            if all(ends):
                self._links.append((ends[0][0], ends[1][0]))
            else:
                self._has_unreadable_part = True
            return True
        is_sparse = self._part == "sparse"
        match = _STATE.match(body)
        if match and (match["op"] is None) == is_sparse and (is_sparse or self._has_table):
            self._read_state(match)
            return True
        if is_sparse and (match := _SPARSE_HLO.fullmatch(body)):
            self._sparse_hlo = match["hlo"]
            return True
        is_plain_row = not line.is_prefixed and not self._launches
        may_be_old = is_plain_row and self._part in self._values_by_host
        match = _OLD_STATE.fullmatch(body) if may_be_old else None
        if match and (self._part == "fingerprints" or match["value"].isdecimal()):
            self._layout_hints.add(Layout.EARLY_2025)
            for host in match["hosts"].split(","):
                self._values_by_host[self._part].setdefault(host.strip(), match["value"])
            return True
        return False

    @property
    def _has_table(self) -> bool:
        """Whether the line above the table of states was read."""
        return not _STATE_KEYS.isdisjoint(self._keys)

    def _read_state(self, match: re.Match[str]) -> None:
        """Read the state of cores from a match of `_STATE`."""
        # a list with one worker, job/task:host, has no bare hosts
        listed = self._read_list(match["who"], allow_hosts="/" not in match["who"])
        op: str | None = match["op"]
        name, at, computation = _split_last(op or "")
        if match["count"]:
            self._layout_hints.add(Layout.LATE_2026)
        else:
            self._layout_hints.add(Layout.EARLY_2026 if at or op is None else Layout.LATE_2025)
        state = TpuState(
            tag=int(match["tag"]),
            pc=int(match["pc"]),
            hlo=self._sparse_hlo if op is None else name or None,
            computation=computation or None,
            hosts=listed.hosts,
            cores=int(match["count"]) if match["count"] else listed.cores,
            is_cut=listed.is_cut,
        )
        if op is None:
            self._sparse.append(state)
            return
        if not self._launches:
            self._launches.append(_Launch())
        self._launches[-1].states.append((state, listed))

    def digest(self, *, at_the_end: bool) -> Digest | None:
        """Return the digest so far; None if the text only quotes a digest.

        `at_the_end` says whether the log ends with it.
        """
        # The sentence that no cause is known may be the whole digest. It accuses no host, so it
        # does no harm if it is only quoted.
        names_unknown = self._prose_cause is not None and self._prose_cause.enum == "UNKNOWN_CAUSE"
        least_elements = 1 if self._has_own_logger or names_unknown else 2
        word = cause_of_word(self._cause_word) if self._cause_word else None
        if self._is_example or self._elements < least_elements:
            return None
        if word is None and self._prose_cause is None:
            return None
        culprits = self._culprits if self._culprits is not None else self._workers_of_prose
        digest = Digest(
            layout=max(self._layout_hints, default=Layout.LATE_2025),
            # the prose differs a little from version to version; the word after the key does not
            cause=word or self._prose_cause,
            word=self._cause_word,
            culprits=tuple(dict.fromkeys(culprits.workers)) if culprits else (),
            links=tuple(dict.fromkeys(self._links)),
            first_error=self._first_error(),
            launches=tuple(
                (launch.known_ident, tuple(launch.programs)) for launch in self._launches
            ),
            states=(
                *(state for launch in self._launches for state in launch.states_with_program()),
                *self._old_states(),
            ),
            sparse=tuple(self._sparse),
            messages=_messages(self._message),
            line=self.first,
        )
        is_open = at_the_end and self._part == "message"
        is_truncated = is_open or self._has_unreadable_part or not self._is_complete_text(digest)
        return judge_cause(replace(digest, is_truncated=is_truncated))

    def _first_error(self) -> tuple[str, str | None] | None:
        """Return the type and the time of the first error; see `Digest.first_error`."""
        kind, time = (self._keys.get(f"First error {suffix}") for suffix in ("type", "timestamp"))
        if not kind:
            return None
        return kind, None if not time or time.startswith(_NO_TIME) else time

    def _old_states(self) -> Iterator[TpuState]:
        """Yield the states of layout 0.0.11, one for hosts that share counter and fingerprint."""
        groups: dict[tuple[str, str | None], list[str]] = {}
        for host, pc in self._values_by_host["states"].items():
            fingerprint = self._values_by_host["fingerprints"].get(host)
            groups.setdefault((pc, fingerprint), []).append(host)
        for (pc, fingerprint), hosts in groups.items():  # 18 digits at most, as in `_STATE`
            yield TpuState(
                fingerprint=fingerprint, pc=int(pc[:18]), hosts=tuple(hosts), cores=len(hosts)
            )

    def _is_complete_text(self, digest: Digest) -> bool:
        """Return whether the text has everything that a digest of its layout and cause has."""
        if None in (self._prose_cause, self._cause_word, self._culprits) or not self._has_table:
            return False
        if digest.layout is Layout.LATE_2026 and digest.first_error is None:
            return False
        enum = digest.cause.enum if digest.cause else ""
        needs_links = enum == "NETWORKING_ISSUE" and digest.layout is not Layout.EARLY_2025
        if needs_links and not digest.links:
            return False
        states = (*digest.states, *digest.sparse)
        if enum != "UNRECOVERABLE_ERROR" and not any(state.is_cut for state in states):
            culprits = {worker.host for worker in digest.culprits}
            if not culprits <= {host for state in states for host in state.hosts}:
                return False
        return all(launch.is_complete for launch in self._launches)


def _split_last(op: str) -> tuple[str, str, str]:
    """Split `all-reduce.5@while_body.17` at its last @, because the name of the op may have one."""
    name, at, computation = op.rpartition("@")
    return (name, at, computation) if at else (op, "", "")


def _shared_value(values: Iterable[str | None]) -> str | None:
    """Return the value that all programs of a launch share; None if they differ."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _messages(lines: list[str]) -> tuple[tuple[Worker, str], ...]:
    """Return the worker and the text of each quoted error; a line with a worker starts one."""
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
    return tuple((worker, "\n".join(text).rstrip("\n")) for worker, text in messages)
