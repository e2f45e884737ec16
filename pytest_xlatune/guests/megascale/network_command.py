"""`xlatune network`: show why the network of a multi-slice job is slow, by its traces."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from tabulate import tabulate

from pytest_xlatune.cli import add_json, show, show_json
from pytest_xlatune.evidence.trace.captures import captures_below
from pytest_xlatune.guests.megascale.network import measure
from pytest_xlatune.guests.megascale.symptoms import LINK_GBIT_S, Judgement, judge
from pytest_xlatune.guests.megascale.traffic import read_traffic
from pytest_xlatune.model.errors import ConfigError

SCHEMA = 1
_MOST_ROWS = 10
_SHOWN_FIGURES = ("messages", "bytes", "latency_us", "sizes", "pending", "throughput_gbit_s")
_TABLES = {  # table of the document -> the column by which its rows are sorted
    "bursts": "bytes",
    "hosts": "tx_peak_gbit_s",
    "pairs": "p50_us",
    "slack": "sum_stall_us",
}
_NO_TRAFFIC = (
    "no traffic between slices: no worker of Megascale sent or received in these traces; name the "
    "xplane.pb of every host of a job of several slices, profiled with host traces"
)


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
    add_json(parser)
    parser.set_defaults(run=run_network)


def run_network(arguments: argparse.Namespace) -> int:
    """Show the symptoms and the figures."""
    if not arguments.link > 0:
        raise ConfigError(f"--link {arguments.link:g}: expected the rate of a host's link, Gbit/s")
    files: list[Path] = []
    for path in arguments.traces:
        if not path.exists():
            raise ConfigError(f"{path}: no such file; name an xplane.pb, or a folder of them")
        files += captures_below(path) if path.is_dir() else [path]
    unique_files = {path.resolve(): path for path in files}.values()
    figures = measure(read_traffic(unique_files), link_gbit_s=arguments.link)
    judgements = judge(figures, link_gbit_s=arguments.link)
    events = (*figures["messages"].values(), figures["memory_copies"]["n"])
    if arguments.json:
        symptoms = msgspec.to_builtins(judgements)
        show_json({"schema": SCHEMA, **figures, "symptoms": symptoms})
    elif any(events) or figures["map_dma"]["late"] or figures["slack"]:
        show(_lines(figures, judgements))
    else:
        show([_NO_TRAFFIC])
    return 0


def _lines(document: Mapping[str, Any], judgements: tuple[Judgement, ...]) -> Iterator[str]:
    """Yield the lines for a terminal: first the symptoms, then the figures of the document."""
    for judgement in judgements:
        yield f"{'FOUND' if judgement.is_found else '-':6}{judgement.symptom:13}{judgement.text}"
        if judgement.is_found:
            yield f"{'':19}to do: {judgement.action}"
    yield ""
    for name in _SHOWN_FIGURES:
        value = document[name]
        if isinstance(value, dict):
            value = (
                ", ".join(f"{key} {_figure_text(figure)}" for key, figure in value.items())
                or "none"
            )
        yield f"{name}: {value}"
    for name, column in _TABLES.items():
        rows = sorted(document[name], key=lambda row, by=column: row[by], reverse=True)  # type: ignore[misc]
        if rows:
            yield f"\n{name}: {len(rows)}, those with the most {column}"
            yield tabulate(rows[:_MOST_ROWS], headers="keys", floatfmt=".3f")


def _figure_text(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)
