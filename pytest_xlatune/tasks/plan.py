"""The plan of a sweep, made without running a trial: trials, their cost, the first script.

A plan takes the results from the ledger, and decides the next trials by the same function as the
campaign. A leaderboard shows what the campaign did.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec.structs import replace

from pytest_xlatune.executors import request_for
from pytest_xlatune.ledger import LEDGER, Ledger
from pytest_xlatune.ledger.state import replay
from pytest_xlatune.model.cell import DeployedFile
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import compress
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.result import Conclusion, TrialResult
from pytest_xlatune.model.text import fine, size
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.prepare.compile_profiles import CompiledProfile, compile_profiles
from pytest_xlatune.prepare.lint import look_at_rules
from pytest_xlatune.prepare.preflight import look_at_shape
from pytest_xlatune.report.bubble import bubbles
from pytest_xlatune.report.document import (
    Bullets,
    Document,
    Section,
    Table,
    Text,
    bullets,
    columns,
    literal,
    plain,
    section,
)
from pytest_xlatune.report.study_documents import command_of, listings
from pytest_xlatune.stats.validity import has_witness
from pytest_xlatune.studies import Study
from pytest_xlatune.sweep.deployed import context_of, deployed_files
from pytest_xlatune.sweep.resolved import ResolvedSweep, not_compiled
from pytest_xlatune.tasks.cost import cost_of, hours_of_both, kept_elsewhere

_SESSION = "SESSION"  # stands for the session's id, since a plan has no session


def scripts_of(
    resolved: ResolvedSweep, study: Study, trials: Sequence[Trial], *, workdir: Path
) -> tuple[tuple[str, str], ...]:
    """Return title and text of the first trial's script, or of its step; () if there is none.

    The scripts of other trials differ only in the job's name, the comment and the folder, and in
    the nodes if cells have their own.

    Raises:
        ConfigError: an option of the scheduler cannot be used.
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
    resolved: ResolvedSweep,
    study: Study,
    *,
    workdir: Path,
    compiles: bool = False,
    shows_all: bool = False,
) -> Document:
    """Return the plan of a sweep as if nothing had run, and where its settings come from.

    It takes results, finished trials and their durations from the ledger below `workdir`.
    `compiles` compiles the profiles now, and keeps nothing. `shows_all` adds the script of a job,
    and the files that each command needs.

    Raises:
        ConfigError: the launcher cannot express a trial; or nothing can be compiled.
        LedgerError: the ledger cannot be read.
    """
    if compiles and resolved.sweep.declared is not None:
        raise ConfigError("--compile: this study compares no profiles of one cell")
    folder = workdir / resolved.folder
    entries = Ledger(folder / LEDGER).refresh()
    state = replay(entries)
    history = state.history(study.name, with_evidence=study.policy.reads_evidence)
    recorded: tuple[TrialResult, ...] = ()
    if study.policy.reads_evidence:
        recorded = state.evidence()
    alone = study.policy.compiled_stage
    outlook = study.outlook(recorded)
    left = tuple(trial for trial in outlook.ahead if not alone or trial.stage != alone)
    capacity = [
        *map(sentence, outlook.lines),
        *([sentence(exposed)] if (exposed := state.exposed(resolved.cell)) else ()),
        *hours_of_both(outlook.lines, entries, resolved=resolved),
        *_noise_seen(study.decide(history).conclusion),
        *filter(None, [resolved.sweep.site.runs_by.time_note()]),
        *_without_witness(resolved, study),
        *(() if compiles else not_compiled(resolved, study)),
        *kept_elsewhere(resolved.folder, workdir),
    ]
    firsts: dict[str, Trial] = {}
    for trial in sorted(left, key=lambda trial: not trial.profile.is_baseline):
        firsts.setdefault(trial.profile.id, trial)
    sweep, cell = resolved.sweep, resolved.cell
    cells = {cell.digest: cell for cell in study.cells}
    commands = []
    for name, trial in firsts.items():
        spec = sweep.launcher.launch(trial, cells[trial.cell_digest])
        spec = spec if shows_all else replace(spec, files={})
        commands.append((literal(name), command_of(trial.profile, spec, cell=cell)))
    scripts = scripts_of(resolved, study, left, workdir=workdir) if shows_all else ()
    slots = {name: compress(cell.nodelist) for name, cell in cells.items() if resolved.slots}
    named = "; ".join(slots.values()) or ", ".join(cell.nodelist) or "this machine, or as given"
    files = deployed_files(sweep.launcher, cell, env_file=sweep.site.env_file, root=Path.cwd())
    now = {trial.id for trial in study.decide(recorded).due}
    measured = {result.trial.id for result in history if result.status.is_final}
    return Document(
        title=f"{cell.label}: plan",
        header=(f"nodes: {named}",),
        sections=(
            section("What it can see", bullets(*capacity)),
            *_impossible(resolved, files),
            *_objections(resolved),
            *([_compiled(compile_profiles(resolved))] if compiles else ()),
            section("What it costs", bullets(*cost_of(resolved, study, history, entries).lines)),
            section("Trials", _trials(left, measured=measured, now=now, slots=[*slots])),
            section("Commands", *listings(commands)),
            *([section("Submission scripts", *listings(scripts))] if scripts else []),
            *filter(None, [bubbles(cell, study.decide(()).profiles, files=files)]),
            *_settings(resolved.settings),
        ),
    )


def _trials(
    trials: Sequence[Trial],
    *,
    measured: Collection[str],
    now: Collection[str],
    slots: Sequence[str],
) -> Table:
    """Return the trials that can be named, in order; results decide which others follow.

    Those whose ids are in `measured` do not run again, and those not in `now` wait for an earlier
    result. `slots` has the cell on each node slot; () is one slot.
    """
    rows = []
    for number, trial in enumerate(trials, start=1):
        remarks = ["measured"] if trial.id in measured else []
        remarks += [] if trial.id in now else ["later"]
        slot = [str(slots.index(trial.cell_digest) + 1)] if slots else []
        stage, flags = ", ".join([trial.stage, *remarks]), literal(trial.profile.shown_text)
        rows.append((str(number), stage, *slot, literal(trial.id), flags))
    titles = (">#", "stage", *([">slot"] if slots else []), "~trial", "~flags")
    return Table(columns=columns(*titles), rows=tuple(rows))


def _noise_seen(conclusion: Conclusion) -> tuple[str, ...]:
    """Return the noise that the cell's own trials show, and the smallest gain found at that noise.

    Without it, the plan of a measured cell would only give the assumed noise.
    """
    sigma, gain = conclusion.noise.sigma, conclusion.tuning.from_start80
    if sigma is None or gain is None:
        return ()
    seen = f"the trials that are measured show a job noise of {fine(sigma)}"
    return (f"{seen}: at it the smallest gain that this sweep finds is {size(gain)}",)


def _without_witness(resolved: ResolvedSweep, study: Study) -> tuple[str, ...]:
    """Return the variables that cannot win, because nothing shows that they are in effect."""
    unseen = resolved.sweep.site.unseen
    names = {name for profile in study.decide(()).profiles for name in profile.env}
    blind = sorted(
        name
        for name in names
        if not has_witness(name) and not any(fnmatchcase(name, pattern) for pattern in unseen)
    )
    if not blind:
        return ()
    text = f"a profile that sets {', '.join(blind)} cannot win: nothing shows that it is in effect"
    return (f'{text}; if you are sure, declare it: SiteSettings(unseen=("{blind[0]}",))',)


def _impossible(resolved: ResolvedSweep, files: Sequence[DeployedFile]) -> tuple[Section, ...]:
    """Return why the cell cannot run at all, as a session would refuse it; () if it can."""
    findings = look_at_shape(
        resolved.sweep.launcher, resolved.cell, resolved.sweep.profiles, files=files
    )
    lines = (*(f"refused: {fault}" for fault in findings.faults), *findings.notes)
    return (section("What cannot run", bullets(*map(plain, lines))),) if lines else ()


def _objections(resolved: ResolvedSweep) -> tuple[Section, ...]:
    """Return the catalog's objections to the profiles, before they cost a job; no XLA is asked."""
    context = context_of(resolved.cell, resolved.sweep.launcher)
    findings = look_at_rules(resolved.sweep.named_profiles, context)
    lines = (*(f"forbids the sweep: {fault}" for fault in findings.faults), *findings.notes)
    if not lines:
        return ()
    more = Text(text="`xlatune flags lint SWEEP_FILE` asks the trainer's own XLA too.")
    return (section("What the catalog objects to", bullets(*map(plain, lines)), more),)


def _compiled(profiles: Sequence[CompiledProfile]) -> Section:
    """Return the result of compiling each profile."""
    titles = columns("~Profile", "~class", "~compared with the baseline's program")
    rows = tuple(
        (
            literal(profile.profile),
            f"{profile.cls} as {literal(profile.same_as)}" if profile.same_as else str(profile.cls),
            plain(profile.reason),
        )
        for profile in profiles
    )
    limits = "One step of each profile ran on this machine. Only a trial shows the speed."
    return section("Compile check", Text(text=limits), Table(columns=titles, rows=rows))


def _settings(places: Mapping[str, str]) -> tuple[Section, ...]:
    """Return the place that decided each setting, except for those of the sweep file."""
    if not places:
        return ()
    lines = tuple(f"{name}: {place}" for name, place in sorted(places.items()))
    return (section("Where settings come from", Bullets(items=lines)),)
