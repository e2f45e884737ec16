"""Host lists as Slurm writes them: `node[001-003,007],login`."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.text import counted

# A wider range is taken for a typing error; Slurm's own limit is 65536 too. Without a limit, a list
# of 20 bytes could take 320 MB.
MAX_RANGE = 65536
_MAX_NAME = 255  # characters of a host's name outside brackets

# one group of a list:  node-a  gpu[001-004,007]-ib  rack[1-2]n[01-16]
_GROUP = re.compile(r"(?:[A-Za-z0-9._-]|\[[0-9,-]+\])+")
# the part inside brackets:  001-004
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
# a leaf switch or block in topology.conf or `scontrol show topology`:
# SwitchName=leaf01 Level=0 LinkSpeed=1 Nodes=node[001-016]
_SWITCH = re.compile(r"(?i)^\s*(?:Switch|Block)Name=(?P<name>\S+)\s.*?\bNodes=(?P<nodes>\S+)")
# only a switch above the leaves has this:  Switches=leaf[01-04]
_ABOVE = re.compile(r"(?i)\bSwitches=\S")
# prefix, last number and rest of a name:  gpu2-node | 007 | -ib     | | login
_NUMBERED = re.compile(r"^(.*?)(\d*)(\D*)$")


def expand(text: str) -> tuple[str, ...]:
    """Return the names in a host list in the order given, with zero padding.

    >>> expand("node[009-010],gpu-a[1-2]")
    ('node009', 'node010', 'gpu-a1', 'gpu-a2')

    Raises:
        ConfigError: it is malformed, names a node twice, or a name begins with a dash.
    """
    names: list[str] = []
    for group in _groups(text):
        if not _GROUP.fullmatch(group):
            raise _malformed(text, f"{group!r} is no name")
        pieces = re.split(r"\[(.*?)\]", group)  # every second piece is the inside of brackets
        if sum(map(len, pieces[::2])) > _MAX_NAME:
            raise _malformed(text, f"a name of more than {_MAX_NAME} characters")
        choices: list[list[str]] = []
        for number, piece in enumerate(pieces):
            choices.append(_numbers(text, piece) if number % 2 else [piece])
            if len(names) + math.prod(map(len, choices)) > MAX_RANGE:
                raise _malformed(text, f"more than {MAX_RANGE} nodes")
        names += map("".join, itertools.product(*choices))
    name, count = Counter(names).most_common(1)[0]
    if count > 1:
        raise ConfigError(f"node list {text!r}: {name} is named twice")
    if dashed := [name for name in names if name.startswith("-")]:
        raise ConfigError(f"node list {text!r}: {dashed[0]} begins with a dash, as an option does")
    return tuple(names)


def compress(names: Sequence[str]) -> str:
    """Return the shortest host list from which `expand` returns the same names.

    >>> compress(["node001", "node002", "node004", "login"])
    'node[001-002,004],login'
    """
    split = [_NUMBERED.findall(name)[0] for name in names]
    groups = itertools.groupby(split, key=lambda piece: (piece[0], piece[2], bool(piece[1])))
    return ",".join(
        f"{before}{_ranges([number for _, number, _ in group])}{after}"
        for (before, after, _), group in groups
    )


def switches(text: str) -> dict[str, str]:
    """Return leaf switch or block -> its nodes as a host list; {} if the text names none.

    The text is Slurm's `topology.conf` or the output of `scontrol show topology`.
    """
    lines = (line.partition("#")[0] for line in text.splitlines())
    matches = (_SWITCH.match(line) for line in lines if not _ABOVE.search(line))
    return {match["name"]: match["nodes"] for match in matches if match}


def parts(names: Sequence[str], count: int) -> tuple[tuple[str, ...], ...]:
    """Return the names in `count` equal parts, in order.

    >>> parts(("a", "b", "c", "d"), 2)
    (('a', 'b'), ('c', 'd'))

    Raises:
        ConfigError: the parts would not be equal; the message names possible numbers.
    """
    size, surplus = divmod(len(names), count)
    if size and not surplus:
        return tuple(tuple(names[at : at + size]) for at in range(0, len(names), size))
    fitting = [str(n) for n in range(2, len(names) + 1) if not len(names) % n]
    leave_out = f"leave out {counted(surplus, 'node')}, or " if size else ""
    raise ConfigError(
        f"{counted(len(names), 'node')} cannot be split into {count} equal slots; "
        f"{leave_out}ask for {' or '.join(fitting) or 'no'} slots"
    )


def _groups(text: str) -> list[str]:
    """Return the parts of a host list between the commas outside of brackets."""
    groups = [""]
    for piece in re.findall(r"\[[^\]]*\]?|[^,\[]+|,", text):
        if piece == ",":
            groups.append("")
        else:
            groups[-1] += piece
    return groups


def _numbers(text: str, inside: str) -> list[str]:
    """Return the numbers of `001-004,007`, the inside of brackets in a host list."""
    numbers: list[str] = []
    for part in inside.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise _malformed(text, f"{part!r} is no number or range such as 001-004")
        low, high = match[1], match[2] or match[1]
        if not 0 <= int(high) - int(low) < MAX_RANGE - len(numbers):
            raise _malformed(text, f"range {part} is backwards, or of more than {MAX_RANGE} nodes")
        numbers += [f"{number:0{len(low)}}" for number in range(int(low), int(high) + 1)]
    return numbers


def _ranges(numbers: Sequence[str]) -> str:
    """Return the numbers as in a host list, with consecutive ones as ranges."""
    if len(numbers) == 1:
        return numbers[0]
    ranges: list[list[str]] = []
    for number in numbers:
        if ranges and number == f"{int(ranges[-1][-1]) + 1:0{len(ranges[-1][0])}}":
            ranges[-1].append(number)
        else:
            ranges.append([number])
    inside = (span[0] if len(span) == 1 else f"{span[0]}-{span[-1]}" for span in ranges)
    return f"[{','.join(inside)}]"


def _malformed(text: str, why: str) -> ConfigError:
    return ConfigError(
        f"node list {text!r:.200}: {why}; expected a list such as node[001-004,007],gpu-a[1-2]"
    )


def waves_in(nodelists: Iterable[Sequence[str]]) -> int:
    """Return the most trials that follow one another if trials on disjoint nodes run together.

    The node lists are in the order of the trials; an empty list means this machine.
    """
    waves: dict[str, int] = {}  # node -> number of waves up to its last trial
    for names in nodelists:
        nodes = tuple(names) or ("",)
        wave = 1 + max(waves.get(node, 0) for node in nodes)
        waves.update(dict.fromkeys(nodes, wave))
    return max(waves.values(), default=0)
