"""`xlatune network`: show why the network of a multi-slice job is slow, by its traces.

The symptoms are judged in the order of the documented procedure. The thresholds are our own, and
each text gives its threshold.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from tabulate import tabulate

from pytest_xlatune.cli import add_json, show, show_json
from pytest_xlatune.evidence.trace.captures import captures_below
from pytest_xlatune.guests.megascale.network import measure
from pytest_xlatune.guests.megascale.traffic import read_traffic
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.text import counted

SCHEMA = 1
_MOST_ROWS = 10
LINK_GBIT_S = 100.0  # 12.5 GB/s for a host, as xprof assumes
_RAISE_BUFFERS = (
    "raise --megascale_grpc_premap_memory_bytes by at least {}, and trace the job again"
)
# a latency tail has more than this share of the messages, and at least this number
_TAIL_SHARE, _LEAST_TAIL = 0.001, 3
# a link is full if this share of a host's bins with traffic is above 80 % of its rate
_LEAST_BUSY_SHARE = 0.1
_NO_SLACK_SHARE = 0.1  # slack of at most this share of the observed time counts as none
_MOST_SKEW_SHARE = 0.01  # a larger share of messages without a latency puts clocks in doubt
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


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a symptom was found, the figures that decide it, and what to do about it."""

    symptom: str
    is_found: bool
    text: str
    action: str


def judge(network: Mapping[str, Any], *, link_gbit_s: float) -> tuple[Judgement, ...]:
    """Return a judgement of each symptom by the figures of `measure`, in the documented order."""
    late, copies = network["map_dma"], network["memory_copies"]
    n, skew = network["messages"]["valid"], network["messages"]["skew"]
    pairs, slack, hosts = network["pairs"], network["slack"], network["hosts"]
    tail = sum(row["tail"] for row in pairs if not row["is_slow"])
    doubt = ""
    if skew > _MOST_SKEW_SHARE * (n + skew):
        doubt = "; more than 1 % of the messages have no latency: the clocks of hosts disagree"
    busy = max((row["busy"] for row in hosts), default=0.0)
    busiest = [row["host"] for row in hosts if row["busy"] == busy]
    without_slack = [
        row["rendezvous"]
        for row in slack
        if row["mean_slack_us"] <= _NO_SLACK_SHARE * row["mean_observed_us"]
    ]
    slow_hosts = ", ".join(network["slow_hosts"])
    # a slow host explains its slow pairs
    slow_pairs = [
        f"{row['source']} to {row['destination']} takes {row['ratio']:.1f} times what others take"
        for row in pairs
        if row["is_slow"] and not slow_hosts
    ]
    return (
        Judgement(
            "buffers",
            late["shortage"],
            f"{counted(late['late'], 'buffer')} mapped after the first program began, "
            f"{late['late_bytes']} bytes, in {late['late_us'] / 1000:.3f} ms; there is a shortage "
            "if that is more than 0.1 % of the trace",
            _RAISE_BUFFERS.format(late["late_bytes"]),
        ),
        Judgement(
            "copies",
            copies["n"] > 0,
            f"workers copied memory {counted(copies['n'], 'time')}, {copies['bytes']} bytes in "
            f"{copies['us'] / 1000:.3f} ms; transfers need no copy",
            _RAISE_BUFFERS.format(copies["bytes"]),
        ),
        Judgement(
            "latency_tail",
            tail >= _LEAST_TAIL and tail > _TAIL_SHARE * n,
            f"{tail} of {n} messages, without those of slow pairs, took more than 10 times the "
            "median of their size, and over 10 ms longer; a tail is more than 0.1 % of the messages"
            f"{doubt}",
            "check the TCP settings of the hosts: `xlatune megascale --check-env`",
        ),
        Judgement(
            "bandwidth",
            busy >= _LEAST_BUSY_SHARE,
            f"host {', '.join(busiest[:1]) or 'none'} is above 80 % of {link_gbit_s:g} Gbit/s in "
            f"{100 * busy:.1f} % of its milliseconds with traffic; a link is full from 10 % on",
            "move fewer bytes between slices: sharding, batch size of each replica; "
            "then look at the slack",
        ),
        Judgement(
            "slack",
            bool(without_slack),
            f"{len(without_slack)} of {len(slack)} rendezvous have slack below 10 % of "
            f"their time: {_first_names(without_slack)}",
            "let more computation run beside these transfers: schedule, sharding",
        ),
        Judgement(
            "one_host",
            bool(slow_hosts),
            f"slow hosts: {slow_hosts or 'none'}; a host is slow if more than half of its pairs "
            "are slow and no other host explains them",
            "test that host, or leave it out",
        ),
        Judgement(
            "one_pair",
            bool(slow_pairs),
            f"slow pairs: {_first_names(slow_pairs)}; a pair is slow if it takes more than twice "
            "what is usual for messages of the same size, with 5 messages or more",
            "test the path between the two hosts",
        ),
    )


def _first_names(names: list[str]) -> str:
    return ", ".join(names[:4]) or "none"
