"""`xlatune network`: why the network of a multi-slice job is slow, by its traces."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_xlatune.cli import add_json, show, show_json
from pytest_xlatune.evidence.trace.captures import captures_below
from pytest_xlatune.guests.megascale.network import PS_OF_US, NetworkTraffic, measure
from pytest_xlatune.guests.megascale.symptoms import LINK_GBIT_S, Judgement, judge
from pytest_xlatune.guests.megascale.traffic import read_traffic
from pytest_xlatune.model.errors import ConfigError

SCHEMA = 1
_ROWS = 10


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
    if arguments.json:
        show_json(network_json(network, verdicts))
    else:
        show(_lines(network, verdicts))
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
                "start_us": each.start_ps / PS_OF_US,
                "end_us": each.end_ps / PS_OF_US,
                "messages": each.messages,
                "bytes": each.size,
                "max_in_flight": each.most,
            }
            for each in network.bursts
        ],
        "pending": {
            "max_messages": network.most_pending,
            "max_bytes": network.most_pending_size,
        },
        "throughput_gbit_s": {"peak": network.peak},
        "hosts": [
            {
                "host": _host(each.host),
                "rx_bytes": each.rx.size,
                "tx_bytes": each.tx.size,
                "rx_peak_gbit_s": each.rx.peak,
                "tx_peak_gbit_s": each.tx.peak,
            }
            for each in network.hosts
        ],
        "pairs": [
            {
                "source": _host(each.source),
                "destination": _host(each.to),
                "n": each.n,
                "bytes": each.size,
                "p50_us": each.p50_us,
                "max_us": each.max_us,
            }
            for each in network.pairs
        ],
        "slow_pairs": [[_host(each.source), _host(each.to)] for each in network.slow_pairs],
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
                "device": each.device,
                "rendezvous": each.rendezvous,
                "n": each.n,
                "min_slack_us": min(each.slack_ps) / PS_OF_US,
                "mean_slack_us": each.mean_slack_ps / PS_OF_US,
                "sum_stall_us": each.sum_stall_ps / PS_OF_US,
                "mean_observed_us": each.mean_observed_ps / PS_OF_US,
            }
            for each in network.slack
        ],
        "symptoms": [
            {
                "symptom": each.symptom,
                "found": each.is_found,
                "text": f"{each.text}. {each.action}" if each.is_found else each.text,
            }
            for each in verdicts
        ],
    }


def _lines(network: NetworkTraffic, verdicts: tuple[Judgement, ...]) -> Iterator[str]:
    """Yield symptoms first, then the figures, for a terminal."""
    if not network.has_traffic:
        yield "no traffic between slices: no worker of Megascale sent or received in these traces"
        yield "  a job of one slice has none, nor has a job on GPUs; of a job with several slices,"
        yield "  give the xplane.pb of every host, profiled with host traces while it trains"
        return
    for each in verdicts:
        yield f"{'FOUND' if each.is_found else '-':6}{each.symptom:13}{each.text}"
        if each.is_found:
            yield f"{'':19}to do: {each.action}"
    kinds, latency = network.kinds, network.latency
    yield ""
    yield (
        f"messages: {kinds.valid} valid, {kinds.loopback} within a slice, {kinds.skew} without "
        f"latency, {kinds.bad_key} without a key; {network.size} bytes"
    )
    if latency is None:
        yield "no message between slices in these traces"
    else:
        of_messages, of_bytes = network.small
        largest = max(network.bursts, key=lambda each: each.size)
        yield (
            f"latency, us: p50 {latency.p50}, p95 {latency.p95}, p99 {latency.p99}, "
            f"max {latency.max}"
        )
        yield (
            f"sizes: {len(network.sizes)}; {100 * of_messages:.1f} % of the messages and "
            f"{100 * of_bytes:.1f} % of the bytes are below 1 MiB"
        )
        yield (
            f"in flight: at most {network.most_pending} messages, {network.most_pending_size} bytes"
        )
        yield (
            f"bursts: {len(network.bursts)}; the largest has {largest.messages} messages, "
            f"{largest.size} bytes in {(largest.end_ps - largest.start_ps) / PS_OF_US:.3f} us"
        )
        yield f"throughput: peak {network.peak:.3f} Gbit/s in 1 ms, all hosts together"
    for host in sorted(network.hosts, key=lambda each: -each.rx.peak - each.tx.peak)[:_ROWS]:
        directions = (("rx", host.rx), ("tx", host.tx))
        told = (
            f"{name} {each.size} bytes, peak {each.peak:.3f}, p95 {each.p95:.3f}, "
            f"mean {each.mean:.3f} Gbit/s, {100 * each.busy:.1f} % busy"
            for name, each in directions
        )
        yield f"host {_host(host.host)}: {'; '.join(told)}"
    for pair in sorted(network.pairs, key=lambda each: -each.ratio)[:_ROWS]:
        yield (
            f"pair {_host(pair.source)} to {_host(pair.to)}: {pair.n} messages, {pair.size} bytes, "
            f"p50 {pair.p50_us} us, p95 {pair.p95_us} us, max {pair.max_us} us, "
            f"{pair.ratio:.2f} of the usual, {pair.tail} in the tail"
        )
    for slack in network.slack[:_ROWS]:
        yield (
            f"{slack.device} {slack.rendezvous}: {slack.n} times, slack "
            f"{slack.mean_slack_ps / PS_OF_US:.1f} us (least {min(slack.slack_ps) / PS_OF_US:.1f}) "
            f"of {slack.mean_observed_ps / PS_OF_US:.1f} us, stall "
            f"{slack.sum_stall_ps / PS_OF_US:.1f} us in all"
        )


def _host(host: tuple[int, int]) -> str:
    return f"{host[0]}-{host[1]}"
