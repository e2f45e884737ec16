"""Read the log of a training job: steps, configuration, findings. Pure: callers do the reading.

    grammar       prefixes of lines; MaxText's step lines and metrics file
    patterns      step lines of other trainers
    line_classes  which lines are examined for what, and what they show
    signatures    one line -> failure class, by the table `signatures.toml`
    figures       the scored figure that steps lack: bus bandwidth
    triage        report and outcome -> findings, and their root cause
    formats       formats that other distributions add

This module combines them: it reads the bytes of a growing log and reports at any moment.

    reader = LogReader(pattern)
    for chunk in chunks:
        reader.feed(chunk)
    reader.close()
    reader.report()

The result does not depend on how the bytes are cut into chunks. Memory is bounded: a line is cut at
64 KiB, findings and settings are limited in number, and steps are kept for one rank.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence

import msgspec
from msgspec.structs import replace

from pytest_xlatune.logs import grammar
from pytest_xlatune.logs._course import (
    STEPS_THAT_REFUTE,
    Course,
    Phase,
)
from pytest_xlatune.logs._sieve import STEP_WORD, LineFilter, StepRun, StepShapes
from pytest_xlatune.logs._signatures import EVIDENCE_CHARS, is_harmless, sight, table
from pytest_xlatune.logs.formats import BlockReader, LogFormat, formats
from pytest_xlatune.logs.grammar import Origin, PrefixLearner
from pytest_xlatune.logs.line_classes import FACTS, LogLine
from pytest_xlatune.logs.patterns import PRESETS, StepPattern
from pytest_xlatune.model.failure import Action, FailureClass, Finding
from pytest_xlatune.model.metric import StepRecord, Steps
from pytest_xlatune.model.text import shortened

__all__ = ["STEPS_THAT_REFUTE", "LogReader", "LogReport", "Phase", "read_log"]

_LINE_BYTES = 1 << 16
_WINDOW_BYTES = 1 << 16  # so small that most windows have no line worth reading
_TAIL_BYTES = 1 << 13
# first bytes of a log without steps, in which the presets' step lines are sought
_BEGIN_BYTES = 1 << 20
_TAIL_LINES, _TAIL_CHARS = 5, 160
_MOST_OPENINGS = 4000  # lines that may begin a block of a format
_STEP_WORD = STEP_WORD.decode()
_NO_ORIGIN = Origin()


class LogReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a log shows about its last start and one rank."""

    # one record for each step id, in the order printed
    steps: Steps = msgspec.field(default_factory=Steps)
    # in order of first appearance; those of an earlier start have no action
    findings: tuple[Finding, ...] = ()
    xla_flags: str | None = None  # XLA_FLAGS in the environment dump; None if not shown
    # other variables in the dump: NCCL_*, JAX_*, ...
    env: dict[str, str] = msgspec.field(default_factory=dict)
    config: dict[str, str] = msgspec.field(default_factory=dict)  # MaxText's `Config param` lines
    # variables that NCCL or RCCL reads according to NCCL_DEBUG=INFO, and flags of libtpu
    nccl: dict[str, str] = msgspec.field(default_factory=dict)
    phase: Phase = Phase.BEFORE_MEMSTATS  # how far the last start got
    lines: int = 0  # number of lines, including a torn last one
    size_bytes: int = 0
    starts: int = 1  # how often the program started in this log
    steps_after_cancel: int = 0  # steps printed after a notice that the job is being ended
    steps_after_trouble: int = 0  # steps printed after the last line that calls for an action
    # whether a format's block says that the last start was ended on purpose
    is_cancelled: bool = False
    # the job's exit code, as launcher or scheduler print it at the end; None if not printed
    exit_code: int | None = None
    tail: tuple[str, ...] = ()  # the last lines that are neither steps nor known to be harmless
    notes: tuple[str, ...] = ()  # remarks for a reader of the steps, one sentence each
    # NCCL, RCCL, ROCm -> the version that the library prints when it is loaded
    libraries: dict[str, str] = msgspec.field(default_factory=dict)
    # memory of the last compiled step on a device, in units of 2^30 bytes
    memory_gb: float | None = None
    # the arguments for MaxText in the head of a maxtext-slurm log
    asked: dict[str, str] = msgspec.field(default_factory=dict)
    goal_step: int | None = None  # id of the last step, if step lines show it: `12/ 40`
    # beginning of a line that names JAX's devices -> their platform
    devices: dict[str, str] = msgspec.field(default_factory=dict)
    # for an ended log without a step: the preset that fits its first and last lines; "" if none
    fits: str = ""
    # how many operations of a PGLE profile XLA found, at most; None if not printed
    pgle_found: int | None = None
    pgle_unread: str = ""  # a file of such a profile that XLA could not read; "" if none

    @property
    def last_step(self) -> int | None:
        """The highest step id of the last start; None before its first step."""
        return max(self.steps.step, default=None)


class LogReader:
    """Reads one log. Feed it bytes as they come; ask at any time.

    `pattern` describes the step lines of a trainer other than MaxText. With it, MaxText's lines are
    no steps.
    """

    def __init__(self, pattern: StepPattern | None = None) -> None:
        self._pattern = pattern
        self._formats = formats()
        # readers of the formats that have a line in this log
        self._block_readers: dict[type[LogFormat], BlockReader] = {}
        # number of a line that may begin a block -> start of the program, its steps so far, text
        self._openings: dict[int, tuple[int, int, str]] = {}
        other_words = [word for form in self._formats for word in form.words]
        words = {*table().words, *other_words, *(word for facts in FACTS for word in facts.words)}
        self._step_words = (_STEP_WORD, *other_words, *(pattern.words if pattern else ()))
        self._filter = LineFilter((*words, *self._step_words))
        self._course = Course()
        self._learner = PrefixLearner()
        # None if every step line must be read in full
        self._step_shapes = StepShapes(other_words) if pattern is None else None
        self._has_runs = False  # whether the lines read before had steps of a known shape
        self._held = bytearray()  # an unfinished line, cut at _LINE_BYTES
        self._begin = self._tail = b""
        self._lines = 0
        self._bytes = 0
        self._closed = False
        self._fits = ""

    @property
    def start(self) -> int:
        """The number of the program's present start, from 0."""
        return self._course.start.index

    @property
    def last_step(self) -> int | None:
        """The highest step id of the last start; None before its first step."""
        return self._course.start.last if self._course.start.steps else None

    @property
    def phase(self) -> Phase:
        """How far the last start got."""
        return self._course.start.phase

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All findings so far, in order of first appearance."""
        of_blocks: dict[tuple[str, str, Action], Finding] = {}
        for finding, _ in self._block_findings():
            of_blocks.setdefault((finding.cls, finding.detail, finding.action), finding)
        # a block's finding comes before those of its first line, which are its consequences
        findings = (*of_blocks.values(), *self._course.findings.values())
        return tuple(sorted(findings, key=lambda finding: finding.line))

    @property
    def fatal(self) -> Finding | None:
        """The first line after which the program cannot go on, unless it did.

        Three more steps, a later phase or a new start refute it. A format's block may be fatal too.
        """
        of_blocks = (
            finding
            for finding, steps in self._block_findings()
            if steps < STEPS_THAT_REFUTE and finding.action is not Action.NONE
        )
        return self._course.fatal or next(of_blocks, None)

    @property
    def last_step_s(self) -> float:
        """Seconds of the last printed step; 0 if there is none with a time."""
        last = self._course.start.steps.get(self._course.start.last)
        if isinstance(last, StepRun):
            return last.figure("step_s")[last.steps.index(self._course.start.last)] or 0.0
        return (last.step_s or 0.0) if last else 0.0

    def end(self) -> list[str]:
        """Return the texts in the last lines of the log, 8 KiB at most."""
        lines = self._tail.split(b"\n")[1 if self._bytes > _TAIL_BYTES else 0 :]
        return [part.strip() for line in lines for part in grammar.plain_segments(line)]

    def feed(self, chunk: bytes) -> None:
        """Read more of the log; an unfinished last line waits for its end."""
        if self._closed:
            raise ValueError("this log was closed; read another one with a new LogReader")
        self._bytes += len(chunk)
        if len(self._begin) < _BEGIN_BYTES and not self._course.start.steps:
            self._begin += chunk[: _BEGIN_BYTES - len(self._begin)]
        self._tail = (self._tail + chunk[-_TAIL_BYTES:])[-_TAIL_BYTES:]
        for at in range(0, len(chunk), _WINDOW_BYTES):
            self._read(chunk[at : at + _WINDOW_BYTES])

    def close(self) -> None:
        """Read a torn last line, in which only complete fields count. Idempotent."""
        if not self._closed and self._held:
            held = bytes(self._held)
            self._read_line(held, self._lines + 1, is_torn=True)
            for block_reader in self._block_readers.values():
                block_reader.feed(held + b"\n", self._lines)
            self._lines += 1
            self._held.clear()
        for block_reader in self._block_readers.values():
            block_reader.close()
        if not self._closed and self._pattern is None and not self._course.start.steps:
            self._fits = fitting(self._begin, self._tail if self._bytes > len(self._begin) else b"")
        self._closed, self._begin = True, b""

    def report(self) -> LogReport:
        """Return the report so far; before `close` without an unfinished last line."""
        course, start = self._course, self._course.start
        steps = start.last_steps()
        env = start.plain("env")
        last = [part for part in self.end() if _STEP_WORD not in part and not is_harmless(part)]
        blocks = self._block_findings()
        after_trouble = [count for finding, count in blocks if finding.action is not Action.NONE]
        after_cancel = [
            count
            for finding, count in blocks
            if finding.cls == FailureClass.CANCELLED and count <= start.count
        ]
        return LogReport(
            steps=steps,
            findings=self.findings,
            xla_flags=env.pop("XLA_FLAGS", None),
            env=env,
            config=start.plain("config"),
            nccl=start.plain("nccl"),
            phase=start.phase,
            lines=self._lines,
            size_bytes=self._bytes,
            starts=start.index + 1,
            steps_after_cancel=max(start.after_cancel, *after_cancel, 0),
            steps_after_trouble=min(start.after_trouble, *after_trouble, start.after_trouble),
            is_cancelled=bool(after_cancel),
            exit_code=start.exit_code,
            tail=tuple(shortened(part, _TAIL_CHARS) for part in last[-_TAIL_LINES:]),
            notes=course.notes(),
            libraries=start.plain("libraries"),
            memory_gb=start.memory_gb,
            asked=dict(course.asked),
            goal_step=course.goal,
            devices={line: platform for line, platform in start.devices.items() if platform},
            pgle_found=start.pgle_found,
            pgle_unread=start.pgle_unread,
            fits=self._fits,
        )

    def _read(self, piece: bytes) -> None:
        end = piece.rfind(b"\n") + 1
        if end:
            block = bytes(self._held) + memoryview(piece)[:end]
            self._held.clear()
            number = self._read_block(block)
            for block_reader in self._block_readers.values():
                block_reader.feed(block, self._lines)
            self._lines = number
        free = _LINE_BYTES - len(self._held)
        self._held += piece[end : end + free]

    def _read_block(self, block: bytes) -> int:
        """Read a block of complete lines; return the total number of lines."""
        number, shapes = self._lines, self._step_shapes
        if shapes is None or not self._has_runs:
            # most blocks have no step, which the filter shows faster than a search
            total, worth_reading = self._filter.lines(block)
            if shapes is None or not any(STEP_WORD in line for _, line in worth_reading):
                self._read_lines(worth_reading, number)
                return number + total
        self._has_runs = False
        for run, part in shapes.runs(block):
            if run is not None:
                self._has_runs = True
                # `_read_hidden` may have reset the shapes within this block
                if self._step_shapes is not None and self._course.run(run):
                    number += len(run.steps)
                    continue
            total, worth_reading = self._filter.lines(part)
            self._read_lines(worth_reading, number)
            number += total
        return number

    def _read_lines(self, lines: Iterable[tuple[int, bytes]], number: int) -> None:
        for index, line in lines:
            self._read_line(line, number + index + 1)

    def _read_line(self, line: bytes, number: int, *, is_torn: bool = False) -> None:
        is_cut = len(line) >= _LINE_BYTES
        if is_cut or is_torn:
            # bytes beyond the cut must not count, however the log is cut into chunks
            line = line[:_LINE_BYTES]
            if not self._filter.may_hold(line):
                return
        # CRI splits a line of 16 KiB or more:  2026-01-12T07:08:09.123456789Z stdout P comp
        is_torn |= is_cut or grammar.PART.match(line) is not None
        segments = grammar.plain_segments(line)
        for index, segment in enumerate(segments):
            self._read_text(segment, number, is_torn=is_torn and index == len(segments) - 1)

    def _read_text(
        self, segment: str, number: int, *, is_torn: bool, outer: Origin = _NO_ORIGIN
    ) -> None:
        """Read a text of one line; `outer` is the origin of the line that contains the text."""
        origin, text = grammar.split_origin(segment)
        if not is_torn and self._learner.learns(text):
            self._read_hidden()
        inner_origin, text = self._learner.split(text)
        origin = next((part for part in (inner_origin, origin) if part != _NO_ORIGIN), outer)
        line = LogLine(
            text=text,
            low=text.lower(),
            origin=origin,
            number=number,
            segment=segment,
            is_torn=is_torn,
        )
        inner = grammar.unwrap(text)
        if inner is not None:
            for part in inner.splitlines():
                self._read_text(part, number, is_torn=False, outer=origin)
            return
        if line.has(self._step_words):
            # another program may write into the same line, most often behind a progress bar
            other = grammar.OTHER_LINE.search(text)
            front = text if other is None else text[: other.start()]
            own = replace(line, text=front, low=front.lower())
            if self._takes_steps(own if own.has(self._step_words) else line):
                if other is None:
                    return
                text = text[other.start() :]
                line = replace(line, text=text, low=text.lower())
        self._note_blocks(line)
        if not self._takes_fact(line):
            finding, is_fatal = sight(line.text, line=number, evidence=segment)
            if finding is not None:
                self._course.find(finding, is_fatal=is_fatal)

    def _read_hidden(self) -> None:
        """Read the settings that a prefix hid before it was learnt."""
        # the shapes are those of lines without the prefix; now each line is read in full
        self._step_shapes = None
        for text in self._learner.hidden:
            origin, rest = self._learner.split(text)
            setting = grammar.ENVIRONMENT.match(rest) if rest != text else None
            if setting is not None:
                name, value = setting["name"], setting["value"].rstrip()
                self._course.start.put("env", name, value, origin)
        self._learner.hidden.clear()

    def _takes_steps(self, line: LogLine) -> bool:
        """Add the steps of a line; return False if it has none. A loss that is NaN is a finding."""
        steps = self._steps_of(line)
        for record in steps:
            if record.loss is not None and not math.isfinite(record.loss):
                finding = Finding(
                    cls=FailureClass.NUMERICAL_FAILURE,
                    action=Action.DROP,
                    line=line.number,
                    text=shortened(line.segment.strip(), EVIDENCE_CHARS),
                    detail=f"loss {record.loss}",
                )
                self._course.find(finding)
            self._course.step(record, line.origin)
        return bool(steps)

    def _steps_of(self, line: LogLine) -> Sequence[StepRecord]:
        text, label, course = line.text, line.origin.label, self._course
        is_whole = not line.is_torn or text.endswith("]")  # a bar that is drawn to its end
        if self._pattern is not None:
            if not is_whole or not line.has(self._pattern.words):
                return ()
            goal = self._pattern.last_step(text)
            course.goal = goal if goal is not None else course.goal
            return self._pattern.steps(text, label)
        for form in self._formats if is_whole else ():
            if line.has(form.words) and (steps := form.steps(text, label)):
                return steps
        if _STEP_WORD not in line.low:
            return ()
        steps = grammar.parse_steps(text, label, is_torn=line.is_torn)
        usual_figures = course.start.figures_of(course.start.last)
        if len(steps) == 1 and grammar.figures_in(steps[0]) < usual_figures:  # it may be cut
            steps = grammar.parse_steps(text, label, is_torn=True)
        return steps

    def _note_blocks(self, line: LogLine) -> None:
        """Note a line with a word of a format, because a block may begin with it."""
        start = self._course.start
        for form in self._formats:
            if not line.has(form.words):
                continue
            if type(form) not in self._block_readers:
                self._block_readers[type(form)] = form.reader()
            if len(self._openings) < _MOST_OPENINGS:
                text = shortened(line.segment, EVIDENCE_CHARS).strip()
                self._openings.setdefault(line.number, (start.index, start.count, text))

    def _takes_fact(self, line: LogLine) -> bool:
        """Read a line by the classes, one after the other; return whether one claimed it."""
        if line.is_torn:  # a value that is cut is another value
            setting = grammar.ENVIRONMENT.match(line.text)
            self._course.has_cut_flags |= setting is not None and setting["name"] == "XLA_FLAGS"
            return setting is not None
        return any(
            facts.read(match, line, self._course)
            for facts in FACTS
            if line.has(facts.words) and (match := re.search(facts.pattern, line.text)) is not None
        )

    def _block_findings(self) -> list[tuple[Finding, int]]:
        """Return the finding of each block, and how many steps were printed after it began.

        A block of an earlier start calls for no action, and its number is above the steps of the
        last start.
        """
        start, findings = self._course.start, list[tuple[Finding, int]]()
        for block in itertools.chain.from_iterable(
            block_reader.findings() for block_reader in self._block_readers.values()
        ):
            if block.line not in self._openings:
                continue
            index, steps_before, text = self._openings[block.line]
            is_of_last_start = index == start.index
            finding = Finding(
                cls=block.cls,
                action=block.action or block.cls.action or Action.RETRY,
                line=block.line,
                text=text,
                detail=shortened(block.detail, EVIDENCE_CHARS),
            )
            if is_of_last_start:
                findings.append((finding, start.count - steps_before))
            else:
                findings.append((replace(finding, action=Action.NONE), start.count + 1))
        return findings


def fitting(*texts: bytes) -> str:
    """Return the preset that finds most figures of steps in some texts; "" if none does."""
    figures = {}
    for name, pattern in PRESETS.items():
        reader = LogReader(pattern)
        reader.feed(b"".join(text + b"\n" for text in texts))
        figures[name] = sum(map(grammar.figures_in, reader.report().steps))
    # the first of equal ones, which is more specific
    best = max(figures, key=figures.__getitem__)
    return best if figures[best] else ""


def read_log(chunks: Iterable[bytes], pattern: StepPattern | None = None) -> LogReport:
    """Read a complete log, e.g. an open binary file, and return its report."""
    reader = LogReader(pattern)
    for chunk in chunks:
        reader.feed(chunk)
    reader.close()
    return reader.report()
