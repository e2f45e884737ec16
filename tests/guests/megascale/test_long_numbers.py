"""A number of thousands of digits stops no reader: Python refuses to make an integer of it."""

from __future__ import annotations

from contextlib import suppress

from pytest_xlatune.guests.megascale.environment import check
from pytest_xlatune.guests.megascale.traffic import parse_bytes
from pytest_xlatune.model.errors import XlatuneError

LONG = "9" * 5000


def test_in_the_settings_of_a_host() -> None:
    names = ("jax", "tcp_rmem", "mtu.eth0", "hystart_detect")
    with suppress(XlatuneError):
        tuple(check(dict.fromkeys(names, LONG)))


def test_in_the_bytes_of_a_trace() -> None:
    with suppress(XlatuneError):
        parse_bytes(f"{LONG}.{LONG}GB")
