"""What an evidence trial left behind: its dump and captures to facts, once, for the ledger.

What cannot be read is said and goes into the ledger too. Nothing is run here.
"""

from __future__ import annotations

from pathlib import Path

from pytest_xlatune.errors import XlatuneError
from pytest_xlatune.evidence.difference import plural, size
from pytest_xlatune.evidence.drill import Drill
from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.shares import shares_of
from pytest_xlatune.evidence_files import Window, captures_below, read_program, read_window
from pytest_xlatune.launchers.program import DUMP_FOLDER
from pytest_xlatune.ledger import EvidenceRecorded, LedgerState
from pytest_xlatune.results import TrialStatus

_PS = 1e-9  # milliseconds of a picosecond


def read_new(state: LedgerState, folder: Path) -> tuple[EvidenceRecorded, ...]:
    """Return what the evidence trials left that are over and were not read yet.

    Args:
        state: of the ledger.
        folder: of the ledger.
    """
    found = []
    for each in state.evidence():
        attempts = state.trials[each.trial.id].attempts
        submission = attempts[max(attempts)].submission if attempts else None
        if each.status is TrialStatus.MEASURED and not each.is_read and submission is not None:
            found.append(read_attempt(each.trial.id, folder, submission.folder))
    return tuple(found)


def read_attempt(trial_id: str, folder: Path, attempt: str) -> EvidenceRecorded:
    """Read what an attempt left; its folder is `attempt` below the ledger's."""
    facts: list[str] = []
    problems: list[str] = []
    program: Program | None = None
    drilled: Drill | None = None
    dump = f"{attempt}/{DUMP_FOLDER}"
    try:
        program = read_program(folder / dump)
        facts.append(program_fact(program))
    except XlatuneError as error:
        problems.append(str(error))
        dump = ""
    captures: tuple[Path, ...] = ()
    try:
        captures = captures_below(folder / attempt)
        drilled, left_out = read_window(captures, Window())
        facts.append(drill_fact(drilled))
        problems += left_out
    except XlatuneError as error:
        problems.append(str(error))
    return EvidenceRecorded(
        trial_id=trial_id,
        dump=dump,
        captures=tuple(str(each.relative_to(folder)) for each in captures),
        facts=tuple(facts),
        problems=tuple(each.replace(f"{folder}/", "") for each in problems),
        shares=shares_of(drilled, program),
    )


def program_fact(program: Program) -> str:
    """Say in a sentence what the compiler made."""
    in_loop = sum(each.in_loop for each in program.collectives)
    memory = "" if program.memory_bytes is None else f", memory {size(program.memory_bytes)}"
    return (
        f"{program.module} for {program.target}: {plural(program.instructions, 'instruction')}, "
        f"{plural(len(program.collectives), 'collective')}, {in_loop} of them in a loop, "
        f"{plural(len(program.loops), 'loop')}{memory}"
    )


def drill_fact(found: Drill) -> str:
    """Say in a sentence where the time of a step went."""
    total, by = found.total, max(1, found.gpu_steps)
    parts = {
        "compute": total.compute_ps,
        "exposed communication": total.exposed_communication_ps,
        "exposed memory": total.exposed_memory_ps,
        "idle": total.idle_ps,
    }
    said = ", ".join(f"{name} {_PS * part / by:.3f}" for name, part in parts.items())
    return (
        f"{plural(len(found.gpus), 'device')}, {plural(found.divided_by, 'step')}: a step spans "
        f"{_PS * total.span_ps / by:.3f} ms: {said}"
    )
