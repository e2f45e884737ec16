"""The table of failure signatures: each names its own sample; harmless lines name nothing."""

from __future__ import annotations

import re
import tomllib

import msgspec
import pytest

from pytest_xlatune.logs import read_log
from pytest_xlatune.logs._signatures import Signature, Tier, read_table, table
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.result import Action, Finding

TABLE = table()
EACH = pytest.mark.parametrize(
    "each", TABLE.signatures, ids=lambda each: f"{each.cls}: {each.words[0]}"
)


def found(line: str) -> Finding | None:
    findings = read_log([line.encode() + b"\n"]).findings
    assert len(findings) <= 1
    return findings[0] if findings else None


@EACH
def test_a_sample_is_named_by_its_own_signature(each: Signature) -> None:
    for prefix in ("", " 3: ", "0: (Actor pid=7, ip=10.0.0.9) "):
        finding = found(prefix + each.sample)
        assert finding is not None, prefix
        assert (finding.cls, finding.action) == (each.cls, each.action), prefix
        assert finding.text == (prefix + each.sample).strip()
    # no earlier signature matches
    low = each.sample.lower()
    first = next(
        one
        for one in TABLE.signatures
        if any(word in low for word in one.words) and one.pattern.search(each.sample)
    )
    assert first is each


def test_every_signature_is_well_formed() -> None:
    phases = {"start", "container", "stage", "init", "compile", "train", "cluster", "any"}
    for each in TABLE.signatures:
        for word in each.words:
            assert word == word.lower()
            # letters are left to the sieve
            assert len(re.sub(r"[^f-z_]", "", word)) >= 3, word
        assert each.source, each.sample
        assert each.phase in phases, each.sample
        # a detail names groups of its own pattern
        named = set(re.findall(r"{(\w+)}", each.detail))
        assert named <= each.pattern.groupindex.keys(), each.sample
        assert not each.detail or named, each.sample


def test_harmless_lines_name_nothing() -> None:
    for line, pattern in TABLE.harmless.items():
        assert found(line) is None, line
        assert re.search(pattern, line), line


@pytest.mark.parametrize(
    "line",
    [
        "failed call to cuInit: CUDA_ERROR_UNKNOWN (303)",
        "n1:1:2 [0] NCCL INFO NCCL error 3",
        "bfc] ran out of memory trying to allocate 2GiB; this is not a failure",
    ],
)
def test_harmless_lines_would_name_something_were_they_not_listed(line: str) -> None:
    assert any(each.pattern.search(line) for each in TABLE.signatures)
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
    "no flag named, as on a line cut short": (
        "F0112 07:08:09.8 77 parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS:",
        "unknown-flag",
        "",
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
    "too little memory for RCCL": (
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


def test_the_actions_of_what_can_never_run_are_drops() -> None:
    actions = {each.cls: each.action for each in TABLE.signatures}
    for cls in ("unknown-flag", "bad-flag-value", "oom-gpu", "oom-rccl-headroom",
                "numerical-failure", "xla-check-fail", "xla-compile-fail"):  # fmt: skip
        assert actions[FailureClass(cls)] is Action.DROP


def test_only_a_soft_success_counts_as_success() -> None:
    assert [cls for cls in FailureClass if cls.action is Action.SUCCESS] == ["soft-success"]
    assert Action.SUCCESS not in {each.action for each in TABLE.signatures}


def test_a_class_ranks_as_its_most_telling_signature() -> None:
    assert {each.tier for each in TABLE.signatures if each.cls == "bad-flag-value"} == {
        Tier.CAUSE,
        Tier.CONSEQUENCE,
    }
    assert TABLE.tiers["bad-flag-value"] is Tier.CAUSE
    assert TABLE.tiers["hang-init"] is Tier.CONSEQUENCE
    assert TABLE.tiers["killed"] is Tier.GENERIC


ROW = r"""
[[signature]]
class = "killed"
phase = "any"
action = "retry"
words = ["killed"]
regex = ["Killed", 'ended by (?P<detail>\w+)']
sample = "Killed"
source = "the shell"

[[harmless]]
regex = "fine"
sample = "all is fine"

[class.lost]
action = "retry"
tier = "symptom"
"""


def test_a_table_is_read() -> None:
    read = read_table(tomllib.loads(ROW))
    (only,) = read.signatures
    assert (only.cls, only.tier, only.is_fatal) == (FailureClass.KILLED, Tier.CAUSE, False)
    assert only.pattern.pattern == r"Killed|ended by (?P<detail>\w+)"
    assert read.words == frozenset({"killed"})
    assert read.harmless == {"all is fine": "fine"}
    assert read.told == {FailureClass.LOST: Tier.SYMPTOM}


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('class = "killed"', 'class = "kiled"'),
        ('"retry"', '"retri"'),
        ('"symptom"', '"symptoms"'),
        ("class.lost", "class.lots"),
        ("phase", "faze"),
    ],
)
def test_a_table_with_an_unknown_word_is_refused(right: str, wrong: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        read_table(tomllib.loads(ROW.replace(right, wrong)))
