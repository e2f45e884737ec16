"""The part of a campaign that compiles before anything is queued, one profile at a time.

What was compiled is in the ledger under a digest of all that it rests on: the program's source, the
settings of profile and baseline, the versions of the compiler, the memory limit. While that is as
it was nothing is compiled again. Which profiles need no run follows from the events alone, so that
the plan, the campaign and whoever reads the ledger say the same.

Never left out: a profile with a setting that may act at run time only, whatever its program; where
the device is not here, one that does not compile or whose flags choose by the device; and so many
of those identical to the baseline as serve for A/A controls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from pytest_xlatune.cells import Stage, Trial
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.evidence.hlo import Program
from pytest_xlatune.evidence.screened import Class, Screen
from pytest_xlatune.ledger import (
    Event,
    LedgerState,
    Noted,
    ProfileCompiled,
    TrialEnded,
    TrialPlanned,
)
from pytest_xlatune.profiles import BASELINE, Profile
from pytest_xlatune.records import digest
from pytest_xlatune.results import NEEDLESS, SETTLED, Action, Finding, TrialResult, TrialStatus
from pytest_xlatune.screening import compiling
from pytest_xlatune.screening.versions import compiled_by
from pytest_xlatune.screening.ways import Compiler

# what a compiler decides by the device: autotuned kernels, the links and estimates of their speed
_BY_DEVICE = ("autotun", "cublas", "cudnn", "einsum", "gemm", "latency_estimator", "perf_table",
              "pgle", "triton")  # fmt: skip
_CANNOT = frozenset({Class.REFUSED, Class.FAILED, Class.MEMORY})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What follows from a profile's program: whether it needs a run, and why."""

    is_settled: bool
    why: str
    is_needless: bool = False  # it could run, to no purpose


class Step:
    """Compiles the profiles of one sweep, and settles those that need no run.

    Args:
        compiler: how they are compiled.
        profiles: all declared ones, in declared order.
        controls: so many that are identical to the baseline are measured all the same.
        lock: of the machine; None is the one that local trials take.
    """

    def __init__(
        self,
        compiler: Compiler,
        profiles: Sequence[Profile],
        *,
        controls: int = 1,
        lock: Path | None = None,
    ) -> None:
        self._compiler = compiler
        self._profiles = tuple(each for each in profiles if not each.is_baseline)
        self._controls = controls
        self._lock = lock
        self._keys: dict[str, str] = {}
        self._by = ""
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
        """Return the events of one more compiled profile, or of what all of them settle.

        Args:
            state: of the ledger.
            pending: the trials that this run is about to measure.
            whole: those of deselected profiles too.
            folder: of the campaign.

        Returns:
            () where there is nothing left to compile or to settle.

        Raises:
            ConfigError: the cell as deployed does not compile.
        """
        wanted = frozenset(each.profile.id for each in pending if each.stage is Stage.SCREEN)
        self._profiles += derived(pending, self._profiles)
        for each in self._profiles:
            if each.id in wanted and not self._is_known(state, each):
                return self._compile(each, folder)
        fates = self.fates(state, alive=wanted)
        return tuple(
            event
            for trial in whole
            if trial.stage is Stage.SCREEN and not _is_begun(state, trial)
            for fate in [fates.get(trial.profile.id)]
            if fate is not None and fate.is_settled
            for event in (TrialPlanned(trial=trial), TrialEnded(result=_settled(trial, fate)))
        )

    def fates(self, state: LedgerState, *, alive: frozenset[str]) -> Mapping[str, Fate]:
        """Return what follows for each profile whose program is known.

        `alive` are the profiles that this run is about to measure: only they, and those that were
        measured, can stand for another one.
        """
        known = [
            state.compiled[each.id]
            for each in self._profiles
            if each.id in state.compiled and state.compiled[each.id].key == self._key(each)
        ]
        standing = alive | {
            each.trial.profile.id
            for each in state.trials.values()
            if each.ended and each.ended.status is TrialStatus.MEASURED
        }
        first: dict[str, str] = {}
        fates: dict[str, Fate] = {}
        controls = 0
        for each in known:
            owner = first.get(each.setting) if each.setting else None
            is_said = owner is not None and not each.later
            if (is_said or each.cls == Class.IDENTICAL) and self._chooses_by_device(each.profile):
                why = "measured: what it chooses cannot be seen without its device"
                fates[each.profile] = Fate(is_settled=False, why=why)
            elif each.cls == Class.IDENTICAL:
                controls += 1
                fates[each.profile] = self._identical(each, controls)
            elif each.cls in _CANNOT:
                fates[each.profile] = self._cannot(each)
            elif is_said:
                why = f"the same program and settings as {owner}, which stands for both"
                fates[each.profile] = Fate(is_settled=True, why=why, is_needless=True)
            else:
                fates[each.profile] = Fate(is_settled=False, why="measured")
                if each.setting and each.profile in standing:
                    first.setdefault(each.setting, each.profile)
        return fates

    @property
    def by(self) -> str:
        """What compiles, and for which device."""
        self._by = self._by or compiled_by(self._compiler)
        return self._by

    @property
    def place(self) -> str:
        """For which device, in words."""
        return self._compiler.place

    def _identical(self, said: ProfileCompiled, number: int) -> Fate:
        if number <= self._controls:
            return Fate(is_settled=False, why="measured as an A/A control")
        why = f"{said.cls}: {said.sentence}"
        return Fate(is_settled=True, why=why, is_needless=True)

    def _cannot(self, said: ProfileCompiled) -> Fate:
        if said.cls == Class.FAILED and self._compiler.lacks_device:
            why = "measured: without its device a compiler may fail where it would not beside it"
            return Fate(is_settled=False, why=why)
        if said.cls == Class.MEMORY and said.later:
            why = "measured: a setting of the run time may give it the memory"
            return Fate(is_settled=False, why=why)
        return Fate(is_settled=True, why=f"{said.cls}: {said.sentence}")

    def _chooses_by_device(self, profile_id: str) -> bool:
        """Whether a profile's flags may act on a device although they do not without it."""
        if not self._compiler.lacks_device:
            return False
        (found,) = (each for each in self._profiles if each.id == profile_id)
        return any(part in flag.name for flag in found.flags for part in _BY_DEVICE)

    def _is_known(self, state: LedgerState, profile: Profile) -> bool:
        if profile.id in self._skipped:
            return True
        said = state.compiled.get(profile.id)
        return said is not None and said.key == self._key(profile)

    def _compile(self, profile: Profile, folder: Path) -> tuple[Event, ...]:
        key = self._key(profile)  # says what cannot be compiled with, before anything is
        with TemporaryDirectory(prefix="compiling-", dir=folder) as scratch:
            judge = Screen(
                baseline=self._deployed(Path(scratch)),
                memory_limit_bytes=self._compiler.memory_limit_bytes,
            )
            spec = self._compiler.way(profile)
            found = compiling.compiled(profile, spec, Path(scratch), lock=self._lock)
        if found.is_interrupted:
            self._skipped.add(profile.id)
            text = f"{profile.id}: compiling it was cut short, so it is measured: {found.said}"
            return (Noted(text=text),)
        said = judge.judge(found)
        return (
            ProfileCompiled(
                profile=profile.id,
                key=key,
                cls=str(said.cls),
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
                self._baseline = compiling.compiled_baseline(
                    self._compiler.way, scratch, lock=self._lock
                )
            except ConfigError as error:
                self._baseline = error
        if isinstance(self._baseline, ConfigError):
            raise self._baseline
        return self._baseline

    def _key(self, profile: Profile) -> str:
        if profile.id not in self._keys:
            compiler = self._compiler
            rests_on = {
                "baseline": compiler.way(BASELINE).to_json(),
                "profile": compiler.way(profile).to_json(),
                "sources": [digest(path.read_bytes().hex()) for path in compiler.sources],
                "target": compiler.target.text if compiler.target else "",
                "memory_limit_bytes": compiler.memory_limit_bytes,
                "by": self.by,
            }
            self._keys[profile.id] = digest(rests_on)
        return self._keys[profile.id]


def derived(pending: Sequence[Trial], known: Sequence[Profile]) -> tuple[Profile, ...]:
    """Return the profiles to be screened that no sweep file declares: earlier waves made them."""
    ids = {BASELINE.id, *(each.id for each in known)}
    found = {each.profile.id: each.profile for each in pending if each.stage is Stage.SCREEN}
    return tuple(each for name, each in found.items() if name not in ids)


def _is_begun(state: LedgerState, trial: Trial) -> bool:
    """Whether a trial has an attempt: it is measured to its end."""
    return trial.id in state.trials and bool(state.trials[trial.id].attempts)


def _settled(trial: Trial, fate: Fate) -> TrialResult:
    finding = Finding(cls=SETTLED, action=Action.DROP, text=fate.why)
    reason = f"{NEEDLESS}{fate.why}" if fate.is_needless else f"compiling says: {fate.why}"
    return TrialResult(trial=trial, status=TrialStatus.DROPPED, reason=reason, findings=(finding,))
