"""Drive libtpu's own error aggregator without a TPU: reports in, the text of its digest out.

    python tests/libtpu/aggregator.py libtpu.so < cases.jsonl > digests.jsonl

One case a line: {"reports": [report, ...]}; a report is what one host sends (fields below). The
answer is {"text": ...}, as libtpu logs it on standard error. The program knows nothing of our
parser and imports nothing but Python's own library, so that it runs in the environment of libtpu.

Interface: pjrt_c_api_megascale_extension.h of openxla/xla; its functions stand behind the header of
the extension in the order of that file. Messages: the descriptors inside libtpu.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

MEGASCALE = 18  # the type of the extension
CREATE, DELETE, DELETE_DIGEST, ADD, PROCESS, LOG = 18, 19, 20, 21, 22, 23
HEADER = 24  # bytes of PJRT_Extension_Base

Case = dict[str, Any]


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int | None) -> bytes:
    return b"" if value is None else varint(field << 3) + varint(int(value))


def part(field: int, body: bytes | str | None) -> bytes:
    if body is None:
        return b""
    raw = body.encode() if isinstance(body, str) else body
    return varint(field << 3 | 2) + varint(len(raw)) + raw


def core(of: Case) -> bytes:
    """A TpuCoreHLO: where a core stands."""
    recent = b"".join(
        part(16, number(1, each.get("run", 1)) + number(2, each["launch"])
             + part(3, each["name"]) + part(4, each["fingerprint"]))
        for each in of.get("recent", ())
    )  # fmt: skip
    return (
        number(13, of.get("type", 1))
        + number(1, of.get("chip", 0))
        + number(2, of.get("core", 0))
        + part(17, of.get("location"))
        + part(9, of.get("hlo"))
        + part(15, of.get("computation"))
        + part(4, of.get("fingerprint"))
        + part(10, of.get("module"))
        + number(12, of.get("launch"))
        + number(6, of.get("pc"))
        + number(7, of.get("tag"))
        + part(8, of.get("host"))
        + recent
        + number(18, of.get("active", 1))
    )


def graph(of: Case) -> bytes:
    """A pending graph with one action: a send to a device, or a receive, with a key."""
    if of["kind"] == "send":
        peer = part(1, of["key"]) + part(2, number(1, of["slice"]) + number(2, of["device"]))
        action = part(3, part(1, part(4, part(3, peer) + number(2, 1 << 20))))
    else:
        action = part(4, part(1, of["key"]) + number(2, 1 << 20))
    body = number(1, 7) + part(14, of.get("prefix", "g")) + part(2, number(8, 0) + action)
    return part(1, body) + number(2, of.get("launch", 5)) + number(4, 0)


def report(of: Case) -> bytes:
    telemetry = b"".join(part(1, graph(each)) for each in of.get("graphs", ()))
    cores = b"".join(part(2, core(each)) for each in of.get("cores", ()))
    eye = (part(1, telemetry) if telemetry else b"") + cores + number(4, of.get("slices", 2))
    return (
        number(1, of.get("type", 1))
        + number(12, of.get("unrecoverable"))
        + number(14, of.get("hang"))
        + part(2, of.get("message"))
        + number(3, of.get("time_ms"))
        + number(5, of.get("launch"))
        + part(6, of["host"])
        + part(7, "user")
        + part(8, of["job"])
        + number(9, of["task"])
        + number(10, of.get("uid", 1))
        + (part(4, part(4, eye)) if of.get("has_state", True) else b"")
    )


class Aggregator:
    """libtpu's class of that name, behind its C interface."""

    def __init__(self, library: str) -> None:
        loaded = ctypes.CDLL(library)
        loaded.GetPjrtApi.restype = ctypes.c_void_p
        at = self._pointer(loaded.GetPjrtApi() + 8)
        while at and ctypes.c_int.from_address(at + 8).value != MEGASCALE:
            at = self._pointer(at + 16)
        if not at:
            raise SystemExit(f"{library} has no Megascale extension")
        self._functions = at + HEADER

    @staticmethod
    def _pointer(at: int) -> int:
        return ctypes.c_void_p.from_address(at).value or 0

    def _call(self, index: int, *words: int) -> list[int]:
        arguments = (ctypes.c_uint64 * (len(words) + 1))(8 * (len(words) + 1), *words)
        function = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(
            self._pointer(self._functions + 8 * index)
        )
        if function(ctypes.addressof(arguments)):
            raise SystemExit(f"function {index} of the Megascale extension failed")
        return list(arguments)[1:]

    def digest(self, reports: list[Case]) -> str:
        app = ctypes.create_string_buffer(b"mcjax", 5)
        made = self._call(CREATE, ctypes.addressof(app), 5, 0)[-1]
        for each in reports:
            of_worker = f"slice{each.get('slice', 0)}-task{each['task']}/{each['task']}".encode()
            raw = report(each)
            worker = ctypes.create_string_buffer(of_worker, len(of_worker))
            body = ctypes.create_string_buffer(raw, len(raw))
            self._call(
                ADD,
                made,
                ctypes.addressof(worker),
                len(of_worker),
                ctypes.addressof(body),
                len(raw),
            )
        found = self._call(PROCESS, made, 0)[-1]
        with tempfile.TemporaryFile() as file:
            kept = os.dup(2)
            os.dup2(file.fileno(), 2)
            try:
                self._call(LOG, made, found)
            finally:
                os.dup2(kept, 2)
                os.close(kept)
            file.seek(0)
            text = file.read().decode("utf-8", "replace")
        self._call(DELETE_DIGEST, found)
        self._call(DELETE, made)
        return text


def answers(library: str, lines: Iterator[str]) -> Iterator[str]:
    aggregator = Aggregator(library)
    for line in lines:
        yield json.dumps({"text": aggregator.digest(json.loads(line)["reports"])})


if __name__ == "__main__":
    for answer in answers(sys.argv[1], sys.stdin):
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()
