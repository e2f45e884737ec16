"""The facts of a measured cell, and the JSON file with the cells of one model.

Each sweep adds its cell to this file, and the tuning document is written from the file. All figures
are those of the ledgers. Values whose names suggest a secret are already hidden.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, DeployedFile
from pytest_xlatune.model.channels import on_top
from pytest_xlatune.model.environment import RunRecord
from pytest_xlatune.model.errors import LedgerError, XlatuneError
from pytest_xlatune.model.explanation import Explanation
from pytest_xlatune.model.message import Message
from pytest_xlatune.model.pretty_json import pretty_json
from pytest_xlatune.model.profile import Profile, parse_flags, settings_digest
from pytest_xlatune.model.record import Real, Record, decode, explained
from pytest_xlatune.model.redact import is_secret
from pytest_xlatune.model.result import Conclusion, TrialResult, Verdict

SCHEMA = 4
_HOW_TO_RENEW = "move it aside: `xlatune report` writes it again from the ledgers"


class FormerSweep(Record, frozen=True, kw_only=True):
    """An earlier measurement of a cell that was measured again under other conditions.

    Attributes:
        written_s: the time of its last event, in seconds since the epoch.
        baseline: the verdict on the baseline at that time, which has its figure.
        best: the winner at that time; None if there was none.
        recipe: the settings of that winner; None if there was none.
        deployed: the environment deployed at that time, as far as it is known.
    """

    written_s: Real
    baseline: Verdict
    best: Verdict | None = None
    recipe: Profile | None = None
    deployed: dict[str, str] = msgspec.field(default_factory=dict)


class OtherCell(Record, frozen=True, kw_only=True):
    """The verdicts of wave 6 on the two best profiles, in another configuration of the model.

    Attributes:
        config_tag: the name of that configuration.
        sweep: the name of the gate's sweep, which is also the name of the folder of its report.
        verdict: the verdict on the winner there.
        second: the verdict on the second best there; None if only one profile won.
    """

    config_tag: str
    sweep: str
    verdict: Verdict
    second: Verdict | None = None


Slots = tuple[tuple[str, str], ...]  # for each node slot, the digest of its cell and its nodes


class MeasuredCell(Record, frozen=True, kw_only=True):
    """All facts of a study and its cells, from which documents, pages and patches are made.

    Attributes:
        conclusion: the conclusion of the study.
        cells: the cells as measured, with the nodes that the scheduler chose; in most studies one.
        written_s: the time of the ledger's last event, in seconds since the epoch.
        sweep: the name of the sweep.
        cell_digest: the digest of the first cell, which cannot be computed from `cells` if secrets
            are hidden in them; "" if it can.
        profiles: the profiles that were compared with the baseline.
        history: the results; all scores use the same window of steps.
        evidence: each evidence run with what was read from it, in one line each.
        stopped: why the sweep was stopped; "" if it was not.
        remarks: id of a job -> why it has no score, if no result says so.
        logs: id of a job -> its log, below the work directory.
        commands: arm, between backticks -> command, environment and files of its jobs; never
            written to a file.
        files: the files that deploy the cell, as the sweep read them at its start.
        explanation: the evidence on the winner; None if it was not requested.
        earlier: earlier measurements of the same cell, the oldest first.
        elsewhere: the verdicts of wave 6 on the winner, one for each configuration.
        record: machine, software, time and commands of the trials; None for an imported table.
        slots: the digest of the cell on each node slot, and its nodes; () if there is only one.
        exposed: the parts of a step of the baseline, from an evidence run; None if there is none.
        known: lines from other files: the figures of the cell's calibration or, for pairs of nodes,
            what a check of each node alone has shown.
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
    explanation: Explanation | None = None
    earlier: tuple[FormerSweep, ...] = ()
    elsewhere: tuple[OtherCell, ...] = ()
    record: RunRecord | None = None
    slots: Slots = ()
    exposed: Message | None = None
    known: tuple[str, ...] = ()

    @property
    def cell(self) -> Cell:
        """The cell, or the first one if there are several."""
        return self.cells[0]

    @property
    def written(self) -> datetime:
        """The time of the ledger's last event, in UTC."""
        return datetime.fromtimestamp(self.written_s, UTC)

    @property
    def label(self) -> str:
        """The cell in a few words without its model, e.g. `PP=8 sparse pdbs=7`."""
        return self.cell.variant

    @property
    def jobs(self) -> frozenset[str]:
        """The ids of all its jobs; two ledgers of a cell have no job in common."""
        return frozenset(job for result in self.history for job in result.job_ids)

    @property
    def every_trial(self) -> tuple[TrialResult, ...]:
        """The results, followed by those of the evidence runs."""
        known = {result.trial.id for result in self.history}
        others = (result for result, _ in self.evidence if result.trial.id not in known)
        return (*self.history, *others)

    @property
    def best(self) -> Verdict | None:
        """The verdict on the recommended arm; None if no profile wins."""
        return self.conclusion.winner

    @property
    def recipe(self) -> Profile | None:
        """The settings of the winner; None if there is none, or if the sweep no longer names it."""
        best = self.best
        return next((profile for profile in self.profiles if best and profile.id == best.arm), None)

    @property
    def env_file(self) -> DeployedFile | None:
        """The file into which a recipe is written; None if the sweep read none."""
        return next((file for file in self.files if file.is_shell), None)

    def deploys(self, earlier: FormerSweep) -> bool:
        """Return whether the deployed environment is the earlier environment with its winner added.

        Only flags and variables are compared, because the trainer's keys are in its own file.
        """
        if earlier.recipe is None or not (earlier.recipe.flags or earlier.recipe.env):
            return False
        then, now = dict(earlier.deployed), self.cell.environment
        flags_then = parse_flags(then.pop("XLA_FLAGS", ""), where="deployed XLA_FLAGS")
        flags_now = parse_flags(now.pop("XLA_FLAGS", ""), where="deployed XLA_FLAGS")
        expected_env, env = (
            # the values of secrets are hidden, so they cannot be compared
            {name: value for name, value in variables.items() if not is_secret(name)}
            for variables in (on_top(then, earlier.recipe.env), now)
        )
        expected_flags = (*flags_then, *earlier.recipe.flags)
        return settings_digest(flags_now, env) == settings_digest(expected_flags, expected_env)


def names(cells: Sequence[MeasuredCell]) -> dict[str, str]:
    """Return digest of a cell -> its name in the document, with the sweep if labels are equal."""
    labels = [cell.label for cell in cells]
    return {
        cell.cell_digest: cell.label + (f" ({cell.sweep})" if labels.count(cell.label) > 1 else "")
        for cell in cells
    }


def extended(cells: Sequence[MeasuredCell], new: MeasuredCell) -> tuple[MeasuredCell, ...]:
    """Return the cells of the document with `new` among them, in the order of their first report.

    A cell that was measured again keeps its place. If it has a new ledger, a summary of the earlier
    measurement is kept. Evidence that was already read is kept, because its artifacts may be gone.
    """
    # once its recipe is deployed, a cell has another digest, and the same sweep and label
    places = [(cell.sweep, cell.label) for cell in cells]
    if (new.sweep, new.label) not in places:
        return (*cells, new)
    index = places.index((new.sweep, new.label))
    old = cells[index]
    earlier, explanation = old.earlier, new.explanation
    if old.cell_digest != new.cell_digest or (old.jobs.isdisjoint(new.jobs) and old.jobs):
        former = FormerSweep(
            written_s=old.written_s,
            baseline=old.conclusion.baseline,
            best=old.best,
            recipe=old.recipe,
            deployed=old.cell.environment,
        )
        # a second report of the same ledgers adds nothing
        by_time = {sweep.written_s: sweep for sweep in (*earlier, former)}
        earlier = tuple(by_time[at] for at in sorted(by_time) if at != new.written_s)
    elif explanation is None or not explanation.facts:
        explanation = old.explanation
    new = replace(new, earlier=earlier, explanation=explanation)
    return (*cells[:index], new, *cells[index + 1 :])


# A trial with more steps has no times of steps in JSON: the times of 13,000 steps of each trial
# would make a file of 144 MB.
MAX_TIMINGS = 100


def thinned(result: TrialResult, *, steps: int = 0) -> TrialResult:
    """Return a result without the times of its steps if it has more than `steps` of them.

    The ledger always has them.
    """
    score = result.score
    if score is None or len(score.timings) <= steps:
        return result
    return replace(result, score=replace(score, timings=()))


class _CellsFile(msgspec.Struct, frozen=True):
    """The content of the file; its cells are decoded after its schema is checked."""

    schema: int
    cells: tuple[msgspec.Raw, ...]


_FILE = msgspec.json.Decoder(_CellsFile)
_CELL = msgspec.json.Decoder(MeasuredCell, dec_hook=decode)


def write_cells(cells: Sequence[MeasuredCell]) -> str:
    """Return the JSON text, with one newline at its end, sorted keys, and figures as recorded."""
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


def read_cells(text: str, *, where: str, advice: str = _HOW_TO_RENEW) -> tuple[MeasuredCell, ...]:
    """Return the cells that `write_cells` wrote.

    `where` names the file in an error, and `advice` says there what to do.

    Raises:
        LedgerError: the file is damaged, or from another version.
    """
    try:
        file = _FILE.decode(text)
        if file.schema != SCHEMA:
            raise LedgerError(f"schema {file.schema}, this version reads {SCHEMA}")
        return tuple(_CELL.decode(raw) for raw in file.cells)
    except (XlatuneError, OverflowError, RecursionError, ValueError) as error:
        why = f"is no data of a tuning document that this version reads: {explained(error)}"
        raise LedgerError(f"{where} {why}; {advice}") from None
