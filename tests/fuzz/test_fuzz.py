"""A short fuzz run in every suite, with a fresh random number; CI and `make fuzz` run longer."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import suppress

import pytest

from pytest_xlatune.catalog.context import Context, closes_ring
from pytest_xlatune.catalog.rules import check
from pytest_xlatune.evidence.network._reading import parse_bytes
from pytest_xlatune.executors.slurm._commands import SEPARATOR, parse_sacct
from pytest_xlatune.model.errors import XlatuneError
from pytest_xlatune.model.profile import Flag, Profile
from pytest_xlatune.model.text import same_value
from pytest_xlatune.studies.trials import wave_order
from pytest_xlatune.tasks import check_environment
from tests.fuzz.fuzz import fuzz, one
from tests.fuzz.readers import Reader, readers


def test_every_sample_reads() -> None:
    for reader in readers():
        assert reader.samples, reader.name
        for sample in reader.samples:
            assert one(reader, sample) == "", reader.name


def test_a_short_run_finds_nothing() -> None:
    number = secrets.randbelow(10**9)
    counts, found = fuzz(number, seconds=10)
    assert counts.total() > 100
    assert not found, f"--number {number}: " + "; ".join(f"{e.reader}: {e.what}" for e in found)


def test_the_fuzzer_finds_what_it_looks_for() -> None:
    def read(data: bytes) -> None:
        if b"9" * 20 in data:
            raise TypeError("planted")

    planted = Reader(name="planted", samples=(b"a 1 b",), read=read)
    assert "TypeError" in one(planted, b"9" * 20)

    def sleeping(data: bytes) -> None:
        while True:
            len(data)

    assert "more than 2.0 s" in one(Reader(name="slow", samples=(b"",), read=sleeping), b"")


LONG = "9" * 5000  # Python refuses to make an integer of it, with a ValueError


def rules() -> object:
    env = {"NCCL_BUFFSIZE": f"{LONG}M", "NCCL_MAX_NCHANNELS": LONG}
    names = ("all_gather_combine_threshold_bytes", "experimental_parallel_collective_overlap_limit")
    flags = tuple(Flag(name=f"xla_gpu_{name}", value=LONG) for name in names)
    profile = Profile(id="long", flags=flags, env=env)
    return check((Profile(id="other"), profile), Context())


@pytest.mark.parametrize(
    "take",
    [
        pytest.param(rules, id="the catalog's rules"),
        pytest.param(lambda: same_value(LONG, f"1{LONG}"), id="two spellings of a flag"),
        pytest.param(lambda: wave_order(f"wave{LONG}"), id="a wave"),
        pytest.param(lambda: closes_ring(f"{{0,{LONG}}},{{{LONG},0}}"), id="pairs"),
        pytest.param(
            lambda: tuple(check_environment.check(dict.fromkeys(
                ("jax", "tcp_rmem", "mtu.eth0", "hystart_detect"), f"{LONG}"
            ))), id="a host's settings",
        ),
        pytest.param(lambda: parse_bytes(f"{LONG}.{LONG}GB"), id="bytes in a trace"),
        pytest.param(lambda: parse_sacct(sacct(f"{LONG}:{LONG}")), id="an exit code of Slurm"),
    ],
)  # fmt: skip
def test_a_number_of_thousands_of_digits_stops_nothing(take: Callable[[], object]) -> None:
    with suppress(XlatuneError):
        take()


def sacct(code: str) -> str:
    row = f"88|FAILED|{code}|n1|1768201689|1768201789|None|x|/w"
    return row.replace("|", SEPARATOR)
