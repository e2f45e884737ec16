"""What rules look at and what they say: a profile on its ground, an objection to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pytest_xlatune.catalog.program import Shape
from pytest_xlatune.profiles import BASELINE_ID, Flags, Profile
from pytest_xlatune.records import Record
from pytest_xlatune.spelling import same_value

CONTROL = "control"


class Level(StrEnum):
    """What follows from an objection."""

    FAULT = "fault"  # nothing is submitted before it is mended
    NOTE = "note"


@dataclass(frozen=True, slots=True, kw_only=True)
class Objection(Record):
    """What a rule has against a profile; of the deployed settings, the profile is the baseline."""

    rule: str
    level: Level
    profile: str
    text: str

    def __str__(self) -> str:
        whose = "deployed" if self.profile == BASELINE_ID else f"profile {self.profile}"
        return f"{whose}: {self.text} [{self.rule}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground(Record):
    """What profiles are applied to.

    Attributes:
        deployed: flags, in the order of the text.
        env: variables that are deployed.
        is_complete: whether that is all; env files that only the nodes see may set more.
        jaxlib: the target's release; "" is unknown.
        device: its architecture, e.g. sm_90, gfx942, cpu; "" is unknown.
        program: the deployed program's shape; None is unknown.
    """

    deployed: Flags = ()
    env: dict[str, str] = field(default_factory=dict)
    is_complete: bool = True
    jaxlib: str = ""
    device: str = ""
    program: Shape | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A profile on its ground: what it asks for, and what comes out as far as texts tell."""

    profile: Profile
    ground: Ground
    asked: Mapping[str, str]  # flags of the profile alone
    after: Mapping[str, str]  # flags, deployed ones below
    env: Mapping[str, str]  # variables, deployed ones below

    def is_on(self, flag: str) -> bool:
        """Return whether a switch is on in the end; False where nobody sets it."""
        return same_value(self.after.get(flag, "false"), "true", kind="bool")

    def number(self, flag: str, default: int) -> int:
        """Return an integer flag's value in the end; the default where it is unset or no number."""
        text = self.after.get(flag, "")
        return int(text) if re.fullmatch(r"-?\d+", text) else default


Check = Callable[[Case], Iterator[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule's name, what it says in general, and how it is looked up.

    `is_idle`: what it finds does nothing, which a control is for and an unread env file may mend.
    `of_deployed`: it also holds for what is deployed.
    """

    name: str
    says: str
    check: Check
    level: Level = Level.FAULT
    is_idle: bool = False
    of_deployed: bool = False


def is_control(profile: Profile) -> bool:
    """Return whether a profile is meant to do nothing, by its id."""
    return profile.id.startswith(CONTROL)
