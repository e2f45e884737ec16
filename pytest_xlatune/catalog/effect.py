"""Find settings of profiles that have no effect when the target's XLA parses them.

The caller runs XLA (`ask`); this module composes the texts and compares the answers. XLA parses
each flag alone, and again in the full text of its profile; the option must have the same value in
both. So this module needs to know no spellings of values, and still finds a flag that XLA silently
drops, overrides or adds to another.
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
    """How XLA parses one text of flags.

    Attributes:
        options: name of each option -> its value; None if XLA refused the text.
        unknown: the flags that XLA does not know.
        refused: XLA's message about a bad value, or its last line; "" if it printed none.
    """

    options: dict[str, str] | None
    unknown: tuple[str, ...] = ()
    refused: str = ""


Ask = Callable[[Sequence[str]], Sequence[ParsedText]]


class Examined(Record, frozen=True, kw_only=True):
    """What `examine`, or `prepare.preflight`, found.

    Attributes:
        objections: those to the deployed settings first, then in the order of the profiles.
        unchecked: a sentence for each flag that has no option in XLA, or a single one, which says
            that no XLA was asked.
        jaxlib: the release of the XLA that was asked, or of the table that was used; "" if unknown.
    """

    objections: tuple[Objection, ...] = ()
    unchecked: tuple[str, ...] = ()
    jaxlib: str = ""


def examine(
    profiles: Sequence[Profile],
    deployed: Flags,
    ask: Ask,
    *,
    env: Mapping[str, str] | None = None,
) -> Examined:
    """Ask XLA about the deployed settings, and about profiles on top of them.

    A flag that XLA refuses is left out of the full texts, so that XLA parses the other flags.

    Args:
        profiles: the profiles to examine; one without flags needs no XLA, but may repeat another.
        deployed: the deployed flags, to which those of a profile are appended.
        ask: a function that has XLA parse each text in a separate process.
        env: the deployed variables; None means no variables.
    """
    flags = list(
        dict.fromkeys((*deployed, *(flag for profile in profiles for flag in profile.flags)))
    )
    # each flag is parsed alone, because XLA reports a bad value instead of the unknown flags
    default, *alone = ask(["", *map(str, flags)])
    parsed = _Parsed(default=default.options or {}, alone=dict(zip(flags, alone, strict=True)))
    deployed_text = format_flags(parsed.accepted(deployed))
    texts = [append_flags(deployed_text, parsed.accepted(profile.flags)) for profile in profiles]
    # without deployed flags, XLA has already parsed the text of a profile of one flag
    answers = {"": default, **{str(flag): answer for flag, answer in parsed.alone.items()}}
    missing = [text for text in dict.fromkeys((deployed_text, *texts)) if text not in answers]
    if missing:
        answers |= zip(missing, ask(missing), strict=True)
    deployed_options = answers[deployed_text].options or {}
    objections = list(parsed.refusals(BASELINE_ID, deployed))
    unchecked: list[str] = []
    first_with: dict[object, str] = {}
    for profile, text in zip(profiles, texts, strict=True):
        answer = answers[text]
        objections += parsed.refusals(profile.id, profile.flags)
        if answer.options is None:
            objections.append(_objection("refused", profile.id, answer.refused, Level.FAULT))
            continue
        accepted = parsed.accepted(profile.flags)
        # old names and flags with a special setter have no option; jaxlib 0.12 has 14 of them
        without_option = [flag for flag in accepted if not parsed.options_of(flag)]
        unchecked += (
            f"profile {profile.id}: --{flag.name} has no option of its own in this XLA, so its "
            "effect cannot be seen"
            for flag in without_option
        )
        for flag in accepted:
            objections += parsed.out_of_effect(profile.id, flag, answer.options)
        is_all_seen = len(accepted) == len(profile.flags) and not without_option
        if is_all_seen and not profile.is_baseline:
            changes = _changes(answer.options, deployed_options)
            variables = _changes(profile.env, env or {})
            objections += _idle(profile, (changes, variables, profile.overrides), first_with)
    return Examined(objections=tuple(objections), unchecked=tuple(unchecked))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parsed:
    """How XLA parses the empty text, and each flag alone."""

    default: Mapping[str, str]
    alone: Mapping[Flag, ParsedText]

    def accepted(self, flags: Flags) -> Flags:
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
        changed = tuple(_changes(options, self.default))
        alias = ALIASES.get(flag.name)
        if not changed and alias in options:
            return (alias,)
        return changed

    def out_of_effect(
        self, profile: str, flag: Flag, in_full_text: Mapping[str, str]
    ) -> Iterator[Objection]:
        """Object if a flag is not in effect in the full text."""
        if flag.value is not None and is_relative(flag.value):
            return  # its value depends on the deployed list, as intended
        for name in self.options_of(flag):
            alone, in_full = (self.alone[flag].options or {})[name], in_full_text[name]
            if alone == in_full:
                continue
            added = _parts(alone) - _parts(self.default.get(name, ""))
            adds = flag.name in APPENDING or "=" in alone
            if adds and added <= _parts(in_full):
                why = f"added to the deployed value and does not replace it: {name} is {in_full!r}"
                yield _objection("adds-up", profile, f"{flag} is {why}")
            else:
                why = f"in the full text {name} is {in_full!r}, so it is dropped or overridden"
                text = f"{flag} is not in effect: {why}"
                yield _objection("not-in-effect", profile, text, Level.FAULT)


def _objection(rule: str, profile: str, text: str, level: Level = Level.NOTE) -> Objection:
    return Objection(rule=rule, level=level, profile=profile, text=text)


def _idle(
    profile: Profile, changes: Sequence[Mapping[str, str]], first_with: dict[object, str]
) -> Iterator[Objection]:
    """Object to a profile that changes nothing and is no control, or that repeats another.

    `first_with` is changes -> id of the first profile with them; it is updated.
    """
    if any(changes):
        key = tuple(tuple(sorted(change.items())) for change in changes)
        first = first_with.setdefault(key, profile.id)
        if first != profile.id:
            text = f"the same settings as {first}, so they are measured twice"
            yield _objection("twin", profile.id, text)
    elif not is_control(profile):
        text = "every option is as deployed: a run of it measures noise. Call it "
        yield _objection("no-op", profile.id, f"{text}{CONTROL}-... to keep it as the A/A control")


def _changes(after: Mapping[str, str], before: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in after.items() if before.get(name) != value}


def _parts(text: str) -> set[str]:
    """Return the items of a comma-separated list."""
    return {part for part in text.split(",") if part}
