"""Fuzz every reader: mutated samples in, a value or an error of ours out. `make fuzz` runs it.

    python -m tests.fuzz.fuzz [--inputs N] [--seconds S] [--number N] [--only READER] [--keep DIR]

Each input comes from one random number, which is printed, so a run is repeated by it. What counts
as found: an error that is none of ours, more than two seconds and 40 us a byte, or more memory than
is allowed. A found input is written to the folder of --keep. Exit status 1 where one was found.
"""

from __future__ import annotations

import argparse
import random
import re
import resource
import secrets
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from pytest_xlatune.model.errors import XlatuneError
from tests.fuzz.readers import Reader, readers

MOST_BYTES = 1 << 17
MORE_MEMORY = 1 << 30  # address space beyond what the process has when it begins
LIMIT_S = 2.0
LIMIT_S_PER_BYTE = 40e-6
DIGITS = re.compile(rb"\d+")
WORDS = (
    *(b"0", b"-1", b"9" * 20, b"9" * 5000, b"1e999", b"-1e-999", b"nan", b"-inf", b"NaN", b"0x7f"),
    *(b"[" * 50_000, b"{" * 3000, b'{"a":' * 2000, b"]" * 99, b'"', b"'", b"\\", b",", b":", b"="),
    *(b"\n", b"\r", b"\0", b"\t", b"\x1b[36m", b"\xff\xfe", b"\xef\xbb\xbf", "\u0663".encode()),
    *(b"completed step: ", b"XLA_FLAGS=", b"Config param steps: ", b"[1-65536]", b"n[1-999999999]"),
    *(b"null", b"true", b"{}", b"[]", b"%s", b"${x}", b" " * 5000, b"x" * 70_000, b"|", b"---"),
)


class TookTooLong(BaseException):
    """An input took longer than its size is worth; no reader can catch it by accident."""


class Found(NamedTuple):
    """One input that a reader did not take as it should."""

    reader: str
    what: str
    data: bytes
    number: int


def mutated(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    """Return a sample with some of its bytes, numbers or parts changed."""
    data = rng.choice(samples)
    for _ in range(rng.choice((0, 1, 1, 2, 3, 6, 12))):
        at = rng.randrange(len(data) + 1)
        to = min(len(data), at + rng.choice((1, 2, 8, 64, 1000)))
        head, middle, tail = data[:at], data[at:to], data[to:]
        other = rng.choice(samples)
        match rng.randrange(9):
            case 0:
                data = head + rng.randbytes(len(middle)) + tail
            case 1:
                data = head + tail
            case 2:
                data = head + rng.choice(WORDS) + middle + tail
            case 3:
                data = head + rng.choice(WORDS) + tail
            case 4:
                data = head + middle * rng.choice((2, 3, 50)) + tail
            case 5:
                data = head
            case 6:
                data = head + other[rng.randrange(len(other) + 1) :]
            case 7 if middle:
                data = head + bytes([middle[0] ^ 1 << rng.randrange(8)]) + middle[1:] + tail
            case _:
                if numbers := list(DIGITS.finditer(data[: 1 << 14])):
                    digits = rng.choice(numbers)
                    new = (b"0", b"-1", b"1" * 30, b"9" * 4999, b"1.5e308", b"2147483648")
                    data = data[: digits.start()] + rng.choice(new) + data[digits.end() :]
        data = data[:MOST_BYTES]
    return data


def one(reader: Reader, data: bytes) -> str:
    """Return what is wrong with how a reader takes an input; "" where nothing is."""
    limit_s = LIMIT_S + LIMIT_S_PER_BYTE * len(data)
    signal.signal(signal.SIGPROF, _stop)
    try:
        signal.setitimer(signal.ITIMER_PROF, limit_s)  # of CPU time: the machine may be busy
        try:
            reader.read(data)
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
    except XlatuneError:
        return ""
    except TookTooLong:
        return f"it takes more than {limit_s:.1f} s for {len(data)} bytes"
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        last = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} at {last.filename}:{last.lineno}: {error!s:.120}"
    return ""


def _stop(signum: int, frame: FrameType | None) -> None:
    raise TookTooLong


def fuzz(
    number: int, *, inputs: int = 0, seconds: float = 0.0, only: str = ""
) -> tuple[Counter[str], list[Found]]:
    """Run so many inputs, or for so long; return inputs per reader and what was found."""
    chosen = [each for each in readers() if only in each.name]
    shares = [each.share for each in chosen]
    counts: Counter[str] = Counter()
    found: dict[str, Found] = {}
    for reader in chosen:  # what is loaded once is loaded before time is taken
        one(reader, reader.samples[0])
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    most = pages * resource.getpagesize() + MORE_MEMORY
    was = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most, was[1]))
    end_s = time.monotonic() + seconds if seconds else float("inf")
    try:
        while (not inputs or counts.total() < inputs) and time.monotonic() < end_s:
            at = counts.total()
            rng = random.Random(f"{number}:{at}")
            reader = rng.choices(chosen, shares)[0]
            data = mutated(rng, reader.samples)
            if what := one(reader, data):
                kind = f"{reader.name}: {what.rpartition(': ')[0] or what}"
                found.setdefault(kind, Found(reader.name, what, data, at))
            counts[reader.name] += 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, was)
    return counts, [*found.values()]


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--inputs", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--number", type=int, default=secrets.randbelow(10**9))
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=Path, default=Path(".fuzz"))
    said = parser.parse_args()
    inputs = said.inputs or (0 if said.seconds else 10**6)
    say(f"fuzz: random number {said.number} (--number repeats it)")
    began_s = time.monotonic()
    counts, found = fuzz(said.number, inputs=inputs, seconds=said.seconds, only=said.only)
    took_s = time.monotonic() - began_s
    for name, count in counts.most_common():
        say(f"{count:9}  {name}")
    say(f"{counts.total()} inputs in {took_s:.0f} s, {len(found)} found")
    for each in found:
        said.keep.mkdir(parents=True, exist_ok=True)
        path = said.keep / f"{each.reader.replace(' ', '-')}-{said.number}-{each.number}"
        path.write_bytes(each.data)
        say(f"{each.reader}: {each.what} ({len(each.data)} bytes in {path})")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
