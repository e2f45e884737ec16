"""The facts of a measured cell, and the cells of one model as data: the JSON of their document.

The next sweep adds its cell to this file, and the markdown is written from it again. All figures
are those of the ledgers. Values whose names speak of a secret are hidden before they come here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from statistics import fmean
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
from pytest_xlatune.model.result import (
    Comparison,
    Conclusion,
    Score,
    TrialResult,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.stats.blocks import BlockScore, fit_blocks
from pytest_xlatune.stats.compare import compare
from pytest_xlatune.stats.design import SWEEP_ALPHA

SCHEMA = 4
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


Slots = tuple[tuple[str, str], ...]


def slot_numbers(slots: Slots) -> dict[str, int]:
    """Return the number of each slot, from 1, by the identity of the cell on it."""
    return {name: number for number, (name, _) in enumerate(slots, start=1)}


class DeviceUse(Record, frozen=True, kw_only=True):
    """What an arm takes of a device, by the logs of its runs.

    Attributes:
        tflops: TFLOP/s, the mean over the runs that print it; None likewise of the others.
        mfu: percent of the stated peak; without one, as the logs print it.
        memory_gb: of the compiled step, the largest of any run, 2^30 bytes.
    """

    tflops: Real | None = None
    mfu: Real | None = None
    memory_gb: Real | None = None


class MeasuredCell(Record, frozen=True, kw_only=True):
    """All facts of a study and of its cell: what every document, page and patch is made of.

    Attributes:
        conclusion: the conclusion of the study.
        cells: as measured, the nodes that the scheduler picked included; mostly one.
        written_s: time of the ledger's last event, seconds since the epoch.
        sweep: the sweep's name.
        cell_digest: the first cell's identity where secrets are hidden in `cells`, so that it
            cannot be computed again; "" where it can.
        profiles: what was compared with the baseline.
        history: the results, every score in the window of all trials.
        evidence: each evidence run with what was read of it, one line each.
        stopped: why the sweep was stopped, "" if it was not.
        remarks: job id -> why it has no score, where no result says so.
        logs: job id -> its log, below the work directory.
        commands: `arm` -> command, environment and files of a job of it; not kept in a file.
        files: the files that deploy the cell, as the sweep read them when it began.
        versions: of the software that ran the sweep.
        explanation: the evidence on the winner; None where no one asked for it.
        earlier: earlier measurements of the same cell, oldest first.
        elsewhere: verdicts of wave 6 on the winner, one a configuration.
        record: what the figures rest on besides the settings; None of an imported table.
        slots: identity of the cell on each node slot -> its nodes as a host list; () is one slot.
        exposed: where a step of the baseline goes, by an evidence run of it.
        known: lines that other files of the cell add: of a calibration the figures that later
            plans use, of nodes that ran in pairs how each did alone.
    """

    conclusion: Conclusion
    cells: tuple[Cell, ...]
    written_s: Real
    sweep: str = ""
    cell_digest: str = ""
    profiles: tuple[Profile, ...] = ()
    history: tuple[TrialResult, ...] = ()
    evidence: tuple[tuple[TrialResult, tuple[str, ...]], ...] = ()
    stopped: str = ""
    remarks: dict[str, str] = msgspec.field(default_factory=dict)
    logs: dict[str, str] = msgspec.field(default_factory=dict)
    commands: dict[str, str] = msgspec.field(default_factory=dict)
    files: tuple[DeployedFile, ...] = ()
    versions: dict[str, str] = msgspec.field(default_factory=dict)
    explanation: Explanation | None = None
    earlier: tuple[FormerSweep, ...] = ()
    elsewhere: tuple[OtherCell, ...] = ()
    record: RunRecord | None = None
    slots: Slots = ()
    exposed: Message | None = None
    known: tuple[str, ...] = ()

    @property
    def cell(self) -> Cell:
        """The cell, or the first of several."""
        return self.cells[0]

    @property
    def written(self) -> datetime:
        """Time of the ledger's last event, in UTC."""
        return datetime.fromtimestamp(self.written_s, UTC)

    @property
    def uses(self) -> dict[str, DeviceUse]:
        """Arm -> what it takes of a device, of a study whose arms are cells."""
        facts = self.conclusion.facts
        if not facts.arms_are_cells:
            return {}
        scores: dict[str, list[Score]] = {}
        for result in self.history:
            if result.score is not None:
                scores.setdefault(result.trial.arm, []).append(result.score)
        return {
            arm: use
            for arm, arm_scores in sorted(scores.items())
            if (use := _use_of(arm_scores, facts.peak_tflops)) != DeviceUse()
        }

    @property
    def label(self) -> str:
        """The cell without its model, e.g. `PP=8 sparse pdbs=7`: a document has one model."""
        return self.cell.variant

    @property
    def jobs(self) -> frozenset[str]:
        """All its jobs: another ledger of the same cell has none of them."""
        return frozenset(job for result in self.history for job in result.job_ids)

    @property
    def every_trial(self) -> tuple[TrialResult, ...]:
        """The results, and those of the evidence runs behind them."""
        known = {result.trial.id for result in self.history}
        others = (result for result, _ in self.evidence if result.trial.id not in known)
        return (*self.history, *others)

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

    def deploys(self, earlier: FormerSweep) -> bool:
        """Whether the deployed environment of today is that of then with its winner on top.

        Only flags and variables are compared: a cell knows its trainer's keys by their file.
        """
        if earlier.recipe is None or not (earlier.recipe.flags or earlier.recipe.env):
            return False
        then, now = dict(earlier.deployed), self.cell.environment
        before = parse_flags(then.pop("XLA_FLAGS", ""), where="deployed XLA_FLAGS")
        after = parse_flags(now.pop("XLA_FLAGS", ""), where="deployed XLA_FLAGS")
        wanted, present = (
            # hidden values cannot be compared
            {name: value for name, value in env.items() if not is_secret(name)}
            for env in (on_top(then, earlier.recipe.env), now)
        )
        flags = (*before, *earlier.recipe.flags)
        return settings_digest(after, present) == settings_digest(flags, wanted)


def _use_of(scores: list[Score], peak_tflops: float | None) -> DeviceUse:
    def printed(figure_of: Callable[[Score], float | None]) -> list[float]:
        return [value for score in scores if (value := figure_of(score)) is not None]

    tflops = printed(lambda score: score.tflops)
    mfu = printed(lambda score: score.mfu)
    if tflops and peak_tflops:
        mfu = [100 * fmean(tflops) / peak_tflops]
    return DeviceUse(
        tflops=fmean(tflops) if tflops else None,
        mfu=fmean(mfu) if mfu else None,
        memory_gb=max(printed(lambda score: score.memory_gb), default=None),
    )


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
        elif cell.explanation and not (new.explanation and new.explanation.facts):
            new = replace(new, explanation=cell.explanation)
        if new.recipe == cell.recipe:
            new = replace(new, elsewhere=new.elsewhere or cell.elsewhere)
        cells[at] = replace(new, earlier=tuple(_with_change(former, new) for former in earlier))
        return tuple(cells)
    return (*cells, new)


def _with_change(former: FormerSweep, now: MeasuredCell) -> FormerSweep:
    """Return a measurement with how the baseline changed from then to now.

    Two samples of jobs: a drift of the machine between them is in the change.
    """
    scores = [BlockScore(block=0, arm="then", value=value) for value in former.scores]
    scores += [BlockScore(block=0, arm="now", value=value) for value in now.baseline_scores]
    fit = fit_blocks(scores, control="then") if former.scores and now.baseline_scores else None
    change = compare(fit, "now", family=1, alpha=SWEEP_ALPHA) if fit is not None else None
    if not isinstance(change, Comparison):
        return replace(former, change=None)
    ends = (change.estimate, *change.ci95)
    return replace(former, change=tuple(map(relative, ends)))


# 13,000 steps of each trial made 144 MB of JSON
MOST_STEPS = 100


def thinned(result: TrialResult, *, steps: float = 0) -> TrialResult:
    """Return the result without the times of its steps where they are more than so many.

    They are in the ledger.
    """
    score = result.score
    if score is None or len(score.timings) <= steps:
        return result
    return replace(result, score=replace(score, timings=()))


class _CellsFile(msgspec.Struct, frozen=True):
    """What `write_cells` writes; the cells are read once its schema is known to be ours."""

    schema: int
    cells: tuple[msgspec.Raw, ...]


_FILE = msgspec.json.Decoder(_CellsFile)
_CELL = msgspec.json.Decoder(MeasuredCell, dec_hook=decode)


def write_cells(cells: Sequence[MeasuredCell]) -> str:
    """Return the JSON text, one newline at its end; keys are sorted, figures as recorded."""
    thin = (
        replace(
            cell,
            commands={},
            history=tuple(map(thinned, cell.history)),
            evidence=tuple((thinned(result), lines) for result, lines in cell.evidence),
        )
        for cell in cells
    )
    texts = ",\n".join(pretty_json(cell.to_json()).rstrip() for cell in thin)
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
