"""Write a document and its plots as one HTML page that needs no other file and no other host.

    html(document, subject) -> text

A page has the whole document, plots of the conclusion, and the commands of its arms. This module
must not know which study the page is about. It draws nothing: `page.jinja` draws the plots, whose
places are in percent of the width, so that a page can have any size. All texts of the plots are in
tables too. All text is escaped by jinja2, which is in the extra `page` and is imported only when a
page is written. In addition, a policy in the page lets the browser run no script but the page's
own.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.result import CellsRecord, Conclusion, Verdict, VerdictKind
from pytest_xlatune.model.text import ABSENT, interval, points, printable
from pytest_xlatune.report.deployment import deployed_by_hand, guarded_lines
from pytest_xlatune.report.document import (
    PROVENANCE,
    Block,
    Bullets,
    Column,
    Document,
    Table,
    Text,
    literal,
    plain,
)
from pytest_xlatune.report.guards import conflicts
from pytest_xlatune.report.language import ENGLISH
from pytest_xlatune.report.leaderboard import CONFIRMED, JOBS_TITLE, jobs_table, settings_by_arm
from pytest_xlatune.report.lines import is_pending, words_beside
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.report.study_documents import listings
from pytest_xlatune.report.tuning_document import WHY, why

if TYPE_CHECKING:
    from jinja2 import Template

_MAX_TICKS = 7  # of an axis
_MARGIN = 0.04  # share of an axis that is kept free at each of its ends
# A forest shows at least changes of this size in both directions: a narrower axis would enlarge
# meaningless differences.
_MIN_CHANGE = 0.005


_Ticks = tuple[tuple[float, str], ...]  # the place and the text of each tick of an axis


@dataclass(frozen=True, slots=True, kw_only=True)
class ForestRow:
    """An arm of a forest plot; places are in percent of the width."""

    name: str
    what: str  # the settings of the arm; "" if they are not known
    n: str  # the number of its trials
    verdict: str  # in a few words
    # the verdict's kind in lower case, which gives the row its colour and shape; followed by
    # `hollow` if it is not known that the settings were in effect
    looks: str
    at: float  # the place of the change
    low: float | None  # the places of the ends of its interval; None without an interval
    high: float | None
    delta: str  # the change and its interval as text
    ends: str
    is_best: bool  # whether the arm is the winner


@dataclass(frozen=True, slots=True, kw_only=True)
class Forest:
    """The change and the interval of each arm on one axis; `zero` is the place of no change.

    Attributes:
        parts: title -> rows that may be compared with each other.
    """

    title: str
    caption: str
    ticks: _Ticks
    zero: float
    parts: Mapping[str, Sequence[ForestRow]]


def _axis(changes: Sequence[float]) -> tuple[Callable[[float], float], _Ticks]:
    """Return a function from a change to its place in percent of the width, and round changes.

    One of the changes must be 0. An infinite change is put at an end.
    """
    low, high = min(changes), max(changes)
    if max(-low, high) < _MIN_CHANGE:
        low, high = -_MIN_CHANGE, _MIN_CHANGE
    free = (high - low) * _MARGIN
    low, high = low - free, high + free

    def place(change: float) -> float:
        return round(100 * min(max((change - low) / (high - low), 0.0), 1.0), 2)

    min_step = 100 * (high - low) / _MAX_TICKS
    power = 10.0 ** math.floor(math.log10(min_step))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= min_step)
    numbers = range(math.ceil(100 * low / step), math.floor(100 * high / step) + 1)
    # 10 digits hide the rounding errors of a product
    texts = {number * step: f"{number * step:+.10g}" if number else "0" for number in numbers}
    return place, tuple((place(value / 100), text) for value, text in texts.items())


_SCREENED = "Screened: they rank, and prove nothing"
_FIRST_RUNS = "By first runs alone; the intervals allow for the noise of one run"


def forest(conclusion: Conclusion, *, profiles: Iterable[Profile] = ()) -> Forest | None:
    """Return the forest plot of a conclusion; None if no arm has a change to show.

    Confirmed and screened arms are separate parts on one axis, because they do not compare. The
    settings of the arms come from `profiles`.
    """
    shown = [
        verdict
        for verdict in conclusion.verdicts
        if verdict.delta is not None
        and math.isfinite(verdict.delta)
        and verdict.kind is not VerdictKind.INVALID
        and not is_pending(verdict)
    ]
    if not shown:
        return None
    changes = [0.0]
    for verdict in shown:
        changes += [*(verdict.ci95 or ()), verdict.delta or 0.0]
    place, ticks = _axis([change for change in changes if math.isfinite(change)])
    settings, best = settings_by_arm(profiles), conclusion.winner

    def row(verdict: Verdict) -> ForestRow:
        arm_settings = settings.get(verdict.arm, ABSENT)
        low, high = map(place, verdict.ci95) if verdict.ci95 else (None, None)
        return ForestRow(
            name=plain(conclusion.facts.shown_name(verdict.arm)),
            what="" if arm_settings == ABSENT else arm_settings,
            n=str(verdict.n),
            verdict=words_beside(verdict),
            looks=f"{verdict.kind.lower()}{' hollow' if verdict.unproved else ''}",
            at=place(verdict.delta or 0.0),
            low=low,
            high=high,
            delta=points(verdict.delta),
            ends=interval(verdict.ci95),
            is_best=verdict is best,
        )

    decided = [verdict for verdict in shown if verdict.kind in CONFIRMED]
    ranked = [verdict for verdict in shown if verdict.kind is VerdictKind.SCREENED]
    ranked_title = _SCREENED if any(verdict.ci95 is None for verdict in ranked) else _FIRST_RUNS
    parts = {"Verdicts": [*map(row, decided)], ranked_title: [*map(row, ranked)]}
    reference = "" if conclusion.reference is None else conclusion.reference.arm
    references = {sentence(verdict.against) or reference for verdict in shown}
    return Forest(
        title=f"Change of {plain(conclusion.metric.head)} {_against(references)}",
        caption="Dot: the change in percent. Bar: its 95 % interval. To the right is faster.",
        ticks=ticks,
        zero=place(0.0),
        parts={title: rows for title, rows in parts.items() if rows},
    )


def _against(references: set[str]) -> str:
    """Return with what the arms are compared; a reference described in words is plain text."""
    if len(references) > 1 or not all(references):
        return "against the reference of each arm"
    (arm,) = references
    return f"against {plain(arm) if ' ' in arm else literal(arm)}"


_MAX_NODES = 24  # nodes that a matrix shows; more squares would be too small to read
# limits and styles: a square has the style of the first limit that its change does not exceed
_DEPTHS = ((-0.05, "lowest"), (-0.02, "lower"), (-0.01, "low"), (math.inf, "even"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A matrix of all pairs of nodes.

    Each row has a style and the change in percentage points for each of `names`; both are "" for a
    pair without a score.
    """

    caption: str
    names: tuple[str, ...]
    rows: tuple[tuple[tuple[str, str], ...], ...]


def pair_matrix(subject: MeasuredCell) -> Matrix | None:
    """Return the matrix of the changes of all pairs; None without pairs, or with too many nodes.

    The table of the slowest pairs is in the document, whatever their number.
    """
    pairs = subject.conclusion.found(CellsRecord).pairs
    names = list(dict.fromkeys(name for cell in subject.cells for name in cell.nodelist))
    if not pairs or len(names) > _MAX_NODES:
        return None
    change = {frozenset(pair.nodes): pair.change for pair in pairs}

    def square(nodes: frozenset[str]) -> tuple[str, str]:
        if (value := change.get(nodes)) is None:
            return "", ""
        return next(looks for limit, looks in _DEPTHS if value <= limit), points(value)

    return Matrix(
        caption="Change in percent of each pair of nodes, as in the table: from its fresh runs, or "
        "from its first run if it has no fresh one. Empty: the pair has no score.",
        names=tuple(map(plain, names)),
        rows=tuple(tuple(square(frozenset((a, b))) for b in names) for a in names),
    )


class Live(NamedTuple):
    """The state of a sweep that is not over."""

    at_s: float  # the time of the state, in seconds since the epoch
    progress: str = ""  # the trials that are over, the trials to come, and the time left
    running: tuple[str, ...] = ()  # a line for each job in flight


_PageBlock = Block | Forest | Matrix


def html(
    document: Document,
    subject: MeasuredCell,
    *,
    files: Sequence[str] = (),
    live: Live | None = None,
) -> str:
    """Return the page of a document about one study as HTML.

    Args:
        document: the document of the study.
        subject: the facts of the study.
        files: the names of files in the page's folder that have the same figures.
        live: the state of the sweep while it runs; None afterwards.

    Raises:
        ImportError: jinja2 is not installed.
    """
    text: str = _template().render(
        title=document.title,
        parts=_parts(document, subject),
        files=files,
        live=live,
        policy=_policy(),
        script=_script(),
        style=_file("page.css").strip(),
    )
    return printable(text.rstrip() + "\n")


def _parts(document: Document, subject: MeasuredCell) -> list[tuple[str, tuple[_PageBlock, ...]]]:
    """Return the title and the blocks of each part of the page; the first has the findings."""
    has_jobs = any(section.title == JOBS_TITLE for section in document.sections)
    opening, rest = document.sections[:1], document.sections[1:]
    reasons = why(subject, ENGLISH) if subject.explanation and subject.best else ()
    titled: list[tuple[str, Sequence[_PageBlock | None]]] = [
        *((section.title, section.blocks) for section in opening),
        ("Every pair", [pair_matrix(subject)]),
        ("Changes and intervals", [forest(subject.conclusion, profiles=subject.profiles)]),
        ("To deploy", tuple(_deploy(subject))),
        *((section.title, section.blocks) for section in rest),
        (WHY, tuple(reasons)),
        (JOBS_TITLE, [None if has_jobs else jobs_table([("", subject)])]),
        ("To run a row by hand", tuple(listings(subject.commands.items()))),
        (PROVENANCE, [Bullets(items=(*document.header, *document.provenance))]),
    ]
    parts = []
    for title, blocks in titled:
        shown = tuple(
            _without_empty_columns(block) if isinstance(block, Table) else block
            for block in blocks
            if block is not None
        )
        if shown:
            parts.append((title, shown))
    return parts


def _without_empty_columns(table: Table) -> Table:
    """Return a table without its empty columns, which leaves more width for flags."""
    filled = [
        index
        for index in range(len(table.columns))
        if not table.rows or any(row[index] not in ("", ABSENT) for row in table.rows)
    ]
    return replace(
        table,
        columns=tuple(table.columns[index] for index in filled),
        rows=tuple(tuple(row[index] for index in filled) for row in table.rows),
    )


def _deploy(subject: MeasuredCell) -> Iterator[Block]:
    """Yield the lines that deploy a recipe; none if there is no recipe."""
    recipe = subject.recipe
    if recipe is None or subject.conclusion.tuning.recipe is None:
        return
    head = Text(text=f"In the environment of the job, for {literal(recipe.id)}:")
    lines = guarded_lines(recipe, conflicts(subject, (subject,)))
    yield from deployed_by_hand(recipe, lines, head)


@functools.cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "rich": _rich,
        "macro_name": lambda block: type(block).__name__,
        "classes": _cell_classes,
        "utc": lambda at_s: f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S} UTC",
    }
    return environment.from_string(_file("page.jinja"))


@functools.cache
def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")


_LONG_CELL_CHARS = 80  # a longer text of a table gets the class `long`
_CODE = re.compile(r"`([^`]*)`")


def _rich(text: str) -> str:
    """Escape a text, and mark its literals as code."""
    from markupsafe import Markup, escape

    if "`" not in text:
        return escape(text)

    def literal_markup(part: str) -> str:
        if "--" not in part:
            return f'<code class="id">{escape(part)}</code>'
        # browsers break lines at the hyphens of a flag; each word is in a box and stays whole
        words = " ".join(f"<span>{escape(word)}</span>" for word in part.split(" "))
        return f'<code class="flag">{words}</code>'

    # `split` also returns the group of the pattern, so every second part is a literal
    parts = [
        literal_markup(part) if index % 2 else escape(part)
        for index, part in enumerate(_CODE.split(text))
    ]
    return Markup("".join(parts))  # noqa: S704 - each part is escaped above


def _cell_classes(cell: str, column: Column) -> str:
    """Return the classes of a text in a table, for the style sheet."""
    classes = "right" if column.align == "right" else "wrap" if column.wrap else "text"
    if classes == "wrap" and len(cell) > _LONG_CELL_CHARS:
        classes = "wrap long"
    return f"{classes} absent" if cell == ABSENT else classes


def _script() -> str:
    return _file("page.js").strip()


def _policy() -> str:
    """Return the policy for the browser: only the page's own script and styles may run."""
    digest = base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        f"base-uri 'none'; form-action 'none'"
    )
