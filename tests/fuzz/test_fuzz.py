"""A short fuzz run in every suite, the same each time; CI and `make fuzz` draw fresh inputs."""

from __future__ import annotations

import pytest

from tests.fuzz.fuzz import Reader, fuzz, one, readers

LONG = b"9" * 5000  # Python refuses to make an integer of it, with a ValueError


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


_RUN = b"x" * 70_000


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        pytest.param("HLO", b"%all-gather-start", b"%" + _RUN + b"[" * 9, id="a long operand"),
        pytest.param("HLO", b"bf16[", _RUN, id="a long name of a type"),
        pytest.param("Slurm", b"Reason=None", b" " * 50_000 + b"X" * 5, id="a long gap"),
        pytest.param("Slurm", b"1:0", LONG + b":" + LONG, id="an exit code"),
        pytest.param("flags", b"=8", b"=" + LONG, id="a value"),
        pytest.param("flags", b"=8", b"=1.5\x1e", id="a blank that only strip() removes"),
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
