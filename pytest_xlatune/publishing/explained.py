"""Why a winner wins, as far as its evidence trials tell: dumps and captures to counted facts.

Reads what `EvidenceRecorded` names of the baseline and of the winner; where artifacts are missing
or cannot be read it says so and goes on. What the facts mean is the evidence room's business, and
whether they explain the gain the report's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_xlatune.cells import Stage
from pytest_xlatune.errors import ParseError, XlatuneError
from pytest_xlatune.evidence.comparison import Comparison, Part, compare, milliseconds
from pytest_xlatune.evidence.difference import Change, Difference, difference
from pytest_xlatune.evidence.drill import Drill
from pytest_xlatune.evidence_files import Window, read_program, read_window
from pytest_xlatune.ledger import EvidenceRecorded, LedgerState
from pytest_xlatune.profiles import BASELINE_ID
from pytest_xlatune.report.covered import Explanation, Fact
from pytest_xlatune.results import TrialResult

FAMILIES = 5  # of the kernel families that moved most


def explain(state: LedgerState, folder: Path, winner: str) -> Explanation:
    """Return what recorded evidence says of a winner against the baseline.

    Args:
        state: of the ledger.
        folder: of the ledger, to which artifacts are relative.
        winner: id of the winning profile.
    """
    sides = tuple(_recorded(state, profile_id) for profile_id in (BASELINE_ID, winner))
    if any(side is None for side in sides):
        return Explanation()
    (before, old), (after, new) = [side for side in sides if side is not None]
    jobs = (*old.job_ids[-1:], *new.job_ids[-1:])
    problems: list[str] = []
    program = _program(folder, before, after, problems)
    where = Path(folder.parent.name, folder.name)
    facts = []
    if program is not None:
        dumps = tuple(str(where / each.dump) for each in (before, after))
        facts = [
            Fact(kind="HLO", text=text, artifacts=dumps, jobs=jobs) for text in program.sentences
        ]
    steps = old.trial.protocol.profiler_steps or None
    traces = _traces(folder, before, after, problems, steps=steps)
    if traces is not None:
        captures = tuple(str(where / _folder(each)) for each in (before, after))
        facts += [
            Fact(kind=kind, text=text, artifacts=captures, jobs=jobs)
            for kind, text in _trace_facts(traces)
        ]
    span = traces.span if traces else None
    return Explanation(
        profile=winner if facts else "",
        facts=tuple(facts),
        is_identical=None if program is None else program.change is Change.IDENTICAL,
        moved=span.change_s / span.before_s if span and span.before_s > 0 else None,
        problems=tuple(problems),
    )


def _recorded(state: LedgerState, profile_id: str) -> tuple[EvidenceRecorded, TrialResult] | None:
    """Return the latest evidence of a profile and the trial that left it."""
    found = None
    for trial_id, recorded in state.recorded.items():
        progress = state.trials.get(trial_id)
        if progress is None or progress.trial.stage is not Stage.EVIDENCE:
            continue
        if progress.trial.profile.id == profile_id:
            found = recorded, progress.result
    return found


def _program(
    folder: Path, before: EvidenceRecorded, after: EvidenceRecorded, problems: list[str]
) -> Difference | None:
    if not (before.dump and after.dump):
        problems.append("no HLO dump of both sides was recorded")
        return None
    try:
        return difference(read_program(folder / before.dump), read_program(folder / after.dump))
    except XlatuneError as error:
        problems.append(_below(str(error), folder))
        return None


def _traces(
    folder: Path,
    before: EvidenceRecorded,
    after: EvidenceRecorded,
    problems: list[str],
    *,
    steps: int | None,
) -> Comparison | None:
    if not (before.captures and after.captures):
        problems.append("no trace of both sides was recorded")
        return None
    try:
        drills = []
        for side in (before, after):
            drilled, left_out = _drilled([folder / each for each in side.captures], steps)
            problems += [_below(each, folder) for each in left_out]
            drills.append(drilled)
        return compare(*drills)
    except XlatuneError as error:
        problems.append(_below(str(error), folder))
        return None


def _drilled(captures: Sequence[Path], steps: int | None) -> tuple[Drill, tuple[str, ...]]:
    """Drill a window of so many steps, or of as many as the captures themselves tell."""
    try:
        return read_window(captures, Window(steps=steps))
    except ParseError:
        return read_window(captures, Window())


def _trace_facts(found: Comparison) -> Iterator[tuple[str, str]]:
    yield "step", found.sentence
    for part in (found.span, *found.parts):
        yield "step", _moved(part)
    for part in found.families[:FAMILIES]:
        if part.change_s:
            yield "kernel family", _moved(part)
    for part in found.totals:
        if part.name in ("overlap", "concurrency"):
            yield "overlap", _moved(part)


def _moved(part: Part) -> str:
    before, after = milliseconds(part.before_s), milliseconds(part.after_s)
    change = milliseconds(part.change_s)
    return f"{part.name}: {before:.3f} -> {after:.3f} ms per device and step ({change:+.3f} ms)"


def _folder(recorded: EvidenceRecorded) -> str:
    """Return the folder that holds all captures of a side."""
    parents = [Path(each).parent for each in recorded.captures]
    shared = parents[0]
    while not all(each.is_relative_to(shared) for each in parents):
        shared = shared.parent
    return str(shared)


def _below(text: str, folder: Path) -> str:
    """Name paths of the work directory relative to it: a document is for other machines too."""
    return text.replace(f"{folder.parent.parent}/", "")
