"""`xlatune cvs` for the list of all commands: an entry point names it."""

from __future__ import annotations

from pytest_xlatune.cli import Subcommand

COMMAND = Subcommand(
    line="read configurations of AMD's cluster validation suite",
    add=f"{__package__}.command:add_cvs",
    examples=("xlatune cvs show config.json", "xlatune cvs show --help"),
)
