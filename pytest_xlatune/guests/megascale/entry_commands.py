"""`xlatune megascale` and `network` for the list of all commands: entry points name them."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_xlatune.cli import Subcommand, add_json, without_threads

MEGASCALE = Subcommand(
    line="show why a multi-slice TPU job hangs, by the digests in its logs",
    add=f"{__package__}.entry_commands:add_megascale",
    examples=("xlatune megascale worker-0.log",),
)
NETWORK = Subcommand(
    line="show why the network between slices is slow, by traces",
    add=f"{__package__}.entry_commands:add_network",
    examples=("xlatune network traces/ --link 200",),
)

LINK_GBIT_S = 100.0  # as `network.symptoms` has it, which loads numpy


def add_megascale(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "logs", nargs="*", type=Path, metavar="LOG", help="logs, or folders of them; gzip too"
    )
    parser.add_argument(
        "--check-env",
        nargs="?",
        const="",
        metavar="FILE",
        help="check this host's settings, or those that the script printed into FILE; `script` "
        "prints that script",
    )
    add_json(parser)
    parser.set_defaults(run=_megascale)


def _megascale(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.guests.megascale.command import run_megascale

    return run_megascale(arguments)


def add_network(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "traces",
        nargs="+",
        type=Path,
        metavar="TRACE",
        help="xplane.pb files of one window, one per host, or the folder that holds them",
    )
    parser.add_argument(
        "--link",
        type=float,
        default=LINK_GBIT_S,
        metavar="GBIT_S",
        help="rate of a host's link in Gbit/s (100)",
    )
    parser.add_argument(
        "--plots",
        type=Path,
        metavar="FOLDER",
        help="write latency.svg, throughput.svg and pairs.svg there: latency of the messages and "
        "throughput over time, and how slow each pair is",
    )
    add_json(parser)
    parser.set_defaults(run=_network)


def _network(arguments: argparse.Namespace) -> int:
    with without_threads():
        from pytest_xlatune.guests.megascale.network_command import run_network

    return run_network(arguments)
