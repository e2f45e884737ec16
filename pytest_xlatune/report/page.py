"""Write a document and its plots as one HTML page that needs no other file and no other host.

    page_of(document, subject) -> Page      of a study
    document_page(document) -> Page         of a document about several studies
    html(page) -> text

A page has the whole document, plots of the conclusion and of the history, and tables of what the
history says about every trial. This module must not know which study the page is about. All text is
escaped by jinja2, which is in the extra `page` and is imported only when a page is written. In
addition, a policy in the page lets the browser run no script but the page's own.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.result import TrialResult
from pytest_xlatune.model.text import ABSENT, printable
from pytest_xlatune.report.deployment import deployed_by_hand, guarded_lines
from pytest_xlatune.report.document import (
    PROVENANCE,
    Block,
    Bullets,
    Column,
    Document,
    Table,
    Text,
    columns,
    literal,
    plain,
)
from pytest_xlatune.report.guards import conflicts
from pytest_xlatune.report.language import ENGLISH
from pytest_xlatune.report.leaderboard import JOBS_TITLE, jobs_table
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.report.page_plots import (
    Chart,
    Plot,
    drift,
    forest,
    strips,
)
from pytest_xlatune.report.study_documents import listings
from pytest_xlatune.report.study_plots import Matrix
from pytest_xlatune.report.tuning_document import WHY, why

if TYPE_CHECKING:
    from jinja2 import Template

_JOBS = "Every job"
# seconds after which a browser loads a page again, while a session works on the sweep and while
# none does
_RELOAD_S, _RELOAD_STILL_S = 10.0, 60.0
# After so many seconds without a sign of life, no session is assumed to work on a sweep. A session
# gives a sign of life each minute.
STILL_S = 150.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The state of a sweep that is not over; times are in seconds since the epoch.

    Attributes:
        written_s: when the page was written.
        alive_s: when a session last worked on the sweep.
        event_s: the time of the ledger's last event.
        progress: the trials that are over, the trials to come, and the time left, in words.
        running: the jobs in flight, with a line for each.
    """

    written_s: float
    alive_s: float
    event_s: float
    progress: str = ""
    running: tuple[str, ...] = ()

    @property
    def is_still(self) -> bool:
        """Whether no session worked on the sweep when the page was written."""
        return self.written_s - self.alive_s > STILL_S

    @property
    def status(self) -> str:
        """The time of the last event or sign of life, for a reader without scripts."""
        if self.is_still:
            return f"No session has worked on this sweep since {_utc(self.alive_s)}"
        return f"Last event {_utc(self.event_s)}; this page was written {_utc(self.written_s)}"

    @property
    def data(self) -> Mapping[str, float]:
        """Name of a data attribute -> its seconds, for the script of the page."""
        return {
            "alive": round(self.alive_s, 1),
            "event": round(self.event_s, 1),
            "still": STILL_S,
            "reload": _RELOAD_S,
            "reloadstill": _RELOAD_STILL_S,
        }


def _utc(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S} UTC"


_PageBlock = Block | Plot | Matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePart:
    """A titled part of a page; `anchor` is its name in links."""

    title: str
    anchor: str
    blocks: tuple[_PageBlock, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Everything that a page shows, in order.

    Attributes:
        title: the title of the page.
        parts: the parts of the page; the first has the findings.
        files: the names of files in its folder that have the same figures.
        source: where the figures come from.
        live: the state of the sweep while it runs; None for a page that is not written again.
    """

    title: str
    parts: tuple[PagePart, ...]
    files: tuple[str, ...] = ()
    source: str = "the sweep's ledger"
    live: Live | None = None


def page_of(
    document: Document,
    subject: MeasuredCell,
    *,
    files: Sequence[str] = (),
    live: Live | None = None,
) -> Page:
    """Return the page of a document about one study.

    Args:
        document: the document of the study.
        subject: the facts of the study.
        files: the names of files in the page's folder that have the same figures.
        live: the state of the sweep while it runs; None afterwards.
    """
    conclusion, history = subject.conclusion, subject.history
    reference = conclusion.reference.arm if conclusion.reference else ""
    has_jobs = any(section.title == JOBS_TITLE for section in document.sections)
    reasons = why(subject, ENGLISH) if subject.explanation and subject.best else ()
    page = _page(
        document,
        before={
            "Changes and intervals": [forest(conclusion, profiles=subject.profiles)],
            "To deploy": tuple(_deploy(subject)),
        },
        after={
            WHY: tuple(reasons),
            "Noise and drift": [drift(history, reference=reference, sigma=conclusion.noise.sigma)],
            "Step times of every trial": [strips(history, reference=reference)],
            "Settings in effect": [_settings(history)],
            "Findings": [_findings(history)],
            _JOBS: [None if has_jobs else jobs_table([("", subject)])],
            "To run a row by hand": tuple(listings(subject.commands.items())),
            PROVENANCE: [Bullets(items=(*document.header, *document.provenance))],
        },
    )
    return dataclasses.replace(page, files=tuple(files), live=live)


def document_page(document: Document, *, source: str) -> Page:
    """Return the page of a document that is not about a single study: its text and its plots.

    `source` says where its figures come from.
    """
    header = [Bullets(items=document.header)] if document.header else []
    page = _page(document, before={}, after={"What was measured": header})
    return dataclasses.replace(page, source=source)


def _page(
    document: Document,
    *,
    before: Mapping[str, Sequence[_PageBlock | None]],
    after: Mapping[str, Sequence[_PageBlock | None]],
) -> Page:
    """Return the page of a document with more parts, each of which is title -> blocks.

    The parts in `before` come before the second section of the document, those in `after` at the
    end. A part without blocks is left out.
    """
    opening, rest = document.sections[:1], document.sections[1:]
    sections: list[tuple[str, Sequence[_PageBlock | None]]] = [
        *((section.title, section.blocks) for section in opening),
        # a document may have plots of kinds that the template cannot draw
        *(
            (drawn.title, [drawn.plot])
            for drawn in document.drawn
            if isinstance(drawn.plot, Chart | Matrix)
        ),
        *before.items(),
        *((section.title, section.blocks) for section in rest),
        *after.items(),
    ]
    parts: list[PagePart] = []
    for name, blocks in sections:
        shown = tuple(
            _without_empty_columns(block) if isinstance(block, Table) else block
            for block in blocks
            if block is not None
        )
        if shown:
            parts.append(PagePart(title=name, anchor=f"part-{len(parts) + 1}", blocks=shown))
    return Page(title=document.title, parts=tuple(parts))


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


def _settings(history: Sequence[TrialResult]) -> Table | None:
    """Return how well it is known that each setting of each arm was in effect."""
    counts: dict[tuple[str, ...], int] = {}  # row -> number of trials with it
    for result in history:
        for setting in result.settings or ():
            seen_value = sentence(setting.evidence)
            if len(seen_value) > 1 and seen_value[0] == seen_value[-1] == "'":
                seen_value = seen_value[1:-1]
            row = (
                _AS_DEPLOYED if setting.is_deployed else literal(result.trial.arm),
                literal(setting.label),
                plain(setting.asked),
                str(setting.effect),
                plain(seen_value) or ABSENT,
                plain(setting.witness) or ABSENT,
            )
            counts[row] = counts.get(row, 0) + 1
    if not counts:
        return None
    titles = columns("~Arm", "~Setting", "~asked", "~effect", "~seen", "~shown by", ">trials")
    deployed_first = sorted(counts, key=lambda row: row[0] != _AS_DEPLOYED)
    return Table(columns=titles, rows=tuple((*row, str(counts[row])) for row in deployed_first))


_AS_DEPLOYED = "as deployed"


def _findings(history: Sequence[TrialResult]) -> Table | None:
    """Return the findings in the logs of the trials; equal findings of several jobs are one row."""
    jobs: dict[tuple[str, ...], list[str]] = {}
    times: dict[tuple[str, ...], int] = {}
    for result in history:
        for finding in result.findings:
            row = (
                literal(result.trial.arm),
                plain(finding.cls),
                str(finding.action),
                plain(finding.detail) or ABSENT,
                literal(sentence(finding.said)) or ABSENT,
            )
            jobs.setdefault(row, []).extend(result.job_ids)
            times[row] = times.get(row, 0) + finding.count
    titles = columns("~Arm", "~class", "action", "~detail", "~evidence", ">times", "~Jobs")
    rows = tuple(
        (*row, str(count), plain(", ".join(dict.fromkeys(jobs[row]))) or ABSENT)
        for row, count in times.items()
    )
    return Table(columns=titles, rows=rows) if rows else None


def html(page: Page) -> str:
    """Return the page as HTML.

    Raises:
        ImportError: jinja2 is not installed.
    """
    style = _file("page.css").strip()
    text: str = _template().render(page=page, policy=_policy(), script=_script(), style=style)
    lines = (line for line in map(str.rstrip, text.splitlines()) if line.strip())
    return printable("\n".join(lines) + "\n")


@functools.cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "rich": _rich,
        "macro_name": lambda block: type(block).__name__,
        "code_lines": _code_lines,
        "rows": _rows,
    }
    return environment.from_string(_file("page.jinja"))


@functools.cache
def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")


_LONG_CELL_CHARS = 80  # a longer text of a table gets the class `long`
_CODE = re.compile(r"`([^`]*)`")


@functools.lru_cache(maxsize=4096)  # many texts in a table are equal
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


def _rows(table: Table) -> Iterator[str]:
    """Yield the markup of each row; a loop in the template would double the time of a page."""
    from markupsafe import Markup, escape

    heads = [escape(column.title).replace("`", "") for column in table.columns]
    for row in table.rows:
        cells = (
            f'<td class="{_cell_classes(cell, column)}" data-head="{head}">{_rich(cell)}</td>'
            for cell, column, head in zip(row, table.columns, heads, strict=False)
        )
        yield Markup("".join(cells))  # noqa: S704 - each part is escaped above


def _cell_classes(cell: str, column: Column) -> str:
    """Return the classes of a text in a table, for the style sheet."""
    classes = "right" if column.align == "right" else "wrap" if column.wrap else "text"
    if classes == "wrap" and len(cell) > _LONG_CELL_CHARS:
        classes = "wrap long"
    return f"{classes} absent" if cell == ABSENT else classes


def _code_lines(text: str) -> str:
    """Escape code; its line feeds become entities, because `html` removes blank lines."""
    from markupsafe import Markup, escape

    escaped: str = Markup("&#10;").join(escape(line) for line in text.rstrip().split("\n"))
    return escaped


def _script() -> str:
    return _file("page.js").strip()


def _policy() -> str:
    """Return the policy for the browser: only the page's own script and styles may run."""
    digest = base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        f"base-uri 'none'; form-action 'none'"
    )
