"""Judge the symptoms of a slow network, in the order of the documented procedure, with figures.

The rules are our own, and each text gives its threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_xlatune.guests.megascale.network import NetworkTraffic, Pair, Slack
from pytest_xlatune.model.text import counted

LINK_GBIT_S = 100.0  # 12.5 GB/s for a host, as xprof assumes
_RAISE = "raise --megascale_grpc_premap_memory_bytes by at least {}, start again, and look again"
_TAIL_SHARE, _LEAST_TAIL = 0.001, 3
_BUSY = 0.1  # share of a host's bins with traffic that are above 80 % of the link
_NEAR_ZERO = 0.1  # slack over observed time
_SKEW = 0.01


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a symptom was found, the figures that decide it, and what to do about it."""

    symptom: str
    is_found: bool
    text: str
    action: str


def judge(network: NetworkTraffic, *, link_gbit_s: float) -> tuple[Judgement, ...]:
    """Return a judgement of each symptom, in the order of the procedure."""
    late, copies = network.map_dma, network.memory_copies
    n, skew = network.messages["valid"], network.messages["skew"]
    far = sum(pair.tail for pair in network.pairs if not pair.is_slow)
    doubt = ""
    if skew > _SKEW * (n + skew):
        doubt = "; more than 1 % of the messages have no latency: the clocks of hosts disagree"
    busiest = max(network.hosts, key=lambda host: host.busy, default=None)
    bandwidth = "no traffic"
    if busiest is not None:
        share = f"{100 * busiest.busy:.1f} %"
        bandwidth = f"host {busiest.host} is above 80 % of {link_gbit_s:g} Gbit/s in {share}"
    tight = [
        slack
        for slack in network.slack
        if slack.mean_slack_us <= _NEAR_ZERO * slack.mean_observed_us
    ]
    slow_hosts = ", ".join(network.slow_hosts)
    slow_pairs = network.slow_pairs if not slow_hosts else ()
    one_host = f"all slow pairs have {slow_hosts}" if slow_hosts else ""
    one_pair = "; ".join(map(_pair, slow_pairs[:4]))
    if not network.slow_pairs:
        one_host = one_pair = "no pair is slow"
    return (
        Judgement(
            "buffers",
            late["shortage"],
            f"{counted(late['late'], 'buffer')} mapped after the first program began, "
            f"{late['late_bytes']} bytes, {late['late_us'] / 1000:.3f} ms; a shortage is more than "
            "0.1 % of the trace",
            _RAISE.format(late["late_bytes"]),
        ),
        Judgement(
            "copies",
            copies["n"] > 0,
            f"memory copied {counted(copies['n'], 'time')} by workers, {copies['bytes']} bytes, "
            f"{copies['us'] / 1000:.3f} ms, {100 * copies['n'] / n if n else 0.0:.1f} for 100 "
            "messages; transfers need none",
            _RAISE.format(copies["bytes"]),
        ),
        Judgement(
            "latency_tail",
            far >= _LEAST_TAIL and far > _TAIL_SHARE * n,
            f"{far} of {n} messages, those on slow pairs left out, are above 10 times and "
            f"10 ms over the median of their size; a tail is more than 0.1 %{doubt}",
            "check the TCP settings of the hosts: `xlatune megascale --check-env`",
        ),
        Judgement(
            "bandwidth",
            busiest is not None and busiest.busy >= _BUSY,
            f"{bandwidth} of its milliseconds with traffic; 10 % are a full link",
            "move fewer bytes between slices: sharding, batch size of each replica; "
            "then look at the slack",
        ),
        Judgement(
            "slack",
            bool(tight),
            _slack(network, tight),
            "let more computation run beside these transfers: schedule, sharding",
        ),
        Judgement(
            "one_host",
            bool(slow_hosts),
            f"{one_host or 'the slow pairs have no host in common'}; a host is slow if more "
            "than half of its pairs are slow and no other host explains them",
            f"test the host of {slow_hosts}, or leave it out",
        ),
        Judgement(
            "one_pair",
            bool(slow_pairs),
            f"{one_pair or 'the slow pairs are those of a slow host'}; slow is twice what all "
            "take for a size, with 5 messages or more",
            "test the path between the two hosts",
        ),
    )


def _slack(network: NetworkTraffic, tight: list[Slack]) -> str:
    if not tight:
        return "every rendezvous overlaps" if network.slack else "no rendezvous in the trace"
    worst = tight[0]
    return (
        f"{len(tight)} of {len(network.slack)} rendezvous with slack below 10 % of their time; "
        f"the worst is {worst.rendezvous} on {worst.device}: "
        f"{worst.mean_slack_us:.1f} us of {worst.mean_observed_us:.1f} us"
    )


def _pair(pair: Pair) -> str:
    return f"{pair.source} to {pair.destination} takes {pair.ratio:.1f} times what others take"
