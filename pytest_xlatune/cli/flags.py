"""`xlatune flags list | show | lint | diff`: settings, and the faults of profiles.

    list    the catalog; of an axis, the profiles that a wave would take
    show    everything known of a flag or a variable
    lint    the faults of profiles, by the rules and by the target's own XLA
    diff    the options that two texts of XLA_FLAGS set otherwise

Exit codes: 0 clean or the same, 1 where something was found, 2 for wrong input.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_xlatune.catalog.context import Context, Level, Objection
from pytest_xlatune.catalog.entries import (
    Catalog,
    CatalogEntry,
    Status,
    history,
    load,
    probed_libtpu,
)
from pytest_xlatune.cli import (
    add_commands,
    add_json,
    add_options,
    options_of,
    resolved_sweep,
    show,
    show_json,
)
from pytest_xlatune.model.cell import Axis
from pytest_xlatune.model.channels import CHANNELS, LIBTPU
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import Profile, format_flags, parse_flags
from pytest_xlatune.model.record import Json
from pytest_xlatune.model.text import counted

if TYPE_CHECKING:
    from pytest_xlatune.prepare.lint import Linted

SCHEMA = 1
TEXT_ID = "text"  # the profile that words of a command line make


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    lines = {
        "list": "list the catalog; of an axis, the profiles of a wave",
        "show": "show everything known of settings",
        "lint": "show the faults of profiles; exit code 1 if there are any",
        "diff": "show what two texts of XLA_FLAGS set otherwise",
    }
    kinds = add_commands(parser, lines, metavar="KIND")

    listed = kinds["list"]
    listed.add_argument(
        "--axis", metavar="AXIS", help="e.g. FSDP or PP=4,FSDP=2: the settings worth a trial there"
    )
    _add_context(listed)
    listed.add_argument("--markdown", action="store_true", help="as docs/reference/catalog.md")
    add_json(listed)
    listed.set_defaults(run=_list)

    shown = kinds["show"]
    shown.add_argument("names", nargs="+", metavar="NAME", help="a flag, a variable, or its slug")
    add_json(shown)
    shown.set_defaults(run=_show)

    linted = kinds["lint"]
    linted.add_argument(
        "what", nargs="+", metavar="SWEEP_FILE|TEXT", help="a sweep file; or flags and NAME=value"
    )
    linted.add_argument("--python", metavar="PATH", help="the interpreter whose XLA is asked")
    linted.add_argument("--dump", type=Path, metavar="DUMP", help="of the program as deployed")
    _add_context(linted)
    add_json(linted)
    add_options(linted)
    linted.set_defaults(run=_lint)

    diff = kinds["diff"]
    diff.add_argument("a", metavar="A", help="'' is every default")
    diff.add_argument("b", metavar="B")
    diff.add_argument("--python", metavar="PATH", help="the interpreter whose XLA is asked")
    add_json(diff)
    diff.set_defaults(run=_diff)


def _add_context(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--deployed", metavar="TEXT", default="", help="flags and NAME=value below the profiles"
    )
    parser.add_argument(
        "--jaxlib", metavar="VERSION", default="", help="of the target; asks no XLA"
    )
    parser.add_argument("--device", metavar="NAME", default="", help="e.g. sm_90, gfx942, cpu")


# --- list and show --------------------------------------------------------------------------------


def _list(arguments: argparse.Namespace) -> int:
    """Show the catalog; of an axis, the profiles that a wave would take, and what it leaves out."""
    from pytest_xlatune.catalog.candidates import candidates

    context = deployed_context(arguments.deployed, jaxlib=arguments.jaxlib, device=arguments.device)
    entries = load().entries
    if arguments.markdown:
        show(_markdown(load()))
    elif arguments.axis is not None:
        found = candidates(arguments.axis, context)
        if arguments.json:
            document = {
                "schema": SCHEMA,
                "axis": arguments.axis.upper(),
                "jaxlib": context.jaxlib,
                "profiles": [each.to_json() for each in found.profiles],
                "left_out": [each.to_json() for each in found.left_out],
            }
            show_json(document)
            return 0
        width = max(len(each.id) for each in found.profiles)
        show(f"{each.id:{width}}  {each.shown_text}" for each in found.profiles)
        show(f"left out: {each.profile}: {each.why}" for each in found.left_out)
    elif arguments.json:
        show_json({"schema": SCHEMA, "entries": [_entry_json(each) for each in entries]})
    else:
        show(_line(each) for each in entries)
    return 0


def _show(arguments: argparse.Namespace) -> int:
    """Show everything known of settings, by flag, variable or slug."""
    documents: list[Json] = []
    lines: list[str] = []
    for name in arguments.names:
        bare = name.strip().lstrip("-").partition("=")[0]
        known = bare in history().flags and not load().find(bare)
        entries = () if known else load().named(bare)
        documents += [_entry_json(each) for each in entries] or [_history_json(bare)]
        for entry in entries:
            lines += [*_paragraph(entry), ""]
        if not entries:
            lines += [bare, *(f"  {each}" for each in _releases(bare)), "  not in the catalog", ""]
    if arguments.json:
        show_json({"schema": SCHEMA, "entries": documents})
    else:
        show(["\n".join(lines).rstrip()])
    return 0


def seen_in(entry: CatalogEntry) -> str:
    """Say where it can be seen that a setting acted."""
    from pytest_xlatune.evidence.hlo.difference import Below, expectations

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


def _line(entry: CatalogEntry) -> str:
    name = f"--{entry.name}" if entry.is_flag or entry.channel else entry.name
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


def _entry_json(entry: CatalogEntry) -> Json:
    document = entry.to_json() | {
        "seen_in": seen_in(entry),
        "profiles": [each.to_json() for each in entry.profiles],
    }
    return document | (_history_json(entry.name) if entry.is_flag else {})


def _history_json(name: str) -> Json:
    known = history().flags.get(name)
    return {"name": name, "history": known.to_json() if known else None}


def _markdown(catalog: Catalog) -> Iterator[str]:
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
        tried = ", ".join(f"`{_value(value)}`" for value in each.values)
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


# --- lint and diff --------------------------------------------------------------------------------


def _lint(arguments: argparse.Namespace) -> int:
    from pytest_xlatune.prepare.lint import Linted, Target, lint

    if arguments.python and arguments.jaxlib:
        raise ConfigError("--python asks that XLA, --jaxlib asks none; give one of them")
    said = deployed_context(arguments.deployed, jaxlib=arguments.jaxlib, device=arguments.device)
    if arguments.what[0].strip().endswith(".py"):
        profiles, context, python = _of_sweep(arguments, said)
    else:
        context, python = said, sys.executable
        try:
            profiles = (text_profile(arguments.what),)
        except ConfigError as error:
            # a text that XLA would not read to its end: a finding, no misuse of the command
            fault = Objection(rule="syntax", level=Level.FAULT, profile=TEXT_ID, text=str(error))
            return _show_linted(Linted(objections=(fault,)), (), as_json=arguments.json)
    if arguments.dump:
        from pytest_xlatune.evidence.hlo.dump import read_program
        from pytest_xlatune.prepare.compilers import shape_of

        context = dataclasses.replace(context, program=shape_of(read_program(arguments.dump)))
    python = "" if arguments.jaxlib else arguments.python or python
    target = Target(python=python, environ=os.environ) if python else None
    return _show_linted(lint(profiles, context, target), profiles, as_json=arguments.json)


def _of_sweep(
    arguments: argparse.Namespace, said: Context
) -> tuple[tuple[Profile, ...], Context, str]:
    """Return a sweep's profiles, their context below what was said, and their interpreter."""
    from pytest_xlatune.sweep.deployed import context_of

    first = arguments.what[0]
    if len(arguments.what) > 1:
        raise ConfigError(
            f"{first} is a sweep file; its profiles are linted by themselves, without "
            f"{arguments.what[1].strip()!r}"
        )
    resolved = resolved_sweep(Path(first), options_of(arguments))
    own = context_of(resolved.cell, resolved.sweep.launcher)
    context = dataclasses.replace(
        own,
        deployed=(*own.deployed, *said.deployed),
        env={**own.env, **said.env},
        jaxlib=said.jaxlib,
        device=said.device,
    )
    return resolved.sweep.profiles, context, resolved.sweep.launcher.interpreter


def _diff(arguments: argparse.Namespace) -> int:
    """Show which options two texts of XLA_FLAGS set otherwise, by XLA's own word."""
    from pytest_xlatune.prepare.lint import Target

    named = ((arguments.a, "A"), (arguments.b, "B"))
    texts = [parse_flags(text, where=where) for text, where in named]
    target = Target(python=arguments.python or sys.executable, environ=os.environ)
    first, second = target([format_flags(each) for each in texts])
    for where, answer in (("A", first), ("B", second)):
        if answer.options is None:
            said = answer.refused or f"unknown: {', '.join(answer.unknown)}"
            raise ConfigError(f"{where} is refused by jaxlib {target.jaxlib}: {said}")
    before, after = first.options or {}, second.options or {}
    changed = {
        name: {"a": before.get(name), "b": after.get(name)}
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    }
    if arguments.json:
        show_json({"schema": SCHEMA, "jaxlib": target.jaxlib, "options": changed})
    elif changed:
        show(f"{name}: {_value(now['a'])} -> {_value(now['b'])}" for name, now in changed.items())
    else:
        show([f"every option is the same (jaxlib {target.jaxlib})"])
    return 1 if changed else 0


def _show_linted(found: Linted, profiles: Sequence[Profile], *, as_json: bool) -> int:
    if as_json:
        ids = [each.id for each in profiles]
        show_json({"schema": SCHEMA, "profiles": ids, **found.to_json()})
    else:
        show(_lint_lines(found, len(profiles)))
    return 1 if found.objections else 0


def _lint_lines(found: Linted, count: int) -> Iterator[str]:
    yield from (f"{each.level}: {each}" for each in found.objections)
    yield from (f"unchecked: {each}" for each in found.unchecked)
    asked = f"jaxlib {found.jaxlib}" if found.jaxlib else "no jaxlib"
    objections = counted(len(found.objections), "objection") if found.objections else "no objection"
    yield f"{counted(count, 'profile')}, {objections}, {asked}"


# --- the words of a command line ------------------------------------------------------------------


def text_profile(words: Sequence[str]) -> Profile:
    """Return the profile that words of a command line are: flags, and NAME=value.

    Raises:
        ConfigError: a word is neither, or XLA would stop reading at it.
    """
    flags, env = _parted(word.strip() for word in words)
    return Profile(id=TEXT_ID, flags=parse_flags(" ".join(flags), where="the text"), env=env)


def deployed_context(text: str, *, jaxlib: str = "", device: str = "") -> Context:
    """Return the context that `--deployed` names: flags and NAME=value, as in a shell.

    Raises:
        ConfigError: malformed.
    """
    flags, env = _parted(shlex.split(text) if text else [])
    # the shell's quotes are off; those of a value that holds blanks are the flag's own
    deployed = parse_flags(" ".join(map(_requoted, flags)), where="--deployed")
    return Context(deployed=deployed, env=env, jaxlib=jaxlib, device=device)


def _parted(words: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Return the flags among words, and the variables."""
    flags: list[str] = []
    env: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            env[name] = value
        elif word:
            flags.append(word)
    return flags, env


def _value(value: str | None) -> str:
    return "unknown" if value is None else value or "''"


def _requoted(word: str) -> str:
    name, equals, value = word.partition("=")
    is_split = any(char.isspace() for char in value) or not value
    return f"{name}='{value}'" if equals and is_split else word
