"""Read the artifacts of evidence runs, find them by name, and compare them for a winner.

    quickstart:baseline-deployed      the sweep and the profile
    baseline-deployed-e.0-1a2b3c4d5e  the trial

A campaign reads the dump and the captures of an evidence run in one of its turns. The ledger keeps
the facts, and a sentence for each file that cannot be read, so a user learns of a damaged dump
while the trial can still run again. The artifacts of a winner are compared with those of the
baseline; if one is missing or damaged, a sentence says so and the others are read. The evidence
package decides what the facts mean, and the report whether they explain the gain.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from pytest_xlatune.evidence import readers
from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.hlo.difference import Change, difference, size
from pytest_xlatune.evidence.hlo.dump import read_program
from pytest_xlatune.evidence.pgle import pgle_profile
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow, Drill
from pytest_xlatune.evidence.trace.captures import captures_below, read_window
from pytest_xlatune.evidence.trace.collectives import shares_of
from pytest_xlatune.evidence.trace.comparison import (
    FAMILY,
    PART,
    SPAN,
    TOTAL,
    TraceComparison,
    compare_windows,
    figures,
    milliseconds,
)
from pytest_xlatune.ledger import LEDGER, EvidenceRecorded, Ledger, find_ledgers
from pytest_xlatune.ledger.state import LedgerState, replay
from pytest_xlatune.model.channels import DUMP_FOLDER
from pytest_xlatune.model.errors import ConfigError, ParseError, XlatuneError
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import BASELINE_ID, PGLE_SUFFIX
from pytest_xlatune.model.result import TrialStatus
from pytest_xlatune.model.text import counted
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.report.measured_cell import EvidenceFact, Explanation
from pytest_xlatune.secure_files import write_bytes

_Read = TypeVar("_Read")
Workdir = Callable[[], Path]

FAMILIES = 5  # kernel families shown: those that changed most
_OVERLAPS = ("overlap", "concurrency")  # the totals that are shown
# fields without influence on the program
_UNREAD = {"wave": "", "note": "", "is_control": False, "origin": None}
# names of a sweep's profile:  quickstart:baseline-deployed
_OF_SWEEP = re.compile(r"([a-z0-9][a-z0-9_-]*):([a-z0-9][a-z0-9._+-]{0,63})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The artifacts and facts of an evidence trial.

    Attributes:
        profile: the id of the profile; "" for files that are named by their path.
        trial_id: the id of the trial.
        dump: the folder of the compiler's dump; None if there is none.
        captures: the profiler's files, one for each process.
        pgle: the file for XLA's scheduler; None if the captures name no operation.
        facts: one sentence for each fact in the dump and the captures.
        problems: one sentence for each file that could not be read.
        step_s: the seconds of a step in trials of the same profile without a profiler; None if no
            such trial was measured.
    """

    profile: str = ""
    trial_id: str = ""
    dump: Path | None = None
    captures: tuple[Path, ...] = ()
    pgle: Path | None = None
    facts: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    step_s: float | None = None


def as_recorded(
    event: EvidenceRecorded, trial: Trial, state: LedgerState, folder: Path
) -> Recorded:
    """Return an event with its paths as paths below the ledger's folder."""
    return Recorded(
        profile=trial.profile.id,
        trial_id=event.trial_id,
        dump=folder / event.dump if event.dump else None,
        captures=tuple(folder / capture for capture in event.captures),
        pgle=Path(event.pgle) if event.pgle else None,
        facts=event.facts,
        problems=event.problems,
        step_s=_step_s(state, trial),
    )


def _step_s(state: LedgerState, trial: Trial) -> float | None:
    """Return the median seconds of a step over the measured trials of the same settings."""
    settings = trial.profile.to_json() | _UNREAD
    steps = sorted(
        progress.ended.score.step_s
        for progress in state.trials.values()
        if progress.ended is not None
        and progress.ended.status is TrialStatus.MEASURED
        and progress.ended.score is not None
        and progress.ended.score.step_s is not None
        and progress.trial.cell_digest == trial.cell_digest
        and progress.trial.profile.to_json() | _UNREAD == settings
    )
    return steps[len(steps) // 2] if steps else None


def _evidence(state: LedgerState) -> Iterator[tuple[EvidenceRecorded, Trial]]:
    """Yield the evidence of a ledger, with its trials, in the order of recording."""
    for trial_id, event in state.recorded.items():
        progress = state.trials.get(trial_id)
        if progress is not None and progress.trial.protocol.dump:
            yield event, progress.trial


def find_recorded(name: str, workdir: Workdir) -> Recorded:
    """Return the evidence that a name means; any other text is a path to evidence.

    `workdir` is called only if the text is a name, because a path needs no ledger.

    Raises:
        ConfigError: the sweep or trial exists without evidence, or several cells have it.
        LedgerError: a ledger cannot be read.
    """
    match = _OF_SWEEP.fullmatch(name)
    sweep, profile_id = match.groups() if match else ("", "")
    evidence: list[Recorded] = []
    known: list[str] = []
    is_path = "/" in name or Path(name).exists()
    for folder in () if is_path else find_ledgers(workdir()):
        if sweep and folder.parent.name != sweep:
            continue
        state = replay(Ledger(folder / LEDGER).refresh())
        here = [as_recorded(event, trial, state, folder) for event, trial in _evidence(state)]
        known += [recorded.profile for recorded in here]
        wanted = [one for one in here if name == one.trial_id or profile_id == one.profile]
        # take the last one: the profile may have been recorded under another protocol before
        evidence += wanted[-1:]
        if not match and name in state.trials and not wanted:
            raise ConfigError(
                f"{name}: this trial left no dump and no capture; record its "
                "profile with `xlatune evidence SWEEP_FILE PROFILE`"
            )
    if len(evidence) > 1:
        raise ConfigError(
            f"{name}: recorded in {len(evidence)} cells; name the trial: "
            f"{', '.join(recorded.trial_id for recorded in evidence)}"
        )
    if match and not evidence and not is_path:
        raise ConfigError(
            f"{name}: no evidence of it below {workdir()}"
            + (f"; recorded are {', '.join(dict.fromkeys(known))}" if known else "")
            + ". Record it with `xlatune evidence SWEEP_FILE PROFILE`, or give a path"
        )
    return evidence[0] if evidence else Recorded(dump=Path(name), captures=(Path(name),))


def dump_of(name: str, workdir: Workdir) -> Path:
    """Return the dump that a path or a name of recorded evidence means.

    Raises:
        ConfigError: the evidence has no dump; see `find_recorded`.
    """
    recorded = find_recorded(name, workdir)
    if recorded.dump is None:
        raise _left_none(name, recorded, "dump")
    return recorded.dump


def captures_of(name: str, workdir: Workdir) -> tuple[Sequence[Path], float | None]:
    """Return the captures that a path or a name of recorded evidence means.

    With them come the seconds of a step without a profiler, or None if they are not known.

    Raises:
        ConfigError: the evidence has no captures; see `find_recorded`.
    """
    recorded = find_recorded(name, workdir)
    if not recorded.captures:
        raise _left_none(name, recorded, "capture")
    return recorded.captures, recorded.step_s


def _left_none(name: str, recorded: Recorded, what: str) -> ConfigError:
    why = f": {'; '.join(recorded.problems)}" if recorded.problems else ""
    return ConfigError(f"{name}: trial {recorded.trial_id} left no {what}{why}")


def read_new(state: LedgerState, folder: Path) -> tuple[EvidenceRecorded, ...]:
    """Read the artifacts of finished evidence trials that were not read yet."""
    events = []
    for result in state.evidence():
        attempts = state.trials[result.trial.id].attempts
        submission = attempts[max(attempts)].submission if attempts else None
        if result.status is TrialStatus.MEASURED and not result.is_read and submission is not None:
            events.append(read_attempt(result.trial.id, folder, submission.folder))
    return tuple(events)


def _tried(problems: list[str], read: Callable[[], _Read]) -> _Read | None:
    """Return what `read` returns; if it fails, add a sentence to the problems and return None."""
    try:
        return read()
    except (XlatuneError, OSError) as error:
        problems.append(str(error))
        return None


def read_attempt(trial_id: str, folder: Path, attempt: str) -> EvidenceRecorded:
    """Read the artifacts of an attempt; its folder is `attempt` below the ledger's."""
    problems: list[str] = []

    def stays(path: Path) -> bool:
        """Return whether a file is in the folder of the attempt; a link may lead elsewhere."""
        is_inside = path.resolve().is_relative_to((folder / attempt).resolve())
        problems.extend([] if is_inside else [f"{path} leads out of its attempt"])
        return is_inside

    dump, program, drill, pgle = f"{attempt}/{DUMP_FOLDER}", None, None, ""
    facts: list[str] = []
    if stays(folder / dump):
        program = _tried(problems, lambda: read_program(folder / dump))
    below = _tried(problems, lambda: captures_below(folder / attempt)) or ()
    captures = tuple(filter(stays, below))
    if program is not None:
        facts.append(program_fact(program))
    if captures:
        facts += _tried(problems, lambda: _facts_by_others(captures)) or ()
        drill = _tried(problems, lambda: _window_of(captures, None, problems))
    if drill is not None:
        facts.append(drill_fact(drill))
    if drill is not None and drill.ops:
        # the path is a part of the trial's identity, so the file of another run needs another path
        path = (folder / attempt).absolute() / f"pgle{PGLE_SUFFIX}"
        write_bytes(path, pgle_profile(drill, program).encode())
        pgle = str(path)
    return EvidenceRecorded(
        trial_id=trial_id,
        dump="" if program is None else dump,
        captures=tuple(str(path.relative_to(folder)) for path in captures),
        facts=tuple(facts),
        problems=tuple(problem.replace(f"{folder}/", "") for problem in problems),
        shares=shares_of(drill, program),
        pgle=pgle,
    )


def _facts_by_others(captures: Sequence[Path]) -> list[str]:
    return [fact for reader in readers().values() for fact in reader.facts(captures)]


def program_fact(program: Program) -> str:
    """Return a sentence about a compiled program."""
    in_loop = sum(collective.in_loop for collective in program.collectives)
    memory = "" if program.memory_bytes is None else f", memory {size(program.memory_bytes)}"
    return (
        f"{program.module} for {program.target}: {counted(program.instructions, 'instruction')}, "
        f"{counted(len(program.collectives), 'collective')}, {in_loop} of them in a loop, "
        f"{counted(len(program.loops), 'loop')}{memory}"
    )


def drill_fact(drill: Drill) -> str:
    """Return a sentence with the parts of a step's time."""
    span_s = drill.seconds(drill.total.span_ps)
    shown = ", ".join(
        f"{name} {milliseconds(spent):.3f}" for name, spent in figures(drill)[PART].items()
    )
    return (
        f"{counted(len(drill.gpus), 'device')}, {counted(drill.divided_by, 'step')}: a step spans "
        f"{milliseconds(span_s):.3f} ms: {shown}"
    )


def explain(state: LedgerState, folder: Path, winner: str) -> Explanation:
    """Return the differences that recorded evidence shows between the baseline and a winner.

    Paths of artifacts are relative to the ledger's folder; `winner` is the id of a profile.
    """
    # the latest recorded evidence of each profile
    latest = {trial.profile.id: event for event, trial in _evidence(state)}
    if not latest.keys() >= {BASELINE_ID, winner}:
        return Explanation()
    sides = latest[BASELINE_ID], latest[winner]
    results = [state.trials[event.trial_id].result for event in sides]
    jobs = tuple(job for result in results for job in result.job_ids[-1:])
    problems: list[str] = []
    program = traces = None
    facts: list[EvidenceFact] = []

    def add(of_files: Iterable[EvidenceFact], artifacts: Iterable[str]) -> None:
        where = Path(folder.parent.name, folder.name)
        shown = tuple(str(where / path) for path in artifacts)
        facts.extend(replace(fact, artifacts=shown, jobs=jobs) for fact in of_files)

    if all(event.dump for event in sides):
        dumps = [folder / event.dump for event in sides]
        program = _tried(problems, lambda: difference(*map(read_program, dumps)))
        messages = program.messages if program else ()
        hlo = [EvidenceFact(kind="HLO", text=sentence(message)) for message in messages]
        add(hlo, (event.dump for event in sides))
    else:
        problems.append("the ledger does not have an HLO dump of each side")
    captures = [[folder / capture for capture in event.captures] for event in sides]
    of_traces: list[EvidenceFact] = []
    if all(captures):
        steps = results[0].trial.protocol.profiler_steps or None
        traces = _tried(
            problems,
            lambda: compare_windows(*(_window_of(side, steps, problems) for side in captures)),
        )
        of_traces += [] if traces is None else _trace_facts(traces)
    else:
        problems.append("the ledger does not have a trace of each side")
    of_traces += _tried(problems, lambda: _changes_by_others(*captures)) or ()
    if of_traces:
        # the folder with all captures of a side
        folders = ([Path(capture).parent for capture in event.captures] for event in sides)
        add(of_traces, map(os.path.commonpath, folders))
    span = traces.of(SPAN)[0] if traces else None
    return Explanation(
        profile=winner if facts else "",
        facts=tuple(facts),
        is_identical=None if program is None else program.change is Change.IDENTICAL,
        moved=span.change_s() / span.seconds[0] if span and span.seconds[0] > 0 else None,
        # paths relative to the work directory, as for other readers
        problems=tuple(problem.replace(f"{folder.parent.parent}/", "") for problem in problems),
    )


def _window_of(captures: Sequence[Path], steps: int | None, problems: list[str]) -> Drill:
    """Drill captures; if they have another number of steps than `steps`, take that number."""
    try:
        drill, left_out = read_window(captures, CaptureWindow(steps=steps))
    except ParseError:
        if steps is None:
            raise
        drill, left_out = read_window(captures, CaptureWindow())
    problems += left_out
    return drill


def _changes_by_others(before: Sequence[Path], after: Sequence[Path]) -> list[EvidenceFact]:
    """Return the changes that the readers of other distributions find."""
    return [
        EvidenceFact(kind=name, text=text)
        for name, reader in readers().items()
        for text in reader.changes(before, after)
    ]


def _trace_facts(comparison: TraceComparison) -> Iterator[EvidenceFact]:
    yield EvidenceFact(kind="step", text=comparison.sentences[0])
    moved = [figure for figure in comparison.of(FAMILY)[:FAMILIES] if figure.change_s()]
    overlaps = [figure for figure in comparison.of(TOTAL) if figure.name in _OVERLAPS]
    for kind, rows in (
        ("step", (*comparison.of(SPAN), *comparison.of(PART))),
        ("kernel family", moved),
        ("overlap", overlaps),
    ):
        for figure in rows:
            before, after, change = map(milliseconds, (*figure.seconds, figure.change_s()))
            yield EvidenceFact(
                kind=kind,
                text=f"{figure.name}: {before:.3f} -> {after:.3f} ms per device and step "
                f"({change:+.3f} ms)",
            )
