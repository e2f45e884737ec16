"""Slurm host lists: `node[001-004,007],gpu-a[1-2]` to names and back. Pure; asks no cluster."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from pytest_xlatune.errors import ConfigError

# one bracketed range more than this wide is a slip of the pen (Slurm's own limit is 65536 as well)
MAX_RANGE = 65536

# what stands outside brackets:  node-a.
_PLAIN = re.compile(r"[A-Za-z0-9._-]+")
# what stands inside brackets:  001-004
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
# a name up to its last number, the number, the rest:  gpu2-node | 007 | -ib
_NUMBERED = re.compile(r"(.*?)(\d+)(\D*)")


def expand(text: str) -> tuple[str, ...]:
    """Return the names of a host list in the order written; zero padding is kept.

    >>> expand("node[009-010],gpu-a[1-2]")
    ('node009', 'node010', 'gpu-a1', 'gpu-a2')

    Raises:
        ConfigError: malformed, with the position; or a node is named twice.
    """
    names: list[str] = []
    at = 0
    while True:
        group, at = _group(text, at)
        names += group
        if at == len(text):
            break
        if text[at] != ",":
            raise _malformed(text, at, f"unexpected {text[at]!r}")
        at += 1
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise ConfigError(f"node list {text!r}: {name} is named twice")
    return tuple(names)


def compress(names: Sequence[str]) -> str:
    """Return the shortest host list of our form that `expand` reads back as the same names.

    >>> compress(["node001", "node002", "node004", "login"])
    'node[001-002,004],login'
    """
    parts: list[str] = []
    run: list[str] = []
    frame: tuple[str, str] | None = None
    for name in [*names, ""]:
        match = _NUMBERED.fullmatch(name)
        here = (match[1], match[3]) if match else None
        if run and (here is None or here != frame):
            parts.append(_frame(frame or ("", ""), run))
            run = []
        frame = here
        if match:
            run.append(match[2])
        elif name:
            parts.append(name)
    return ",".join(parts)


def _group(text: str, at: int) -> tuple[list[str], int]:
    """Read one comma-separated group such as `node[1-2]-ib` from position `at`."""
    names = [""]
    start = at
    while at < len(text) and text[at] != ",":
        if text[at] == "[":
            numbers, at = _brackets(text, at + 1)
            names = [name + number for name in names for number in numbers]
        elif plain := _PLAIN.match(text, at):
            names = [name + plain[0] for name in names]
            at = plain.end()
        else:
            raise _malformed(text, at, f"unexpected {text[at]!r}")
    if at == start:
        raise _malformed(text, at, "a name is missing")
    return names, at


def _brackets(text: str, at: int) -> tuple[list[str], int]:
    """Read `001-004,007]` from just after the opening bracket."""
    numbers: list[str] = []
    while True:
        match = _RANGE.match(text, at)
        if match is None:
            raise _malformed(text, at, "expected a number or a range such as 001-004")
        low, high = match[1], match[2] or match[1]
        count = int(high) - int(low) + 1
        if not 1 <= count <= MAX_RANGE:
            raise _malformed(text, at, f"range {match[0]} is backwards or beyond {MAX_RANGE} nodes")
        numbers += [f"{int(low) + i:0{len(low)}}" for i in range(count)]
        at = match.end()
        closing = text[at : at + 1]
        if closing == "]":
            return numbers, at + 1
        if closing != ",":
            raise _malformed(text, at, "expected , or ]")
        at += 1


def _frame(frame: tuple[str, str], numbers: Sequence[str]) -> str:
    """Write the numbers of names that differ in nothing else, consecutive ones as ranges."""
    ranges: list[tuple[str, str]] = []
    for number in numbers:
        if ranges:
            low, high = ranges[-1]
            if number == f"{int(high) + 1:0{len(low)}}":
                ranges[-1] = (low, number)
                continue
        ranges.append((number, number))
    inside = ",".join(low if low == high else f"{low}-{high}" for low, high in ranges)
    bare = len(numbers) == 1
    return f"{frame[0]}{inside}{frame[1]}" if bare else f"{frame[0]}[{inside}]{frame[1]}"


def _malformed(text: str, at: int, why: str) -> ConfigError:
    return ConfigError(
        f"node list {text!r}: {why} at character {at + 1}; expected a list such as "
        "node[001-004,007],gpu-a[1-2]"
    )
