"""How fast are `xlatune megascale` and `xlatune network`? CPU seconds and peak memory, in one run.

    python benchmarks/megascale.py [MEGABYTES] [MESSAGES] [OTHERS]      default 1000 100000 1000000

Digests: a log as `log_reader.py` makes it, with one digest of libtpu in its middle; then the same
with a line that could begin a digest in every 20 MB. Beside it stand a plain read of the same file,
and `LogReader`, which a sweep reads its logs with.

Network: one trace of messages on four worker lines; a tenth of the other events lie on those lines
too, the rest on lines of the host and of a TPU; labels by reference as the profiler writes them,
then in full. Everything runs in a process of its own, so each peak is its own.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from log_reader import chunks, in_own_process, measured, only_bytes, piece, reader

from pytest_xlatune.guests.megascale.digests import MegascaleReader
from tests.helpers.megascale_traces import Made, traffic

COMMAND = "import sys; from pytest_xlatune.cli import main; sys.exit(main(sys.argv[1:]))"
DIGESTS = Path(__file__).parents[1] / "tests" / "data" / "megascale.jsonl"
QUOTED = b'I0112 07:08:09.1 7 n.cc:5] see "Megascale detects a hang that is likely caused by bad"\n'


def digests(path: Path) -> str:
    found = MegascaleReader()
    for chunk in chunks(path):
        found.feed(chunk)
    found.close()
    digest = found.report().digests
    return f"{len(digest)} digest: {digest[0].cls}, line {digest[0].line} of {found.lines}"


def write_log(path: Path, megabytes: int, *, quoted: bool) -> None:
    text = json.loads(DIGESTS.read_text(encoding="utf-8").splitlines()[2])["text"].encode()
    count = max(megabytes // 20, 1)
    with path.open("wb") as file:
        for number in range(count):
            file.write(piece(24 * number))
            if number == count // 2:
                file.write(text)
            elif quoted:
                file.write(QUOTED)


def read_logs(folder: Path, megabytes: int) -> None:
    rows: dict[str, Callable[[Path], str]] = {
        "MegascaleReader": digests,
        "LogReader": reader,
        "plain read": only_bytes,
    }
    print(f"{'':38} {'CPU s':>7} {'MB/s':>7} {'peak MB':>8} {'/ plain':>8}  found")
    for title, quoted in (("one digest", False), ("and a quoted one every 20 MB", True)):
        path = folder / "job.log"
        in_own_process(_write_log, path, megabytes, quoted)
        size_mb = path.stat().st_size / 1e6
        in_own_process(measured, only_bytes, path)  # the file is in memory for all
        found = {name: in_own_process(measured, work, path) for name, work in rows.items()}
        print(f"{title}, {size_mb:.0f} MB")
        for name, (cpu_s, peak_mb, told) in found.items():
            ratio = cpu_s / found["plain read"][0]
            speed = size_mb / cpu_s
            print(f"  {name:36} {cpu_s:7.2f} {speed:7.0f} {peak_mb:8.0f} {ratio:8.1f}  {told}")


def _write_log(path: Path, megabytes: int, quoted: bool) -> None:  # noqa: FBT001
    write_log(path, megabytes, quoted=quoted)


def taken(*arguments: str) -> tuple[float, float]:
    """Return CPU seconds and peak memory in MB of a command."""
    process = subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.DEVNULL, cwd=Path(__file__).parents[1]
    )
    _, status, used = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"the command ended with {status}")
    return used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def write_trace(path: Path, messages: int, others: int, is_text: bool) -> None:  # noqa: FBT001
    made = Made(
        messages=traffic(random.Random(1), count=messages),
        others=others - others // 10 - others // 5,
        among=others // 10,
        ops=[(0, f"fusion.{at % 90}", "", at * 50, 40) for at in range(others // 5)],
        is_text=is_text,
    )
    path.write_bytes(made.data())


def read_traces(folder: Path, messages: int, others: int) -> None:
    print(f"{'':38} {'MB':>5} {'CPU s':>7} {'peak MB':>8}")
    alone = min(taken("-c", "import numpy") for _ in range(3))
    print(f"{'Python with numpy alone':38} {0:5} {alone[0]:7.2f} {alone[1]:8.0f}")
    for is_text in (False, True):
        path = folder / "a.xplane.pb"
        in_own_process(write_trace, path, messages, others, is_text)
        size_mb = path.stat().st_size / 1e6
        cpu_s, peak_mb = min(taken("-c", COMMAND, "network", str(path)) for _ in range(3))
        how = "in full" if is_text else "by reference"
        print(
            f"{f'{messages} messages, labels {how}':38} {size_mb:5.0f} {cpu_s:7.2f} {peak_mb:8.0f}"
        )
    print(f"among {others} other events")


def main() -> None:
    asked = [int(each) for each in sys.argv[1:]]
    megabytes, messages, others = (*asked, *(1000, 100_000, 1_000_000)[len(asked) :])
    with tempfile.TemporaryDirectory() as folder:
        read_logs(Path(folder), megabytes)
        print()
        read_traces(Path(folder), messages, others)


if __name__ == "__main__":
    main()
