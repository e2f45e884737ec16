"""The network between slices, as captures of evidence runs tell it: an entry point names it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_xlatune.evidence import CaptureFacts
from pytest_xlatune.guests.megascale.network.symptoms import (
    network_changes,
    network_fact,
    network_of,
)


class NetworkFacts(CaptureFacts):
    """Messages between slices, where captures hold any."""

    def facts(self, captures: Sequence[Path]) -> Iterable[str]:
        """Return what captures tell of the network between slices.

        Raises:
            ParseError: a file is no xplane.pb.
        """
        found = network_of(captures)
        return () if found is None else (network_fact(found),)

    def changes(self, before: Sequence[Path], after: Sequence[Path]) -> Iterable[str]:
        """Return what moved between slices, where the captures of both sides hold anything of it.

        Raises:
            ParseError: a file is no xplane.pb.
        """
        old, new = network_of(before), network_of(after)
        return () if old is None or new is None else network_changes(old, new)
