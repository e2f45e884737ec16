"""Plan a sweep without running a trial: its trials, their cost, the first submission script.

A plan reads the results in the ledger, and decides the next trials by the same function as the
campaign.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import fmean

from msgspec.structs import replace

from pytest_xlatune.executors import Executor, request_for
from pytest_xlatune.ledger import LEDGER, AttemptEnded, AttemptSubmitted, Ledger, LedgerEntry
from pytest_xlatune.ledger.state import replay
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.hosts import compress
from pytest_xlatune.model.message import MessageCode, sentence
from pytest_xlatune.model.result import Conclusion, TrialResult
from pytest_xlatune.model.text import counted, duration, fine_percent, size
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.prepare.compile_check import compile_profiles
from pytest_xlatune.prepare.preflight import Preflight, check_rules, check_shape
from pytest_xlatune.report.bubble import bubbles
from pytest_xlatune.report.document import (
    Block,
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
from pytest_xlatune.stats.rotations import JobPace, JobWork
from pytest_xlatune.stats.validity import has_witness
from pytest_xlatune.studies import Study
from pytest_xlatune.sweep.deployed import context_of, deployed_files
from pytest_xlatune.sweep.earlier import pace_in
from pytest_xlatune.sweep.resolved import ResolvedSweep
from pytest_xlatune.tasks.measured import measured_elsewhere

_SESSION = "SESSION"  # stands for the session's id, since a plan has no session
_HOUR_S = 3600.0


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
    sweep, cell = resolved.sweep, resolved.cell
    entries = Ledger(workdir / resolved.folder / LEDGER).refresh()
    state = replay(entries)
    history = state.history(study.name, with_evidence=study.policy.reads_evidence)
    recorded = state.evidence() if study.policy.reads_evidence else ()
    compiled_stage = study.policy.compiled_stage  # "" if every stage measures
    outlook = study.outlook(recorded)
    measuring = [
        trial for trial in outlook.ahead if not compiled_stage or trial.stage != compiled_stage
    ]
    exposed = state.exposed(cell)
    noise = _measured_noise(study.decide(history).conclusion)
    # the noise that was measured replaces the one that a plan assumes
    lines = [
        line for line in outlook.lines if not (noise and line.code is MessageCode.SMALLEST_GAIN)
    ]
    remarks = [
        *map(sentence, lines),
        *([sentence(exposed)] if exposed else ()),
        *noise,
        *_variables_without_witness(resolved, study),
        *measured_elsewhere(resolved.folder, workdir),
    ]
    # the first trial of each profile, which stands for all trials of the profile; baseline first
    first_trials: dict[str, Trial] = {}
    for trial in sorted(measuring, key=lambda trial: not trial.profile.is_baseline):
        first_trials.setdefault(trial.profile.id, trial)
    cells = {cell.digest: cell for cell in study.cells}
    commands = []
    for profile_id, trial in first_trials.items():
        spec = sweep.launcher.launch(trial, cells[trial.cell_digest])
        if not shows_all:
            spec = replace(spec, files={})
        commands.append((literal(profile_id), command_of(trial.profile, spec, cell=cell)))
    scripts: Sequence[tuple[str, str]] = ()
    if shows_all and measuring:
        nodelist = cells[measuring[0].cell_digest].nodelist
        scripts = _script_of(resolved, measuring[0], nodelist, workdir=workdir)
    slots = [compress(cell.nodelist) for cell in cells.values() if resolved.slots]
    nodes = "; ".join(slots) or ", ".join(cell.nodelist) or "this machine, or as given"
    files = deployed_files(sweep.launcher, cell, env_file=sweep.site.env_file, root=Path.cwd())
    shape = check_shape(sweep.launcher, cell, sweep.profiles, files=files)
    rules = check_rules(sweep.named_profiles, context_of(cell, sweep.launcher))
    hint = Text(text="`xlatune flags lint SWEEP_FILE` asks the trainer's own XLA too.")
    due = {trial.id for trial in study.decide(recorded).due}
    measured = {result.trial.id for result in history if result.status.is_final}
    costs = bullets(*cost_lines(resolved, study, history, entries))
    return Document(
        title=f"{cell.label}: plan",
        header=(f"nodes: {nodes}",),
        sections=(
            section("What it can see", bullets(*remarks)),
            *_findings("What cannot run", "refused", shape),
            *_findings("What the catalog objects to", "forbids the sweep", rules, hint),
            *([_compiled(compile_profiles(resolved))] if compiles else ()),
            section("What it costs", costs),
            section("Trials", _trials(measuring, measured=measured, due=due)),
            section("Commands", *listings(commands)),
            *([section("Submission scripts", *listings(scripts))] if scripts else []),
            *filter(None, [bubbles(cell, study.decide(()).profiles, files=files)]),
        ),
    )


def _script_of(
    resolved: ResolvedSweep, trial: Trial, nodelist: tuple[str, ...], *, workdir: Path
) -> tuple[tuple[str, str], ...]:
    """Return title and text of the script of a trial; () if no script starts a trial.

    Within an allocation of the user, it is the command of a step in place of a script. The scripts
    of other trials differ in names, folders and nodes only.
    """
    resources = resolved.sweep.site.resources
    request = request_for(
        trial,
        1,
        run=_SESSION,
        folder=workdir / resolved.folder,
        nodelist=nodelist,
        resources=replace(resources, nodes=len(nodelist) or resources.nodes),
    )
    preview = resolved.sweep.site.chosen_executor.preview(trial.id, request)
    return () if preview is None else (preview,)


def _trials(trials: Sequence[Trial], *, measured: Collection[str], due: Collection[str]) -> Table:
    """Return the trials that are known before any result, in order.

    Args:
        trials: the trials.
        measured: the ids of trials that do not run again.
        due: the ids of trials that wait for no result of another trial.
    """
    rows = []
    for number, trial in enumerate(trials, start=1):
        remarks = ["measured"] if trial.id in measured else []
        remarks += [] if trial.id in due else ["later"]
        stage, flags = ", ".join([trial.stage, *remarks]), literal(trial.profile.shown_text)
        rows.append((str(number), stage, literal(trial.id), flags))
    return Table(columns=columns(">#", "stage", "~trial", "~flags"), rows=tuple(rows))


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
    text = f"a profile that sets {', '.join(unwitnessed)} cannot win: nothing shows that it is"
    remedy = f'declare it: SiteSettings(unseen=("{unwitnessed[0]}",))'
    return (f"{text} in effect; if you are sure, {remedy}",)


def _findings(title: str, word: str, found: Preflight, *blocks: Block) -> tuple[Section, ...]:
    """Return the faults, after a word for them, and the notes of a check; () if there are none."""
    lines = (*(f"{word}: {fault}" for fault in found.faults), *found.notes)
    return (section(title, bullets(*map(plain, lines)), *blocks),) if lines else ()


def _compiled(profiles: Sequence[tuple[str, str, str]]) -> Section:
    """Return the result of compiling each profile."""
    titles = columns("~Profile", "~class", "~compared with the baseline's program")
    rows = tuple((literal(name), plain(result), plain(reason)) for name, result, reason in profiles)
    limits = "One step of each profile ran on this machine. Only a trial shows the speed."
    return section("Compile check", Text(text=limits), Table(columns=titles, rows=rows))


def cost_lines(
    resolved: ResolvedSweep,
    study: Study,
    history: Sequence[TrialResult],
    entries: Sequence[LedgerEntry],
) -> Iterator[str]:
    """Yield what a study will still cost: jobs, node-hours, wall time.

    The duration of a trial and its time in the queue are means over this cell's ledger. Without
    such trials, the time limit of a trial is an upper bound, and the lines say so; the time in the
    queue is then unknown.
    """
    site, outlook = resolved.sweep.site, study.outlook(tuple(history))
    fewest, most = outlook.left, max(outlook.left, outlook.at_most)
    jobs = counted(fewest, "job") if most == fewest else f"{fewest} to {most} jobs"
    nodes = (
        study.traits.cell_nodes
        or len(study.cells[0].nodelist)
        or resolved.sweep.launcher.nodes
        or max(site.resources.nodes, 1)
    )
    # a trial that has `memory` was only compiled
    used = sum(result.status.is_final and result.memory is None for result in history)
    reused = f"; {counted(used, 'trial')} measured already and used again" if used else ""
    yield f"{jobs} to run, each on {counted(nodes, 'node')}{reused}"
    if not fewest:
        return
    durations_s, waits_s = _times_of_attempts(entries, site.chosen_executor)
    trial_s, known = _trial_seconds(resolved, outlook.work, durations_s, entries)
    if known:
        hedge = "about" if most == fewest else "at most about"
        basis = f"the mean of {known} here"
    elif outlook.work is not None:  # no limit bounds rotations
        hedge, basis = "perhaps", "a guess"
    else:
        hedge, basis = "at most", "its limit; none has run here"
    hours = most * trial_s * nodes / _HOUR_S
    digits = 0 if hours >= 10 else 1  # noqa: PLR2004 - shows two digits at least
    ceiled = math.ceil(hours * 10**digits) / 10**digits
    what = "a trial" if outlook.work is None else "a job, rotations among them,"
    bound = " at most" if hedge == "at most" else ""
    takes = f"{what} takes {duration(trial_s)}{bound}, {basis}"
    yield f"{hedge} {ceiled:.{digits}f} node-hours: {takes}"
    if not resolved.slots and len({cell.nodelist for cell in study.cells}) > 1:
        return  # jobs on different nodes run at the same time
    rounds = outlook.rounds if resolved.slots else fewest
    order = "one after the other"
    if len(resolved.slots) > 1:
        order = f"on {len(resolved.slots)} slots side by side"
    waiting = "which is unknown here"
    if waits_s and site.chosen_executor.has_queue:
        waiting = f"where a job of this cell waited {duration(fmean(waits_s))}"
    wall = f"{hedge} {duration(rounds * trial_s * most / fewest)} {order}"
    yield f"{wall}, without time in the queue, {waiting}"


def _trial_seconds(
    resolved: ResolvedSweep,
    work: JobWork | None,
    durations_s: Sequence[float],
    entries: Sequence[LedgerEntry],
) -> tuple[float, int]:
    """Return the seconds of a trial, and from how many jobs they are known.

    The number is 1 if the user gave the time, and 0 if it is the limit or a guess. `work` is that
    of a study with rotations.
    """
    site, protocol = resolved.sweep.site, resolved.cell.protocol
    if work is not None and work.jobs:
        pace = pace_in(entries, resolved.cell)
        if pace is None:
            pace = JobPace.guessed(site.trial_s or protocol.deadline_s, protocol.steps)
            pace = replace(pace, jobs=1 if site.trial_s else 0)
        return work.seconds(pace) / work.jobs, pace.jobs
    if durations_s:
        return fmean(durations_s), len(durations_s)
    if site.trial_s:
        return site.trial_s, 1
    limits = [protocol.deadline_s]
    if not site.chosen_executor.is_here:
        limits.append(site.resources.time_limit_s)
    return min(limits), 0


def _times_of_attempts(
    entries: Sequence[LedgerEntry], executor: Executor
) -> tuple[list[float], list[float]]:
    """Return how long the attempts of a ledger took that began and are over, and their waits."""
    submitted_s: dict[tuple[str, int], float] = {}
    durations_s, waits_s = list[float](), list[float]()
    for entry in entries:
        match entry.event:
            case AttemptSubmitted(submission=submission) if submission.executor == executor.name:
                submitted_s[submission.trial_id, submission.attempt] = entry.at_s
            case AttemptEnded(trial_id=trial_id, attempt=attempt, outcome=outcome) if (
                outcome.start_s is not None and outcome.end_s is not None
            ):
                durations_s.append(max(outcome.end_s - outcome.start_s, 0.0))
                if (at_s := submitted_s.get((trial_id, attempt))) is not None:
                    waits_s.append(max(outcome.start_s - at_s, 0.0))
            case _:
                pass
    return durations_s, waits_s
