"""Reads XLA's options, a serialized `CompileOptions`, as name -> text.

The library contains the description of its messages (`xla/xla.proto`), so names, types and enums
are those of the build in question. An option that is absent is zero, because the message is a
proto3. Malformed options raise `ParseError`.

Formats: google/protobuf/descriptor.proto, and xla/xla.proto, xla/pjrt/proto/compile_options.proto
of https://github.com/openxla/xla.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

from pytest_xlatune.evidence.protobuf import (
    FIXED32,
    FIXED64,
    LENGTH,
    VARINT,
    Part,
    WireError,
    fields,
    signed,
    varint,
)
from pytest_xlatune.model.errors import ParseError

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
