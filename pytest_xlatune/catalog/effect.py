"""What the target's own XLA makes of profiles: every setting that is not in effect is named.

The caller asks XLA (`ask`); this module composes the texts and judges the answers. It
compares XLA's own values: each flag is asked for alone, and what it comes to then
must be what it comes to in the whole text. So no spelling has to be understood here, and a flag
that is dropped in silence, overridden or added up is told from one that is in effect.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from pytest_xlatune.catalog.context import CONTROL, Level, Objection, is_control
from pytest_xlatune.model.profile import (
    ALIASES,
    APPENDING,
    BASELINE_ID,
    Flag,
    Flags,
    Profile,
    append_flags,
    format_flags,
)
from pytest_xlatune.model.record import Record
from pytest_xlatune.model.text import is_relative


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedText(Record):
    """What XLA makes of one text."""

    options: dict[str, str] | None  # every option by name; None where it refused the text
    unknown: tuple[str, ...] = ()  # the flags that it does not know
    refused: str = ""  # what it said of a value, or its last word


Ask = Callable[[Sequence[str]], Sequence[ParsedText]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined(Record):
    """What was found."""

    # those to the deployed settings first, then in the profiles' order
    objections: tuple[Objection, ...] = ()
    unchecked: tuple[str, ...] = ()  # one sentence for each flag of which XLA shows nothing


def examine(
    profiles: Sequence[Profile],
    deployed: Flags,
    ask: Ask,
    *,
    env: Mapping[str, str] | None = None,
) -> Examined:
    """Ask XLA about profiles, and about the deployed settings below them.

    A refused flag is left out of what the others are judged in, so that one does not hide another.

    Args:
        profiles: what to look at; those without flags need no XLA, but may be twins.
        deployed: the flags below them.
        ask: has XLA parse each text, in a process of its own.
        env: the deployed variables.
    """
    flags = list(dict.fromkeys((*deployed, *(flag for each in profiles for flag in each.flags))))
    default, *alone = ask(["", *map(str, flags)])
    return _Examiner(
        default=default.options or {},
        alone=dict(zip(flags, alone, strict=True)),
        ask=ask,
        env=env or {},
    ).examine(profiles, deployed)


@dataclass(slots=True, kw_only=True)
class _Examiner:
    default: dict[str, str]
    alone: dict[Flag, ParsedText]
    ask: Ask
    env: Mapping[str, str]
    _objections: list[Objection] = field(default_factory=list)
    _unchecked: list[str] = field(default_factory=list)
    _seen: dict[object, str] = field(default_factory=dict)

    def examine(self, profiles: Sequence[Profile], deployed: Flags) -> Examined:
        below = format_flags(self._taken(deployed))
        texts = [append_flags(below, self._taken(each.flags)) for each in profiles]
        base, *whole = self.ask([below, *texts])
        for flag in deployed:
            self._refusal(BASELINE_ID, flag)
        for profile, answer in zip(profiles, whole, strict=True):
            for flag in profile.flags:
                self._refusal(profile.id, flag)
            if answer.options is None:
                self._object("refused", profile.id, answer.refused, Level.FAULT)
                continue
            blind = [
                flag
                for flag in self._taken(profile.flags)
                if self._in_effect(profile, flag, answer.options)
            ]
            if len(self._taken(profile.flags)) == len(profile.flags):
                self._idle(profile, answer.options, base.options or {}, blind)
        return Examined(objections=tuple(self._objections), unchecked=tuple(self._unchecked))

    def _taken(self, flags: Flags) -> Flags:
        return tuple(flag for flag in flags if self.alone[flag].options is not None)

    def _object(self, rule: str, profile: str, text: str, level: Level = Level.NOTE) -> None:
        self._objections.append(Objection(rule=rule, level=level, profile=profile, text=text))

    def _refusal(self, profile: str, flag: Flag) -> None:
        answer = self.alone[flag]
        if answer.options is not None:
            return
        # a sweep drops such a profile by itself; a deployed flag fails every trial
        level = Level.FAULT if profile == BASELINE_ID else Level.NOTE
        if answer.unknown:
            self._object("unknown-flag", profile, f"unknown to this XLA: --{flag.name}", level)
        else:
            self._object("bad-value", profile, answer.refused, level)

    def _fields(self, flag: Flag) -> tuple[str, ...]:
        """Return the options that a flag sets; () where XLA shows none."""
        options = self.alone[flag].options or {}
        if flag.name in options:
            return (flag.name,)
        changed = [name for name, value in options.items() if self.default.get(name) != value]
        alias = ALIASES.get(flag.name)
        return tuple(changed) or ((alias,) if alias in options else ())

    def _in_effect(self, profile: Profile, flag: Flag, whole: Mapping[str, str]) -> bool:
        """Object where a flag is not in effect; return whether XLA shows nothing of it."""
        names = self._fields(flag)
        if not names:
            self._unchecked.append(
                f"profile {profile.id}: --{flag.name} has no option of its own in this XLA; what "
                "it does cannot be seen"
            )
            return True
        if flag.value is not None and is_relative(flag.value):
            return False  # what it comes to depends on the list below it, by intent
        for name in names:
            wanted, found = (self.alone[flag].options or {})[name], whole[name]
            if wanted == found:
                continue
            own = set(_parts(wanted)) - set(_parts(self.default.get(name, "")))
            adds = flag.name in APPENDING or "=" in wanted
            if adds and own <= set(_parts(found)):
                self._object(
                    "adds-up",
                    profile.id,
                    f"{flag} is added to the deployed one, not in its place: {name} is {found!r}",
                )
            else:
                self._object(
                    "not-in-effect",
                    profile.id,
                    f"{flag} is not in effect: {name} is {found!r} in the whole text, dropped or "
                    "overridden",
                    Level.FAULT,
                )
        return False

    def _idle(
        self,
        profile: Profile,
        whole: Mapping[str, str],
        base: Mapping[str, str],
        blind: Sequence[Flag],
    ) -> None:
        """Object to a profile that changes nothing, to a control that does, to a second of one."""
        changes = {name: value for name, value in whole.items() if base.get(name) != value}
        env = {name: value for name, value in profile.env.items() if self.env.get(name) != value}
        if blind or profile.is_baseline:
            return
        if not (changes or env or profile.overrides):
            if not is_control(profile):
                self._object(
                    "no-op",
                    profile.id,
                    "every option is as deployed: a run of it measures noise. Call it "
                    f"{CONTROL}-... to keep it as the A/A control",
                )
            return
        key = (
            tuple(sorted(changes.items())),
            tuple(sorted(env.items())),
            tuple(sorted(profile.overrides.items())),
        )
        first = self._seen.setdefault(key, profile.id)
        if first != profile.id:
            self._object("twin", profile.id, f"the same settings as {first}: one is measured twice")


def _parts(text: str) -> Iterator[str]:
    return (part for part in text.split(",") if part)
