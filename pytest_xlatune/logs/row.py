"""What one row of the table of failure signatures is, and how rows are ranked.

Knows no particular failure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

from pytest_xlatune.results import Action


class Tier(IntEnum):
    """How near a class is to the root of a cascade such as OOM -> NCCL timeout -> heartbeat."""

    CAUSE = 0
    CONSEQUENCE = 1  # what the other ranks print when one died
    GENERIC = 2  # says that something failed, not what
    SYMPTOM = 3  # the fact of an end, without any reason


def named_detail(match: re.Match[str]) -> str:
    """Return the pattern's group `detail`, "" where it has none or it did not take part."""
    return (match.groupdict().get("detail") or "").strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One failure signature.

    Attributes:
        cls: the failure class.
        phase: where in a job it is at home, for the documentation.
        words: a line is looked at only when, in lower case, it holds one of them. Letters and _
            count when lines are sieved, so a word needs four of f-z and _ (see `sieve`).
        pattern: searched in the line without its prefix.
        action: what the class asks for.
        tier: how near to a root cause it is.
        is_fatal: whether the program that prints it cannot go on; not set where a program may try
            again, warn, or hold several candidates (autotuning) against each other.
        sample: a line that this row, and no earlier one, matches.
        detail: takes the figure or name out of the match.
    """

    cls: str
    phase: str
    words: tuple[str, ...]
    pattern: re.Pattern[str]
    action: Action
    sample: str
    tier: Tier = Tier.CAUSE
    is_fatal: bool = False
    detail: Callable[[re.Match[str]], str] = named_detail
