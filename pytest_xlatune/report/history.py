"""List all studies by date, or those of one cell, from their ledgers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_xlatune.model.cell import Cell, varied_fields
from pytest_xlatune.model.record import Json
from pytest_xlatune.model.result import Conclusion, Verdict
from pytest_xlatune.model.text import (
    ABSENT,
    counted,
    interval,
    minute,
    percent,
    significant,
)
from pytest_xlatune.report.document import (
    Document,
    Table,
    Text,
    columns,
    literal,
    plain,
    section,
)
from pytest_xlatune.report.language import plainly
from pytest_xlatune.report.lines import figure, tally


@dataclass(frozen=True, slots=True, kw_only=True)
class PastStudy:
    """One study of a cell, as its ledger has it.

    Attributes:
        folder: the folder of the ledger.
        sweep: the name of the sweep.
        kind: the kind of the study, e.g. "tuning" or "gate".
        cell: the cell, or the first one if there are several.
        digest: its digest.
        conclusion: the conclusion of the study.
        jobs: the number of submitted jobs.
        node_hours: the node-hours of all attempts; None if no attempt has ended.
        ended_s: the time of the ledger's last event, in seconds since the epoch.
    """

    folder: str
    sweep: str
    kind: str
    cell: Cell
    digest: str
    conclusion: Conclusion
    jobs: int
    node_hours: float | None
    ended_s: float

    @property
    def best(self) -> Verdict | None:
        """The verdict on the recommended arm; None if the study recommends none."""
        return None if self.conclusion.facts.summary else self.conclusion.winner

    @property
    def answer(self) -> str:
        """The finding in a few words: the study's summary, the winner, or a tally of verdicts."""
        if summary := self.conclusion.facts.summary:
            return plainly(summary[0])
        if (best := self.best) is not None:
            ci95 = f" {interval(best.ci95)}" if best.ci95 else ""
            return f"★ {literal(best.arm)} {percent(best.delta)}{ci95}"
        return tally(self.conclusion.verdicts)

    def to_json(self) -> Json:
        """Return the study for programs, without its verdicts: `xlatune report --json` has them."""
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


_MIN_DIGEST_CHARS = 4  # a shorter start of an id does not name a cell


def is_called(name: str, cell: Cell, *, sweep: str, folder: str) -> bool:
    """Return whether a name may mean a cell: its label, model, sweep, folder or start of its id."""
    names = (cell.label, cell.variant, cell.model_tag, sweep, folder.rpartition("/")[2], folder)
    return name in names or (len(name) >= _MIN_DIGEST_CHARS and cell.digest.startswith(name))


def by_date(past: Sequence[PastStudy]) -> list[PastStudy]:
    """Return studies with the oldest first."""
    return sorted(past, key=lambda study: (study.ended_s, study.folder))


_FIELD_NAMES = {  # field of a cell -> its name for people
    "image": "image",
    "code": "commit",
    "launcher": "started as",
    "nodelist": "nodes",
    "config_tag": "configuration",
    "per_device_batch_size": "batch",
    "deployed": "deployed settings",
    "overrides": "overrides",
}


def history(past: Sequence[PastStudy], *, is_one_cell: bool = False) -> Document:
    """Return studies as a document with their cost, the oldest first.

    `is_one_cell` says that a user named one cell. The name stays if the cell changes, so the
    document then also says how each study's cell differs from the first study's: figures of
    different cells do not compare.
    """
    ordered = by_date(past)
    differing = varied_fields([study.cell for study in ordered]) if is_one_cell else ()
    varied = [name for name in _FIELD_NAMES if name in differing]
    rows = tuple(
        (
            minute(study.ended_s),
            plain(study.sweep),
            plain(study.kind),
            plain(study.cell.label),
            figure(study.conclusion.reference),
            str(study.conclusion.reference.n) if study.conclusion.reference else ABSENT,
            study.answer,
            str(study.jobs),
            significant(study.node_hours),
            "complete" if study.conclusion.complete else "preliminary",
            *([_differences(study.cell, ordered[0].cell, varied)] if varied else []),
            literal(study.digest),
        )
        for study in ordered
    )
    titles = columns(
        "When (UTC)", "~Sweep", "study", "~Cell", ">reference", ">n", "~found", ">jobs",
        ">node-hours", "state", *(("~differs from the first in",) if varied else ()), "~cell id",
    )  # fmt: skip
    known = [study.node_hours for study in past if study.node_hours is not None]
    hours = significant(sum(known)) if known else ABSENT
    cells = counted(len({study.digest for study in past}), "cell")
    note = "The references of different cells do not compare."
    return Document(
        title="History",
        header=(
            f"{counted(len(past), 'ledger')} of {cells}",
            f"Cost: {counted(sum(study.jobs for study in past), 'job')}, {hours} node-hours",
        ),
        sections=(
            section(
                "Studies, the oldest first",
                Table(columns=titles, rows=rows),
                *([Text(text=note)] if varied else []),
            ),
        ),
    )


def _differences(cell: Cell, first: Cell, varied: Sequence[str]) -> str:
    """Return the fields in which a cell differs from the first, each with its value if short."""
    parts = []
    for field in varied:
        value = getattr(cell, field)
        if value != getattr(first, field):
            shown = f" {literal(str(value))}" if isinstance(value, str | float) else ""
            parts.append(f"{_FIELD_NAMES[field]}{shown}")
    return "; ".join(parts) or ABSENT
