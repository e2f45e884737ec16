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

from msgspec.structs import replace

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
from pytest_xlatune.report.cell_documents import checked_alone
from pytest_xlatune.report.document import Document, literal
from pytest_xlatune.report.lines import stop_message
from pytest_xlatune.report.measured_cell import MeasuredCell, OtherCell
from pytest_xlatune.report.study_documents import command_of
from pytest_xlatune.studies import Aim, Study, all_selected
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
    sweep = folder.parent.name
    gates: dict[str, tuple[float, OtherCell]] = {}  # tag -> time of its last event, and the gate
    for path in sorted(folder.parent.parent.glob(f"{sweep}-*/*/{LEDGER}")):
        name, ledger = path.parent.parent.name, Ledger(path, shows_only=True)
        if all(kind_of(opening.study).traits.aim is not Aim.GATES for opening in ledger.opened()):
            continue  # it is another sweep whose name begins in the same way
        entries = ledger.refresh()
        state = replay(entries)
        for opened in state.opened:
            if kind_of(opened.study).traits.aim is not Aim.GATES:
                continue
            gate = study_of(opened.study, opened.declared)
            tag = gate.cells[0].config_tag
            compared = [(profile.id, profile.settings_text) for profile in gate.decide(()).profiles]
            if (
                name != f"{sweep}-{tag}"
                or not all(_is_variant(gate_cell, cell) for gate_cell in gate.cells)
                or (winner.id, winner.settings_text) not in compared
            ):
                continue
            conclusion = gate.decide(state.history(gate.name)).conclusion
            verdict, at_s = conclusion.verdict(winner.id), entries[-1].at_s
            others = (other for other in conclusion.verdicts if other.arm != winner.id)
            is_newest = tag not in gates or gates[tag][0] <= at_s
            if verdict is not None and conclusion.complete and is_newest:
                gates[tag] = (
                    at_s,
                    OtherCell(
                        config_tag=tag, sweep=name, verdict=verdict, second=next(others, None)
                    ),
                )
    return tuple(gates[tag][1] for tag in sorted(gates))


def _is_variant(other: Cell, cell: Cell) -> bool:
    """Return whether two cells differ only in the configuration of the model."""
    with_same_config = replace(other, config_tag=cell.config_tag, overrides=cell.overrides)
    return with_same_config.digest == cell.digest


def remarks_of(entries: Iterable[LedgerEntry]) -> dict[str, str]:
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


_LEDGER_OF_CELL = f"*/{LEDGER}"  # pattern, from the folder of a sweep
_NAME_ONE = "name the ledger of a cell, .xlatune/SWEEP/CELL, or run the sweep first"


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
        conclusion: the study's verdicts on them.
        remarks: id of a job -> why it has no score, if no result says so.
        entries: the entries of the ledger.
        identity: a tuple that changes if the file grows or is replaced; () if it is not known.
    """

    folder: Path
    sweep: str
    study: Study
    state: LedgerState
    history: tuple[TrialResult, ...]
    conclusion: Conclusion
    remarks: dict[str, str]
    entries: tuple[LedgerEntry, ...] = ()
    identity: tuple[int, ...] = ()

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
    def _slots(self) -> tuple[tuple[str, str], ...]:
        """The digest of the cell and the nodes of each node slot; () if there is only one slot."""
        if not self.study.traits.has_slots or len(self.cells) == 1:
            return ()
        return tuple((cell.digest, compress(cell.nodelist)) for cell in self.cells)

    @property
    def kind(self) -> StudyKind:
        """The entry of the study in the registry."""
        return kind_of(self.study.name)

    @cached_property
    def profiles(self) -> tuple[Profile, ...]:
        """The profiles that are compared with the baseline, with those of derived waves."""
        return self.study.decide(self.with_evidence).profiles

    @cached_property
    def with_evidence(self) -> tuple[TrialResult, ...]:
        """The history, followed by the evidence runs if the study reads them."""
        reads = self.study.policy.reads_evidence
        return self.state.history(self.study.name, with_evidence=reads)

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
        for trial_id, progress in state.trials.items():
            if progress.trial.protocol.dump:
                recorded = recorded_of.get(trial_id)
                facts = (*recorded.facts, *recorded.problems) if recorded is not None else ()
                evidence.append((progress.result, facts))
        logs, commands = dict[str, str](), dict[str, str]()
        for progress in state.trials.values():
            trial, attempts = progress.trial, progress.attempts.values()
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
                text = command_of(trial.profile, spec, cell=self.cell)
                commands[literal(trial.arm)] = text
        return MeasuredCell(
            sweep=self.sweep,
            cells=self.cells,
            cell_digest=self.cell.digest,
            written_s=self.at_s,
            conclusion=self.conclusion,
            profiles=self.profiles,
            # a trial is shown in the window of its verdict, which may begin after the protocol's
            history=in_window(self.history, self.conclusion.first_step),
            evidence=tuple(evidence),
            stopped=self.stop_reason,
            remarks=self.remarks,
            logs=logs,
            commands=commands,
            files=state.files,
            versions=state.opened[-1].versions,
            record=record_of_study(state, self.study),
            slots=self._slots,
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
        return self.document_of()

    def document_of(self, *, stopped: str = "") -> Document:
        """Return the document of the cell; `stopped` replaces the ledger's reason of a stop."""
        facts = replace(
            self.facts,
            known=(*self.facts.known, *_single_node_checks(self)),
            stopped=stopped or self.facts.stopped,
        )
        return self.kind.document_of(facts)

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
    with_evidence = state.history(study.name, with_evidence=study.policy.reads_evidence)
    return CellReport(
        folder=path.parent,
        sweep=last.sweep,
        study=study,
        state=state,
        history=state.history(study.name),
        conclusion=study.decide(with_evidence).conclusion,
        remarks=remarks_of(entries),
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
        LedgerError: there is no such ledger, or the folder is above the folders of several cells.
    """
    if not path.exists():
        raise LedgerError(f"{path} does not exist; {_NAME_ONE}")
    if not path.is_dir() or (path / LEDGER).is_file():
        ledger = path / LEDGER if path.is_dir() else path
        return ledger.resolve() if path.is_symlink() else ledger
    ledgers = [*path.glob(_LEDGER_OF_CELL), *path.glob(f"*/{_LEDGER_OF_CELL}")]
    cells = ", ".join(sorted(str(ledger.parent) for ledger in ledgers))
    advice = f"name one of the cells below it: {cells}" if cells else _NAME_ONE
    raise LedgerError(f"{path} holds no {LEDGER}; {advice}")


def _single_node_checks(cell_report: CellReport) -> Iterator[str]:
    """For a check of pairs, yield what the last check of their single nodes has shown."""
    if cell_report.study.traits.cell_nodes <= 1 or not cell_report.conclusion.complete:
        return
    nodes = {name.lower() for cell in cell_report.cells for name in cell.nodelist}
    checks = []
    for folder in find_ledgers(cell_report.folder.parents[1]):
        with contextlib.suppress(LedgerError):
            opened = Ledger(folder / LEDGER, shows_only=True).opened()
            _, study = _shown_study(folder / LEDGER, opened)
            if study.traits.cell_nodes == 1:
                checks.append(read_cell_report(folder))
    of_these_nodes = [
        report
        for report in checks
        if report.conclusion.complete
        and nodes <= {verdict.arm for verdict in report.conclusion.verdicts}
    ]
    if of_these_nodes:
        last = max(of_these_nodes, key=lambda report: report.at_s)
        yield checked_alone(last.conclusion, sweep=last.sweep, written=last.facts.written)
