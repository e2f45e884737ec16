"""`xlatune megascale` and `xlatune network` in the list of commands; entry points name them."""

from __future__ import annotations

from pytest_xlatune.cli import Subcommand

MEGASCALE = Subcommand(
    line="show why a multi-slice TPU job hangs, by the digests in its logs",
    add=f"{__package__}.command:add_megascale",
    examples=("xlatune megascale worker-0.log",),
)
NETWORK = Subcommand(
    line="show why the network between slices is slow, by traces",
    add=f"{__package__}.network_command:add_network",
    examples=("xlatune network traces/ --link 200",),
)
