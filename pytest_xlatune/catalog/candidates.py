"""The catalog of an axis as the profiles of a wave: what can do something here, and one control.

Besides, the values of a setting in order: a wave tries those beside a value that led.

Pure and deterministic: the same context gives the same profiles in the same order on every worker.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_xlatune.catalog.context import Context, Level
from pytest_xlatune.catalog.entries import CatalogEntry, Status, load
from pytest_xlatune.catalog.rules import is_idle, objections
from pytest_xlatune.model.profile import ALIASES, Profile, effective_values, parse_flags
from pytest_xlatune.model.record import Record, digest
from pytest_xlatune.model.text import same_value

_SWITCH = 1  # values up to here are off and on, which have nothing beside them


def ladders_of(axis: str) -> dict[str, tuple[str, ...]]:
    """Return the settings of an axis that are tried at several numbers -> these, smallest first.

    What matters on any axis is among them.

    Raises:
        ConfigError: no such axis.
    """
    values: dict[str, set[int]] = {}
    for entry in load().of_axis(axis):
        if entry.status is Status.CANDIDATE and all(each.isdecimal() for each in entry.values):
            values.setdefault(entry.name, set()).update(map(int, entry.values))
    return {
        name: tuple(map(str, sorted(found)))
        for name, found in values.items()
        if len(found) > 1 and max(found) > _SWITCH
    }


_DECIDE = frozenset({"no-op", "unknown-flag"})  # notes that leave a candidate out


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut(Record):
    """A profile of the catalog that is not worth a trial here, and why."""

    profile: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Profiles in the order in which they are worth trying, the A/A control last."""

    profiles: tuple[Profile, ...]
    left_out: tuple[LeftOut, ...]


def candidates(axis: str, context: Context, *, wave: str = "wave2") -> Candidates:
    """Choose the catalog's profiles for an axis.

    Args:
        axis: e.g. FSDP; its own entries come before those of any axis.
        context: the deployed settings, and the known facts of the target. A vendor's settings need
            its device to be known.
        wave: of the profiles; a wave of single settings gets one control.

    Raises:
        ConfigError: no such axis.
    """
    kept: list[Profile] = []
    left: list[LeftOut] = []
    seen: dict[str, str] = {}
    entries = load().of_axis(axis)
    for entry in entries:
        for profile in entry.profiles if entry.status is Status.CANDIDATE else ():
            if profile.wave != wave:
                continue
            why = _why_not(entry, profile, context) or _twin(profile, context, seen)
            if why:
                left.append(LeftOut(profile=profile.id, why=why))
            else:
                kept.append(profile)
    if wave == "wave2":
        kept += _control(entries, context)
    return Candidates(profiles=tuple(kept), left_out=tuple(left))


def profiles_for(
    axis: str, *, jaxlib: str = "", deployed: str = "", device: str = ""
) -> tuple[Profile, ...]:
    """Return the single-setting profiles of an axis for a sweep file.

    Args:
        axis: e.g. FSDP.
        jaxlib: the target's release; "" keeps what only some releases accept.
        deployed: the deployed XLA_FLAGS.
        device: architecture, e.g. sm_90 or gfx942; "" leaves a vendor's own settings out.

    Raises:
        ConfigError: no such axis, a malformed text or release.
    """
    flags = parse_flags(deployed, where="the deployed XLA_FLAGS")
    return candidates(axis, Context(deployed=flags, jaxlib=jaxlib, device=device)).profiles


def _why_not(entry: CatalogEntry, profile: Profile, context: Context) -> str:
    vendor = "amd" if context.device.startswith("gfx") else "nvidia" if context.device else ""
    if entry.vendor and entry.vendor != vendor:
        return f"{entry.vendor}'s; the device is {context.device or 'not known'}"
    found = (
        each.text
        for each in objections(profile, context)
        if each.level is Level.FAULT or each.rule in _DECIDE
    )
    return next(found, "")


def _twin(profile: Profile, context: Context, seen: dict[str, str]) -> str:
    values = effective_values((*context.deployed, *profile.flags))
    settings = {ALIASES.get(name, name): value.lower() for name, value in values.items()}
    for name in ALIASES.keys() & values.keys():
        # what a switch of the older name is under the newer one
        is_on = same_value(values[name], "true", kind="bool")
        settings[ALIASES[name]] = "on" if is_on else "default"
    same = digest({"flags": settings, "env": {**context.env, **profile.env}})
    first = seen.setdefault(same, profile.id)
    return "" if first == profile.id else f"the same settings as {first}"


def _control(entries: tuple[CatalogEntry, ...], context: Context) -> list[Profile]:
    """Return one profile that does nothing here for certain, or none."""
    for entry in entries:
        for profile in entry.profiles if entry.status is Status.CONTROL else ():
            if is_idle(profile, context) and not _why_not(entry, profile, context):
                return [profile]
    return []
