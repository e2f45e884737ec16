"""Settings of a host are compared with what public documents advise."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_xlatune.cli import main
from pytest_xlatune.guests.megascale.environment import check, settings_of_this_host

GOOD = {
    "proc/sys/net/ipv4/tcp_slow_start_after_idle": "0",
    "proc/sys/net/core/default_qdisc": "fq",
    "proc/sys/net/ipv4/tcp_rmem": "4096 41943040 314572800",
    "proc/sys/net/ipv4/tcp_rto_min_us": "5000",
    "sys/module/tcp_cubic/parameters/hystart_detect": "2",
    "sys/class/net/eth0/mtu": "8896",
    "sys/class/net/lo/mtu": "65536",
}
BAD = {
    "tcp_slow_start_after_idle": "1",
    "default_qdisc": "fq_codel",
    "tcp_rmem": "4096 131072 6291456",
    "tcp_rto_min_us": "200000",
    "hystart_detect": "3",
    "mtu": "1460",
}


def test_each_setting_is_judged_by_its_advice(tmp_path: Path) -> None:
    for path, text in GOOD.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(f"{text}\n")
    found = {item.name: item.is_good for item in check(settings_of_this_host(tmp_path))}
    names = ("mtu.eth0", *(name for name in BAD if name != "mtu"))
    assert found == dict.fromkeys(names, True)
    assert {item.name: item.is_good for item in check(BAD)} == dict.fromkeys(BAD, False)
    assert {item.is_good for item in check(dict.fromkeys(BAD, ""))} == {None}


def test_the_command_looks_at_this_host(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["megascale", "--check-env"]) in (0, 1)
    assert "source: " in capsys.readouterr().out
    assert main(["megascale"]) == 2
