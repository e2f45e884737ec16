"""The plan of a sweep, found out without running anything: trials, compile check, first script.

A plan takes the results of compiling and the evidence from the ledger, and decides what follows
from them by the same step as the campaign. A leaderboard shows what the campaign did. Nothing is
compiled here unless a person asks, and no ledger keeps it then.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from msgspec.structs import replace

from pytest_xlatune.executors import request_for
from pytest_xlatune.ledger import LEDGER, Ledger, LedgerEntry, ProfileCompiled
from pytest_xlatune.ledger.state import LedgerState, replay
from pytest_xlatune.model.cell import DeployedFile
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import compress
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.result import Conclusion, TrialResult
from pytest_xlatune.model.text import counted, fine, size
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.prepare.compile_check import Need, Step, derived
from pytest_xlatune.prepare.compilers import compiler_for
from pytest_xlatune.prepare.lint import look_at_rules
from pytest_xlatune.prepare.preflight import look_at_shape
from pytest_xlatune.report.bubble import bubbles
from pytest_xlatune.report.document import (
    Bullets,
    Document,
    Section,
    Text,
    bullets,
    plain,
    section,
)
from pytest_xlatune.report.study_documents import compiled, plan
from pytest_xlatune.studies import Study
from pytest_xlatune.sweep.declaration import CompileCheck
from pytest_xlatune.sweep.deployed import context_of, deployed_files
from pytest_xlatune.sweep.earlier import read_calibration
from pytest_xlatune.sweep.resolved import ResolvedSweep, not_compiled
from pytest_xlatune.tasks.cost import cost_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreseen:
    """What compiling decides before a sweep begins, as far as the ledger knows.

    Attributes:
        needs: of the profiles that were compiled already.
        said: what compiling said of them.
        unknown: ids of the profiles that will be compiled first.
        by: the compiler.
    """

    needs: Mapping[str, Need]
    said: tuple[ProfileCompiled, ...]
    unknown: tuple[str, ...]
    by: str

    @property
    def needless(self) -> frozenset[str]:
        """Ids of the profiles that need no run."""
        return frozenset(name for name, need in self.needs.items() if need.is_left_out)

    @property
    def section(self) -> Section | None:
        """The section on compiled profiles; None without one."""
        rows = [
            (
                each.profile,
                each.cls.meaning,
                each.sentence,
                ("not run: " if need.is_left_out else "") + need.why,
            )
            for each in self.said
            for need in [self.needs[each.profile]]
        ]
        needless = sum(self.needs[each.profile].is_left_out for each in self.said)
        return compiled(rows, needless=needless, by=self.by) if rows else None


def compiling(resolved: ResolvedSweep) -> ResolvedSweep:
    """Return the sweep with a compile check: its own, or one that knows no limit of memory."""
    return dataclasses.replace(resolved, compile_check=resolved.compile_check or CompileCheck())


def foresee(
    resolved: ResolvedSweep, folder: Path, *, pending: Sequence[Trial], compiles: bool = False
) -> Foreseen | None:
    """Return the decisions of compiling before a sweep begins; None where it compiles none.

    Args:
        resolved: the sweep.
        folder: the folder of its campaign, which need not exist.
        pending: the first trials of the run, those of derived profiles included.
        compiles: whether those that the ledger does not know are compiled now.

    Raises:
        ConfigError: the trainer is not on this machine; or as deployed it does not compile.
        LedgerError: the ledger cannot be read.
    """
    check = resolved.compile_check
    if check is None:
        return None
    state = replay(Ledger(folder / LEDGER).refresh())
    profiles = (*resolved.sweep.profiles, *derived(pending, resolved.sweep.profiles))
    selected = {trial.profile.id for trial in pending}
    compiler = compiler_for(resolved, check, resolved.cell)
    step = Step(compiler, profiles, controls=check.controls)
    if compiles:
        state = _compiled_now(step, state, pending)
    needs = step.needs(state, alive=frozenset(selected - {BASELINE_ID}))
    return Foreseen(
        needs=needs,
        said=tuple(state.compiled[profile.id] for profile in profiles if profile.id in needs),
        unknown=tuple(
            profile.id for profile in profiles if profile.id in selected and profile.id not in needs
        ),
        by=step.by,
    )


def _compiled_now(step: Step, state: LedgerState, pending: Sequence[Trial]) -> LedgerState:
    """Compile the profiles that are not known yet; the ledger stays as it is."""
    with TemporaryDirectory() as scratch:
        while events := step.next(state, pending, (), folder=Path(scratch)):
            entries = [LedgerEntry(number=0, at_s=0.0, event=event) for event in events]
            state = replay(entries, onto=state)
    return state


_SESSION = "SESSION"  # stands for the id: a plan has no session


def scripts_of(
    resolved: ResolvedSweep, study: Study, trials: Sequence[Trial], *, workdir: Path
) -> tuple[tuple[str, str], ...]:
    """Return title and text of the first trial's script, or of its step; () where there is none.

    The scripts of other trials differ only in the job's name, the comment and the folder, and in
    the nodes where the cells have their own.

    Raises:
        ConfigError: an option of the scheduler cannot be passed through.
    """
    if not trials:
        return ()
    trial, resources = trials[0], resolved.sweep.site.resources
    cells = {cell.digest: cell.nodelist for cell in study.cells}
    nodelist = cells[trial.cell_digest]
    request = request_for(
        trial,
        1,
        run=_SESSION,
        folder=workdir / resolved.folder,
        nodelist=nodelist,
        resources=replace(resources, nodes=len(nodelist) or resources.nodes),
    )
    others = len(trials) - 1
    differ = "trial's name"
    if len({cell.nodelist for cell in study.cells}) > 1:
        differ += " and its nodes"
    of_others = f"; the other {others} differ in the {differ} only" if others else ""
    shown = resolved.sweep.site.runs_by.preview(trial.id, request)
    return () if shown is None else ((f"{shown[0]}{of_others}", shown[1]),)


def plan_of(
    resolved: ResolvedSweep, study: Study, *, workdir: Path, compiles: bool = False
) -> Document:
    """Return the plan of a sweep as if nothing were measured, and the places of its settings.

    From the ledger below `workdir` it takes the results of compiling, the evidence, the trials that
    are measured already, and how long they took. `compiles` compiles the profiles now.

    Raises:
        ConfigError: the launcher cannot express a trial; or nothing can be compiled.
        LedgerError: the ledger cannot be read.
    """
    if compiles and not study.policy.compiles_first:
        raise ConfigError("--compile: this study compiles no profiles before its jobs")
    folder = workdir / resolved.folder
    entries = Ledger(folder / LEDGER).refresh()
    state = replay(entries)
    history = state.history(study.name, with_evidence=study.policy.reads_evidence)
    recorded: tuple[TrialResult, ...] = ()
    if study.policy.reads_evidence:
        recorded = state.evidence()
    alone = study.policy.compiled_stage
    outlook = study.outlook(recorded)
    trials = left = tuple(trial for trial in outlook.ahead if not alone or trial.stage != alone)
    capacity = [
        *map(sentence, outlook.lines),
        *([sentence(exposed)] if (exposed := state.exposed(resolved.cell)) else ()),
        *(known.shared if (known := read_calibration(folder, resolved.cell)) else ()),
        *_noise_seen(study.decide(history).conclusion),
        *filter(None, [resolved.sweep.site.runs_by.time_note()]),
        *not_compiled(resolved, study),
    ]
    compiled_first: list[Section] = []
    foreseen = None
    if study.policy.compiles_first:
        foreseen = foresee(resolved, folder, pending=trials, compiles=compiles)
    if foreseen is not None:
        left = tuple(trial for trial in trials if trial.profile.id not in foreseen.needless)
        capacity += _compiling(foreseen, study, saved=len(trials) - len(left))
        compiled_first += filter(None, [foreseen.section])
    firsts: dict[str, Trial] = {}
    for trial in sorted(left, key=lambda each: not each.profile.is_baseline):
        firsts.setdefault(trial.profile.id, trial)
    sweep, cell = resolved.sweep, resolved.cell
    cells = {each.digest: each for each in study.cells}
    slots = tuple((name, compress(each.nodelist)) for name, each in cells.items())
    now = {trial.id for trial in study.decide(recorded).due}
    document = plan(
        cell=cell,
        trials=left,
        later=frozenset(trial.id for trial in left if trial.id not in now),
        launches=[
            (trial.profile, sweep.launcher.launch(trial, cells[trial.cell_digest]))
            for trial in firsts.values()
        ],
        capacity=capacity,
        cost=cost_of(resolved, study, history, entries).lines,
        measured=frozenset(result.trial.id for result in history if result.status.is_final),
        scripts=scripts_of(resolved, study, left, workdir=workdir),
        slots=slots if resolved.slots else (),
    )
    files = deployed_files(sweep.launcher, cell, env_file=sweep.site.env_file, root=Path.cwd())
    bubble = bubbles(cell, study.decide(()).profiles, files=files)
    head, costs, *others = document.sections
    return dataclasses.replace(
        document,
        sections=(
            *(
                head,
                *_impossible(resolved, files),
                *_objections(resolved),
                *compiled_first,
                costs,
            ),
            *others,
            *filter(None, [bubble]),
            *_settings(resolved.settings),
        ),
    )


def _noise_seen(conclusion: Conclusion) -> tuple[str, ...]:
    """Say the noise that the cell's own trials show, and what the sweep finds at it.

    Without it a plan of a measured cell tells the noise that it assumes alone.
    """
    sigma, gain = conclusion.noise.sigma, conclusion.tuning.from_start80
    if sigma is None or gain is None:
        return ()
    seen = f"the trials that are measured show a job noise of {fine(sigma)}"
    return (f"{seen}: at it the smallest gain that this sweep finds is {size(gain)}",)


def _impossible(resolved: ResolvedSweep, files: Sequence[DeployedFile]) -> tuple[Section, ...]:
    """Say why the cell cannot run at all, as a session refuses it; () where it can."""
    found = look_at_shape(
        resolved.sweep.launcher, resolved.cell, resolved.sweep.profiles, files=files
    )
    lines = (*(f"refused: {fault}" for fault in found.faults), *found.notes)
    return (section("What cannot run", bullets(*map(plain, lines))),) if lines else ()


def _objections(resolved: ResolvedSweep) -> tuple[Section, ...]:
    """Say what the catalog has against the profiles, before they cost a job; no XLA is asked."""
    context = context_of(resolved.cell, resolved.sweep.launcher)
    found = look_at_rules(resolved.sweep.named_profiles, context)
    lines = (*(f"forbids the sweep: {fault}" for fault in found.faults), *found.notes)
    if not lines:
        return ()
    more = Text(text="`xlatune flags lint SWEEP_FILE` asks the trainer's own XLA too.")
    return (section("What the catalog objects to", bullets(*map(plain, lines)), more),)


def _settings(places: Mapping[str, str]) -> tuple[Section, ...]:
    """Name the place that decided each setting; those of the sweep file alone are not listed."""
    if not places:
        return ()
    lines = tuple(f"{name}: {place}" for name, place in sorted(places.items()))
    return (section("Where settings come from", Bullets(items=lines)),)


def _compiling(foreseen: Foreseen, study: Study, *, saved: int) -> list[str]:
    """Count the profiles that are compiled before a job is queued, and the trials saved."""
    lines = []
    if foreseen.unknown:
        count = counted(len(foreseen.unknown), "profile")
        lines.append(f"{foreseen.by} will compile {count} before the sweep queues them")
    if study.policy.derives:
        lines.append(
            "the profiles that later waves derive will be compiled before the sweep queues them"
        )
    if saved:
        lines.append(f"{counted(saved, 'trial')} of the screen will not run: see the compile check")
    return lines
