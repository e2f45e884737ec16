"""Text of a training job -> steps, configuration, findings. Pure: callers do the reading.

    grammar     one line -> rank, step, environment, configuration; MaxText's metrics file
    signatures  one line -> failure class, by the table `signatures.toml`
    figures     what a protocol scores beside steps: a field of the user's own, bus bandwidth
    triage      report and outcome -> findings, and the root cause of them
    formats     what other distributions read of a log

This module joins the lines: bytes of a growing log in, the report at any moment.

    reader = LogReader()
    for chunk in chunks:
        reader.feed(chunk)
    reader.close()
    reader.report()

The same bytes give the same report however they are cut into chunks. Memory is bounded whatever
the log holds: a line is cut at 64 KiB, findings and settings are counted, steps are of one rank.

Whose steps: rank 0 by its label; without labels the first line of each step id. Which start: the
last. A start begins where settings or Memstats are printed after a step was, where a process that
met trouble prints its configuration again, or where a step id goes back by more than two: less may
be a slower rank. Once two ranks were seen to print a step alike, going back begins no start.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from msgspec.structs import replace

from pytest_xlatune.logs import grammar
from pytest_xlatune.logs._prefix import PrefixLearner
from pytest_xlatune.logs._sieve import LineFilter, StepRun, StepShapes, step_of
from pytest_xlatune.logs._signatures import EVIDENCE_CHARS, is_harmless, sight, table
from pytest_xlatune.logs.formats import Blocks, LinePlace, formats
from pytest_xlatune.logs.grammar import Origin, Settings, StepLayout
from pytest_xlatune.logs.patterns import StepPattern, fitting
from pytest_xlatune.logs.ranks import RankReader
from pytest_xlatune.model.failure import Action, FailureClass, Finding
from pytest_xlatune.model.metric import StepRecord, Steps
from pytest_xlatune.model.text import begun

_LINE_BYTES = 1 << 16
_WINDOW_BYTES = 1 << 15  # few windows then hold a line worth reading
_TAIL_BYTES = 1 << 13
_TAIL_LINES, _TAIL_CHARS = 5, 160
_RANKS_APART = 2  # steps by which a slower rank may print later
STEPS_THAT_REFUTE = 3  # what ran before a fatal line may be printed after it: steps are dispatched
_MOST_STEPS = 100_000
# left out one by one, a log of 100,000 steps took time that grew with its square
_MORE_STEPS = 1 << 13  # so many of them are left out at once
_MOST_DETAILS = 8  # different findings of one class that are kept
_MOST_ORIGINS = 1024
_MOST_UNREAD, _MOST_EARLY = 256, 128
_MOST_DEVICES = 8
_NO_ORIGIN = Origin()
_StepsOf = Callable[[str, str], Sequence[StepRecord]]

_PART_MARKS = (b"stdout P ", b"stderr P ")
_STEP_WORD = "completed "
_ENVIRONMENT_WORDS = (
    "nccl_", "rccl_", "xla_", "jax_", "hsa_", "hip_", "ucx_", "nvte_", "libtpu_",
)  # fmt: skip
_CONFIG_WORD = "config param "
_MEMSTATS_WORD = "memstats: after params"
_COMPILED_WORD = "total memory size: "
# Total memory size: 71.3 GB, Output size: 31.0 GB, Temp size: 40.3 GB, Argument size: 31.0 GB
_COMPILED = re.compile(r"total memory size: (\d{1,9}(?:\.\d{1,9})?) gb", re.IGNORECASE)
_OWN_WORDS = (
    *(_STEP_WORD, *_ENVIRONMENT_WORDS, _CONFIG_WORD, _MEMSTATS_WORD, _COMPILED_WORD),
    *grammar.END_WORDS,
    *(*grammar.LIBRARY_WORDS, grammar.LISTED_WORD, *grammar.DEVICE_WORDS),
    *(*grammar.ASKED_WORDS, *grammar.PGLE_WORDS),
)
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
class LogReport:
    """What a log tells, of its last start and of one rank.

    Attributes:
        steps: steps of the last start, one rank, one record per step id, in the order printed.
        findings: in order of first appearance; those of an earlier start ask for nothing.
        xla_flags: text of XLA_FLAGS as the environment dump shows it; None where it is not shown.
        env: other variables shown (NCCL_*, RCCL_*, XLA_*, JAX_*, HSA_*, ...).
        config: MaxText's `Config param` lines, values as printed.
        nccl: variables that NCCL or RCCL says it reads, by NCCL_DEBUG=INFO; flags of libtpu.
        libraries: NCCL, RCCL, ROCm -> the version that the library tells as it is loaded.
        phase: how far the last start came.
        lines: lines, a torn last one included.
        size_bytes: bytes.
        starts: how often the program started in this log.
        steps_after_cancel: steps printed after a notice that the job is being ended.
        steps_after_trouble: steps printed after the last line that asks for something.
        is_cancelled: whether a block of a format says that the last start was ended on purpose.
        exit_code: of the job, where launcher or scheduler print it at the end.
        tail: the last lines that are neither steps nor known to be harmless.
        notes: what a reader of the steps should know, one sentence each.
        memory_gb: of one device as the last compiled step takes it, 2^30 bytes; None where no line
            tells it.
        asked: the arguments that maxtext-slurm's head says it hands to MaxText.
        goal_step: the id of the last step, where the lines of steps tell it (`iteration 12/ 40`).
        origins: how many processes print steps, as far as their lines tell them apart.
        devices: the beginning of a line that names JAX's devices -> their platform.
        fits: of an ended log without a step, the name of the pattern that reads its last lines.
        pgle_found: operations of a profile for XLA's scheduler that it found in a program, the most
            of all programs; None where it says nothing.
        pgle_unread: such a file that XLA could not read.
    """

    steps: Steps = field(default_factory=Steps)
    findings: tuple[Finding, ...] = ()
    xla_flags: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    config: dict[str, str] = field(default_factory=dict)
    nccl: dict[str, str] = field(default_factory=dict)
    phase: Phase = Phase.BEFORE_MEMSTATS
    lines: int = 0
    size_bytes: int = 0
    starts: int = 1
    steps_after_cancel: int = 0
    steps_after_trouble: int = 0
    is_cancelled: bool = False
    exit_code: int | None = None
    tail: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    libraries: dict[str, str] = field(default_factory=dict)
    memory_gb: float | None = None
    asked: dict[str, str] = field(default_factory=dict)
    goal_step: int | None = None
    origins: int = 1
    devices: dict[str, str] = field(default_factory=dict)
    fits: str = ""
    pgle_found: int | None = None
    pgle_unread: str = ""

    @property
    def last_step(self) -> int | None:
        """The highest step id of the last start, None before its first step."""
        return max(self.steps.step, default=None)


@dataclass(slots=True)
class _Start:
    """What belongs to one start of the program."""

    index: int = 0
    phase: Phase = Phase.BEFORE_MEMSTATS
    home: Origin | None = None
    steps: dict[int, StepRecord] = field(default_factory=dict)  # in the order printed
    last: int = -1  # highest step id; only read where `steps` is not empty
    layout: StepLayout | None = None  # of its line, where it was read by one
    repeated: bool = False
    is_configured_twice: bool = False
    is_hung: bool = False  # the first line of a block was printed that tells of a hang
    others: set[Origin] = field(default_factory=set)
    dropped_steps: int = 0
    count: int = 0  # of steps, those that are not kept included
    after_cancel: int = 0
    after_trouble: int = 0
    exit_code: int | None = None
    memory_gb: float | None = None
    env: Settings = field(default_factory=Settings)
    config: Settings = field(default_factory=Settings)
    nccl: Settings = field(default_factory=Settings)
    libraries: Settings = field(default_factory=Settings)
    devices: dict[str, str] = field(default_factory=dict)
    pgle_found: int | None = None
    pgle_unread: str = ""

    def figures(self, step: int) -> int:
        """Return how many figures the line of a step told; 0 where it is not kept."""
        record = self.steps.get(step)
        return 0 if record is None else grammar.told(record)


class LogReader:
    """Reads one log. Feed it bytes as they come; ask at any time.

    `pattern` is how another trainer than MaxText prints its steps. `ranks` reads the steps of all
    ranks in the same pass: of a log of its own it would search each byte again.
    """

    def __init__(
        self, pattern: StepPattern | None = None, *, ranks: RankReader | None = None
    ) -> None:
        others = formats()
        self._pattern, self._ranks = pattern, ranks
        self._blocks = [Blocks(each) for each in others]
        # the words of a line of a step, and what reads it: what the user says comes first
        self._others: list[tuple[Sequence[str], _StepsOf]] = [
            *([(pattern.words, self._own_steps)] if pattern is not None else []),
            *((each.words, each.steps) for each in others),
        ]
        own = tuple(word for words, _ in self._others for word in words)
        self._step_words = (_STEP_WORD, *own)
        self._filter = LineFilter((*table().words, *_OWN_WORDS, *own))
        self._asked: dict[str, str] = {}
        self._goal: int | None = None
        self._has_own = False  # a line was read by the user's pattern
        self._learner = PrefixLearner()
        self._unread: list[tuple[int, str, str, str]] = []  # settings behind an unknown text
        self._early: list[tuple[str, int]] = []  # lines of steps, kept until the prefix is learnt
        self._step_shapes = StepShapes(self._learner) if pattern is None else None
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
    def prefix(self) -> re.Pattern[str] | None:
        """What was learnt to stand in front of the lines; None where they have a known prefix."""
        return self._learner.prefix

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
        own = tuple(self._findings.values())
        if not any(each.is_any for each in self._blocks):
            return own
        told: dict[tuple[str, str, Action], Finding] = {}
        for each, _ in self._told():
            key = each.cls, each.detail, each.action
            known = told.get(key)
            told[key] = replace(known, count=known.count + 1) if known else each
        # of one end, what its block says comes before its consequences in the same line
        return tuple(sorted((*told.values(), *own), key=lambda each: each.line))

    @property
    def fatal(self) -> Finding | None:
        """The first line after which the program cannot go on, as long as it did not go on.

        Three further steps, a further phase or a new start refute it. So does a block of lines that
        a format reads.
        """
        if self._fatal is not None or not any(each.is_any for each in self._blocks):
            return self._fatal
        asking = (each for each, steps in self._told() if steps < STEPS_THAT_REFUTE)
        return next((each for each in asking if each.action is not Action.NONE), None)

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
        self._bytes += len(chunk)
        self._tail = (self._tail + chunk[-_TAIL_BYTES:])[-_TAIL_BYTES:]
        for at in range(0, len(chunk), _WINDOW_BYTES):
            self._read(chunk[at : at + _WINDOW_BYTES])

    def close(self) -> None:
        """Read a torn last line, of which only complete fields count. Idempotent."""
        if not self._closed and self._held:
            held = grammar.joined_parts(bytes(self._held))
            self._examine(held.rstrip(b"\n"), self._lines + 1, torn=True)
            for each in self._blocks:
                each.feed(held.rstrip(b"\n") + b"\n", self._lines)
            self._lines += held.count(b"\n") + (not held.endswith(b"\n"))
            self._held.clear()
        for each in self._blocks:
            each.close()
        self._closed = True

    def report(self) -> LogReport:
        """Return the report so far; before `close`, without an unfinished last line."""
        start = self._start
        steps = Steps.of([*start.steps.values()][-_MOST_STEPS:])
        env = start.env.plain()
        told = self._told()
        troubled = [steps for each, steps in told if each.action is not Action.NONE]
        cancelled = [
            steps
            for each, steps in told
            if each.cls == FailureClass.CANCELLED and steps <= start.count
        ]
        return LogReport(
            steps=steps,
            findings=self.findings,
            xla_flags=env.pop("XLA_FLAGS", None),
            env=env,
            config=start.config.plain(),
            nccl=start.nccl.plain(),
            phase=start.phase,
            lines=self._lines,
            size_bytes=self._bytes,
            starts=start.index + 1,
            steps_after_cancel=max(start.after_cancel, *cancelled, 0),
            steps_after_trouble=min(start.after_trouble, *troubled, start.after_trouble),
            is_cancelled=bool(cancelled),
            exit_code=start.exit_code,
            tail=self._last_lines(),
            notes=self._notes(steps),
            libraries=start.libraries.plain(),
            memory_gb=start.memory_gb,
            asked=dict(self._asked),
            goal_step=self._goal,
            origins=len(start.others) + 1,
            devices={line: platform for line, platform in start.devices.items() if platform},
            pgle_found=start.pgle_found,
            pgle_unread=start.pgle_unread,
            fits="" if steps or not self._closed else fitting(self._tail.split(b"\n")),
        )

    def _read(self, piece: bytes) -> None:
        end = piece.rfind(b"\n") + 1
        if end:
            block = bytes(self._held) + memoryview(piece)[:end]
            self._held.clear()
            # a line of CRI begins with its time:  2026-01-12T07:08:09.123456789Z stdout P comp
            if block[10:11] == b"T" and any(mark in block for mark in _PART_MARKS):
                block = self._without_parts(block)
            number = self._examine_block(block)
            for each in self._blocks:
                each.feed(block, self._lines)
            self._lines = number
        free = _LINE_BYTES - len(self._held)
        self._held += piece[end : end + free]

    def _examine_block(self, block: bytes) -> int:
        """Read a block of whole lines; return how many lines that makes in all."""
        number, shapes = self._lines, self._step_shapes
        for run, part in [(None, block)] if shapes is None else shapes.runs(block):
            if run is not None:
                if self._ranks is not None:
                    # where no prefix was learnt both would read the same run
                    self._ranks.see(part, None if self._learner.prefix else run)
                if shapes is not None and self._take(run, shapes):
                    number += run.count
                    continue
            total, found = self._filter.lines(part)
            for index, line in found:
                if self._ranks is not None and run is None:
                    self._ranks.see(line)
                self._examine(line, number + index + 1)
            number += total
        return number

    def _take(self, run: StepRun, shapes: StepShapes) -> bool:
        """Take a run of steps that go on from the last one; false where it needs a closer look.

        It changes what the lines would change one by one.
        """
        start, layout = self._start, run.layout
        is_cut = layout is not start.layout and len(layout.fields) < start.figures(start.last)
        # which ones are left out must not depend on how lines come together
        fills = len(start.steps) + run.count > _MOST_STEPS + _MORE_STEPS
        if not start.steps or is_cut or fills:
            return False
        writers = run.writers()
        origins = {said: shapes.origin(said)[0] for said in {*writers}}
        if not all(origin == start.home or origin in start.others for origin in origins.values()):
            return False
        if not start.others.isdisjoint(origins.values()):
            run = run.chosen(origins[said] == start.home for said in writers)
        steps = run.steps
        if steps:
            if start.last >= steps[0] or not all(map(operator.lt, steps, steps[1:])):
                return False
            label = start.home.label if start.home else ""
            start.steps.update(zip(steps, run.records(label, start=start.index), strict=True))
            start.layout, start.phase, start.last = layout, Phase.TRAINING, steps[-1]
            self._count_steps(len(steps))
        return True

    def _examine_step(self, line: bytes, number: int, shapes: StepShapes) -> bool:
        """Read a step line whose shape was read before; false where it has to be read in full."""
        layout = shapes.layout(line)
        if layout is None:
            return False
        (origin, label), start = shapes.origin((line[layout.rank], line[layout.actor])), self._start
        if origin in start.others:
            return True
        if layout is not start.layout and len(layout.fields) < start.figures(start.last):
            return False  # its writer may have been cut
        if not self._is_at_home(origin):
            return True
        record = step_of(line, layout, label, start=start.index)
        self._step(record, origin, number, "", layout=layout)
        return True

    def _examine(self, line: bytes, number: int, *, torn: bool = False) -> None:
        if not torn and self._step_shapes and self._examine_step(line, number, self._step_shapes):
            return
        cut = len(line) >= _LINE_BYTES
        if cut or torn:
            # bytes beyond the cut must not count in one chunking and not in another
            line = line[:_LINE_BYTES]
            if not self._filter.may_hold(line):
                return
        segments = grammar.plain_segments(line)
        for index, segment in enumerate(segments):
            is_last = index == len(segments) - 1
            self._examine_text(segment, number, is_torn=(torn or cut) and is_last)

    def _without_parts(self, block: bytes) -> bytes:
        """Join the parts of CRI's long lines; one whose end is yet to come is held back."""
        last = grammar.PARTS_LAST.search(block)
        if last is not None and len(block) - last.start() < _LINE_BYTES:
            self._held += block[last.start() :]
            block = block[: last.start()]
        return grammar.joined_parts(block)

    def _examine_text(
        self, segment: str, number: int, *, is_torn: bool, outer: Origin | None = None
    ) -> None:
        if self._learner.is_learning and not is_torn and outer is None:
            self._learn(segment)
        origin, text = grammar.split_origin(segment, self._learner.prefix)
        origin = outer if outer is not None and origin == _NO_ORIGIN else origin
        is_own = self._pattern is not None and self._pattern.is_json and not is_torn
        if is_own and self._examine_others_step(text.lower(), text, origin, number, segment):
            return
        inner = grammar.unwrap(text)
        if inner is not None:
            for each in inner.splitlines():
                self._examine_text(each, number, is_torn=False, outer=origin)
            return
        low = text.lower()
        if any(word in low for word in self._step_words):
            text = self._without_other(text, number, origin, is_torn=is_torn)
            low = text.lower()
        is_whole = not is_torn or text.endswith("]")  # a bar that is drawn to its end
        if is_whole and self._examine_others_step(low, text, origin, number, segment):
            return
        if _STEP_WORD in low and not self._has_own:
            whole = grammar.without_torn_field(text) if is_torn else text
            steps = grammar.parse_steps(whole, origin.label)
            if len(steps) == 1 and self._is_cut(steps[0]):
                steps = grammar.parse_steps(grammar.without_torn_field(text), origin.label)
            self._keep_early(segment, number)
            for record in steps:
                self._step(record, origin, number, segment)
            if steps:
                return
        if grammar.may_tell_end(low) and not is_torn:
            self._start.exit_code = self._start.exit_code or grammar.parse_end(text)
        self._examine_setting(segment, number, origin, text, is_torn=is_torn)

    def _without_other(self, text: str, number: int, origin: Origin, *, is_torn: bool) -> str:
        """Return a line of a step without another program's, which is read by itself."""
        text, other = grammar.unglued(text)
        if other:
            self._examine_text(other, number, is_torn=is_torn, outer=origin)
        return text

    def _examine_others_step(
        self, low: str, text: str, origin: Origin, number: int, segment: str
    ) -> bool:
        """Read a line that another trainer prints of a step; false where it is none."""
        for words, steps_of in self._others:
            if any(word in low for word in words):
                steps = steps_of(text, origin.label)
                for record in steps:
                    self._step(record, origin, number, segment)
                if steps:
                    return True
        return False

    def _own_steps(self, text: str, label: str) -> Sequence[StepRecord]:
        """Return the step of a line by the user's pattern; note which one is to be the last."""
        if self._pattern is None:
            return ()
        goal = self._pattern.last_step(text)
        self._goal = goal if goal is not None else self._goal
        steps = self._pattern.steps(text, label)
        if steps and not self._has_own:  # of two formats in one log the one that was asked for
            self._has_own = True
            self._start.steps.clear()
        return steps

    def _learn(self, segment: str) -> None:
        """Learn what stands in front of the lines; read again what it hid."""
        start, learner = self._start, self._learner
        # a step that was read already is read again by its rank: once, and where nothing else is
        is_early = start.index == 0 and start.count <= len(self._early) and not self._findings
        _, text = grammar.split_origin(segment)
        if not learner.see(text, may_be_labelled=is_early and len(self._early) < _MOST_EARLY):
            return
        if self._step_shapes is not None:
            self._step_shapes.forget()
        prefix = learner.prefix
        if self._ranks is not None:
            self._ranks.prefix = prefix
        for index, front, name, value in self._unread:
            origin, rest = grammar.split_origin(front, prefix)
            if not rest and index == start.index:
                start.env.put(name, value, origin)
        self._unread.clear()
        if prefix is not None and "rank" in prefix.groupindex and self._early:
            self._start = _Start(env=start.env, config=start.config, nccl=start.nccl)
            self._start.is_configured_twice = start.is_configured_twice
            for early, number in self._early:
                self._examine_text(early, number, is_torn=False)
        if not learner.is_learning:
            self._early.clear()

    def _keep_early(self, segment: str, number: int) -> None:
        """Keep the line of a step that is read again once its prefix is learnt.

        One without an unknown text in front may be read by its shape, and is not kept then either.
        """
        is_kept = self._learner.is_learning and len(self._early) < _MOST_EARLY
        if is_kept and grammar.head_of(grammar.split_origin(segment)[1]) is not None:
            self._early.append((segment, number))

    def _keep_unread(self, text: str, low: str, *, is_torn: bool) -> None:
        """Keep a setting behind an unknown text until that is known to be a prefix."""
        if (
            is_torn
            or not self._learner.is_learning
            or not any(e in low for e in _ENVIRONMENT_WORDS)
        ):
            return
        found = grammar.find_environment(text)
        if found is not None and len(self._unread) < _MOST_UNREAD:
            self._unread.append((self._start.index, *found))

    def _examine_setting(
        self, segment: str, number: int, origin: Origin, text: str, *, is_torn: bool
    ) -> None:
        """Read a line that is no step's: a setting, a phase, or a failure."""
        low = text.lower()
        self._keep_unread(text, low, is_torn=is_torn)
        self._note_blocks(low, text, number, segment)
        self._examine_library(low, text, origin, is_torn=is_torn)
        self._examine_device(low, text, origin, is_torn=is_torn)
        self._examine_pgle(low, text)
        if not is_torn and any(word in low for word in grammar.ASKED_WORDS):
            self._asked |= grammar.parse_asked(text)
        if _CONFIG_WORD in low and (setting := grammar.parse_config(text)):
            self._begin_if_trained(origin)
            self._begin_if_configured_again(setting[0], origin)
            self._start.config.put(*setting, origin)
        elif any(word in low for word in grammar.READ_WORDS) and (
            setting := grammar.parse_read(text)
        ):
            if not is_torn:  # a value that is cut is another one
                self._start.nccl.put(*setting, origin)
        elif setting := grammar.parse_environment(text):
            self._begin_if_trained(origin)
            if is_torn and setting[0] == "XLA_FLAGS":
                self._cut_flags = True
            else:
                self._start.env.put(*setting, origin)
        elif _COMPILED_WORD in low and (compiled := _COMPILED.search(text)):
            self._start.memory_gb = float(compiled[1])
        elif _MEMSTATS_WORD in low:
            self._begin_if_trained(origin)
            if self._start.phase is Phase.BEFORE_MEMSTATS:
                self._start.phase, self._fatal = Phase.COMPILING, None
        elif seen := sight(text, line=number, evidence=segment):
            if seen.is_fatal and self._fatal is None:
                self._fatal, self._steps_since_fatal = seen.finding, 0
            self._find(seen.finding)

    def _note_blocks(self, low: str, text: str, number: int, segment: str) -> None:
        for each in self._blocks:
            if any(word in low for word in each.format.words):
                start = self._start
                start.is_hung |= text.lstrip().startswith(each.format.heads)
                each.note(number, LinePlace(start.index, start.count, segment))

    def _examine_device(self, low: str, text: str, origin: Origin, *, is_torn: bool) -> None:
        if is_torn or not any(word in low for word in grammar.DEVICE_WORDS):
            return
        devices, found = self._start.devices, grammar.parse_device(text)
        if found is None or origin.rank not in ("", "0"):
            return
        line, platform = found
        if line in devices or len(devices) < _MOST_DEVICES:
            # a line that names now this and now that one tells nothing
            devices[line] = platform if devices.get(line, platform) == platform else ""

    def _examine_pgle(self, low: str, text: str) -> None:
        is_said = any(word in low for word in grammar.PGLE_WORDS)
        if is_said and (said := grammar.parse_pgle(text)) is not None:
            found, unread = said
            self._start.pgle_unread = unread or self._start.pgle_unread
            if found is not None:
                self._start.pgle_found = max(found, self._start.pgle_found or 0)

    def _examine_library(self, low: str, text: str, origin: Origin, *, is_torn: bool) -> None:
        if not is_torn and any(word in low for word in grammar.LIBRARY_WORDS):
            found = grammar.parse_library(text)
            if found is not None:
                self._start.libraries.put(*found, origin)

    def _step(
        self,
        record: StepRecord,
        origin: Origin,
        number: int,
        segment: str,
        *,
        layout: StepLayout | None = None,
    ) -> None:
        if record.loss is not None and not math.isfinite(record.loss):
            cls, loss = FailureClass.NUMERICAL_FAILURE, f"loss {record.loss}"
            text = begun(segment.strip(), EVIDENCE_CHARS)
            finding = Finding(cls=cls, action=Action.DROP, line=number, text=text, detail=loss)
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
        if record.start != start.index:
            record = record._replace(start=start.index)
        start.last = max(start.last, record.step) if start.steps else record.step
        start.layout = layout if start.last == record.step else None
        start.steps[record.step] = record
        self._count_steps(1)

    def _count_steps(self, count: int) -> None:
        """Count further steps, which are kept already, and leave out the first of too many."""
        start = self._start
        start.after_cancel += self._cancelled * count
        start.after_trouble += count
        start.count += count
        self._steps_since_fatal += count
        if self._steps_since_fatal >= STEPS_THAT_REFUTE:
            self._fatal = None
        if len(start.steps) > _MOST_STEPS + _MORE_STEPS:
            for first in [*itertools.islice(start.steps, _MORE_STEPS)]:
                del start.steps[first]
            start.dropped_steps += _MORE_STEPS

    def _is_cut(self, record: StepRecord) -> bool:
        """Whether the line of a step tells less than the one before: a writer may have been cut."""
        return grammar.told(record) < self._start.figures(self._start.last)

    def _repeat(self, record: StepRecord) -> None:
        """Keep the first line of a step, unless that one was cut short and this one tells more."""
        start = self._start
        start.repeated, start.layout = True, None
        if grammar.told(record) > start.figures(record.step):
            start.steps[record.step] = record._replace(start=start.index)

    def _is_at_home(self, origin: Origin) -> bool:
        """Whether steps of this origin count; a better one than before takes its place."""
        start = self._start
        home = start.home
        if origin == home:
            return True
        if origin in start.others:  # none of these is ever better than a later home
            return False
        if home is not None:
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

    def _begin_if_configured_again(self, key: str, origin: Origin) -> None:
        """Begin a new start when a process that met trouble prints its configuration anew.

        Without labels several processes may print it; one that printed a key twice before betrays
        that.
        """
        start, known = self._start, self._start.config.values.get(key)
        if known is None or known[0] != origin.preference or start.is_configured_twice:
            return
        if start.is_hung or any(e.action is not Action.NONE for e in self._findings.values()):
            self._begin()
        else:
            start.is_configured_twice = origin.rank == ""

    def _begin(self, *, settings_of: _Start | None = None) -> _Start:
        self._start = _Start(index=self._start.index + 1)
        if settings_of is not None:  # none were printed in between: they still hold
            self._start.env, self._start.config = settings_of.env, settings_of.config
            self._start.nccl = settings_of.nccl
        self._cancelled = False
        self._fatal = None
        # the OOM of a first start once stood beside the score of the second
        self._findings = {
            key: replace(each, action=Action.NONE) for key, each in self._findings.items()
        }
        return self._start

    def _find(self, finding: Finding) -> None:
        self._cancelled |= finding.cls in _ENDING
        if finding.action is not Action.NONE:
            self._start.after_trouble = 0
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

    def _told(self) -> list[tuple[Finding, int]]:
        """Return what each block says, and how many steps were printed after it began.

        One of an earlier start counts more than any start printed.
        """
        start = self._start
        return [
            (
                replace(said, action=Action.NONE) if place.start < start.index else said,
                start.count - place.steps if place.start == start.index else start.count + 1,
            )
            for each in self._blocks
            for place, said in each.found()
        ]

    def _last_lines(self) -> tuple[str, ...]:
        first = 1 if self._bytes > _TAIL_BYTES else 0
        texts = [
            begun(part.strip(), _TAIL_CHARS)
            for line in self._tail.split(b"\n")[first:]
            for part in grammar.plain_segments(line)
            if _STEP_WORD not in part and not is_harmless(part)
        ]
        return tuple(texts[-_TAIL_LINES:])

    def _notes(self, steps: Steps) -> tuple[str, ...]:
        start = self._start
        dropped = start.dropped_steps + max(len(start.steps) - _MOST_STEPS, 0)
        whose = (start.home.label if start.home else "") or "the one without a label"
        timeless = steps.chosen([each is not None and each <= 0.0 for each in steps.step_s])
        cases = (
            (start.index, f"the log holds {start.index + 1} starts; these steps are of the last"),
            (start.others, f"{len(start.others) + 1} origins print steps; these are of {whose}"),
            (start.repeated, "several ranks print a step alike; the first line of each counts"),
            (dropped, f"{dropped} earlier steps are not kept"),
            (self._unkept, f"{self._unkept} more findings are not kept"),
            (self._cut_flags, "the line of XLA_FLAGS is cut and was not used"),
            (
                timeless,
                f"{len(timeless)} steps took no time or less, {_first(timeless)}: not counted",
            ),
        )
        return tuple(text for is_so, text in cases if is_so)


def _first(steps: Sequence[StepRecord]) -> str:
    return f"e.g. step {steps[0].step} in {steps[0].step_s:g} s" if steps else ""


def read_log(chunks: Iterable[bytes]) -> LogReport:
    """Read a whole log, e.g. an open binary file, and return its report."""
    reader = LogReader()
    for chunk in chunks:
        reader.feed(chunk)
    reader.close()
    return reader.report()
