"""Every reader takes damaged samples: a value or an error of ours comes out, in little time."""

from __future__ import annotations

import contextlib
import gzip
import json
import math
import os
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from pytest_xlatune.catalog.context import Context
from pytest_xlatune.catalog.rules import check
from pytest_xlatune.evidence.hlo import read_hlo
from pytest_xlatune.evidence.hlo.dump import read_debug_options, read_memory_report
from pytest_xlatune.evidence.trace._chrome import read_trace_json
from pytest_xlatune.evidence.trace.breakdown import drill
from pytest_xlatune.executors.slurm._commands import (
    SEPARATOR,
    parse_sacct,
    parse_scontrol,
    parse_squeue,
)
from pytest_xlatune.executors.slurm.nodes import parse_sinfo
from pytest_xlatune.ledger import LEDGER, Ledger
from pytest_xlatune.logs import read_log
from pytest_xlatune.logs._signatures import table
from pytest_xlatune.logs.figures import read_figures
from pytest_xlatune.logs.grammar import parse_metrics
from pytest_xlatune.logs.triage import diagnose, end_of, primary
from pytest_xlatune.model.cell import Parallelism, Protocol
from pytest_xlatune.model.errors import ParseError, XlatuneError
from pytest_xlatune.model.metric import BUSBW
from pytest_xlatune.model.profile import Profile, parse_flags
from pytest_xlatune.model.record import read_json
from pytest_xlatune.model.result import Outcome, TrialResult
from pytest_xlatune.report.measured_cell import read_cells
from pytest_xlatune.stats.score import score
from pytest_xlatune.studies.trials import wave_order
from pytest_xlatune.sweep.settings import read_settings
from pytest_xlatune.tasks.import_table import read_table
from pytest_xlatune.tasks.read_logs import protocol_of, score_with
from tests.helpers.captures import node, read_xplane, reconciles, trace_json
from tests.helpers.log_lines import read as read_in_pieces
from tests.helpers.log_lines import step

MOST_BYTES = 1 << 17
LIMIT_S, LIMIT_S_PER_BYTE = 2.0, 40e-6  # of CPU time: the machine may be busy
DIGITS = re.compile(rb"\d+")
WORDS = (
    *(b"0", b"-1", b"9" * 20, b"9" * 5000, b"1e999", b"-1e-999", b"nan", b"-inf", b"NaN", b"0x7f"),
    *(b"[" * 50_000, b"{" * 3000, b'{"a":' * 2000, b"]" * 99, b'"', b"'", b"\\", b",", b":", b"="),
    *(b"\n", b"\r", b"\0", b"\t", b"\x1b[36m", b"\xff\xfe", b"\xef\xbb\xbf", "\u0663".encode()),
    *(b"completed step: ", b"XLA_FLAGS=", b"Config param steps: ", b"[1-65536]", b"n[1-999999999]"),
    *(b"null", b"true", b"{}", b"[]", b"%s", b"${x}", b" " * 5000, b"x" * 70_000, b"|", b"---"),
)


def mutated(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    """Return a sample with some of its bytes, numbers or parts changed."""
    data = rng.choice(samples)
    for _ in range(rng.choice((0, 1, 1, 2, 3, 6, 12))):
        at = rng.randrange(len(data) + 1)
        to = min(len(data), at + rng.choice((1, 2, 8, 64, 1000)))
        head, middle, tail = data[:at], data[at:to], data[to:]
        other = rng.choice(samples)
        match rng.randrange(9):
            case 0:
                data = head + rng.randbytes(len(middle)) + tail
            case 1:
                data = head + tail
            case 2:
                data = head + rng.choice(WORDS) + middle + tail
            case 3:
                data = head + rng.choice(WORDS) + tail
            case 4:
                data = head + middle * rng.choice((2, 3, 50)) + tail
            case 5:
                data = head
            case 6:
                data = head + other[rng.randrange(len(other) + 1) :]
            case 7 if middle:
                data = head + bytes([middle[0] ^ 1 << rng.randrange(8)]) + middle[1:] + tail
            case _:
                if numbers := list(DIGITS.finditer(data[: 1 << 14])):
                    digits = rng.choice(numbers)
                    new = (b"0", b"-1", b"1" * 30, b"9" * 4999, b"1.5e308", b"2147483648")
                    data = data[: digits.start()] + rng.choice(new) + data[digits.end() :]
        data = data[:MOST_BYTES]
    return data


DATA = Path(__file__).parents[1] / "data"
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Reader:
    """What reads a text, and texts that it reads."""

    name: str
    samples: tuple[bytes, ...]
    read: Callable[[bytes], object]

    def check(self, data: bytes) -> None:
        """Read an input; an error that is none of ours fails, and so does one that takes long."""
        began_s = time.process_time()
        with contextlib.suppress(XlatuneError):
            self.read(data)
        assert time.process_time() - began_s < LIMIT_S + LIMIT_S_PER_BYTE * len(data)


def text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def flags(data: bytes) -> None:
    """Read flags, and hold a profile with them against the rules of the catalog."""
    known = parse_flags(text(data))
    value = str(known[0].value) if known else ""
    env = {"NCCL_BUFFSIZE": f"{value}M", "NCCL_MAX_NCHANNELS": value}
    check((Profile(id="other"), Profile(id="these", flags=known, env=env)), Context())
    wave_order(f"wave{value}")


def of_text(read: Callable[[str], object]) -> Callable[[bytes], object]:
    return lambda data: read(text(data))


def log(data: bytes) -> None:
    """Read whole, line by line in full and in chunks to the same; judge and score it."""
    whole = read_log([data])
    rng = random.Random(len(data))
    cuts = [
        rng.randrange(len(data)) for _ in range(len(data) // rng.choice((9, 300, 5000, 40_000)))
    ]
    if repr(read_in_pieces(data, (), is_in_full=True)[0]) != repr(whole):
        raise AssertionError("step lines read by their shape give another report")
    if repr(read_in_pieces(data, cuts)[0]) != repr(whole):
        raise AssertionError("another chunking gives another report")
    protocol = protocol_of(whole)
    for each in (protocol, replace(protocol, metric="busbw")):
        primary(diagnose(whole, end_of(whole), each))
        score_with(whole, each)


def metrics(data: bytes) -> None:
    score(parse_metrics(text(data)), protocol=Protocol(), tokens_per_device_step=math.nan)


def ledger(data: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        (Path(folder) / LEDGER).write_bytes(data)
        Ledger(Path(folder) / LEDGER).refresh()


def toml(data: bytes) -> None:
    with tempfile.TemporaryDirectory(dir=SCRATCH) as folder:
        (Path(folder) / "xlatune.toml").write_bytes(data)
        read_settings(Path(folder) / "xlatune.toml", root=Path(folder))


def hlo(data: bytes) -> None:
    read_hlo(text(data).splitlines(keepends=True), "fuzz")


def options(data: bytes) -> None:
    for read in (read_debug_options, read_memory_report):
        read(text(data))


def records(data: bytes) -> None:
    try:
        value = read_json(data)
    except ValueError:
        raise ParseError("no JSON") from None
    for kind in (Outcome, TrialResult):
        try:
            kind.from_json(value)
        except XlatuneError:
            continue


def slurm(data: bytes) -> None:
    for parse in (parse_sacct, parse_squeue, parse_scontrol, parse_sinfo):
        parse(text(data))


SCRATCH = Path("/dev/shm") if Path("/dev/shm").is_dir() else None


def log_samples() -> Iterator[bytes]:
    labels = ("", " 0: I0112 07:08:09.123456 140001 metric_logger.py:226] ", "(Actor pid=812) ")
    plain, labelled, of_ray = (
        "".join(f"{label}{step(each, 990.5 + each)}\n" for each in range(12)) for label in labels
    )
    config = (
        "JOB_ID=88\nXLA_FLAGS=--xla_a=1 --xla_b='x y'\nNCCL_DEBUG=INFO\n"
        "Config param steps: 15\nConfig param profiler: ProfilerType.XPLANE\n"
        "Config param per_device_batch_size: 7.0\nConfig param max_target_length: 4096\n"
        "Config param eval_interval: -1\nMemstats: After params initialized:\n"
    )
    known = [each.sample for each in table().signatures] + list(table().harmless)
    ends = (
        "Status:  FAILED (exit 143) - stage\n== Training FAILED (exit=143, 84s) ==\n"
        "slurmstepd: error: *** JOB 8 ON n1 CANCELLED AT 2026-01-12T07:08 DUE TO TIME LIMIT ***\n"
    )
    yield (config + plain).encode()
    yield (config + labelled + ends).encode()
    yield (config * 2 + of_ray + "\n".join(known[::2])).encode()
    yield ("\n".join(known) + "\n" + plain).encode()
    yield "".join(
        f"{rank}@gpu{rank + 17:03d}> {line}\n"
        for line in (*config.splitlines(), *plain.splitlines(), *known[:3])
        for rank in range(3)
    ).encode()
    yield (
        b"[1,0]<stdout>: completed 7, per-step scalar metrics {'learning/loss': 9.25, "
        b"'perf/step_time_seconds': Array(0.52, dtype=float32)}\r\x1b[36mx\x1b[0m\0\n"
        b"[20260929 19:48:42][rank-0/16][INFO] completed profiler activation/deactivation step: 5, "
        b"total_weights: 1024, loss: 7.4\n"
    )


def metric_sample() -> bytes:
    figures = {
        "learning/loss": 7.1,
        "perf/step_time_seconds": 0.5,
        "perf/per_device_tokens_per_sec": 1024.0,
        "perf/per_device_tflops_per_sec": math.nan,
    }
    lines = (json.dumps({"step": float(step), **figures}) + "\n" for step in range(15))
    return "".join(lines).encode()


def slurm_samples() -> Iterator[bytes]:
    for row in (
        "88|FAILED|1:0|node[001-004]|1768201689|1768201789|None|x|/w",
        "88|CANCELLED by 0|None assigned|Unknown|Unknown|Priority||",
        "n1|idle|batch*|none|8/0/0/8|2026-01-12T07:08:09|root",
    ):
        yield row.replace("|", SEPARATOR).encode() * 2
    yield (
        b"JobId=88 JobName=x UserId=u(1) Reason=None JobState=RUNNING ExitCode=0:0 "
        b"StartTime=1768201689 EndTime=Unknown NodeList=node[001-004] WorkDir=/w Comment=c\n"
    )


def readers() -> tuple[Reader, ...]:
    """Return every reader."""
    programs = sorted((DATA / "evidence").rglob("*.txt.gz"))[:4]
    beside = [*(DATA / "evidence").rglob("*.debug_options"), *(DATA / "evidence").rglob("*.txt")]
    ledgers = sorted((ROOT / "reports").rglob("*.json"))[:2]
    event = (
        b'{"schema":4,"at":1.0,"event":"nodes-pinned","cell_digest":"ab","nodes":["n1","n2"]}\n'
        b'{"schema":4,"at":2.5,"event":"attempt-intended","trial_id":"t","attempt":1,'
        b'"comment":"c"}\n'
    )
    outcome = b'{"state":"failed","exit_code":1,"signal":null,"nodes":["n1"],"start_s":1.5}'
    plain = (
        b"job,profile,flags,env,tgs,step_s,status\n1,baseline,,,990.5,28.9,ok\\n"
        b'2,a,--xla_a=1,"NCCL_X=1 NCCL_Y=\'a b\'","1,001.5",25.24 s,ok\n3,b,,,,,oom\n'
    )
    settings = b'budget = 40\nnodelist = "node[001-008]"\n[slurm]\nqos = "m"\nalpha = [1, 2.5]\n'
    cells = tuple(each.read_bytes()[:30_000] for each in ledgers) or (b"{}",)
    sizes = ("all_gather_combine_threshold_bytes", "graph_level", "autotune_level")
    flag_samples = tuple(f"--xla_gpu_{name}=8".encode() for name in sizes)
    flag_samples += (b"--xla_a=1 --xla_b='x y' --xla_c --noxla_d",)
    figures = ((DATA / "nccl_tests.txt").read_bytes(), next(log_samples()))
    capture = node(steps=2, gpus=1).data()
    events = (trace_json(40), gzip.decompress(trace_json(20)))
    return (
        Reader("log", tuple(log_samples()), log),
        Reader("metrics file", (metric_sample(),), metrics),
        Reader("figures", figures, lambda data: read_figures(data.splitlines(True), BUSBW)),
        Reader("ledger", (event,), ledger),
        Reader("settings", (settings,), toml),
        Reader("table", (plain,), of_text(partial(read_table, where="fuzz"))),
        Reader("HLO", tuple(gzip.decompress(each.read_bytes())[:60_000] for each in programs), hlo),
        Reader("beside HLO", tuple(each.read_bytes()[:20_000] for each in beside[:6]), options),
        Reader("xplane", (capture,), lambda data: reconciles(drill([read_xplane(data, "fuzz")]))),
        Reader("trace.json", events, lambda data: reconciles(drill([read_trace_json(data, "f")]))),
        Reader("Slurm", tuple(slurm_samples()), slurm),
        Reader("records", (outcome,), records),
        Reader("known cells", cells, of_text(partial(read_cells, where="fuzz"))),
        Reader("flags", flag_samples, flags),
        Reader("parallelism", (b"PP=2,FSDP=4",), of_text(Parallelism.parse)),
    )


READERS = {reader.name: reader for reader in readers()}
# how many inputs all readers get together in `make fuzz`; 0 elsewhere
INPUTS = int(os.environ.get("FUZZ_INPUTS", "0"))
DEFAULT = settings.get_profile(settings.get_current_profile_name()).max_examples


@pytest.mark.parametrize("name", READERS)
@settings(max_examples=INPUTS // len(READERS) or DEFAULT)
@given(number=st.integers(0, 2**32))
def test_a_damaged_sample_ends_in_a_value_or_an_error_of_ours(name: str, number: int) -> None:
    samples = READERS[name].samples
    READERS[name].check(mutated(random.Random(number), samples))


LONG = b"9" * 5000  # Python refuses to make an integer of it, with a ValueError
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
    samples = [each for each in READERS[name].samples if old in each]
    assert samples, f"no sample of {name} holds {old!r}"
    for each in samples:
        for count in (1, 5):
            READERS[name].check(each.replace(old, new, count))
