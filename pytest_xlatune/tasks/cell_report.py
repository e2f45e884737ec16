"""Read the state of a cell from its ledger: its study, its trials, the facts for its documents.

Nothing but the ledger is used, so the terminal, the reports and the command line agree, and all
files can be written again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from pytest_xlatune.campaign import history_of
from pytest_xlatune.executors.folder import read_spec
from pytest_xlatune.executors.payload import log_name
from pytest_xlatune.ledger import (
    LEDGER,
    AttemptEnded,
    AttemptSubmitted,
    CampaignOpened,
    Decided,
    Ledger,
    LedgerEntry,
    find_ledgers,
)
from pytest_xlatune.ledger.state import LedgerState, replay
from pytest_xlatune.model.cell import Cell, shared_label
from pytest_xlatune.model.errors import LedgerError, UnreadableLedgerError
from pytest_xlatune.model.explanation import Explanation
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.hosts import compress
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import Profile
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import Conclusion, TrialResult
from pytest_xlatune.model.text import counted
from pytest_xlatune.report.document import Document, literal
from pytest_xlatune.report.lines import stop_message
from pytest_xlatune.report.measured_cell import MeasuredCell, OtherCell
from pytest_xlatune.report.study_documents import checked_alone, command_of
from pytest_xlatune.studies import Aim, Decision, Study, all_selected
from pytest_xlatune.studies.trials import in_window
from pytest_xlatune.sweep.earlier import read_calibration
from pytest_xlatune.sweep.registry import StudyKind, kind_of, study_of
from pytest_xlatune.tasks.artifacts import explain
from pytest_xlatune.tasks.run_record import record_of_study


def _gates_of_winner(folder: Path, cell: Cell, winner: Profile) -> tuple[OtherCell, ...]:
    """Return the finished gates of a winner in other configurations of the model.

    Args:
        folder: the folder of the ledger in which the winner won.
        cell: the cell in which it won; a gate in a cell that differs in more than the configuration
            belongs to another winner.
        winner: the profile.

    Raises:
        LedgerError: the ledger of a gate cannot be read.
    """
    config: dict[str, Any] = {"config_tag": cell.config_tag, "overrides": cell.overrides}
    gates: list[tuple[float, OtherCell]] = []  # the time of the last event, and the gate
    for path in folder.parent.parent.glob(f"{folder.parent.name}-*/*/{LEDGER}"):
        name, entries = path.parent.parent.name, Ledger(path, shows_only=True).refresh()
        state = replay(entries)
        for opened in state.opened:
            # it may be another sweep whose name begins in the same way
            if kind_of(opened.study).traits.aim is not Aim.GATES:
                continue
            gate = study_of(opened.study, opened.declared)
            decision, tag = gate.decide(state.history(gate.name)), gate.cells[0].config_tag
            compared = [(profile.id, profile.settings_text) for profile in decision.profiles]
            verdict = decision.conclusion.verdict(winner.id)
            if (
                name == f"{folder.parent.name}-{tag}"
                and {replace(other, **config).digest for other in gate.cells} == {cell.digest}
                and (winner.id, winner.settings_text) in compared
                and verdict is not None
                and decision.conclusion.complete
            ):
                others = (v for v in decision.conclusion.verdicts if v.arm != winner.id)
                second = next(others, None)
                found = OtherCell(config_tag=tag, sweep=name, verdict=verdict, second=second)
                gates.append((entries[-1].at_s, found))
    newest = {gate.config_tag: gate for _, gate in sorted(gates, key=lambda timed: timed[0])}
    return tuple(newest[tag] for tag in sorted(newest))


def _remarks_of(entries: Iterable[LedgerEntry]) -> dict[str, str]:
    """Return id of a job -> the decision about it, with its evidence; accepted jobs have none.

    These remarks add to the reasons of results: a result has only the reason of its last attempt,
    and a trial that will run again has no reason yet.
    """
    jobs: dict[tuple[str, int], str] = {}  # (id of a trial, number of an attempt) -> its job
    remarks: dict[tuple[str, int], str] = {}
    for entry in entries:
        match entry.event:
            case AttemptSubmitted(submission=submission):
                jobs[submission.trial_id, submission.attempt] = submission.job_id
            case AttemptEnded(trial_id=trial_id, attempt=attempt, outcome=outcome):
                jobs[trial_id, attempt] = outcome.job or jobs.get((trial_id, attempt), "")
            case Decided(trial_id=trial_id, attempt=attempt) as event:
                explanations = filter(None, (event.why, event.shown))
                remarks[trial_id, attempt] = "; ".join(map(sentence, explanations))
            case _:
                pass
    return {jobs[key]: remark for key, remark in remarks.items() if remark and jobs.get(key)}


# without `slots`, because cached properties need the dictionary of the instance
@dataclass(frozen=True, kw_only=True)
class CellReport:
    """The state of a cell, from its ledger.

    Attributes:
        folder: the folder of the ledger.
        sweep: the name of the sweep.
        study: the study as last declared, with nothing deselected.
        state: the state to which the entries of the ledger lead.
        history: the results of its trials, in the order of the plan.
        decision: what the study decides from them.
        entries: the entries of the ledger.
        identity: a tuple that changes if the file grows or is replaced; () if it is not known.
    """

    folder: Path
    sweep: str
    study: Study
    state: LedgerState
    history: tuple[TrialResult, ...]
    decision: Decision
    entries: tuple[LedgerEntry, ...]
    identity: tuple[int, ...]

    @property
    def conclusion(self) -> Conclusion:
        """The study's verdicts on its trials."""
        return self.decision.conclusion

    @property
    def at_s(self) -> float:
        """The time of the last event, in seconds since the epoch."""
        return self.entries[-1].at_s

    @property
    def cell(self) -> Cell:
        """The cell of the study, or the first one if it has several."""
        return self.cells[0]

    @property
    def label(self) -> str:
        """The cell in a few words, or what several cells have in common."""
        return shared_label(self.cells)

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell of the study, with the nodes that the scheduler chose."""
        return tuple(map(self.state.with_nodes, self.study.cells))

    @property
    def kind(self) -> StudyKind:
        """The entry of the study in the registry."""
        return kind_of(self.study.name)

    @property
    def has_figure(self) -> bool:
        """Whether the study is over, or a trial has a score or a size of memory."""
        return self.conclusion.complete or any(
            result.score is not None or result.memory is not None for result in self.history
        )

    @cached_property
    def facts(self) -> MeasuredCell:
        """The facts from which the documents of the cell are made."""
        state, traits = self.state, self.study.traits
        calibration = read_calibration(self.folder, self.cell) if traits.about_cell else None
        recorded_of = {recorded.trial_id: recorded for recorded in state.recorded.values()}
        evidence: list[tuple[TrialResult, tuple[str, ...]]] = []
        logs, commands = dict[str, str](), dict[str, str]()
        for trial_id, progress in state.trials.items():
            trial, attempts = progress.trial, progress.attempts.values()
            if trial.protocol.dump:
                recorded = recorded_of.get(trial_id)
                lines = (*recorded.facts, *recorded.problems) if recorded is not None else ()
                evidence.append((progress.result, lines))
            folders = [attempt.submission.folder for attempt in attempts if attempt.submission]
            for job, folder in zip(progress.result.job_ids, folders, strict=False):
                path = self.folder / folder / log_name()
                logs[job] = path.relative_to(self.folder.parents[1]).as_posix()
            # an evidence run and a rotation have no row in a table of arms
            has_row = not trial.protocol.dump and trial.rotation is None
            if not folders or not has_row or literal(trial.arm) in commands:
                continue
            if (spec := read_spec(self.folder / folders[-1])) is not None:
                # our own programs are left out: a person who repeats the command needs none of them
                files = {name: text for name, text in spec.files.items() if "xlatune" not in name}
                spec = replace(spec, files=files)
                commands[literal(trial.arm)] = command_of(trial.profile, spec, cell=self.cell)
        has_slots = traits.has_slots and len(self.cells) > 1
        slots = tuple((cell.digest, compress(cell.nodelist)) for cell in self.cells)
        return MeasuredCell(
            sweep=self.sweep,
            cells=self.cells,
            cell_digest=self.cell.digest,
            written_s=self.at_s,
            conclusion=self.conclusion,
            profiles=self.decision.profiles,
            # a trial is shown in the window of its verdict, which may begin after the protocol's
            history=in_window(self.history, self.conclusion.first_step),
            evidence=tuple(evidence),
            stopped=self.stop_reason,
            remarks=_remarks_of(self.entries),
            logs=logs,
            commands=commands,
            files=state.files,
            record=record_of_study(state, self.study),
            slots=slots if has_slots else (),
            exposed=state.exposed(self.cell) if traits.compares_settings else None,
            known=tuple(calibration.figures) if calibration else (),
        )

    @property
    def facts_to_deploy(self) -> MeasuredCell:
        """The facts of the first cell, with the explanation and the gates of its winner."""
        facts = replace(self.facts, cells=self.facts.cells[:1], explanation=Explanation())
        if facts.best is not None and self.state.recorded:
            explanation = explain(self.state, self.folder, facts.best.arm)
            facts = replace(facts, explanation=explanation)
        if facts.recipe is not None:
            gates = _gates_of_winner(self.folder, self.study.cells[0], facts.recipe)
            facts = replace(facts, elsewhere=gates)
        return facts

    @cached_property
    def document(self) -> Document:
        """The document of the cell; its date is that of the last event, so it does not change."""
        known = (*self.facts.known, *_single_node_checks(self))
        return self.kind.document_of(replace(self.facts, known=known))

    @property
    def stop_reason(self) -> str:
        """Why the sweep was stopped, by the playbook or a budget; "" if it was not."""
        stop = self.state.stop
        return sentence(stop.why) if stop is not None else ""

    @property
    def stopped(self) -> str:
        """The message to people if the sweep was stopped; "" if it was not."""
        stop = self.state.stop
        if stop is None:
            return ""
        nodes = tuple(dict.fromkeys(name for cell in self.cells for name in cell.nodelist))
        retries = sum(
            decided.next is Next.RETRY for decided in self.state.decided_on(stop.trial_id)
        )
        return stop_message(
            cell=replace(self.cell, nodelist=nodes),
            reason=sentence(stop.why),
            is_failure=stop.cls != FailureClass.BUDGET,
            # a search for nodes in the text would find gpu1 in gpu12
            nodes=stop.nodes,
            evidence=sentence(stop.proof),
            recovery=(
                *(sentence(epoch.why) for epoch in self.state.epochs),
                *([f"{stop.trial_id} was retried {counted(retries, 'time')}"] if retries else []),
                # a RESUME that Slurm refused is listed too, so that a person does not repeat it
                *([f"RESUME of {', '.join(stop.resumed)}, in vain"] if stop.resumed else []),
            ),
            conclusion=self.conclusion,
            history=self.history,
            artifacts=str(self.folder),
        )


def read_cell_report(path: Path) -> CellReport:
    """Read a ledger; `path` is its file or its folder.

    Raises:
        LedgerError: there is no ledger, or it cannot be read.
    """
    path = _ledger_at(path)
    identity = identity_of(path)  # taken first, so that a line added during reading counts as new
    entries = Ledger(path, shows_only=True).refresh()
    try:
        state = replay(entries)
    except UnreadableLedgerError as error:
        raise UnreadableLedgerError(f"{path}: {error}") from None
    return report_of(path, entries, state, identity=identity)


def report_of(
    path: Path, entries: Iterable[LedgerEntry], state: LedgerState, *, identity: tuple[int, ...]
) -> CellReport:
    """Return the state of a cell from the entries that were read of its ledger at `path`.

    Raises:
        LedgerError: the ledger is empty, or its study is of an unknown kind.
    """
    last, study = _shown_study(path, state.opened)
    return CellReport(
        folder=path.parent,
        sweep=last.sweep,
        study=study,
        state=state,
        history=state.history(study.name),
        decision=study.decide(history_of(state, study)),
        entries=tuple(entries),
        identity=identity,
    )


def _shown_study(path: Path, opened: Sequence[CampaignOpened]) -> tuple[CampaignOpened, Study]:
    """Return the study of a ledger that a report shows, and the event that opened it."""
    if not opened:
        raise LedgerError(f"{path} is no ledger of a sweep: it is empty; run the sweep first")
    try:
        # a calibration and an evidence run are shown only if no other study ran
        comparing = [opening for opening in opened if not kind_of(opening.study).traits.about_cell]
        last = (comparing or opened)[-1]
        return last, all_selected(study_of(last.study, last.declared))
    except LedgerError as error:
        raise LedgerError(f"{path}: {error}") from None


def identity_of(path: Path) -> tuple[int, ...]:
    """Return a tuple that changes if a ledger changes; () if the file cannot be examined."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def current_cell_report(folder: Path, cell_report: CellReport | None) -> CellReport:
    """Return the current report of a cell: `cell_report`, if the ledger has not changed since.

    Raises:
        LedgerError: there is no ledger, or it cannot be read.
    """
    identity = identity_of(_ledger_at(folder))
    if cell_report is not None and cell_report.identity and cell_report.identity == identity:
        return cell_report
    return read_cell_report(folder)


def _ledger_at(path: Path) -> Path:
    """Return the path of the ledger that a user named by its file or its folder.

    Raises:
        LedgerError: there is no such ledger.
    """
    ledger = path / LEDGER if path.is_dir() else path
    if not ledger.exists():
        raise LedgerError(
            f"{ledger} does not exist; name the ledger of a cell, .xlatune/SWEEP/CELL, or run the "
            "sweep first"
        )
    return ledger.resolve() if path.is_symlink() else ledger


def _single_node_checks(cell_report: CellReport) -> Iterator[str]:
    """For a check of pairs, yield what the last check of their single nodes has shown."""
    if cell_report.study.traits.cell_nodes <= 1 or not cell_report.conclusion.complete:
        return
    nodes = {name.lower() for cell in cell_report.cells for name in cell.nodelist}
    checks = []
    for folder in find_ledgers(cell_report.folder.parents[1]):
        with contextlib.suppress(LedgerError):
            opened = replay(Ledger(folder / LEDGER, shows_only=True).refresh()).opened
            if _shown_study(folder / LEDGER, opened)[1].traits.cell_nodes == 1:
                conclusion = (report := read_cell_report(folder)).conclusion
                if conclusion.complete and nodes <= {each.arm for each in conclusion.verdicts}:
                    checks.append(report)
    if checks:
        last = max(checks, key=lambda report: report.at_s)
        yield checked_alone(last.conclusion, sweep=last.sweep, written=last.facts.written)
