"""From a ledger to the files that people read: the study's own, and the model's tuning document.

    <sweep>/leaderboard.md     a study's document; gate.md, calibration.md, evidence.md likewise
    <sweep>/leaderboard.html   the same with plots, where jinja2 is installed (the extra `page`)
    <MODEL_TAG>-tuning.json    the measured cells; the next sweep adds its own
    <MODEL_TAG>-tuning.md      written from them
    <MODEL_TAG>-tuning.zh.md   the same in Chinese, on request, or where the file exists
    <MODEL_TAG>-tuning.patch   the recipes for `git apply`; absent without any

Everything is made from the ledger alone, so terminal, reports and command line agree, and a user
can write all files again. Sweeps of one model may end at the same time: a process that adds its
cell locks the folder. A gate of a winner on another configuration is a cell with a ledger of its
own, `.xlatune/<sweep>-<tag>/<cell>/`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

from msgspec.structs import replace

from pytest_xlatune.ledger import (
    LEDGER,
    AttemptEnded,
    AttemptLetGo,
    AttemptSubmitted,
    CampaignOpened,
    Decided,
    Ledger,
    LedgerEntry,
    find_ledgers,
)
from pytest_xlatune.ledger.state import LedgerState, replay
from pytest_xlatune.model.cell import Cell, DeployedFile
from pytest_xlatune.model.errors import LedgerError, UnreadableLedgerError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.hosts import compress
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import (
    Profile,
)
from pytest_xlatune.model.redact import hide_kept
from pytest_xlatune.model.resources import Next
from pytest_xlatune.model.result import Comparison, Conclusion, TrialResult, relative
from pytest_xlatune.model.text import counted
from pytest_xlatune.report import Slots, Subject
from pytest_xlatune.report.cell_documents import checked_alone
from pytest_xlatune.report.covered import MeasuredCell, OtherCell, extended, read_cells, write_cells
from pytest_xlatune.report.deployment import patch_of, patch_of_setting
from pytest_xlatune.report.document import Document
from pytest_xlatune.report.exports import Exported, export_of, exported
from pytest_xlatune.report.language import Language
from pytest_xlatune.report.leaderboard import leaderboard_json, thinned
from pytest_xlatune.report.lines import stop_message
from pytest_xlatune.report.page import Live, html, page_of
from pytest_xlatune.report.render import markdown
from pytest_xlatune.report.tuning_document import tuning
from pytest_xlatune.stats.blocks import BlockScore, fit_blocks
from pytest_xlatune.stats.compare import compare
from pytest_xlatune.stats.design import SWEEP_ALPHA
from pytest_xlatune.studies import Aim, Study, whole
from pytest_xlatune.studies.trials import in_window
from pytest_xlatune.sweep.earlier import read_calibration
from pytest_xlatune.sweep.launcher_files import with_recipes
from pytest_xlatune.sweep.registry import StudyKind, kind_of, study_of
from pytest_xlatune.tasks.artifacts import explain
from pytest_xlatune.tasks.files import has_pages, made_folder, read_ours, write_all
from pytest_xlatune.tasks.run_record import record_of_study


def elsewhere(folder: Path, cell: Cell, winner: Profile) -> tuple[OtherCell, ...]:
    """Return the finished gates of a winner, by configuration.

    `folder` is that of the winner's ledger, `cell` the winner's: gates of other cells belong to
    other winners.

    Raises:
        LedgerError: a ledger beside it cannot be read.
    """
    sweep = folder.parent.name
    found: dict[str, tuple[float, OtherCell]] = {}
    for path in sorted(folder.parent.parent.glob(f"{sweep}-*/*/{LEDGER}")):
        name, ledger = path.parent.parent.name, Ledger(path)
        if all(kind_of(opening.study).traits.aim is not Aim.GATES for opening in ledger.opened()):
            continue  # another sweep whose name begins so: its trials are not read
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
                or not all(_is_variant(each, cell) for each in gate.cells)
                or (winner.id, winner.settings_text) not in compared
            ):
                continue
            conclusion = gate.decide(state.history(gate.name)).conclusion
            verdict, at_s = conclusion.verdict(winner.id), entries[-1].at_s
            if verdict is not None and conclusion.complete and found.get(tag, (0.0,))[0] <= at_s:
                found[tag] = at_s, OtherCell(config_tag=tag, sweep=name, verdict=verdict)
    return tuple(found[tag][1] for tag in sorted(found))


def _is_variant(there: Cell, here: Cell) -> bool:
    """Whether two cells differ in nothing but the configuration of the model."""
    as_here = replace(there, config_tag=here.config_tag, overrides=here.overrides)
    return as_here.digest == here.digest


_LET_GO = "let go: no session waits for it"
_STOPPED = "ended after the stop of the sweep; runs again in the next session"


def remarks_of(entries: Iterable[LedgerEntry]) -> dict[str, str]:
    """Return job id -> the decision on it, or that it was let go; accepted jobs have no entry.

    A result knows the reason of its last attempt only, and a trial that will run again has none.
    """
    jobs: dict[tuple[str, int], str] = {}  # by trial id and number of the attempt
    remarks: dict[tuple[str, int], str] = {}
    sessions: set[str] = set()
    is_stopped = False
    for entry in entries:
        match entry.event:
            case CampaignOpened(session=session):
                is_stopped &= session in sessions
                sessions.add(session)
            case AttemptSubmitted(submission=of):
                jobs[of.trial_id, of.attempt] = of.job_id
            case AttemptLetGo(trial_id=trial_id, attempt=attempt):
                remarks[trial_id, attempt] = _LET_GO
            case Decided(trial_id=trial_id, attempt=attempt) as event:
                is_ours = event.next is Next.INTERRUPTED and is_stopped
                remarks[trial_id, attempt] = _STOPPED if is_ours else sentence(event.why)
                is_stopped |= event.next is Next.STOP
            case AttemptEnded(trial_id=trial_id, attempt=attempt):
                # it ended by itself before the session that let it go could end it
                if remarks.get((trial_id, attempt)) == _LET_GO:
                    del remarks[trial_id, attempt]
            case _:
                pass
    return {jobs[key]: words for key, words in remarks.items() if words and key in jobs}


def add_to_document(reports: Path, covered: MeasuredCell, *, zh: bool = False) -> tuple[Path, ...]:
    """Add a cell to the tuning document of its model; return the files that were written.

    The caller holds `reports` alone.

    Raises:
        LedgerError: the document's data cannot be read.
        OSError: its files cannot be written.
    """
    stem = reports / f"{covered.cell.model_tag}-tuning"
    english, data, chinese, patch, by_hand = (
        stem.with_name(f"{stem.name}{suffix}")
        for suffix in (".md", ".json", ".zh.md", ".patch", ".by-hand.md")
    )
    kept: tuple[MeasuredCell, ...] = ()
    if data.exists():
        kept = read_cells(read_ours(data), where=str(data))
    elif english.exists() and not by_hand.exists():
        english.rename(by_hand)  # without our data beside it a person wrote it
    beside = by_hand.name if by_hand.exists() else ""
    cells = tuple(map(_with_changes, extended(kept, covered)))
    document = tuning(cells, beside=beside)
    texts = {english: markdown(document), data: write_cells(cells)}
    if zh or chinese.exists():
        texts[chinese] = markdown(tuning(cells, Language.CHINESE, beside=beside))
    diff = patch_of(cells).text
    if diff:
        texts[patch] = diff
    else:
        patch.unlink(missing_ok=True)  # an earlier recipe may be gone
    write_all(texts)
    return tuple(texts)


def _with_changes(covered: MeasuredCell) -> MeasuredCell:
    """Return a cell with how its baseline changed since each earlier measurement of it.

    Two samples of jobs: a drift of the machine between them is in the change.
    """
    if not covered.earlier:
        return covered
    now, found = covered.baseline_scores, []
    for former in covered.earlier:
        scores = [BlockScore(block=0, arm="then", value=value) for value in former.scores]
        scores += [BlockScore(block=0, arm="now", value=value) for value in now]
        fit = fit_blocks(scores, control="then") if former.scores and now else None
        what = compare(fit, "now", family=1, alpha=SWEEP_ALPHA) if fit is not None else None
        change = None
        if isinstance(what, Comparison):
            low, high = what.ci95
            change = (relative(what.estimate), relative(low), relative(high))
        found.append(replace(former, change=change))
    return replace(covered, earlier=tuple(found))


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Turn an error of the file system into one that says what to do.

    Raises:
        LedgerError: with what to do.
    """
    try:
        yield
    except OSError as error:
        raise LedgerError(
            f"reports cannot be written: {error}; the ledger is complete: mend the cause, then run "
            "`xlatune report`"
        ) from error


@contextlib.contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Lock a folder of reports, which has to be ours; the lock leaves no file in it."""
    with made_folder(folder) as held:
        # NFS locks no directory: there the last of two writers at the same moment wins
        with contextlib.suppress(OSError):
            fcntl.flock(held.fd, fcntl.LOCK_EX)
        yield


_CELL = f"*/{LEDGER}"
_NAME_ONE = "name the ledger of a cell, .xlatune/SWEEP/CELL, or run the sweep first"


# without slots: what follows is worked out once and kept
@dataclass(frozen=True, kw_only=True)
class CellReport:
    """The state of a cell by its ledger.

    Attributes:
        folder: the folder of the ledger.
        sweep: the sweep's name.
        study: as last declared, with nothing deselected.
        history: the results of its trials, in plan order.
        conclusion: the study's verdicts on them.
        remarks: job id -> why it has no score, where no result says so.
        entries: of the ledger.
        of: what tells the file that was read from a longer or another one.
    """

    folder: Path
    sweep: str
    study: Study
    state: LedgerState
    history: tuple[TrialResult, ...]
    conclusion: Conclusion
    remarks: dict[str, str]
    entries: tuple[LedgerEntry, ...] = ()
    of: tuple[int, ...] = ()

    @property
    def at_s(self) -> float:
        """Time of the last event, seconds since the epoch."""
        return self.entries[-1].at_s

    @property
    def cell(self) -> Cell:
        """The cell that was measured, the first of several."""
        return self.cells[0]

    @cached_property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell of the study, with the nodes that the scheduler picked if it did."""
        return tuple(map(self.state.with_nodes, self.study.cells))

    @property
    def slots(self) -> Slots:
        """Each node slot by the identity of the cell on it, with its nodes; () is one slot."""
        if not self.study.traits.has_slots or len(self.cells) == 1:
            return ()
        return tuple((cell.digest, compress(cell.nodelist)) for cell in self.cells)

    @property
    def kind(self) -> StudyKind:
        """What the registry knows of the study."""
        return kind_of(self.study.name)

    @property
    def files(self) -> tuple[DeployedFile, ...]:
        """The files that a patch changes: a launcher's own is written anew instead."""
        return tuple(file for file in self.state.files if not file.launcher)

    @cached_property
    def profiles(self) -> tuple[Profile, ...]:
        """The profiles compared with the baseline, those of derived waves included."""
        return self.study.decide(self.with_evidence).profiles

    @cached_property
    def with_evidence(self) -> tuple[TrialResult, ...]:
        """The history, with the evidence that the study reads behind it."""
        reads = self.study.policy.reads_evidence
        return self.state.history(self.study.name, with_evidence=reads)

    @cached_property
    def scored(self) -> tuple[TrialResult, ...]:
        """The history as it was compared: every score in the window of all trials."""
        # the JSON once had each trial in the protocol's window, beside a verdict in the moved one
        return in_window(self.history, self.conclusion.first_step)

    @property
    def has_figure(self) -> bool:
        """Whether there is anything to show besides that it is not over."""
        return self.conclusion.complete or any(
            result.score is not None or result.memory is not None for result in self.history
        )

    @property
    def evidence(self) -> tuple[TrialResult, ...]:
        """The evidence trials of other studies on the same cell, in plan order."""
        own = {result.trial.id for result in self.history}
        return tuple(
            progress.result
            for trial_id, progress in self.state.trials.items()
            if progress.trial.protocol.dump and trial_id not in own
        )

    @cached_property
    def subject(self) -> Subject:
        """What a document of the cell is made of."""
        is_about_cell = self.study.traits.about_cell
        kept = read_calibration(self.folder, self.cell) if is_about_cell else None
        return Subject(
            stopped=self.stop_reason,
            figures=tuple(kept.figures) if kept else (),
            evidence=_evidence_runs(self.state),
            remarks=self.remarks,
            patch=_patch_of_setting(self),
            conclusion=self.conclusion,
            cells=self.cells,
            profiles=self.profiles,
            history=self.scored,
            now=self.written,
            record=record_of_study(self.state, self.study),
            slots=self.slots,
            exposed=self.state.exposed(self.cell) if self.study.traits.compares_settings else None,
        )

    @property
    def stop_reason(self) -> str:
        """Why the sweep was stopped, by the playbook or a budget; "" where it was not."""
        stop = self.state.stop
        return sentence(stop.why) if stop is not None else ""

    @property
    def stopped(self) -> str:
        """The message to people where the sweep was stopped, else ""."""
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
            # looked up in the message's text, gpu1 was named for the failure of gpu12
            nodes=stop.nodes,
            evidence=sentence(stop.proof),
            recovery=(
                *(sentence(epoch.why) for epoch in self.state.epochs),
                # a RESUME that Slurm refused was told as no recovery at all
                *([f"{stop.trial_id} was retried {counted(retries, 'time')}"] if retries else []),
                *([f"RESUME of {', '.join(stop.resumed)}, in vain"] if stop.resumed else []),
            ),
            conclusion=self.conclusion,
            history=self.history,
            artifacts=str(self.folder),
        )

    @property
    def written(self) -> datetime:
        """Time of the ledger's last event, in UTC."""
        return datetime.fromtimestamp(self.at_s, UTC)


def read_known(path: Path) -> CellReport:
    """Read a ledger; `path` is its file or its folder.

    Raises:
        LedgerError: there is none, or it cannot be read.
    """
    path = _ledger_at(path)
    of = _identity(path)  # before it is read: a line added meanwhile makes it another
    entries = Ledger(path).refresh()
    try:
        state = replay(entries)
    except UnreadableLedgerError as error:
        raise UnreadableLedgerError(f"{path}: {error}") from None
    last, study = _shown(path, state.opened)
    history = state.history(study.name)
    return CellReport(
        folder=path.parent,
        sweep=last.sweep,
        study=study,
        state=state,
        history=history,
        conclusion=study.decide(
            state.history(study.name, with_evidence=study.policy.reads_evidence)
        ).conclusion,
        remarks=remarks_of(entries),
        entries=tuple(entries),
        of=of,
    )


def _shown(path: Path, opened: Sequence[CampaignOpened]) -> tuple[CampaignOpened, Study]:
    """Return what the session opened that a ledger is shown as, and its study."""
    if not opened:
        raise LedgerError(f"{path} is no ledger of a sweep: it is empty; run the sweep first")
    try:
        # a study of the cell itself has the document only where no other study ran
        asked = [opening for opening in opened if not kind_of(opening.study).traits.about_cell]
        last = (asked or opened)[-1]
        return last, whole(study_of(last.study, last.declared))
    except LedgerError as error:
        raise LedgerError(f"{path}: {error}") from None


def _identity(path: Path) -> tuple[int, ...]:
    """Return what changes when something is added to a ledger; () where it cannot be asked."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def known_now(folder: Path, known: CellReport | None) -> CellReport:
    """Return the state of a cell by its ledger of this moment, without reading it twice.

    Raises:
        LedgerError: there is none, or it cannot be read.
    """
    if known is not None and known.of and known.of == _identity(_ledger_at(folder)):
        return known
    return read_known(folder)


def _ledger_at(path: Path) -> Path:
    """Return the file of the ledger that a user named; a folder above several is an error."""
    if not path.exists():
        raise LedgerError(f"{path} does not exist; {_NAME_ONE}")
    if not path.is_dir() or (path / LEDGER).is_file():
        at = path / LEDGER if path.is_dir() else path
        return at.resolve() if path.is_symlink() else at
    below = sorted(str(each.parent) for each in (*path.glob(_CELL), *path.glob(f"*/{_CELL}")))
    if not below:
        raise LedgerError(f"{path} holds no {LEDGER}; {_NAME_ONE}")
    raise LedgerError(
        f"{path} holds no {LEDGER} itself, but below it {len(below)} cell"
        f"{'s do' if len(below) > 1 else ' does'}; name one of {', '.join(below)}"
    )


def document_of(known: CellReport) -> Document:
    """Return the document of a cell; the ledger dates it, so it is always the same."""
    subject = dataclasses.replace(known.subject, alone=_checked_alone(known))
    return known.kind.document_of(subject)


def _checked_alone(known: CellReport) -> str:
    """Say how nodes that ran in pairs did in the last check of each alone; "" without one."""
    if known.study.traits.cell_nodes <= 1 or not known.conclusion.complete:
        return ""
    nodes = {name.lower() for cell in known.cells for name in cell.nodelist}
    checks = []
    for folder in find_ledgers(known.folder.parents[1]):
        with contextlib.suppress(LedgerError):
            _, study = _shown(folder / LEDGER, Ledger(folder / LEDGER).opened())
            if study.traits.cell_nodes == 1:
                checks.append(read_known(folder))
    of_these = [
        report
        for report in checks
        if report.conclusion.complete and nodes <= {arm.arm for arm in report.conclusion.verdicts}
    ]
    last = max(of_these, key=lambda each: each.at_s, default=None)
    if last is None:
        return ""
    return checked_alone(last.conclusion, sweep=last.sweep, written=last.written)


def _patch_of_setting(known: CellReport) -> str:
    """Return the patch of the setting that a study recommends, once it is over; "" without one."""
    setting = known.conclusion.facts.setting
    if not setting or not known.conclusion.complete:
        return ""
    return patch_of_setting(known.files, setting)


def _evidence_runs(state: LedgerState) -> tuple[tuple[TrialResult, tuple[str, ...]], ...]:
    """Return the evidence runs with what was read of each, one line each."""
    said = {recorded.trial_id: recorded for recorded in state.recorded.values()}
    return tuple(
        (progress.result, (*said[name].facts, *said[name].problems) if name in said else ())
        for name, progress in state.trials.items()
        if progress.trial.protocol.dump
    )


def json_of(known: CellReport) -> str:
    """Return the state of a cell as the text of one JSON document."""
    return leaderboard_json(known.subject)


def measured_cell_of(known: CellReport) -> MeasuredCell:
    """Return the cell's part of the tuning document."""
    covered = MeasuredCell(
        sweep=known.sweep,
        cell_digest=known.cell.digest,
        written_s=known.at_s,
        cell=known.cell,
        profiles=known.profiles,
        conclusion=known.conclusion,
        history=tuple(map(thinned, (*known.scored, *known.evidence))),
        stopped=known.stop_reason,
        remarks=known.remarks,
        files=known.files,
        versions=known.state.opened[-1].versions,
        record=known.subject.record,
        slots=known.slots,
        exposed=known.subject.exposed,
    )
    best = covered.best
    if best is not None and known.state.recorded:
        covered = replace(covered, explanation=explain(known.state, known.folder, best.arm))
    if best is not None:
        recipe = next((profile for profile in known.profiles if profile.id == best.arm), None)
        covered = replace(
            covered,
            elsewhere=elsewhere(known.folder, known.study.cells[0], recipe) if recipe else (),
        )
    return covered


def page_text(
    known: CellReport,
    document: Document,
    *,
    covered: MeasuredCell | None = None,
    files: Sequence[str] = (),
    live: Live | None = None,
) -> str:
    """Return the HTML page of a cell; `files` are the names of the same figures beside it.

    With its part of the tuning document, `covered`, it says why the winner wins; with `live` how
    the sweep stands.
    """
    page = page_of(document, known.subject, covered=covered, files=files)
    return html(dataclasses.replace(page, live=live))


def _stands(known: CellReport) -> Live | None:
    """Return since when a sweep that is not over stands still, as its ledger tells it."""
    at_s = known.at_s
    return None if known.conclusion.complete else Live(written_s=at_s, alive_s=at_s, event_s=at_s)


def own_texts(known: CellReport, document: Document, stem: Path) -> dict[Path, str]:
    """Return the report of a study as text and as JSON, by path."""
    return {
        stem.with_name(f"{stem.name}.md"): markdown(document),
        stem.with_name(f"{stem.name}.json"): json_of(known),
    }


def write_so_far(
    folder: Path, reports: Path, live: Live, known: CellReport | None = None
) -> CellReport:
    """Write the report of a study while it runs: its own files, no tuning document, no export.

    `known` is what was read of it before; return what it was made of.

    Raises:
        LedgerError: the ledger cannot be read, or a file not be written.
    """
    with writing(), alone(reports):
        known = known_now(folder, known)
        live = dataclasses.replace(live, event_s=known.at_s)
        stem, document = reports / known.sweep / known.kind.file_name, document_of(known)
        texts = own_texts(known, document, stem)
        if has_pages():
            files = tuple(path.name for path in texts)
            page = page_text(known, document, files=files, live=live)
            texts[stem.with_name(f"{stem.name}.html")] = page
        write_all(texts)
    return known


def publish(
    folder: Path,
    reports: Path,
    *,
    zh: bool = False,
    exports: Sequence[str] = (),
    known: CellReport | None = None,
) -> tuple[Path, ...]:
    """Write the reports of the cell whose ledger a folder holds; return the files.

    They are `<sweep>/leaderboard.md`, `.json` and, where pages can be written, `.html`, and the
    cell's part of `<MODEL_TAG>-tuning.md`, with `zh` in Chinese too. A recipe over a
    launcher's own file is that file with it.
    A gate, a calibration and an evidence run write their own files, and no tuning document; a study
    that recommends one setting writes the patch of it. `exports` are formats of other programs.
    Sessions of one model may end at the same time: one of them writes at a time, from the ledger of
    that moment. `known` is what was read of it before: read again only where it has grown since.

    Raises:
        LedgerError: the directory cannot be written, or a format's program does not take the
            figures; the ledger itself is complete.
    """
    with writing(), alone(reports):
        known = known_now(folder, known)
        stem, document = reports / known.sweep / known.kind.file_name, document_of(known)
        texts = own_texts(known, document, stem)
        files = tuple(path.name for path in texts)
        facts = known.conclusion.facts
        if known.conclusion.complete:
            texts |= {folder.parents[1] / each: text for each, text in facts.files.items()}
        patch = stem.with_name(f"{stem.name}.patch")
        if text := _patch_of_setting(known):
            texts[patch] = text
        elif facts.setting is not None:
            patch.unlink(missing_ok=True)  # of another recommendation
        write_all(texts)
        written = tuple(texts)
        covered = measured_cell_of(known) if known.study.traits.is_deployed else None
        if covered is not None:
            made = with_recipes(known.state.files, covered)
            patched = {reports / known.sweep / name: text for name, text in made.items()}
            write_all(patched)
            written += tuple(patched)
            written += add_to_document(reports, covered, zh=zh)
        if has_pages():
            path = stem.with_name(f"{stem.name}.html")
            page = page_text(known, document, covered=covered, files=files, live=_stands(known))
            write_all({path: page})
            written += (path,)
    if not exports:
        return written
    # a program or a server is given what the file says, which hides what is secret
    report = exported(
        hide_kept(texts[stem.with_name(f"{stem.name}.json")]),
        sweep=known.sweep,
        study=known.study.name.partition("-")[0],
    )
    return written + _given(known, folder, stem, report, exports)


def _given(
    known: CellReport, folder: Path, stem: Path, report: Exported, exports: Sequence[str]
) -> tuple[Path, ...]:
    """Write a report in other formats, or give it to servers; return what each left beside it.

    Raises:
        LedgerError: one does not take it, or a file cannot be written.
    """
    written: tuple[Path, ...] = ()
    problems = []
    for export in map(export_of, exports):
        # a server may take its time: sessions of other ledgers write meanwhile; two of this one
        # that find no run of a study would both make one
        try:
            with writing(), alone(folder):
                key = f"{known.sweep} {known.study.name} {_began(known)}"
                more = {
                    stem.with_name(stem.name + suffix): text
                    for suffix, text in export.texts(report, key=key).items()
                }
                write_all(more)
        except LedgerError as error:  # the others take theirs
            problems.append(str(error))
        else:
            written += tuple(more)
    if problems:
        raise LedgerError("; ".join(problems))
    return written


def _began(known: CellReport) -> str:
    """Return what tells this ledger from one that was started over."""
    return f"{known.cell.digest} {known.state.opened[0].session}"
