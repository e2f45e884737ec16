"""The tables of docs/ that the code says itself: `make reference` writes them.

    python docs/generate.py

A page holds such a table between `<!-- NAME: begin -->` and `<!-- NAME: end -->`, where NAME is a
key of `PARTS`; the rest of the page is written by hand. A test compares every table with the code.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import enum
import importlib
import inspect
import io
import itertools
import os
import re
import sys
import tempfile
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent / "benchmarks"), str(DOCS.parent)]

import pages  # noqa: E402 - it lies in benchmarks/, which is no package

from pytest_xlatune import cli, executors, ledger  # noqa: E402
from pytest_xlatune.campaign.playbook import CLASS_RULES, rule_for  # noqa: E402
from pytest_xlatune.catalog.entries import CatalogEntry, Status, load  # noqa: E402
from pytest_xlatune.catalog.rules import RULES  # noqa: E402
from pytest_xlatune.executors.folder import ProcessRecord  # noqa: E402
from pytest_xlatune.guests.cvs import options as cvs_options  # noqa: E402
from pytest_xlatune.guests.megascale.digest import causes  # noqa: E402
from pytest_xlatune.ledger import Now  # noqa: E402
from pytest_xlatune.logs import _signatures as signatures  # noqa: E402
from pytest_xlatune.model.cell import Axis  # noqa: E402
from pytest_xlatune.model.channels import CHANNELS  # noqa: E402
from pytest_xlatune.model.errors import Exit, of_command  # noqa: E402
from pytest_xlatune.model.failure import FAILURES, Blame, FailureClass, blamed_on  # noqa: E402
from pytest_xlatune.model.message import Message  # noqa: E402
from pytest_xlatune.model.record import Record  # noqa: E402
from pytest_xlatune.model.resources import ENDLESS, Next, RetryPolicy, RetryRule  # noqa: E402
from pytest_xlatune.model.result import Action, Finding, StudyRecord  # noqa: E402
from pytest_xlatune.model.trial import LaunchSpec  # noqa: E402
from pytest_xlatune.report.leaderboard import leaderboard_json  # noqa: E402
from pytest_xlatune.report.measured_cell import MeasuredCell  # noqa: E402
from pytest_xlatune.sweep.groups import (  # noqa: E402
    FIELDS,
    GROUPS,
    OPTIONS,
    SWITCHES,
    RunSettings,
    Where,
)
from pytest_xlatune.sweep.registry import KINDS, kind_names, markers  # noqa: E402
from pytest_xlatune.tasks.known_settings import seen_in, shown_value, span  # noqa: E402
from tests.project.test_architecture import LAYERS, PACKAGE  # noqa: E402
from tests.slurm.faults import FAULTS  # noqa: E402

Lines = Iterator[str]
for each in kind_names():
    KINDS[each]  # those of guests too


def _row(*cells: str) -> str:
    return f"| {' | '.join(each.replace('|', chr(92) + '|') for each in cells)} |"


def _head(*cells: str) -> Lines:
    yield f"| {' | '.join(cells)} |"
    yield f"|{'---|' * len(cells)}"


# settings and options


def _shown(default: object) -> str:
    if default is None:
        return "none"
    if isinstance(default, Path):
        return f"`{default}`"
    is_plain = isinstance(default, int | float | str) or default == {}
    return f"`{default!r}`" if is_plain else f"`{type(default).__name__}()`"


def settings() -> Lines:
    """Yield the fields of each group of settings, with where else they may be said."""
    keywords = {group: keyword for keyword, group in GROUPS.items()}
    for group in (*GROUPS.values(), RunSettings):
        keyword = keywords.get(group, "")
        head = f"`{keyword}=pytest_xlatune.{group.__name__}(...)`" if keyword else "One run"
        yield from ("", f"## {head}", "", group.__doc__ or "", "")
        yield from _head("name", "meaning", "default", "outside the sweep file")
        for each in FIELDS:
            if each.group is group:
                where = f"`{each.flag}`" if each in OPTIONS else ""
                where = (
                    f"`{each.name}` in `xlatune.toml`"
                    if each.where is Where.SETTINGS_FILE
                    else where
                )
                default = _shown(getattr(group(), each.field))
                yield _row(f"`{each.field}`", each.help, default, where)


def switches() -> Lines:
    """Yield the options of pytest that take no value, and those of CVS files."""
    yield from _head("option of pytest", "meaning")
    for name, (_, text) in SWITCHES.items():
        yield _row(f"`--{name}`", text)

    class Group:
        rows: typing.ClassVar[list[str]] = []

        def addoption(self, flag: str, *, help: str, metavar: str = "", **_: Any) -> None:  # noqa: A002
            self.rows.append(_row(f"`{f'{flag} {metavar}'.strip()}`", help))

    cvs_options.pytest_addoption(
        typing.cast("Any", types.SimpleNamespace(getgroup=lambda *_: Group()))
    )
    yield from Group.rows


def marker_table() -> Lines:
    """Yield the markers of pytest."""
    yield from _head("marker", "selects")
    yield from (_row(f"`{name}`", text) for name, text in markers().items())


# the command line


def commands() -> Lines:
    """Yield each command with its arguments; options of a sweep are named once."""
    for name, of in cli.commands().items():
        all_commands = cli._parser(name)  # noqa: SLF001 - argparse has no list of its own
        ((_, parser),) = _kinds(all_commands)
        yield from ("", f"## `xlatune {name}`", "", f"{of.line[0].upper()}{of.line[1:]}.", "")
        yield from _arguments(parser)
        for kind, each in _kinds(parser):
            yield from (f"### `xlatune {name} {kind}`", "", each.description or "", "")
            yield from _arguments(each)
        yield from (f"    {each}" for each in of.examples)


def _kinds(parser: argparse.ArgumentParser) -> list[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:  # noqa: SLF001
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001
            return list(action.choices.items())
    return []


def _arguments(parser: argparse.ArgumentParser) -> Lines:
    rows, of_sweeps = [], []
    for action in parser._actions:  # noqa: SLF001
        skipped = (argparse._HelpAction, argparse._SubParsersAction)  # noqa: SLF001
        if isinstance(action, skipped):
            continue
        is_of_sweep = action.dest.startswith("xlatune_") and action.nargs != 0
        if is_of_sweep and any(each.key == action.dest for each in OPTIONS):
            of_sweeps.append(action.option_strings[0].removeprefix("--"))
            continue
        if action.help == argparse.SUPPRESS:
            continue
        value = "" if action.nargs == 0 else f" {_metavar(action)}"
        word = ", ".join(action.option_strings) + value if action.option_strings else value.strip()
        # the page says once what --json prints
        text = (action.help or "").replace("%%", "%").removeprefix("one JSON document")
        rows.append(_row(f"`{word}`", text))
    if of_sweeps:
        rows.append(_row("[settings](settings.md)", _named_settings(of_sweeps)))
    if rows:
        yield from (*_head("argument", "meaning"), *rows, "")


def _named_settings(named: Sequence[str]) -> str:
    """Say which settings a command takes; those that a sweep file states too in one word."""
    of_sweep = [each.name for each in OPTIONS if each.group is not RunSettings]
    whole = set(of_sweep) <= set(named)
    others = [f"`--{name}`" for name in named if not (whole and name in of_sweep)]
    return ", ".join([*(["all of a sweep"] if whole else []), *others])


def _metavar(action: argparse.Action) -> str:
    named = action.metavar or action.dest
    name = named if isinstance(named, str) else " ".join(named)
    return {"+": f"{name} ...", "*": f"[{name} ...]", "?": f"[{name}]"}.get(str(action.nargs), name)


def exits() -> Lines:
    """Yield the exit statuses, of pytest and of the commands."""
    yield from _head("pytest", "`xlatune`", "means")
    for each in Exit:
        ours = "" if each is Exit.NOTHING_SELECTED else str(of_command(each))
        yield _row(str(int(each)), ours, each.meaning)


# failures

_THEN = {
    Next.DROP: "the profile is dropped",
    Next.STOP: "the sweep stops",
    Next.GIVE_UP: "the trial could not be measured; the sweep goes on",
}
_BEFORE = {
    Action.RESUME_NODE: "after the node is back in service",
    Action.HOOK: "after the site's own command mended it",
}


def _said(rule: RetryRule) -> str:
    then = _THEN[rule.then]
    if not rule.retries:
        return then
    times = {1: "once more", 2: "twice more"}.get(rule.retries, f"{rule.retries} times more")
    if rule.retries == ENDLESS:
        return f"tried {rule.backoff_s:g} s later, then each hour, until it works"
    first = [f"{rule.backoff_s:g} s later"] if rule.backoff_s else []
    first += [_BEFORE[rule.before]] if rule.before in _BEFORE else []
    tried = f"tried {times}{', '.join(['', *first])}"
    # the page says once that a sweep goes on without a trial that could not be measured
    return tried if rule.then is Next.GIVE_UP else f"{tried}; then {then}"


def failures() -> Lines:
    """Yield every class of failure with its meaning and with what a sweep does about it."""
    known = signatures.table()
    asked: dict[str, set[Action]] = {}
    for each in known.signatures:
        asked.setdefault(each.cls, set()).add(each.action)
    for cls in map(FailureClass, known.combined):
        asked.setdefault(cls, set()).add(cls.action or Action.RETRY)
    head = ("class", "means", "what a sweep does", "what you do")
    yield from _head(*head)
    for cls in FailureClass:
        is_ruled = cls in CLASS_RULES or cls in blamed_on(Blame.UNKNOWN)
        actions = sorted(asked.get(cls, {Action.RETRY} if is_ruled else set()))
        done = [_follows(cls, action) for action in actions]
        whose = " (trouble of the site)" if cls in blamed_on(Blame.SITE) else ""
        yield _row(f"`{cls}`", cls.meaning + whose, "; or ".join(dict.fromkeys(done)), cls.advice)


def lines_of_logs() -> Lines:
    """Yield a sample line of each signature, and the classes that log and outcome tell together."""
    yield from _head("class", "action", "the line")
    for each in signatures.table().signatures:
        fatal = ", fatal" if each.is_fatal else ""
        sample = each.sample.replace("|", "\\|")
        yield f"| {each.cls} | {each.action}{fatal} | `{sample}` |"
    for cls in map(FailureClass, signatures.table().combined):
        is_digest = FAILURES[cls].digest
        fatal = ", fatal" if is_digest else ""
        shown = f"a whole hang digest of libtpu: {cls.meaning}" if is_digest else cls.meaning
        yield f"| {cls} | {cls.action}{fatal} | {shown} |"


def _follows(cls: FailureClass, action: Action) -> str:
    if action is Action.NONE:
        return "nothing by itself"
    if action is Action.SUCCESS:
        return "the trial counts"
    return _said(rule_for(RetryPolicy(), Finding(cls=cls, action=action)))


def rules() -> Lines:
    """Yield what the rules of the catalog find, and what follows."""
    yield from _head("rule", "finds", "result")
    for each in RULES:
        yield _row(f"`{each.name}`", each.finds, str(each.level))


def hangs() -> Lines:
    """Yield the causes that a digest of Megascale names, and what each asks for."""
    yield from _head("cause", "class", "means", "what to do")
    for each in causes():
        yield _row(each.words[0], f"`{each.cls}`", each.means, " ".join(each.action))


def _session(command: str, *more: str) -> Lines:
    """Yield a command and what it says, indented as code; `more` words are not shown."""
    kept = {name: of for name, of in os.environ.items() if not name.startswith("XLATUNE_")}
    plain = mock.patch.dict(os.environ, {**kept, "COLUMNS": "80"}, clear=True)
    with plain, contextlib.redirect_stdout(io.StringIO()) as said:
        cli.main([*command.split()[1:], *more])
    yield from ("", f"    $ {command}")
    yield from (f"    {each}".rstrip() for each in said.getvalue().rstrip().splitlines())


def tpu_plan() -> Lines:
    """Yield what `xlatune plan` says of the sweep for a TPU, before the table of its trials."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(DOCS.parent):
        command = "xlatune plan sweeps/test_tpu.py --model llama2-7b"
        lines = list(_session(command, "--workdir", folder))
    yield from (*lines[: lines.index("    Trials")], "    ...")


def faults() -> Lines:
    """Yield what each fault on a cluster ends in, as the tests of the lab expect it."""
    yield from _head("fault", "what it ends in")
    yield from (_row(fault, expected) for fault, expected in FAULTS.values())


# files


def attempt_files() -> Lines:
    """Yield the files in the folder of an attempt."""
    yield from _head("file", "written by", "holds")
    # `    > log.<rank>.txt   standard output and ...`
    for sign, name, text in re.findall(r"(?m)^    ([<>]) (\S+) +(.+)$", executors.__doc__ or ""):
        yield _row(f"`{name}`", {"<": "xlatune", ">": "the node"}[sign], text.replace("`", ""))


def leaderboard() -> Lines:
    """Yield the fields of leaderboard.json."""
    yield from _head("field", "holds")
    said = inspect.getdoc(leaderboard_json) or ""
    for name, text in re.findall(r"(?ms)^    ([a-z_]+) +(\S.*?)(?=^    [a-z_]|^$)", said):
        yield _row(f"`{name}`", " ".join(text.split()))


def events() -> Lines:
    """Yield the events of a ledger, each with its fields."""
    for kind, event in sorted(ledger.EVENTS.items()):
        yield from ("", f"### `{kind}`", "", _first(event), "")
        yield from _fields(event)


def records() -> Lines:
    """Yield every record that those files hold, by name."""
    for module in {each.study.partition(":")[0] for each in KINDS.values()}:
        importlib.import_module(module)  # their own records are known after that
    found: dict[str, type[Any]] = {}
    # a program may have imported a study of its own, as the tests do
    known = [each for each in StudyRecord._kinds.values() if each.kind]  # noqa: SLF001
    of_studies = [each for each in known if each.__module__.startswith("pytest_xlatune.")]
    top = (LaunchSpec, ProcessRecord, Now, MeasuredCell, *of_studies, *ledger.EVENTS.values())
    for each in top:
        _reach(each, found)
    for name, each in sorted(found.items()):
        if issubclass(each, (ledger.Event, Message)):  # a message has a section of its own
            continue
        yield from ("", f"### `{name}`", "", _first(each), "")
        if issubclass(each, enum.Enum):
            yield f"One of {', '.join(f'`{member.value}`' for member in each)}."
        else:
            yield from _fields(each, found)


def _reach(kind: Any, found: dict[str, type[Any]]) -> None:
    for each in typing.get_args(kind):
        _reach(each, found)
    if not isinstance(kind, type) or kind.__name__ in found:
        return
    if issubclass(kind, enum.Enum):
        found[kind.__name__] = kind
    elif issubclass(kind, Record):
        found[kind.__name__] = kind
        hints = typing.get_type_hints(kind)
        for name in kind.__struct_fields__:
            _reach(hints[name], found)


def _first(kind: type[Any]) -> str:
    return " ".join((inspect.getdoc(kind) or "").partition("\n\n")[0].split())


# what a field is where there is nothing; the page says it once
_ABSENT = re.compile(
    r"; (?:None|\"\") (?:is none|likewise|otherwise|without \w+(?: \w+)?"
    r"|(?:if|is|where) unknown|where (?:there (?:is|was) none|that is not known|none \w+"
    r"|(?:no|the) \w+ (?:tells them|(?:does|did) not(?: say)?)))(?=\.?$)"
)


def _fields(
    kind: type[Any], documented: Mapping[str, type[Any]] = types.MappingProxyType({})
) -> Lines:
    """Yield the fields of a record; those of a documented one that it extends are named there."""
    bases = [base for base in kind.__mro__[1:] if documented.get(base.__name__) is base]
    inherited = {name for base in bases for name in base.__struct_fields__}
    names = [name for name in kind.__struct_fields__ if name not in inherited]
    of_base = f"the fields of `{bases[0].__name__}`" if inherited else ""
    told = dict(_told(kind))
    types_of = {
        name: said for base in kind.__mro__[::-1] for name, said in _annotated(base).items()
    }
    # a name that says all by itself stands in one line with the others of its kind
    plain = [f"`{name}: {types_of[name]}`" for name in names if not told.get(name)]
    has = ", ".join(filter(None, (of_base, *plain)))
    if has or not names:
        yield f"It has {has or 'no field'}."
    explained = [
        (name, (types_of[name], _ABSENT.sub("", told[name]))) for name in names if told.get(name)
    ]
    rows = itertools.groupby(explained, lambda field: field[1])
    lines = [
        f"* `{', '.join(name for name, _ in alike)}: {said}`: {meaning}"
        for (said, meaning), alike in rows
    ]
    yield from ([""] if has and lines else [])
    yield from lines


# an annotation that checks more than the type -> the type
_IS = {
    **dict.fromkeys(("Real", "Time"), "float"),
    **dict.fromkeys(("RelativePath", "AnyRelativePath", "JobId"), "str"),
    "Timings": "Sequence[tuple[int, float]]",
    "AnyStudyRecord": "StudyRecord",
}
_CHECKED = re.compile(rf"\b({'|'.join(_IS)})\b")


def _annotated(kind: type[Any]) -> dict[str, str]:
    said: dict[str, str] = vars(kind).get("__annotations__", {})
    plain = {name: _CHECKED.sub(lambda found: _IS[found[0]], text) for name, text in said.items()}
    return {
        name: re.sub(r"^([\w.]+(?:\[.*\])?) \| None$", r"\1?", to) for name, to in plain.items()
    }


def _told(kind: type[Any]) -> Iterator[tuple[str, str]]:
    """Yield the fields that a docstring or a comment explains."""
    for base in reversed(kind.__mro__):
        if not issubclass(base, Record):
            continue
        with contextlib.suppress(OSError, TypeError):
            # `    pid: int  # its id`
            yield from re.findall(r"(?m)^    (\w+): .*?  # (.+)$", inspect.getsource(base))
        yield from _attributes(base)


def _attributes(kind: type[Any]) -> Iterator[tuple[str, str]]:
    """Yield the attributes that the docstring of a class explains."""
    text = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
    # `    first, last: probed releases ...`, with lines after it that are further in
    for names, meaning in re.findall(r"(?ms)^    (\w[\w, ]*): (.*?)(?=^    \w|\Z)", text):
        said = " ".join(meaning.split())
        yield from ((name.strip(), said) for name in names.split(","))


def layers() -> Lines:
    """Yield the packages with their layers, each with the first sentence of its docstring."""
    yield from _head("layer", "package", "subject")
    for name, (layer, _) in sorted(LAYERS.items(), key=lambda each: each[1][0]):
        home = PACKAGE / name
        path = home / "__init__.py" if home.is_dir() else home.with_suffix(".py")
        if name != "__init__":
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            said = " ".join(text.split("\n\n")[0].split())
            yield _row(str(layer), f"`{name}`", said.partition(". ")[0].removesuffix("."))


def facts() -> Lines:
    """Yield what an executor may state, each fact with its meaning."""
    yield from _head("fact", "meaning")
    yield from (_row(f"`{name}`", text) for name, text in _attributes(executors.Executor))


def catalog() -> Lines:
    """Yield the catalog as tables, one for each axis; the first axis of an entry has its row."""
    entries = load().entries
    of_gpus = [each for each in entries if not (each.channel or each.is_key)]
    said: list[CatalogEntry] = []
    for axis in ("any", *(axis.name for axis in (Axis.FSDP, Axis.PP, Axis.TP, Axis.DP, Axis.EP))):
        of_axis = [each for each in of_gpus if axis in each.axes]
        title = "Any axis" if axis == "any" else axis
        yield from _settings_table(title, [each for each in of_axis if each not in said])
        above = dict.fromkeys(f"`{each.name}`" for each in of_axis if each in said)
        if above:
            yield from (f"And above: {', '.join(above)}.", "")
        said += of_axis
    for variable, channel in CHANNELS.items():
        own = [each for each in entries if each.channel == variable]
        if own:
            yield from _settings_table(f"{channel.reader} ({variable})", own)
    yield from _settings_table("Keys of MaxText", [each for each in entries if each.is_key])


def _settings_table(title: str, entries: Sequence[CatalogEntry]) -> Lines:
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
            span(each),
            each.source,
        )
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
    yield ""


# name -> the page that holds it, and its lines
PARTS: Mapping[str, tuple[str, Callable[[], Lines]]] = {
    "layers": ("explanation/architecture.md", layers),
    "facts of an executor": ("how-to/extend.md", facts),
    "settings": ("reference/settings.md", settings),
    "switches": ("reference/settings.md", switches),
    "markers": ("reference/settings.md", marker_table),
    "commands": ("reference/commands.md", commands),
    "exit statuses": ("reference/commands.md", exits),
    "failure classes": ("reference/failures.md", failures),
    "lines of logs": ("reference/failures.md", lines_of_logs),
    "rules": ("reference/flags.md", rules),
    "causes of a hang": ("how-to/megascale.md", hangs),
    "a plan for a TPU": ("how-to/tpu.md", tpu_plan),
    "faults of a cluster": ("reference/slurm_jobs.md", faults),
    "files of an attempt": ("reference/formats.md", attempt_files),
    "leaderboard.json": ("reference/formats.md", leaderboard),
    "events": ("reference/formats.md", events),
    "records": ("reference/formats.md", records),
    "catalog": ("reference/catalog.md", catalog),
}


def text_of(name: str) -> str:
    """Return a part as it must stand between its comments."""
    return "\n".join(PARTS[name][1]()).strip("\n")


def main() -> None:
    """Write all parts."""
    for name, (page, _) in PARTS.items():
        pages.rewrite(DOCS / page, text_of(name), name)


if __name__ == "__main__":
    main()
