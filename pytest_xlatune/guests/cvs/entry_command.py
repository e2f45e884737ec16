"""`xlatune cvs` in the list of commands; an entry point names this module."""

from __future__ import annotations

from pytest_xlatune.cli import Subcommand

COMMAND = Subcommand(
    line="read configurations of AMD's cluster validation suite",
    add=f"{__package__}.command:add_cvs",
    examples=("xlatune cvs show config.json", "xlatune cvs show --help"),
)
