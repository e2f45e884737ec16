"""Whether a trial measured what it was meant to: flags in effect, same computation.

Decided before any statistics. What the log contradicts is a reason to call the trial invalid; what
the log does not say is a note. This module reads no log: it is told what was shown.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import (
    ALIASES,
    APPENDING,
    Profile,
    effective_values,
    parse_flags,
    read_as_xla,
)
from pytest_xlatune.model.text import is_relative, same_value

# a dump leaves out the options that say where things are, not what the program computes
_UNTOLD = ("xla_dump_", "xla_force_host_platform_device_count")
Defaults = Callable[[str], Collection[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a log says of a profile's settings."""

    reasons: tuple[str, ...] = ()  # why the trial is invalid; () where nothing contradicts it
    notes: tuple[str, ...] = ()  # what could not be checked


def effective(
    profile: Profile,
    *,
    deployed: str,
    shown: str | None,
    shown_env: Mapping[str, str] | None = None,
    options: Mapping[str, str] | None = None,
    defaults: Defaults = lambda _: (),
) -> Effect:
    """Compare what should be in effect with what the log shows, and with XLA's own word.

    Args:
        profile: what was applied on top.
        deployed: text of the deployed XLA_FLAGS.
        shown: text of XLA_FLAGS as the log prints it; None where it does not.
        shown_env: variables as the log prints them, possibly only some; None where it does not.
        options: what XLA dumped of its options, those at their default left out; None without one.
        defaults: flag -> every default that it is known to have had, to tell an option at its
            default from one that was lost.
    """
    flag_reasons, flag_notes = _flags(profile, deployed, shown)
    if options is not None:
        dumped = list(_dumped(profile, deployed, options, defaults))
        # what a log shows was asked for, what a dump shows is so
        flag_notes = [note for note in flag_notes if shown is not None]
        flag_reasons = list(dict.fromkeys((*flag_reasons, *dumped)))
    env_reasons, env_notes = _env(profile, shown_env)
    return Effect(reasons=(*flag_reasons, *env_reasons), notes=(*flag_notes, *env_notes))


def different_loss(loss: float, reference: float, *, tolerance: float) -> str:
    """Return how a loss differs from the baseline's, "" where it does not.

    Same data, same seeds: another loss is another computation, whatever its speed.
    """
    # a NaN is within no tolerance
    if abs(loss - reference) <= tolerance * abs(reference):
        return ""
    return (
        f"its loss is {loss:.6g}, the baseline's {reference:.6g}: more than {tolerance:.0%} apart, "
        "so it does not compute the same"
    )


def _flags(profile: Profile, deployed: str, shown: str | None) -> tuple[list[str], list[str]]:
    expected = effective_values((*parse_flags(deployed), *profile.flags))
    if not expected:
        return [], []
    if shown is None:
        return [], ["the log does not show XLA_FLAGS: that they were in effect is not checked"]
    try:
        read, dropped = read_as_xla(shown)
    except ConfigError as error:
        return [], [f"the XLA_FLAGS that the log shows cannot be read: {error}"]
    seen = effective_values(read)
    why = f", for XLA stops reading at {dropped[:40]!r}" if dropped else ""
    return [
        f"--{name} is {_shown(seen.get(name))} in the log, expected {value!r}: the profile was "
        f"not in effect{why}"
        for name, value in expected.items()
        if not _same(seen.get(name), value)
    ], []


def _dumped(
    profile: Profile, deployed: str, options: Mapping[str, str], defaults: Defaults
) -> Iterator[str]:
    """Yield what the options that XLA dumped contradict."""
    expected = effective_values((*parse_flags(deployed), *profile.flags))
    for name, value in expected.items():
        if name.startswith(_UNTOLD) or is_relative(value):
            continue
        other = ALIASES.get(name, name)
        is_alias = other in options and name not in options
        found = options.get(other if is_alias else name)
        if found is None:
            known = defaults(name)
            if not known or not value or any(same_value(value, each) for each in known):
                continue
        elif is_alias:
            if same_value(value, "true", kind="bool") == (not _is_default(found)):
                continue
        elif same_value(value, found) or (name in APPENDING and _parts(value) <= _parts(found)):
            continue
        yield (
            f"--{name} is {'at its default' if found is None else repr(found)} in XLA's dump of "
            f"its options, expected {value!r}: the profile was not in effect"
        )


def _is_default(mode: str) -> bool:
    return mode.lower().rpartition("_")[2] in ("default", "off")


def _parts(text: str) -> set[str]:
    return {part for part in text.split(",") if part}


def _env(profile: Profile, shown: Mapping[str, str] | None) -> tuple[list[str], list[str]]:
    silent = [name for name in profile.env if name not in (shown or {})]
    reasons = [
        f"{name} is {_shown(shown[name])} in the log, expected {value!r}: the profile was not in "
        "effect"
        for name, value in profile.env.items()
        if shown is not None and name in shown and shown[name] != value
    ]
    notes = [f"the log does not show {', '.join(silent)}: not checked"] if silent else []
    return reasons, notes


def _shown(value: str | None) -> str:
    return "not set" if value is None else repr(value)


def _same(seen: str | None, expected: str) -> bool:
    return seen is not None and same_value(seen, expected)
