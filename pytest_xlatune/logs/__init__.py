"""Text of a training job -> steps, configuration, findings. Pure: callers do the reading.

    grammar     one line -> rank, step, environment, configuration; MaxText's metrics file
    signatures  one line -> failure class, by the table `signatures.toml`
    figures     what a protocol scores beside steps: a field of the user's own, bus bandwidth
    triage      report and outcome -> findings, and the root cause of them

This module joins the lines: bytes of a growing log in, the report at any moment.

    reader = LogReader()
    for chunk in chunks:
        reader.feed(chunk)
    reader.close()
    reader.report()

The same bytes give the same report however they are cut into chunks. Memory is bounded whatever
the log holds: a line is cut at 64 KiB, findings and settings are counted, steps are of one rank.

Whose steps: rank 0 by its label; without labels the first line of each step id. Which start: the
last. A start begins where settings or Memstats are printed after a step was, or where a step id
goes back by more than two: less may be a slower rank. Once two ranks were seen to print a step
alike, going back begins no start.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pytest_xlatune.logs import grammar
from pytest_xlatune.logs._signatures import EVIDENCE_CHARS, is_harmless, sight, table
from pytest_xlatune.logs.grammar import Origin
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.record import Record
from pytest_xlatune.model.result import Action, Finding, StepRecord

_LINE_BYTES = 1 << 16
_WINDOW_BYTES = 1 << 15  # few windows then hold a line worth reading
_TAIL_BYTES = 1 << 13
_TAIL_LINES, _TAIL_CHARS = 5, 160
_RANKS_APART = 2  # steps by which a slower rank may print later
_STEPS_THAT_REFUTE = 3  # what ran before a fatal line may be printed after it: steps are dispatched
_MOST_STEPS = 100_000
_MOST_SETTINGS = 4096
_MOST_DETAILS = 8  # different findings of one class that are kept
_MOST_ORIGINS = 1024

_LOWER = bytes(range(256)).lower()
_KEPT = frozenset(b"fghijklmnopqrstuvwxyz_FGHIJKLMNOPQRSTUVWXYZ")
_DELETED = bytes(byte for byte in range(256) if byte not in _KEPT)
_DELETED_IN_BLOCKS = bytes(byte for byte in _DELETED if byte != ord("\n"))
_CACHED_SHAPES = 1 << 14
_CACHED_LETTERS = 1 << 9  # of one shape: 8 MiB at most in all

_STEP_WORD = "completed "
_ENVIRONMENT_WORDS = (
    "nccl_", "rccl_", "xla_", "jax_", "hsa_", "hip_", "ucx_", "nvte_", "libtpu_",
)  # fmt: skip
_CONFIG_WORD = "config param "
_MEMSTATS_WORD = "memstats: after params"
_OWN_WORDS = (_STEP_WORD, *_ENVIRONMENT_WORDS, _CONFIG_WORD, _MEMSTATS_WORD)
_ENDING = (
    *(FailureClass.CANCELLED, FailureClass.TIME_LIMIT),
    *(FailureClass.PREEMPTED, FailureClass.PREEMPTION_NOTICE),
)


class Phase(StrEnum):
    """How far a start of the program has come; what a hang means depends on it."""

    BEFORE_MEMSTATS = "before-memstats"  # containers, collectives, parameters
    COMPILING = "compiling"  # after `Memstats: After params initialized`
    TRAINING = "training"  # after the first step line


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReport(Record):
    """What a log tells, of its last start and of one rank.

    Attributes:
        steps: steps of the last start, one rank, one record per step id, in the order printed.
        findings: in order of first appearance; those of an earlier start ask for nothing.
        xla_flags: text of XLA_FLAGS as the environment dump shows it; None where it is not shown.
        env: other variables shown (NCCL_*, RCCL_*, XLA_*, JAX_*, HSA_*, ...).
        config: MaxText's `Config param` lines, values as printed.
        phase: how far the last start came.
        lines: lines, a torn last one included.
        size_bytes: bytes.
        starts: how often the program started in this log.
        steps_after_cancel: steps printed after a notice that the job is being ended.
        tail: the last lines that are neither steps nor known to be harmless.
        notes: what a reader of the steps should know, one sentence each.
    """

    steps: tuple[StepRecord, ...] = ()
    findings: tuple[Finding, ...] = ()
    xla_flags: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    phase: Phase = Phase.BEFORE_MEMSTATS
    lines: int = 0
    size_bytes: int = 0
    starts: int = 1
    steps_after_cancel: int = 0
    tail: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def last_step(self) -> int | None:
        """The highest step id of the last start, None before its first step."""
        return max((each.step for each in self.steps), default=None)


@dataclass(slots=True)
class _Settings:
    """Names and values; where several origins print one, the preferred origin's last word."""

    values: dict[str, tuple[tuple[int, int], str]] = field(default_factory=dict)

    def put(self, name: str, value: str, origin: Origin) -> None:
        known = self.values.get(name)
        if known is None and len(self.values) >= _MOST_SETTINGS:
            return
        if known is None or origin.preference <= known[0]:
            self.values[name] = (origin.preference, value)

    def plain(self) -> dict[str, str]:
        return {name: value for name, (_, value) in self.values.items()}


@dataclass(slots=True)
class _Start:
    """What belongs to one start of the program."""

    index: int = 0
    phase: Phase = Phase.BEFORE_MEMSTATS
    home: Origin | None = None
    steps: dict[int, StepRecord] = field(default_factory=dict)
    last: int = -1  # highest step id; only read where `steps` is not empty
    repeated: bool = False
    others: set[Origin] = field(default_factory=set)
    dropped_steps: int = 0
    after_cancel: int = 0
    env: _Settings = field(default_factory=_Settings)
    config: _Settings = field(default_factory=_Settings)


class LogReader:
    """Reads one log. Feed it bytes as they come; ask at any time."""

    def __init__(self) -> None:
        self._sieve = Sieve((*table().words, *_OWN_WORDS))
        self._held = bytearray()  # an unfinished line, cut at _LINE_BYTES
        self._tail = b""
        self._lines = 0
        self._bytes = 0
        self._start = _Start()
        self._cancelled = False
        self._findings: dict[tuple[str, str], Finding] = {}
        self._fatal: Finding | None = None
        self._steps_since_fatal = 0
        self._unkept = 0
        self._cut_flags = False
        self._closed = False

    @property
    def start(self) -> int:
        """Which start of the program this is, from 0."""
        return self._start.index

    @property
    def last_step(self) -> int | None:
        """The highest step id of the last start; None before its first step."""
        return self._start.last if self._start.steps else None

    @property
    def phase(self) -> Phase:
        """How far the last start came."""
        return self._start.phase

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings so far, in order of first appearance."""
        return tuple(self._findings.values())

    @property
    def fatal(self) -> Finding | None:
        """The first line after which the program cannot go on, as long as it did not go on.

        Three further steps, a further phase or a new start refute it.
        """
        return self._fatal

    @property
    def last_step_s(self) -> float:
        """Seconds that the last printed step took; 0 before there is one that says so."""
        start = self._start
        last = start.steps.get(start.last)
        return (last.step_s or 0.0) if last else 0.0

    def feed(self, chunk: bytes) -> None:
        """Read more of the log; an unfinished last line waits for its end."""
        if self._closed:
            raise ValueError("this log was closed; read another one with a new LogReader")
        for at in range(0, len(chunk), _WINDOW_BYTES):
            self._read(chunk[at : at + _WINDOW_BYTES])

    def close(self) -> None:
        """Read a torn last line, of which only complete fields count. Idempotent."""
        if not self._closed and self._held:
            self._lines += 1
            self._examine(bytes(self._held), self._lines, torn=True)
            self._held.clear()
        self._closed = True

    def report(self) -> LogReport:
        """Return the report so far; before `close`, without an unfinished last line."""
        start = self._start
        env = start.env.plain()
        return LogReport(
            steps=tuple(start.steps.values()),
            findings=self.findings,
            xla_flags=env.pop("XLA_FLAGS", None),
            env=env,
            config=start.config.plain(),
            phase=start.phase,
            lines=self._lines,
            size_bytes=self._bytes,
            starts=start.index + 1,
            steps_after_cancel=start.after_cancel,
            tail=self._last_lines(),
            notes=self._notes(),
        )

    def _read(self, piece: bytes) -> None:
        self._bytes += len(piece)
        whole = piece if len(piece) >= _TAIL_BYTES else self._tail + piece
        self._tail = whole[-_TAIL_BYTES:]
        end = piece.rfind(b"\n") + 1
        if end:
            block = bytes(self._held) + piece[:end] if self._held else piece[:end]
            self._held.clear()
            total, found = self._sieve.lines(block)
            for index, line in found:
                self._examine(line, self._lines + index + 1)
            self._lines += total
        free = _LINE_BYTES - len(self._held)
        self._held += piece[end : end + free]

    def _examine(self, line: bytes, number: int, *, torn: bool = False) -> None:
        cut = len(line) >= _LINE_BYTES
        if cut or torn:
            # bytes beyond the cut must not count in one chunking and not in another
            line = line[:_LINE_BYTES]
            if not self._sieve.may_hold(line):
                return
        segments = grammar.plain_segments(line)
        for index, segment in enumerate(segments):
            is_last = index == len(segments) - 1
            self._examine_text(segment, number, is_torn=(torn or cut) and is_last)

    def _examine_text(self, segment: str, number: int, *, is_torn: bool) -> None:
        origin, text = grammar.split_origin(segment)
        low = text.lower()
        if _STEP_WORD in low:
            whole = grammar.without_torn_field(text) if is_torn else text
            steps = grammar.parse_steps(whole, origin.label)
            if len(steps) == 1 and self._is_cut(steps[0]):
                steps = grammar.parse_steps(grammar.without_torn_field(text), origin.label)
            for record in steps:
                self._step(record, origin, number, segment)
            if steps:
                return
        if _CONFIG_WORD in low and (setting := grammar.parse_config(text)):
            self._begin_if_trained(origin)
            self._start.config.put(*setting, origin)
        elif setting := grammar.parse_environment(text):
            self._begin_if_trained(origin)
            if is_torn and setting[0] == "XLA_FLAGS":
                self._cut_flags = True
            else:
                self._start.env.put(*setting, origin)
        elif _MEMSTATS_WORD in low:
            self._begin_if_trained(origin)
            if self._start.phase is Phase.BEFORE_MEMSTATS:
                self._start.phase, self._fatal = Phase.COMPILING, None
        elif seen := sight(text, line=number, evidence=segment):
            if seen.is_fatal and self._fatal is None:
                self._fatal, self._steps_since_fatal = seen.finding, 0
            self._find(seen.finding)

    def _step(self, record: StepRecord, origin: Origin, number: int, segment: str) -> None:
        if record.loss is not None and not math.isfinite(record.loss):
            finding = Finding(
                cls=FailureClass.NUMERICAL_FAILURE,
                action=Action.DROP,
                line=number,
                text=segment.strip()[:EVIDENCE_CHARS],
                detail=f"loss {record.loss}",
            )
            self._find(finding)
        if not self._is_at_home(origin):
            return
        start = self._start
        if start.steps and record.step <= start.last:
            if start.last - record.step > _RANKS_APART and not start.repeated:
                start = self._begin(settings_of=start)
                start.home = origin
            elif record.step in start.steps:
                self._repeat(record)
                return
        start.phase = Phase.TRAINING
        record = replace(record, start=start.index)
        start.last = max(start.last, record.step) if start.steps else record.step
        start.steps[record.step] = record
        start.after_cancel += self._cancelled
        self._steps_since_fatal += 1
        if self._steps_since_fatal >= _STEPS_THAT_REFUTE:
            self._fatal = None
        if len(start.steps) > _MOST_STEPS:
            del start.steps[next(iter(start.steps))]
            start.dropped_steps += 1

    def _is_cut(self, record: StepRecord) -> bool:
        """Whether the line of a step tells less than the one before: a writer may have been cut."""
        before = self._start.steps.get(self._start.last)
        return before is not None and grammar.told(record) < grammar.told(before)

    def _repeat(self, record: StepRecord) -> None:
        """Keep the first line of a step, unless that one was cut short and this one tells more."""
        start = self._start
        start.repeated = True
        if grammar.told(record) > grammar.told(start.steps[record.step]):
            start.steps[record.step] = replace(record, start=start.index)

    def _is_at_home(self, origin: Origin) -> bool:
        """Whether steps of this origin count; a better one than before takes its place."""
        start = self._start
        home = start.home
        if home is not None and origin != home:
            better = origin.preference < home.preference
            if len(start.others) < _MOST_ORIGINS:
                start.others.add(home if better else origin)
            if not better:
                return False
            start.steps.clear()
        start.home = origin
        return True

    def _begin_if_trained(self, origin: Origin) -> None:
        """Begin a new start when its settings or Memstats are printed after a step was."""
        home = self._start.home
        if self._start.phase is not Phase.TRAINING or home is None:
            return
        if origin.rank in ("", home.rank) and not (self._start.repeated and home.rank == ""):
            self._begin()

    def _begin(self, *, settings_of: _Start | None = None) -> _Start:
        self._start = _Start(index=self._start.index + 1)
        if settings_of is not None:  # none were printed in between: they still hold
            self._start.env, self._start.config = settings_of.env, settings_of.config
        self._cancelled = False
        self._fatal = None
        self._findings = {
            key: replace(each, action=Action.NONE) for key, each in self._findings.items()
        }
        return self._start

    def _find(self, finding: Finding) -> None:
        self._cancelled |= finding.cls in _ENDING
        key = (finding.cls, finding.detail)
        known = self._findings.get(key)
        alike = sum(cls == finding.cls for cls, _ in self._findings)
        if known is not None and known.action is finding.action:
            self._findings[key] = replace(known, count=known.count + 1)
        elif known is None and alike >= _MOST_DETAILS:
            self._unkept += 1
        else:  # new, or of an earlier start: then the new line is the evidence
            self._findings.pop(key, None)
            self._findings[key] = replace(finding, count=known.count + 1 if known else 1)

    def _last_lines(self) -> tuple[str, ...]:
        first = 1 if self._bytes > _TAIL_BYTES else 0
        texts = [
            part.strip()[:_TAIL_CHARS]
            for line in self._tail.split(b"\n")[first:]
            for part in grammar.plain_segments(line)
            if _STEP_WORD not in part and not is_harmless(part)
        ]
        return tuple(texts[-_TAIL_LINES:])

    def _notes(self) -> tuple[str, ...]:
        start = self._start
        whose = (start.home.label if start.home else "") or "the one without a label"
        cases = (
            (start.index, f"the log holds {start.index + 1} starts; these steps are of the last"),
            (start.others, f"{len(start.others) + 1} origins print steps; these are of {whose}"),
            (start.repeated, "several ranks print a step alike; the first line of each counts"),
            (start.dropped_steps, f"{start.dropped_steps} earlier steps are not kept"),
            (self._unkept, f"{self._unkept} more findings are not kept"),
            (self._cut_flags, "the line of XLA_FLAGS is cut and was not used"),
        )
        return tuple(text for is_so, text in cases if is_so)


def read_log(chunks: Iterable[bytes]) -> LogReport:
    """Read a whole log, e.g. an open binary file, and return its report."""
    reader = LogReader()
    for chunk in chunks:
        reader.feed(chunk)
    reader.close()
    return reader.report()


class Sieve:
    """Finds the lines of a block that may hold one of some words, case ignored.

    It is why a gigabyte takes seconds. A log is a few line shapes, repeated a million times with
    other numbers. The *letters* of a line are its f to z and _, in lower case, without
    everything else: digits, addresses (a-f!), counters and times vanish, and one
    `bytes.translate` does it for a whole block. Letters that hold the letters of no known word are
    dull. The sieve remembers them and judges each shape once; that memory is a cache of a pure
    function. It may let other lines through.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._known = _pattern(frozenset(words))
        self._dull: set[bytes] = set()

    def may_hold(self, line: bytes) -> bool:
        """Whether a line may hold one of the words; never false when it does."""
        return self._known.search(line.translate(_LOWER, _DELETED)) is not None

    def lines(self, block: bytes) -> tuple[int, list[tuple[int, bytes]]]:
        """Return the number of lines in a block of complete lines, and those worth reading.

        Each with its index in the block, from 0.
        """
        shapes = block.translate(_LOWER, _DELETED_IN_BLOCKS).split(b"\n")
        fresh = set(shapes) - self._dull
        live = {shape for shape in fresh if self._known.search(shape)}
        if len(self._dull) > _CACHED_SHAPES:
            self._dull.clear()
        self._dull.update(shape for shape in fresh - live if len(shape) <= _CACHED_LETTERS)
        if not live:
            return len(shapes) - 1, []
        texts = block.split(b"\n")
        found = [(at, texts[at]) for at, shape in enumerate(shapes) if shape in live]
        return len(shapes) - 1, found


@functools.lru_cache(maxsize=8)
def _pattern(words: frozenset[str]) -> re.Pattern[bytes]:
    """Return what finds one of the words in letters; a thousand logs are read for the same ones."""
    letters = {word.encode().translate(_LOWER, _DELETED) for word in words}
    # a word that another one is part of is never needed
    needed = {each for each in letters if not any(o in each for o in letters - {each})}
    return re.compile(_any_of(needed))


def _any_of(words: set[bytes]) -> bytes:
    """Write a pattern that branches letter by letter: `re` tries alternatives one by one."""
    if b"" in words:
        return b""
    heads = sorted({word[:1] for word in words})
    branches = (head + _any_of({word[1:] for word in words if word[:1] == head}) for head in heads)
    return b"(?:" + b"|".join(branches) + b")"
