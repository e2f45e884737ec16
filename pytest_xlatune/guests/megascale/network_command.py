"""`xlatune network`: why the network of a multi-slice job is slow, by its traces."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tabulate import tabulate

from pytest_xlatune.cli import add_json, show, show_json
from pytest_xlatune.evidence.trace.captures import captures_below
from pytest_xlatune.guests.megascale.network import PS_OF_US, NetworkTraffic, measure
from pytest_xlatune.guests.megascale.symptoms import LINK_GBIT_S, Judgement, judge
from pytest_xlatune.guests.megascale.traffic import read_traffic
from pytest_xlatune.model.errors import ConfigError

SCHEMA = 1
_ROWS = 10
_FIGURES = ("messages", "bytes", "latency_us", "sizes", "pending", "throughput_gbit_s")
_TABLES = {  # of the document -> the column that the largest are shown of
    "bursts": "bytes",
    "hosts": "tx_peak_gbit_s",
    "pairs": "p50_us",
    "slack": "sum_stall_us",
}
_NO_TRAFFIC = (
    "no traffic between slices: no worker of Megascale sent or received in these traces",
    "  a job of one slice has none, nor has a job on GPUs; of a job with several slices,",
    "  give the xplane.pb of every host, profiled with host traces while it trains",
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
    traffic = read_traffic({path.resolve(): path for path in files}.values())  # each once
    network = measure(traffic, link_gbit_s=arguments.link)
    verdicts = judge(network, link_gbit_s=arguments.link)
    document = network_json(network, verdicts)
    if arguments.json:
        show_json(document)
    elif not network.has_traffic:
        show(_NO_TRAFFIC)
    else:
        show(_lines(document, verdicts))
    return 0


def network_json(network: NetworkTraffic, verdicts: tuple[Judgement, ...]) -> dict[str, Any]:
    """Return the JSON document."""
    kinds, latency, mapped, copies = network.kinds, network.latency, network.mapped, network.copies
    return {
        "schema": SCHEMA,
        "messages": {
            each: getattr(kinds, each) for each in ("valid", "loopback", "skew", "bad_key")
        },
        "bytes": network.size,
        "latency_us": {each: getattr(latency, each, None) for each in ("p50", "p95", "p99", "max")},
        "sizes": {str(size): n for size, n in network.sizes.items()},
        "bursts": [
            {
                "start_us": burst.start_ps / PS_OF_US,
                "end_us": burst.end_ps / PS_OF_US,
                "messages": burst.messages,
                "bytes": burst.size,
                "max_in_flight": burst.most,
            }
            for burst in network.bursts
        ],
        "pending": {
            "max_messages": network.most_pending,
            "max_bytes": network.most_pending_size,
        },
        "throughput_gbit_s": {"peak": network.peak},
        "hosts": [
            {
                "host": _host(traffic.host),
                "rx_bytes": traffic.rx.size,
                "tx_bytes": traffic.tx.size,
                "rx_peak_gbit_s": traffic.rx.peak,
                "tx_peak_gbit_s": traffic.tx.peak,
            }
            for traffic in network.hosts
        ],
        "pairs": [
            {
                "source": _host(pair.source),
                "destination": _host(pair.to),
                "n": pair.n,
                "bytes": pair.size,
                "p50_us": pair.p50_us,
                "max_us": pair.max_us,
            }
            for pair in network.pairs
        ],
        "slow_pairs": [[_host(pair.source), _host(pair.to)] for pair in network.slow_pairs],
        "slow_hosts": [_host(each) for each in network.slow_hosts],
        "map_dma": {
            "early": mapped.early,
            "late": mapped.late.n,
            "late_us": mapped.late.ps / PS_OF_US,
            "late_bytes": mapped.late.size,
            "shortage": mapped.is_short,
        },
        "memory_copies": {"n": copies.n, "us": copies.ps / PS_OF_US, "bytes": copies.size},
        "slack": [
            {
                "device": slack.device,
                "rendezvous": slack.rendezvous,
                "n": slack.n,
                "min_slack_us": min(slack.slack_ps) / PS_OF_US,
                "mean_slack_us": slack.mean_slack_ps / PS_OF_US,
                "sum_stall_us": slack.sum_stall_ps / PS_OF_US,
                "mean_observed_us": slack.mean_observed_ps / PS_OF_US,
            }
            for slack in network.slack
        ],
        "symptoms": [
            {
                "symptom": judgement.symptom,
                "found": judgement.is_found,
                "text": f"{judgement.text}. {judgement.action}"
                if judgement.is_found
                else judgement.text,
            }
            for judgement in verdicts
        ],
    }


def _lines(document: Mapping[str, Any], verdicts: tuple[Judgement, ...]) -> Iterator[str]:
    """Yield symptoms first, then the figures of the document, for a terminal."""
    for judgement in verdicts:
        yield f"{'FOUND' if judgement.is_found else '-':6}{judgement.symptom:13}{judgement.text}"
        if judgement.is_found:
            yield f"{'':19}to do: {judgement.action}"
    yield ""
    for name in _FIGURES:
        value = document[name]
        if isinstance(value, dict):
            value = ", ".join(f"{key} {_shown(of)}" for key, of in value.items()) or "none"
        yield f"{name}: {value}"
    for name, column in _TABLES.items():
        rows = sorted(document[name], key=lambda row, by=column: row[by], reverse=True)  # type: ignore[misc]
        if rows:
            yield f"\n{name}: {len(rows)}, those with the most {column}"
            yield tabulate(rows[:_ROWS], headers="keys", floatfmt=".3f")


def _shown(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def _host(host: tuple[int, int]) -> str:
    return f"{host[0]}-{host[1]}"
