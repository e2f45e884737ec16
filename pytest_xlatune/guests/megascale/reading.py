"""Read the Megascale digests of logs, without a ledger: files, folders of them, gzipped ones."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_xlatune.guests.megascale.digest import SCHEMA, MegascaleReport
from pytest_xlatune.guests.megascale.digests import MegascaleReader
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.record import Json
from pytest_xlatune.tasks.chunks import STDIN, chunks_of


@dataclass(frozen=True, slots=True, kw_only=True)
class MegascaleLog:
    """A log and what it tells of Megascale."""

    path: Path
    report: MegascaleReport


def files_of(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files that paths name; of a folder all below it, by name.

    Raises:
        ConfigError: a path is not there.
    """
    for path in paths:
        if path.is_dir():
            for folder, names, files in os.walk(path):
                names.sort()
                below = (Path(folder, each) for each in sorted(files))
                yield from (each for each in below if each.is_file())
        elif path == STDIN or path.exists():
            yield path
        else:
            raise ConfigError(f"{path}: no such file; name the log of a job, or a folder of logs")


def read_megascale(path: Path) -> MegascaleLog:
    """Read one log in constant memory; gzip is known by its first bytes, `-` is the standard input.

    Raises:
        ConfigError: it cannot be read.
    """
    reader = MegascaleReader()
    notes: list[str] = []
    try:
        for chunk in chunks_of(path, notes):
            reader.feed(chunk)
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(f"{path} cannot be read: {why}; name the log of a job") from None
    reader.close()
    return MegascaleLog(path=path, report=reader.report())


def accused_chips(logs: Iterable[MegascaleLog]) -> list[tuple[str, int]]:
    """Return each host that digests accuse of a bad chip, with how many do; the most first.

    Copies of one digest in several logs count once.
    """
    counts: Counter[str] = Counter()
    seen: list[Json] = []
    for digest in (each for log in logs for each in log.report.digests):
        said = {name: value for name, value in digest.to_json().items() if name != "line"}
        if digest.cls is FailureClass.TPU_CHIP and said not in seen:
            seen.append(said)
            counts.update({str(each) for each in digest.culprits})
    return counts.most_common()


def megascale_json(logs: Iterable[MegascaleLog]) -> Json:
    """Return one document for the logs of a job: all digests, and the first trigger."""
    found = list(logs)
    triggers = [each.report.trigger for each in found if each.report.trigger]
    return {
        "schema": SCHEMA,
        "digests": [digest.to_json() for each in found for digest in each.report.digests],
        "trigger": triggers[0].to_json() if triggers else None,
    }
