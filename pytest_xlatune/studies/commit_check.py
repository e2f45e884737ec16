"""Which commit made it slower, and which models a commit breaks or slows.

An arm is a commit, or a load (a model on so many nodes) on a commit. The first run only
chooses suspects; fresh pairs carry an accusation. A commit that cannot run is an answer too.
The reference note is docs/how-to/studies.md. This module must not know git, executors or logs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.pairs import CellsRecord
from pytest_xlatune.model.record import Real
from pytest_xlatune.model.resources import Next, RetryRule
from pytest_xlatune.model.result import Conclusion, TrialResult, Verdict, VerdictKind, relative
from pytest_xlatune.model.sentences import (
    ITS_FIRST_RUN,
    ITS_FIRST_RUN_AGAIN,
    RUN_AGAIN,
    THE_REFERENCE,
)
from pytest_xlatune.model.text import counted
from pytest_xlatune.model.trial import Arm, Trial
from pytest_xlatune.model.written import Written
from pytest_xlatune.stats.beside import spread_of
from pytest_xlatune.stats.change_point import LEAST, Posterior, posterior
from pytest_xlatune.stats.design import t_quantile
from pytest_xlatune.stats.validity import different_loss
from pytest_xlatune.studies import Aim, Asked, DeclaredStudy, History, Policy, Traits, name_of
from pytest_xlatune.studies.cell_arms import (
    OF_THE_NODES,
    CellArms,
    CellWalk,
    decided,
    dropped,
    in_a_sentence,
    is_excused,
    not_accused,
    refuse_budget,
    refuse_unless_positive,
    undecided,
    waves_in,
    within_spread,
)
from pytest_xlatune.studies.trials import first_loss, median_loss, usable
from pytest_xlatune.studies.verdicts import NO_SCORE, begun, beside, changed, screened, so_far

KIND = "commits"
ONCE, ENDS, STEP, CONFIRM = "once", "ends", "search", "confirm"
PAIRS = 4
# the words of a search's answer; a table has none
FIRST, RANGE, NO_CHANGE, CANNOT_TELL = "FIRST", "RANGE", "NO CHANGE", "CANNOT TELL"

# of a search
ENDS_ALPHA = 0.005  # one-sided, each of the two looks at the ends
LEANS = 0.33  # standard errors of a loss from which four more pairs are run
SURE = 0.95  # of the posterior on one commit
JOBS_PER_DOUBLING = 6
_EXCLUDED, _CONFIRMED = 0.95, 0.975  # one-sided, and two-sided 95 %
_LIKELY = 0.01  # of the posterior on a commit that may still be it
_MIN_EACH = 2  # scored runs of a side
# of a table
ALPHA = 0.05
SLOWER_AT = math.log1p(-0.02)  # a loss that counts
FASTER_AT = -SLOWER_AT
# these only choose what runs again: by one run and -2 %, 28 % of simulated tables of ten healthy
# loads accused one, where 3 % of the jobs are bad
SUSPECT_SIGMAS, SUSPECT_AT = 1.5, 0.012
PROMISING_SIGMAS, PROMISING_AT = 2.5, 0.020  # of a gain: it accuses no commit, and may wait
BROKEN_MODELS = 2  # that ran on the commit before: the rest of the commit is not submitted
_MIN_DIFFERENCES, _MIN_PAIRS = 4, 2

_LEAST_SIGMA = 1e-5  # runs that agree to this were hardly measured apart
_SHORT = 12  # characters of a hash
# what a commit names or asks for wrongly: it is broken, and the others go on
_CANNOT_START = (
    *(FailureClass.IMAGE_MISSING, FailureClass.CONTAINER_FAIL),
    *(FailureClass.UNKNOWN_FLAG, FailureClass.CONFIG_ERROR),
)


class CommitsRecord(CellsRecord, frozen=True, kw_only=True):
    """What a study of commits found.

    Attributes:
        found: the answer of a search in a word; "" of a table, and before the search is over.
        first, last: the commit that changed it, twice; of a range the last commit before it and the
            last that may have changed it.
        delta: the change, relative; None if unknown.
        excluded: the change that is excluded where none is shown.
        commits: all, as people read them, the first one first.
        skipped: those that could not be measured.
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
        """Return an arm with the subject of its commit."""
        return _with_subject(arm, self.commits)


def _with_subject(arm: str, labels: Sequence[str]) -> str:
    short = arm.rpartition("-")[2]
    subjects = (label.partition(" ")[2] for label in labels if label.startswith(short))
    return f"{arm} {next(subjects, '')}".strip()


class Load(Written, frozen=True, kw_only=True):
    """One line of the table: a model on so many of the sweep's nodes.

    Attributes:
        model: its tag.
        nodes: how many; 0 is all of them.
        parallelism: its axes, e.g. `FSDP=16`; "" is the sweep's.
        overrides: `key=value` for the launcher.
        per_device_batch_size: None is the model's own.
    """

    model: str
    nodes: int = 0
    parallelism: str = ""
    overrides: dict[str, str] = msgspec.field(default_factory=dict)
    per_device_batch_size: Real | None = None

    @property
    def name(self) -> str:
        """Its slug."""
        count = f"-{self.nodes}n" if self.nodes else ""
        return re.sub(r"[^a-z0-9._+-]+", "-", f"{self.model}{count}".lower())

    def cell(self, of: Cell) -> Cell:
        """Return its cell on the sweep's nodes: the same nodes whatever else the table holds.

        They are the nodes `count .. 2 count - 1`: 1, 2 and 4 of 8 are disjoint, and run together.

        Raises:
            ConfigError: the sweep names fewer nodes.
        """
        names, count = of.nodelist, self.nodes or len(of.nodelist)
        if count > len(names) and names:
            raise ConfigError(
                f"commits: {self.name} needs {count} nodes, the node list names {len(names)}"
            )
        begin = count if 2 * count <= len(names) else len(names) - count
        return replace(
            of,
            model_tag=self.model,
            parallelism=Parallelism.parse(self.parallelism) if self.parallelism else of.parallelism,
            overrides={**of.overrides, **self.overrides},
            per_device_batch_size=self.per_device_batch_size or of.per_device_batch_size,
            nodelist=names[begin : begin + count],
        )


class Commits(DeclaredStudy, frozen=True, kw_only=True):
    """What a sweep file declares: `Sweep(study=Commits())`, with a `CheckoutLauncher`.

    Without loads a range `main..HEAD` is searched for the commit that changed the speed. With
    loads, or commits by name (`v1,v2`), each load runs on each commit, the ends of a range.

    Attributes:
        commits: a range or names, where `--xlatune-commits` does not say it.
        loads: models and node counts of the table.
        peak_tflops: TFLOP/s that one device can do, for MFU; None is as logs print it.
        key: what tells this study from the last one of the same commits.
    """

    kind: ClassVar[str] = KIND
    commits: str = ""
    loads: tuple[Load, ...] = ()
    peak_tflops: Real | None = None
    key: str = ""

    def __post_init__(self) -> None:
        refuse_unless_positive("commits", peak_tflops=self.peak_tflops)
        names = [load.name for load in self.loads]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ConfigError(f"commits: two loads are called {twice[0]!r}; leave one out")

    def is_search(self, commits: str) -> bool:
        """Whether these commits are searched, and so every one between the ends is a cell."""
        return ".." in commits and not self.loads

    def study(self, asked: Asked) -> CommitStudy:
        """Return the study of the commits of the sweep, each a cell of its own."""
        # whole-cluster loads come last: they wait for every other
        loads = tuple(sorted(self.loads, key=lambda each: each.nodes or len(asked.cell.nodelist)))
        at_commits = tuple(asked.others.values())
        return CommitStudy(
            cells=tuple(load.cell(cell) for load in loads for cell in at_commits) or at_commits,
            labels=tuple(asked.others),
            asked=replace(self, loads=loads),
            is_search=self.is_search(asked.commits),
            budget=asked.budget,
            loss_tolerance=asked.loss_tolerance,
        )


class CommitStudy(CellArms["Halving | CommitTable"], frozen=True, kw_only=True, dict=True):
    """One study of commits: a search, or a table.

    Attributes:
        cells: of a search the commits in order; of a table load by load, each on all commits.
        labels: of the commits in order: short hash, then subject.
        asked: the demands.
        is_search: whether the change is looked for between the first and the last commit.
        budget: jobs that it may cost.
        loss_tolerance: relative distance of losses at which commits compute something else.
    """

    traits: ClassVar[Traits] = Traits(aim=Aim.ACCUSES)
    cells: tuple[Cell, ...]
    labels: tuple[str, ...]
    asked: Commits = Commits()
    is_search: bool = False
    budget: int = 50
    loss_tolerance: Real = 0.02

    def __post_init__(self) -> None:
        if not self.labels or len(self.cells) % len(self.labels):
            raise ConfigError(
                "commits: no commit is named; name them (--xlatune-commits main..HEAD)"
            )
        least = 4 * PAIRS + 1 if self.is_search else len(self.cells)
        kind = "a search" if self.is_search else counted(len(self.cells), "first run")
        what = f"commits: {kind} takes {least} jobs or more"
        refuse_budget(what, budget=self.budget, least=least, most=self.most_jobs)

    @cached_property
    def name(self) -> str:
        """The study's word, and which one it is where that was said."""
        if self.is_search:  # another range is another search
            return name_of(KIND, self.asked.key, self.cells[0].digest, self.cells[-1].digest)
        return super().name

    @property
    def policy(self) -> Policy:
        """Another commit may compute another loss, or be unable to start: both are findings."""
        broken = RetryRule(retries=0, then=Next.DROP)
        # the server of a submodule may be away for a moment
        again = RetryRule(retries=1, backoff_s=60, then=Next.DROP)
        rules: dict[str, RetryRule] = dict.fromkeys(_CANNOT_START, broken)
        return Policy(rules={**rules, FailureClass.CHECKOUT_FAIL: again})

    @property
    def commits(self) -> int:
        """How many."""
        return len(self.labels)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Digest of a cell -> its place among the cells."""
        return {cell.digest: at for at, cell in enumerate(self.cells)}

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The arms' ids, by place: a hash, in a table behind the name of its load."""
        hashes = [cell.code[:_SHORT] for cell in self.cells[: self.commits]]
        loads = [f"{each.name}-" for each in self.asked.loads] or [""]
        return tuple(f"{load}{each}" for load in loads for each in hashes)

    @property
    def most_jobs(self) -> int:
        """What it costs at most."""
        if self.is_search:
            return 6 * PAIRS + JOBS_PER_DOUBLING * (self.commits - 1).bit_length()
        loads = len(self.cells) // self.commits
        return len(self.cells) + 2 * PAIRS * loads * (self.commits - 1)

    def compared(self, history: History) -> tuple[Arm, ...]:
        """Return the loads on commits; of a search the ends, then what was measured between."""
        if not self.is_search:
            return self.every_arm
        last = len(self.cells) - 1
        between = {self.places.get(result.trial.cell_digest, 0) for result in history} - {0, last}
        return tuple(self.every_arm[at] for at in (0, last, *sorted(between)))

    @property
    def outline(self) -> tuple[Message, ...]:
        """What a plan says of it."""
        counts = {
            "pairs": PAIRS,
            "jobs": 2 * PAIRS,
            "commits": self.commits,
            "runs": len(self.cells),
            "loads": len(self.cells) // self.commits,
            "waves": waves_in(cell.nodelist for cell in self.cells),
            "most": min(self.most_jobs, self.budget),
        }
        search = (
            "{jobs} jobs: {pairs} alternating pairs of the first and the last of {commits:+commit}",
            "{jobs} more if these cannot tell; if they show no change, the search ends",
            "then the commit that halves the rest, one job after the other on all nodes",
            "then {pairs} fresh pairs of the likeliest and its parent: at most {most} jobs in all",
        )
        table = (
            "{runs:+job} in {waves:+wave}: {loads:+load} on {commits:+commit}",
            "those on disjoint nodes run at the same time",
            "then {pairs} fresh pairs of each that looks slower: at most {most} jobs in all",
        )
        return tuple(say(text, **counts) for text in (search if self.is_search else table))

    def begin(self, history: History) -> Halving | CommitTable:
        """Return the walk before its first pairs, or first runs."""
        return (Halving if self.is_search else CommitTable)(self, history)

    def pairs(self, stage: str, one: int, other: int, numbers: Iterable[int]) -> tuple[Trial, ...]:
        """Return pairs of two places, one first, then the other first, and so on."""
        return tuple(
            self.trial_of(self.every_arm[at], stage, block=number, position=other)
            for number in numbers
            for at in ((one, other) if number % 2 else (other, one))
        )


class CommitWalk(CellWalk[CommitStudy]):
    """What a search and a table have in common: a place is a commit, or a load on one."""

    def place_of(self, trial: Trial) -> int:
        """Return the place that a trial ran."""
        return self.study.places[trial.cell_digest]

    @cached_property
    def by_place(self) -> Mapping[int, Sequence[TrialResult]]:
        """The results of each place."""
        found: dict[int, list[TrialResult]] = {}
        for result in self.results.values():
            found.setdefault(self.place_of(result.trial), []).append(result)
        return found

    def is_excused(self, result: TrialResult) -> bool:
        """Whether a trial without a score says nothing of its commit."""
        return is_excused(result, OF_THE_NODES)

    def told(self, record: CommitsRecord, *, losses: Sequence[Message]) -> CommitsRecord:
        """Return what was found with commits that compute something else, which fail the test."""
        return replace(
            record,
            summary=(*record.summary, *losses),
            objection=(*record.objection, *losses),
            commits=self.study.labels,
        )

    def other_losses(self, pairs: Iterable[tuple[int, int]]) -> tuple[Message, ...]:
        """Return how the losses of places differ from those of the ones before."""
        found, tolerance, ids = [], self.study.loss_tolerance, self.study.ids
        text = "{commit} computes something else than {before}: loss {loss:.6g}, not {usual:.6g}"
        for before, after in pairs:
            trials = self.by_place.get(before, ())
            one, other = median_loss(trials), median_loss(self.by_place.get(after, ()))
            if one is None or other is None:
                continue
            if different_loss(other, one, tolerance=tolerance, first=first_loss(trials)):
                named = {"commit": ids[after], "before": ids[before]}
                found.append(say(text, loss=other, usual=one, **named))
        return tuple(found)


# --- a search: the ends, then halves, then the likeliest commit beside its parent ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Two commits whose runs stood in pairs: their log scores, a loss being a rise.

    Attributes:
        before, after: scores of either.
    """

    before: tuple[float, ...]
    after: tuple[float, ...]

    @property
    def is_enough(self) -> bool:
        """Whether both have runs that can be compared."""
        return min(len(self.before), len(self.after)) >= _MIN_EACH

    @property
    def estimate(self) -> float:
        """The rise."""
        return fmean(self.after) - fmean(self.before)

    @property
    def df(self) -> int:
        """Degrees of freedom within the sides."""
        return len(self.before) + len(self.after) - 2

    @property
    def squares(self) -> float:
        """Sum of squares within the sides."""
        sides = (self.before, self.after)
        return math.fsum((each - fmean(side)) ** 2 for side in sides for each in side)

    @property
    def variance_of_one(self) -> float:
        """The variance of the estimate, in units of a run's."""
        return 1 / len(self.before) + 1 / len(self.after)

    def reach(self, level: float) -> float:
        """Return how far the estimate may be off, one-sided."""
        variance = max(self.squares / self.df, _LEAST_SIGMA**2) * self.variance_of_one
        return t_quantile(level, self.df) * math.sqrt(variance)

    @property
    def is_shown(self) -> bool:
        """Whether there is a change that a person should look at: one-sided 99.5 %, and 1 %."""
        return self.estimate >= LEAST and self.estimate - self.reach(1 - ENDS_ALPHA) > 0

    @property
    def ceiling(self) -> float:
        """The least rise that is excluded, one-sided 95 %."""
        return self.estimate + self.reach(_EXCLUDED)

    @property
    def is_open(self) -> bool:
        """Whether more pairs may show a change: they lean that way, and 1 % is not excluded."""
        error = math.sqrt(max(self.squares / self.df, _LEAST_SIGMA**2) * self.variance_of_one)
        return not self.is_shown and self.estimate > LEANS * error and self.ceiling >= LEAST


class Halving(CommitWalk):
    """One search as far as it came, and what it shows of where the change lies."""

    is_compared = False  # whether the looks at the ends are over
    is_changed = False  # whether they show that the ends differ by a loss
    found = ""  # the word of the answer, once there is one
    looks: tuple[Trial, ...] = ()  # the pairs of the ends
    steps: tuple[TrialResult, ...] = ()  # the runs that halve the range, in their order
    skipped: frozenset[int] = frozenset()  # the commits that could not be measured
    belief: Posterior | None = None  # where the change lies, by the ends and the steps
    suspect: int | None = None  # the commit that is confirmed
    parent = 0  # the one before it, the nearest that can be measured
    fresh: tuple[Trial, ...] = ()  # the pairs that confirm
    # the change at the suspect against its parent, and its 95 % interval
    confirmed: tuple[float, tuple[float, float]] | None = None
    is_confirmed = False  # whether that is 1 % or more, and shown

    def walk(self) -> None:
        """Compare the ends, halve the range, hold the likeliest commit beside its parent."""
        study, last = self.study, self.last
        # whether there is a change comes first: halving alone names a commit where nothing changed,
        # and a wrong one in 9 to 53 % of simulated searches for a loss of 3 %, by the noise
        self.looks = study.pairs(ENDS, 0, last, range(1, PAIRS + 1))
        if not any(map(self._is_lost, (0, last))):
            self.run(self.looks)
            if self.ends.is_enough and self.ends.is_open and study.budget >= 4 * PAIRS:
                more = study.pairs(ENDS, 0, last, range(PAIRS + 1, 2 * PAIRS + 1))
                self.looks += more
                self.run(more)
        self.is_compared = True
        self.is_changed = self.ends.is_enough and self.ends.is_shown
        if not self.is_changed:
            self.found = NO_CHANGE if self.ends.is_enough else CANNOT_TELL
            return
        self.steps = tuple(self._ran_steps())
        self.skipped = frozenset(self.place_of(e.trial) for e in self.steps if usable(e) is None)
        belief = self.belief = self._belief(self.steps)
        if belief.most < SURE and len(self.steps) < self.most_steps:
            arm = study.every_arm[belief.splitting()]
            still = sum(each > _LIKELY for each in belief.mass)
            step = study.trial_of(arm, STEP, block=len(self.steps) + 1)
            self.run([step], later=math.ceil(math.log2(max(still, 2))) + 2 * PAIRS)
        spent = len(self.looks) + len(self.steps)
        if belief.most >= SURE and spent + 2 * PAIRS <= study.budget:
            self.suspect, self.parent = belief.likeliest, self.before(belief.likeliest)
            self.fresh = study.pairs(CONFIRM, self.parent, self.suspect, range(1, PAIRS + 1))
            self.run(self.fresh)
            self._confirm(self.sides(self.fresh, self.parent, self.suspect))
        is_one = self.suspect is not None and self.suspect - self.parent == 1
        self.found = FIRST if self.is_confirmed and is_one else RANGE

    @property
    def last(self) -> int:
        """The place of the last commit."""
        return len(self.study.cells) - 1

    def sides(self, trials: Sequence[Trial], before: int, after: int) -> Sides:
        """Return the scores of two commits in these trials."""
        found: dict[int, list[float]] = {before: [], after: []}
        for trial in trials:
            if (value := self.value(trial)) is not None:
                found[self.place_of(trial)].append(-value)
        return Sides(before=tuple(found[before]), after=tuple(found[after]))

    @property
    def ends(self) -> Sides:
        """The ends' scores so far."""
        return self.sides(self.looks, 0, self.last)

    def _is_lost(self, at: int) -> bool:
        """Whether two runs of an end are over and none has a score: more would say the same."""
        own = [self.over(trial) for trial in self.looks if self.place_of(trial) == at]
        over = [result for result in own if result is not None]
        return len(over) >= _MIN_EACH and all(usable(result) is None for result in over)

    @cached_property
    def sigma(self) -> float:
        """Standard deviation of one run within the ends; of those that are over."""
        ends = self.ends
        return max(math.sqrt(ends.squares / ends.df), _LEAST_SIGMA) if ends.df > 0 else math.nan

    @property
    def most_steps(self) -> int:
        """Runs that the search may take."""
        most = math.floor(JOBS_PER_DOUBLING * math.log2(max(self.last + 1, 2)))
        return max(min(most, self.study.budget - len(self.looks) - 2 * PAIRS), 0)

    def _ran_steps(self) -> Iterator[TrialResult]:
        """Yield the runs of the search that are over, in their order."""
        found = {
            result.trial.block: result
            for result in self.results.values()
            if result.trial.stage == STEP and result.status.is_final
        }
        for number in range(1, self.most_steps + 1):
            if number not in found:
                return
            yield found[number]

    def before(self, at: int) -> int:
        """Return the nearest commit before one that can be measured."""
        return max((each for each in range(at) if each not in self.skipped), default=0)

    def _belief(self, runs: Sequence[TrialResult]) -> Posterior:
        ends = self.ends
        scores = [*((0, v) for v in ends.before), *((self.last, v) for v in ends.after)]
        scores += [(self.place_of(e.trial), -score.value) for e in runs if (score := usable(e))]
        return posterior(
            scores,
            positions=[at for at in range(1, self.last + 1) if at not in self.skipped],
            sigma=self.sigma,
            expected=ends.estimate,
            level=fmean(ends.before),
            level_error=self.sigma / math.sqrt(len(ends.before)),
        )

    def _confirm(self, pairs: Sides) -> None:
        """Take in what the fresh pairs of the suspect and its parent show."""
        if not pairs.is_enough:
            return
        ends, df = self.ends, pairs.df + self.ends.df
        variance = max((pairs.squares + ends.squares) / df, _LEAST_SIGMA**2)
        reach = t_quantile(_CONFIRMED, df) * math.sqrt(variance * pairs.variance_of_one)
        self.confirmed = pairs.estimate, (pairs.estimate - reach, pairs.estimate + reach)
        self.is_confirmed = pairs.estimate - reach > 0 and pairs.estimate >= LEAST

    @cached_property
    def unexplained(self) -> float:
        """How much more the ends differ than the suspect's pairs with its parent say; 0 if none."""
        if self.confirmed is None:
            return 0.0
        rest = self.ends.estimate - self.confirmed[1][1]
        return rest if rest > 2 * self.sigma * math.sqrt(self.ends.variance_of_one) else 0.0

    @property
    def range(self) -> tuple[int, int]:
        """The last commit before the change and the last that may have brought it."""
        if self.is_confirmed and self.suspect is not None:
            return self.parent, self.suspect
        # with several small losses a single commit was accused of all
        if self.unexplained:  # several commits changed it, and the belief knows of one
            return 0, self.last
        runs = (*self.steps, *filter(None, map(self.over, self.fresh)))
        low, high = self._belief(runs).holding(SURE)
        return self.before(low), high

    def conclusion(self) -> Conclusion:
        """Return the answer, and a line for every commit that was measured."""
        ids, ends = self.study.ids, self.ends
        reference = self._reference(self.by_place.get(0, []))
        shown = {0: reference}
        for at in sorted({*self.by_place, self.last} - {0}):
            verdict, level = self._verdict(at, reference)
            shown[at] = beside(verdict, shown[level])
        first = last = ""
        if self.found == FIRST and self.suspect is not None:
            first = last = ids[self.suspect]
        elif self.found == RANGE:
            first, last = (ids[at] for at in self.range)
        delta = -ends.estimate if ends.is_enough else None
        if self.found == FIRST and self.confirmed is not None:
            delta = -self.confirmed[0]
        is_none = self.found == NO_CHANGE
        record = CommitsRecord(
            sigma=self.sigma if ends.df > 0 and ends.is_enough else None,
            found=self.found,
            first=first,
            last=last,
            delta=None if delta is None else relative(delta),
            excluded=-relative(-max(ends.ceiling, 0.0)) if is_none else None,
            skipped=tuple(ids[at] for at in sorted(self.skipped)),
        )
        answer = self._answer(record)
        is_slower = self.found in (FIRST, RANGE)
        record = replace(record, summary=(answer,), objection=(answer,) if is_slower else ())
        losses = self.other_losses((0, at) for at in sorted(self.by_place) if at)
        verdicts = [each for at, each in shown.items() if at]
        return self.concluded(
            verdicts,
            self.told(record, losses=losses),
            alpha=ENDS_ALPHA if self.is_compared else 0.0,
            notes=self._notes(),
            reference=reference,
        )

    def _answer(self, record: CommitsRecord) -> Message:
        """Return the answer in a sentence."""
        first = _with_subject(record.first, self.study.labels)
        change = None if record.delta is None else say(", {change:percent}", change=record.delta)
        if record.found == FIRST:
            text = "the first slower commit is {first}{change}"
            return say(text, first=first, change=change)
        if record.found == RANGE:
            skipped = say("; not measured: {commits}", commits=record.skipped)
            text = (
                "the first slower commit lies after {first}, up to {last}{change} between the ends"
                "{skipped}"
            )
            rest = {"change": change, "skipped": skipped if record.skipped else None}
            return say(text, first=record.first, last=record.last, **rest)
        if record.found == NO_CHANGE:
            text = (
                "no change among {commits:+commit}: a loss of {excluded:size} or more is excluded "
                "(95 %)"
            )
            return say(text, commits=self.study.commits, excluded=record.excluded)
        if record.found == CANNOT_TELL:
            for at, which in ((0, "first"), (self.last, "last")):
                runs = self.by_place.get(at, ())
                lost = [e for e in runs if e.status.is_final and usable(e) is None]
                if lost:
                    text = "cannot tell: the {which} commit {commit} has no score: {why}"
                    commit = self.study.ids[at]
                    return say(text, which=say(which), commit=commit, why=lost[0].reason)
            return say("cannot tell: an end has no score")
        return say("the search is not over")

    def _reference(self, own: Sequence[TrialResult]) -> Verdict:
        base = so_far(self.study.ids[0], own)
        if not base.n:
            lost = [result for result in own if result.status.is_final]
            return decided(base, VerdictKind.INVALID, lost[0].reason or NO_SCORE) if lost else base
        return replace(changed(base, 0.0), kind=VerdictKind.EQUIVALENT, method=say(THE_REFERENCE))

    def _verdict(self, at: int, reference: Verdict) -> tuple[Verdict, int]:
        """Return the verdict on a commit, and the place that its change is against."""
        own, ends = self.by_place.get(at, []), self.ends
        base = so_far(self.study.ids[at], own)
        final = [result for result in own if result.status.is_final]
        if not final:
            return base, 0
        values = [score.value for result in final if (score := usable(result))]
        if not values:
            why = final[0].reason or NO_SCORE
            if self.is_excused(final[0]):
                return undecided(base, say("not measured: {why}", why=why)), 0
            lost = dropped(base, why) if reference.n else decided(base, VerdictKind.INVALID, why)
            return lost, 0
        if reference.n:
            level = -fmean(ends.before) if ends.before else fmean(values)
            base = replace(changed(base, fmean(values) - level), against=say("the first commit"))
        if at == self.suspect and self.found == FIRST and self.confirmed is not None:
            estimate, (low, high) = self.confirmed
            base = changed(decided(base, VerdictKind.SLOWER), -estimate, (-high, -low))
            text = "beside its parent {parent} in {pairs} fresh pairs, noise pooled with the ends'"
            method = say(text, parent=self.study.ids[self.parent], pairs=PAIRS)
            return replace(base, against=say("its parent"), method=method), self.parent
        if at == self.last and self.is_compared and ends.is_enough:
            middle, reach = -ends.estimate, ends.reach(_CONFIRMED)
            text = "beside the first commit in {pairs} alternating pairs"
            base = changed(base, middle, (middle - reach, middle + reach))
            base = replace(base, method=say(text, pairs=len(ends.after)))
            return (decided(base, VerdictKind.SLOWER) if self.is_changed else not_accused(base)), 0
        return screened(base, say("measured to halve the range")), 0

    def _notes(self) -> Iterator[Message]:
        ids, ends = self.study.ids, self.ends
        if not self.is_compared or not ends.is_enough:
            return
        text = "the ends differ by {change:percent} in {pairs:+pair}; a run's noise is {sigma:.2%}"
        change = relative(-ends.estimate)
        yield say(text, change=change, pairs=len(ends.after), sigma=self.sigma)
        if self.is_changed and self.steps:
            text = "{runs:+run} halved the range, of at most {most}"
            yield say(text, runs=len(self.steps), most=self.most_steps)
        if self.found == RANGE:
            if self.suspect is None and self.belief and self.belief.most >= SURE:
                text = "the budget of {budget} jobs leaves none to confirm commit {commit}"
                yield say(text, budget=self.study.budget, commit=ids[self.belief.likeliest])
            elif self.suspect is None:
                yield say("the runs that the search may take are spent")
            elif self.is_confirmed:
                yield say(
                    "the commits between the two could not be measured: one of them made the change"
                )
            else:
                text = (
                    "commit {commit} was likeliest, and {pairs} fresh pairs with its parent do not "
                    "show a loss of 1 % or more{change}"
                )
                seen = self.confirmed
                told = say(": {change:percent}", change=relative(-seen[0])) if seen else None
                yield say(text, commit=ids[self.suspect], pairs=PAIRS, change=told)
        if self.unexplained:
            text = "about {rest:size} more than this commit explains: several commits changed it"
            yield say(text, rest=self.unexplained)


# --- a table: every load once on each commit, then what looks slower in fresh pairs ---

Key = tuple[int, int]  # a load, and a commit


class CommitTable(CommitWalk):
    """One table as far as it came, and what it shows; a place is a load on a commit."""

    is_screened = False  # whether the first runs are over
    suspects: tuple[Key, ...] = ()  # what runs again

    def walk(self) -> None:
        """Run each load on each commit, then those that differ in fresh pairs."""
        self.run(self.screen)
        self.is_screened = True
        spare = self.study.budget - len(self.screen)
        self.suspects = self.unlike[: max(spare // (2 * PAIRS), 0)]
        self.run([trial for key in self.suspects for trial in self.pairs(key)])

    @cached_property
    def models(self) -> tuple[str, ...]:
        """The model of each load."""
        return tuple(e.model for e in self.study.asked.loads) or (self.study.cells[0].model_tag,)

    @cached_property
    def keys(self) -> tuple[Key, ...]:
        """Each load on each commit that has one before it."""
        loads, commits = range(len(self.models)), range(1, self.study.commits)
        return tuple((load, commit) for load in loads for commit in commits)

    def place(self, load: int, commit: int) -> int:
        """Return the place of a load on a commit."""
        return load * self.study.commits + commit

    def first_of(self, load: int, commit: int) -> Trial:
        """Return the first run of a load on a commit."""
        return self.study.trial_of(self.study.every_arm[self.place(load, commit)], ONCE)

    def is_broken(self, load: int, commit: int) -> bool:
        """Whether a load cannot run on a commit, for a reason that is not the site's."""
        found = self.over(self.first_of(load, commit))
        return found is not None and usable(found) is None and not self.is_excused(found)

    def before(self, load: int, commit: int) -> int | None:
        """Return the nearest commit before on which a load ran; None without one."""
        scored = (at for at in range(commit) if self.value(self.first_of(load, at)) is not None)
        return max(scored, default=None)

    @cached_property
    def newly_broken(self) -> Mapping[int, tuple[str, ...]]:
        """Commit -> the models that it broke, where they are so many that it is given up."""
        found: dict[int, dict[str, None]] = {}
        for load, commit in self.keys:
            if self.is_broken(load, commit) and self.before(load, commit) == commit - 1:
                found.setdefault(commit, {})[self.models[load]] = None
        return {at: tuple(own) for at, own in found.items() if len(own) >= BROKEN_MODELS}

    @cached_property
    def screen(self) -> tuple[Trial, ...]:
        """The first runs that are wanted: every other load has its commits in reverse order."""
        wanted = []
        for load in range(len(self.models)):
            order = range(self.study.commits)
            # with one commit's runs before the other's in all loads, a drift is a regression of all
            for commit in reversed(order) if load % 2 else order:
                trial = self.first_of(load, commit)
                if self.over(trial) is not None or commit not in self.newly_broken:
                    wanted.append(trial)
        return tuple(wanted)

    @cached_property
    def differences(self) -> Mapping[Key, float]:
        """Load and commit -> its first run against that of the commit before, log ratio."""
        found = {}
        for load, commit in self.keys:
            before = self.before(load, commit)
            own = self.value(self.first_of(load, commit))
            other = None if before is None else self.value(self.first_of(load, before))
            if own is not None and other is not None:
                found[load, commit] = own - other
        return found

    @cached_property
    def sigma(self) -> float | None:
        """Standard deviation of a difference, changed loads hardly counted; None with too few."""
        values = list(self.differences.values())
        return spread_of(values) if len(values) >= _MIN_DIFFERENCES else None

    @cached_property
    def unlike(self) -> tuple[Key, ...]:
        """All that should be run again, the largest loss first; gains come last."""
        sigma = self.sigma or 0.0
        low = -max(SUSPECT_SIGMAS * sigma, SUSPECT_AT)
        high = max(PROMISING_SIGMAS * sigma, PROMISING_AT)
        found = [key for key, each in self.differences.items() if each < low or each > high]
        return tuple(sorted(found, key=lambda key: (self.differences[key], key)))

    def pairs(self, key: Key) -> tuple[Trial, ...]:
        """Return the fresh pairs of a load on a commit and the one before."""
        before = self.place(key[0], self.before(*key) or 0)
        return self.study.pairs(CONFIRM, before, self.place(*key), range(1, PAIRS + 1))

    @cached_property
    def fresh(self) -> Mapping[Key, tuple[float, ...]]:
        """Load and commit -> the differences of its fresh pairs."""
        found = {}
        for key in self.suspects:
            sides: dict[bool, dict[int, float]] = {True: {}, False: {}}
            for trial in self.pairs(key):
                if (value := self.value(trial)) is not None:
                    sides[self.place_of(trial) == self.place(*key)][trial.block] = value
            own, beside = sides[True], sides[False]
            found[key] = tuple(own[block] - beside[block] for block in own if block in beside)
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

    def conclusion(self) -> Conclusion:
        """Return a verdict on every load on every commit, load by load."""
        verdicts: list[Verdict] = []
        for load in range(len(self.models)):
            shown: dict[int, Verdict] = {}
            for commit in range(self.study.commits):
                before = self.before(load, commit)
                verdict = self._verdict((load, commit))
                shown[commit] = verdict if before is None else beside(verdict, shown[before])
            verdicts += shown.values()
        earlier = ((self.before(*key), key) for key in self.keys)
        losses = self.other_losses(
            (self.place(key[0], at), self.place(*key)) for at, key in earlier if at is not None
        )
        one = self.pooled[0] if self.pooled[1] else self.sigma
        told = say(
            "{commits:+commit}: {told}", commits=self.study.commits, told=in_a_sentence(verdicts)
        )
        record = CommitsRecord(
            sigma=None if one is None else one / math.sqrt(2), summary=(told, *self._left_out())
        )
        alpha, record = ALPHA if self.suspects else 0.0, self.told(record, losses=losses)
        return self.concluded(verdicts, record, alpha=alpha, notes=self._notes())

    def _left_out(self) -> Iterator[Message]:
        text = "{commit} breaks {models}, which ran on the commit before: {runs:+run} left out"
        for commit, models in sorted(self.newly_broken.items()):
            firsts = [self.first_of(load, commit) for load in range(len(self.models))]
            left = sum(self.over(trial) is None for trial in firsts)
            name = self.study.labels[commit].partition(" ")[0]
            yield say(text, commit=name, models=models, runs=left)

    def _verdict(self, key: Key) -> Verdict:
        load, commit = key
        own = self.by_place.get(self.place(*key), ())
        arm, first = self.study.ids[self.place(*key)], self.over(self.first_of(*key))
        base = begun(arm, own)
        if first is None:
            if commit in self.newly_broken:
                return undecided(base, say("not submitted: the commit breaks other models"))
            return base
        if usable(first) is not None:
            return self._of_speed(so_far(arm, own), key)
        why = first.reason or NO_SCORE
        if self.is_excused(first):
            return undecided(base, say(RUN_AGAIN, why=why))
        is_old = self.is_broken(load, commit - 1) if commit else self.study.commits > 1
        if is_old:
            old = say("nor did it run on the commit before")
            return decided(base, VerdictKind.INVALID, why, old)
        return dropped(base, why)

    def _of_speed(self, base: Verdict, key: Key) -> Verdict:
        """Return the verdict on a load whose first run has a score."""
        if key not in self.differences:
            why = say("it runs" if key[1] == 0 else "it runs, and did on no commit before")
            return not_accused(base, why)
        first = self.differences[key]
        base = replace(changed(base, first), against=say("the commit before"))
        if not self.is_screened:
            return screened(base, say(ITS_FIRST_RUN))
        if key in self.suspects:
            return self._suspect(base, key)
        if key in self.unlike:
            text = "{change:percent} in its first run; the budget of {budget} jobs is spent"
            return undecided(base, say(text, change=base.delta, budget=self.study.budget))
        if self.sigma is not None:
            base = within_spread(base, first, sigma=self.sigma, n=len(self.differences))
            base = replace(base, method=say("first runs, noise from the spread of all differences"))
        return not_accused(base, say("no loss in its first run that calls for another"))

    def _suspect(self, base: Verdict, key: Key) -> Verdict:
        """Return the verdict on what runs again in fresh pairs."""
        if not self.is_over:
            return screened(base, say(ITS_FIRST_RUN_AGAIN))
        values, (sigma, df) = self.fresh[key], self.pooled
        if len(values) < _MIN_PAIRS or not df:
            return undecided(base, say("{pairs:+fresh pair} have scores", pairs=len(values)))
        middle, error = fmean(values), sigma / math.sqrt(len(values))
        reach = t_quantile(0.975, df) * error
        text = "{pairs} fresh pairs with the commit before, Bonferroni over {family}"
        method = say(text, pairs=len(values), family=len(self.suspects))
        base = changed(base, middle, (middle - reach, middle + reach))
        base = replace(base, n=len(values), method=method)
        reach = t_quantile(1 - ALPHA / len(self.suspects), df) * error
        if middle + reach < 0 and middle < SLOWER_AT:
            why = say("a loss of more than {loss:size}", loss=-relative(middle + reach))
            return decided(base, VerdictKind.SLOWER, why)
        if middle - reach > 0 and middle > FASTER_AT:
            why = say("a gain of more than {gain:size}", gain=relative(middle - reach))
            return decided(base, VerdictKind.FASTER, why)
        if not SLOWER_AT <= middle <= FASTER_AT:
            return undecided(base, say("a change of 2 % is neither shown nor excluded"))
        return not_accused(base, say("its first run differed, its fresh pairs do not"))

    def _notes(self) -> Iterator[Message]:
        if self.is_screened and self.sigma is not None:
            text = "first runs of adjacent commits differ by {sigma:.2%} (one sigma)"
            yield say(text, sigma=self.sigma)
        if self.is_screened and len(self.unlike) > len(self.suspects):
            text = (
                "the budget of {budget} allows {allowed} of {suspects:+suspect}, {every} jobs all"
            )
            every = len(self.screen) + 2 * PAIRS * len(self.unlike)
            counts = {"allowed": len(self.suspects), "suspects": len(self.unlike)}
            yield say(text, budget=self.study.budget, every=every, **counts)
