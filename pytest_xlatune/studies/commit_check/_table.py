"""Models x node counts on one or more commits: the suspects, and the verdict on each.

Commits stand side by side in each load's own nodes. The first run of a commit chooses the suspects;
only fresh pairs of them with the commit before say SLOWER or FASTER. A load that cannot run is new
or was there before. Plans no trial of its own. The reference note is docs/how-to/studies.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from statistics import fmean

from msgspec.structs import replace

from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.result import Conclusion, TrialResult, Verdict, VerdictKind, relative
from pytest_xlatune.model.sentences import ITS_FIRST_RUN, ITS_FIRST_RUN_AGAIN, RUN_AGAIN
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.beside import spread_of
from pytest_xlatune.stats.design import t_quantile
from pytest_xlatune.studies.cell_arms import (
    decided,
    dropped,
    in_a_sentence,
    not_accused,
    undecided,
)
from pytest_xlatune.studies.commit_check._record import (
    CommitsRecord,
    CommitWalk,
    Found,
)
from pytest_xlatune.studies.trials import usable
from pytest_xlatune.studies.verdicts import NO_SCORE, begun, beside, changed, screened, so_far

CONFIRM = "confirm"
PAIRS = 4
ALPHA = 0.05
SLOWER_AT = math.log1p(-0.02)  # a loss that counts
FASTER_AT = -SLOWER_AT
# these only choose what runs again: by one run and -2 %, 28 % of simulated tables of ten healthy
# loads accused one, where 3 % of the jobs are bad
SUSPECT_SIGMAS, SUSPECT_AT = 1.5, 0.012
PROMISING_SIGMAS, PROMISING_AT = 2.5, 0.020  # of a gain: it accuses no commit, and may wait
BROKEN_MODELS = 2  # that ran on the commit before: the rest of the commit is not submitted
_MIN_DIFFERENCES = 4
_MIN_PAIRS = 2
_LEAST_SIGMA = 1e-5


class CommitTable(CommitWalk):
    """One table as far as it came, and what it shows; a place is a load on a commit."""

    is_screened = False  # whether the first runs are over
    suspects: tuple[tuple[int, int], ...] = ()  # (load, commit) that run again

    def walk(self) -> None:
        """Run each load on each commit, then those that differ in fresh pairs."""
        self.run(self.screen)
        self.is_screened = True
        spare = self.study.budget - len(self.screen)
        self.suspects = self.unlike[: max(spare // (2 * PAIRS), 0)]
        self.run([each for key in self.suspects for each in self.pairs(key)])

    def conclusion(self) -> Conclusion:
        """Return a verdict on every load on every commit, load by load."""
        return conclusion(self)

    @cached_property
    def models(self) -> tuple[str, ...]:
        """The model of each load."""
        return tuple(e.model for e in self.study.asked.loads) or (self.study.cells[0].model_tag,)

    def place(self, load: int, commit: int) -> int:
        """Return the place of a load on a commit."""
        return load * self.study.commits + commit

    def first_of(self, load: int, commit: int) -> Trial:
        """Return the first run of a load on a commit."""
        return self.study.once(self.place(load, commit))

    def is_broken(self, load: int, commit: int) -> bool:
        """Whether a load cannot run on a commit, for a reason that is not the site's."""
        found = self.over(self.first_of(load, commit))
        return found is not None and usable(found) is None and not self.is_excused(found)

    def runs(self, load: int, commit: int) -> bool:
        """Whether the first run of a load on a commit has a score."""
        return self.value(self.first_of(load, commit)) is not None

    def before(self, load: int, commit: int) -> int | None:
        """Return the nearest commit before on which a load ran; None without one."""
        return next((at for at in range(commit - 1, -1, -1) if self.runs(load, at)), None)

    @cached_property
    def newly_broken(self) -> Mapping[int, tuple[str, ...]]:
        """Commit -> the models that it broke: they ran on the commit before."""
        return {
            commit: tuple(
                dict.fromkeys(
                    self.models[load]
                    for load in range(len(self.models))
                    if self.is_broken(load, commit) and self.runs(load, commit - 1)
                )
            )
            for commit in range(1, self.study.commits)
        }

    def is_given_up(self, commit: int) -> bool:
        """Whether the rest of a commit is not submitted."""
        return len(self.newly_broken.get(commit, ())) >= BROKEN_MODELS

    @cached_property
    def screen(self) -> tuple[Trial, ...]:
        """The first runs that are wanted: every other load has its commits in reverse order."""
        wanted = []
        for load in range(len(self.models)):
            order = range(self.study.commits)
            # with one commit's runs before the other's in all loads, a drift is a regression of all
            for commit in reversed(order) if load % 2 else order:
                trial = self.first_of(load, commit)
                if self.over(trial) is not None or not self.is_given_up(commit):
                    wanted.append(trial)
        return tuple(wanted)

    @cached_property
    def differences(self) -> Mapping[tuple[int, int], float]:
        """(load, commit) -> its first run against that of the commit before, log ratio."""
        found = {}
        for load in range(len(self.models)):
            for commit in range(1, self.study.commits):
                before = self.before(load, commit)
                if before is None:
                    continue
                own = self.value(self.first_of(load, commit))
                other = self.value(self.first_of(load, before))
                if own is not None and other is not None:
                    found[load, commit] = own - other
        return found

    @cached_property
    def sigma(self) -> float | None:
        """Standard deviation of a difference, changed loads hardly counted; None with too few."""
        values = list(self.differences.values())
        if len(values) < _MIN_DIFFERENCES:
            return None
        return spread_of(values)

    @cached_property
    def unlike(self) -> tuple[tuple[int, int], ...]:
        """All that should be run again, the largest loss first; gains come last."""
        sigma = self.sigma or 0.0
        low = -max(SUSPECT_SIGMAS * sigma, SUSPECT_AT)
        high = max(PROMISING_SIGMAS * sigma, PROMISING_AT)
        found = [key for key, each in self.differences.items() if each < low or each > high]
        return tuple(sorted(found, key=lambda key: (self.differences[key], key)))

    def pairs(self, key: tuple[int, int]) -> tuple[Trial, ...]:
        """Return the fresh pairs of a load on a commit and the one before."""
        load, commit = key
        before = self.before(load, commit) or 0
        return self.study.pairs(
            CONFIRM, self.place(load, before), self.place(load, commit), range(1, PAIRS + 1)
        )

    @cached_property
    def fresh(self) -> Mapping[tuple[int, int], tuple[float, ...]]:
        """(load, commit) -> the differences of its fresh pairs."""
        found = {}
        for key in self.suspects:
            trials = self.pairs(key)
            own = self.study.cells[self.place(*key)].digest
            by_block: dict[int, dict[bool, float]] = {}
            for trial in trials:
                value = self.value(trial)
                if value is not None:
                    by_block.setdefault(trial.block, {})[trial.cell_digest == own] = value
            found[key] = tuple(
                each[True] - each[False] for each in by_block.values() if len(each) > 1
            )
        return found

    @cached_property
    def pooled(self) -> tuple[float, int]:
        """Standard deviation of a fresh difference, and its degrees of freedom."""
        enough = [each for each in self.fresh.values() if len(each) >= _MIN_PAIRS]
        df = sum(len(each) - 1 for each in enough)
        if not df:
            return math.nan, 0
        squares = math.fsum((v - fmean(each)) ** 2 for each in enough for v in each)
        return max(math.sqrt(squares / df), _LEAST_SIGMA), df


def conclusion(table: CommitTable) -> Conclusion:
    study = table.study
    verdicts: list[Verdict] = []
    for load in range(len(table.models)):
        shown: dict[int, Verdict] = {}
        for commit in range(study.commits):
            before = table.before(load, commit) if commit else None
            found = _verdict(table, load, commit)
            shown[commit] = found if before is None else beside(found, shown[before])
        verdicts += shown.values()
    losses = table.other_losses(
        (table.place(load, before), table.place(load, commit))
        for load in range(len(table.models))
        for commit in range(1, study.commits)
        if (before := table.before(load, commit)) is not None
    )
    one = table.pooled[0] if table.pooled[1] else table.sigma
    record = CommitsRecord(
        sigma=None if one is None else one / math.sqrt(2),
        found=str(Found.TABLE),
        peak_tflops=study.asked.peak_tflops,
        commits=study.labels,
        losses=losses,
        told=in_a_sentence(verdicts),
        left_out=_left_out(table),
    )
    return Conclusion(
        verdicts=tuple(verdicts),
        record=record,
        alpha=ALPHA if table.suspects else 0.0,
        complete=table.is_over,
        notes=tuple(_notes(table)),
    )


def _left_out(table: CommitTable) -> tuple[Message, ...]:
    found = []
    for commit in range(1, table.study.commits):
        if table.is_given_up(commit):
            models = table.newly_broken[commit]
            left = sum(
                table.over(table.first_of(load, commit)) is None
                for load in range(len(table.models))
            )
            name = table.study.labels[commit].partition(" ")[0]
            found.append(
                say(
                    "{commit} breaks {models}, which ran on the commit before: {runs:+further "
                    "run} of it will not be submitted",
                    commit=name,
                    models=models,
                    runs=left,
                )
            )
    return tuple(found)


def _verdict(table: CommitTable, load: int, commit: int) -> Verdict:
    study, at = table.study, table.place(load, commit)
    own = table.by_place.get(at, ())
    base = begun(study.ids[at], own)
    first = table.over(table.first_of(load, commit))
    if first is None:
        if table.is_given_up(commit):
            return undecided(base, say("not submitted: the commit breaks other models"))
        return base
    if usable(first) is None:
        return _lost(table, base, first, (load, commit))
    return _of_speed(table, so_far(study.ids[at], own), (load, commit))


def _lost(table: CommitTable, base: Verdict, first: TrialResult, key: tuple[int, int]) -> Verdict:
    """Return what follows from a first run that is over and has no score."""
    (load, commit), why = key, first.reason or NO_SCORE
    if table.is_excused(first):
        return undecided(base, say(RUN_AGAIN, why=why))
    is_old = table.is_broken(load, commit - 1) if commit else table.study.commits > 1
    if is_old:
        return decided(base, VerdictKind.INVALID, why, say("nor did it run on the commit before"))
    return dropped(base, why)


def _of_speed(table: CommitTable, base: Verdict, key: tuple[int, int]) -> Verdict:
    """Return the verdict on a load whose first run has a score."""
    study, commit = table.study, key[1]
    if key not in table.differences:
        why = say("it runs" if commit == 0 else "it runs, and did on no commit before")
        return not_accused(base, why)
    first = table.differences[key]
    base = replace(changed(base, first), against=say("the commit before"))
    if not table.is_screened:
        return screened(base, say(ITS_FIRST_RUN))
    if key in table.suspects:
        return _suspect(table, base, key)
    if key in table.unlike:
        return undecided(
            base,
            say(
                "{change:percent} in its first run; the budget of {budget} jobs leaves none to "
                "run it again beside the commit before",
                change=base.delta,
                budget=study.budget,
            ),
        )
    if table.sigma is not None:
        reach = t_quantile(0.975, max(0.37 * (len(table.differences) - 1), 1.0)) * table.sigma
        base = changed(base, first, (first - reach, first + reach))
        base = replace(base, method=say("first runs, noise from the spread of all differences"))
    return not_accused(base, say("no loss in its first run that calls for another"))


def _suspect(table: CommitTable, base: Verdict, key: tuple[int, int]) -> Verdict:
    if not table.is_over:
        return screened(base, say(ITS_FIRST_RUN_AGAIN))
    values, (sigma, df) = table.fresh[key], table.pooled
    if len(values) < _MIN_PAIRS or not df:
        return undecided(base, say("{pairs:+fresh pair} have scores", pairs=len(values)))
    middle, error = fmean(values), sigma / math.sqrt(len(values))
    critical = t_quantile(1 - ALPHA / len(table.suspects), df)
    reach = t_quantile(0.975, df) * error
    base = replace(
        changed(base, middle, (middle - reach, middle + reach)),
        n=len(values),
        method=say(
            "{pairs} fresh pairs with the commit before, Bonferroni over {family}",
            pairs=len(values),
            family=len(table.suspects),
        ),
    )
    upper, lower = middle + critical * error, middle - critical * error
    if upper < 0 and middle < SLOWER_AT:
        return decided(
            base, VerdictKind.SLOWER, say("a loss of more than {loss:size}", loss=-relative(upper))
        )
    if lower > 0 and middle > FASTER_AT:
        return decided(
            base, VerdictKind.FASTER, say("a gain of more than {gain:size}", gain=relative(lower))
        )
    if not SLOWER_AT <= middle <= FASTER_AT:
        return undecided(base, say("a change of 2 % is neither shown nor excluded"))
    return not_accused(base, say("its first run differed, its fresh pairs do not"))


def _notes(table: CommitTable) -> Sequence[Message]:
    notes = []
    if table.is_screened and table.sigma is not None:
        notes.append(
            say(
                "first runs of adjacent commits differ by {sigma:.2%} (one standard deviation, "
                "changed loads hardly counted)",
                sigma=table.sigma,
            )
        )
    if table.is_screened and len(table.unlike) > len(table.suspects):
        suspects = {"allowed": len(table.suspects), "suspects": len(table.unlike)}
        every = len(table.screen) + 2 * PAIRS * len(table.unlike)
        budget = table.study.budget
        notes.append(
            say(
                "the budget of {budget} jobs allows {allowed} of {suspects:+suspect} to be run "
                "again; {every} jobs allow all",
                budget=budget,
                every=every,
                **suspects,
            )
        )
    return notes
