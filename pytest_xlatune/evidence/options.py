"""XLA's own record of its options: a serialized `CompileOptions`, decoded to name -> text.

The library carries the description of its messages (`xla/xla.proto`), so that names, types and
enums are those of the very build that is asked; no table of ours can be out of date. An option that
is absent is at zero, for the message is a proto3. This module never trusts a length; whatever does
not fit is a `ParseError`.

Formats: https://protobuf.dev/programming-guides/encoding/, google/protobuf/descriptor.proto and
xla/xla.proto, xla/pjrt/proto/compile_options.proto of https://github.com/openxla/xla.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from pytest_xlatune.errors import ParseError
from pytest_xlatune.evidence.wire import (
    FIXED32,
    FIXED64,
    LENGTH,
    VARINT,
    WireError,
    fields,
    signed,
    text,
    varint,
)

OPTIONS: Final = "DebugOptions"
_BUILD_OPTIONS, _DEBUG_OPTIONS = 3, 3  # CompileOptionsProto -> ExecutableBuildOptionsProto -> it
# FileDescriptorProto's, DescriptorProto's and FieldDescriptorProto's numbers
_MESSAGES, _ENUMS = 4, 5
_NAME, _FIELDS, _NESTED, _OWN_ENUMS, _MESSAGE_OPTIONS = 1, 2, 3, 4, 7
_NUMBER, _LABEL, _TYPE, _TYPE_NAME = 3, 4, 5, 6
_MAP_ENTRY = 7  # MessageOptions.map_entry
_REPEATED = 3
# FieldDescriptorProto.Type
_DOUBLE, _FLOAT, _BOOL, _STRING, _MESSAGE, _BYTES, _ENUM = 1, 2, 8, 9, 11, 12, 14
_SIGNED = frozenset({3, 5, 15, 16, 17, 18})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    name: str
    kind: int
    of: str  # full name of its message or enum
    is_repeated: bool


@dataclass(slots=True, kw_only=True)
class Schema:
    """The messages and enums of a description; filled by `read_schema`."""

    messages: dict[str, dict[int, _Field]] = field(default_factory=dict)
    enums: dict[str, dict[int, str]] = field(default_factory=dict)
    maps: set[str] = field(default_factory=set)

    @property
    def options(self) -> frozenset[str]:
        """The names of the options that have a field."""
        return frozenset(each.name for each in self._of_options().values())

    def _of_options(self) -> dict[int, _Field]:
        name = next((each for each in self.messages if each.endswith(f".{OPTIONS}")), "")
        return self.messages.get(name, {})


def read_schema(description: bytes) -> Schema:
    """Read a serialized FileDescriptorProto.

    Bytes behind it are ignored: in a library nothing says where it ends.

    Raises:
        ParseError: it does not describe `DebugOptions`.
    """
    schema = Schema()
    package = ""
    try:
        for number, kind, start, end in _until_foreign(description):
            if number == 2 and kind == LENGTH:  # noqa: PLR2004 - FileDescriptorProto.package
                package = text(description, start, end)
            elif number == _MESSAGES and kind == LENGTH:
                _message(description, start, end, f".{package}", schema)
            elif number == _ENUMS and kind == LENGTH:
                _enum(description, start, end, f".{package}", schema)
    except WireError as error:
        raise ParseError(f"the description of XLA's options cannot be read: {error}") from None
    if not schema.options:
        raise ParseError("XLA's library does not describe its options where they are looked for")
    return schema


def read_options(data: bytes, schema: Schema) -> dict[str, str]:
    """Return every option of a serialized `CompileOptions` by name, those at zero included.

    A list is its values with commas, a map is `key=value` with commas, an enum is its full name.

    Raises:
        ParseError: the bytes are no such message.
    """
    described = schema._of_options()  # noqa: SLF001 - one module, one type
    try:
        span = _within(data, (0, len(data)), _BUILD_OPTIONS)
        span = _within(data, span, _DEBUG_OPTIONS)
        return _values(data, span, described, schema)
    except (WireError, struct.error) as error:
        raise ParseError(f"XLA's compile options cannot be read: {error}") from None


def _until_foreign(data: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Walk fields as long as they are a file description's: its own are numbered up to 14."""
    at, seen_messages = 0, False
    while at < len(data):
        tag, begin = varint(data, at, len(data))
        number, kind = tag >> 3, tag & 7
        if not 1 <= number <= 14 or kind not in (VARINT, LENGTH):  # noqa: PLR2004
            return
        if kind == VARINT:
            value, at = varint(data, begin, len(data))
            yield number, kind, value, at
            continue
        size, begin = varint(data, begin, len(data))
        if size > len(data) - begin or (seen_messages and number == _NAME):
            return  # the name comes first: another file's description follows
        seen_messages |= number == _MESSAGES
        at = begin + size
        yield number, kind, begin, at


def _message(data: bytes, start: int, end: int, scope: str, schema: Schema) -> None:
    parts = list(fields(data, start, end))
    name = next((text(data, at, to) for number, _, at, to in parts if number == _NAME), "")
    full = f"{scope}.{name}"
    found: dict[int, _Field] = {}
    for number, kind, at, to in parts:
        if kind != LENGTH:
            continue
        if number == _FIELDS:
            found.update([_field(data, at, to)])
        elif number == _NESTED:
            _message(data, at, to, full, schema)
        elif number == _OWN_ENUMS:
            _enum(data, at, to, full, schema)
        elif number == _MESSAGE_OPTIONS and any(
            each == _MAP_ENTRY and value for each, _, value, _ in fields(data, at, to)
        ):
            schema.maps.add(full)
    schema.messages[full] = found


def _field(data: bytes, start: int, end: int) -> tuple[int, _Field]:
    words, numbers = {_NAME: "", _TYPE_NAME: ""}, {_NUMBER: 0, _LABEL: 0, _TYPE: 0}
    for number, kind, at, to in fields(data, start, end):
        if number in words and kind == LENGTH:
            words[number] = text(data, at, to)
        elif number in numbers and kind == VARINT:
            numbers[number] = at
    return numbers[_NUMBER], _Field(
        name=words[_NAME],
        kind=numbers[_TYPE],
        of=words[_TYPE_NAME],
        is_repeated=numbers[_LABEL] == _REPEATED,
    )


def _enum(data: bytes, start: int, end: int, scope: str, schema: Schema) -> None:
    name, values = "", {}
    for number, kind, at, to in fields(data, start, end):
        if number == _NAME and kind == LENGTH:
            name = text(data, at, to)
        elif number == 2 and kind == LENGTH:  # noqa: PLR2004 - EnumDescriptorProto.value
            value, word = 0, ""
            for part, wire, begin, stop in fields(data, at, to):
                if part == _NAME and wire == LENGTH:
                    word = text(data, begin, stop)
                elif part == 2 and wire == VARINT:  # noqa: PLR2004 - EnumValueDescriptorProto.number
                    value = signed(begin)
            values[value] = word
    schema.enums[f"{scope}.{name}"] = values


def _within(data: bytes, span: tuple[int, int], wanted: int) -> tuple[int, int]:
    for number, kind, start, end in fields(data, *span):
        if number == wanted and kind == LENGTH:
            return start, end
    return span[1], span[1]  # absent: nothing is set


def _values(
    data: bytes, span: tuple[int, int], described: dict[int, _Field], schema: Schema
) -> dict[str, str]:
    found: dict[int, list[str]] = {}
    for number, kind, start, end in fields(data, *span):
        each = described.get(number)
        if each is not None:
            values = found.setdefault(number, [])
            if not each.is_repeated:
                values.clear()
            values += _decode(data, (kind, start, end), each, schema)
    return {
        each.name: ",".join(sorted(found[number]) if each.of in schema.maps else found[number])
        if number in found
        else _zero(each, schema)
        for number, each in described.items()
    }


def _zero(each: _Field, schema: Schema) -> str:
    if each.is_repeated or each.kind in (_STRING, _BYTES, _MESSAGE):
        return ""
    if each.kind == _ENUM:
        return schema.enums.get(each.of, {}).get(0, "0")
    return "false" if each.kind == _BOOL else "0"


def _decode(
    data: bytes, found: tuple[int, int, int], each: _Field, schema: Schema
) -> Iterator[str]:
    kind, start, end = found
    if kind == VARINT:
        yield _scalar(start, each, schema)
    elif kind in (FIXED32, FIXED64):
        is_double = kind == FIXED64
        (number,) = struct.unpack("<d" if is_double else "<f", bytes(data[start:end]))
        yield f"{number:.{15 if is_double else 7}g}"
    elif each.kind in (_STRING, _BYTES):
        yield text(data, start, end)
    elif each.kind == _MESSAGE:
        inner = _values(data, (start, end), schema.messages.get(each.of, {}), schema)
        if each.of in schema.maps:
            yield f"{inner.get('key', '')}={inner.get('value', '')}"
        else:
            yield ",".join(f"{name}={value}" for name, value in inner.items())
    else:  # a packed list of numbers
        at = start
        while at < end:
            value, at = varint(data, at, end)
            yield _scalar(value, each, schema)


def _scalar(value: int, each: _Field, schema: Schema) -> str:
    if each.kind == _BOOL:
        return "true" if value else "false"
    number = signed(value) if each.kind in _SIGNED or each.kind == _ENUM else value
    if each.kind == _ENUM:
        return schema.enums.get(each.of, {}).get(number, str(number))
    return str(number)
