"""Commands below a command: each says at the head of its own help what the list says of it."""

from __future__ import annotations

import argparse


class Commands:
    """The commands of a parser, one of which must be given."""

    def __init__(self, parser: argparse.ArgumentParser, *, metavar: str) -> None:
        self._added = parser.add_subparsers(required=True, metavar=metavar)

    def add_parser(self, name: str, *, what: str) -> argparse.ArgumentParser:
        """Add a command; `what` is its line in the list and the head of its own help."""
        return self._added.add_parser(name, help=what, description=f"{what[0].upper()}{what[1:]}.")
