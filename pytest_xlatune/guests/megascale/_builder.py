"""Build one digest, line by line; a line is known by its key and form, in each of four layouts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

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
    judged,
)

_STRAY_LINES = 2000  # other lines between two lines of a digest
_MOST_LINES = 20_000  # lines of one digest
_MOST_MESSAGE = 1 << 16
# libtpu prints this launch id for a core without a program, and this time if none is given
_IDLE_LAUNCH = -(1 << 31)
_NEVER = "1970-01-01T00:00:00"
# a document may break the sentence anywhere after these words
HEAD = re.compile(r"(?:Megascale detects a hang\b|Some workers have halted with an\b)")


class _Key(NamedTuple):
    """What begins with a key of a digest.

    Attributes:
        part: part of the table that follows the key; "" if the key has its value on its own line.
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
_OF_A_LAUNCH = ("Launch ID", "Module", "Fingerprint", "Sample worker", "Tag:PC breakdown")
KEY = re.compile(rf"(?P<key>{'|'.join((*_KEYS, *_OF_A_LAUNCH))}):(?P<value>.*)")
_STATES = {"TPU states", "TPU stats"}
_PROGRAM = re.compile(r"(?P<module>.*?) ?Fingerprint:(?P<fingerprint>.*)")
# 15@9:777(all-reduce.5@while_body.17): W, W       9:777(all-reduce.5): W       2@3:555: W, W
# the state of a sparse core has no op, which is on an earlier line
_STATE = re.compile(
    r"(?:(?P<count>\d{1,9})@)?(?P<tag>-?\d{1,18}):(?P<pc>-?\d{1,18})(?:\((?P<op>.*?)\))?: "
    r"(?P<who>\S.*)"
)
_SPARSE_HLO = re.compile(r"(?P<hlo>[^\s:]+(?: [^\s:]+)*):")
_LINK = re.compile(r"src: (?P<src>\S+) dst: (?P<dst>\S+)")
# host-3: 777      host-3, host-4: 777
_OLD_STATE = re.compile(
    r"(?P<hosts>[A-Za-z0-9_][\w.-]*(?:, ?[A-Za-z0-9_][\w.-]*)*): (?P<value>[0-9a-fx]+)", re.ASCII
)
# a sentence that takes the place of a cause's label:  The host that has a bad TPU is:
_LABEL = re.compile(r"The hosts? that (?:have|has) [A-Za-z ]{1,60} (?:are|is):")
_EXAMPLE = re.compile(r"<[a-z_ ]+[_ ]?\d*>")  # <host_name_1>
_STEP = re.compile(r"completed step: \d+, seconds: ")
_NO_MESSAGE = ("Please inspect the error log of these", "Full error digest:")  # end a message


@dataclass(slots=True)
class _Launch:
    ident: int | None = None
    programs: list[LaunchedProgram] = field(default_factory=list)
    states: list[tuple[TpuState, WorkerList]] = field(default_factory=list)
    # a launch of layout 0.0.24: the module comes before its launch id
    begins_with_module: bool = False

    @property
    def told_ident(self) -> int | None:
        return None if self.ident == _IDLE_LAUNCH else self.ident

    @property
    def is_whole(self) -> bool:
        """Whether the states of each sample worker were read, as far as lists are complete."""
        listed = {str(worker) for _, workers in self.states for worker in workers.workers}
        has_all = any(workers.is_cut for _, workers in self.states) or all(
            program.sample is None or program.sample in listed for program in self.programs
        )
        return bool(self.states) and has_all and bool(self.programs or self.ident is None)

    def placed(self) -> Iterator[TpuState]:
        """Yield its states with the facts that all its programs share; others are None."""
        module = _only(program.module for program in self.programs)
        fingerprint = _only(program.fingerprint for program in self.programs)
        for state, _ in self.states:
            yield dataclasses.replace(
                state, launch_id=self.told_ident, module=module, fingerprint=fingerprint
            )


class DigestBuilder:
    """A digest while its lines are read."""

    def __init__(self, first: TextLine) -> None:
        self.first = self.last = first.number
        self.stray = 0
        self.is_mine = False
        self._is_strong = first.is_own
        self._is_prefixed = first.is_prefixed
        # the part of the table; or "message", or "named" if the workers are on the next line
        self._part = ""
        self._elements = 0
        self._keys: dict[str, str] = {}  # key -> its first value
        self._is_example = self._is_complete = self._is_torn = False
        self._prose: Cause | None = None
        self._word: str | None = None
        self._culprits: WorkerList | None = None
        self._named: WorkerList | None = None
        self._links: list[tuple[Worker, Worker]] = []
        self._launches: list[_Launch] = []
        self._of_host: dict[str, dict[str, str]] = {"states": {}, "fingerprints": {}}
        self._sparse: list[TpuState] = []
        self._sparse_hlo: str | None = None
        self._message: list[str] = []
        self._hints: set[Layout] = set()

    def has(self, key: str) -> bool:
        """Return whether this digest has had a line with that key."""
        return key in self._keys

    @property
    def is_over(self) -> bool:
        """Whether the digest has all its lines."""
        is_long = self.last - self.first > _MOST_LINES
        return self._is_complete or self.stray > _STRAY_LINES or is_long

    def takes(self, line: TextLine, body: str) -> bool:
        """Return whether what looks like the head of a digest is a quotation within this one."""
        if self._part == "message" and self._is_prefixed and not line.is_prefixed:
            return True
        return self._prose is None and not self._keys and HEAD.match(body) is None

    def read(self, line: TextLine, body: str, *, is_torn: bool) -> None:
        """Read a line of the digest, or count a line of something else."""
        self.is_mine = self._take(line, body)
        if self.is_mine:
            self.stray = 0
            self.last = line.number
            if is_torn and not self._is_complete:
                self._is_torn = True
        else:
            self.stray += 1

    def _take(self, line: TextLine, body: str) -> bool:
        if "megascale" in line.logger and body.startswith("Skip writing error digest"):
            self._is_complete = True
            return True
        if self._part == "message":
            if not (line.is_prefixed or (not self._is_prefixed and body.startswith(_NO_MESSAGE))):
                if sum(map(len, self._message)) < _MOST_MESSAGE and not _STEP.search(body):
                    self._message.append(line.text)
                return True
            self._part = ""
        if not body:
            return False
        self._is_example = self._is_example or _EXAMPLE.search(body) is not None
        if self._prose is None and (cause := cause_of_prose(body)):
            self._head(cause, body)
            return True
        if self._names(line, body):
            return True
        if match := KEY.match(body):
            return self._key(line, match["key"], match["value"].strip())
        return self._row(line, body)

    def _names(self, line: TextLine, body: str) -> bool:
        """Read the workers after the line of prose or on the next line; return whether it did."""
        if self._part == "named":
            self._part = ""
            below = worker_list(body, bare=True)
            if below.is_whole and not line.is_prefixed and not KEY.match(body):
                self._named = below
                return True
        label = self._prose.workers if self._prose else ""
        if self._named is not None or not label:
            return False
        other = None if body.startswith(label) else _LABEL.match(body)
        if other is None and not body.startswith(label):
            return False
        self._elements += 1
        if rest := body[other.end() if other else len(label) :].strip():
            self._named = self._list(rest, bare=True)
        else:
            self._part = "named"
        return True

    def _head(self, cause: Cause, body: str) -> None:
        self._prose = cause
        self._elements += 1
        match = cause.prose.match(body)
        if cause.enum == "UNRECOVERABLE_ERROR":
            self._message = [body[match.end() if match else 0 :].lstrip()]
            self._part = "message"
        elif cause.workers and body.startswith(cause.workers):
            self._named = self._list(body[len(cause.workers) :], bare=True)

    def _list(self, text: str, *, bare: bool = False) -> WorkerList:
        workers = worker_list(text, bare=bare)
        if not workers.is_whole:
            self._is_torn = True
        return workers

    def _key(self, line: TextLine, key: str, value: str) -> bool:
        """Read a line that begins with a key; return whether it is part of the digest."""
        known = _KEYS.get(key)
        if known is None:
            return self._part in ("states", "sparse", "links") and self._of_launch(key, value)
        self._part = known.part or self._part
        if known.layout:
            self._hints.add(known.layout)
        if key == "Potential cause" and self._word is None:
            self._cause_line(value, indent=len(line.text) - len(line.text.lstrip()))
        elif key == "Potential culprit workers" and self._culprits is None:
            self._culprits = self._list(value, bare=True)
        if key not in self._keys:
            self._keys[key] = value
            self._elements += 1
        return True

    def _cause_line(self, value: str, *, indent: int) -> None:
        if re.fullmatch(r"[A-Za-z_ ]{1,60}", value):
            self._word = value
            if "_" in value:
                self._hints.add(Layout.EARLY_2025)
            elif indent >= 4:  # noqa: PLR2004
                self._hints.add(Layout.EARLY_2026)

    def _of_launch(self, key: str, value: str) -> bool:
        """Read a line of the table that is no state; return whether it is one."""
        last = self._launches[-1] if self._launches else None
        if key == "Launch ID":
            if not re.fullmatch(r"-?\d{1,19}", value):
                return False
            if last and last.begins_with_module and last.ident is None and not last.states:
                last.ident = int(value)
            else:
                self._launches.append(_Launch(ident=int(value)))
        elif key == "Tag:PC breakdown":
            self._hints.add(Layout.EARLY_2026)
        elif key == "Module":
            self._module(value, last)
        elif last is None or not last.programs:
            return False
        elif key == "Fingerprint":
            last.programs[-1] = dataclasses.replace(last.programs[-1], fingerprint=value or None)
        elif workers := self._list(value).workers:
            last.programs[-1] = dataclasses.replace(last.programs[-1], sample=str(workers[0]))
        return True

    def _module(self, value: str, last: _Launch | None) -> None:
        both = _PROGRAM.match(value)
        if both is None:  # layout 0.0.24 has a line for the module, and one for its fingerprint
            self._hints.add(Layout.LATE_2025)
            program = LaunchedProgram(module=value or None, fingerprint=None)
            self._launches.append(_Launch(programs=[program], begins_with_module=True))
            return
        self._hints.add(Layout.EARLY_2026)
        if last is None or last.begins_with_module:
            last = _Launch()
            self._launches.append(last)
        module, fingerprint = both["module"].strip(), both["fingerprint"].strip()
        program = LaunchedProgram(module=module or None, fingerprint=fingerprint or None)
        last.programs.append(program)

    def _row(self, line: TextLine, body: str) -> bool:
        """Read a state, a link, or a row of a table of layout 0.0.11; return whether it is one."""
        if _LINKS in self._keys and (match := _LINK.match(body)):
            ends = [worker_list(match[end].rstrip(",")).workers for end in ("src", "dst")]
            if all(ends):
                self._links.append((ends[0][0], ends[1][0]))
            else:
                self._is_torn = True
            return True
        is_sparse = self._part == "sparse"
        match = _STATE.match(body)
        if match and (match["op"] is None) == is_sparse and (is_sparse or self._has_states):
            self._state(match)
            return True
        if is_sparse and (match := _SPARSE_HLO.fullmatch(body)):
            self._sparse_hlo = match["hlo"]
            return True
        is_old = self._part in self._of_host and not self._launches and not line.is_prefixed
        match = _OLD_STATE.fullmatch(body) if is_old else None
        if match and (self._part == "fingerprints" or match["value"].isdecimal()):
            self._hints.add(Layout.EARLY_2025)
            for host in match["hosts"].split(","):
                self._of_host[self._part].setdefault(host.strip(), match["value"])
            return True
        return False

    @property
    def _has_states(self) -> bool:
        return not _STATES.isdisjoint(self._keys)

    def _state(self, match: re.Match[str]) -> None:
        listed = self._list(match["who"], bare="/" not in match["who"])
        op: str | None = match["op"]
        name, at, computation = _split_last(op or "")
        if match["count"]:
            self._hints.add(Layout.LATE_2026)
        else:
            self._hints.add(Layout.EARLY_2026 if at or op is None else Layout.LATE_2025)
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
        """Return the digest; None if the text only quotes one."""
        # the sentence that no cause is known accuses nobody, and may be the whole digest
        is_enough = self._is_strong or (self._prose and self._prose.enum == "UNKNOWN_CAUSE")
        word = cause_of_word(self._word) if self._word else None
        if (
            self._is_example
            or self._elements < (1 if is_enough else 2)
            or (word is None and self._prose is None)
        ):
            return None
        culprits = self._culprits if self._culprits is not None else self._named
        made = Digest(
            layout=max(self._hints, default=Layout.LATE_2025),
            # the prose differs a little from version to version; the word after the key does not
            cause=word or self._prose,
            word=self._word,
            culprits=tuple(dict.fromkeys(culprits.workers)) if culprits else (),
            links=tuple(dict.fromkeys(self._links)),
            first_error=self._first_error(),
            launches=tuple(
                (launch.told_ident, tuple(launch.programs)) for launch in self._launches
            ),
            states=(
                *(s for launch in self._launches for s in launch.placed()),
                *self._old_states(),
            ),
            sparse=tuple(self._sparse),
            messages=_messages(self._message),
            line=self.first,
        )
        is_open = at_the_end and self._part == "message"
        is_truncated = is_open or self._is_torn or not self._is_all_there(made)
        return judged(dataclasses.replace(made, is_truncated=is_truncated))

    def _first_error(self) -> tuple[str, str | None] | None:
        kind, time = (self._keys.get(f"First error {suffix}") for suffix in ("type", "timestamp"))
        if not kind:
            return None
        return kind, None if not time or time.startswith(_NEVER) else time

    def _old_states(self) -> Iterator[TpuState]:
        groups: dict[tuple[str, str | None], list[str]] = {}
        for host, pc in self._of_host["states"].items():
            fingerprint = self._of_host["fingerprints"].get(host)
            groups.setdefault((pc, fingerprint), []).append(host)
        for (pc, fingerprint), hosts in groups.items():
            yield TpuState(
                fingerprint=fingerprint, pc=int(pc[:18]), hosts=tuple(hosts), cores=len(hosts)
            )

    def _is_all_there(self, made: Digest) -> bool:
        """Return whether the text has everything that a digest of its layout and cause has."""
        enum = made.cause.enum if made.cause else ""
        states = (*made.states, *made.sparse)
        culprits = {worker.host for worker in made.culprits}
        is_listed = culprits <= {host for state in states for host in state.hosts}
        is_network = enum == "NETWORKING_ISSUE" and made.layout is not Layout.EARLY_2025
        return (
            None not in (self._prose, self._word, self._culprits)
            and self._has_states
            and (made.layout is not Layout.LATE_2026 or made.first_error is not None)
            and (bool(made.links) or not is_network)
            and (is_listed or enum == "UNRECOVERABLE_ERROR" or any(s.is_cut for s in states))
            and all(launch.is_whole for launch in self._launches)
        )


def _split_last(op: str) -> tuple[str, str, str]:
    """Return the name of an HLO, the mark, and its computation; the name may hold the mark too."""
    name, at, computation = op.rpartition("@")
    return (name, at, computation) if at else (op, "", "")


def _only(values: Iterable[str | None]) -> str | None:
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
        mark = re.match(r" ?: ?", text[match.end() :]) if match else None
        if match and mark:
            worker = Worker(job=match["job"], task=int(match["task"]), host=match["host"])
            messages.append((worker, [text[match.end() + mark.end() :]]))
        elif messages:
            messages[-1][1].append(line)
    return tuple((worker, "\n".join(text).rstrip("\n")) for worker, text in messages)
