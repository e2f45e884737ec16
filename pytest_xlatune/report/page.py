"""Write a document and its plots as one HTML page that needs no other file and no other host.

    page_of(document, subject) -> Page      html(page) -> text      document_page(document)
    Page.live: what a page says while its sweep runs

A page has the whole document, plots of the conclusion and of the history, and what the history says
about every trial. It must not know which study it is about. All text is escaped by jinja2, which is
in the extra `page` and is imported only when a page is written. A policy in the page lets no other
script run, whatever the text.
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
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.result import TrialResult
from pytest_xlatune.model.text import ABSENT, printable
from pytest_xlatune.report.deployment import deployed_by_hand, guarded_lines
from pytest_xlatune.report.document import (
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
# seconds until a page is loaded again, while its sweep runs and while it stands still
_EVERY_S, _EVERY_STILL_S = 10.0, 60.0
# seconds without a sign of life until a sweep counts as still; a session gives one each minute
STILL_S = 150.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The state of a sweep that is not over; times are in seconds since the epoch.

    Attributes:
        written_s: when the page was written.
        alive_s: when a session last worked on the sweep.
        event_s: the time of the ledger's last event.
        progress: the trials that are over, those to come, and the time left, in words.
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
            return f"Stands still since {_utc(self.alive_s)}: no session is at it"
        return f"Last event {_utc(self.event_s)}; this page is of {_utc(self.written_s)}"

    @property
    def data(self) -> Mapping[str, float]:
        """Name of a data attribute -> its seconds, for the script of the page."""
        return {
            "alive": round(self.alive_s, 1),
            "event": round(self.event_s, 1),
            "still": STILL_S,
            "every": _EVERY_S,
            "everystill": _EVERY_STILL_S,
        }


def _utc(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S} UTC"


_Shown = Block | Plot | Matrix


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePart:
    """A titled part of a page; `anchor` is its name in links."""

    title: str
    anchor: str
    blocks: tuple[_Shown, ...]


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
    """Return the page of a document about one study; with an explanation, why the winner wins."""
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
            "What was measured, and on what": [Bullets(items=document.header)],
        },
    )
    return dataclasses.replace(page, files=tuple(files), live=live)


def document_page(document: Document, *, source: str) -> Page:
    """Return the page of a document about no single study: its text and its plots."""
    header = [Bullets(items=document.header)] if document.header else []
    page = _page(document, before={}, after={"What was measured": header})
    return dataclasses.replace(page, source=source)


def _page(
    document: Document,
    *,
    before: Mapping[str, Sequence[_Shown | None]],
    after: Mapping[str, Sequence[_Shown | None]],
) -> Page:
    """Return the page of a document; other parts come before its second section, and at its end.

    A part without blocks is left out.
    """
    opening, rest = document.sections[:1], document.sections[1:]
    sections: list[tuple[str, Sequence[_Shown | None]]] = [
        *((section.title, section.blocks) for section in opening),
        *((drawn.title, [_known(drawn.plot)]) for drawn in document.drawn),
        *before.items(),
        *((section.title, section.blocks) for section in rest),
        *after.items(),
    ]
    parts: list[PagePart] = []
    for name, blocks in sections:
        shown = tuple(
            _without_empty(block) if isinstance(block, Table) else block
            for block in blocks
            if block is not None
        )
        if shown:
            parts.append(PagePart(title=name, anchor=f"part-{len(parts) + 1}", blocks=shown))
    return Page(title=document.title, parts=tuple(parts))


def _without_empty(table: Table) -> Table:
    """Return a table without its empty columns, which leaves more width for flags."""
    kept = [
        at
        for at in range(len(table.columns))
        if not table.rows or any(row[at] not in ("", ABSENT) for row in table.rows)
    ]
    return dataclasses.replace(
        table,
        columns=tuple(table.columns[at] for at in kept),
        rows=tuple(tuple(row[at] for at in kept) for row in table.rows),
    )


def _known(plot: object) -> Chart | Matrix | None:
    return plot if isinstance(plot, Chart | Matrix) else None


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
    counts: dict[tuple[str, ...], int] = {}
    for result in history:
        for setting in result.settings or ():
            arm = "as deployed" if setting.is_deployed else literal(result.trial.arm)
            shown = sentence(setting.said)
            is_quoted = len(shown) > 1 and shown[0] == shown[-1] == "'"
            seen = plain(shown[1:-1] if is_quoted else shown) or ABSENT
            asked = plain(setting.asked)
            row = (
                arm,
                literal(setting.label),
                asked,
                str(setting.effect),
                seen,
                plain(setting.witness),
            )
            counts[row] = counts.get(row, 0) + 1
    if not counts:
        return None
    titles = columns("~Arm", "~Setting", "~asked", "~effect", "~seen", "~shown by", ">trials")
    rows = sorted(counts.items(), key=lambda pair: pair[0][0] != "as deployed")
    return Table(
        columns=titles, rows=tuple((*row[:5], row[5] or ABSENT, str(n)) for row, n in rows)
    )


def _findings(history: Sequence[TrialResult]) -> Table | None:
    """Return what the logs of the trials show: a row for equal findings, with all their jobs."""
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
    text: str = _template().render(page=page, policy=_policy(), script=_script(), style=_style())
    lines = (line for line in map(str.rstrip, text.splitlines()) if line.strip())
    return printable("\n".join(lines) + "\n")


@functools.cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"rich": _rich, "shape": _shape, "lines": _code, "rows": _rows}
    return environment.from_string(_file("page.jinja"))


@functools.cache
def _file(name: str) -> str:
    return Path(__file__).with_name(name).read_text("utf-8")


_LONG_CELL = 80  # characters
_CODE = re.compile(r"`([^`]*)`")


@functools.lru_cache(maxsize=4096)  # many cells of a table are the same
def _rich(text: str) -> str:
    """Escape a text, and mark its literals as code."""
    from markupsafe import Markup, escape

    if "`" not in text:
        return escape(text)
    ends = [0, *(end for code in _CODE.finditer(text) for end in code.span()), len(text)]
    parts = [text[start:end] for start, end in pairwise(ends)]

    def literal_of(part: str) -> str:
        if "--" not in part:
            return f'<code class="id">{escape(part)}</code>'
        # browsers break lines at the hyphens of a flag; each word has a box, so it stays whole
        words = " ".join(f"<span>{escape(word)}</span>" for word in part.split(" "))
        return f'<code class="flag">{words}</code>'

    made = (literal_of(part[1:-1]) if at % 2 else escape(part) for at, part in enumerate(parts))
    return Markup("".join(made))  # noqa: S704 - each part is escaped above


def _rows(table: Table) -> Iterator[str]:
    """Yield the cells of each row; a loop in the template took half the time of a large page."""
    from markupsafe import Markup, escape

    heads = [escape(column.title).replace("`", "") for column in table.columns]
    for row in table.rows:
        cells = (
            f'<td class="{_looks(cell, column)}" data-head="{head}">{_rich(cell)}</td>'
            for cell, column, head in zip(row, table.columns, heads, strict=False)
        )
        yield Markup("".join(cells))  # noqa: S704 - each part is escaped above


def _looks(cell: str, column: Column) -> str:
    """Return the classes of a cell."""
    looks = "right" if column.align == "right" else "wrap" if column.wrap else "text"
    if looks == "wrap" and len(cell) > _LONG_CELL:
        looks = "wrap long"
    return f"{looks} absent" if cell == ABSENT else looks


def _code(text: str) -> str:
    """Escape code and keep its lines; the template removes blank lines of the page."""
    from markupsafe import Markup, escape

    made: str = Markup("&#10;").join(escape(line) for line in text.rstrip().split("\n"))
    return made


def _shape(block: _Shown) -> str:
    return type(block).__name__


def _script() -> str:
    return _file("page.js").strip()


def _style() -> str:
    return _file("page.css").strip()


def _policy() -> str:
    """Return the policy for the browser: only the page's own script and styles may run."""
    digest = base64.b64encode(hashlib.sha256(_script().encode()).digest()).decode()
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        f"base-uri 'none'; form-action 'none'"
    )
