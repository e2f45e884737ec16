"""Which XLA flags each jaxlib release accepts, of which type, and with which default.

The facts were probed release by release (`versions.json` beside this file). Between two probed
releases a fact holds where both agree; beyond the newest, or where they differ, it is unknown, and
unknown is None, never a guess. A vendor's fork may differ from the release that it is built on.
"""

from __future__ import annotations

import functools
import json
import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from importlib.resources import files

from pytest_xlatune.errors import ConfigError
from pytest_xlatune.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class FlagHistory(Record):
    """One flag through the releases.

    Attributes:
        kind: bool, int32, int64, float, string, enum, message; "" where no field shows it.
        first, last: probed releases that accept it, and all between.
        defaults: probed release -> default from then on; None is not shown.
    """

    kind: str
    first: str
    last: str
    defaults: dict[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class History(Record):
    """All flags, and the releases that were probed, oldest first."""

    note: str
    versions: tuple[str, ...]
    flags: dict[str, FlagHistory]

    def is_accepted(self, flag: str, jaxlib: str) -> bool | None:
        """Return whether a release accepts a flag; None where no probe says.

        Raises:
            ConfigError: `jaxlib` is no release number.
        """
        answers = {self._accepts(flag, version) for version in self._around(jaxlib)}
        return answers.pop() if len(answers) == 1 else None

    def default(self, flag: str, jaxlib: str) -> str | None:
        """Return a flag's default as text; None where it is unknown.

        Raises:
            ConfigError: `jaxlib` is no release number.
        """
        around = self._around(jaxlib)
        if not around or not all(self._accepts(flag, version) for version in around):
            return None
        answers = {self._default(self.flags[flag], version) for version in around}
        return answers.pop() if len(answers) == 1 else None

    def kind(self, flag: str) -> str:
        """Return a flag's type, "" where it is unknown."""
        return self.flags[flag].kind if flag in self.flags else ""

    def defaults(self, flag: str) -> frozenset[str]:
        """Return every default that a flag ever had."""
        known = self.flags[flag].defaults.values() if flag in self.flags else ()
        return frozenset(each for each in known if each is not None)

    def when(self, flag: str) -> str:
        """Say which releases accept a flag, for a message."""
        if flag not in self.flags:
            return f"accepted by no jaxlib from {self.versions[0]} to {self.versions[-1]}"
        known = self.flags[flag]
        if known.last == self.versions[-1]:
            return f"accepted since jaxlib {known.first}" + (
                " or before" if known.first == self.versions[0] else ""
            )
        return f"accepted up to jaxlib {known.last}"

    def _accepts(self, flag: str, version: str) -> bool:
        known = self.flags.get(flag)
        return known is not None and (
            release(known.first) <= release(version) <= release(known.last)
        )

    def _default(self, known: FlagHistory, version: str) -> str | None:
        at = [
            value for since, value in known.defaults.items() if release(since) <= release(version)
        ]
        return at[-1] if at else None

    def _around(self, jaxlib: str) -> tuple[str, ...]:
        """Return the probed release, or the two on either side; () beyond either end."""
        numbers = [release(version) for version in self.versions]
        asked = release(jaxlib)
        below, above = bisect_right(numbers, asked) - 1, bisect_left(numbers, asked)
        if below < 0 or above == len(numbers):
            return ()
        return tuple(dict.fromkeys((self.versions[below], self.versions[above])))


def release(version: str) -> tuple[int, ...]:
    """Return a release's numbers, to compare by.

    Raises:
        ConfigError: it begins with no number.
    """
    # a wheel's version:  0.12.0.1      0.9.1+rocm7      0.10.0.dev20260101
    match = re.match(r"\d+(?:\.\d+)*", version)
    if match is None:
        raise ConfigError(f"jaxlib version {version!r}: expected numbers such as 0.10.2")
    return tuple(int(part) for part in match.group().split("."))


@functools.cache
def history() -> History:
    """Return what was probed."""
    text = files(__package__).joinpath("versions.json").read_text(encoding="utf-8")
    return History.from_json(json.loads(text))
