"""The table of failure signatures: each row names its own sample; harmless lines name nothing."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_xlatune.logs import read_log
from pytest_xlatune.logs.row import Row
from pytest_xlatune.logs.sieve import Sieve
from pytest_xlatune.logs.signatures import BENIGN, DIAGNOSED, SIGNATURES, table, words
from pytest_xlatune.results import Action, Finding


def found(line: str) -> Finding | None:
    findings = read_log([line.encode() + b"\n"]).findings
    assert len(findings) <= 1
    return findings[0] if findings else None


@pytest.mark.parametrize("row", SIGNATURES, ids=lambda row: f"{row.cls}: {row.words[0]}")
@pytest.mark.parametrize("prefix", ["", " 3: ", "0: (Actor pid=7, ip=10.0.0.9) "])
def test_a_sample_gives_exactly_its_row(row: Row, prefix: str) -> None:
    finding = found(prefix + row.sample)
    assert finding is not None
    assert (finding.cls, finding.action) == (row.cls, row.action)
    assert finding.text == (prefix + row.sample).strip()
    earlier = SIGNATURES[: SIGNATURES.index(row)]
    low = row.sample.lower()
    assert not [
        each.cls
        for each in earlier
        if any(word in low for word in each.words) and each.pattern.search(row.sample)
    ]


@pytest.mark.parametrize("row", SIGNATURES, ids=lambda row: f"{row.cls}: {row.words[0]}")
def test_every_word_of_a_row_is_lower_case_and_leaves_letters_to_sieve(row: Row) -> None:
    for word in row.words:
        assert word == word.lower()
        assert len(re.sub(r"[^f-z_]", "", word)) >= 3, word


@pytest.mark.parametrize("line", BENIGN, ids=lambda line: line[:40])
def test_harmless_lines_name_nothing(line: str) -> None:
    assert found(line) is None
    assert re.search(BENIGN[line], line)


@pytest.mark.parametrize(
    "line",
    [
        "failed call to cuInit: CUDA_ERROR_UNKNOWN (303)",
        "n1:1:2 [0] NCCL INFO NCCL error 3",
        "bfc] ran out of memory trying to allocate 2GiB; this is not a failure",
    ],
)
def test_harmless_lines_would_name_something_were_they_not_listed(line: str) -> None:
    assert any(row.pattern.search(line) for row in SIGNATURES)
    assert found(line) is None


SPELLINGS = {
    "the date form of old wheels": (
        ("2026-01-12 07:08:09.795207: F external/xla/parse_flags_from_env.cc:225] Unknown flags "
        "in XLA_FLAGS: --xla_one=1 --xla_two  "),
        "unknown-flag",
        "--xla_one=1 --xla_two",
    ),
    "one flag, glog": (
        ("F0112 07:08:09.888154 14479 parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: "
        "--xla_one=1"),
        "unknown-flag",
        "--xla_one=1",
    ),
    "TensorFlow's advice on the same line": (
        ("Unknown flags in XLA_FLAGS: --xla_one Perhaps you meant to specify these on the "
        "TF_XLA_FLAGS envvar?"),
        "unknown-flag",
        "--xla_one",
    ),
    "a compile option": (
        "INVALID_ARGUMENT: No such compile option: 'xla_one'",
        "unknown-flag",
        "xla_one",
    ),
    "a value that is no number": (
        "command_line_flags.cc:93] Couldn't interpret value maybe for flag xla_one.",
        "bad-flag-value",
        "xla_one=maybe",
    ),
    "an enumeration": ("Illegal value for --xla_one 'BOGUS'", "bad-flag-value", "xla_one=BOGUS"),
    "flags taken for a file": (
        ('Could not open file "xla_one" to read flags for environment variable "XLA_FLAGS". (We '
        'assumed that it was a file name because it did not start with a "--".)'),
        "flags-file-missing",
        "xla_one",
    ),
    "OOM in GiB": (
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 12.96GiB.:",
        "oom-gpu",
        "12.96 GiB",
    ),
    "OOM in TiB with a space": (
        "E: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1.50 TiB.",
        "oom-gpu",
        "1.50 TiB",
    ),
    "OOM in bytes": (
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 5000 bytes.",
        "oom-gpu",
        "5000 bytes",
    ),
    "OOM of the CPU client": (
        "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 77 bytes.",
        "oom-gpu",
        "77 bytes",
    ),
    "OOM wrapped to the next line": ("RESOURCE_EXHAUSTED:", "oom-gpu", ""),
    "OOM of HIP": ("RuntimeError: hipErrorOutOfMemory", "oom-gpu", ""),
    "no room for RCCL": (
        "n1:1:2 [0] NCCL WARN Failed to CUDA calloc 8192 bytes",
        "oom-rccl-headroom",
        "8192 bytes",
    ),
    "another HSA status": (
        "HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION",
        "gpu-hardware",
        "HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION",
    ),
    "a completion error": (
        "NET/IB: Got completion with status=IBV_WC_RETRY_EXC_ERR(12) vendor err 129",
        "nic-fault",
        "IBV_WC_RETRY_EXC_ERR",
    ),
    "an ionic completion error": ("ionic_comp_msn cqe with error", "nic-fault",
                                  "ionic_comp_msn cqe with error"),
    "hipError_t(9)": ("RuntimeError: INTERNAL: : hipError_t(9)", "gpu-memory-fault", ""),
    "a bare Killed": ("Killed", "killed", ""),
    "bash's Killed": ("run.sh: line 7: 812 Killed                  python3 t.py", "killed", ""),
    "the kernel's oom-kill": ("oom-kill:constraint=CONSTRAINT_MEMCG", "oom-host", ""),
    "the kernel's last word": ("Out of memory: Killed process 812 (python3)", "oom-host", ""),
    "an unreachable GitHub": (
        "fatal: unable to access 'https://github.com/a/b/': Could not resolve host",
        "github-5xx",
        "",
    ),
    "Slurm ended a job whose node died": (
        ("slurmstepd: error: *** JOB 8 ON n1 CANCELLED AT 2026-01-12T07:08:09 DUE TO NODE FAILURE, "
        "SEE SLURMCTLD LOG FOR DETAILS ***"),
        "node-fail",
        "",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("line", "cls", "detail"), SPELLINGS.values(), ids=SPELLINGS.keys())
def test_spellings(line: str, cls: str, detail: str) -> None:
    finding = found(line)
    assert finding is not None
    assert (finding.cls, finding.detail) == (cls, detail)


@pytest.mark.parametrize(
    "line",
    [
        "n1:1:2 [0] NCCL WARN NET/Plugin: no plugin found",
        "see Traceback (most recent call last): in the manual",
        "RESOURCE_EXHAUSTED: Shared memory size limit exceeded: requested 9, available 8",
        "  --xla_gpu_autotune_level=4  int32  Set to 0 to ignore errors",
        "the errors of the fit are small",
        "error: 0.5",
        "Config param abort_on_nan_loss: True",
        "NODE_EXIT host=n1 exit=0",
        "killed 3 stale containers",
    ],
)
def test_lines_that_only_resemble_a_failure(line: str) -> None:
    assert found(line) is None


def test_the_sieve_lets_every_word_through_in_any_case() -> None:
    sieve = Sieve(words())
    for word in words():
        assert sieve.may_hold(f"12 {word.upper()}!".encode())
        assert sieve.lines(f"dull 1\n{word}\ndull 2\n".encode()) == (3, [(1, word.encode())])


def test_the_sieve_remembers_only_so_much() -> None:
    sieve = Sieve(["killed"])
    for first in range(0, 40_000, 1000):
        block = b"".join(bytes([102 + each % 20]) * (each // 80 + 1) + b"\n"
                         for each in range(first, first + 1000))  # fmt: skip
        assert sieve.lines(block) == (1000, [])
    assert len(sieve._dull) <= (1 << 14) + 1000
    assert max(map(len, sieve._dull)) <= 1 << 9


def test_the_actions_of_what_can_never_run_are_drops() -> None:
    actions = {row.cls: row.action for row in SIGNATURES}
    for cls in ("unknown-flag", "bad-flag-value", "oom-gpu", "oom-rccl-headroom",
                "numerical-failure", "xla-check-fail", "xla-compile-fail"):  # fmt: skip
        assert actions[cls] is Action.DROP
    assert {cls for cls, (action, _, _) in DIAGNOSED.items() if action is Action.SUCCESS} == {
        "soft-success"
    }


def test_the_documentation_holds_the_table() -> None:
    page = Path(__file__).parents[2] / "docs" / "logs.md"
    assert "\n".join(table()) in page.read_text(encoding="utf-8")
