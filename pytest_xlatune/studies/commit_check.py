"""Find the commit that made training slower, and the models that a commit breaks or slows.

An arm is a commit, or a load (a model on some nodes) at a commit. A study is a search or a table,
with these stages in order:

    search   ends      the first and the last commit run in alternating pairs
             search    the commit that halves the remaining range runs, one run after the other
             confirm   the likeliest commit and its parent run in fresh pairs
    table    once      each load runs at each commit
             confirm   a commit that looks slower and the commit before run in fresh pairs

First runs only choose suspects; fresh pairs decide. A commit that cannot run is an answer too. This
module must not know git, executors or logs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from statistics import fmean
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.hosts import waves_in
from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.record import Real
from pytest_xlatune.model.resources import Next, RetryRule
from pytest_xlatune.model.result import (
    CellsRecord,
    Conclusion,
    TrialResult,
    Verdict,
    VerdictKind,
    relative,
)
from pytest_xlatune.model.sentences import (
    ITS_FIRST_RUN,
    ITS_FIRST_RUN_AGAIN,
    RUN_AGAIN,
    THE_REFERENCE,
)
from pytest_xlatune.model.text import counted
from pytest_xlatune.model.trial import Arm, Trial
from pytest_xlatune.model.written import Written
from pytest_xlatune.stats.change_point import LEAST_CHANGE, Posterior, posterior
from pytest_xlatune.stats.paired_runs import paired, spread_of
from pytest_xlatune.stats.quantiles import t_quantile
from pytest_xlatune.stats.validity import different_loss
from pytest_xlatune.studies import Aim, Asked, History, Policy, Traits, name_of
from pytest_xlatune.studies.cell_arms import (
    NODE_FAILURES,
    CellArms,
    CellProgress,
    DeclaredCells,
    decided,
    dropped,
    is_excused,
    not_accused,
    summary_sentence,
    undecided,
    within_spread,
)
from pytest_xlatune.studies.trials import first_loss, median_loss, usable
from pytest_xlatune.studies.verdicts import (
    NO_SCORE,
    as_screened,
    relative_to,
    values_of,
    verdict_with_figures,
    with_change,
)

KIND = "commits"
ONCE, ENDS, STEP, CONFIRM = "once", "ends", "search", "confirm"  # names of the stages
PAIRS = 4  # pairs of the ends, and fresh pairs of a suspect
# the possible answers of a search; a table has none
FIRST, RANGE, NO_CHANGE, CANNOT_TELL = "FIRST", "RANGE", "NO CHANGE", "CANNOT TELL"

# --- constants of a search ---
# The ends are compared after four pairs and, if that does not decide, after eight. This is the
# one-sided error rate of each comparison.
ENDS_ALPHA = 0.005
LEANS = 0.33  # four more pairs of the ends run if a loss exceeds so many errors, but is not shown
SURE = 0.95  # halving ends when one commit has this posterior
JOBS_PER_DOUBLING = 6  # halving may take so many jobs each time the number of commits doubles
_EXCLUDED, _CONFIRMED = 0.95, 0.975  # one-sided 95 %, and two-sided 95 %
_LIKELY = 0.01  # a commit with a larger posterior is still a suspect
_MIN_RUNS = 2  # fewest scored runs on each side of a comparison
# --- constants of a table ---
ALPHA = 0.05  # error rate of the fresh pairs, over all suspects
SLOWER_AT = math.log1p(-0.02)  # the smallest loss that matters, as a log ratio
FASTER_AT = -SLOWER_AT
# A commit runs again if its loss exceeds both limits: standard deviations, and a log ratio. Single
# runs accuse no commit: with a limit of -2 %, a commit would be accused in 28 % of simulated tables
# of ten healthy loads, if 3 % of the jobs are bad.
SUSPECT_SIGMAS, SUSPECT_AT = 1.5, 0.012
PROMISING_SIGMAS, PROMISING_AT = 2.5, 0.020  # the limits of a gain, which is less urgent
# If a commit breaks so many models that ran at the commit before, its other loads are not run.
BROKEN_MODELS = 2
_MIN_DIFFERENCES = 4  # with fewer differences of first runs, their spread is unknown
_MIN_PAIRS = 2  # fewest fresh pairs with a difference

_LEAST_SIGMA = 1e-5  # the least noise of a run that is assumed, in case all runs agree by chance
_SHORT = 12  # characters of a shortened hash
Scores = tuple[float, ...]  # negated log scores of the runs of a commit
# Failures by names or options that a commit does not know: the commit is broken, and the study
# continues with the others.
_CANNOT_START = (
    *(FailureClass.IMAGE_MISSING, FailureClass.CONTAINER_FAIL),
    *(FailureClass.UNKNOWN_FLAG, FailureClass.CONFIG_ERROR),
)


class CommitsRecord(CellsRecord, frozen=True, kw_only=True):
    """What a study of commits found.

    Attributes:
        found: the answer of a search; "" for a table, and before the search is over.
        first, last: for the answer FIRST, both are the commit that changed the speed; for RANGE,
            the last commit before the change and the last that may contain it; else "".
        delta: the relative change; None if unknown.
        excluded: the smallest loss that is excluded, for the answer NO CHANGE; else None.
        commits: all commits by short hash and subject, in order.
        skipped: ids of the commits that could not be measured; () if there are none.
    """

    kind: ClassVar[str] = KIND
    found: str = ""
    first: str = ""
    last: str = ""
    delta: Real | None = None
    excluded: Real | None = None
    commits: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()

    def shown_name(self, arm: str) -> str:
        """Return the arm's id with the subject of its commit."""
        short = arm.rpartition("-")[2]
        subjects = (label.partition(" ")[2] for label in self.commits if label.startswith(short))
        return f"{arm} {next(subjects, '')}".strip()


class Load(Written, frozen=True, kw_only=True):
    """A model on some of the sweep's nodes, which runs at each commit.

    Attributes:
        model: the model tag.
        nodes: how many nodes; 0 means all.
        parallelism: its axes, e.g. `FSDP=16`; "" takes the sweep's.
        overrides: `key=value` for the launcher.
        per_device_batch_size: None takes the sweep's.
    """

    model: str
    nodes: int = 0
    parallelism: str = ""
    overrides: dict[str, str] = msgspec.field(default_factory=dict)
    per_device_batch_size: Real | None = None

    @property
    def name(self) -> str:
        """A slug for the load."""
        count = f"-{self.nodes}n" if self.nodes else ""
        return re.sub(r"[^a-z0-9._+-]+", "-", f"{self.model}{count}".lower())

    def cell(self, sweep_cell: Cell) -> Cell:
        """Return the cell of the load, on nodes that do not depend on the other loads.

        A load on `count` nodes gets those with the indices `count` to `2 count - 1` of the node
        list, or the last ones. So loads on 1, 2 and 4 of 8 nodes do not overlap.

        Raises:
            ConfigError: the sweep has too few nodes.
        """
        names, count = sweep_cell.nodelist, self.nodes or len(sweep_cell.nodelist)
        if count > len(names) and names:
            raise ConfigError(
                f"commits: {self.name} needs {count} nodes, the node list names {len(names)}"
            )
        begin = count if 2 * count <= len(names) else len(names) - count
        return replace(
            sweep_cell,
            model_tag=self.model,
            parallelism=Parallelism.parse(self.parallelism)
            if self.parallelism
            else sweep_cell.parallelism,
            overrides={**sweep_cell.overrides, **self.overrides},
            per_device_batch_size=self.per_device_batch_size or sweep_cell.per_device_batch_size,
            nodelist=names[begin : begin + count],
        )


class Commits(DeclaredCells, frozen=True, kw_only=True):
    """What a sweep file declares: `Sweep(study=Commits())`, with a `CheckoutLauncher`.

    Without loads, a range `main..HEAD` is searched for the commit that changed the speed. With
    loads, each load runs at each named commit (`v1,v2`) or at both ends of the range.

    Attributes:
        commits: a range or names; `--xlatune-commits` overrides it.
        loads: models and node counts of the table.
    """

    kind: ClassVar[str] = KIND
    commits: str = ""
    loads: tuple[Load, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [load.name for load in self.loads]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ConfigError(f"commits: two loads are called {twice[0]!r}; leave one out")

    def is_search(self, commits: str) -> bool:
        """Return whether these commits are a range to search, where every commit is a cell."""
        return ".." in commits and not self.loads

    def study(self, asked: Asked) -> CommitStudy:
        """Return the study of the sweep's commits, each of which is a cell."""
        # loads on the whole cluster come last, because they wait for all others
        loads = tuple(sorted(self.loads, key=lambda load: load.nodes or len(asked.cell.nodelist)))
        cells = tuple(asked.others.values())
        if loads:
            cells = tuple(load.cell(cell) for load in loads for cell in asked.others.values())
        return CommitStudy(
            cells=cells,
            labels=tuple(asked.others),
            asked=replace(self, loads=loads),
            is_search=self.is_search(asked.commits),
            budget=asked.budget,
            loss_tolerance=asked.loss_tolerance,
        )


class CommitStudy(CellArms, frozen=True, kw_only=True, dict=True):
    """One study of commits: a search, or a table.

    Attributes:
        cells: in a search the commits in order; in a table all commits of each load.
        labels: the commits in order: short hash, then subject.
        is_search: whether the commit that changed the speed is searched, between the first and the
            last commit.
    """

    traits: ClassVar[Traits] = Traits(aim=Aim.ACCUSES)
    cells: tuple[Cell, ...]
    labels: tuple[str, ...]
    asked: Commits = Commits()
    is_search: bool = False
    loss_tolerance: Real = 0.02

    def __post_init__(self) -> None:
        if not self.labels or len(self.cells) % len(self.labels):
            raise ConfigError(
                "commits: no commit is named; name them (--xlatune-commits main..HEAD)"
            )
        least = 4 * PAIRS + 1 if self.is_search else len(self.cells)
        kind = "a search" if self.is_search else counted(len(self.cells), "first run")
        what = f"commits: {kind} takes {least} jobs or more"
        self.refuse_budget(what, least=least, most=self.most_jobs)

    @cached_property
    def name(self) -> str:
        """The kind of study, then a digest of the range if it is a search."""
        if self.is_search:  # each range has its own search
            return name_of(KIND, self.cells[0].digest, self.cells[-1].digest)
        return KIND

    @property
    def policy(self) -> Policy:
        """What the study demands: it is an answer that a commit cannot start."""
        broken = RetryRule(retries=0, then=Next.DROP)
        return Policy(rules=dict.fromkeys(_CANNOT_START, broken))

    @property
    def commits(self) -> int:
        """The number of commits."""
        return len(self.labels)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Digest of a cell -> its index in `cells`."""
        return {cell.digest: at for at, cell in enumerate(self.cells)}

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The arm id of each cell: a hash; in a table the load's name comes first."""
        hashes = [cell.code[:_SHORT] for cell in self.cells[: self.commits]]
        if not self.asked.loads:
            return tuple(hashes)
        return tuple(f"{load.name}-{commit}" for load in self.asked.loads for commit in hashes)

    @property
    def most_jobs(self) -> int:
        """How many jobs the study takes at most."""
        if self.is_search:
            return 6 * PAIRS + JOBS_PER_DOUBLING * (self.commits - 1).bit_length()
        loads = len(self.cells) // self.commits
        return len(self.cells) + 2 * PAIRS * (len(self.cells) - loads)

    def compared(self, history: History) -> tuple[Arm, ...]:
        """Return the loads at commits; for a search the ends, then what was measured between."""
        if not self.is_search:
            return self.all_arms
        last = len(self.cells) - 1
        between = {self.places.get(result.trial.cell_digest, 0) for result in history} - {0, last}
        return tuple(self.all_arms[at] for at in (0, last, *sorted(between)))

    @property
    def outline(self) -> tuple[Message, ...]:
        """The lines of a plan about the study."""
        texts: tuple[str, ...] = (
            "{runs:+job} in {waves:+wave}: {loads:+load} on {commits:+commit}",
            "then {pairs} fresh pairs of each that looks slower: at most {most} jobs in all",
        )
        if self.is_search:
            texts = (
                "{jobs} jobs: {pairs} alternating pairs of the first and the last of {commits}",
                "then the commit that halves the rest, one job after the other, unless no change",
                "then {pairs} fresh pairs of the likeliest and its parent: at most {most} in all",
            )
        counts = {
            "pairs": PAIRS,
            "jobs": 2 * PAIRS,
            "commits": self.commits,
            "runs": len(self.cells),
            "waves": waves_in(cell.nodelist for cell in self.cells),
            "loads": len(self.cells) // self.commits,
            "most": min(self.most_jobs, self.budget),
        }
        return tuple(say(text, **counts) for text in texts)

    @property
    def progress_class(self) -> type[_CommitProgress]:  # type: ignore[override]
        """The class that goes through the stages of a search or of a table."""
        return _Halving if self.is_search else _CommitTable

    def pairs(self, stage: str, one: int, other: int, numbers: Iterable[int]) -> tuple[Trial, ...]:
        """Return pairs of two cells given by index, in alternating order."""
        trials = []
        for number in numbers:
            order = (one, other) if number % 2 else (other, one)
            trials += [
                self.trial_of(self.all_arms[at], stage, block=number, position=other)
                for at in order
            ]
        return tuple(trials)


class _CommitProgress(CellProgress[CommitStudy]):
    """What a search and a table share. A place is the index of a cell: a load at a commit.

    Attributes:
        by_place: place -> its results.
    """

    def __init__(self, study: CommitStudy, history: History) -> None:
        super().__init__(study, history)
        self.by_place: dict[int, list[TrialResult]] = {at: [] for at in range(len(study.cells))}
        for result in self.results.values():
            self.by_place[self.place_of(result.trial)].append(result)

    def place_of(self, trial: Trial) -> int:
        return self.study.places[trial.cell_digest]

    def values_at(self, trials: Iterable[Trial], at: int) -> list[float | None]:
        """Return the log scores of the trials at a place, in their order; None for a lost one."""
        return [self.value(trial) for trial in trials if self.place_of(trial) == at]

    def objections(self, pairs: Iterable[tuple[int, int]]) -> Iterator[Message]:
        """Yield an objection for each pair of places whose losses differ."""
        tolerance, ids = self.study.loss_tolerance, self.study.ids
        text = "{commit} computes something else than {before}: loss {loss:.6g}, not {usual:.6g}"
        for before, after in pairs:
            loss_before = median_loss(self.by_place[before])
            loss_after = median_loss(self.by_place[after])
            if loss_before is None or loss_after is None:
                continue
            first = first_loss(self.by_place[before])
            if different_loss(loss_after, loss_before, tolerance=tolerance, first=first):
                arms = {"commit": ids[after], "before": ids[before]}
                yield say(text, loss=loss_after, usual=loss_before, **arms)

    def verdict_without_score(self, base: Verdict, result: TrialResult, *, is_new: bool) -> Verdict:
        """Return the verdict on a place whose run has no score.

        `is_new` is true if the place before it ran, so that the commit may be at fault.
        """
        why = result.reason or NO_SCORE
        if is_excused(result, NODE_FAILURES):
            return undecided(base, say(RUN_AGAIN, why=why))
        return dropped(base, why) if is_new else decided(base, VerdictKind.INVALID, why)


def _spread_in(groups: Sequence[Sequence[float]]) -> tuple[float, int]:
    """Return the standard deviation within groups and its degrees of freedom; (NaN, 0) if none."""
    squares = math.fsum((value - fmean(runs)) ** 2 for runs in groups for value in runs)
    df = sum(map(len, groups)) - len(groups)
    return (max(math.sqrt(squares / df), _LEAST_SIGMA), df) if df else (math.nan, 0)


@dataclass(frozen=True, kw_only=True)
class _Sides:
    """The negated log scores of two commits whose runs were paired, so that a loss is a rise.

    Attributes:
        before: the scores of the earlier commit.
        after: the scores of the later commit.
        noise: scores of other commits, which only contribute to the noise; () if there are none.
    """

    before: Scores
    after: Scores
    noise: tuple[Scores, ...] = ()

    @property
    def is_enough(self) -> bool:
        """Whether both commits have enough scores to be compared."""
        return min(len(self.before), len(self.after)) >= _MIN_RUNS

    @property
    def estimate(self) -> float:
        """The rise from the earlier to the later commit; a loss of speed is above 0."""
        return fmean(self.after) - fmean(self.before)

    @property
    def spread(self) -> tuple[float, int]:
        """The standard deviation of a run, and its degrees of freedom."""
        return _spread_in([self.before, self.after, *self.noise])

    @property
    def error(self) -> float:
        return self.spread[0] * math.sqrt(1 / len(self.before) + 1 / len(self.after))

    def margin(self, level: float) -> float:
        """Return by how much the rise may be wrong, one-sided at this level of confidence."""
        return t_quantile(level, self.spread[1]) * self.error

    @property
    def change(self) -> tuple[float, tuple[float, float]]:
        """The change of the score as a log ratio, and its 95 % interval."""
        change, margin = -self.estimate, self.margin(_CONFIRMED)
        return change, (change - margin, change + margin)

    @property
    def is_shown(self) -> bool:
        """Whether a loss is shown: one-sided 99.5 %, and 1 % or more."""
        return self.estimate >= LEAST_CHANGE and self.estimate - self.margin(1 - ENDS_ALPHA) > 0

    @property
    def ceiling(self) -> float:
        """The smallest rise that is excluded, one-sided 95 %."""
        return self.estimate + self.margin(_EXCLUDED)

    @property
    def is_open(self) -> bool:
        """Whether more pairs may show a loss: it is likely, and 1 % is not excluded."""
        is_likely = self.estimate > LEANS * self.error
        return not self.is_shown and is_likely and self.ceiling >= LEAST_CHANGE


class _Halving(_CommitProgress):
    """The progress of a search by halving, and where it places the change.

    Attributes:
        answer: the kind of answer, e.g. `FIRST`; "" before the search is over.
        end_trials: the trials of the pairs of ends.
        halving: the runs that halve the range.
        skipped: the commits that could not be measured.
        belief: where the change lies, from the ends and the runs between; None before that.
        suspect: the likeliest commit, once it runs in fresh pairs; None before that.
        parent: the nearest commit before the suspect that can run.
        fresh: the fresh pairs of the suspect and its parent.
        confirmed: the scores of the fresh pairs; None while they are too few.
    """

    answer = ""
    end_trials: tuple[Trial, ...] = ()
    halving: tuple[TrialResult, ...] = ()
    skipped: frozenset[int] = frozenset()
    belief: Posterior | None = None
    suspect: int | None = None
    parent = 0
    fresh: tuple[Trial, ...] = ()
    confirmed: _Sides | None = None

    @property
    def is_confirmed(self) -> bool:
        """Whether the fresh pairs show that the suspect is slower, by 1 % or more."""
        if self.confirmed is None:
            return False
        _, (_, upper) = self.confirmed.change
        return upper < 0 and self.confirmed.estimate >= LEAST_CHANGE

    @property
    def last(self) -> int:
        return self.study.commits - 1

    def run_stages(self) -> None:
        study, last = self.study, self.last
        # The ends are compared first. Halving alone names a commit even if nothing changed, and for
        # a loss of 3 % it names a wrong one in 9 to 53 % of simulated searches, by noise.
        self.end_trials = study.pairs(ENDS, 0, last, range(1, PAIRS + 1))
        if not any(map(self._is_lost, (0, last))):
            self.stage_results(self.end_trials)
            if self.ends.is_enough and self.ends.is_open and study.budget >= 4 * PAIRS:
                more = study.pairs(ENDS, 0, last, range(PAIRS + 1, 2 * PAIRS + 1))
                self.end_trials += more
                self.stage_results(more)
        if not (self.ends.is_enough and self.ends.is_shown):
            self.answer = NO_CHANGE if self.ends.is_enough else CANNOT_TELL
            return
        remaining = study.budget - len(self.end_trials) - 2 * PAIRS
        most_runs = max(min(math.floor(JOBS_PER_DOUBLING * math.log2(last + 1)), remaining), 0)
        self.belief = self._belief(())
        while self.belief.largest_mass < SURE and len(self.halving) < most_runs:
            arm = study.all_arms[self.belief.halving_position()]
            suspects = sum(mass > _LIKELY for mass in self.belief.mass)
            trial = study.trial_of(arm, STEP, block=len(self.halving) + 1)
            later = math.ceil(math.log2(max(suspects, 2))) + 2 * PAIRS
            self.halving = (*self.halving, *self.stage_results([trial], later=later))
            self.skipped = frozenset(
                self.place_of(result.trial) for result in self.halving if not usable(result)
            )
            self.belief = self._belief(self.halving)
        belief = self.belief
        spent = len(self.end_trials) + len(self.halving)
        if belief.largest_mass >= SURE and spent + 2 * PAIRS <= study.budget:
            self.suspect, self.parent = belief.likeliest, self._measured_before(belief.likeliest)
            self.fresh = study.pairs(CONFIRM, self.parent, self.suspect, range(1, PAIRS + 1))
            self.stage_results(self.fresh)
            sides = _Sides(
                before=self._negated_scores(self.fresh, self.parent),
                after=self._negated_scores(self.fresh, self.suspect),
                noise=(self.ends.before, self.ends.after),
            )
            self.confirmed = sides if sides.is_enough else None
        is_direct_parent = self.suspect is not None and self.suspect - self.parent == 1
        self.answer = FIRST if self.is_confirmed and is_direct_parent else RANGE

    def _negated_scores(self, trials: Sequence[Trial], at: int) -> Scores:
        return tuple(-value for value in self.values_at(trials, at) if value is not None)

    @property
    def ends(self) -> _Sides:
        return _Sides(
            before=self._negated_scores(self.end_trials, 0),
            after=self._negated_scores(self.end_trials, self.last),
        )

    def _is_lost(self, at: int) -> bool:
        """Return whether two runs of an end are over without a score; a third adds nothing."""
        runs = [self.final_result(trial) for trial in self.end_trials if self.place_of(trial) == at]
        over = [result for result in runs if result is not None]
        return len(over) >= _MIN_RUNS and all(usable(result) is None for result in over)

    @property
    def sigma(self) -> float | None:
        """Standard deviation of a run, from the ends; None if there are too few."""
        return self.ends.spread[0] if self.ends.is_enough else None

    def _measured_before(self, at: int) -> int:
        return max((place for place in range(at) if place not in self.skipped), default=0)

    def _belief(self, runs: Sequence[TrialResult]) -> Posterior:
        """Return where the change lies, from the ends and these runs."""
        ends, sigma = self.ends, self.sigma or math.nan
        scores = [(0, value) for value in ends.before]
        scores += [(self.last, value) for value in ends.after]
        for result in runs:
            if score := usable(result):
                scores.append((self.place_of(result.trial), -score.value))
        return posterior(
            scores,
            positions=[at for at in range(1, self.last + 1) if at not in self.skipped],
            sigma=sigma,
            expected=ends.estimate,
            level=fmean(ends.before),
            level_error=sigma / math.sqrt(len(ends.before)),
        )

    @property
    def unexplained(self) -> float:
        """The loss between the ends that the suspect does not explain; 0 if that may be noise."""
        if self.confirmed is None:
            return 0.0
        _, (lower, _) = self.confirmed.change
        unexplained = self.ends.estimate + lower
        return unexplained if unexplained > 2 * self.ends.error else 0.0

    @property
    def range(self) -> tuple[int, int]:
        """The places of the last commit before the change, and of the last that may contain it."""
        if self.is_confirmed and self.suspect is not None:
            return self.parent, self.suspect
        # Several commits changed the speed. The posterior assumes one, so it would accuse a single
        # commit of the losses of all.
        if self.unexplained:
            return 0, self.last
        low, high = self._belief((*self.halving, *self.results_of(self.fresh))).interval(SURE)
        return self._measured_before(low), high

    def conclusion(self) -> Conclusion:
        ids, ends, answer = self.study.ids, self.ends, self.answer
        reference = verdict_with_figures(ids[0], self.by_place[0])
        if reference.n:
            reference = replace(with_change(reference, 0.0), method=say(THE_REFERENCE))
            reference = replace(reference, kind=VerdictKind.EQUIVALENT)
        elif lost := [result for result in self.by_place[0] if result.status.is_final]:
            reference = decided(reference, VerdictKind.INVALID, lost[0].reason or NO_SCORE)
        verdicts = {0: reference}
        measured = [at for at, runs in self.by_place.items() if runs]
        for at in sorted({*measured, self.last} - {0}):
            against = self.parent if answer == FIRST and at == self.suspect else 0
            verdicts[at] = relative_to(self._verdict(at, reference), verdicts[against])
        is_slower = answer in (FIRST, RANGE)
        first = last = ""
        if is_slower:
            before, after = self.range
            first, last = ids[before], ids[after]
        if answer == FIRST:
            first = last
        sides = self.confirmed if answer == FIRST and self.confirmed else ends
        record = CommitsRecord(
            sigma=self.sigma,
            commits=self.study.labels,
            found=answer,
            first=first,
            last=last,
            delta=relative(-sides.estimate) if sides.is_enough else None,
            excluded=-relative(-max(ends.ceiling, 0.0)) if answer == NO_CHANGE else None,
            skipped=tuple(ids[at] for at in sorted(self.skipped)),
        )
        sentence = self._answer_sentence(record)
        objections = tuple(self.objections((0, at) for at in measured if at))
        accusation = (sentence,) if is_slower else ()
        return self.concluded(
            [verdict for at, verdict in verdicts.items() if at],
            replace(
                record,
                summary=(sentence, *objections),
                objection=(*accusation, *objections),
            ),
            alpha=ENDS_ALPHA if answer or self.belief else 0.0,
            notes=self._notes(),
            reference=reference,
        )

    def _answer_sentence(self, record: CommitsRecord) -> Message:
        texts = {
            "": "the search is not over",
            FIRST: (
                "the first slower commit is {first}, {change:percent} "
                "({low:percent} to {high:percent})"
            ),
            RANGE: "the first slower commit lies after {before}, up to {last}{skipped}",
            NO_CHANGE: (
                "no change among {commits:+commit}: a loss of {excluded:size} or more is excluded "
                "(95 %)"
            ),
            CANNOT_TELL: "cannot tell: an end has no score{why}",
        }
        skipped = say("; not measured: {commits}", commits=record.skipped)
        lost = [
            say(": {commit}: {why}", commit=self.study.ids[at], why=result.reason)
            for at in (0, self.last)
            for result in self.by_place[at]
            if result.status.is_final and usable(result) is None
        ]
        low, high = map(relative, self.confirmed.change[1]) if self.confirmed else (None, None)
        return say(
            texts[record.found],
            low=low,
            high=high,
            first=record.shown_name(record.first),
            before=record.first,
            last=record.last,
            change=record.delta,
            skipped=skipped if record.skipped else None,
            commits=self.study.commits,
            excluded=record.excluded,
            why=lost[0] if lost else None,
        )

    def _verdict(self, at: int, reference: Verdict) -> Verdict:
        ends, base = self.ends, verdict_with_figures(self.study.ids[at], self.by_place[at])
        final = [result for result in self.by_place[at] if result.status.is_final]
        values = values_of(final)
        if not final:
            return base
        if not values:
            return self.verdict_without_score(base, final[0], is_new=reference.n > 0)
        if reference.n:
            level = -fmean(ends.before) if ends.before else fmean(values)
            base = replace(
                with_change(base, fmean(values) - level), against=say("the first commit")
            )
        if at == self.suspect and self.answer == FIRST and self.confirmed is not None:
            text = "against its parent {parent} in {pairs} fresh pairs; the noise includes the ends"
            method = say(text, parent=self.study.ids[self.parent], pairs=PAIRS)
            base = with_change(decided(base, VerdictKind.SLOWER), *self.confirmed.change)
            return replace(base, against=say("its parent"), method=method)
        if at == self.last and (self.answer or self.belief) and ends.is_enough:
            text = "against the first commit in {pairs} alternating pairs"
            base = replace(with_change(base, *ends.change), method=say(text, pairs=len(ends.after)))
            return decided(base, VerdictKind.SLOWER) if ends.is_shown else not_accused(base)
        return as_screened(base, say("measured to halve the range"))

    def _notes(self) -> Iterator[Message]:
        ids, ends = self.study.ids, self.ends
        if self.answer and ends.is_enough:
            text = (
                "the ends differ by {change:percent} in {pairs} pairs; a run's noise is {sigma:.2%}"
            )
            pairs = len(ends.after)
            yield say(text, change=relative(-ends.estimate), pairs=pairs, sigma=self.sigma)
        if self.answer == RANGE and self.suspect is None:
            text = "the budget of {budget} jobs leaves no more runs"
            yield say(text, budget=self.study.budget)
        elif self.answer == RANGE and self.suspect is not None and not self.is_confirmed:
            text = (
                "commit {commit} was likeliest, and {pairs} fresh pairs with its parent do not "
                "show a loss of 1 % or more{change}"
            )
            measured_change = None
            if self.confirmed is not None:
                change = relative(-self.confirmed.estimate)
                measured_change = say(": {change:percent}", change=change)
            yield say(text, commit=ids[self.suspect], pairs=PAIRS, change=measured_change)
        if self.unexplained:
            text = (
                "the ends differ by about {rest:size} more than this commit explains: several "
                "commits changed the speed"
            )
            yield say(text, rest=self.unexplained)


class _CommitTable(_CommitProgress):
    """The progress of a table of loads and commits.

    Attributes:
        firsts: the first trial of each place.
        newly_broken: index of a commit -> the models that ran at the commit before and break here,
            if these are so many that the other loads of the commit are not run.
        screen: the first trials that are run, in order.
        before: place -> place of the same load at the nearest earlier commit that ran.
        differences: place -> log ratio of its first run to the one at `before`.
        sigma: robust spread of these differences; None if there are too few.
        unlike: places whose difference exceeds the limits, the largest loss first, gains last.
        is_screened: whether the first runs are over.
        suspects: the places of `unlike` that run again.
    """

    is_screened = False
    suspects: Sequence[int] = ()

    def __init__(self, study: CommitStudy, history: History) -> None:
        super().__init__(study, history)
        self.firsts = [study.trial_of(arm, ONCE) for arm in study.all_arms]
        values, count = [self.value(trial) for trial in self.firsts], study.commits
        models = [study.cells[at].model_tag for at in range(0, len(study.cells), count)]
        broken: dict[int, dict[str, None]] = {}
        for at in range(len(values)):
            if at % count and self._is_broken(at) and values[at - 1] is not None:
                broken.setdefault(at % count, {})[models[at // count]] = None
        self.newly_broken = {
            commit: [*names] for commit, names in broken.items() if len(names) >= BROKEN_MODELS
        }
        self.screen: list[Trial] = []
        self.before = dict[int, int]()
        self.differences = dict[int, float]()
        for first in range(0, len(values), count):
            places = range(first, first + count)
            # The order alternates: if one commit always ran first, drift would look like a
            # regression of all loads.
            is_reversed = first // count % 2 == 1
            for at in reversed(places) if is_reversed else places:
                if self.final_result(self.firsts[at]) or at % count not in self.newly_broken:
                    self.screen.append(self.firsts[at])
            ran = [(at, value) for at in places if (value := values[at]) is not None]
            for (before, value_before), (at, value) in pairwise(ran):
                self.before[at], self.differences[at] = before, value - value_before
        differences = [*self.differences.values()]
        self.sigma = spread_of(differences) if len(differences) >= _MIN_DIFFERENCES else None
        low = -max(SUSPECT_SIGMAS * (self.sigma or 0.0), SUSPECT_AT)
        high = max(PROMISING_SIGMAS * (self.sigma or 0.0), PROMISING_AT)
        unlike = [at for at, value in self.differences.items() if not low <= value <= high]
        self.unlike = sorted(unlike, key=lambda at: (self.differences[at], at))

    def run_stages(self) -> None:
        self.stage_results(self.screen)
        self.is_screened = True
        remaining = self.study.budget - len(self.screen)
        self.suspects = self.unlike[: max(remaining // (2 * PAIRS), 0)]
        self.stage_results([trial for at in self.suspects for trial in self._pairs(at)])

    def _is_broken(self, at: int) -> bool:
        """Return whether a load cannot run at a commit for a reason that is not the site's."""
        run = self.final_result(self.firsts[at])
        return run is not None and usable(run) is None and not is_excused(run, NODE_FAILURES)

    def _pairs(self, at: int) -> tuple[Trial, ...]:
        """Return the fresh pairs of a place and the same load at the commit before."""
        return self.study.pairs(CONFIRM, self.before[at], at, range(1, PAIRS + 1))

    @cached_property
    def fresh(self) -> Mapping[int, Sequence[float]]:
        """Place -> the differences of its fresh pairs."""
        differences = {}
        for at in self.suspects:
            trials = self._pairs(at)
            after, before = self.values_at(trials, at), self.values_at(trials, self.before[at])
            differences[at] = paired(after, before)
        return differences

    @cached_property
    def pooled(self) -> tuple[float, int]:
        """The standard deviation of a difference of fresh pairs, and its degrees of freedom."""
        return _spread_in([runs for runs in self.fresh.values() if len(runs) >= _MIN_PAIRS])

    def conclusion(self) -> Conclusion:
        verdicts: list[Verdict] = []
        for at in range(len(self.firsts)):
            before = verdicts[self.before[at]] if at in self.before else None
            verdicts.append(relative_to(self._verdict(at), before))
        text, commits = "{commits:+commit}: {answer}", self.study.commits
        answer = say(text, commits=commits, answer=summary_sentence(verdicts))
        spread, df = self.pooled
        difference_sigma = spread if df else self.sigma
        sigma = None if difference_sigma is None else difference_sigma / math.sqrt(2)
        objections = tuple(self.objections((before, at) for at, before in self.before.items()))
        record = CommitsRecord(
            sigma=sigma,
            commits=self.study.labels,
            summary=(answer, *self._not_run_notes(), *objections),
            objection=objections,
        )
        alpha = ALPHA if self.suspects else 0.0
        return self.concluded(verdicts, record, alpha=alpha, notes=self._notes())

    def _not_run_notes(self) -> Iterator[Message]:
        text = "{commit} breaks {models}, which ran on the commit before: {runs:+run} left out"
        for commit, models in sorted(self.newly_broken.items()):
            trials = self.firsts[commit :: self.study.commits]
            not_run = sum(self.final_result(trial) is None for trial in trials)
            name = self.study.labels[commit].partition(" ")[0]
            yield say(text, commit=name, models=models, runs=not_run)

    def _verdict(self, at: int) -> Verdict:
        commit, first = at % self.study.commits, self.final_result(self.firsts[at])
        base = verdict_with_figures(self.study.ids[at], self.by_place[at])
        if first is None:
            why = say("not submitted: the commit breaks other models")
            return undecided(base, why) if commit in self.newly_broken else base
        if usable(first) is None:
            was_broken = self._is_broken(at - 1) if commit else self.study.commits > 1
            return self.verdict_without_score(base, first, is_new=not was_broken)
        if at not in self.differences:
            why = say("it runs" if commit == 0 else "it runs, and did not on any commit before")
            return not_accused(base, why)
        change = self.differences[at]
        base = replace(with_change(base, change), against=say("the commit before"))
        if not self.is_screened:
            return as_screened(base, say(ITS_FIRST_RUN))
        if at in self.suspects:
            if not self.is_over:
                return as_screened(base, say(ITS_FIRST_RUN_AGAIN))
            return self._verdict_by_pairs(base, at)
        if at in self.unlike:
            text = "{change:percent} in its first run; the budget of {budget} jobs is spent"
            return undecided(base, say(text, change=base.delta, budget=self.study.budget))
        if self.sigma is not None:
            base = within_spread(base, change, sigma=self.sigma, n=len(self.differences))
            base = replace(base, method=say("first runs, noise from the spread of all differences"))
        return not_accused(base, say("no loss in its first run that calls for another"))

    def _verdict_by_pairs(self, base: Verdict, at: int) -> Verdict:
        differences, (sigma, df), family = self.fresh[at], self.pooled, len(self.suspects)
        n = len(differences)
        if n < _MIN_PAIRS or not df:
            return undecided(base, say("{pairs:+fresh pair} have scores", pairs=n))
        change, error = fmean(differences), sigma / math.sqrt(n)
        half_width = t_quantile(0.975, df) * error
        text = "{pairs} fresh pairs with the commit before, Bonferroni over {family}"
        base = with_change(base, change, (change - half_width, change + half_width))
        base = replace(base, n=n, method=say(text, pairs=n, family=family))
        least = abs(change) - t_quantile(1 - ALPHA / family, df) * error
        if SLOWER_AT <= change <= FASTER_AT:
            return not_accused(base, say("its first run differed, its fresh pairs do not"))
        if least <= 0:
            return undecided(base, say("a change of 2 % is neither shown nor excluded"))
        if change < 0:
            why = say("a loss of more than {loss:size}", loss=-relative(-least))
            return decided(base, VerdictKind.SLOWER, why)
        why = say("a gain of more than {gain:size}", gain=relative(least))
        return decided(base, VerdictKind.FASTER, why)

    def _notes(self) -> Iterator[Message]:
        if self.is_screened and self.sigma is not None:
            text = "first runs of adjacent commits differ by {sigma:.2%} (one sigma)"
            yield say(text, sigma=self.sigma)
        if self.is_screened and len(self.unlike) > len(self.suspects):
            yield say(
                "the budget of {budget} jobs allows fresh pairs for {allowed} of "
                "{suspects:+suspect}; {every} jobs would be enough for all",
                budget=self.study.budget,
                allowed=len(self.suspects),
                suspects=len(self.unlike),
                every=len(self.screen) + 2 * PAIRS * len(self.unlike),
            )
