"""The protobuf wire format: message by message, and a million messages at once; XLA's options.

Small messages (planes, names) are walked in Python by `fields`. The events of a trace line are
decoded by numpy in lockstep: every event keeps a cursor, one turn reads the next field of all of
them. This module knows nothing of traces. It never trusts a length: whatever does not fit raises
`WireError`, a ValueError whose message says what and at which byte; the caller adds the file.

On top of it: XLA's own record of its options, a serialized `CompileOptions`, as name -> text. The
library carries the description of its messages (`xla/xla.proto`), so that names, types and
enums are those of the very build that is asked; no table of ours can be out of date. An option that
is absent is at zero: the message is a proto3. There, what does not fit is a `ParseError`.

Formats: https://protobuf.dev/programming-guides/encoding/, google/protobuf/descriptor.proto and
xla/xla.proto, xla/pjrt/proto/compile_options.proto of https://github.com/openxla/xla.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pytest_xlatune.model.errors import ParseError

Bytes = bytes | memoryview
Ints = NDArray[np.int64]
Part = tuple[int, int, int, int]  # of a message: field number, wire type, begin, end

VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
FIXED32: Final = 5
PADDING: Final = 48  # bytes behind a stretch, so that a word at any cursor lies inside

_CONTINUE = np.uint64(0x8080808080808080)
_PAYLOAD = np.uint64(0x7F7F7F7F7F7F7F7F)
_ONES = np.uint64(0x0101010101010101)
# 7-bit groups of a varint move together in three steps: 8 groups -> 4 of 14 -> 2 of 28 -> 56 bits
_FOLDS = tuple(
    (np.uint64(high), np.uint64(low), np.uint64(shift))
    for high, low, shift in (
        (0x7F007F007F007F00, 0x007F007F007F007F, 1),
        (0x3FFF00003FFF0000, 0x00003FFF00003FFF, 2),
        (0x0FFFFFFF00000000, 0x000000000FFFFFFF, 4),
    )
)
_ONE, _TOP = np.uint64(1), np.uint64(56)


class WireError(ValueError):
    """The bytes are no protobuf message; the text says what was found and at which byte."""

    def __init__(self, message: str, at: int | None = None) -> None:
        super().__init__(message if at is None else f"{message} at byte {at}")
        self._message, self._at = message, at

    def behind(self, begin: int) -> WireError:
        """Return the same error for positions that count from `begin` of the file."""
        return WireError(self._message, None if self._at is None else self._at + begin)


def varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return the varint at `at` and the position behind it.

    Raises:
        WireError: it runs past `end` or past ten bytes.
    """
    value = shift = 0
    if at < end and data[at] < 0x80:  # noqa: PLR2004  nearly always
        return data[at], at + 1
    for position in range(at, min(end, at + 10)):
        byte = data[position]
        value |= (byte & 0x7F) << shift
        if not byte & 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position + 1
        shift += 7
    raise WireError("a number that does not end", at)


def signed(value: int) -> int:
    """Return the int64 that an unsigned varint stands for."""
    return value - (1 << 64) if value >> 63 else value


def fields(data: Bytes, start: int, end: int) -> Iterator[Part]:
    """Walk a message, value by value.

    For a VARINT, `begin` is its value and `end` is where it stops.

    Raises:
        WireError: an unknown wire type, a length beyond `end`, a number that does not end.
    """
    at = start
    while at < end:
        begin = at
        tag, at = varint(data, at, end)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise WireError("field number 0", begin)
        if kind == VARINT:
            value, at = varint(data, at, end)
            yield number, kind, value, at
            continue
        if kind == LENGTH:
            size, at = varint(data, at, end)
        elif kind in {FIXED64, FIXED32}:
            size = 8 if kind == FIXED64 else 4
        else:
            raise WireError(f"wire type {kind}", begin)
        if size > end - at:
            raise WireError(f"a length of {size} where {end - at} bytes are left,", begin)
        yield number, kind, at, at + size
        at += size


def text(data: Bytes, start: int, end: int) -> str:
    """Return the string between two positions; bytes that are no UTF-8 show as U+FFFD."""
    return bytes(data[start:end]).decode("utf-8", "replace")


class Octets:
    """Some bytes that are read at many positions at once.

    No position lies more than 20 bytes behind the end.

    Attributes:
        data: the bytes that they are a part of.
        start: where positions count from, which is a little before the begin that was asked for.
    """

    __slots__ = ("_ahead", "_words", "data", "start")

    def __init__(self, data: Bytes, start: int, end: int) -> None:
        self.data = data
        self.start = start & ~7
        stop = end + PADDING
        part: Bytes = memoryview(data)[self.start : stop]
        if stop > len(data):
            part = b"".join((part, bytes(stop - len(data))))
        octets = np.frombuffer(part, np.uint8)
        self._ahead = tuple(octets[ahead:] for ahead in range(4))
        self._words = np.ndarray((len(part) - 7,), "<u8", part, strides=(1,))

    def byte(self, at: Ints, ahead: int = 0) -> NDArray[np.uint8]:
        """Return the byte `ahead` (3 at most) of each position."""
        return self._ahead[ahead].take(at)

    def varints(self, at: Ints) -> tuple[Ints, Ints]:
        """Decode a varint at each position: values and sizes in bytes.

        A varint of more than 8 bytes (more than 56 bits) has size 0: the caller takes it alone.
        """
        first = self.byte(at)
        long = first >> 7
        if not long.any():  # one byte each: lengths and most ids
            return first.astype(np.int64), np.ones(len(at), np.int64)
        second = self.byte(at, 1)
        if not (long & second >> 7).any():  # two at most: names, references
            value = (second * long).astype(np.int64)
            value <<= 7
            value |= first & 0x7F
            return value, long + np.int64(1)
        return _varints(self._words[at])  # `take` would copy all words: they overlap


def _varints(words: NDArray[np.uint64]) -> tuple[Ints, Ints]:
    """Decode the varint with which each word begins; the words are overwritten."""
    stop = ~words
    stop &= _CONTINUE
    keep = stop - _ONE
    keep ^= stop  # all bits up to and with the first stop bit
    words &= keep
    words &= _PAYLOAD
    for high, low, shift in _FOLDS:
        words = ((words & high) >> shift) | (words & low)
    keep &= _ONES
    keep *= _ONES
    keep >>= _TOP
    keep[stop == 0] = 0
    return words.view(np.int64), keep.view(np.int64)


OPTIONS: Final = "DebugOptions"
_BUILD_OPTIONS, _DEBUG_OPTIONS = 3, 3  # CompileOptionsProto -> ExecutableBuildOptionsProto -> it
# numbers of FileDescriptorProto, DescriptorProto, EnumDescriptorProto, EnumValueDescriptorProto
_NAME = 1
_PACKAGE, _FILE_MESSAGES, _FILE_ENUMS, _LAST_OF_FILE = 2, 4, 5, 14
_FIELDS, _NESTED, _OWN_ENUMS, _MESSAGE_OPTIONS = 2, 3, 4, 7
_ENUM_VALUES, _ENUM_NUMBER = 2, 2
_MAP_ENTRY = 7  # MessageOptions.map_entry
# of FieldDescriptorProto
_NUMBER, _LABEL, _TYPE, _TYPE_NAME = 3, 4, 5, 6
_REPEATED = 3
# FieldDescriptorProto.Type
_BOOL, _STRING, _MESSAGE, _BYTES, _ENUM = 8, 9, 11, 12, 14
_SIGNED = frozenset({3, 5, 15, 16, 17, 18, _ENUM})


class _Message:
    """A small message in parts: the last number of each field, and all its strings or messages."""

    def __init__(self, data: bytes, parts: Iterable[Part] | None = None) -> None:
        self._numbers: dict[int, int] = {}
        self._parts: dict[int, list[bytes]] = {}
        for number, kind, start, end in parts or fields(data, 0, len(data)):
            if kind == VARINT:
                self._numbers[number] = start
            elif kind == LENGTH:
                self._parts.setdefault(number, []).append(data[start:end])

    def number(self, field: int) -> int:
        return self._numbers.get(field, 0)

    def part(self, field: int) -> bytes:
        return self._parts.get(field, [b""])[0]

    def text(self, field: int) -> str:
        return self.part(field).decode("utf-8", "replace")

    def messages(self, field: int) -> list[_Message]:
        return [_Message(part) for part in self._parts.get(field, ())]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    name: str
    kind: int
    type_name: str  # full name of its message or enum
    is_repeated: bool


@dataclass(slots=True, kw_only=True)
class Schema:
    """The messages and enums of a description, by full name; filled by `read_schema`."""

    messages: dict[str, dict[int, _Field]] = field(default_factory=dict)
    enums: dict[str, dict[int, str]] = field(default_factory=dict)
    maps: set[str] = field(default_factory=set)

    @property
    def options(self) -> dict[int, _Field]:
        """The options that have a field, by its number."""
        name = next((message for message in self.messages if message.endswith(f".{OPTIONS}")), "")
        return self.messages.get(name, {})

    def declare(self, scope: str, messages: list[_Message], enums: list[_Message]) -> None:
        """Enter what a file or a message declares, and what that declares in turn."""
        for enum in enums:
            self.enums[f"{scope}.{enum.text(_NAME)}"] = {
                signed(enum_value.number(_ENUM_NUMBER)): enum_value.text(_NAME)
                for enum_value in enum.messages(_ENUM_VALUES)
            }
        for message in messages:
            full = f"{scope}.{message.text(_NAME)}"
            self.declare(full, message.messages(_NESTED), message.messages(_OWN_ENUMS))
            if any(options.number(_MAP_ENTRY) for options in message.messages(_MESSAGE_OPTIONS)):
                self.maps.add(full)
            self.messages[full] = {
                descriptor.number(_NUMBER): _Field(
                    name=descriptor.text(_NAME),
                    kind=descriptor.number(_TYPE),
                    type_name=descriptor.text(_TYPE_NAME),
                    is_repeated=descriptor.number(_LABEL) == _REPEATED,
                )
                for descriptor in message.messages(_FIELDS)
            }


def read_schema(description: bytes) -> Schema:
    """Read a serialized FileDescriptorProto.

    Bytes behind it are ignored: in a library nothing says where it ends.

    Raises:
        ParseError: it does not describe `DebugOptions`.
    """
    schema = Schema()
    try:
        file = _Message(description, _until_foreign(description))
        scope = f".{file.text(_PACKAGE)}"
        schema.declare(scope, file.messages(_FILE_MESSAGES), file.messages(_FILE_ENUMS))
    except WireError as error:
        raise ParseError(f"the description of XLA's options cannot be read: {error}") from None
    if not schema.options:
        raise ParseError("XLA's library does not describe its options where they are looked for")
    return schema


def _until_foreign(data: bytes) -> Iterator[Part]:
    """Walk the fields of a file's description; stop where another one, or none, begins."""
    seen_messages = False
    with suppress(WireError):
        for part in fields(data, 0, len(data)):
            number, kind, _, _ = part
            # the name comes first: with a second one another file's description begins
            is_foreign = number > _LAST_OF_FILE or (seen_messages and number == _NAME)
            if is_foreign or kind not in (VARINT, LENGTH):
                return
            seen_messages |= number == _FILE_MESSAGES
            yield part


def read_options(data: bytes, schema: Schema) -> dict[str, str]:
    """Return every option of a serialized `CompileOptions` by name, those at zero included.

    A list is its values with commas, a map is `key=value` with commas, an enum is its full name.

    Raises:
        ParseError: the bytes are no such message.
    """
    try:
        options = _Message(_Message(data).part(_BUILD_OPTIONS)).part(_DEBUG_OPTIONS)
        return _values(options, schema.options, schema)
    except (WireError, struct.error) as error:
        raise ParseError(f"XLA's compile options cannot be read: {error}") from None


def _values(data: bytes, described: dict[int, _Field], schema: Schema) -> dict[str, str]:
    texts: dict[int, list[str]] = {}
    for number, kind, start, end in fields(data, 0, len(data)):
        field = described.get(number)
        if field is not None:
            values = texts.setdefault(number, [])
            if not field.is_repeated:
                values.clear()
            if kind == VARINT:
                values.append(_scalar(start, field, schema))
            else:
                values += _decode(data[start:end], kind, field, schema)
    return {
        field.name: ",".join(
            sorted(texts[number]) if field.type_name in schema.maps else texts[number]
        )
        if number in texts
        else _zero(field, schema)
        for number, field in described.items()
    }


def _zero(field: _Field, schema: Schema) -> str:
    is_text = field.is_repeated or field.kind in (_STRING, _BYTES, _MESSAGE)
    return "" if is_text else _scalar(0, field, schema)


def _decode(data: bytes, kind: int, field: _Field, schema: Schema) -> Iterator[str]:
    if kind in (FIXED32, FIXED64):
        is_double = kind == FIXED64
        (number,) = struct.unpack("<d" if is_double else "<f", data)
        yield f"{number:.{15 if is_double else 7}g}"
    elif field.kind in (_STRING, _BYTES):
        yield data.decode("utf-8", "replace")
    elif field.kind == _MESSAGE:
        inner = _values(data, schema.messages.get(field.type_name, {}), schema)
        if field.type_name in schema.maps:
            yield f"{inner.get('key', '')}={inner.get('value', '')}"
        else:
            yield ",".join(f"{name}={value}" for name, value in inner.items())
    else:  # a packed list of numbers
        at = 0
        while at < len(data):
            value, at = varint(data, at, len(data))
            yield _scalar(value, field, schema)


def _scalar(value: int, field: _Field, schema: Schema) -> str:
    if field.kind == _BOOL:
        return "true" if value else "false"
    number = signed(value) if field.kind in _SIGNED else value
    return schema.enums.get(field.type_name, {}).get(number, str(number))
