"""Why a gigabyte of log takes seconds: which lines are worth reading, and step lines seen before.

A log is a few shapes of line, repeated a million times with other numbers. Both parts remember
shapes and judge each once; what they remember is a cache of a pure function, and bounded.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pytest_xlatune.logs import grammar
from pytest_xlatune.logs.grammar import Origin, StepLayout
from pytest_xlatune.model.metric import StepRecord, Steps

_LOWER = bytes(range(256)).lower()
_KEPT = frozenset(b"fghijklmnopqrstuvwxyz_FGHIJKLMNOPQRSTUVWXYZ")
_DELETED = bytes(byte for byte in range(256) if byte not in _KEPT)
_DELETED_IN_BLOCKS = bytes(byte for byte in _DELETED if byte != ord("\n"))
_CACHED_SHAPES = 1 << 14
_FEW_LETTERS = 1 << 14  # of a log, until a pattern of all words is worth its compilation
_LETTERS_A_SEARCH = 1 << 8  # so many letters cost what the search of none for each word does
_CACHED_LETTERS = 1 << 9  # of one shape: 8 MiB at most in all

# what a logger calls fatal, whatever it says:  F0112 07:08:09.2 77 a.cc:14]     09.2: F external/x
#   [F429 14:03:49.3 a.cpp:1554]
_LAST_WORD = re.compile(rb"F[0-9]{3,4} [0-9][0-9]:|[0-9]: F ")

_DIGITS = bytes(range(256)).translate(bytes.maketrans(b"123456789", b"000000000"))
_MOST_LAYOUTS, _MOST_LAYOUT = 1 << 12, 1 << 10  # 4 MiB at most
_MOST_ORIGINS = 1 << 12
_STEP_WORD = b"completed "
_NUMBERS = re.compile(r"[0-9]+")
_MOST_FRONTS, _MOST_HEADS, _MOST_LINES = 8, 64, 4096
_LEAST_LINES, _RANK_DIGITS = 3, 6
_MOST_DIGITS = 15  # of an integer that is exact as a float
_FEW_DIGITS = 9  # of an integer below 2^32
_DIGIT_VALUES = bytes(max(byte - ord("0"), 0) % 10 for byte in range(256))
_LEAST_RUN = 4  # lines: fewer are read faster one by one


class Fronts:
    """Learns what stands in front of each line and is in no table: a launcher's own prefix.

    It goes by lines whose beginning is known: a configuration's, a step's. A text that is in front
    of three of them, but for its digits, is a prefix. A number in it is the rank where processes
    print the same line with each of 0, 1, ... N-1, three lines of it, before the first step.
    """

    def __init__(self, *, is_learning: bool = True) -> None:
        self.prefix: re.Pattern[str] | None = None
        self.is_learning = is_learning
        self._lines = self._steps = 0
        self._shape = ""
        self._said: dict[str, dict[str, list[tuple[str, ...]]]] = {}  # shape, line -> its numbers

    def see(self, text: str, *, may_be_labelled: bool) -> bool:
        """Take a line without its known prefixes; return whether more is known now.

        `may_be_labelled`: whether the steps so far can still be told apart by their rank.
        """
        if (head := grammar.head_of(text)) is None:
            return False
        front, words, is_step = head
        self._lines, self._steps = self._lines + 1, self._steps + is_step
        shape = _NUMBERS.sub("0", front)
        if len(self._said) < _MOST_FRONTS or shape in self._said:
            said = self._said.setdefault(shape, {})
            if len(said) < _MOST_HEADS or words in said:
                said.setdefault(words, []).append((*_NUMBERS.findall(front),))
        was, seen = self.prefix, self._said.get(shape, {})
        is_enough = sum(map(len, seen.values())) >= _LEAST_LINES and self._shape in ("", shape)
        if is_enough and (is_step or self.prefix is None or self._lines % _MOST_HEADS == 0):
            slot = _rank_in(seen) if may_be_labelled else None
            if self.prefix is None or slot is not None:
                self.prefix, self._shape = _front(shape, slot), shape
                self.is_learning = slot is None
        if self._lines >= _MOST_LINES or self._steps >= _MOST_HEADS or not may_be_labelled:
            self.is_learning &= self.prefix is None and self._lines < _MOST_LINES
        if not self.is_learning:
            self._said.clear()
        return self.prefix is not was or not self.is_learning


def _rank_in(seen: Mapping[str, Sequence[tuple[str, ...]]]) -> int | None:
    """Return which number is the rank: it alone tells apart who prints the same line."""
    alike = [rows for rows in seen.values() if len(rows) > 1]
    if len(alike) < _LEAST_LINES:
        return None
    found: list[tuple[int, list[list[str]]]] = []
    for slot in range(len(alike[0][0])):
        values = [[row[slot] for row in rows] for rows in alike]
        said = {value for each in values for value in each}
        is_rank = len(said) > 1 and all(len(value) <= _RANK_DIGITS for value in said)
        is_told = all(len({*each}) == len(each) for each in values)
        if is_rank and is_told and {*map(int, said)} == {*range(len(said))}:
            found.append((slot, values))
    is_one = bool(found) and all(values == found[0][1] for _, values in found)
    return found[-1][0] if is_one else None


def _front(shape: str, slot: int | None) -> re.Pattern[str]:
    """Return the pattern of a prefix; the number at a slot of it is the rank."""
    parts = [re.escape(each) for each in shape.split("0")]
    numbers = ["(?P<rank>[0-9]{1,9})" if at == slot else "[0-9]+" for at in range(len(parts) - 1)]
    return re.compile("".join(map("".join, itertools.zip_longest(parts, numbers, fillvalue=""))))


def _alike(shapes: bytes, shape: bytes, begin: int) -> int:
    """Return how many lines of one shape stand there, one after the other.

    Compares whole runs of them, of a length that doubles and then halves.
    """
    size, count, step, grows = len(shape), 1, 1, True
    most = (len(shapes) - begin) // size
    while count < most:
        more = min(step, most - count)
        if shapes.startswith(shape * more, begin + count * size):
            count += more
            step *= 1 + grows
        elif more == 1:
            break
        else:
            step, grows = more // 2, False
    return count


class StepLines:
    """Reads step lines whose shape was read before: the same text with other digits in it.

    No rule of the grammar tells one digit from another, so that the shape says where the rank, the
    step and its figures stand, whatever is in front of them.
    """

    def __init__(self, fronts: Fronts) -> None:
        self._fronts = fronts
        self._layouts: dict[bytes, StepLayout | None] = {}
        self._origins: dict[Writer, Origin] = {}
        self._labels: dict[Origin, str] = {}

    def forget(self) -> None:
        """Read each shape anew: what stands in front of the lines was learnt."""
        self._layouts.clear()

    def layout(self, line: bytes) -> StepLayout | None:
        """Return where the parts of a step line stand; None where it has to be read in full."""
        return self._layout(line.translate(_DIGITS), line)

    def _layout(self, shape: bytes, line: bytes) -> StepLayout | None:
        if len(shape) > _MOST_LAYOUT:
            return None
        try:
            return self._layouts[shape]
        except KeyError:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            found = self._layouts[shape] = grammar.step_layout(
                line, self._fronts.prefix, is_learning=self._fronts.is_learning
            )
            return found

    def runs(self, block: bytes) -> Iterator[tuple[StepRun | None, bytes]]:
        """Cut a block of whole lines into runs of step lines of one layout, and the rest."""
        at = done = 0
        shapes = block.translate(_DIGITS) if _STEP_WORD in block else b""
        while (found := shapes.find(_STEP_WORD, at)) >= 0:
            begin = max(shapes.rfind(b"\n", at, found) + 1, at)
            shape = shapes[begin : shapes.index(b"\n", found)]
            count = _alike(shapes, shape + b"\n", begin)
            at = begin + count * (len(shape) + 1)
            if count < _LEAST_RUN:
                continue
            layout = self._layout(shape, block[begin : begin + len(shape)])
            if layout is not None and (parts := _parts(layout, shape)) is not None:
                if begin > done:
                    yield None, block[done:begin]
                part = block[begin:at]
                yield StepRun(layout, parts, part), part
                done = at
        if done < len(block):
            yield None, block[done:]

    def origin(self, line: bytes, layout: StepLayout) -> Origin:
        """Return who printed the line; the same one for the same text."""
        rank = line[layout.rank]
        return self.origin_of((int(rank) if rank else None, line[layout.actor]))

    def origin_of(self, said: Writer) -> Origin:
        """Return the origin of a rank and the text of an actor; the same one for the same."""
        try:
            return self._origins[said]
        except KeyError:
            if len(self._origins) >= _MOST_ORIGINS:
                self._origins.clear()
                self._labels.clear()
            rank, actor = said if isinstance(said, tuple) else (said, b"")
            origin = Origin("" if rank is None else str(rank), actor.decode())
            self._labels[origin] = origin.label
            self._origins[said] = origin
            return origin

    def label(self, origin: Origin) -> str:
        """Return how a step record names an origin."""
        return self._labels[origin]


def record(line: bytes, layout: StepLayout, label: str, *, start: int) -> StepRecord:
    """Return the step that a line of a known layout reports."""
    values = {name: float(line[where]) for name, where in layout.fields}
    step = int(line[layout.step])
    return StepRecord(step=step, label=label, start=start, kind=layout.kind, **values)


class _Parts(NamedTuple):
    """Where the parts of lines of one shape stand.

    Attributes:
        size: of a line, its end included.
        digits: of the rank, the step and each figure, those that the lines have, without dots.
        per: by what the integer of each figure is divided. Both are exact below 2^53, and so the
            quotient is the float nearest to the text, as `float` gives it in more time.
    """

    size: int
    digits: dict[str, tuple[int, ...]]
    per: dict[str, float]


# the rank that a line names, and with it the text of the actor where its shape has one
Writer = int | tuple[int | None, bytes] | None


class StepRun:
    """Step lines one after the other that differ in digits alone; read as columns.

    Who printed which step is read at once, the figures of a step when they are asked for: of a long
    log most are never.
    """

    def __init__(self, layout: StepLayout, parts: _Parts, lines: bytes) -> None:
        self.layout = layout
        self._parts, self._lines = parts, lines
        self.steps = self._integers("step")
        self.count = len(self.steps)
        # the rank that each line names; none where the lines name none
        self.ranks = self._integers("rank") if "rank" in parts.digits else ()
        self.label, self.start = "", 0  # of the records, as who keeps them says
        self._told: Steps | None = None

    def writers(self) -> Sequence[Writer]:
        """Return who printed each line."""
        ranks = self.ranks or (None,) * self.count
        where, lines = self.layout.actor, self._lines
        if where.start == where.stop:
            return ranks
        begins = range(0, len(lines), self._parts.size)
        actors = (lines[at + where.start : at + where.stop] for at in begins)
        return [*zip(ranks, actors, strict=True)]

    def chosen(self, which: Iterable[bool]) -> StepRun:
        """Return the run of the lines that are chosen."""
        lines, size = self._lines, self._parts.size
        begins = itertools.compress(range(0, len(lines), size), which)
        kept = b"".join([lines[begin : begin + size] for begin in begins])
        return self if len(kept) == len(lines) else StepRun(self.layout, self._parts, kept)

    def figures(self, name: str) -> tuple[float | None, ...]:
        """Return a figure of each line, None where they tell none."""
        per = self._parts.per.get(name)
        if per is None:
            return (None,) * self.count
        return tuple(map(operator.truediv, self._integers(name), itertools.repeat(per)))

    def told(self) -> Steps:
        """Return the steps, as `record` tells each line."""
        if self._told is None:
            figures: dict[str, Any] = {name: self.figures(name) for name in _FIGURES}
            self._told = Steps(
                step=self.steps,
                label=(self.label,) * self.count,
                start=(self.start,) * self.count,
                kind=(self.layout.kind,) * self.count,
                **figures,
            )
            self._lines = b""
        return self._told

    def _integers(self, name: str) -> tuple[int, ...]:
        """Return a number of each line.

        Python's long integers do it for all lines at once: a lane of 32 or 64 bits holds the number
        of one line, and a digit is added to all by one product and one sum.
        """
        lines, size, digits = self._lines, *self._parts[:2]
        count, code = len(lines) // size, "I" if len(digits[name]) <= _FEW_DIGITS else "Q"
        width = struct.calcsize(f"<{code}")
        total = 0
        for at in digits[name]:
            lanes = bytearray(width * count)
            lanes[::width] = lines[at::size].translate(_DIGIT_VALUES)
            total = 10 * total + int.from_bytes(lanes, "little")
        return struct.unpack(f"<{count}{code}", total.to_bytes(width * count, "little"))


class KeptSteps:
    """Step id -> its record, in the order printed; those of a run are made when they are read."""

    def __init__(self) -> None:
        self._found: dict[int, StepRecord | StepRun] = {}

    def __len__(self) -> int:
        return len(self._found)

    def __contains__(self, step: int) -> bool:
        return step in self._found

    def __setitem__(self, step: int, record: StepRecord) -> None:
        self._found[step] = record

    def get(self, step: int) -> StepRecord | None:
        """Return the record of a step; None where it is not kept."""
        found = self._found.get(step)
        return found.told()[found.steps.index(step)] if isinstance(found, StepRun) else found

    def told(self, step: int) -> int:
        """Return how many figures the line of a step told; 0 where it is not kept."""
        found = self._found.get(step)
        if isinstance(found, StepRun):
            return len(found.layout.fields)
        return 0 if found is None else grammar.told(found)

    def add(self, run: StepRun, label: str, *, start: int) -> None:
        """Keep a run of steps, none of which is kept yet."""
        run.label, run.start = label, start
        self._found.update(dict.fromkeys(run.steps, run))

    def drop(self, count: int) -> None:
        """Leave out so many of the first."""
        for first in [*itertools.islice(self._found, count)]:
            del self._found[first]

    def clear(self) -> None:
        """Leave out all."""
        self._found.clear()

    def last(self, most: int) -> Steps:
        """Return the last steps, so many at most."""
        ids, found = [*self._found][-most:], [*self._found.values()][-most:]
        parts, at = list[Steps](), 0
        for _, group in itertools.groupby(found, _run_of):
            same = [*group]
            run, at = same[0], at + len(same)
            if not isinstance(run, StepRun):
                part = Steps.of(each for each in same if isinstance(each, StepRecord))
            elif len(same) == run.count:
                part = run.told()
            else:
                kept = {*ids[at - len(same) : at]}
                part = run.told().chosen(map(kept.__contains__, run.steps))
            parts.append(part)
        return Steps.joined(parts)


def _run_of(kept: StepRecord | StepRun) -> StepRun | None:
    return kept if isinstance(kept, StepRun) else None


_FIGURES = ("step_s", "tgs", "tflops", "mfu", "loss")  # of a step that a line may tell


@functools.lru_cache(maxsize=64)
def _parts(layout: StepLayout, shape: bytes) -> _Parts | None:
    """Return how lines of a shape are cut; None where a number has a sign or many digits."""
    said = {"rank": layout.rank, "step": layout.step, **dict(layout.fields)}
    digits, per = dict[str, tuple[int, ...]](), dict[str, float]()
    for name, where in said.items():
        whole, _, decimals = shape[where].partition(b".")
        if len(whole + decimals) > _MOST_DIGITS or (name in _FIGURES and not whole.isdigit()):
            return None
        places = range(where.start, where.stop)
        digits[name] = tuple(at for at in places if shape[at : at + 1] != b".")
        if name in _FIGURES:
            per[name] = float(10 ** len(decimals))
    if not digits["rank"]:
        del digits["rank"]
    return _Parts(size=len(shape) + 1, digits=digits, per=per)


class Sieve:
    """Finds the lines of a block that may hold one of some words, case ignored.

    It is why a gigabyte takes seconds. A log is a few line shapes, repeated a million times with
    other numbers. The *letters* of a line are its f to z and _, in lower case, without
    everything else: digits, addresses (a-f!), counters and times vanish, and one
    `bytes.translate` does it for a whole block. Letters that hold the letters of no known word are
    dull. The sieve remembers them and judges each shape once; that memory is a cache of a pure
    function. It may let other lines through. A line of a shape that is new is also asked for what a
    logger calls fatal: an F in front is a letter of the shape, so no other severity hides it.
    """

    def __init__(self, words: Iterable[str]) -> None:
        self._words = _letters(frozenset(words))
        self._few = _FEW_LETTERS  # that are searched for each word
        self._dull: set[bytes] = set()

    def may_hold(self, line: bytes) -> bool:
        """Whether a line may hold one of the words; never false when it does."""
        is_known = bool(self._live({line.translate(_LOWER, _DELETED)}))
        return is_known or _LAST_WORD.search(line) is not None

    def lines(self, block: bytes) -> tuple[int, list[tuple[int, bytes]]]:
        """Return the number of lines in a block of complete lines, and those worth reading.

        Each with its index in the block, from 0.
        """
        shapes = block.translate(_LOWER, _DELETED_IN_BLOCKS).split(b"\n")
        if self._dull.issuperset(shapes):
            return len(shapes) - 1, []
        fresh = set(shapes) - self._dull
        live = self._live(fresh)
        texts = block.split(b"\n")
        if len(live) < len(fresh):
            live |= {
                shape
                for shape, text in zip(shapes, texts, strict=True)
                if shape in fresh and _LAST_WORD.search(text)
            }
        if len(self._dull) > _CACHED_SHAPES:
            self._dull.clear()
        self._dull.update(shape for shape in fresh - live if len(shape) <= _CACHED_LETTERS)
        if not live:
            return len(shapes) - 1, []
        found = [(at, texts[at]) for at, shape in enumerate(shapes) if shape in live]
        return len(shapes) - 1, found

    def _live(self, shapes: set[bytes]) -> set[bytes]:
        """Return the shapes that hold a word, in a short log without a pattern of all words."""
        if not shapes:
            return set()
        text = b"\n".join(shapes)
        self._few -= len(text) + _LETTERS_A_SEARCH
        if self._few >= 0:
            said = [word for word in self._words if word in text]
            return {shape for shape in shapes if any(word in shape for word in said)}
        known = _pattern(self._words)
        return {shape for shape in shapes if known.search(shape)}


@functools.lru_cache(maxsize=16)
def _letters(words: frozenset[str]) -> frozenset[bytes]:
    return frozenset(word.encode().translate(_LOWER, _DELETED) for word in words)


@functools.lru_cache(maxsize=16)
def _pattern(letters: frozenset[bytes]) -> re.Pattern[bytes]:
    """Return what finds one of the words in letters; a thousand logs are read for the same ones."""
    # a word that another one is part of is never needed
    needed = {each for each in letters if letters.isdisjoint(_parts_of(each))}
    return re.compile(_any_of(needed))


def _parts_of(word: bytes) -> Iterator[bytes]:
    """Yield what a word holds that is shorter than it."""
    for size in range(len(word)):
        for begin in range(len(word) - size + 1):
            yield word[begin : begin + size]


def _any_of(words: set[bytes]) -> bytes:
    """Write a pattern that branches letter by letter: `re` tries alternatives one by one."""
    if b"" in words:
        return b""
    heads = sorted({word[:1] for word in words})
    branches = (head + _any_of({word[1:] for word in words if word[:1] == head}) for head in heads)
    return b"(?:" + b"|".join(branches) + b")"
