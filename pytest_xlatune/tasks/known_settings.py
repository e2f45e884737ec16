"""Explain a setting: its catalog entry, the releases that know it, and the signs of its effect."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_xlatune.catalog.entries import (
    CatalogEntry,
    history,
    load,
    probed_libtpu,
)
from pytest_xlatune.evidence.hlo.difference import expectations
from pytest_xlatune.model.channels import CHANNELS, LIBTPU


def explain_setting(text: str) -> list[str]:
    """Return the lines about the settings that a text names.

    The text is a flag, a variable or a slug of the catalog; a slug may name several settings.

    Raises:
        ConfigError: neither the catalog nor a release of jaxlib has it; the message suggests the
            nearest name.
    """
    name = text.strip().lstrip("-").partition("=")[0]
    if name in history().flags and not load().find(name):
        return [name, *(f"  {release}" for release in _releases(name)), "  not in the catalog"]
    return [line for entry in load().named(name) for line in _paragraph(entry)]


def seen_in(entry: CatalogEntry) -> str:
    """Return where a user can see that a setting acted."""
    if entry.channel:
        channel = CHANNELS[entry.channel]
        return f"{channel.reader}'s log: its arguments" if channel.log_pattern else "run time only"
    if entry.is_key:
        return "the keys that MaxText prints; HLO: the program"
    if not entry.is_flag:
        if entry.name.startswith(("NCCL_", "RCCL_")):
            return "NCCL_DEBUG=INFO"
        return "HLO: the program" if entry.compile_time else "run time only"
    expected = expectations().get(entry.name)
    if expected is None:
        return "not known"
    return expected.text if expected.below else f"HLO: {expected.text}"


def entry_line(entry: CatalogEntry) -> str:
    """Return an entry as one line: its axes, its name, and its values or else its status."""
    name = f"--{entry.name}" if entry.is_flag or entry.channel else entry.name
    values = " ".join(shown_value(value) for value in entry.values) or str(entry.status)
    return f"{','.join(entry.axes):12} {name} = {values}"


def _releases(name: str) -> Iterator[str]:
    """Yield lines about a flag: its type, the releases of jaxlib that know it, and its defaults."""
    known = history().flags.get(name)
    if known is None:
        yield history().accepted_in(name)
        return
    yield f"{known.kind or 'no type of its own'}, {history().accepted_in(name)}"
    for since, value in known.defaults.items():
        yield f"default {shown_value(value)} from jaxlib {since}"


def _paragraph(entry: CatalogEntry) -> Iterator[str]:
    """Yield all lines about an entry; an empty field has no line."""
    dashes = "--" if entry.is_flag or entry.channel else ""
    yield f"{entry.slug}: {dashes}{entry.name} ({entry.status})"
    reader = CHANNELS[entry.channel].reader if entry.channel else ""
    profiles = [f"{profile.id}: {profile.shown_text}" for profile in entry.profiles]
    for title, text in (
        ("axes", ", ".join(entry.axes)),
        ("what", entry.mechanism),
        ("acts on", ", ".join(entry.aims)),
        ("needs", entry.constraints),
        ("seen in", seen_in(entry)),
        ("corrects", entry.corrects),
        ("source", entry.source),
        ("only", entry.vendor),
        ("goes to", entry.channel),
        (reader, span(entry) if reader else ""),
        ("numerics", "changed: the loss rule decides" if entry.changes_numerics else ""),
    ):
        if text:
            yield f"  {title + ':':10}{text}"
    if entry.is_flag:
        yield from (f"  {'jaxlib:':10}{release}" for release in _releases(entry.name))
    yield from (f"  {'profile:':10}{profile}" for profile in profiles)


def span(entry: CatalogEntry) -> str:
    """Return the releases that know a setting, e.g. `from 0.5.0`; "all" if all known releases do.

    They are releases of jaxlib or, for a flag of another channel, of the program that reads it. For
    a variable, return the vendor whose programs read it; "" if those of all vendors do.
    """
    if entry.channel:
        limits = (f"from {entry.since}" if entry.since else "",
                  f"to {entry.until}" if entry.until else "")  # fmt: skip
        probed = probed_libtpu() if entry.channel == LIBTPU else ()
        if any(limits) or not probed:
            return " ".join(filter(None, limits))
        return f"{probed[0]} to {probed[-1]}"
    if not entry.is_flag:
        return entry.vendor or ""
    known = history().flags.get(entry.name)
    if known is None:
        return "none"
    first, newest = history().versions[0], history().versions[-1]
    since = "" if known.first == first else f"from {known.first}"
    until = "" if known.last == newest else f"to {known.last}"
    return f"{since} {until}".strip() or "all"


def shown_value(value: str | None) -> str:
    """Return a value for a person to read; None stands for an unknown value."""
    return "unknown" if value is None else value or "''"
