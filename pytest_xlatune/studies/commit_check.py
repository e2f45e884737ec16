"""Find the commit that made training slower, and the models that a commit breaks or slows.

An arm is a commit, or a load (a model on some nodes) at a commit. The stages, in order:


        a search   ends      the first and the last commit in alternating pairs
                   search    the commit that halves the remaining range, one run after the other
                   confirm   fresh pairs of the likeliest commit and its parent
        a table    once      each load at each commit
                   confirm   fresh pairs of a commit that looks slower and the commit before

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
from pytest_xlatune.stats.beside import paired, spread_of
from pytest_xlatune.stats.change_point import LEAST_CHANGE, Posterior, posterior
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
ONCE, ENDS, STEP, CONFIRM = "once", "ends", "search", "confirm"
PAIRS = 4
# the possible answers of a search; a table has none
FIRST, RANGE, NO_CHANGE, CANNOT_TELL = "FIRST", "RANGE", "NO CHANGE", "CANNOT TELL"

# --- constants of a search ---
ENDS_ALPHA = 0.005  # one-sided, for each of the two looks at the ends
LEANS = 0.33  # a loss of so many standard errors calls for four more pairs
SURE = 0.95  # posterior of one commit at which halving ends
JOBS_PER_DOUBLING = 6
_EXCLUDED, _CONFIRMED = 0.95, 0.975  # one-sided 95 %, and two-sided 95 %
_LIKELY = 0.01  # a commit with this posterior is still a suspect
_MIN_EACH = 2  # least number of scored runs on each side
# --- constants of a table ---
ALPHA = 0.05
SLOWER_AT = math.log1p(-0.02)  # the smallest loss that matters
FASTER_AT = -SLOWER_AT
# These limits only choose what runs again: single runs at -2 % accused one in 28 % of simulated
# tables of ten healthy loads, if 3 % of the jobs are bad.
SUSPECT_SIGMAS, SUSPECT_AT = 1.5, 0.012
PROMISING_SIGMAS, PROMISING_AT = 2.5, 0.020  # gains accuse no commit, so their limits are wider
# models that ran at the commit before: if so many break, no other load of the commit is run
BROKEN_MODELS = 2
_MIN_DIFFERENCES, _MIN_PAIRS = 4, 2

_LEAST_SIGMA = 1e-5  # the least noise of a run that is assumed, in case all runs agree by chance
_SHORT = 12  # characters of a shortened hash
Scores = tuple[float, ...]
# Wrong names or options in one commit: it counts as broken, and the others go on.
_CANNOT_START = (
    *(FailureClass.IMAGE_MISSING, FailureClass.CONTAINER_FAIL),
    *(FailureClass.UNKNOWN_FLAG, FailureClass.CONFIG_ERROR),
)


class CommitsRecord(CellsRecord, frozen=True, kw_only=True):
    """What a study of commits found.

    Attributes:
        found: the answer of a search; "" for a table, and before the search is over.
        first, last: the commit that changed the speed, in both; for a range, the last commit before
            the change and the last that may contain it.
        delta: the relative change; None if unknown.
        excluded: the change that is excluded if none is shown.
        commits: all commits as shown to people, in order.
        skipped: the commits that could not be measured.
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
    """One line of the table: a model on some of the sweep's nodes.

    Attributes:
        model: the model tag.
        nodes: how many nodes; 0 means all.
        parallelism: its axes, e.g. `FSDP=16`; "" takes the sweep's.
        overrides: `key=value` for the launcher.
        per_device_batch_size: None takes the model's default.
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
        """Return its cell on the sweep's nodes, which do not depend on the other loads.

        A load on `count` nodes takes numbers `count .. 2 count - 1`: 1, 2, 4 of 8 do not overlap.

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
        key: a name for this study, if the same commits were studied before.
    """

    kind: ClassVar[str] = KIND
    commits: str = ""
    loads: tuple[Load, ...] = ()
    key: str = ""

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
        at_commits = tuple(asked.others.values())
        return CommitStudy(
            cells=tuple(load.cell(cell) for load in loads for cell in at_commits) or at_commits,
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
        is_search: whether the change is looked for between the first and the last commit.
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
        """The kind of study, then the user's key or a digest of the range."""
        if self.is_search:  # each range has its own search
            return name_of(KIND, self.asked.key, self.cells[0].digest, self.cells[-1].digest)
        return super().name

    @property
    def policy(self) -> Policy:
        """Count as findings that a commit computes another loss, or cannot start."""
        broken = RetryRule(retries=0, then=Next.DROP)
        # the server of a submodule may be away for a moment
        again = RetryRule(retries=1, backoff_s=60, then=Next.DROP)
        rules: dict[str, RetryRule] = dict.fromkeys(_CANNOT_START, broken)
        return Policy(rules={**rules, FailureClass.CHECKOUT_FAIL: again})

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
        loads = [f"{load.name}-" for load in self.asked.loads] or [""]
        return tuple(f"{load}{commit}" for load in loads for commit in hashes)

    @property
    def most_jobs(self) -> int:
        """How many jobs it costs at most."""
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
        """The walk of a search or of a table."""
        return _Halving if self.is_search else _CommitTable

    def pairs(self, stage: str, one: int, other: int, numbers: Iterable[int]) -> tuple[Trial, ...]:
        """Return pairs of two cells given by index, in alternating order."""
        return tuple(
            self.trial_of(self.all_arms[at], stage, block=number, position=other)
            for number in numbers
            for at in ((one, other) if number % 2 else (other, one))
        )


class _CommitProgress(CellProgress[CommitStudy]):
    """What a search and a table share: a place is a cell's index, i.e. a load at a commit."""

    def __init__(self, study: CommitStudy, history: History) -> None:
        super().__init__(study, history)
        self.by_place: dict[int, list[TrialResult]] = {at: [] for at in range(len(study.cells))}
        for result in self.results.values():
            self.by_place[self.place_of(result.trial)].append(result)

    def place_of(self, trial: Trial) -> int:
        return self.study.places[trial.cell_digest]

    def with_losses(
        self, verdicts: Sequence[Verdict], record: CommitsRecord, pairs: Iterable[tuple[int, int]],
        *, alpha: float, notes: Iterable[Message], reference: Verdict | None = None,
    ) -> Conclusion:  # fmt: skip
        """Return the conclusion; commits whose loss differs from the others' fail their test."""
        losses, tolerance, ids = [], self.study.loss_tolerance, self.study.ids
        text = "{commit} computes something else than {before}: loss {loss:.6g}, not {usual:.6g}"
        for before, after in pairs:
            one, other = (median_loss(self.by_place[at]) for at in (before, after))
            first = first_loss(self.by_place[before])
            if one is None or other is None:
                continue
            if different_loss(other, one, tolerance=tolerance, first=first):
                arms = {"commit": ids[after], "before": ids[before]}
                losses.append(say(text, loss=other, usual=one, **arms))
        summary, objection = (*record.summary, *losses), (*record.objection, *losses)
        record = replace(record, summary=summary, objection=objection)
        return self.concluded(verdicts, record, alpha=alpha, notes=notes, reference=reference)

    def lost(self, base: Verdict, result: TrialResult, *, is_new: bool) -> Verdict:
        """Return the verdict on a cell whose run has no score; `is_new`: the one before it ran."""
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
    """Two commits whose runs were paired: their negated log scores, so that a loss is a rise.

    The runs of other commits may contribute to the noise.
    """

    before: Scores
    after: Scores
    noise: tuple[Scores, ...] = ()

    @property
    def is_enough(self) -> bool:
        return min(len(self.before), len(self.after)) >= _MIN_EACH

    @property
    def estimate(self) -> float:
        return fmean(self.after) - fmean(self.before)

    @property
    def spread(self) -> tuple[float, int]:
        return _spread_in([self.before, self.after, *self.noise])

    @property
    def error(self) -> float:
        return self.spread[0] * math.sqrt(1 / len(self.before) + 1 / len(self.after))

    def reach(self, level: float) -> float:
        """Return by how much the rise may be wrong, one-sided."""
        return t_quantile(level, self.spread[1]) * self.error

    @property
    def change(self) -> tuple[float, tuple[float, float]]:
        """The change of the score as a log ratio, and its 95 % interval."""
        change, reach = -self.estimate, self.reach(_CONFIRMED)
        return change, (change - reach, change + reach)

    @property
    def is_shown(self) -> bool:
        """Whether a change is shown: one-sided 99.5 %, and 1 % or more."""
        return self.estimate >= LEAST_CHANGE and self.estimate - self.reach(1 - ENDS_ALPHA) > 0

    @property
    def ceiling(self) -> float:
        """The smallest rise that is excluded, one-sided 95 %."""
        return self.estimate + self.reach(_EXCLUDED)

    @property
    def is_open(self) -> bool:
        """Whether more pairs may show a change: the estimate leans, and 1 % is not excluded."""
        leans = self.estimate > LEANS * self.error
        return not self.is_shown and leans and self.ceiling >= LEAST_CHANGE


class _Halving(_CommitProgress):
    """A search by halving so far, and where it places the change."""

    word = ""  # the answer in a word; "" before there is one
    looks: tuple[Trial, ...] = ()  # the trials of the pairs of ends
    steps: tuple[TrialResult, ...] = ()  # the runs that halve the range
    skipped: frozenset[int] = frozenset()  # the commits that could not be measured
    belief: Posterior | None = None  # where the change lies, from the ends and the steps
    suspect: int | None = None
    parent = 0  # the nearest commit before the suspect that can run
    fresh: tuple[Trial, ...] = ()  # pairs of the suspect and its parent
    confirmed: _Sides | None = None  # the scores of the fresh pairs, once they are enough

    @property
    def is_confirmed(self) -> bool:
        fresh = self.confirmed
        return fresh is not None and fresh.change[1][1] < 0 and fresh.estimate >= LEAST_CHANGE

    @property
    def last(self) -> int:
        return self.study.commits - 1

    def run_stages(self) -> None:
        study, last = self.study, self.last
        # The ends are compared first. Halving alone names a commit even if nothing changed, and for
        # a loss of 3 % it names a wrong one in 9 to 53 % of simulated searches, by noise.
        self.looks = study.pairs(ENDS, 0, last, range(1, PAIRS + 1))
        if not any(map(self._is_lost, (0, last))):
            self.stage_results(self.looks)
            if self.ends.is_enough and self.ends.is_open and study.budget >= 4 * PAIRS:
                more = study.pairs(ENDS, 0, last, range(PAIRS + 1, 2 * PAIRS + 1))
                self.looks += more
                self.stage_results(more)
        if not (self.ends.is_enough and self.ends.is_shown):
            self.word = NO_CHANGE if self.ends.is_enough else CANNOT_TELL
            return
        left = study.budget - len(self.looks) - 2 * PAIRS
        most_steps = max(min(math.floor(JOBS_PER_DOUBLING * math.log2(last + 1)), left), 0)
        self.belief = self._belief(())
        while self.belief.most < SURE and len(self.steps) < most_steps:
            arm = study.all_arms[self.belief.splitting()]
            still = sum(mass > _LIKELY for mass in self.belief.mass)
            step = study.trial_of(arm, STEP, block=len(self.steps) + 1)
            later = math.ceil(math.log2(max(still, 2))) + 2 * PAIRS
            self.steps = (*self.steps, *self.stage_results([step], later=later))
            self.skipped = frozenset(self.place_of(e.trial) for e in self.steps if not usable(e))
            self.belief = self._belief(self.steps)
        belief = self.belief
        spent = len(self.looks) + len(self.steps)
        if belief.most >= SURE and spent + 2 * PAIRS <= study.budget:
            self.suspect, self.parent = belief.likeliest, self._before(belief.likeliest)
            self.fresh = study.pairs(CONFIRM, self.parent, self.suspect, range(1, PAIRS + 1))
            self.stage_results(self.fresh)
            before, after = (self._losses(self.fresh, at) for at in (self.parent, self.suspect))
            noise = self.ends.before, self.ends.after
            pairs = _Sides(before=before, after=after, noise=noise)
            self.confirmed = pairs if pairs.is_enough else None
        is_one = self.suspect is not None and self.suspect - self.parent == 1
        self.word = FIRST if self.is_confirmed and is_one else RANGE

    def _losses(self, trials: Sequence[Trial], at: int) -> Scores:
        values = [self.value(trial) for trial in trials if self.place_of(trial) == at]
        return tuple(-value for value in values if value is not None)

    @property
    def ends(self) -> _Sides:
        before, after = (self._losses(self.looks, at) for at in (0, self.last))
        return _Sides(before=before, after=after)

    def _is_lost(self, at: int) -> bool:
        """Return whether two runs of an end are over without a score; a third adds nothing."""
        runs = [self.final_result(trial) for trial in self.looks if self.place_of(trial) == at]
        over = [result for result in runs if result is not None]
        return len(over) >= _MIN_EACH and all(usable(result) is None for result in over)

    @property
    def sigma(self) -> float | None:
        """Standard deviation of a run, from the ends; None if there are too few."""
        return self.ends.spread[0] if self.ends.is_enough else None

    def _before(self, at: int) -> int:
        return max((place for place in range(at) if place not in self.skipped), default=0)

    def _belief(self, runs: Sequence[TrialResult]) -> Posterior:
        ends, sigma = self.ends, self.sigma or math.nan
        scores = [*((0, v) for v in ends.before), *((self.last, v) for v in ends.after)]
        scores += [(self.place_of(e.trial), -score.value) for e in runs if (score := usable(e))]
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
        """How much more the ends differ than the suspect and its parent do; 0 if no more."""
        if self.confirmed is None:
            return 0.0
        rest = self.ends.estimate + self.confirmed.change[1][0]
        return rest if rest > 2 * self.ends.error else 0.0

    @property
    def range(self) -> tuple[int, int]:
        """The last commit before the change, and the last that may contain it."""
        if self.is_confirmed and self.suspect is not None:
            return self.parent, self.suspect
        # otherwise one commit was accused of the losses of several
        if self.unexplained:  # several commits changed the speed, and the posterior assumes one
            return 0, self.last
        low, high = self._belief((*self.steps, *self.results_of(self.fresh))).holding(SURE)
        return self._before(low), high

    def conclusion(self) -> Conclusion:
        ids, ends, word = self.study.ids, self.ends, self.word
        reference = verdict_with_figures(ids[0], self.by_place[0])
        if reference.n:
            reference = replace(with_change(reference, 0.0), method=say(THE_REFERENCE))
            reference = replace(reference, kind=VerdictKind.EQUIVALENT)
        elif lost := [result for result in self.by_place[0] if result.status.is_final]:
            reference = decided(reference, VerdictKind.INVALID, lost[0].reason or NO_SCORE)
        shown, measured = {0: reference}, [at for at, runs in self.by_place.items() if runs]
        for at in sorted({*measured, self.last} - {0}):
            level = self.parent if word == FIRST and at == self.suspect else 0
            shown[at] = relative_to(self._verdict(at, reference), shown[level])
        is_slower = word in (FIRST, RANGE)
        first, last = (ids[at] for at in self.range) if is_slower else ("", "")
        first = last if word == FIRST else first
        shown_by = self.confirmed if word == FIRST and self.confirmed else ends
        record = CommitsRecord(
            sigma=self.sigma,
            commits=self.study.labels,
            found=word,
            first=first,
            last=last,
            delta=relative(-shown_by.estimate) if shown_by.is_enough else None,
            excluded=-relative(-max(ends.ceiling, 0.0)) if word == NO_CHANGE else None,
            skipped=tuple(ids[at] for at in sorted(self.skipped)),
        )
        answer = self._answer(record)
        record = replace(record, summary=(answer,), objection=(answer,) if is_slower else ())
        return self.with_losses(
            [verdict for at, verdict in shown.items() if at],
            record,
            ((0, at) for at in measured if at),
            alpha=ENDS_ALPHA if word or self.belief else 0.0,
            notes=self._notes(),
            reference=reference,
        )

    def _answer(self, record: CommitsRecord) -> Message:
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
        if not values:
            return self.lost(base, final[0], is_new=reference.n > 0) if final else base
        if reference.n:
            level = -fmean(ends.before) if ends.before else fmean(values)
            base = replace(
                with_change(base, fmean(values) - level), against=say("the first commit")
            )
        if at == self.suspect and self.word == FIRST and self.confirmed is not None:
            text = "against its parent {parent} in {pairs} fresh pairs; the noise includes the ends"
            method = say(text, parent=self.study.ids[self.parent], pairs=PAIRS)
            base = with_change(decided(base, VerdictKind.SLOWER), *self.confirmed.change)
            return replace(base, against=say("its parent"), method=method)
        if at == self.last and (self.word or self.belief) and ends.is_enough:
            text = "against the first commit in {pairs} alternating pairs"
            base = replace(with_change(base, *ends.change), method=say(text, pairs=len(ends.after)))
            return decided(base, VerdictKind.SLOWER) if ends.is_shown else not_accused(base)
        return as_screened(base, say("measured to halve the range"))

    def _notes(self) -> Iterator[Message]:
        ids, ends = self.study.ids, self.ends
        if self.word and ends.is_enough:
            text = (
                "the ends differ by {change:percent} in {pairs} pairs; a run's noise is {sigma:.2%}"
            )
            pairs = len(ends.after)
            yield say(text, change=relative(-ends.estimate), pairs=pairs, sigma=self.sigma)
        if self.word == RANGE and self.suspect is None:
            text = "the budget of {budget} jobs leaves no more runs"
            yield say(text, budget=self.study.budget)
        elif self.word == RANGE and self.suspect is not None and not self.is_confirmed:
            text = (
                "commit {commit} was likeliest, and {pairs} fresh pairs with its parent do not "
                "show a loss of 1 % or more{change}"
            )
            change = self.confirmed and relative(-self.confirmed.estimate)
            seen = None if change is None else say(": {change:percent}", change=change)
            yield say(text, commit=ids[self.suspect], pairs=PAIRS, change=seen)
        if self.unexplained:
            text = "about {rest:size} more than this commit explains: several commits changed it"
            yield say(text, rest=self.unexplained)


class _CommitTable(_CommitProgress):
    """A table of loads and commits so far; a place is the index of a load at a commit."""

    is_screened = False
    suspects: Sequence[int] = ()

    def __init__(self, study: CommitStudy, history: History) -> None:
        super().__init__(study, history)
        self.firsts = [study.trial_of(arm, ONCE) for arm in study.all_arms]
        values, count = [self.value(trial) for trial in self.firsts], study.commits
        models = [load.model for load in study.asked.loads] or [study.cells[0].model_tag]
        broken: dict[int, dict[str, None]] = {}
        for at in range(len(values)):
            if at % count and self._is_broken(at) and values[at - 1] is not None:
                broken.setdefault(at % count, {})[models[at // count]] = None
        # commit -> the models that it broke, if these are enough to give the commit up
        many = {at: [*names] for at, names in broken.items() if len(names) >= BROKEN_MODELS}
        self.newly_broken = many
        self.screen: list[Trial] = []
        # index -> that of the same load at the nearest earlier commit that ran
        self.before = dict[int, int]()
        # index -> difference between its first run and the one at `before`
        self.differences = dict[int, float]()
        for first in range(0, len(values), count):
            places = range(first, first + count)
            # If one commit always ran first, drift would look like a regression of all loads.
            for at in reversed(places) if first // count % 2 else places:
                if self.final_result(self.firsts[at]) or at % count not in self.newly_broken:
                    self.screen.append(self.firsts[at])
            ran = [(at, value) for at in places if (value := values[at]) is not None]
            for (before, level), (at, value) in pairwise(ran):
                self.before[at], self.differences[at] = before, value - level
        every = [*self.differences.values()]
        self.sigma = spread_of(every) if len(every) >= _MIN_DIFFERENCES else None
        low = -max(SUSPECT_SIGMAS * (self.sigma or 0.0), SUSPECT_AT)
        high = max(PROMISING_SIGMAS * (self.sigma or 0.0), PROMISING_AT)
        unlike = [at for at, value in self.differences.items() if not low <= value <= high]
        # the largest loss first, gains last
        self.unlike = sorted(unlike, key=lambda at: (self.differences[at], at))

    def run_stages(self) -> None:
        self.stage_results(self.screen)
        self.is_screened = True
        spare = self.study.budget - len(self.screen)
        self.suspects = self.unlike[: max(spare // (2 * PAIRS), 0)]
        self.stage_results([trial for at in self.suspects for trial in self._pairs(at)])

    def _is_broken(self, at: int) -> bool:
        """Return whether a load cannot run at a commit for a reason that is not the site's."""
        run = self.final_result(self.firsts[at])
        return run is not None and usable(run) is None and not is_excused(run, NODE_FAILURES)

    def _pairs(self, at: int) -> tuple[Trial, ...]:
        return self.study.pairs(CONFIRM, self.before[at], at, range(1, PAIRS + 1))

    @cached_property
    def fresh(self) -> Mapping[int, Sequence[float]]:
        """Index -> the differences of its fresh pairs."""
        fresh = {}
        for at in self.suspects:
            values = {(self.place_of(e), e.block): self.value(e) for e in self._pairs(at)}
            places, numbers = (at, self.before[at]), range(1, PAIRS + 1)
            fresh[at] = paired(*([values[place, n] for n in numbers] for place in places))
        return fresh

    @cached_property
    def pooled(self) -> tuple[float, int]:
        return _spread_in([runs for runs in self.fresh.values() if len(runs) >= _MIN_PAIRS])

    def conclusion(self) -> Conclusion:
        verdicts: list[Verdict] = []
        for at in range(len(self.firsts)):
            level = verdicts[self.before[at]] if at in self.before else None
            verdicts.append(relative_to(self._verdict(at), level))
        text, commits = "{commits:+commit}: {answer}", self.study.commits
        answer = say(text, commits=commits, answer=summary_sentence(verdicts))
        one = self.pooled[0] if self.pooled[1] else self.sigma
        sigma = None if one is None else one / math.sqrt(2)
        summary = answer, *self._left_out()
        record = CommitsRecord(sigma=sigma, summary=summary, commits=self.study.labels)
        pairs = ((before, at) for at, before in self.before.items())
        alpha = ALPHA if self.suspects else 0.0
        return self.with_losses(verdicts, record, pairs, alpha=alpha, notes=self._notes())

    def _left_out(self) -> Iterator[Message]:
        text = "{commit} breaks {models}, which ran on the commit before: {runs:+run} left out"
        for commit, models in sorted(self.newly_broken.items()):
            left = sum(
                self.final_result(run) is None for run in self.firsts[commit :: self.study.commits]
            )
            name = self.study.labels[commit].partition(" ")[0]
            yield say(text, commit=name, models=models, runs=left)

    def _verdict(self, at: int) -> Verdict:
        commit, first = at % self.study.commits, self.final_result(self.firsts[at])
        base = verdict_with_figures(self.study.ids[at], self.by_place[at])
        if first is None:
            why = say("not submitted: the commit breaks other models")
            return undecided(base, why) if commit in self.newly_broken else base
        if usable(first) is None:
            is_old = self._is_broken(at - 1) if commit else self.study.commits > 1
            return self.lost(base, first, is_new=not is_old)
        if at not in self.differences:
            why = say("it runs" if commit == 0 else "it runs, and did on no commit before")
            return not_accused(base, why)
        change = self.differences[at]
        base = replace(with_change(base, change), against=say("the commit before"))
        if not self.is_screened:
            return as_screened(base, say(ITS_FIRST_RUN))
        if at in self.suspects:
            again = as_screened(base, say(ITS_FIRST_RUN_AGAIN))
            return self._again(base, at) if self.is_over else again
        if at in self.unlike:
            text = "{change:percent} in its first run; the budget of {budget} jobs is spent"
            return undecided(base, say(text, change=base.delta, budget=self.study.budget))
        if self.sigma is not None:
            base = within_spread(base, change, sigma=self.sigma, n=len(self.differences))
            base = replace(base, method=say("first runs, noise from the spread of all differences"))
        return not_accused(base, say("no loss in its first run that calls for another"))

    def _again(self, base: Verdict, at: int) -> Verdict:
        values, (sigma, df), family = self.fresh[at], self.pooled, len(self.suspects)
        if len(values) < _MIN_PAIRS or not df:
            return undecided(base, say("{pairs:+fresh pair} have scores", pairs=len(values)))
        middle, error = fmean(values), sigma / math.sqrt(len(values))
        reach = t_quantile(0.975, df) * error
        text = "{pairs} fresh pairs with the commit before, Bonferroni over {family}"
        base = with_change(base, middle, (middle - reach, middle + reach))
        base = replace(base, n=len(values), method=say(text, pairs=len(values), family=family))
        shown = abs(middle) - t_quantile(1 - ALPHA / family, df) * error
        if SLOWER_AT <= middle <= FASTER_AT:
            return not_accused(base, say("its first run differed, its fresh pairs do not"))
        if shown <= 0:
            return undecided(base, say("a change of 2 % is neither shown nor excluded"))
        if middle < 0:
            why = say("a loss of more than {loss:size}", loss=-relative(-shown))
            return decided(base, VerdictKind.SLOWER, why)
        why = say("a gain of more than {gain:size}", gain=relative(shown))
        return decided(base, VerdictKind.FASTER, why)

    def _notes(self) -> Iterator[Message]:
        if self.is_screened and self.sigma is not None:
            text = "first runs of adjacent commits differ by {sigma:.2%} (one sigma)"
            yield say(text, sigma=self.sigma)
        if self.is_screened and len(self.unlike) > len(self.suspects):
            text = "the budget of {budget} allows {allowed} of {suspects:+suspect}, {every} all"
            every = len(self.screen) + 2 * PAIRS * len(self.unlike)
            counts = {"allowed": len(self.suspects), "suspects": len(self.unlike)}
            yield say(text, budget=self.study.budget, every=every, **counts)
