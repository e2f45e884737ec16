"""Finds settings of profiles that are not in effect, as the target's XLA parses them.

The caller asks XLA (`ask`); this module composes the texts and judges the answers. XLA parses each
flag alone, and again in the full text of its profile; the option must have the same value in both.
So this module needs to understand no spelling, and still finds a flag that is silently dropped,
overridden or added to another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pytest_xlatune.catalog.context import CONTROL, Level, Objection, is_control
from pytest_xlatune.catalog.rules import did_you_mean
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


class ParsedText(Record, frozen=True, kw_only=True):
    """How XLA parses one text of flags."""

    options: dict[str, str] | None  # each option's value by name; None if XLA refused the text
    unknown: tuple[str, ...] = ()  # the flags that XLA does not know
    refused: str = ""  # its message about a bad value, or its last line; "" without


Ask = Callable[[Sequence[str]], Sequence[ParsedText]]


class Examined(Record, frozen=True, kw_only=True):
    """What `examine` found."""

    # objections to the deployed settings come first, then those in the order of the profiles
    objections: tuple[Objection, ...] = ()
    unchecked: tuple[str, ...] = ()  # a sentence for each flag that XLA shows no option of


def examine(
    profiles: Sequence[Profile],
    deployed: Flags,
    ask: Ask,
    *,
    env: Mapping[str, str] | None = None,
) -> Examined:
    """Ask XLA about profiles, and about the deployed settings below them.

    A flag that XLA refuses is left out when the others are judged, so that it does not hide them.

    Args:
        profiles: the profiles to examine; one without flags needs no XLA, but may be a twin.
        deployed: the deployed flags, to which those of a profile are appended.
        ask: a function that has XLA parse each text in a separate process.
        env: the deployed variables; None is none.
    """
    flags = list(
        dict.fromkeys((*deployed, *(flag for profile in profiles for flag in profile.flags)))
    )
    # each flag is parsed alone, because XLA reports a bad value instead of the unknown flags
    default, *alone = ask(["", *map(str, flags)])
    known = _Parsed(default=default.options or {}, alone=dict(zip(flags, alone, strict=True)))
    below = format_flags(known.taken(deployed))
    texts = [append_flags(below, known.taken(profile.flags)) for profile in profiles]
    # where no flag is deployed, a profile of one flag has the text of that flag alone
    answers = {"": default, **{str(flag): answer for flag, answer in known.alone.items()}}
    more = [text for text in dict.fromkeys((below, *texts)) if text not in answers]
    answers |= zip(more, ask(more), strict=True) if more else {}
    base, full_answers = answers[below], [answers[text] for text in texts]
    objections = list(known.refusals(BASELINE_ID, deployed))
    unchecked: list[str] = []
    seen: dict[object, str] = {}
    for profile, answer in zip(profiles, full_answers, strict=True):
        objections += known.refusals(profile.id, profile.flags)
        if answer.options is None:
            objections.append(_objection("refused", profile.id, answer.refused, Level.FAULT))
            continue
        taken = known.taken(profile.flags)
        # old names and flags with a special setter have no option; jaxlib 0.12 has 14 of them
        blind = [flag for flag in taken if not known.options_of(flag)]
        unchecked += (
            f"profile {profile.id}: --{flag.name} has no option of its own in this XLA; what "
            "it does cannot be seen"
            for flag in blind
        )
        for flag in taken:
            objections += known.out_of_effect(profile.id, flag, answer.options)
        if len(taken) == len(profile.flags) and not blind and not profile.is_baseline:
            changes = _changes(answer.options, base.options or {})
            variables = _changes(profile.env, env or {})
            objections += _idle(profile, (changes, variables, profile.overrides), seen)
    return Examined(objections=tuple(objections), unchecked=tuple(unchecked))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parsed:
    """How XLA parses the empty text, and each flag alone."""

    default: Mapping[str, str]
    alone: Mapping[Flag, ParsedText]

    def taken(self, flags: Flags) -> Flags:
        """Return the flags that XLA does not refuse."""
        return tuple(flag for flag in flags if self.alone[flag].options is not None)

    def refusals(self, profile: str, flags: Flags) -> Iterator[Objection]:
        """Object to each flag that XLA refuses."""
        for flag in flags:
            answer = self.alone[flag]
            if answer.options is not None:
                continue
            if answer.unknown:
                hint = did_you_mean(flag.name, self.default, dashes="--")
                text = f"unknown to this XLA: --{flag.name}{hint}"
                yield _objection("unknown-flag", profile, text, Level.FAULT)
            else:
                yield _objection("bad-value", profile, answer.refused, Level.FAULT)

    def options_of(self, flag: Flag) -> tuple[str, ...]:
        """Return the options that a flag sets; () if XLA shows none."""
        options = self.alone[flag].options or {}
        if flag.name in options:
            return (flag.name,)
        alias = ALIASES.get(flag.name)
        return tuple(_changes(options, self.default)) or ((alias,) if alias in options else ())

    def out_of_effect(
        self, profile: str, flag: Flag, in_full_text: Mapping[str, str]
    ) -> Iterator[Objection]:
        """Object if a flag is not in effect in the full text."""
        if flag.value is not None and is_relative(flag.value):
            return  # its value depends on the deployed list, as intended
        for name in self.options_of(flag):
            wanted, actual = (self.alone[flag].options or {})[name], in_full_text[name]
            if wanted == actual:
                continue
            added = _parts(wanted) - _parts(self.default.get(name, ""))
            adds = flag.name in APPENDING or "=" in wanted
            if adds and added <= _parts(actual):
                why = f"added to the deployed one, not in its place: {name} is {actual!r}"
                yield _objection("adds-up", profile, f"{flag} is {why}")
            else:
                why = f"{name} is {actual!r} in the whole text, dropped or overridden"
                text = f"{flag} is not in effect: {why}"
                yield _objection("not-in-effect", profile, text, Level.FAULT)


def _objection(rule: str, profile: str, text: str, level: Level = Level.NOTE) -> Objection:
    return Objection(rule=rule, level=level, profile=profile, text=text)


def _idle(
    profile: Profile, changes: Sequence[Mapping[str, str]], seen: dict[object, str]
) -> Iterator[Objection]:
    """Object to a profile that changes nothing and is no control, or that repeats another."""
    if any(changes):
        first = seen.setdefault(
            tuple(tuple(sorted(change.items())) for change in changes), profile.id
        )
        if first != profile.id:
            text = f"the same settings as {first}: one is measured twice"
            yield _objection("twin", profile.id, text)
    elif not is_control(profile):
        text = "every option is as deployed: a run of it measures noise. Call it "
        yield _objection("no-op", profile.id, f"{text}{CONTROL}-... to keep it as the A/A control")


def _changes(after: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in after.items() if before.get(name) != value}


def _parts(text: str) -> set[str]:
    return {part for part in text.split(",") if part}
