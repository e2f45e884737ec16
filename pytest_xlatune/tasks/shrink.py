"""Reduce a profile that fails to the fewest settings that still do.

A profile fails by compiling where compiling shows it: a flag is refused, the compiler crashes, the
program needs too much memory. Else trials tell, one run each, on this machine or by Slurm: the
trainer crashes, computes another loss than the baseline, or is slower. Delta debugging (Zeller and
Hildebrandt, Simplifying and isolating failure-inducing input, 2002) tries subsets until no setting
can be left out without the failure going away. A subset counts only where it fails in the same way.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pytest_xlatune import owned
from pytest_xlatune.executors import Executor, QueueFull, SchedulerDown, request_for
from pytest_xlatune.executors.folder import log_files
from pytest_xlatune.executors.payload import forget_secrets
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.logs import read_log
from pytest_xlatune.logs.triage import primary
from pytest_xlatune.model.cell import Cell, secrets_in
from pytest_xlatune.model.channels import CHANNELS, pieces_of
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import CompileClass
from pytest_xlatune.model.profile import BASELINE, Flag, Profile
from pytest_xlatune.model.record import Record, dataclass
from pytest_xlatune.model.redact import (
    hide_quoted,
)
from pytest_xlatune.model.resources import Resources
from pytest_xlatune.model.result import Outcome, Score, State, Submission
from pytest_xlatune.model.trial import LaunchSpec, Trial
from pytest_xlatune.prepare.compile_check import compiled_by
from pytest_xlatune.prepare.compilers import (
    Compiler,
    compiled,
    compiled_baseline,
    compiler_for,
    judge_of,
    run_in,
)
from pytest_xlatune.report.words import sentence
from pytest_xlatune.stats.score import score
from pytest_xlatune.stats.validity import different_loss
from pytest_xlatune.sweep.declaration import CompileCheck
from pytest_xlatune.sweep.resolved import ResolvedSweep

SLOWER = 0.05  # of the baseline's figure: less is noise of one run, not a failure
KEPT = 0.5  # a subset is still slower if it loses so much of what the profile loses
_FAILS = frozenset({CompileClass.REFUSED, CompileClass.FAILED, CompileClass.MEMORY})
_ENDED = "ended from outside"  # no way of failing: nothing is known of such a profile
_XLA = "flag"  # of XLA_FLAGS
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class OneSetting(Record):
    """One flag, variable or override of a profile, or a flag of another library."""

    kind: str  # flag | variable | override, or the other library's variable
    name: str
    value: str | None  # of a flag of another library all its words

    def __str__(self) -> str:
        if self.kind in CHANNELS:
            return str(self.value)
        if self.kind == _XLA:
            return str(Flag(name=self.name, value=self.value))
        return f"{self.name}={self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WayOfFailing(Record):
    """How a profile fails. Two are the same failure where class and signature are equal."""

    cls: str
    signature: str  # its last words without numbers and addresses; "" for a measured figure
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk(Record):
    """The fewest settings that still fail."""

    profile: str
    by: str  # compiling | trials
    symptom: WayOfFailing
    settings: tuple[OneSetting, ...]
    of: int  # settings of the profile
    tries: int
    is_minimal: bool  # False: the budget ran out, or a try was ended from outside


class _SpentError(Exception):
    """The budget ran out."""


def settings_of(profile: Profile) -> tuple[OneSetting, ...]:
    """Take a profile apart."""
    return (
        *(OneSetting(kind=_XLA, name=each.name, value=each.value) for each in profile.flags),
        *(
            OneSetting(kind=variable, name=flag, value=words)
            for variable in CHANNELS
            if variable in profile.env
            for flag, words in pieces_of(variable, profile.env[variable]).items()
        ),
        *(
            OneSetting(kind="variable", name=name, value=value)
            for name, value in profile.env.items()
            if name not in CHANNELS
        ),
        *(
            OneSetting(kind="override", name=name, value=value)
            for name, value in profile.overrides.items()
        ),
    )


def profile_of(name: str, settings: Sequence[OneSetting]) -> Profile:
    """Put settings together."""
    of = {
        kind: {each.name: str(each.value) for each in settings if each.kind == kind}
        for kind in ("variable", "override")
    }
    channels = dict.fromkeys(each.kind for each in settings if each.kind in CHANNELS)
    env = of["variable"] | {
        kind: " ".join(str(each) for each in settings if each.kind == kind) for kind in channels
    }
    flags = tuple(Flag(name=each.name, value=each.value) for each in settings if each.kind == _XLA)
    return Profile(id=name, flags=flags, env=env, overrides=of["override"])


def minimal(items: Sequence[T], fails: Callable[[tuple[T, ...]], bool]) -> tuple[T, ...]:
    """Return a subset that fails and of which no item can be left out.

    `fails` is true of all items together; it is not asked about them, nor about none. This is
    ddmin of the paper above: complements of ever smaller parts.
    """
    kept, parts = tuple(items), 2
    while len(kept) > 1:
        size = -(-len(kept) // parts)
        chunks = [kept[at : at + size] for at in range(0, len(kept), size)]
        found = next((chunk for chunk in chunks if len(chunk) < len(kept) and fails(chunk)), None)
        if found is not None:
            kept, parts = found, 2
            continue
        rests = [
            tuple(each for other, chunk in enumerate(chunks) if other != place for each in chunk)
            for place in range(len(chunks))
        ]
        found = next((rest for rest in rests if len(chunks) > 2 and fails(rest)), None)  # noqa: PLR2004
        if found is not None:
            kept, parts = found, max(parts - 1, 2)
        elif parts >= len(kept):
            break
        else:
            parts = min(2 * parts, len(kept))
    return kept


Look = Callable[[Profile], WayOfFailing | None]


def shrink(
    profile: Profile, look: Look, *, by: str, budget: int, symptom: WayOfFailing | None = None
) -> Shrunk:
    """Reduce a profile; `look` says how a profile fails, None where it does not.

    `symptom` is how the whole profile fails, where that was looked at before.

    Raises:
        ConfigError: it has no setting, or does not fail, or the first try was ended from outside.
    """
    settings = settings_of(profile)
    if not settings:
        raise ConfigError(f"profile {profile.id!r} has no setting: there is nothing to leave out")
    symptom = symptom or look(replace(profile, id="whole"))
    if symptom is not None and symptom.cls == _ENDED:
        raise ConfigError(f"profile {profile.id!r}: {by} was {_ENDED}: {symptom.said}; try again")
    if symptom is None:
        raise ConfigError(
            f"profile {profile.id!r} does not fail by {by}: there is nothing to shrink"
            + (f"; {_BY_RUNS}" if by == _COMPILING else "")
        )
    asked: dict[tuple[OneSetting, ...], bool] = {}
    best = settings
    tries = 1
    is_minimal = True

    def fails(some: tuple[OneSetting, ...]) -> bool:
        nonlocal best, tries, is_minimal
        if some not in asked:
            if tries >= budget:
                raise _SpentError
            tries += 1
            found = look(profile_of(f"subset-{tries}", some))
            is_minimal &= found is None or found.cls != _ENDED
            asked[some] = found is not None and (found.cls, found.signature) == (
                symptom.cls,
                symptom.signature,
            )
        if asked[some] and len(some) < len(best):
            best = some
        return asked[some]

    try:
        best = minimal(settings, fails)
    except _SpentError:
        is_minimal = False
    return Shrunk(
        profile=profile.id,
        by=by,
        symptom=symptom,
        settings=best,
        of=len(settings),
        tries=tries,
        is_minimal=is_minimal,
    )


_COMPILING, _TRIALS = "compiling", "trials"
_BY_RUNS = "--trials N tries it by runs of the trainer"


def by_compiling(compiler: Compiler, folder: Path, *, lock: Path | None = None) -> Look:
    """Return what compiling shows of a profile; it compiles the baseline first.

    Raises:
        ConfigError: the cell as deployed does not compile.
    """
    compiled_by(compiler)
    baseline = compiled_baseline(compiler.way, folder, lock=lock)

    def look(profile: Profile) -> WayOfFailing | None:
        found = compiled(profile, compiler.way(profile), folder, lock=lock)
        if found.is_interrupted:
            return WayOfFailing(cls=_ENDED, signature="", said=found.said)
        judge = judge_of(
            baseline,
            memory_limit_bytes=compiler.memory_limit_bytes,
            is_away=compiler.target is not None,
        )
        said = judge.judge(found)
        if said.cls not in _FAILS:
            return None
        text = "" if said.cls is CompileClass.MEMORY else _signature(said.sentence)
        return WayOfFailing(cls=str(said.cls), signature=text, said=said.sentence)

    return look


# folder of all runs, the trial, how it is launched -> where it ran, and how it ended
Run = Callable[[Path, Trial, LaunchSpec], tuple[Path, Outcome]]
_FROM_OUTSIDE = frozenset(
    {State.CANCELLED, State.NODE_FAIL, State.PREEMPTED, State.LOST, State.REQUEUED}
)
_LOOK_S = 1.0


def run_here(*, lock: Path | None = None) -> Run:
    """Return how trials run on this machine."""

    def run(folder: Path, trial: Trial, spec: LaunchSpec) -> tuple[Path, Outcome]:
        where = folder / f"run-{trial.profile.id}"
        return where, run_in(where, spec, lock=lock)

    return run


def run_by(executor: Executor, nodelist: tuple[str, ...], resources: Resources) -> Run:
    """Return how trials run as jobs, one after the other; Ctrl-C cancels the one that runs."""

    def run(folder: Path, trial: Trial, spec: LaunchSpec) -> tuple[Path, Outcome]:
        request = request_for(
            trial, 1, run="trials", folder=folder, nodelist=nodelist, resources=resources
        )
        if request.folder.exists():
            raise ConfigError(f"{request.folder} exists; name a new folder for each shrink")
        submission: Submission | None = None
        try:
            while submission is None:
                try:
                    job_id = executor.submit(spec, request)
                except (SchedulerDown, QueueFull):
                    time.sleep(_LOOK_S)
                    continue
                submission = Submission(
                    trial_id=trial.id,
                    attempt=1,
                    executor=executor.name,
                    job_id=job_id,
                    folder=str(request.folder.relative_to(folder)),
                )
            return request.folder, _ended(executor, submission, folder)
        except BaseException:
            if submission is not None:
                executor.cancel([submission], root=folder)
            raise
        finally:
            forget_secrets(request.folder)

    return run


def _ended(executor: Executor, submission: Submission, folder: Path) -> Outcome:
    while True:
        try:
            found = executor.poll([submission], root=folder).get(submission.job_id)
        except SchedulerDown:
            found = None
        if found is not None and found.state.is_final:
            return found
        time.sleep(_LOOK_S)


def by_trials(
    launcher: Launcher, cell: Cell, folder: Path, *, run: Run, loss_tolerance: float = 0.02
) -> Look:
    """Return what one run of the trainer shows; it runs the baseline first.

    `loss_tolerance` is the relative distance from the baseline's loss at which a profile computes
    something else, as in the sweep.

    Raises:
        ConfigError: the cell as deployed has no score.
    """
    folder = folder.absolute()
    deployed = _run(BASELINE, launcher, cell, folder, run)
    if not isinstance(deployed, Score):
        raise ConfigError(f"the cell as deployed has no score: {deployed.said}")
    lost = 0.0  # by the whole profile, the first that is looked at

    def look(profile: Profile) -> WayOfFailing | None:
        nonlocal lost
        found = _run(profile, launcher, cell, folder, run)
        if isinstance(found, WayOfFailing):
            return found
        if found.loss is not None and deployed.loss is not None:
            other = different_loss(found.loss, deployed.loss, tolerance=loss_tolerance)
            if other:
                return WayOfFailing(cls="loss", signature="", said=sentence(other))
        change = deployed.value - found.value
        if change < max(SLOWER, KEPT * lost):
            return None
        lost = lost or change
        return WayOfFailing(cls="slower", signature="", said=f"one run is {change:.1%} slower")

    return look


def _run(
    profile: Profile, launcher: Launcher, cell: Cell, folder: Path, run: Run
) -> Score | WayOfFailing:
    trial = Trial(
        cell_digest=cell.digest, profile=profile, protocol=cell.protocol, study="shrink",
        stage="shrink",
    )  # fmt: skip
    where, outcome = run(folder, trial, launcher.launch(trial, cell))
    reports = {rank: read_log([owned.read_bytes(path)]) for rank, path in log_files(where).items()}
    steps = reports[0].steps if 0 in reports else ()
    found = score(steps, protocol=cell.protocol, tokens_per_device_step=None)
    if isinstance(found, Score):
        return found
    if outcome.state in _FROM_OUTSIDE:
        why = f"{outcome.state} {outcome.reason}".rstrip()
        return WayOfFailing(cls=_ENDED, signature="", said=why)
    cause = primary([each for report in reports.values() for each in report.findings])
    why = cause.text if cause is not None else outcome.reason or sentence(found.reason)
    why = hide_quoted(why, secrets_in(cell, [profile]))
    cls = str(cause.cls) if cause is not None else "no score"
    return WayOfFailing(cls=cls, signature="" if cause is not None else _signature(why), said=why)


def shrink_profile(
    resolved: ResolvedSweep,
    name: str,
    how: CompileCheck,
    *,
    folder: Path,
    tries: int,
    trials: int | None = None,
    lock: Path | None = None,
) -> Shrunk:
    """Reduce a profile of a sweep: by compiling where that shows a failure, else by trials.

    Trials run where those of the sweep do. A sweep on Slurm that names no program to compile has
    trials alone: its trainer does not run here. So has a trainer that leaves no program.

    Raises:
        ConfigError: no such profile, or it does not fail; trials by another executor than this
            machine's and Slurm's.
    """
    declared = {each.id: each for each in resolved.sweep.profiles}
    if name not in declared:
        where = f"sweep {resolved.sweep.name!r}"
        raise ConfigError.unknown("profile", name, valid=declared, where=where)
    whole, site = declared[name], resolved.sweep.site
    runs_by = site.runs_by
    is_here = runs_by.is_here
    if trials is None or is_here or how.program:
        try:
            look = by_compiling(compiler_for(resolved, how), folder, lock=lock)
        except ConfigError as error:
            if trials is None:
                raise ConfigError(f"{error}; {_BY_RUNS}") from None
        else:
            symptom = None if trials is None else look(replace(whole, id="whole"))
            if trials is None or symptom is not None:
                return shrink(whole, look, by=_COMPILING, budget=tries, symptom=symptom)
    if runs_by.holds_nodes:
        raise ConfigError(
            f"shrink: trials run on this machine or by Slurm, found executor {site.executor!r}"
        )
    run = run_here(lock=lock) if is_here else run_by(runs_by, resolved.nodelist, site.resources)
    cell = replace(resolved.cell, nodelist=resolved.nodelist)
    return shrink(
        whole,
        by_trials(
            resolved.sweep.launcher,
            cell,
            folder,
            run=run,
            # 2 % were allowed here once, whatever the sweep said
            loss_tolerance=resolved.sweep.design.loss_tolerance,
        ),
        by=_TRIALS,
        budget=trials,
    )


# what differs between two crashes of one cause:  0x7f2a9c   module_0012   /tmp/x/dump   line 77
_PARTICULAR = re.compile(r"0x[0-9a-f]+|/[\w./-]+|\d+")


def _signature(said: str) -> str:
    return _PARTICULAR.sub("#", said)[:200]
