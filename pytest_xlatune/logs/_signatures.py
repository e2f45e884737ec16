"""Find the failure that one line of a log shows, by the table of signatures.

The table `signatures.toml` is data, and explains its fields. This module checks and applies it; it
must not know a particular failure. A pattern is compiled when one of its words first occurs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum

import msgspec

from pytest_xlatune.model.failure import Action, FailureClass, Finding, signatures
from pytest_xlatune.model.text import shortened

EVIDENCE_CHARS = 500
_LEAST_TAKEN = 60  # characters; the least limit at which a pattern cuts a text: `.{0,60}`
_BEFORE_WORD, _AFTER_WORD = 500, 1500  # characters around a word that a pattern sees
# severities:  W0112 07:08:09.000001 77 lhs.cc:1]
#   2026-01-12 07:08:09.123456: F external/xla/a.cc:1]
# torch writes months without a leading zero:  [rank6]:[F429 14:03:49.385461578 a.cpp:1554]
_SEVERITY = re.compile(r"\b([IWEF])\d{3,4} \d\d:\d\d:\d{2,15}\.\d|\d\d:\d\d:\d\d\.\d+: ([IWEF]) ")
# source lines in a traceback are no evidence, because they have `{k}` in place of the key:
#      raise ValueError(f"Key {k} was passed at the command line but
_SOURCE = re.compile(r"\s{2,}(?:raise\b|f?['\"])")
# errors of JAX:  jax.errors.JaxRuntimeError: INTERNAL: ...    jaxlib.xla_extension.XlaRuntimeError:
_RAISED = re.compile(r"(?:jax|jaxlib)\.[\w.]*(?:Jax|Xla)RuntimeError: ")


class Tier(StrEnum):
    """How close a class is to the root of a cascade such as OOM -> NCCL timeout -> heartbeat.

    The values are compared as texts, and their alphabetical order is that of the tiers.
    """

    CAUSE = "cause"
    CONSEQUENCE = "consequence"  # what other ranks print when one has died
    GENERIC = "generic"  # says that something failed, but not what
    SYMPTOM = "symptom"  # the fact of an end without a reason


class Signature(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    dict=True,
    forbid_unknown_fields=True,
    rename={"cls": "class", "is_fatal": "fatal"},
):
    """One way in which a failure appears in a line; `signatures.toml` explains the fields."""

    cls: FailureClass
    action: Action
    words: tuple[str, ...]
    regex: tuple[str, ...]
    sample: str
    source: str
    tier: Tier = Tier.CAUSE
    is_fatal: bool = False
    ignore_case: bool = False
    detail: str = ""

    @functools.cached_property
    def pattern(self) -> re.Pattern[str]:
        """The compiled `regex`."""
        return re.compile("|".join(self.regex), re.IGNORECASE if self.ignore_case else 0)

    def detail_of(self, match: re.Match[str]) -> str:
        """Return the figure or name in a match; "" if it has none."""
        groups = {name: text and text.strip() for name, text in match.groupdict().items()}
        for name, text in groups.items():
            # a pattern that matches so many characters, `.{0,160}`, may end inside a word
            if text and len(text) >= _LEAST_TAKEN and match.end(name) == match.end():
                groups[name] = shortened(match.string[match.start(name) :].lstrip(), len(text))
        if not self.detail:
            return next(filter(None, groups.values()), "")
        return "" if None in groups.values() else self.detail.format_map(groups)


class SignatureTable(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The content of `signatures.toml`."""

    signatures: tuple[Signature, ...]  # in order; the first one that matches a line counts
    # sample line -> the pattern that finds it: lines that occur in good runs
    harmless: dict[str, str]
    combined: dict[FailureClass, Tier]  # classes that follow only from log and outcome together

    @functools.cached_property
    def words(self) -> Mapping[str, Sequence[int]]:
        """Word -> the indices of its signatures; a line without any word shows no failure."""
        indices: dict[str, list[int]] = {}
        for at, signature in enumerate(self.signatures):
            for word in signature.words:
                indices.setdefault(word, []).append(at)
        return indices

    @functools.cached_property
    def tiers(self) -> Mapping[str, Tier]:
        """Class -> its tier; if its signatures differ, that of the most informative one."""
        ranked = sorted(self.signatures, key=lambda signature: signature.tier, reverse=True)
        tiers = [*self.combined.items(), *((row.cls, row.tier) for row in ranked)]
        return {str(cls): tier for cls, tier in tiers}

    @functools.cached_property
    def good(self) -> re.Pattern[str]:
        """The pattern that finds a harmless line."""
        return re.compile("|".join(self.harmless.values()))


@functools.cache
def table() -> SignatureTable:
    """Return the table of `signatures.toml`, which is read once.

    Raises:
        msgspec.ValidationError: a class, action, tier or field is unknown.
    """
    content = signatures()
    classes = content["class"]
    usual = {cls: {"action": row["action"]} for cls, row in classes.items() if "action" in row}
    table_content = {
        "signatures": [usual.get(row["class"], {}) | row for row in content["signature"]],
        "harmless": {row["sample"]: row["regex"] for row in content["harmless"]},
        "combined": {cls: row["tier"] for cls, row in classes.items() if "tier" in row},
    }
    return msgspec.convert(table_content, SignatureTable)


def is_harmless(text: str) -> bool:
    """Return whether a line is known to occur in good runs."""
    return table().good.search(text[: _BEFORE_WORD + _AFTER_WORD]) is not None


def sight(text: str, *, line: int, evidence: str) -> tuple[Finding | None, bool]:
    """Return what the line with this number shows, and whether its program cannot go on.

    `text` is the line without its prefix, `evidence` with it, because that contains the severity.
    A harmless line shows None. A program survives what its logger calls a warning, and ends at what
    it calls fatal, whatever the signature says; an error of JAX at the beginning of a line is the
    end of a traceback.
    """
    # MSCCL++ and the LL cutoffs print NCCL WARN in good runs
    if is_harmless(text) or _SOURCE.match(text):
        return None, False
    logged = _SEVERITY.search(evidence)
    severity = (logged[1] or logged[2]) if logged else ""
    shown = shortened(evidence.strip(), EVIDENCE_CHARS)
    for signature, match in _matches(text):
        finding = Finding(
            cls=signature.cls,
            action=signature.action,
            line=line,
            text=shown,
            detail=shortened(signature.detail_of(match), EVIDENCE_CHARS),
        )
        ends = signature.is_fatal or severity == "F" or _RAISED.match(text) is not None
        return finding, ends and severity not in ("I", "W") and finding.action is not Action.NONE
    if severity != "F":
        return None, False
    # an unknown fatal line is a finding too, because its program ends there
    detail = shortened(text.strip(), EVIDENCE_CHARS)
    cls = FailureClass.FATAL_LINE
    action = cls.action or Action.RETRY
    return Finding(cls=cls, action=action, line=line, text=shown, detail=detail), True


def _matches(text: str) -> Iterator[tuple[Signature, re.Match[str]]]:
    """Yield the signatures that match a line, in order.

    A pattern may take more than linear time, so it only sees the surroundings of a word.
    """
    low, known = text.lower(), table()
    places = {
        at: low.find(word) for word, indices in known.words.items() if word in low for at in indices
    }
    for at, place in sorted(places.items()):
        begin = max(0, place - _BEFORE_WORD)
        match = known.signatures[at].pattern.search(text, begin, place + _AFTER_WORD)
        if match is not None:
            yield known.signatures[at], match
