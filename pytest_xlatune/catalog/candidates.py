"""The catalog's settings for an axis as profiles of a wave, with one A/A control.

Settings that cannot have an effect are left out. The module also returns the values of a setting in
ascending order, so that a wave can try neighbours of a good value. Pure and deterministic: every
pytest worker gets the same profiles in the same order from the same context.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_xlatune.catalog.context import GPU_VENDORS, Context, Level, vendor_of
from pytest_xlatune.catalog.entries import CatalogEntry, Status, load
from pytest_xlatune.catalog.rules import is_idle, objections, settings_key
from pytest_xlatune.model.channels import CHANNELS
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import (
    Profile,
    by_channel,
    parse_flags,
)
from pytest_xlatune.model.record import Record

_SWITCH = 1  # a setting whose largest value is 1 is only off or on, so no value has neighbours


def ladders_of(axis: str) -> dict[str, tuple[str, ...]]:
    """Return setting -> its numbers in ascending order, if an axis's entries try several numbers.

    Entries of the axis "any" are included. `PP=4,FSDP=2` means both axes.

    Raises:
        ConfigError: there is no such axis, or the parallelism is malformed.
    """
    values: dict[str, set[int]] = {}
    for entry in load().of_axis(axis):
        if entry.status is Status.CANDIDATE and all(value.isdecimal() for value in entry.values):
            values.setdefault(entry.name, set()).update(map(int, entry.values))
    return {
        name: tuple(map(str, sorted(numbers)))
        for name, numbers in values.items()
        if len(numbers) > 1 and max(numbers) > _SWITCH
    }


# rules of which even a note excludes a candidate
_EXCLUDING_RULES = frozenset({"no-op", "unknown-flag"})


class LeftOut(Record, frozen=True, kw_only=True):
    """A profile of the catalog that would have no effect on the target, and why."""

    profile: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """Profiles in the order in which they are worth trying, with the A/A control last."""

    profiles: tuple[Profile, ...]
    left_out: tuple[LeftOut, ...]


def candidates(axis: str, context: Context, *, wave: str = "wave2") -> Candidates:
    """Choose the catalog's profiles for an axis.

    Args:
        axis: e.g. FSDP; its own entries come before those for any axis. For PP=4,FSDP=2, those of
            the axis with the larger degree come first.
        context: the deployed settings, and the known facts of the target. A vendor's settings are
            only included if the device is known.
        wave: the wave of the profiles; a wave of single settings gets one control. MaxText's own
            keys belong to wave5.

    Raises:
        ConfigError: there is no such axis, or the parallelism is malformed.
    """
    chosen: list[Profile] = []
    left_out: list[LeftOut] = []
    first_with: dict[object, str] = {}  # settings -> the first profile with them
    entries = load().of_axis(axis)
    for entry in entries:
        if entry.status is not Status.CANDIDATE:
            continue
        for profile in entry.profiles:
            if profile.wave != wave:
                continue
            why = _why_not(entry, profile, context)
            if not why:
                first = first_with.setdefault(settings_key(profile, context), profile.id)
                why = "" if first == profile.id else f"the same settings as {first}"
            if why:
                left_out.append(LeftOut(profile=profile.id, why=why))
            else:
                chosen.append(profile)
    if wave == "wave2":
        chosen += _control(entries, context)
    return Candidates(profiles=tuple(chosen), left_out=tuple(left_out))


def profiles_for(
    axis: str,
    *,
    jaxlib: str = "",
    deployed: str = "",
    device: str = "",
    wave: str = "wave2",
) -> tuple[Profile, ...]:
    """Return the catalog's profiles of an axis, or of several, for a sweep file.

    Args:
        axis: e.g. FSDP; or PP=4,FSDP=2, where the profiles of the axis with the larger degree come
            first, or those of the first axis if the degrees are equal.
        jaxlib: the target's release; with "" settings that only some releases accept are included.
        deployed: the deployed flags of XLA_FLAGS, of LIBTPU_INIT_ARGS, or of both.
        device: e.g. sm_90, gfx942, v5e; with "" settings of one vendor are left out.
        wave: wave2 has single flags and variables, wave5 the keys of MaxText (remat policy,
            attention kernel, quantization, scan), alone and jointly.

    Raises:
        ConfigError: there is no such axis, device or wave, or the parallelism, flags or release are
            malformed.
    """
    known = sorted({entry.wave for entry in load().entries if entry.values})
    if wave not in known:
        raise ConfigError.unknown("wave", wave, valid=known, where="the catalog")
    flags, env = by_channel(parse_flags(deployed, where="the deployed flags"))
    context = Context(deployed=flags, env=env, knows_env=False, jaxlib=jaxlib, device=device)
    return candidates(axis, context, wave=wave).profiles


_ANY_GPU = "gpu"


def _why_not(entry: CatalogEntry, profile: Profile, context: Context) -> str:
    """Return why a profile cannot have an effect on the target; "" if it may."""
    vendor = vendor_of(context.device)
    needed = CHANNELS[entry.channel].vendor if entry.channel else entry.vendor
    if (needed or entry.channel) and needed not in (vendor or None, _ANY_GPU):
        return f"for {needed or entry.channel}, but the device is {context.device or 'not known'}"
    if context.device and not re.fullmatch(entry.devices, context.device, re.IGNORECASE):
        return f"not for {context.device}: {entry.constraints}"
    needs_no_gpu = entry.channel or entry.is_key or entry.name.startswith("JAX_")
    is_for_gpus = profile.flags or needed == _ANY_GPU or not needs_no_gpu
    if vendor and vendor not in GPU_VENDORS and is_for_gpus:
        return f"for GPUs, but the device is {context.device}"
    reasons = (
        objection.text
        for objection in objections(profile, context)
        if objection.level is Level.FAULT or objection.rule in _EXCLUDING_RULES
    )
    return next(reasons, "")


def _control(entries: tuple[CatalogEntry, ...], context: Context) -> list[Profile]:
    """Return one profile that certainly does nothing on the target; [] if there is none."""
    for entry in entries:
        if entry.status is not Status.CONTROL:
            continue
        for profile in entry.profiles:
            if is_idle(profile, context) and not _why_not(entry, profile, context):
                return [profile]
    return []
