"""All studies by date, the course of one cell, two sweeps of it, all commits load by load.

From ledgers, as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pytest_xlatune.model.cell import Cell, varied_fields
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.metric import Metric
from pytest_xlatune.model.record import Json
from pytest_xlatune.model.result import Conclusion, Verdict
from pytest_xlatune.model.text import ABSENT, counted, interval, percent, points, rate, significant
from pytest_xlatune.report.document import (
    Document,
    Table,
    Text,
    bullets,
    columns,
    drawn,
    literal,
    plain,
    section,
)
from pytest_xlatune.report.language import plainly
from pytest_xlatune.report.lines import figure, tally, words_beside
from pytest_xlatune.report.page_plots import PathPlot
from pytest_xlatune.report.study_plots import CoursePlot, cells_plot, course_plot


def _best(conclusion: Conclusion) -> Verdict | None:
    return None if conclusion.facts.summary else conclusion.winner


def answer_of(conclusion: Conclusion) -> str:
    """Return a finding in a few words: the study's own, the winner, or how many of each verdict."""
    if summary := conclusion.facts.summary:
        return plainly(summary[0])
    if (best := _best(conclusion)) is not None:
        ends = f" {interval(best.ci95)}" if best.ci95 else ""
        return f"★ {literal(best.arm)} {percent(best.delta)}{ends}"
    return tally(conclusion.verdicts)


@dataclass(frozen=True, slots=True, kw_only=True)
class PastStudy:
    """One study of a cell, as its ledger has it.

    Attributes:
        folder: the folder of the ledger.
        sweep: name of the sweep.
        kind: the kind of the study, e.g. "tuning" or "gate".
        cells: the cells of the study; the first is the reference's.
        digest: identity of the first cell.
        conclusion: the conclusion of the study.
        jobs: how many were submitted.
        node_hours: node-hours of all attempts; None where none has ended.
        ended_s: time of the ledger's last event, seconds since the epoch.
        commits: of each arm as deployed whose cell names a commit: the cell, and the verdict.
    """

    folder: str
    sweep: str
    kind: str
    cells: tuple[Cell, ...]
    digest: str
    conclusion: Conclusion
    jobs: int
    node_hours: float | None
    ended_s: float
    commits: tuple[tuple[Cell, Verdict], ...] = ()

    @property
    def cell(self) -> Cell:
        """The cell, or the first of several."""
        return self.cells[0]

    @property
    def best(self) -> Verdict | None:
        """The verdict on the recommended arm; None where the study recommends none."""
        return _best(self.conclusion)

    @property
    def answer(self) -> str:
        """The finding in a few words: the study's own, the winner, or how many of each verdict."""
        return answer_of(self.conclusion)

    def to_json(self) -> Json:
        """Return it for programs, without the verdicts: `xlatune report --json` has them."""
        best = self.best
        return {
            "folder": self.folder,
            "sweep": self.sweep,
            "kind": self.kind,
            "cell": self.cell.label,
            "cell_digest": self.digest,
            "ended_s": self.ended_s,
            "complete": self.conclusion.complete,
            "answer": self.answer.replace("`", ""),
            "winner": best.arm if best else None,
            "delta": best.delta if best else None,
            "ci95": list(best.ci95) if best and best.ci95 else None,
            "jobs": self.jobs,
            "node_hours": self.node_hours,
        }


_LEAST_DIGEST = 4


def is_called(name: str, cell: Cell, *, sweep: str, folder: str) -> bool:
    """Whether a name may mean a cell: label, model, sweep, folder, or the head of its id."""
    names = (cell.label, cell.variant, cell.model_tag, sweep, folder.rpartition("/")[2], folder)
    return name in names or (len(name) >= _LEAST_DIGEST and cell.digest.startswith(name))


def by_date(past: Sequence[PastStudy]) -> list[PastStudy]:
    """Return them with the oldest first."""
    return sorted(past, key=lambda each: (each.ended_s, each.folder))


def history(past: Sequence[PastStudy], *, is_page: bool = False) -> Document:
    """Return all studies as a document, the oldest first, with what they cost.

    With the plot that a page draws, where it `is_page`.
    """
    rows = tuple(
        (
            _when(each),
            plain(each.sweep),
            plain(each.kind),
            plain(each.cell.label),
            each.answer,
            *_cost(each),
            "complete" if each.conclusion.complete else "preliminary",
            literal(each.digest),
        )
        for each in by_date(past)
    )
    titles = columns(
        "When (UTC)", "~Sweep", "study", "~Cell", "~found", ">jobs", ">node-hours", "state",
        "~cell id",
    )  # fmt: skip
    cells = len({each.digest for each in past})
    return Document(
        title="History",
        header=(
            f"{counted(len(past), 'ledger')} of {counted(cells, 'cell')}",
            _total(past),
        ),
        sections=(section("Studies", Table(columns=titles, rows=rows)),),
        drawn=drawn("All cells over time", _cells_plot(past)) if is_page else (),
    )


def _cells_plot(past: Sequence[PastStudy]) -> PathPlot | None:
    return cells_plot([(e.cell.label, e.ended_s, _state(e), _words(e)) for e in past])


def _state(past: PastStudy) -> str:
    """Return which colour of a page's plot a study has."""
    if not past.conclusion.complete:
        return "unmeasured"
    return "measured" if past.best is not None else "reference"


def _words(past: PastStudy) -> str:
    return f"{past.sweep}, {past.kind}: {past.answer}"


_VARIED = {
    "image": "image",
    "code": "commit",
    "launcher": "started as",
    "nodelist": "nodes",
    "config_tag": "configuration",
    "per_device_batch_size": "batch",
    "deployed": "deployed settings",
    "overrides": "overrides",
}


def course(past: Sequence[PastStudy], *, is_page: bool = False) -> Document:
    """Return the studies of one cell over time: what was deployed then, what was found, the cost.

    They may differ in image, commit or nodes, and then their figures do not compare; a column says
    in what.
    """
    ordered = by_date(past)
    varied = [name for name in _VARIED if name in varied_fields([each.cell for each in ordered])]
    metric = ordered[-1].conclusion.metric
    rows = []
    for each in ordered:
        base, best = each.conclusion.reference, each.best
        rows.append(
            (
                _when(each),
                plain(each.sweep),
                plain(each.kind),
                figure(base),
                str(base.n) if base else ABSENT,
                each.answer if best is None else f"★ {literal(best.arm)}",
                points(best.delta) if best else ABSENT,
                interval(best.ci95) if best else ABSENT,
                *_cost(each),
                *([_differs(each.cell, ordered[0].cell, varied)] if varied else []),
            )
        )
    titles = columns(
        "When (UTC)", "~Sweep", "study", f">reference {metric.head}", ">n", "~found", ">delta %",
        "95 %", ">jobs", ">node-hours", *(("~differs from the first in",) if varied else ()),
    )  # fmt: skip
    newest = ordered[-1]
    return Document(
        title=f"{newest.cell.label}: its course",
        header=(
            counted(len(ordered), "ledger"),
            _total(ordered),
        ),
        sections=(
            section(
                "What was found last",
                Text(text=f"{_when(newest)} UTC, {literal(newest.sweep)}: {newest.answer}."),
            ),
            section(
                "Studies, the oldest first",
                Table(columns=titles, rows=tuple(rows)),
                *([Text(text="References of cells that differ do not compare.")] if varied else []),
            ),
            section(
                "Ledgers", bullets(*(f"{literal(each.folder)}: {_when(each)}" for each in ordered))
            ),
        ),
        drawn=drawn("The reference over time", _course_plot(ordered, metric)) if is_page else (),
    )


def _course_plot(ordered: Sequence[PastStudy], metric: Metric) -> CoursePlot | None:
    figures = [
        (each.sweep, _when(each), value)
        for each in ordered
        if each.conclusion.metric == metric
        and (value := _value(each.conclusion.reference)) is not None
    ]
    return course_plot(figures, head=metric.head)


def _value(verdict: Verdict | None) -> float | None:
    if verdict is None:
        return None
    return verdict.figure.value if verdict.figure else verdict.tgs


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadRow:
    """One commit under one load in one study.

    Attributes:
        past: the study.
        cell: the load at that commit.
        verdict: the study's word on it.
        delta: TGS against the row above, relative; None where one has none or they do not compare.
        differs: in what besides the commit its cell differs from the row above's.
    """

    past: PastStudy
    cell: Cell
    verdict: Verdict
    delta: float | None
    differs: str

    def to_json(self) -> Json:
        """Return it for programs."""
        return {
            "folder": self.past.folder,
            "sweep": self.past.sweep,
            "ended_s": self.past.ended_s,
            "commit": self.cell.code,
            "verdict": words_beside(self.verdict),
            "tgs": self.verdict.tgs,
            "n": self.verdict.n,
            "delta": self.delta,
            "differs": self.differs.replace("`", ""),
            "jobs": list(self.verdict.job_ids),
        }


def loads_of(past: Sequence[PastStudy]) -> dict[str, list[LoadRow]]:
    """Return each model x node count with its commits: by date, within a study in its order."""
    found: dict[str, list[LoadRow]] = {}
    for each in by_date(past):
        for cell, verdict in each.commits:
            count = f", {counted(len(cell.nodelist), 'node')}" if cell.nodelist else ""
            rows = found.setdefault(f"{cell.label}{count}", [])
            differs, delta = "", None
            if rows:
                above = rows[-1]
                varied = varied_fields([above.cell, cell]) - {"code"}
                differs = _differs(cell, above.cell, [name for name in _VARIED if name in varied])
                differs = differs if differs != ABSENT else ", ".join(sorted(varied))
                if not varied and verdict.tgs and above.verdict.tgs:
                    delta = verdict.tgs / above.verdict.tgs - 1
            rows.append(
                LoadRow(past=each, cell=cell, verdict=verdict, delta=delta, differs=differs)
            )
    return dict(sorted(found.items()))


def by_load(past: Sequence[PastStudy]) -> Document:
    """Return a table for each model x node count: every commit that was measured there.

    Raises:
        ConfigError: no cell names a commit.
    """
    loads = loads_of(past)
    if not loads:
        raise ConfigError(
            f"none of {counted(len(past), 'ledger')} measured a commit; a study of commits does, "
            "or a sweep whose launcher is a CheckoutLauncher (docs/how-to/commits.md)"
        )
    titles = columns(
        "When (UTC)", "~Sweep", "~commit", "~verdict", ">TGS", ">against the row above %", ">runs",
        "~jobs", "~differs from the row above in",
    )  # fmt: skip
    sections = tuple(
        section(
            name,
            Table(
                columns=titles,
                rows=tuple(
                    (
                        _when(each.past),
                        plain(each.past.sweep),
                        literal(each.cell.code[:_SHORT_HASH]),
                        words_beside(each.verdict),
                        rate(each.verdict.tgs),
                        points(each.delta),
                        str(each.verdict.n),
                        ", ".join(each.verdict.job_ids) or ABSENT,
                        each.differs or ABSENT,
                    )
                    for each in rows
                ),
            ),
        )
        for name, rows in loads.items()
    )
    shown = {each.past.folder for rows in loads.values() for each in rows}
    return Document(
        title="Commits by load",
        header=(
            f"{counted(len(loads), 'load')} in {counted(len(shown), 'ledger')}",
            _TIMES,
        ),
        sections=sections,
    )


_SHORT_HASH = 12
_TIMES = (
    "A verdict is that of its own sweep. A change against a row of another sweep was measured at "
    "another time, and what drifted in between is in it: it accuses no commit."
)


def _differs(cell: Cell, first: Cell, varied: Sequence[str]) -> str:
    found = []
    for name in varied:
        then, now = getattr(first, name), getattr(cell, name)
        if then != now:
            is_short = isinstance(now, str | float | int)
            found.append(f"{_VARIED[name]} {literal(str(now))}" if is_short else _VARIED[name])
    return "; ".join(found) or ABSENT


def _when(past: PastStudy) -> str:
    return _date(past.ended_s)


def _date(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M}"


def _cost(past: PastStudy) -> tuple[str, str]:
    return str(past.jobs), significant(past.node_hours)


def _total(past: Sequence[PastStudy]) -> str:
    known = [each.node_hours for each in past if each.node_hours is not None]
    hours = significant(sum(known)) if known else ABSENT
    return f"Cost: {counted(sum(each.jobs for each in past), 'job')}, {hours} node-hours"
