"""What `xlatune flags` shows: the catalog, one setting, a lint, the difference of two texts.

Chooses between text and JSON and asks whom it must; what is true stands in the catalog, in the
evidence room and in the target's XLA. It prints nothing.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_xlatune.catalog import (
    Catalog,
    Entry,
    Ground,
    Level,
    Objection,
    Status,
    candidates,
    history,
    load,
)
from pytest_xlatune.catalog.program import Shape, closes_ring
from pytest_xlatune.cells import Axis
from pytest_xlatune.cli.inspecting import Shown
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.proof import EXPECTATIONS
from pytest_xlatune.evidence_files import read_program
from pytest_xlatune.linting import Linted, Target, lint
from pytest_xlatune.preflight.flags import ground_of
from pytest_xlatune.profiles import Profile, diff_values, format_flags, parse_flags
from pytest_xlatune.records import Json
from pytest_xlatune.sweep.sweep import ResolvedSweep

SCHEMA = 1
TEXT_ID = "text"  # the profile that words of a command line make


def seen_in(entry: Entry) -> str:
    """Say where it can be seen that a setting acted; the evidence room's table decides."""
    if not entry.is_flag:
        return "HLO: the program" if entry.compile_time else "run time only"
    expected = EXPECTATIONS.get(entry.name)
    if expected is None:
        return "not known"
    if expected.fact is None:
        return "run time only" if "run time" in expected.why else "below HLO: only time shows it"
    of = f" ({', '.join(expected.kinds)})" if expected.kinds else ""
    return f"HLO: {expected.fact}{of}"


def show_list(
    *, axis: str | None, ground: Ground, as_json: bool = False, as_markdown: bool = False
) -> Shown:
    """Show the catalog; of an axis, the profiles that a wave would take, and what it leaves out.

    Raises:
        ConfigError: no such axis.
    """
    catalog = load()
    if as_markdown:
        return Shown(text="\n".join(_markdown(catalog)))
    if axis is None:
        if as_json:
            entries = [_entry_json(each) for each in catalog.entries]
            return Shown(text=_json({"schema": SCHEMA, "entries": entries}))
        return Shown(text="\n".join(_line(each) for each in catalog.entries))
    found = candidates(axis, ground)
    if as_json:
        document = {
            "schema": SCHEMA,
            "axis": axis.upper(),
            "jaxlib": ground.jaxlib,
            "profiles": [each.to_json() for each in found.profiles],
            "left_out": [each.to_json() for each in found.left_out],
        }
        return Shown(text=_json(document))
    width = max(len(each.id) for each in found.profiles)
    lines = [f"{each.id:{width}}  {each.shown_text}" for each in found.profiles]
    lines += [f"left out: {each.profile}: {each.why}" for each in found.left_out]
    return Shown(text="\n".join(lines))


def show_entries(names: Sequence[str], *, as_json: bool) -> Shown:
    """Show everything known of settings, by flag, variable or slug.

    Raises:
        ConfigError: one is not in the catalog and no release accepts it.
    """
    documents: list[Json] = []
    lines: list[str] = []
    for name in names:
        bare = name.strip().lstrip("-").partition("=")[0]
        known = bare in history().flags and not load().find(bare)
        entries = () if known else load().named(bare)
        documents += [_entry_json(each) for each in entries] or [_history_json(bare)]
        for entry in entries:
            lines += [*_paragraph(entry), ""]
        if not entries:
            lines += [bare, *(f"  {each}" for each in _releases(bare)), "  not in the catalog", ""]
    if as_json:
        return Shown(text=_json({"schema": SCHEMA, "entries": documents}))
    return Shown(text="\n".join(lines).rstrip())


def text_profile(words: Sequence[str]) -> Profile:
    """Return the profile that words of a command line are: flags, and NAME=value.

    Raises:
        ConfigError: a word is neither, or XLA would stop reading at it.
    """
    flags: list[str] = []
    env: dict[str, str] = {}
    for word in (word.strip() for word in words):
        name, equals, value = word.partition("=")
        if equals and name.isidentifier() and not word.startswith("-"):
            env[name] = value
        elif word:
            flags.append(word)
    text = " ".join(flags)
    return Profile(id=TEXT_ID, flags=parse_flags(text, where="the text"), env=env)


def deployed_ground(text: str, *, jaxlib: str = "", device: str = "") -> Ground:
    """Return the ground that words of `--deployed` make: flags and NAME=value, as a shell has them.

    Raises:
        ConfigError: malformed.
    """
    words = shlex.split(text) if text else []
    env = [word for word in words if "=" in word and word.partition("=")[0].isidentifier()]
    # the shell's quotes are off; those of a value that holds blanks are the flag's own
    flags = [_requoted(word) for word in words if word not in env]
    return Ground(
        deployed=parse_flags(" ".join(flags), where="--deployed"),
        env=text_profile(env).env,
        jaxlib=jaxlib,
        device=device,
    )


def sweep_ground(resolved: ResolvedSweep) -> Ground:
    """Return what a sweep's profiles are applied to.

    Raises:
        ConfigError: its deployed XLA_FLAGS end early.
    """
    return ground_of(resolved.cell, resolved.sweep.launcher)


def shape_of(dump: Path) -> Shape:
    """Return the facts of a dumped program that the rules ask for.

    Raises:
        ConfigError, ParseError: no program there, or one that cannot be read.
    """
    return _shape(read_program(dump))


def show_lint(
    profiles: Sequence[Profile],
    ground: Ground,
    *,
    python: str,
    environ: Mapping[str, str],
    as_json: bool,
) -> Shown:
    """Lint profiles.

    Args:
        profiles: in their order.
        ground: what is deployed; with a `jaxlib` given and no `python` only tables are asked.
        python: the target's interpreter; "" asks none.
        environ: of this process.
        as_json: one document instead of lines.

    Returns:
        The objections; exit code 1 where there is one.

    Raises:
        ConfigError: the interpreter cannot be asked.
    """
    target = Target(python=python, environ=environ) if python else None
    return _show_linted(lint(profiles, ground, target), profiles, as_json=as_json)


def show_refused(error: ConfigError, *, as_json: bool) -> Shown:
    """Show a text that XLA would not read to its end as what a lint finds in it."""
    objection = Objection(rule="syntax", level=Level.FAULT, profile=TEXT_ID, text=str(error))
    return _show_linted(Linted(objections=(objection,)), (), as_json=as_json)


def show_diff(
    one: str, other: str, *, python: str, environ: Mapping[str, str], as_json: bool
) -> Shown:
    """Show which options two texts of XLA_FLAGS set otherwise, by XLA's own word.

    Returns:
        The options; exit code 1 where there is one.

    Raises:
        ConfigError: a text is refused or ends early, or XLA cannot be asked.
    """
    texts = [parse_flags(text, where=where) for text, where in ((one, "A"), (other, "B"))]
    target = Target(python=python, environ=environ)
    first, second = target([format_flags(each) for each in texts])
    for where, answer in (("A", first), ("B", second)):
        if answer.options is None:
            said = answer.refused or f"unknown: {', '.join(answer.unknown)}"
            raise ConfigError(f"{where} is refused by jaxlib {target.jaxlib}: {said}")
    found = diff_values(first.options or {}, second.options or {})
    if as_json:
        changed = {each.name: {"a": each.before, "b": each.after} for each in found}
        document = {"schema": SCHEMA, "jaxlib": target.jaxlib, "options": changed}
        return Shown(text=_json(document), exit_code=bool(found))
    lines = [f"{each.name}: {_value(each.before)} -> {_value(each.after)}" for each in found]
    lines = lines or [f"every option is the same (jaxlib {target.jaxlib})"]
    return Shown(text="\n".join(lines), exit_code=bool(found))


def _show_linted(found: Linted, profiles: Sequence[Profile], *, as_json: bool) -> Shown:
    exit_code = 1 if found.objections else 0
    if as_json:
        ids = [each.id for each in profiles]
        document = {"schema": SCHEMA, "profiles": ids, **found.to_json()}
        return Shown(text=_json(document), exit_code=exit_code)
    return Shown(text="\n".join(_lint_lines(found, len(profiles))), exit_code=exit_code)


def _lint_lines(found: Linted, count: int) -> Iterator[str]:
    yield from (f"{each.level}: {each}" for each in found.objections)
    yield from (f"unchecked: {each}" for each in found.unchecked)
    asked = f"jaxlib {found.jaxlib}" if found.jaxlib else "no jaxlib"
    objections = len(found.objections)
    yield f"{count} profile(s), {objections or 'no'} objection(s), {asked}"


def _shape(program: Program) -> Shape:
    groups: dict[str, dict[str, list[int]]] = {}
    for each in program.collectives:
        groups.setdefault(each.kind, {}).setdefault(each.computation, []).append(each.size_bytes)
    permutes = [each for each in program.of("collective-permute") if each.in_loop]
    return Shape(
        groups={
            kind: tuple(tuple(sizes) for sizes in computations.values())
            for kind, computations in groups.items()
        },
        loops=len(program.loops),
        loop_permutes=tuple(each.size_bytes for each in permutes),
        has_cycle=any(closes_ring(each.groups) for each in permutes),
    )


def _value(value: str | None) -> str:
    return "unknown" if value is None else value or "''"


def _requoted(word: str) -> str:
    name, equals, value = word.partition("=")
    is_split = any(char.isspace() for char in value) or not value
    return f"{name}='{value}'" if equals and is_split else word


def _line(entry: Entry) -> str:
    name = f"--{entry.name}" if entry.is_flag else entry.name
    values = " ".join(_value(each) for each in entry.values) or str(entry.status)
    return f"{','.join(entry.axes):12} {name} = {values}"


def _releases(name: str) -> Iterator[str]:
    known = history().flags.get(name)
    if known is None:
        yield history().when(name)
        return
    yield f"{known.kind or 'no type of its own'}, {history().when(name)}"
    for since, value in known.defaults.items():
        yield f"default {_value(value)} from jaxlib {since}"


def _paragraph(entry: Entry) -> Iterator[str]:
    yield f"{entry.slug}: {'--' if entry.is_flag else ''}{entry.name} ({entry.status})"
    profiles = [f"{each.id}: {each.shown_text}" for each in entry.profiles]
    for title, text in (
        ("axes", ", ".join(entry.axes)),
        ("what", entry.mechanism),
        ("acts on", ", ".join(entry.aims)),
        ("needs", entry.constraints),
        ("seen in", seen_in(entry)),
        ("the seed", entry.seed),
        ("source", entry.source),
        ("only", entry.vendor),
    ):
        if text:
            yield f"  {title + ':':10}{text}"
    if entry.is_flag:
        yield from (f"  {'jaxlib:':10}{each}" for each in _releases(entry.name))
    yield from (f"  {'profile:':10}{each}" for each in profiles)


def _entry_json(entry: Entry) -> Json:
    document = entry.to_json() | {
        "seen_in": seen_in(entry),
        "profiles": [each.to_json() for each in entry.profiles],
    }
    return document | (_history_json(entry.name) if entry.is_flag else {})


def _history_json(name: str) -> Json:
    known = history().flags.get(name)
    return {"name": name, "history": known.to_json() if known else None}


def _markdown(catalog: Catalog) -> Iterator[str]:
    """Yield the catalog as tables, one for each axis; what is of several stands in each."""
    titles = {axis: f"{axis}" for axis in ("FSDP", "PP", "TP", "DP", "EP")}
    unknown = sorted(set(titles) - set(Axis.__members__))
    if unknown:
        raise ConfigError(f"the catalog's tables name axes that are none: {unknown}")
    yield from _table("Any axis", [each for each in catalog.entries if "any" in each.axes])
    for axis, title in titles.items():
        yield from _table(title, [each for each in catalog.entries if axis in each.axes])


def _table(title: str, entries: Sequence[Entry]) -> Iterator[str]:
    yield f"### {title}"
    yield ""
    yield "| setting | tried | what it does; what it needs | seen in | jaxlib | source |"
    yield "|---|---|---|---|---|---|"
    for each in entries:
        tried = ", ".join(f"`{_value(value)}`" for value in each.values)
        if each.status is not Status.CANDIDATE:
            tried = f"{tried} **{each.status}**".strip()
        if each.companions:
            tried += f" with `{each.companions}`"
        what = "; ".join(filter(None, (each.mechanism, each.constraints)))
        seed = f" *The seed: {each.seed}.*" if each.seed else ""
        row = (
            f"`{each.name}`",
            tried or "the site's own",
            what + "." + seed,
            seen_in(each),
            _span(each),
            each.source,
        )
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
    yield ""


def _span(entry: Entry) -> str:
    if not entry.is_flag:
        return entry.vendor or ""
    known = history().flags.get(entry.name)
    if known is None:
        return "none"
    first, newest = history().versions[0], history().versions[-1]
    since = "" if known.first == first else f"from {known.first}"
    until = "" if known.last == newest else f"to {known.last}"
    return f"{since} {until}".strip() or "all"


def _json(document: Json) -> str:
    return json.dumps(document, indent=2, allow_nan=False)
