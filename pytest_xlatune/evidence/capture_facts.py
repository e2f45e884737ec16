"""What other distributions read of captures: an entry point of `pytest_xlatune.captures`.

It names a subclass of `CaptureFacts`; its own name is the kind of the facts in a report.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pytest_xlatune.door import Door
from pytest_xlatune.model.errors import ConfigError

BROUGHT = Door("pytest_xlatune.captures", kind="reader of captures")


class CaptureFacts:
    """Facts of the captures of evidence runs, in sentences; a subclass is made without arguments.

    A method that a subclass leaves out tells nothing. A file that cannot be read is told by an
    `XlatuneError` or an `OSError`.
    """

    def facts(self, captures: Sequence[Path]) -> Iterable[str]:
        """Return what the captures of one run tell."""
        del captures
        return ()

    def changes(self, before: Sequence[Path], after: Sequence[Path]) -> Iterable[str]:
        """Return what moved from one run to another."""
        del before, after
        return ()


def readers() -> dict[str, CaptureFacts]:
    """Return those of other distributions by name.

    Raises:
        ConfigError: one of them cannot be loaded.
    """
    found: dict[str, CaptureFacts] = {}
    for name in BROUGHT:
        made = BROUGHT.load(name, where="evidence runs")()
        if not isinstance(made, CaptureFacts):
            raise ConfigError(
                f"reader of captures {name!r} of {BROUGHT.source(name)} is {type(made).__name__}, "
                "expected a pytest_xlatune.evidence.capture_facts.CaptureFacts"
            )
        found[name] = made
    return found
