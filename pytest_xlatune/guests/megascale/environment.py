"""Whether a host is set up for multi-slice jobs: settings that public documents name. Read-only.

Of this host, or of a text that the script below printed on another one. Each item has its source;
what no public document names is not here.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pytest_xlatune.model.text import whole

_OPENXLA = "openxla.org/xla: Debugging MXLA issues"
_GOOGLE = (
    "docs.cloud.google.com/compute/docs/networking/"
    "tcp-optimization-for-network-performance-in-gcp-and-hybrid"
)
_BENCHMARKS = "github.com/AI-Hypercomputer/accelerator-microbenchmarks, Trillium collectives"
_VERSION = 'import importlib.metadata as m; print(m.version("jax"))'
LEAST_RMEM = 314_572_800
LEAST_MTU = 4082
MOST_RTO_US = 5000

FILES = {
    "tcp_slow_start_after_idle": "/proc/sys/net/ipv4/tcp_slow_start_after_idle",
    "default_qdisc": "/proc/sys/net/core/default_qdisc",
    "tcp_rmem": "/proc/sys/net/ipv4/tcp_rmem",
    "tcp_rto_min_us": "/proc/sys/net/ipv4/tcp_rto_min_us",
    "hystart_detect": "/sys/module/tcp_cubic/parameters/hystart_detect",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One setting: its value ("" where it cannot be seen), whether it is as advised, the source."""

    name: str
    value: str
    is_good: bool | None  # None: not seen, or a matter of choice
    advice: str
    source: str


def script(python: str = "python3") -> str:
    """Return a shell script that prints these settings and changes nothing."""
    lines = [f'echo "{name}=$(cat {path} 2>/dev/null)"' for name, path in FILES.items()]
    lines += [
        'for n in /sys/class/net/*; do echo "mtu.${n##*/}=$(cat $n/mtu 2>/dev/null)"; done',
        f'echo "jax=$({shlex.quote(python)} -c {_VERSION!r} 2>/dev/null)"',
        'echo "XLA_FLAGS=$XLA_FLAGS"',
        'echo "LIBTPU_INIT_ARGS=$LIBTPU_INIT_ARGS"',
    ]
    return "\n".join(("#!/bin/sh", *lines)) + "\n"


def of_this_host() -> str:
    """Return what the script prints here, with this interpreter."""
    done = subprocess.run(
        ["/bin/sh", "-c", script(sys.executable)], capture_output=True, text=True, check=False
    )
    return done.stdout


def parse(text: str) -> dict[str, str]:
    """Read what the script printed; other lines are ignored."""
    known = {*FILES, "jax", "XLA_FLAGS", "LIBTPU_INIT_ARGS"}
    pairs = (line.partition("=") for line in text.splitlines())
    return {
        name: value.strip() for name, _, value in pairs if name in known or name.startswith("mtu.")
    }


def check(found: Mapping[str, str]) -> Iterator[Item]:
    """Yield an item for each setting."""
    version = re.match(r"(\d{1,9})\.(\d{1,9})", found.get("jax", ""))
    is_new = (int(version[1]), int(version[2])) >= (0, 6) if version else None
    yield Item(
        name="jax",
        value=found.get("jax", ""),
        is_good=is_new,
        advice="0.6 or newer, and jax.distributed.initialize() in the program: the log then says "
        "which host has the trouble",
        source=_OPENXLA,
    )
    flags = found.get("XLA_FLAGS", "")
    yield Item(
        name="XLA_FLAGS",
        value=flags,
        is_good=True if "--xla_dump_to" in flags else None,
        advice="--xla_dump_to=FOLDER, to compare programs after a mismatch (optional)",
        source=_OPENXLA,
    )
    arguments = f"{flags} {found.get('LIBTPU_INIT_ARGS', '')}"
    yield Item(
        name="vmodule",
        value=" ".join(re.findall(r"--vmodule=\S+", arguments)),
        is_good=True if "real_program_continuator=1" in arguments else None,
        advice="--vmodule=real_program_continuator=1, to log what programs do (optional)",
        source=_OPENXLA,
    )
    yield _number(found, "tcp_slow_start_after_idle", lambda v: v == 0, "0")
    qdisc = found.get("default_qdisc", "")
    yield Item(
        name="default_qdisc",
        value=qdisc,
        is_good=qdisc == "fq" if qdisc else None,
        advice="fq",
        source=_GOOGLE,
    )
    yield _number(found, "hystart_detect", lambda v: not v & 1, "without bit 1, e.g. 2")
    yield _number(found, "tcp_rto_min_us", lambda v: v <= MOST_RTO_US, "5000 or less (Linux 6.11+)")
    most = found.get("tcp_rmem", "").split()
    yield Item(
        name="tcp_rmem",
        value=" ".join(most),
        is_good=_judged(most[-1] if most else "", lambda v: v >= LEAST_RMEM),
        advice="4096 41943040 314572800",
        source=_BENCHMARKS,
    )
    for name, value in found.items():
        if name.startswith("mtu.") and name != "mtu.lo":
            is_good = _judged(value, lambda v: v >= LEAST_MTU)
            advice = f"{LEAST_MTU} or more"
            yield Item(name=name, value=value, is_good=is_good, advice=advice, source=_GOOGLE)


def _judged(value: str, good: Callable[[int], bool]) -> bool | None:
    number = whole(value)
    return None if number is None else good(number)


def _number(found: Mapping[str, str], name: str, good: Callable[[int], bool], advice: str) -> Item:
    value = found.get(name, "")
    is_good = _judged(value, good)
    return Item(name=name, value=value, is_good=is_good, advice=advice, source=_GOOGLE)
