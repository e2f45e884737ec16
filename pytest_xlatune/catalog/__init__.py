"""What is known of the flags and variables that people tune. Pure: data files, and who reads them.

load()              every setting: what to try, on which axis, why, what it needs, who says so
history()           which jaxlib release accepts which XLA flag, and its default
ladders_of(axis)    the numbers of its settings in order, for values beside a leader's
profiles_for(axis)  the settings of an axis as profiles, without those that do nothing here
check(profiles)     named rules: what is wrong with a profile before anything runs
examine(profiles)   what the target's own XLA makes of profiles, when asked
"""

from __future__ import annotations

from pytest_xlatune.catalog.candidates import Candidates, candidates, profiles_for
from pytest_xlatune.catalog.effect import Answer, Examined, examine
from pytest_xlatune.catalog.entries import Catalog, Entry, Status, load
from pytest_xlatune.catalog.ground import Ground, Level, Objection
from pytest_xlatune.catalog.history import History, history
from pytest_xlatune.catalog.ladders import ladders_of
from pytest_xlatune.catalog.restoring import defaults_of
from pytest_xlatune.catalog.rules import RULES, check

__all__ = [
    "RULES",
    "Answer",
    "Candidates",
    "Catalog",
    "Entry",
    "Examined",
    "Ground",
    "History",
    "Level",
    "Objection",
    "Status",
    "candidates",
    "check",
    "defaults_of",
    "examine",
    "history",
    "ladders_of",
    "load",
    "profiles_for",
]
