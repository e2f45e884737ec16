"""Compile the profiles of a sweep before any trial is queued, and find out which need no run.

Each profile is compiled once, in a process of its own (`compilers`); `evidence.hlo.difference`
judges the program. The result is in the ledger under a digest of all that it rests on: the
program's source, the settings of profile and baseline, the versions of the compiler, the memory
limit. While that is as it was nothing is compiled again. Which profiles need no run follows from
the events alone, so that the plan, the campaign and every reader of the ledger say the same.

Never left out: a profile with a setting that may act at run time only, whatever its program; and so
many of those identical to the baseline as serve for A/A controls.

Nothing here knows pytest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.hlo.difference import Compiled, size
from pytest_xlatune.ledger import Event, Noted, NoteKind, ProfileCompiled, TrialEnded, TrialPlanned
from pytest_xlatune.ledger.state import LedgerState
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import CompileClass, FailureClass
from pytest_xlatune.model.message import say
from pytest_xlatune.model.profile import BASELINE, Profile
from pytest_xlatune.model.result import Action, Finding, NotRun, TrialResult, TrialStatus
from pytest_xlatune.model.trial import CompiledMemory, Trial
from pytest_xlatune.prepare import compilers
from pytest_xlatune.prepare.compilers import Compiler, compiler_for
from pytest_xlatune.studies import Study
from pytest_xlatune.sweep.resolved import ResolvedSweep

# given the state, the pending trials and those of the whole study: one step's events, () when done
CompileStep = Callable[[LedgerState, Sequence[Trial], Sequence[Trial]], tuple[Event, ...]]


def step_for(resolved: ResolvedSweep, study: Study, folder: Path) -> CompileStep | None:
    """Return what compiles the profiles or cells of a study; None unless its sweep asks."""
    check, policy = resolved.compile_check, study.policy
    if check is None or not (policy.compiles_first or policy.compiled_stage):
        return None
    if policy.compiled_stage:
        cells = {cell.digest: cell for cell in study.cells}
        compiler_of = partial(compiler_for, resolved, check)
        of_cells = CellStep(compiler_of, cells, stage=policy.compiled_stage)
        return partial(of_cells.next, folder=folder)
    compiler = compiler_for(resolved, check, resolved.cell)
    step = Step(compiler, resolved.sweep.profiles, controls=check.controls)
    return partial(step.next, folder=folder)


_CANNOT = frozenset({CompileClass.REFUSED, CompileClass.FAILED, CompileClass.MEMORY})


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Whether a profile needs a run, by its program, and why."""

    is_left_out: bool
    why: str
    is_needless: bool = False  # it could run, to no purpose


class Step:
    """Compiles the profiles of one sweep, and leaves out those that need no run.

    Args:
        compiler: how they are compiled.
        profiles: all declared ones, in declared order.
        controls: so many that are identical to the baseline are measured all the same.
    """

    def __init__(
        self,
        compiler: Compiler,
        profiles: Sequence[Profile],
        *,
        controls: int = 1,
    ) -> None:
        self._compiler = compiler
        self._profiles = tuple(profile for profile in profiles if not profile.is_baseline)
        self._controls = controls
        self._keys: dict[str, str] = {}
        self._baseline: Program | ConfigError | None = None
        self._skipped: set[str] = set()

    def next(
        self,
        state: LedgerState,
        pending: Sequence[Trial],
        whole: Sequence[Trial],
        *,
        folder: Path,
    ) -> tuple[Event, ...]:
        """Return the events of one more compiled profile, or of those that all of them leave out.

        Args:
            state: of the ledger.
            pending: the trials that this run is about to measure.
            whole: those of deselected profiles too.
            folder: of the campaign.

        Returns:
            () where there is nothing left to compile or to leave out.

        Raises:
            ConfigError: the cell as deployed gives no program.
        """
        wanted = frozenset(each.profile.id for each in pending if each.is_screened)
        self._profiles += derived(pending, self._profiles)
        for profile in self._profiles:
            if profile.id in wanted and not self._is_known(state, profile):
                return self._compile(profile, folder)
        needs = self.needs(state, alive=wanted)
        return tuple(
            event
            for trial in whole
            if trial.is_screened and not _is_begun(state, trial)
            for need in [needs.get(trial.profile.id)]
            if need is not None and need.is_left_out
            for event in (TrialPlanned(trial=trial), TrialEnded(result=_left_out(trial, need)))
        )

    def needs(self, state: LedgerState, *, alive: frozenset[str]) -> Mapping[str, Need]:
        """Return what follows for each profile whose program is known.

        `alive` are the profiles that this run is about to measure: only they, and those that were
        measured, can stand for another one.
        """
        known = [
            state.compiled[profile.id]
            for profile in self._profiles
            if profile.id in state.compiled and state.compiled[profile.id].key == self._key(profile)
        ]
        standing = alive | {
            progress.trial.profile.id
            for progress in state.trials.values()
            if progress.ended and progress.ended.status is TrialStatus.MEASURED
        }
        first: dict[str, str] = {}
        needs: dict[str, Need] = {}
        controls = 0
        for compiled in known:
            owner = first.get(compiled.setting) if compiled.setting else None
            if compiled.cls is CompileClass.IDENTICAL:
                controls += 1
                needs[compiled.profile] = self._identical(compiled, controls)
            elif compiled.cls in _CANNOT:
                needs[compiled.profile] = self._cannot(compiled)
            elif owner is not None and not compiled.later:
                why = f"the same program and settings as {owner}, which stands for both"
                needs[compiled.profile] = Need(is_left_out=True, why=why, is_needless=True)
            else:
                needs[compiled.profile] = Need(is_left_out=False, why="measured")
                if compiled.setting and compiled.profile in standing:
                    first.setdefault(compiled.setting, compiled.profile)
        return needs

    @property
    def by(self) -> str:
        """What compiles."""
        return self._compiler.by

    def _identical(self, said: ProfileCompiled, number: int) -> Need:
        if number <= self._controls:
            return Need(is_left_out=False, why="measured as an A/A control")
        why = f"{said.cls.meaning}: {said.sentence}"
        return Need(is_left_out=True, why=why, is_needless=True)

    def _cannot(self, said: ProfileCompiled) -> Need:
        if said.cls is CompileClass.MEMORY and said.later:
            why = "measured: a run-time setting may give it the memory that it needs"
            return Need(is_left_out=False, why=why)
        return Need(is_left_out=True, why=f"{said.cls.meaning}: {said.sentence}")

    def _is_known(self, state: LedgerState, profile: Profile) -> bool:
        if profile.id in self._skipped:
            return True
        said = state.compiled.get(profile.id)
        return said is not None and said.key == self._key(profile)

    def _compile(self, profile: Profile, folder: Path) -> tuple[Event, ...]:
        key = self._key(profile)  # says what cannot be compiled with, before anything is
        with TemporaryDirectory(prefix="compiling-", dir=folder) as scratch:
            baseline = self._deployed(Path(scratch))
            judge = compilers.judge_of(
                baseline, memory_limit_bytes=self._compiler.memory_limit_bytes
            )
            spec = self._compiler.way(profile)
            found = compilers.compiled(profile, spec, Path(scratch))
        if found.is_interrupted:
            self._skipped.add(profile.id)
            text = f"{profile.id}: compiling it was cut short, so it is measured: {found.said}"
            return (Noted(about=NoteKind.COMPILING, text=text),)
        said = judge.judge(found)
        return (
            ProfileCompiled(
                profile=profile.id,
                key=key,
                cls=said.cls,
                sentence=said.sentence,
                by=self.by,
                setting=said.setting,
                later=said.later,
                took_s=round(said.took_s, 3),
            ),
        )

    def _deployed(self, scratch: Path) -> Program:
        """Return the baseline's program, compiled once by a process that needs it."""
        if self._baseline is None:
            try:
                self._baseline = compilers.compiled_baseline(self._compiler.way, scratch)
            except ConfigError as error:
                self._baseline = error
        if isinstance(self._baseline, ConfigError):
            raise self._baseline
        return self._baseline

    def _key(self, profile: Profile) -> str:
        if profile.id not in self._keys:
            self._keys[profile.id] = self._compiler.key_of(profile)
        return self._keys[profile.id]


class CellStep:
    """Answers the trials of a study that are to be compiled alone: the memory that a cell needs.

    Args:
        compiler: how a cell is compiled; raises ConfigError where none can.
        cells: by digest.
        stage: of the trials that are answered and never submitted.
    """

    def __init__(
        self,
        compiler: Callable[[Cell], Compiler],
        cells: Mapping[str, Cell],
        *,
        stage: str,
    ) -> None:
        self._compiler = compiler
        self._cells = cells
        self._stage = stage

    def next(
        self,
        state: LedgerState,
        pending: Sequence[Trial],
        whole: Sequence[Trial],
        *,
        folder: Path,
    ) -> tuple[Event, ...]:
        """Return the events that answer the first such trial; () where none is proposed.

        Nothing is raised for a cell that no compiler can answer: the answer says why.
        """
        del whole
        trial = next((each for each in pending if each.stage == self._stage), None)
        if trial is None:
            return ()
        try:
            compiler = self._compiler(self._cells[trial.cell_digest])
            by, key = compiler.by, compiler.key_of(BASELINE)
        except ConfigError as error:
            return _answered(trial, CompiledMemory(said=str(error)))
        limit = compiler.memory_limit_bytes
        if limit is None:
            said = "no limit of a device's memory is known; say CompileCheck(memory_limit_gib=...)"
            return _answered(trial, CompiledMemory(said=said, by=by))
        known = state.compiled.get(trial.arm)
        if known is not None and known.key == key and known.memory is not None:
            return _answered(trial, known.memory)
        with TemporaryDirectory(prefix="compiling-", dir=folder) as scratch:
            spec = compiler.way(BASELINE)
            found = compilers.compiled(BASELINE, spec, Path(scratch))
        memory = _memory_of(found, limit, by)
        if found.is_interrupted:
            return _answered(trial, memory)  # another time it may have its answer
        told = ProfileCompiled(
            profile=trial.arm,
            key=key,
            cls=_MEMORY_CLASSES[memory.fits],
            sentence=said_of_memory(memory),
            by=by,
            took_s=round(found.took_s, 3),
            memory=memory,
        )
        return (told, *_answered(trial, memory))


_MEMORY_CLASSES = {
    True: CompileClass.FITS,
    False: CompileClass.MEMORY,
    None: CompileClass.FAILED,
}


def _memory_of(found: Compiled, limit_bytes: int, by: str) -> CompiledMemory:
    needed = found.program.memory_bytes if found.program is not None else None
    said = found.said
    if needed is None and not found.is_out_of_memory:
        said = said or "the dump does not say what the program needs"
    return CompiledMemory(
        needed_bytes=needed,
        limit_bytes=limit_bytes,
        is_refused=found.is_out_of_memory,
        said=said,
        by=by,
    )


def said_of_memory(memory: CompiledMemory) -> str:
    """Say what compiling tells of memory, for people."""
    figures = ""
    if memory.needed_bytes is not None and memory.limit_bytes is not None:
        figures = f"{size(memory.needed_bytes)} of {size(memory.limit_bytes)}"
    return "; ".join(filter(None, (figures, memory.said)))


def _answered(trial: Trial, memory: CompiledMemory) -> tuple[Event, ...]:
    finding = Finding(
        cls=FailureClass.COMPILE_CHECK, action=Action.NONE, text=said_of_memory(memory)
    )
    result = TrialResult(
        trial=trial,
        status=TrialStatus.DROPPED,
        reason=say("compiled, not run: {memory}", memory=said_of_memory(memory)),
        findings=(finding,),
        not_run=NotRun.COMPILED,
        memory=memory,
    )
    return (TrialPlanned(trial=trial), TrialEnded(result=result))


def derived(pending: Sequence[Trial], known: Sequence[Profile]) -> tuple[Profile, ...]:
    """Return the profiles to be screened that no sweep file declares: earlier waves made them."""
    ids = {BASELINE.id, *(profile.id for profile in known)}
    found = {trial.profile.id: trial.profile for trial in pending if trial.is_screened}
    return tuple(profile for name, profile in found.items() if name not in ids)


def _is_begun(state: LedgerState, trial: Trial) -> bool:
    """Whether a trial has an attempt: it is measured to its end."""
    return trial.id in state.trials and bool(state.trials[trial.id].attempts)


def _left_out(trial: Trial, need: Need) -> TrialResult:
    finding = Finding(cls=FailureClass.COMPILE_CHECK, action=Action.DROP, text=need.why)
    text = "needs no run: {why}" if need.is_needless else "compiling says: {why}"
    return TrialResult(
        trial=trial,
        status=TrialStatus.DROPPED,
        reason=say(text, why=need.why),
        findings=(finding,),
        not_run=NotRun.NEEDLESS if need.is_needless else NotRun.CANNOT,
    )
