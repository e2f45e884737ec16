"""Read the artifacts of evidence runs once, and compare those of a winner with the baseline's.

A running campaign reads the dump and the captures of an evidence run. The ledger keeps the facts,
and a sentence for each file that cannot be read, so a user learns of a damaged dump while the trial
can still run again; a missing or damaged artifact does not keep others from being read. The
evidence package decides what facts mean, the report whether they explain the gain.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from pytest_xlatune.evidence import readers
from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.hlo.difference import Change, difference, size
from pytest_xlatune.evidence.hlo.dump import read_program
from pytest_xlatune.evidence.pgle import pgle_profile
from pytest_xlatune.evidence.trace import comparison
from pytest_xlatune.evidence.trace.breakdown import CaptureWindow, Drill
from pytest_xlatune.evidence.trace.captures import captures_below, read_window
from pytest_xlatune.evidence.trace.collectives import shares_of
from pytest_xlatune.evidence.trace.comparison import TraceComparison, compare_windows, in_ms
from pytest_xlatune.ledger import EvidenceRecorded
from pytest_xlatune.ledger.state import LedgerState
from pytest_xlatune.model.channels import DUMP_FOLDER
from pytest_xlatune.model.errors import ParseError, XlatuneError
from pytest_xlatune.model.explanation import EvidenceFact, Explanation
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import BASELINE_ID, PGLE_SUFFIX
from pytest_xlatune.model.text import counted
from pytest_xlatune.secure_files import write_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The artifacts and facts of an evidence trial."""

    profile: str  # the id of the profile
    trial_id: str
    dump: Path | None  # the folder of the compiler's dump; None if there is none
    captures: tuple[Path, ...]  # the profiler's files, one for each process
    pgle: Path | None  # the file for XLA's scheduler; None if the captures name no operation
    facts: tuple[str, ...]  # one sentence for each fact in the dump and the captures
    problems: tuple[str, ...]  # one sentence for each file that could not be read


_Value = TypeVar("_Value")


def read_new(state: LedgerState, folder: Path) -> tuple[EvidenceRecorded, ...]:
    """Read the artifacts of finished evidence trials that were not read yet."""
    events = []
    for result in state.evidence():
        attempts = state.trials[result.trial.id].attempts
        submission = attempts[max(attempts)].submission if attempts else None
        if result.is_unread and submission is not None:
            events.append(read_attempt(result.trial.id, folder, submission.folder))
    return tuple(events)


def read_attempt(trial_id: str, folder: Path, attempt: str) -> EvidenceRecorded:
    """Read the artifacts of an attempt, whose folder is `attempt`, in the ledger's `folder`."""
    problems: list[str] = []
    place, dump = folder / attempt, folder / attempt / DUMP_FOLDER

    def stays(path: Path) -> bool:
        """Return whether a file is in the folder of the attempt; a link may lead elsewhere."""
        is_inside = path.resolve().is_relative_to(place.resolve())
        problems.extend([] if is_inside else [f"{path} leads out of its attempt"])
        return is_inside

    program = _read(problems, lambda: read_program(dump)) if stays(dump) else None
    captures = tuple(filter(stays, _read(problems, lambda: captures_below(place)) or ()))
    facts = [] if program is None else [program_fact(program)]
    drill, pgle = None, ""
    if captures:
        facts += _read(problems, lambda: _facts_by_readers(captures)) or []
        drill = _read(problems, lambda: _window(captures, None, problems))
    if drill is not None:
        facts.append(drill_fact(drill))
        if profile := pgle_profile(drill, program):
            # a trial that uses this file has the path in its id, so no other run may have this path
            pgle = str(place.absolute() / f"pgle{PGLE_SUFFIX}")
            write_bytes(Path(pgle), profile.encode())
    return EvidenceRecorded(
        trial_id=trial_id,
        dump="" if program is None else f"{attempt}/{DUMP_FOLDER}",
        captures=tuple(str(path.relative_to(folder)) for path in captures),
        facts=tuple(facts),
        problems=tuple(problem.replace(f"{folder}/", "") for problem in problems),
        shares=shares_of(drill, program),
        pgle=pgle,
    )


def _read(problems: list[str], read: Callable[[], _Value]) -> _Value | None:
    """Return what `read` returns; if it fails, add a sentence to the problems and return None."""
    try:
        return read()
    except (XlatuneError, OSError) as error:
        problems.append(str(error))
        return None


def _window(captures: Sequence[Path], steps: int | None, problems: list[str]) -> Drill:
    """Drill captures of `steps` steps; if they have another number of steps, use that one."""
    try:
        drill, left_out = read_window(captures, CaptureWindow(steps=steps))
    except ParseError:
        if steps is None:
            raise
        return _window(captures, None, problems)
    problems += left_out
    return drill


def _facts_by_readers(captures: Sequence[Path]) -> list[str]:
    return [fact for reader in readers().values() for fact in reader.facts(captures)]


def _changes_by_readers(before: Sequence[Path], after: Sequence[Path]) -> list[tuple[str, str]]:
    return [
        (name, text) for name, reader in readers().items() for text in reader.changes(before, after)
    ]


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
    parts = comparison.figures(drill)[comparison.PART]
    shown = ", ".join(f"{name} {in_ms(spent_s)}" for name, spent_s in parts.items())
    return (
        f"{counted(len(drill.gpus), 'device')}, {counted(drill.divided_by, 'step')}: a step spans "
        f"{in_ms(span_s)} ms: {shown}"
    )


def explain(state: LedgerState, folder: Path, winner: str) -> Explanation:
    """Return the differences that recorded evidence shows between the baseline and a winner.

    Paths of artifacts are relative to the ledger's folder; `winner` is the id of a profile.
    """
    trials = {trial_id: progress.trial for trial_id, progress in state.trials.items()}
    latest = {  # id of a profile -> its evidence that was recorded last
        trials[trial_id].profile.id: event
        for trial_id, event in state.recorded.items()
        if trial_id in trials and trials[trial_id].protocol.dump
    }
    if not latest.keys() >= {BASELINE_ID, winner}:
        return Explanation(
            problems=tuple(problem for event in latest.values() for problem in event.problems)
        )
    sides = [latest[BASELINE_ID], latest[winner]]
    results = [state.trials[event.trial_id].result for event in sides]
    jobs = tuple(job for result in results for job in result.job_ids[-1:])
    problems: list[str] = []

    def facts(rows: Iterable[tuple[str, str]], paths: Iterable[str]) -> list[EvidenceFact]:
        where = Path(folder.parent.name, folder.name)
        shown = tuple(str(where / path) for path in paths)
        return [
            EvidenceFact(kind=kind, text=text, artifacts=shown, jobs=jobs) for kind, text in rows
        ]

    program = None
    dumps = [folder / event.dump for event in sides if event.dump]
    if len(dumps) == len(sides):
        program = _read(problems, lambda: difference(*map(read_program, dumps)))
    else:
        problems.append("the ledger does not have an HLO dump of each side")
    hlo = [("HLO", sentence(message)) for message in (program.facts if program else ())]
    traces = None
    captures = [[folder / capture for capture in event.captures] for event in sides]
    if all(captures):
        steps = results[0].trial.protocol.profiler_steps or None
        traces = _read(
            problems,
            lambda: compare_windows(*(_window(side, steps, problems) for side in captures)),
        )
    else:
        problems.append("the ledger does not have a trace of each side")
    trace_facts = [*_trace_facts(traces)] if traces else []
    trace_facts += _read(problems, lambda: _changes_by_readers(*captures)) or []
    # the folder with all captures of a side
    folders = (os.path.commonpath([*map(os.path.dirname, event.captures)]) for event in sides)
    shown = (
        *facts(hlo, (event.dump for event in sides)),
        *(facts(trace_facts, folders) if trace_facts else ()),
    )
    return Explanation(
        profile=winner if shown else "",
        facts=shown,
        is_identical=None if program is None else program.change is Change.IDENTICAL,
        moved=traces.moved[0] if traces else None,
        # paths relative to the work directory, like those of the facts
        problems=tuple(problem.replace(f"{folder.parent.parent}/", "") for problem in problems),
    )


def _trace_facts(compared: TraceComparison) -> Iterator[tuple[str, str]]:
    """Yield the kind and the text of each fact; of families, the five that changed most."""
    yield "step", compared.sentences[0]
    families, totals = compared.of(comparison.FAMILY), compared.of(comparison.TOTAL)
    for kind, rows in (
        ("step", compared.of(comparison.PART, comparison.SPAN)),
        ("step", [figure for figure in totals if figure.name in comparison.OF_STEP]),
        ("kernel family", [figure for figure in families[:5] if figure.change_s()]),
        ("overlap", [figure for figure in totals if figure.name in ("overlap", "concurrency")]),
    ):
        for figure in rows:
            before, after = map(in_ms, figure.seconds)
            change = in_ms(figure.change_s(), "+")
            yield kind, f"{figure.name}: {before} -> {after} ms per device and step ({change} ms)"
