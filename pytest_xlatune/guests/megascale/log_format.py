"""The Megascale digests of a log that `LogReader` reads line by line, as findings of it.

The entry point of `pytest_xlatune.log_formats` names `MegascaleFormat`. `LogReader` notes the lines
that may begin a digest, and hands over the blocks from there on; so a log without such a line costs
nothing more. What a digest is decides `digests`, which is loaded where there may be one.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_xlatune.guests.megascale.digest import Digest
from pytest_xlatune.guests.megascale.digests import MegascaleReader
from pytest_xlatune.logs.formats import BlockFinding, BlockReader, LogFormat
from pytest_xlatune.model.failure import FailureClass

# one of them stands in each line that can begin a digest, or that a worker prints before one
_OPENING = (
    *("megascale detects a hang ", "halted with an unrecoverable error: "),
    *("potential cause: ", "full error digest:"),
)
_OF_HOSTS = (FailureClass.TPU_CHIP, FailureClass.ICI_ERROR, FailureClass.NETWORK_LINK)


class MegascaleFormat(LogFormat):
    """The log of a job whose slices are joined by libtpu's Megascale runtime."""

    words = (*_OPENING, " graphs to complete")
    openings = _OPENING
    heads = ("Megascale detects a hang ", "Some workers have halted with an unrecoverable error: ")

    def reader(self) -> BlockReader:
        """Return a reader for the digests of one log."""
        return _Digests()


class _Digests(BlockReader):
    def __init__(self) -> None:
        self._reader = MegascaleReader()

    def feed(self, block: bytes, before: int) -> None:
        self._reader.lines = before
        self._reader.feed(block)

    def close(self) -> None:
        self._reader.close()

    def told(self) -> Sequence[BlockFinding]:
        return [
            BlockFinding(cls=digest.cls, line=digest.line, detail=_detail(digest))
            for digest in self._reader.report().digests
        ]


def _detail(digest: Digest) -> str:
    """Name the hosts of a digest, and say where they are to be left out.

    Without hosts it is what the digest's table tells.
    """
    cls = digest.cls
    hosts = ", ".join(map(str, digest.culprits))
    # one host of several broken links is at fault, of two either may be
    is_link = cls is FailureClass.NETWORK_LINK and (len(digest.culprits) > 1 or not digest.links)
    if hosts and cls in _OF_HOSTS and not is_link:
        hosts = f"leave out {hosts}"
    if cls is FailureClass.CANCELLED:
        return "libtpu was told to end"
    return hosts or next(iter(digest.notes), "")
