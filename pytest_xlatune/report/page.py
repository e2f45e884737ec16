"""Write a document and its plots as one HTML page that needs no other file and no other host.

    html(document, subject) -> text

A page has the whole document, plots of the conclusion, and the commands of its arms. This module
must not know which study the page is about. All text is escaped by jinja2, which is in the extra
`page` and is imported only when a page is written. In addition, a policy in the page lets the
browser run no script but the page's own.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

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
    literal,
)
from pytest_xlatune.report.guards import conflicts
from pytest_xlatune.report.language import ENGLISH
from pytest_xlatune.report.leaderboard import JOBS_TITLE, jobs_table
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.report.page_plots import Forest, Matrix, forest, pair_matrix
from pytest_xlatune.report.study_documents import listings
from pytest_xlatune.report.tuning_document import WHY, why

if TYPE_CHECKING:
    from jinja2 import Template


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """The state of a sweep that is not over.

    Attributes:
        at_s: the time of the state, in seconds since the epoch.
        progress: the trials that are over, the trials to come, and the time left, in words.
        running: the jobs in flight, with a line for each.
    """

    at_s: float
    progress: str = ""
    running: tuple[str, ...] = ()

    @property
    def status(self) -> str:
        """The time of the state, and what an old time means."""
        at = f"{datetime.fromtimestamp(self.at_s, UTC):%Y-%m-%d %H:%M:%S} UTC"
        return (
            f"State of {at}. A session that works on this sweep writes the page again each minute; "
            "if it is older, run the command again to continue."
        )


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
