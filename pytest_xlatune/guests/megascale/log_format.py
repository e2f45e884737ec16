"""The Megascale digests of a log, as findings of the `LogReader` that reads the log.

The entry point of `pytest_xlatune.log_formats` names `MegascaleFormat`. `LogReader` notes the lines
that may begin a digest, and passes the blocks from there on to the reader of this format. So a log
without such a line costs nothing more.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_xlatune.guests.megascale.digest import Digest
from pytest_xlatune.guests.megascale.digests import MegascaleReader
from pytest_xlatune.logs.formats import BlockFinding, BlockReader, LogFormat
from pytest_xlatune.model.failure import FailureClass

# classes for which the named hosts are at fault, and should be left out
_HOST_CLASSES = (FailureClass.TPU_CHIP, FailureClass.ICI_ERROR, FailureClass.NETWORK_LINK)


class MegascaleFormat(LogFormat):
    """The log of a job whose slices are joined by libtpu's Megascale runtime."""

    # each line that can begin a digest has one of these, and so has the trigger of a worker
    words = (
        *("megascale detects a hang ", "halted with an unrecoverable error: "),
        *("potential cause: ", "full error digest:", " graphs to complete"),
    )

    def reader(self) -> BlockReader:
        """Return a reader for the digests of one log."""
        return _Digests()


class _Digests(BlockReader):
    """Reads the digests of one log; see `BlockReader`."""

    def __init__(self) -> None:
        self._reader = MegascaleReader()

    def feed(self, block: bytes, before: int) -> None:
        self._reader.lines = before
        self._reader.feed(block)

    def close(self) -> None:
        self._reader.close()

    def findings(self) -> Sequence[BlockFinding]:
        return [
            BlockFinding(cls=digest.cls, line=digest.line, detail=_detail(digest))
            for digest in self._reader.report().digests
        ]


def _detail(digest: Digest) -> str:
    """Return the hosts of a digest, with the advice to leave them out if they are at fault.

    If the digest names no hosts, return the notes from its table.
    """
    cls = digest.cls
    hosts = ", ".join(map(str, digest.culprits))
    # a host that several broken links share is at fault; of a single link, either host may be
    may_be_either_host = cls is FailureClass.NETWORK_LINK and (
        len(digest.culprits) > 1 or not digest.links
    )
    if hosts and cls in _HOST_CLASSES and not may_be_either_host:
        hosts = f"leave out {hosts}"
    if cls is FailureClass.CANCELLED:
        return "the job was ended on purpose"
    return hosts or next(iter(digest.notes), "")
