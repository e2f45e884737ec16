"""Plan a sweep without running a trial: its trials, their cost, the first submission script.

A plan reads the results in the ledger, and decides the next trials by the same function as the
campaign.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec.structs import replace

from pytest_xlatune.executors import request_for
from pytest_xlatune.ledger import LEDGER, Ledger
from pytest_xlatune.ledger.state import replay
from pytest_xlatune.model.cell import DeployedFile
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import compress
from pytest_xlatune.model.message import MessageCode, sentence
from pytest_xlatune.model.result import Conclusion, TrialResult
from pytest_xlatune.model.text import fine_percent, size
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.prepare.compile_check import CompiledProfile, compile_profiles
from pytest_xlatune.prepare.lint import check_rules
from pytest_xlatune.prepare.preflight import check_shape
from pytest_xlatune.report.bubble import bubbles
from pytest_xlatune.report.document import (
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
from pytest_xlatune.tasks.cost import cost_of, measured_elsewhere

_SESSION = "SESSION"  # stands for the session's id, since a plan has no session


def scripts_of(
    resolved: ResolvedSweep, study: Study, trials: Sequence[Trial], *, workdir: Path
) -> tuple[tuple[str, str], ...]:
    """Return title and text of the first trial's script; () if no script starts a trial.

    Within an allocation of the user, it is the command of a step in place of a script. The scripts
    of other trials differ only in the job's name, the comment and the folder and, if the study's
    cells are on different nodes, in the nodes.

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
    preview = resolved.sweep.site.chosen_executor.preview(trial.id, request)
    if preview is None:
        return ()
    title, text = preview
    others = len(trials) - 1
    if others:
        has_several_nodelists = len({cell.nodelist for cell in study.cells}) > 1
        difference = "trial's name and its nodes" if has_several_nodelists else "trial's name"
        title += f"; the other {others} differ in the {difference} only"
    return ((title, text),)


def plan_of(
    resolved: ResolvedSweep,
    study: Study,
    *,
    workdir: Path,
    compiles: bool = False,
    shows_all: bool = False,
) -> Document:
    """Return the plan of a sweep.

    It lists all trials, as if none had run, and marks those that the ledger below `workdir` has.

    Args:
        resolved: the sweep.
        study: its study.
        workdir: the work directory.
        compiles: compile the profiles now, and keep none of the results.
        shows_all: add the script of a job, and the files that each command needs.

    Raises:
        ConfigError: the launcher cannot express a trial; or the profiles cannot be compiled.
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
    compiled_stage = study.policy.compiled_stage  # "" if every stage measures
    outlook = study.outlook(recorded)
    measuring = tuple(
        trial for trial in outlook.ahead if not compiled_stage or trial.stage != compiled_stage
    )
    exposed = state.exposed(resolved.cell)
    measured_noise = _measured_noise(study.decide(history).conclusion)
    # the noise that was measured replaces the one that a plan assumes
    lines = [
        line
        for line in outlook.lines
        if not (measured_noise and line.code is MessageCode.SMALLEST_GAIN)
    ]
    remarks = [
        *map(sentence, lines),
        *([sentence(exposed)] if exposed else ()),
        *measured_noise,
        *_variables_without_witness(resolved, study),
        *(() if compiles else not_compiled(resolved, study)),
        *measured_elsewhere(resolved.folder, workdir),
    ]
    # the first trial of each profile, which stands for all trials of the profile; baseline first
    first_trials: dict[str, Trial] = {}
    for trial in sorted(measuring, key=lambda trial: not trial.profile.is_baseline):
        first_trials.setdefault(trial.profile.id, trial)
    sweep, cell = resolved.sweep, resolved.cell
    cells = {cell.digest: cell for cell in study.cells}
    commands = []
    for profile_id, trial in first_trials.items():
        spec = sweep.launcher.launch(trial, cells[trial.cell_digest])
        if not shows_all:
            spec = replace(spec, files={})
        commands.append((literal(profile_id), command_of(trial.profile, spec, cell=cell)))
    scripts = scripts_of(resolved, study, measuring, workdir=workdir) if shows_all else ()
    slots = {digest: compress(cell.nodelist) for digest, cell in cells.items() if resolved.slots}
    nodes = "; ".join(slots.values()) or ", ".join(cell.nodelist) or "this machine, or as given"
    files = deployed_files(sweep.launcher, cell, env_file=sweep.site.env_file, root=Path.cwd())
    due = {trial.id for trial in study.decide(recorded).due}
    measured = {result.trial.id for result in history if result.status.is_final}
    return Document(
        title=f"{cell.label}: plan",
        header=(f"nodes: {nodes}",),
        sections=(
            section("What it can see", bullets(*remarks)),
            *_what_cannot_run(resolved, files),
            *_objections(resolved),
            *([_compiled(compile_profiles(resolved))] if compiles else ()),
            section("What it costs", bullets(*cost_of(resolved, study, history, entries).lines)),
            section("Trials", _trials(measuring, measured=measured, due=due, slots=[*slots])),
            section("Commands", *listings(commands)),
            *([section("Submission scripts", *listings(scripts))] if scripts else []),
            *filter(None, [bubbles(cell, study.decide(()).profiles, files=files)]),
        ),
    )


def _trials(
    trials: Sequence[Trial],
    *,
    measured: Collection[str],
    due: Collection[str],
    slots: Sequence[str],
) -> Table:
    """Return the trials that are known before any result, in order.

    Args:
        trials: the trials.
        measured: the ids of trials that do not run again.
        due: the ids of trials that wait for no result of another trial.
        slots: the digest of the cell on each node slot; () if there is only one slot.
    """
    rows = []
    for number, trial in enumerate(trials, start=1):
        remarks = ["measured"] if trial.id in measured else []
        remarks += [] if trial.id in due else ["later"]
        slot = [str(slots.index(trial.cell_digest) + 1)] if slots else []
        stage, flags = ", ".join([trial.stage, *remarks]), literal(trial.profile.shown_text)
        rows.append((str(number), stage, *slot, literal(trial.id), flags))
    titles = (">#", "stage", *([">slot"] if slots else []), "~trial", "~flags")
    return Table(columns=columns(*titles), rows=tuple(rows))


def _measured_noise(conclusion: Conclusion) -> tuple[str, ...]:
    """Return the noise that the measured trials show, and the smallest gain found at that noise."""
    sigma, gain = conclusion.noise.sigma, conclusion.tuning.from_start80
    if sigma is None or gain is None:
        return ()
    noise = f"the measured trials show a job noise of {fine_percent(sigma)}"
    return (f"{noise}: with it, the smallest gain that this sweep finds is {size(gain)}",)


def _variables_without_witness(resolved: ResolvedSweep, study: Study) -> tuple[str, ...]:
    """Return that a profile with certain variables cannot win, because no output shows them."""
    declared = resolved.sweep.site.unseen  # patterns of variables that may win without a witness
    names = {name for profile in study.decide(()).profiles for name in profile.env}
    unwitnessed = sorted(
        name
        for name in names
        if not has_witness(name) and not any(fnmatchcase(name, pattern) for pattern in declared)
    )
    if not unwitnessed:
        return ()
    shown = ", ".join(unwitnessed)
    text = f"a profile that sets {shown} cannot win: nothing shows that it is in effect"
    return (f'{text}; if you are sure, declare it: SiteSettings(unseen=("{unwitnessed[0]}",))',)


def _what_cannot_run(resolved: ResolvedSweep, files: Sequence[DeployedFile]) -> tuple[Section, ...]:
    """Return why a session would refuse the cell, and remarks on its shape; () if it can run."""
    findings = check_shape(
        resolved.sweep.launcher, resolved.cell, resolved.sweep.profiles, files=files
    )
    lines = (*(f"refused: {fault}" for fault in findings.faults), *findings.notes)
    return (section("What cannot run", bullets(*map(plain, lines))),) if lines else ()


def _objections(resolved: ResolvedSweep) -> tuple[Section, ...]:
    """Return the objections of the catalog to the profiles; no XLA is asked."""
    context = context_of(resolved.cell, resolved.sweep.launcher)
    findings = check_rules(resolved.sweep.named_profiles, context)
    lines = (*(f"forbids the sweep: {fault}" for fault in findings.faults), *findings.notes)
    if not lines:
        return ()
    hint = Text(text="`xlatune flags lint SWEEP_FILE` asks the trainer's own XLA too.")
    return (section("What the catalog objects to", bullets(*map(plain, lines)), hint),)


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
