"""The protobuf wire format: single messages, or a million at once; and XLA's options.

Small messages (planes, names) are read in Python by `fields`. The events of a trace line are
decoded by numpy in lockstep: every event has a cursor, and one iteration reads the next field of
all events. This module knows nothing of traces. It never trusts a length: malformed bytes raise
`WireError`, a ValueError with what was found and the position; the caller adds the file.

It also reads XLA's options, a serialized `CompileOptions`, as name -> text. The library contains
the description of its messages (`xla/xla.proto`), so names, types and enums are those of the build
in question. An option that is absent is zero, because the message is a proto3. Malformed options
raise `ParseError`.

Formats: https://protobuf.dev/programming-guides/encoding/, google/protobuf/descriptor.proto and
xla/xla.proto, xla/pjrt/proto/compile_options.proto of https://github.com/openxla/xla.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from pytest_xlatune.model.errors import ParseError

Bytes = bytes | memoryview
Ints = NDArray[np.int64]
Part = tuple[int, int, int, int]  # part of a message: field number, wire type, begin, end

VARINT: Final = 0
FIXED64: Final = 1
LENGTH: Final = 2
FIXED32: Final = 5
PADDING: Final = 48  # bytes after a range, so that a word at any cursor is inside

_CONTINUE = np.uint64(0x8080808080808080)
_PAYLOAD = np.uint64(0x7F7F7F7F7F7F7F7F)
_ONES = np.uint64(0x0101010101010101)
# the 7-bit groups of a varint are joined in three steps: 8 groups -> 4 of 14 -> 2 of 28 -> 56 bits
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


def varint(data: Bytes, at: int, end: int) -> tuple[int, int]:
    """Return the varint at `at` and the position after it.

    Raises:
        WireError: it extends beyond `end`, or has more than ten bytes.
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
    """Return the int64 that an unsigned varint represents."""
    return value - (1 << 64) if value >> 63 else value


def fields(data: Bytes, start: int, end: int) -> Iterator[Part]:
    """Yield the fields of a message.

    For a VARINT, `begin` is its value and `end` is the position after it.

    Raises:
        WireError: an unknown wire type, a length beyond `end`, or a number without end.
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
    """Return the string between two positions; bytes that are no UTF-8 become U+FFFD."""
    return bytes(data[start:end]).decode("utf-8", "replace")


class Octets:
    """A range of bytes that is read at many positions at once.

    No position may be more than 20 bytes beyond the end.

    Attributes:
        data: the bytes that contain the range.
        start: the origin of positions, slightly before the requested begin.
    """

    def __init__(self, data: Bytes, start: int, end: int) -> None:
        self.data = data
        self.start = start & ~7
        stop = end + PADDING
        part: Bytes = memoryview(data)[self.start : stop]
        if stop > len(data):
            part = b"".join((part, bytes(stop - len(data))))
        self._octets = np.frombuffer(part, np.uint8)
        self._next = self._octets[1:]
        self._words = np.ndarray((len(part) - 7,), "<u8", part, strides=(1,))

    def byte(self, at: Ints) -> NDArray[np.uint8]:
        """Return the byte at each position."""
        return self._octets.take(at)

    def varints(self, at: Ints) -> tuple[Ints, Ints]:
        """Decode a varint at each position: values and sizes in bytes.

        A varint of more than 8 bytes (56 bits) gets size 0, and the caller decodes it alone.
        """
        first = self.byte(at)
        long = first >> 7
        if not long.any():  # one byte each: lengths and most ids
            return first.astype(np.int64), np.ones(len(at), np.int64)
        second = self._next.take(at)
        if not (long & second >> 7).any():  # at most two bytes: names and references
            value = (second * long).astype(np.int64)
            value <<= 7
            value |= first & 0x7F
            return value, long + np.int64(1)
        return _varints(self._words[at])  # `take` would copy all words, because they overlap


def _varints(words: NDArray[np.uint64]) -> tuple[Ints, Ints]:
    """Decode the varint at the beginning of each word; the words are overwritten."""
    stop = ~words
    stop &= _CONTINUE
    keep = stop - _ONE
    keep ^= stop  # all bits up to and including the first stop bit
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
# the path in CompileOptionsProto: field of ExecutableBuildOptionsProto, then of DebugOptions
_BUILD_OPTIONS, _DEBUG_OPTIONS = 3, 3
# field numbers of FileDescriptorProto, DescriptorProto, EnumDescriptorProto,
# EnumValueDescriptorProto
_NAME = 1
_PACKAGE, _FILE_MESSAGES, _FILE_ENUMS, _LAST_OF_FILE = 2, 4, 5, 14
_FIELDS, _NESTED, _OWN_ENUMS, _MESSAGE_OPTIONS = 2, 3, 4, 7
_ENUM_VALUES, _ENUM_NUMBER = 2, 2
_MAP_ENTRY = 7  # MessageOptions.map_entry
# field numbers of FieldDescriptorProto
_NUMBER, _LABEL, _TYPE, _TYPE_NAME = 3, 4, 5, 6
_REPEATED = 3
# values of FieldDescriptorProto.Type
_BOOL, _STRING, _MESSAGE, _BYTES, _ENUM = 8, 9, 11, 12, 14
_TEXTS = frozenset({_STRING, _MESSAGE, _BYTES})
_SIGNED = frozenset({3, 5, 15, 16, 17, 18, _ENUM})


class _Message:
    """A small message: the last number of each field, and all its strings or messages."""

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


class Schema:
    """The messages and enums of a description by full name; `read_schema` fills it."""

    def __init__(self) -> None:
        self.messages: dict[str, dict[int, _Message]] = {}  # the fields of each by their numbers
        self.enums: dict[str, dict[int, str]] = {}
        self.maps: set[str] = set()
        self.options: dict[int, _Message] = {}  # the fields of DebugOptions

    def declare(self, scope: str, messages: list[_Message], enums: list[_Message]) -> None:
        """Add the declarations of a file or a message, including nested ones."""
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
            described = {field.number(_NUMBER): field for field in message.messages(_FIELDS)}
            self.messages[full] = described
            if message.text(_NAME) == OPTIONS:
                self.options = described


def read_schema(description: bytes) -> Schema:
    """Read a serialized FileDescriptorProto.

    Further bytes are ignored, because a library does not say where the description ends.

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
    """Yield the fields of a file's description; stop where another one, or none, begins."""
    seen_messages = False
    with suppress(WireError):
        for part in fields(data, 0, len(data)):
            number, kind, _, _ = part
            # the name comes first, so a second name begins another file's description
            is_foreign = number > _LAST_OF_FILE or (seen_messages and number == _NAME)
            if is_foreign or kind not in (VARINT, LENGTH):
                return
            seen_messages |= number == _FILE_MESSAGES
            yield part


def read_options(data: bytes, schema: Schema) -> dict[str, str]:
    """Return every option of a serialized `CompileOptions` by name, including zeros.

    A list is written as values with commas, a map as `key=value` with commas, an enum by full name.

    Raises:
        ParseError: the bytes are no such message.
    """
    try:
        options = _Message(_Message(data).part(_BUILD_OPTIONS)).part(_DEBUG_OPTIONS)
        return _values(options, schema.options, schema)
    except (WireError, struct.error) as error:
        raise ParseError(f"XLA's compile options cannot be read: {error}") from None


def _values(data: bytes, described: dict[int, _Message], schema: Schema) -> dict[str, str]:
    """Return the value of each field by its name; fields are described by their numbers."""
    texts: dict[int, list[str]] = {}
    for number, kind, start, end in fields(data, 0, len(data)):
        if (field := described.get(number)) is not None:
            values = texts.setdefault(number, [])
            if field.number(_LABEL) != _REPEATED:
                values.clear()
            if kind == VARINT:
                values.append(_scalar(start, field, schema))
            else:
                values += _decode(data[start:end], kind, field, schema)
    by_name = {}
    for number, field in described.items():
        is_text = field.number(_LABEL) == _REPEATED or field.number(_TYPE) in _TEXTS
        values = texts.get(number, ["" if is_text else _scalar(0, field, schema)])
        is_map = field.text(_TYPE_NAME) in schema.maps
        by_name[field.text(_NAME)] = ",".join(sorted(values) if is_map else values)
    return by_name


def _decode(data: bytes, kind: int, field: _Message, schema: Schema) -> Iterator[str]:
    """Yield the value of a field that is no single number; a packed list has several."""
    field_type, type_name = field.number(_TYPE), field.text(_TYPE_NAME)
    if kind == FIXED64:
        yield f"{struct.unpack('<d', data)[0]:.15g}"
    elif kind == FIXED32:
        yield f"{struct.unpack('<f', data)[0]:.7g}"
    elif field_type in (_STRING, _BYTES):
        yield data.decode("utf-8", "replace")
    elif field_type == _MESSAGE:
        inner = _values(data, schema.messages.get(type_name, {}), schema)
        if type_name in schema.maps:
            yield f"{inner.get('key', '')}={inner.get('value', '')}"
        else:
            yield ",".join(f"{name}={value}" for name, value in inner.items())
    else:
        at = 0
        while at < len(data):
            value, at = varint(data, at, len(data))
            yield _scalar(value, field, schema)


def _scalar(value: int, field: _Message, schema: Schema) -> str:
    if field.number(_TYPE) == _BOOL:
        return "true" if value else "false"
    number = signed(value) if field.number(_TYPE) in _SIGNED else value
    return schema.enums.get(field.text(_TYPE_NAME), {}).get(number, str(number))
