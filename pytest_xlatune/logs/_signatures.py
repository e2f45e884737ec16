"""One line of a log -> the failure that it shows, by the table of signatures.

The table is data: `signatures.toml`, which says what its fields mean. This module checks it and
asks it; it must not know a particular failure. A pattern is compiled when the first line holds one
of its words.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec

from pytest_xlatune.model.failure import Action, FailureClass, Finding, signatures
from pytest_xlatune.model.text import begun

EVIDENCE_CHARS = 500
_CODE = re.compile(r"E\d{4}")
_LEAST_TAKEN = 60  # characters; of `signatures.toml`
_BEFORE_WORD, _AFTER_WORD = 500, 1500  # characters
# W0112 07:08:09.000001 77 lhs.cc:1]      2026-01-12 07:08:09.123456: F external/xla/flags.cc:225]
# torch writes no zero in front of a month:  [rank6]:[F429 14:03:49.385461578 a.cpp:1554]
_SEVERITY = re.compile(r"\b([IWEF])\d{3,4} \d\d:\d\d:\d{2,15}\.\d|\d\d:\d\d:\d\d\.\d+: ([IWEF]) ")
# a line of source that a traceback quotes is no evidence: it has `{k}` in the place of the key
#      raise ValueError(f"Key {k} was passed at the command line but
_SOURCE = re.compile(r"\s{2,}(?:raise\b|f?['\"])")
# jax.errors.JaxRuntimeError: INTERNAL: ...      jaxlib.xla_extension.XlaRuntimeError: INTERNAL: ...
_RAISED = re.compile(r"(?:jax|jaxlib)\.[\w.]*(?:Jax|Xla)RuntimeError: ")


class Tier(StrEnum):
    """How near a class is to the root of a cascade such as OOM -> NCCL timeout -> heartbeat.

    The alphabet has the words in the order of their rank, by which they are compared.
    """

    CAUSE = "cause"
    CONSEQUENCE = "consequence"  # what the other ranks print when one died
    GENERIC = "generic"  # says that something failed, not what
    SYMPTOM = "symptom"  # the fact of an end, without any reason


class Signature(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    dict=True,
    forbid_unknown_fields=True,
    rename={"cls": "class", "is_fatal": "fatal"},
):
    """One way in which a failure shows in a line; the fields are those of `signatures.toml`."""

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
    code: str = ""

    @functools.cached_property
    def pattern(self) -> re.Pattern[str]:
        """The compiled `regex`."""
        return re.compile("|".join(self.regex), re.IGNORECASE if self.ignore_case else 0)

    def code_of(self, match: re.Match[str]) -> str:
        """Return the code of XLA's published list that a match has; "" without one."""
        codes = (name for name, text in match.groupdict().items() if text and _CODE.fullmatch(name))
        return next(codes, self.code)

    def detail_of(self, match: re.Match[str]) -> str:
        """Return the figure or name that a match holds, "" where it holds none."""
        groups = {name: text and text.strip() for name, text in match.groupdict().items()}
        for name, text in groups.items():
            # a pattern that takes so many characters, `.{0,160}`, may end within a word
            if text and len(text) >= _LEAST_TAKEN and match.end(name) == match.end():
                groups[name] = begun(match.string[match.start(name) :].lstrip(), len(text))
        if not self.detail:
            return next(filter(None, groups.values()), "")
        return "" if None in groups.values() else self.detail.format_map(groups)


class SignatureTable(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The whole of `signatures.toml`."""

    signatures: tuple[Signature, ...]  # in order; the first one that matches a line names it
    # sample line -> the pattern that finds it: lines that appear in good runs
    harmless: dict[str, str]
    combined: dict[FailureClass, Tier]  # the classes that log and outcome tell together
    # code of XLA's published list -> what its page advises
    published: dict[str, str]

    @property
    def words(self) -> frozenset[str]:
        """Every word of every signature: a line without any of them shows no failure."""
        return frozenset(word for word, _ in self.places)

    @functools.cached_property
    def places(self) -> tuple[tuple[str, int], ...]:
        """Each word with the index of its signature."""
        return tuple(
            (word, at) for at, signature in enumerate(self.signatures) for word in signature.words
        )

    @functools.cached_property
    def tiers(self) -> Mapping[str, Tier]:
        """Class -> its tier; where its signatures differ, that of the most telling one."""
        ranked = sorted(self.signatures, key=lambda signature: signature.tier, reverse=True)
        return {str(cls): tier for cls, tier in self.combined.items()} | {
            signature.cls: signature.tier for signature in ranked
        }

    @functools.cached_property
    def good(self) -> re.Pattern[str]:
        """What finds a harmless line."""
        return re.compile("|".join(self.harmless.values()))


def read_table(content: Mapping[str, Any]) -> SignatureTable:
    """Read a table of signatures, as `signatures.toml` has it.

    Raises:
        msgspec.ValidationError: a class, action, tier or field is unknown.
    """
    classes = content["class"]
    usual = {cls: {"action": row["action"]} for cls, row in classes.items() if "action" in row}
    rows = [usual.get(row["class"], {}) | row for row in content["signature"]]
    made = {
        "signatures": rows,
        "harmless": {row["sample"]: row["regex"] for row in content["harmless"]},
        "combined": {cls: row["tier"] for cls, row in classes.items() if "tier" in row},
        "published": content.get("published", {}),
    }
    return msgspec.convert(made, SignatureTable)


@functools.cache
def table() -> SignatureTable:
    """Return the table of `signatures.toml`, read once."""
    return read_table(signatures())


def is_harmless(text: str) -> bool:
    """Whether a line is known to appear in good runs."""
    return table().good.search(text[: _BEFORE_WORD + _AFTER_WORD]) is not None


class Sighting(NamedTuple):
    """What one line shows: its finding, and whether the program that printed it cannot go on."""

    finding: Finding
    is_fatal: bool


def sight(text: str, *, line: int, evidence: str) -> Sighting | None:
    """Return what a line of this number shows, None for a harmless one.

    `text` is it without its prefix; `evidence` with it, which holds the severity.
    """
    # MSCCL++ and the LL cutoffs print lines with NCCL WARN in good runs
    if is_harmless(text) or _SOURCE.match(text):
        return None
    low, signatures = text.lower(), table().signatures
    places = {at: low.find(word) for word, at in table().places if word in low}
    shown = begun(evidence.strip(), EVIDENCE_CHARS)
    for at in sorted(places):
        signature = signatures[at]
        # the time of a pattern can grow faster than the line, so it sees the words' surroundings
        begin = max(0, places[at] - _BEFORE_WORD)
        match = signature.pattern.search(text, begin, places[at] + _AFTER_WORD)
        if match is not None:
            finding = Finding(
                cls=signature.cls,
                action=signature.action,
                line=line,
                text=shown,
                detail=begun(signature.detail_of(match), EVIDENCE_CHARS),
                code=signature.code_of(match),
            )
            return Sighting(finding, _is_fatal(text, signature, evidence=evidence))
    if _severity(evidence) != "F":
        return None
    # a fatal line that no row of the table describes is a finding, too: its program ends there
    detail = begun(text.strip(), EVIDENCE_CHARS)
    cls = FailureClass.FATAL_LINE
    action = cls.action or Action.RETRY
    finding = Finding(cls=cls, action=action, line=line, text=shown, detail=detail)
    return Sighting(finding, is_fatal=True)


def _severity(evidence: str) -> str:
    """Return the severity that the logger itself gives a line: I, W, E or F; "" without one."""
    match = _SEVERITY.search(evidence)
    return (match[1] or match[2]) if match else ""


def _is_fatal(text: str, signature: Signature, *, evidence: str) -> bool:
    """Whether a line of this signature says that its program cannot go on.

    The logger's own severity counts before the signature's: a program survives what it logs as a
    warning, and ends at what it logs as fatal. An error that JAX raised, at the beginning of a
    line, is the end of a traceback.
    """
    if signature.action is Action.NONE:
        return False
    severity = _severity(evidence)
    if severity in ("I", "W"):
        return False
    return severity == "F" or signature.is_fatal or _RAISED.match(text) is not None
