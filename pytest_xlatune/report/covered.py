"""The measured cells of one model as data: the JSON beside the tuning document's markdown.

The next sweep adds its cell to this file, and the markdown is written from it again. All figures
are those of the ledgers. Values whose names speak of a secret are hidden before they come here.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, DeployedFile
from pytest_xlatune.model.channels import on_top
from pytest_xlatune.model.environment import RunRecord
from pytest_xlatune.model.errors import LedgerError, XlatuneError
from pytest_xlatune.model.message import Message
from pytest_xlatune.model.pretty_json import pretty_json
from pytest_xlatune.model.profile import Profile, parse_flags, settings_digest
from pytest_xlatune.model.record import Real, Record, decode, explained
from pytest_xlatune.model.redact import is_secret
from pytest_xlatune.model.result import Conclusion, TrialResult, Verdict, VerdictKind
from pytest_xlatune.report import Subject

SCHEMA = 3
_T = TypeVar("_T")
_AGAIN = "move it aside: `xlatune report` writes it again from the ledgers"


class EvidenceFact(Record, frozen=True, kw_only=True):
    """A difference between the baseline and the winner that evidence shows.

    Attributes:
        kind: "HLO", "step", "kernel family", "overlap" or "network".
        text: the sentence or the figure.
        artifacts: files or folders that show it, below the work directory.
        jobs: the jobs that wrote the artifacts.
    """

    kind: str
    text: str
    artifacts: tuple[str, ...] = ()
    jobs: tuple[str, ...] = ()


class Explanation(Record, frozen=True, kw_only=True):
    """What recorded evidence says of a winner against `baseline-deployed`.

    Attributes:
        profile: id of the profile that the evidence belongs to; "" without evidence.
        facts: in the order HLO, step, families, overlap, network.
        is_identical: whether the two programs are the same; None where a dump is missing.
        moved: relative change of a step's span between the traces; None where one is missing.
        problems: one sentence for each artifact that could not be read.
    """

    profile: str = ""
    facts: tuple[EvidenceFact, ...] = ()
    is_identical: bool | None = None
    moved: Real | None = None
    problems: tuple[str, ...] = ()


class FormerSweep(Record, frozen=True, kw_only=True):
    """An earlier measurement of a cell that was measured again under other conditions.

    Attributes:
        cell_digest: its identity then.
        written_s: seconds since the epoch of its last event.
        baseline: the baseline's line then.
        best: the winner then; None where there was none.
        recipe: settings of the winner.
        deployed: the environment that was deployed then, as far as it is known.
        scores: the scores of the baseline's trials then, as logarithms.
        change: of `baseline-deployed` from then to today: what, and its 95 % interval; relative.
    """

    cell_digest: str
    written_s: Real
    baseline: Verdict
    best: Verdict | None = None
    recipe: Profile | None = None
    deployed: dict[str, str] = msgspec.field(default_factory=dict)
    scores: tuple[Real, ...] = ()
    change: tuple[Real, Real, Real] | None = None


class OtherCell(Record, frozen=True, kw_only=True):
    """The verdict of wave 6 on the winner, on another configuration of the model.

    Attributes:
        config_tag: names that configuration.
        sweep: of the gate, which names the folder of its report.
        verdict: on the winner there.
    """

    config_tag: str
    sweep: str
    verdict: Verdict

    @property
    def holds(self) -> bool:
        """Whether a loss is excluded there."""
        return self.verdict.kind in (VerdictKind.FASTER, VerdictKind.EQUIVALENT)

    @property
    def is_harmful(self) -> bool:
        """Whether it is slower there, or cannot run."""
        cannot_run = self.verdict.kind is VerdictKind.INVALID and not self.verdict.can_run
        return self.verdict.kind is VerdictKind.SLOWER or cannot_run


class MeasuredCell(Record, frozen=True, kw_only=True):
    """One cell of a tuning document, with all facts that the document tells of it.

    Attributes:
        sweep: the sweep's name.
        cell_digest: the cell's identity; secrets are hidden in `cell`, so it cannot be recomputed.
        written_s: time of the ledger's last event, seconds since the epoch.
        cell, profiles, conclusion: as the ledger and the sweep have them.
        history: as `trials` of the sweep's own JSON, without `timings`.
        stopped: why the sweep was stopped, "" if it was not.
        remarks: job id -> why it has no score, where no result says so.
        files: the files that deploy the cell, as the sweep read them when it began.
        versions: of the software that ran the sweep.
        explanation: the evidence on the winner.
        earlier: earlier measurements of the same cell, oldest first.
        elsewhere: verdicts of wave 6 on the winner, one a configuration.
        record: what the figures rest on besides the settings; None where that is not known.
        slots, exposed: see `Subject`.
    """

    sweep: str
    cell_digest: str
    written_s: Real
    cell: Cell
    profiles: tuple[Profile, ...]
    conclusion: Conclusion
    history: tuple[TrialResult, ...]
    stopped: str = ""
    remarks: dict[str, str] = msgspec.field(default_factory=dict)
    files: tuple[DeployedFile, ...] = ()
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    explanation: Explanation = msgspec.field(default_factory=Explanation)
    earlier: tuple[FormerSweep, ...] = ()
    elsewhere: tuple[OtherCell, ...] = ()
    record: RunRecord | None = None
    slots: tuple[tuple[str, str], ...] = ()
    exposed: Message | None = None

    @property
    def label(self) -> str:
        """The cell without its model, e.g. `PP=8 sparse pdbs=7`: a document has one model."""
        return self.cell.variant

    @property
    def jobs(self) -> frozenset[str]:
        """All its jobs: another ledger of the same cell has none of them."""
        return frozenset(job for result in self.history for job in result.job_ids)

    @property
    def baseline_scores(self) -> tuple[float, ...]:
        """The scores of the baseline's trials: logarithms."""
        return tuple(
            result.score.value
            for result in self.history
            if result.trial.is_baseline and result.score
        )

    @property
    def best(self) -> Verdict | None:
        """The verdict on the recommended arm, None where no profile wins."""
        return self.conclusion.winner

    @property
    def recipe(self) -> Profile | None:
        """The settings of the winner; None without one, or where the sweep names it no more."""
        best = self.best
        return next((profile for profile in self.profiles if best and profile.id == best.arm), None)

    @property
    def subject(self) -> Subject:
        """What a document of this cell alone would be made of."""
        return Subject(
            conclusion=self.conclusion,
            cells=(self.cell,),
            profiles=self.profiles,
            history=self.history,
            now=datetime.fromtimestamp(self.written_s, UTC),
            stopped=self.stopped,
            record=self.record,
            slots=self.slots,
            exposed=self.exposed,
            remarks=self.remarks,
        )

    def deploys(self, earlier: FormerSweep) -> bool:
        """Whether the deployed environment of today is that of then with its winner on top.

        Only flags and variables are compared: a cell knows its trainer's keys by their file.
        """
        if earlier.recipe is None or not (earlier.recipe.flags or earlier.recipe.env):
            return False
        then, now = dict(earlier.deployed), self.cell.environment
        before = parse_flags(then.pop("XLA_FLAGS", ""), where="deployed XLA_FLAGS")
        after = parse_flags(now.pop("XLA_FLAGS", ""), where="deployed XLA_FLAGS")
        wanted, found = (
            # hidden values cannot be compared
            {name: value for name, value in env.items() if not is_secret(name)}
            for env in (on_top(then, earlier.recipe.env), now)
        )
        flags = (*before, *earlier.recipe.flags)
        return settings_digest(after, found) == settings_digest(flags, wanted)


def names(cells: Sequence[MeasuredCell]) -> dict[str, str]:
    """Return cell digest -> how the document calls the cell; two of one label differ by sweep."""
    labels = [cell.label for cell in cells]
    return {
        cell.cell_digest: cell.label
        if labels.count(cell.label) == 1
        else f"{cell.label} ({cell.sweep})"
        for cell in cells
    }


def extended(kept: Sequence[MeasuredCell], new: MeasuredCell) -> tuple[MeasuredCell, ...]:
    """Return the document's cells with `new` among them, in the order they first came.

    A cell that was measured again takes its old place. A new ledger of it leaves a summary of the
    old one. Evidence that was read before stays, because its artifacts may be gone by now.
    """
    cells = list(kept)
    for at, cell in enumerate(cells):
        if (cell.sweep, cell.label) != (new.sweep, new.label):
            continue
        earlier = cell.earlier
        if cell.cell_digest != new.cell_digest or (cell.jobs.isdisjoint(new.jobs) and cell.jobs):
            then = FormerSweep(
                cell_digest=cell.cell_digest,
                written_s=cell.written_s,
                baseline=cell.conclusion.baseline,
                best=cell.best,
                recipe=cell.recipe,
                deployed=cell.cell.environment,
                scores=cell.baseline_scores,
            )
            # a deployed recipe makes another cell: the first one's evidence and patch were gone
            earlier = (*earlier, then)
        elif not new.explanation.facts and cell.explanation.facts:
            new = replace(new, explanation=cell.explanation)
        if new.recipe == cell.recipe:
            new = replace(new, elsewhere=new.elsewhere or cell.elsewhere)
        cells[at] = replace(new, earlier=earlier) if earlier else new
        return tuple(cells)
    return (*cells, new)


class _CellsFile(msgspec.Struct, frozen=True):
    """What `write_cells` writes; the cells are read once its schema is known to be ours."""

    schema: int
    cells: tuple[msgspec.Raw, ...]


_FILE = msgspec.json.Decoder(_CellsFile)
_CELL = msgspec.json.Decoder(MeasuredCell, dec_hook=decode)


def write_cells(cells: Sequence[MeasuredCell]) -> str:
    """Return the JSON text, one newline at its end; keys are sorted, figures as recorded."""
    texts = ",\n".join(pretty_json(cell.to_json()).rstrip() for cell in cells)
    return f'{{"schema": {SCHEMA}, "cells": [\n{texts}\n]}}\n'


def read_cells(text: str, *, where: str, advice: str = _AGAIN) -> tuple[MeasuredCell, ...]:
    """Read what `write_cells` wrote; `advice` says what to do about a file that is none.

    Raises:
        LedgerError: it is damaged, or from another version.
    """
    return tuple(_read(text, _CELL, where=where, advice=advice))


def _read(text: str, cell: msgspec.json.Decoder[_T], *, where: str, advice: str) -> list[_T]:
    try:
        file = _FILE.decode(text)
    except (ValueError, RecursionError) as error:
        raise LedgerError(
            f"{where} is not the data of a tuning document ({error!r:.80}); {advice}"
        ) from None
    if file.schema != SCHEMA:
        raise LedgerError(f"{where}: schema {file.schema}, this version reads {SCHEMA}; {advice}")
    try:
        return [cell.decode(raw) for raw in file.cells]
    except (XlatuneError, OverflowError, RecursionError, ValueError) as error:
        raise LedgerError(f"{where}: {explained(error)}; {advice}") from None
