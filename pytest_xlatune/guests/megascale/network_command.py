"""`xlatune network`: why the network of a multi-slice job is slow, by its traces."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from pytest_xlatune.cli import add_json, show, show_json
from pytest_xlatune.evidence.trace.captures import captures_below
from pytest_xlatune.guests.megascale.network import (
    PS_OF_US,
    Counters,
    Latency,
    NetworkTraffic,
    Series,
    Slack,
    Way,
    measure,
    read_traffic,
    series_of,
)
from pytest_xlatune.guests.megascale.network.symptoms import LINK_GBIT_S, Judgement, judge
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.record import Json
from pytest_xlatune.report import plots as plots_of

SCHEMA = 1
_ROWS = 10
_SLOWEST = 3  # of a table by label or host


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
    parser.set_defaults(run=run_network)


def run_network(arguments: argparse.Namespace) -> int:
    """Show the figures and the symptoms, and leave the plots."""
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
        show(network_lines(network, verdicts, link_gbit_s=arguments.link))
    if arguments.plots is not None:
        _write_plots(arguments.plots, network, series_of(traffic))
    return 0


def _write_plots(folder: Path, network: NetworkTraffic, series: Series) -> None:
    after = "ms after the least time stamp of a line"
    plots = {
        "latency": plots_of.over_time(
            series.arrival_ms.tolist(),
            series.latency_us.tolist(),
            title="Latency of the messages between slices, by arrival",
            x_label=after,
            y_label="us",
            is_log=True,
        ),
        "throughput": plots_of.over_time(
            series.bin_ms.tolist(),
            series.gbit_s.tolist(),
            title="Throughput of all hosts together, in bins of 1 ms",
            x_label=after,
            y_label="Gbit/s",
        ),
        "pairs": plots_of.matrix(
            {(_host(each.source), _host(each.to)): each.ratio for each in network.pairs},
            title="How slow each pair is: times what all pairs take for the same size",
            x_label="destination: slice-device",
            y_label="source",
        ),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in plots.items():
            (folder / f"{name}.svg").write_text(text, encoding="utf-8")
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigError(f"--plots {folder}: {why}; name a folder that can be written") from None


def network_json(network: NetworkTraffic, verdicts: tuple[Judgement, ...]) -> Json:
    """Return the JSON document."""
    kinds, latency, mapped, copies = network.kinds, network.latency, network.mapped, network.copies
    return {
        "schema": SCHEMA,
        "messages": {
            "valid": kinds.valid,
            "loopback": kinds.loopback,
            "skew": kinds.skew,
            "bad_key": kinds.bad_key,
        },
        "bytes": network.size,
        "latency_us": {
            each: getattr(latency, each) if latency else None
            for each in ("p50", "p95", "p99", "max")
        },
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
            "late": mapped.late,
            "late_us": mapped.late_ps / PS_OF_US,
            "late_bytes": mapped.late_size,
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
            {"symptom": str(each.symptom), "found": each.is_found, "text": _told(each)}
            for each in verdicts
        ],
    }


def network_lines(
    network: NetworkTraffic, verdicts: tuple[Judgement, ...], *, link_gbit_s: float
) -> Iterator[str]:
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
    kinds, per_step = network.kinds, network.bytes_per_step
    steps = f"; {per_step:.0f} in each of {network.steps} steps" if per_step is not None else ""
    yield ""
    yield (
        f"messages: {kinds.valid} valid, {kinds.loopback} within a slice, {kinds.skew} without "
        f"latency, {kinds.bad_key} without a key; {network.size} bytes{steps}"
    )
    if network.latency is None:
        yield "no message between slices in these traces"
    else:
        yield from _message_lines(network, network.latency)
        yield from _traffic_lines(network)
    yield from _counter_lines(network.counters)
    for slack in network.slack[:_ROWS]:
        yield _slack_line(network, slack, link_gbit_s)


def _message_lines(network: NetworkTraffic, latency: Latency) -> Iterator[str]:
    yield f"latency, us: {_latency(latency)}"
    tables = (
        ("label", network.by_label),
        ("source", {_host(host): each for host, each in network.by_source.items()}),
        ("destination", {_host(host): each for host, each in network.by_destination.items()}),
    )
    for kind, table in tables:
        slowest = sorted(table.items(), key=lambda row: -row[1].p50)[:_SLOWEST]
        for name, of in slowest:
            yield f"  {kind} {name}: {of.n} messages, {_latency(of)}"
        if len(table) > len(slowest):
            yield f"  {kind}s with a lower p50: {len(table) - len(slowest)}"
    yield (
        f"tail: {network.tail} messages, {100 * network.tail / network.kinds.valid:.2f} %, above "
        "10 times and 10 ms over the median of their size"
    )
    for pair in sorted(network.pairs, key=lambda each: -each.tail)[:_SLOWEST]:
        if pair.tail:
            yield f"  {_host(pair.source)} to {_host(pair.to)}: {pair.tail}"
    yield f"rate of a message: p50 {network.rate_p50:.3f}, max {network.rate_max:.3f} Gbit/s"
    of_messages, of_bytes = network.small
    yield (
        f"sizes: {len(network.sizes)}; {100 * of_messages:.1f} % of the messages and "
        f"{100 * of_bytes:.1f} % of the bytes are below 1 MiB"
    )
    yield "  from: " + ", ".join(f"{size} bytes {n}" for size, n in network.powers.items())


def _traffic_lines(network: NetworkTraffic) -> Iterator[str]:
    yield (
        f"in flight: at most {network.most_pending} messages, {network.most_pending_size} bytes; "
        f"on average {network.mean_pending:.3f} messages, {network.mean_pending_size:.0f} bytes"
    )
    largest = max(network.bursts, key=lambda each: each.size)
    yield (
        f"bursts: {len(network.bursts)}; the largest from {largest.start_ps / PS_OF_US:.3f} us, "
        f"{(largest.end_ps - largest.start_ps) / PS_OF_US:.3f} us long: {largest.messages} "
        f"messages, {largest.size} bytes, {largest.mean_gbit_s:.3f} Gbit/s, at most "
        f"{largest.most} in flight"
    )
    yield f"throughput: peak {network.peak:.3f} Gbit/s in 1 ms, all hosts together"
    for host in sorted(network.hosts, key=lambda each: -each.rx.peak - each.tx.peak)[:_ROWS]:
        yield f"host {_host(host.host)}: rx {_way(host.rx)}; tx {_way(host.tx)}"
    for pair in sorted(network.pairs, key=lambda each: -each.ratio)[:_ROWS]:
        yield (
            f"pair {_host(pair.source)} to {_host(pair.to)}: {pair.n} messages, {pair.size} bytes, "
            f"p50 {pair.p50_us} us, p95 {pair.p95_us} us, max {pair.max_us} us, "
            f"{pair.ratio:.2f} of the usual"
        )


def _counter_lines(counters: Counters) -> Iterator[str]:
    """Yield the figures of Megascale's own counters, where the trace has them."""
    for way, flow in (("received", counters.received), ("sent", counters.sent)):
        if flow.n:
            dropped = (
                f"; {flow.dropped} with a wrong duration count no rate" if flow.dropped else ""
            )
            yield (
                f"counters, {way}: {flow.n} transfers, {flow.size} bytes, at most {flow.most_size} "
                f"bytes in flight, peak {flow.peak:.3f} Gbit/s{dropped}"
            )
    if counters.collectives:
        yield (
            f"counters, collectives: {counters.collectives}, at most {counters.most_collectives} "
            f"at once, {counters.most_size} bytes"
        )


def _slack_line(network: NetworkTraffic, slack: Slack, link_gbit_s: float) -> str:
    needed, told = slack.needed_gbit_s, ""
    if needed is not None:
        devices = network.devices_beside(slack.device)
        share = 100 * needed * devices / link_gbit_s
        told = (
            f"; needs {needed:.3f} Gbit/s for {slack.size:.0f} bytes, on {devices} devices "
            f"{share:.1f} % of the link"
        )
    times_ps = (slack.mean_slack_ps, min(slack.slack_ps), slack.p50_slack_ps)
    mean, least, half = (f"{each / PS_OF_US:.1f}" for each in times_ps)
    return (
        f"{slack.device} {slack.rendezvous}: {slack.n} times, slack {mean} us (least {least}, p50 "
        f"{half}) of {slack.mean_observed_ps / PS_OF_US:.1f} us, stall "
        f"{slack.sum_stall_ps / PS_OF_US:.1f} us in all{told}"
    )


def _latency(each: Latency) -> str:
    return f"p50 {each.p50}, p95 {each.p95}, p99 {each.p99}, max {each.max}"


def _way(each: Way) -> str:
    return (
        f"{each.size} bytes, peak {each.peak:.3f}, p95 {each.p95:.3f}, mean {each.mean:.3f} "
        f"Gbit/s, {100 * each.busy:.1f} % busy"
    )


def _told(verdict: Judgement) -> str:
    return f"{verdict.text}. {verdict.action}" if verdict.is_found else verdict.text


def _host(host: tuple[int, int]) -> str:
    return f"{host[0]}-{host[1]}"
