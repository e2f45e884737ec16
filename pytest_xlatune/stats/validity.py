"""Whether a trial measured what it was meant to: flags in effect, same computation.

Decided before any statistics. What the log contradicts is a reason to call the trial invalid; what
the log does not say is a note. This module reads no log: it is told what was shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytest_xlatune.errors import ConfigError
from pytest_xlatune.profiles import Profile, effective_values, parse_flags

# two spellings of a switch are one value
_SWITCH = {"1": "true", "0": "false", "t": "true", "f": "false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What a log says of a profile's settings.

    Attributes:
        reasons: why the trial is invalid; () where nothing contradicts it.
        notes: what could not be checked.
    """

    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def effective(
    profile: Profile,
    *,
    deployed: str,
    shown: str | None,
    shown_env: Mapping[str, str] | None = None,
) -> Effect:
    """Compare what should be in effect with what the log shows.

    Args:
        profile: what was applied on top.
        deployed: text of the deployed XLA_FLAGS.
        shown: text of XLA_FLAGS as the log prints it; None where it does not.
        shown_env: variables as the log prints them, possibly only some; None where it does not.
    """
    flag_reasons, flag_notes = _flags(profile, deployed, shown)
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
        seen = effective_values(parse_flags(shown))
    except ConfigError as error:
        return [], [f"the XLA_FLAGS that the log shows cannot be read: {error}"]
    return [
        f"--{name} is {_shown(seen.get(name))} in the log, expected {value!r}: the profile was "
        "not in effect"
        for name, value in expected.items()
        if not _same(seen.get(name), value)
    ], []


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
    if seen is None or seen == expected:
        return seen == expected
    one, other = seen.lower(), expected.lower()
    return _SWITCH.get(one, one) == _SWITCH.get(other, other)
