"""Check the network settings of this host by what public documents advise for multi-slice jobs.

Nothing is changed. Each item names its source.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from pytest_xlatune.model.text import to_integer

_GOOGLE = (
    "docs.cloud.google.com/compute/docs/networking/"
    "tcp-optimization-for-network-performance-in-gcp-and-hybrid"
)
_BENCHMARKS = "github.com/AI-Hypercomputer/accelerator-microbenchmarks, Trillium collectives"
LEAST_RMEM = 314_572_800  # bytes of the largest receive buffer
LEAST_MTU = 4082  # bytes of the largest packet
MOST_RTO_US = 5000  # the most microseconds of TCP's least retransmission timeout

# setting -> the file of the kernel that holds it
FILES = {
    "tcp_slow_start_after_idle": "proc/sys/net/ipv4/tcp_slow_start_after_idle",
    "default_qdisc": "proc/sys/net/core/default_qdisc",
    "tcp_rmem": "proc/sys/net/ipv4/tcp_rmem",
    "tcp_rto_min_us": "proc/sys/net/ipv4/tcp_rto_min_us",
    "hystart_detect": "sys/module/tcp_cubic/parameters/hystart_detect",
}


class Item(NamedTuple):
    """A setting of a host, and what a public document advises about it."""

    name: str
    value: str  # "" if it cannot be read
    is_good: bool | None  # None if it cannot be read
    advice: str  # the advised value
    source: str  # the public document with the advice


def settings_of_this_host(root: Path = Path("/")) -> dict[str, str]:
    """Return setting -> value; a setting that cannot be read has the value ""."""
    interfaces = sorted((root / "sys/class/net").glob("*/mtu"))
    files = {f"mtu.{path.parent.name}": path for path in interfaces if path.parent.name != "lo"}
    files |= {name: root / path for name, path in FILES.items()}
    return {name: _text_of(path) for name, path in files.items()}


def _text_of(path: Path) -> str:
    try:
        return " ".join(path.read_text(encoding="utf-8").split())
    except OSError:
        return ""


def check(settings: Mapping[str, str]) -> Iterator[Item]:
    """Yield an item for each setting."""
    for name, value in settings.items():
        is_good, advice, source = _SETTINGS[name.partition(".")[0]]
        yield Item(name, value, is_good(value), advice, source)


def _number_check(is_good_number: Callable[[int], bool]) -> Callable[[str], bool | None]:
    """Return a check of the last number in a value; it returns None if there is no number."""

    def check_number(value: str) -> bool | None:
        number = to_integer(value.rpartition(" ")[2])
        return None if number is None else is_good_number(number)

    return check_number


# name -> a function that returns `Item.is_good` for a value, the advice, the source
_SETTINGS: dict[str, tuple[Callable[[str], bool | None], str, str]] = {
    "tcp_slow_start_after_idle": (_number_check(lambda n: n == 0), "0", _GOOGLE),
    "default_qdisc": (lambda value: value == "fq" if value else None, "fq", _GOOGLE),
    "hystart_detect": (_number_check(lambda n: not n & 1), "without bit 1, e.g. 2", _GOOGLE),
    "tcp_rto_min_us": (
        _number_check(lambda n: n <= MOST_RTO_US),
        "5000 or less (Linux 6.11+)",
        _GOOGLE,
    ),
    "tcp_rmem": (_number_check(lambda n: n >= LEAST_RMEM), "4096 41943040 314572800", _BENCHMARKS),
    "mtu": (_number_check(lambda n: n >= LEAST_MTU), f"{LEAST_MTU} or more", _GOOGLE),
}
