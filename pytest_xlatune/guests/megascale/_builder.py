"""One digest, line by line: each is known by its key and its shape, in any of the four layouts."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

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

_STRAY_LINES = 2000  # lines of others between two lines of a digest
_MOST_LINES = 20_000  # of one digest
_MOST_MESSAGE = 1 << 16
# libtpu prints this launch for a core whose program is over, and this time for "not given"
_IDLE_LAUNCH = -(1 << 31)
_NEVER = "1970-01-01T00:00:00"

_STEP = re.compile(r"completed step: \d+, seconds: ")
# a document may break the sentence anywhere behind these words
HEAD = re.compile(r"(?:Megascale detects a hang\b|Some workers have halted with an\b)")
KEY = re.compile(
    r"(?P<key>Full error digest|Potential cause|Potential culprit workers|First error timestamp"
    r"|First error type|TPU state?s|TPU program fingerprints|Sparse Core States"
    r"|Workers with suspected networking issues|Tag:PC breakdown|Launch ID|Sample worker"
    r"|Fingerprint|Module):(?P<value>.*)"
)
# key -> the part of the table that it begins
# documents write "TPU stats"; the binaries of four libtpu versions hold "TPU states" only
_MODES = {
    "TPU states": "states",
    "TPU stats": "states",
    "TPU program fingerprints": "fingerprints",
    "Sparse Core States": "sparse",
    "Workers with suspected networking issues": "links",
}
_PROGRAM = re.compile(r"Module:(?P<module>.*?) ?Fingerprint:(?P<fingerprint>.*)")
#  15@9:777(all-reduce.5@while_body.17): W, W       9:777(all-reduce.5): W
_STATE = re.compile(
    r"(?:(?P<count>\d{1,9})@)?(?P<tag>-?\d{1,18}):(?P<pc>-?\d{1,18})\((?P<op>.*?)\): (?P<who>\S.*)"
)
#  3:555: W, W      2@3:555: W, W
_SPARSE = re.compile(
    r"(?:(?P<count>\d{1,9})@)?(?P<tag>-?\d{1,18}):(?P<pc>-?\d{1,18}): (?P<who>\S.*)"
)
_SPARSE_HLO = re.compile(r"(?P<hlo>[^\s:]+(?: [^\s:]+)*):")
_LINK = re.compile(r"src: (?P<src>\S+) dst: (?P<dst>\S+)")
#  host-3: 777      host-3, host-4: 777
_OLD_STATE = re.compile(
    r"(?P<hosts>[A-Za-z0-9_][\w.-]*(?:, ?[A-Za-z0-9_][\w.-]*)*): (?P<value>[0-9a-fx]+)", re.ASCII
)
# in place of the label of a cause, of one host:  The host that has a bad TPU is:
_LABEL = re.compile(r"The hosts? that (?:have|has) [A-Za-z ]{1,60} (?:are|is):")
_EXAMPLE = re.compile(r"<[a-z_ ]+[_ ]?\d*>")  # <host_name_1>


@dataclass(slots=True)
class _Launch:
    """A launch as it is being read."""

    ident: int | None = None
    programs: list[LaunchedProgram] = field(default_factory=list)
    states: list[tuple[TpuState, WorkerList]] = field(default_factory=list)
    begins_with_module: bool = False  # layout 0.0.24: one module, then its launch id


class DigestBuilder:
    """A digest as it is being read."""

    def __init__(self, first: TextLine) -> None:
        self.first = self.last = first.number
        self.stray = 0
        self.is_mine = False
        self._is_strong = first.is_own
        self._is_prefixed = first.is_prefixed
        self._mode = ""
        self._elements = 0
        self._keys: set[str] = set()
        self._is_example = self._is_complete = False
        self._torn: int | None = None
        self._prose: Cause | None = None
        self._word: str | None = None
        self._culprits: WorkerList | None = None
        self._named: WorkerList | None = None
        self._error: dict[str, str] = {}
        self._links: list[tuple[Worker, Worker]] = []
        self._launches: list[_Launch] = []
        self._of_host: dict[str, dict[str, str]] = {"pc": {}, "fingerprint": {}}
        self._sparse: list[TpuState] = []
        self._sparse_hlo: str | None = None
        self._message: list[str] = []
        self._hints: set[Layout] = set()
        self._broken: list[str] = []

    def has(self, key: str) -> bool:
        """Whether this digest had that line already."""
        return key in self._keys

    @property
    def is_over(self) -> bool:
        """Whether no line of it can follow."""
        is_long = self.last - self.first > _MOST_LINES
        return self._is_complete or self.stray > _STRAY_LINES or is_long

    def takes(self, line: TextLine, body: str) -> bool:
        """Whether a line that could open a digest is part of this one: a message may quote it."""
        if self._mode == "message" and self._is_prefixed and not line.is_prefixed:
            return True
        return self._prose is None and not self._keys and HEAD.match(body) is None

    def read(self, line: TextLine, body: str, *, is_torn: bool) -> None:
        """Take a line, or count it as one of others."""
        self.is_mine = self._take(line, body)
        if self.is_mine:
            self.stray = 0
            self.last = line.number
            if is_torn and not self._is_complete:
                self._torn = line.number
        else:
            self.stray += 1

    def _take(self, line: TextLine, body: str) -> bool:
        if "megascale" in line.logger and body.startswith("Skip writing error digest"):
            self._is_complete = True
            return True
        if self._mode == "message":
            is_end = line.is_prefixed or (not self._is_prefixed and self._ends_message(body))
            if not is_end:
                if sum(map(len, self._message)) < _MOST_MESSAGE and not _STEP.search(body):
                    self._message.append(line.text)
                return True
            self._mode = ""
        if not body:
            return False
        if _EXAMPLE.search(body):
            self._is_example = True
        if self._prose is None and (cause := cause_of_prose(body)):
            self._head(cause, body)
            return True
        if self._names(line, body):
            return True
        if match := KEY.match(body):
            return self._key(line, match["key"], match["value"].strip(), body)
        return self._row(line, body)

    def _names(self, line: TextLine, body: str) -> bool:
        """Take the hosts of the line of prose, which may stand on the next one."""
        if self._mode == "named":
            self._mode = ""
            below = worker_list(body, bare=True)
            if below.is_whole and not line.is_prefixed and not KEY.match(body):
                self._named = below
                return True
        end = self._label_end(body) if self._named is None else 0
        if end:
            self._elements += 1
            if body[end:].strip():
                self._named = self._list(body[end:], bare=True)
            else:
                self._mode = "named"
        return bool(end)

    def _label_end(self, body: str) -> int:
        """Return where the workers begin behind what names them; 0 where a line names none."""
        if self._prose is None or not self._prose.workers:
            return 0
        if body.startswith(self._prose.workers):
            return len(self._prose.workers)
        other = _LABEL.match(body)
        return other.end() if other else 0

    @staticmethod
    def _ends_message(body: str) -> bool:
        return body.startswith(("Please inspect the error log of these", "Full error digest:"))

    def _head(self, cause: Cause, body: str) -> None:
        self._prose = cause
        self._elements += 1
        match = cause.prose.match(body)
        rest = body[match.end() :].lstrip() if match else ""
        if cause.enum == "UNRECOVERABLE_ERROR":
            self._message = [rest]
            self._mode = "message"
        elif cause.workers and body.startswith(cause.workers):
            self._named = self._list(body[len(cause.workers) :], bare=True)

    def _list(self, text: str, *, bare: bool = False) -> WorkerList:
        found = worker_list(text, bare=bare)
        if not found.is_whole:
            self._broken.append("the end of a list of workers")
        return found

    def _key(self, line: TextLine, key: str, value: str, body: str) -> bool:
        indent = len(line.text) - len(line.text.lstrip())
        in_table = self._mode in ("states", "sparse", "links")
        if key in _MODES:
            self._mode = _MODES[key]
            if self._mode == "fingerprints":
                self._hints.add(Layout.EARLY_2025)
        elif key == "Potential cause":
            self._cause_line(value, indent)
        elif key == "Potential culprit workers":
            if self._culprits is None:
                self._culprits = self._list(value, bare=True)
        elif key in ("First error timestamp", "First error type"):
            self._hints.add(Layout.LATE_2026)
            self._error.setdefault(key, value)
        elif key != "Full error digest":
            return in_table and self._of_launch(key, value, body)
        if key not in self._keys:
            self._keys.add(key)
            self._elements += 1
        return True

    def _cause_line(self, value: str, indent: int) -> None:
        if self._word is None and re.fullmatch(r"[A-Za-z_ ]{1,60}", value):
            self._word = value
            if "_" in value:
                self._hints.add(Layout.EARLY_2025)
            elif indent >= 4:  # noqa: PLR2004
                self._hints.add(Layout.EARLY_2026)

    def _of_launch(self, key: str, value: str, body: str) -> bool:
        """Take a line of the table that is no state."""
        last = self._launches[-1] if self._launches else None
        if key == "Launch ID":
            return self._launch(value, last)
        if key == "Tag:PC breakdown":
            self._hints.add(Layout.EARLY_2026)
            return True
        if key == "Module":
            self._module(value, _PROGRAM.match(body), last)
            return True
        if last is None or not last.programs:
            return False
        if key == "Fingerprint":
            last.programs[-1] = dataclasses.replace(last.programs[-1], fingerprint=value or None)
        elif (found := self._list(value)).workers:
            last.programs[-1] = dataclasses.replace(last.programs[-1], sample=found.workers[0])
        return True

    def _launch(self, value: str, last: _Launch | None) -> bool:
        if not re.fullmatch(r"-?\d{1,19}", value):
            return False
        if last and last.begins_with_module and last.ident is None and not last.states:
            last.ident = int(value)
        else:
            self._launches.append(_Launch(ident=int(value)))
        return True

    def _module(self, value: str, both: re.Match[str] | None, last: _Launch | None) -> None:
        if both is None:  # layout 0.0.24: a line for the module, one for its fingerprint
            self._hints.add(Layout.LATE_2025)
            program = LaunchedProgram(module=value or None, fingerprint=None)
            self._launches.append(_Launch(programs=[program], begins_with_module=True))
            return
        self._hints.add(Layout.EARLY_2026)
        if last is None or last.begins_with_module:
            last = _Launch()
            self._launches.append(last)
        module, fingerprint = both["module"].strip(), both["fingerprint"].strip()
        last.programs.append(
            LaunchedProgram(module=module or None, fingerprint=fingerprint or None)
        )

    def _row(self, line: TextLine, body: str) -> bool:
        """Take a state, a link, or a line of a table of layout 0.0.11."""
        if "Workers with suspected networking issues" in self._keys and (m := _LINK.match(body)):
            ends = [worker_list(m[end].rstrip(",")) for end in ("src", "dst")]
            if all(each.workers for each in ends):
                self._links.append((ends[0].workers[0], ends[1].workers[0]))
            else:
                self._broken.append("the end of a link")
            return True
        is_table = bool(self._keys & {"TPU states", "TPU stats"})
        if self._mode != "sparse" and is_table and (m := _STATE.match(body)):
            self._state(m)
            return True
        if self._mode == "sparse":
            if m := _SPARSE.match(body):
                self._sparse_state(m)
                return True
            if m := _SPARSE_HLO.fullmatch(body):
                self._sparse_hlo = m["hlo"]
                return True
        is_old = self._mode in ("states", "fingerprints") and not self._launches
        if is_old and not line.is_prefixed and (m := _OLD_STATE.fullmatch(body)):
            kind = "pc" if self._mode == "states" else "fingerprint"
            if kind == "fingerprint" or m["value"].isdecimal():
                self._hints.add(Layout.EARLY_2025)
                for host in m["hosts"].split(","):
                    self._of_host[kind].setdefault(host.strip(), m["value"])
                return True
        return False

    def _state(self, match: re.Match[str]) -> None:
        listed = self._list(match["who"], bare="/" not in match["who"])
        self._hints.add(Layout.LATE_2026 if match["count"] else Layout.LATE_2025)
        name, _, computation = match["op"].rpartition("@")
        if "@" not in match["op"]:
            name, computation = match["op"], ""
        elif not match["count"]:
            self._hints.add(Layout.EARLY_2026)
        if not self._launches:
            self._launches.append(_Launch())
        state = TpuState(
            launch_id=None,
            module=None,
            fingerprint=None,
            tag=int(match["tag"]),
            pc=int(match["pc"]),
            hlo=name or None,
            computation=computation or None,
            hosts=listed.hosts,
            cores=int(match["count"]) if match["count"] else listed.cores,
            is_cut=listed.is_cut,
        )
        self._launches[-1].states.append((state, listed))

    def _sparse_state(self, match: re.Match[str]) -> None:
        listed = self._list(match["who"], bare="/" not in match["who"])
        self._hints.add(Layout.LATE_2026 if match["count"] else Layout.EARLY_2026)
        self._sparse.append(
            TpuState(
                launch_id=None,
                module=None,
                fingerprint=None,
                tag=int(match["tag"]),
                pc=int(match["pc"]),
                hlo=self._sparse_hlo,
                computation=None,
                hosts=listed.hosts,
                cores=int(match["count"]) if match["count"] else listed.cores,
                is_cut=listed.is_cut,
            )
        )

    def digest(self, *, at_the_end: bool) -> Digest | None:
        """Return what was read; None if it is no digest but a text that quotes one."""
        least = 1 if self._is_strong else 2
        if self._is_example or self._elements < least or self._says_nothing():
            return None
        word = cause_of_word(self._word) if self._word else None
        culprits = self._culprits if self._culprits is not None else self._named
        is_open = at_the_end and self._mode == "message"
        made = Digest(
            layout=self._layout(),
            # the prose differs by a word from version to version, the word behind the key does not
            cause=word or self._prose,
            word=self._word,
            culprits=tuple(dict.fromkeys(culprits.workers)) if culprits else (),
            links=tuple(dict.fromkeys(self._links)),
            first_error=self._first_error(),
            launches=tuple((_ident(each), tuple(each.programs)) for each in self._launches),
            states=self._states(),
            sparse=tuple(self._sparse),
            messages=_messages(self._message),
            line=self.first,
            last_line=self.last,
        )
        missing = [*self._missing(made), *(("the end of a message",) if is_open else ())]
        return judged(dataclasses.replace(made, missing=tuple(dict.fromkeys(missing))))

    def _says_nothing(self) -> bool:
        return self._prose is None and (self._word is None or cause_of_word(self._word) is None)

    def _layout(self) -> Layout:
        return max(self._hints, default=Layout.LATE_2025)

    def _first_error(self) -> tuple[str, str | None] | None:
        kind = self._error.get("First error type")
        if not kind:
            return None
        time = self._error.get("First error timestamp") or None
        return kind, None if time is None or time.startswith(_NEVER) else time

    def _states(self) -> tuple[TpuState, ...]:
        found = [
            dataclasses.replace(
                state,
                launch_id=_ident(launch),
                module=_only(each.module for each in launch.programs),
                fingerprint=_only(each.fingerprint for each in launch.programs),
            )
            for launch in self._launches
            for state, _ in launch.states
        ]
        groups: dict[tuple[str, str | None], list[str]] = {}
        prints = self._of_host["fingerprint"]
        for host, pc in self._of_host["pc"].items():
            groups.setdefault((pc, prints.get(host)), []).append(host)
        found += [
            TpuState(
                launch_id=None,
                module=None,
                fingerprint=fingerprint,
                tag=None,
                pc=int(pc[:18]),
                hlo=None,
                computation=None,
                hosts=tuple(hosts),
                cores=len(hosts),
            )
            for (pc, fingerprint), hosts in groups.items()
        ]
        return tuple(found)

    def _missing(self, made: Digest) -> Iterator[str]:
        """Yield what the text must have had."""
        if self._prose is None:
            yield "the first line"
        if self._word is None:
            yield "the line of the cause"
        if self._culprits is None:
            yield "the line of the culprits"
        if not self._keys & {"TPU states", "TPU stats"}:
            yield "the table of states"
        is_late = made.layout is Layout.LATE_2026
        if is_late and made.first_error is None:
            yield "the first error"
        if self._torn is not None:
            yield f"the end of line {self._torn}"
        yield from self._broken
        of_links = made.cause is not None and made.cause.enum == "NETWORKING_ISSUE"
        if of_links and not made.links and made.layout is not Layout.EARLY_2025:
            yield "the broken links"
        is_cut = any(each.is_cut for each in (*made.states, *made.sparse))
        shown = {host for each in (*made.states, *made.sparse) for host in each.hosts}
        absent_hosts = {each.host for each in made.culprits} - shown
        is_own_error = made.cause is not None and made.cause.enum == "UNRECOVERABLE_ERROR"
        if absent_hosts and not is_cut and not is_own_error:
            yield f"states of {', '.join(sorted(absent_hosts))}"
        for launch in self._launches:
            listed = {worker for _, each in launch.states for worker in each.workers}
            has_all = any(each.is_cut for _, each in launch.states) or all(
                each.sample is None or each.sample in listed for each in launch.programs
            )
            if not (launch.states and has_all and (launch.programs or launch.ident is None)):
                yield f"states of launch {launch.ident}"


def _ident(launch: _Launch) -> int | None:
    return None if launch.ident == _IDLE_LAUNCH else launch.ident


def _only(values: Iterable[str | None]) -> str | None:
    """Return what a launch's programs agree on; which of several a state is in is not told."""
    each = set(values)
    return each.pop() if len(each) == 1 else None


def _messages(lines: list[str]) -> tuple[tuple[Worker, str], ...]:
    """Take the quoted errors apart: each begins with its worker, at the beginning of a line."""
    found: list[tuple[Worker, list[str]]] = []
    for line in lines:
        match = WORKER.match(line.lstrip() if not found else line)
        text = line.lstrip() if not found else line
        if match and text[match.end() : match.end() + 1] == ":":
            worker = Worker(job=match["job"], task=int(match["task"]), host=match["host"])
            found.append((worker, [text[match.end() + 1 :].removeprefix(" ")]))
        elif match and text[match.end() : match.end() + 2] == " :":  # as the documents write it
            worker = Worker(job=match["job"], task=int(match["task"]), host=match["host"])
            found.append((worker, [text[match.end() + 2 :].removeprefix(" ")]))
        elif found:
            found[-1][1].append(line)
    return tuple((worker, "\n".join(text).rstrip("\n")) for worker, text in found)
