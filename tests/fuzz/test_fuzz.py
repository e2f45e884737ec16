"""A short fuzz run in every suite, the same each time; CI and `make fuzz` draw fresh inputs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from pytest_xlatune.catalog.context import Context
from pytest_xlatune.catalog.rules import check
from pytest_xlatune.executors.slurm._commands import SEPARATOR, parse_sacct
from pytest_xlatune.model.errors import XlatuneError
from pytest_xlatune.model.profile import Flag, Profile
from pytest_xlatune.model.text import same_value
from pytest_xlatune.studies.trials import wave_order
from tests.fuzz.fuzz import fuzz, one
from tests.fuzz.readers import Reader, readers


def test_every_sample_reads() -> None:
    for reader in readers():
        assert reader.samples, reader.name
        for sample in reader.samples:
            assert one(reader, sample) == "", reader.name


def test_a_short_run_finds_nothing() -> None:
    counts, found = fuzz(259740969, inputs=600)
    assert set(counts) == {each.name for each in readers()}
    assert not found, "; ".join(f"{each.reader}: {each.what}" for each in found)


def test_the_fuzzer_finds_what_it_looks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(data: bytes) -> None:
        if b"9" * 20 in data:
            raise TypeError("planted")

    planted = Reader(name="planted", samples=(b"a 1 b",), read=read)
    assert "TypeError" in one(planted, b"9" * 20)

    def sleeping(data: bytes) -> None:
        while True:
            len(data)

    monkeypatch.setattr("tests.fuzz.fuzz.LIMIT_S", 0.2)
    assert "more than 0.2 s" in one(Reader(name="slow", samples=(b"",), read=sleeping), b"")


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
        pytest.param(lambda: parse_sacct(sacct(f"{LONG}:{LONG}")), id="an exit code of Slurm"),
    ],
)  # fmt: skip
def test_a_number_of_thousands_of_digits_stops_nothing(take: Callable[[], object]) -> None:
    with suppress(XlatuneError):
        take()


def sacct(code: str) -> str:
    row = f"88|FAILED|{code}|n1|1768201689|1768201789|None|x|/w"
    return row.replace("|", SEPARATOR)


_RUN = b"x" * 70_000


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        pytest.param("HLO", b"%all-gather-start", b"%" + _RUN + b"[" * 9, id="a long operand"),
        pytest.param("HLO", b"bf16[", _RUN, id="a long name of a type"),
        pytest.param("Slurm", b"Reason=None", b" " * 50_000 + b"X" * 5, id="a long gap"),
        pytest.param("trace.json", b"/device:GPU:0", b"/device:GPU:" + b"9" * 4999, id="a number"),
        pytest.param("ledger", b'"attempt-intended"', b'["n1"]', id="an event that is a list"),
    ],
)
def test_what_a_run_of_a_million_inputs_found_stays_mended(
    name: str, old: bytes, new: bytes
) -> None:
    (reader,) = [each for each in readers() if each.name == name]
    samples = [each for each in reader.samples if old in each]
    assert samples, f"no sample of {name} holds {old!r}"
    for each in samples:
        for count in (1, 5):
            assert one(reader, each.replace(old, new, count)) == ""
