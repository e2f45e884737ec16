"""Tell all of a setting: the catalog, the releases of jaxlib, and what shows that it acted.

Lines for a terminal, values for JSON, and the tables of docs/reference/catalog.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_xlatune.catalog.entries import (
    Catalog,
    CatalogEntry,
    Status,
    history,
    load,
    probed_libtpu,
)
from pytest_xlatune.evidence.hlo.difference import Below, expectations
from pytest_xlatune.model.cell import Axis
from pytest_xlatune.model.channels import CHANNELS, LIBTPU
from pytest_xlatune.model.record import Json


def known_of(said: str) -> tuple[list[Json], list[str]]:
    """Return the values and the lines on a flag, a variable or a slug.

    Raises:
        ConfigError: neither the catalog nor a release of jaxlib has it; names the nearest.
    """
    bare = said.strip().lstrip("-").partition("=")[0]
    if bare in history().flags and not load().find(bare):
        lines = [bare, *(f"  {each}" for each in _releases(bare)), "  not in the catalog"]
        return [_history_json(bare)], lines
    entries = load().named(bare)
    paragraphs = [[*_paragraph(each)] for each in entries]
    lines = [line for each in paragraphs for line in ("", *each)][1:]
    return [entry_json(each) for each in entries], lines


def seen_in(entry: CatalogEntry) -> str:
    """Say where it can be seen that a setting acted."""
    if entry.channel:
        channel = CHANNELS[entry.channel]
        return f"{channel.reader}'s log: its arguments" if channel.says else "run time only"
    if entry.is_key:
        return "the keys that MaxText prints; HLO: the program"
    if not entry.is_flag:
        if entry.name.startswith(("NCCL_", "RCCL_")):
            return "NCCL_DEBUG=INFO"
        return "HLO: the program" if entry.compile_time else "run time only"
    expected = expectations().get(entry.name)
    if expected is None:
        return "not known"
    if expected.below is Below.RUN_TIME:
        return "run time only"
    if expected.below is Below.MACHINE_CODE:
        return "below HLO: only time shows it"
    return f"HLO: {expected.fact}{expected.kinds_text}"


def entry_line(entry: CatalogEntry) -> str:
    """Return an entry in one line: axes, setting, values or status."""
    name = f"--{entry.name}" if entry.is_flag or entry.channel else entry.name
    values = " ".join(shown_value(each) for each in entry.values) or str(entry.status)
    return f"{','.join(entry.axes):12} {name} = {values}"


def _releases(name: str) -> Iterator[str]:
    known = history().flags.get(name)
    if known is None:
        yield history().when(name)
        return
    yield f"{known.kind or 'no type of its own'}, {history().when(name)}"
    for since, value in known.defaults.items():
        yield f"default {shown_value(value)} from jaxlib {since}"


def _paragraph(entry: CatalogEntry) -> Iterator[str]:
    dashes = "--" if entry.is_flag or entry.channel else ""
    yield f"{entry.slug}: {dashes}{entry.name} ({entry.status})"
    profiles = [f"{each.id}: {each.shown_text}" for each in entry.profiles]
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
        *((CHANNELS[each].reader, _span(entry)) for each in filter(None, [entry.channel])),
        ("numerics", "changed: the loss rule decides" if entry.changes_numerics else ""),
    ):
        if text:
            yield f"  {title + ':':10}{text}"
    if entry.is_flag:
        yield from (f"  {'jaxlib:':10}{each}" for each in _releases(entry.name))
    yield from (f"  {'profile:':10}{each}" for each in profiles)


def entry_json(entry: CatalogEntry) -> Json:
    """Return an entry with what shows it, its profiles, and its releases."""
    document = entry.to_json() | {
        "seen_in": seen_in(entry),
        "profiles": [each.to_json() for each in entry.profiles],
    }
    return document | (_history_json(entry.name) if entry.is_flag else {})


def _history_json(name: str) -> Json:
    known = history().flags.get(name)
    return {"name": name, "history": known.to_json() if known else None}


def markdown_tables(catalog: Catalog) -> Iterator[str]:
    """Yield the catalog as tables, one for each axis; an entry of several axes stands in each."""
    of_gpus = [each for each in catalog.entries if not (each.channel or each.is_key)]
    yield from _table("Any axis", [each for each in of_gpus if "any" in each.axes])
    for axis in (Axis.FSDP, Axis.PP, Axis.TP, Axis.DP, Axis.EP):
        yield from _table(axis.name, [each for each in of_gpus if axis.name in each.axes])
    for variable, channel in CHANNELS.items():
        own = [each for each in catalog.entries if each.channel == variable]
        if own:
            yield from _table(f"{channel.reader} ({variable})", own)
    yield from _table("Keys of MaxText", [each for each in catalog.entries if each.is_key])


def _table(title: str, entries: Sequence[CatalogEntry]) -> Iterator[str]:
    readers = {CHANNELS[each.channel].reader if each.channel else "jaxlib" for each in entries}
    release = ", ".join(sorted(readers))
    release = "only" if all(each.is_key for each in entries) else release
    yield f"### {title}"
    yield ""
    yield f"| setting | tried | what it does; what it needs | seen in | {release} | source |"
    yield "|---|---|---|---|---|---|"
    for each in entries:
        tried = ", ".join(f"`{shown_value(value)}`" for value in each.values)
        if each.status is not Status.CANDIDATE:
            tried = f"{tried} **{each.status}**".strip()
        if each.companions:
            tried += f" with `{each.companions}`"
        if each.companion_keys:
            tried += " with " + ", ".join(
                f"`{key}={to}`" for key, to in each.companion_keys.items()
            )
        is_named = (each.channel or each.is_key) and "any" not in each.axes
        axes = f"on {', '.join(each.axes)}" if is_named else ""
        numerics = "changes numerics" if each.changes_numerics else ""
        what = "; ".join(filter(None, (each.mechanism, each.constraints, axes, numerics)))
        corrects = f" *Corrects: {each.corrects}.*" if each.corrects else ""
        row = (
            f"`{each.name}`",
            tried or "the site's own",
            what + "." + corrects,
            seen_in(each),
            _span(each),
            each.source,
        )
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
    yield ""


def _span(entry: CatalogEntry) -> str:
    if entry.channel:
        limits = (f"from {entry.since}" if entry.since else "",
                  f"to {entry.until}" if entry.until else "")  # fmt: skip
        probed = probed_libtpu() if entry.channel == LIBTPU else ()
        return " ".join(filter(None, limits)) or " to ".join((*probed[:1], *probed[-1:]))
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
    """Return a value as a person reads it; None is one that is not known."""
    return "unknown" if value is None else value or "''"
