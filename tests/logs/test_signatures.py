"""The table of failure signatures: each names its own sample; harmless lines name nothing."""

from __future__ import annotations

import re

import pytest

from pytest_xlatune.logs import read_log
from pytest_xlatune.logs._signatures import Signature, Tier, table
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.result import Action, Finding

TABLE = table()


def found(line: str) -> Finding | None:
    findings = read_log([line.encode() + b"\n"]).findings
    assert len(findings) <= 1
    return findings[0] if findings else None


@pytest.mark.parametrize("each", TABLE.signatures, ids=lambda each: f"{each.cls}: {each.words[0]}")
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
    for each in TABLE.signatures:
        for word in each.words:
            assert word == word.lower()
            # letters are left to the sieve
            assert len(re.sub(r"[^f-z_]", "", word)) >= 3, word
        assert each.source, each.sample
        # a detail names groups of its own pattern
        named = set(re.findall(r"{(\w+)}", each.detail))
        assert named <= each.pattern.groupindex.keys(), each.sample
        assert not each.detail or named, each.sample


def test_harmless_lines_name_nothing() -> None:
    for line, pattern in TABLE.harmless.items():
        assert found(line) is None, line
        assert re.search(pattern, line), line
    # lines that a signature would name if they were not listed
    for line in (
        "failed call to cuInit: CUDA_ERROR_UNKNOWN (303)",
        "n1:1:2 [0] NCCL INFO NCCL error 3",
        "bfc] ran out of memory trying to allocate 2GiB; this is not a failure",
    ):
        assert any(each.pattern.search(line) for each in TABLE.signatures)
        assert found(line) is None


def test_the_actions_of_what_can_never_run_are_drops() -> None:
    actions = {each.cls: each.action for each in TABLE.signatures}
    for cls in ("unknown-flag", "bad-flag-value", "oom-gpu", "oom-rccl-headroom",
                "numerical-failure", "xla-check-fail", "xla-compile-fail"):  # fmt: skip
        assert actions[FailureClass(cls)] is Action.DROP
    # only a soft success counts as success
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
