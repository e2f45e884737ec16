"""Which commit made it slower: what a history says, what to measure next, and the answer.

First whether the ends differ by 1 % or more, then a posterior over the position of the change, then
the likeliest commit and its parent in fresh pairs. Plans no trial of its own: the study names them.
The reference note is docs/how-to/studies.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from msgspec.structs import replace

from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.result import Conclusion, TrialResult, Verdict, VerdictKind, relative
from pytest_xlatune.model.sentences import THE_REFERENCE
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.stats.change_point import LEAST, Posterior, posterior
from pytest_xlatune.stats.design import t_quantile
from pytest_xlatune.studies.cell_arms import decided, dropped, not_accused, undecided
from pytest_xlatune.studies.commit_check._record import (
    CommitsRecord,
    CommitWalk,
    Found,
)
from pytest_xlatune.studies.trials import usable
from pytest_xlatune.studies.verdicts import NO_SCORE, beside, changed, screened, so_far

ENDS, STEP, CONFIRM = "ends", "search", "confirm"
PAIRS = 4
ALPHA = 0.005  # one-sided, each of the two looks at the ends
LEANS = 0.33  # standard errors of a loss from which four more pairs are run
SURE = 0.95  # of the posterior on one commit
JOBS_PER_DOUBLING = 6
_CONFIRMED = 0.975  # two-sided 95 %
_EXCLUDED = 0.95  # one-sided
_MIN_EACH = 2  # scored runs of a side
_PARENT = say("its parent")
_LEAST_SIGMA = 1e-5  # runs that agree to this were hardly measured apart


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
        return math.fsum(
            (each - fmean(side)) ** 2 for side in (self.before, self.after) for each in side
        )

    @property
    def variance_of_one(self) -> float:
        """The variance of the estimate, in units of a run's."""
        return 1 / len(self.before) + 1 / len(self.after)

    @property
    def error(self) -> float:
        """The standard error of the estimate."""
        return math.sqrt(max(self.squares / self.df, _LEAST_SIGMA**2) * self.variance_of_one)


class Halving(CommitWalk):
    """One search as far as it came, and what it shows of where the change lies."""

    is_compared = False  # whether the looks at the ends are over
    looks: tuple[tuple[Trial, ...], ...] = ()  # the pairs of the ends, look by look

    def walk(self) -> None:
        """Compare the ends, halve the range, hold the likeliest commit beside its parent."""
        # whether there is a change comes first: halving alone names a commit where nothing changed,
        # and a wrong one in 9 to 53 % of simulated searches for a loss of 3 %, by the noise
        last = self.count - 1
        self.looks = (self.study.pairs(ENDS, 0, last, range(1, PAIRS + 1)),)
        if not self.lost_ends:
            self.run(self.looks[0])
            told = self.sides(self.looks[0], 0, last)
            is_open = told.is_enough and not self.is_shown(told) and self._is_open(told)
            if is_open and self.study.budget >= 4 * PAIRS:
                more = self.study.pairs(ENDS, 0, last, range(PAIRS + 1, 2 * PAIRS + 1))
                self.looks = (*self.looks, more)
                self.run(more)
        self.is_compared = True
        if self.next_step:
            open_now = sum(each > 0.01 for each in self.belief.mass)  # noqa: PLR2004 - still likely
            halvings = math.ceil(math.log2(max(open_now, 2)))
            self.run(self.next_step, later=halvings + 2 * PAIRS)
        self.run(self.fresh)

    def conclusion(self) -> Conclusion:
        """Return the answer, and a line for every commit that was measured."""
        return conclusion(self)

    @property
    def count(self) -> int:
        """Commits from the first to the last."""
        return len(self.study.cells)

    def risen(self, result: TrialResult | None) -> float | None:
        """Return a score in which a loss is a rise; None where there is none."""
        score = usable(result) if result is not None else None
        return None if score is None else -score.value

    def sides(self, trials: Sequence[Trial], before: int, after: int) -> Sides:
        """Return the scores of two commits in these trials."""
        found: dict[str, list[float]] = {}
        for trial in trials:
            value = self.risen(self.over(trial))
            if value is not None:
                found.setdefault(trial.cell_digest, []).append(value)
        one, other = (found.get(self.study.cells[at].digest, []) for at in (before, after))
        return Sides(before=tuple(one), after=tuple(other))

    # --- the ends -------------------------------------------------------------

    @cached_property
    def of_ends(self) -> Sides:
        """The ends' scores so far."""
        trials = [each for look in self.looks for each in look]
        return self.sides(trials, 0, self.count - 1)

    def is_shown(self, sides: Sides) -> bool:
        """Whether there is a change that a person should look at: one-sided 99.5 %, and 1 %."""
        return sides.estimate >= LEAST and self.bound(sides, 1 - ALPHA) > 0

    def bound(self, sides: Sides, level: float) -> float:
        """Return the one-sided lower bound of the rise."""
        return sides.estimate - t_quantile(level, sides.df) * sides.error

    def ceiling(self, sides: Sides) -> float:
        """Return the least rise that is excluded, one-sided 95 %."""
        return sides.estimate + t_quantile(_EXCLUDED, sides.df) * sides.error

    def _is_open(self, sides: Sides) -> bool:
        """Whether more pairs may show a change: they lean that way, and 1 % is not excluded."""
        return sides.estimate > LEANS * sides.error and self.ceiling(sides) >= LEAST

    @cached_property
    def lost_ends(self) -> tuple[int, ...]:
        """The ends of which two runs are over and none has a score: more would say the same."""
        lost = []
        for at in (0, self.count - 1):
            own = [self.over(e) for e in self.looks[0] if self.place_of(e) == at]
            over = [each for each in own if each is not None]
            if len(over) >= _MIN_EACH and all(usable(each) is None for each in over):
                lost.append(at)
        return tuple(lost)

    @cached_property
    def is_changed(self) -> bool:
        """Whether the ends are shown to differ by a loss."""
        return self.is_compared and self.of_ends.is_enough and self.is_shown(self.of_ends)

    @cached_property
    def sigma(self) -> float:
        """Standard deviation of one run within the ends."""
        found = self.of_ends
        return max(math.sqrt(found.squares / found.df), _LEAST_SIGMA) if found.df > 0 else math.nan

    # --- the search -----------------------------------------------------------

    @property
    def most_steps(self) -> int:
        """Runs that the search may take."""
        spent = sum(map(len, self.looks))
        most = math.floor(JOBS_PER_DOUBLING * math.log2(max(self.count, 2)))
        return max(min(most, self.study.budget - spent - 2 * PAIRS), 0)

    @cached_property
    def steps(self) -> tuple[TrialResult, ...]:
        """The runs of the search that are over, in their order."""
        found = {
            each.trial.block: each
            for each in self.results.values()
            if each.trial.stage == STEP and each.status.is_final
        }
        done = []
        for number in range(1, self.most_steps + 1):
            if number not in found:
                break
            done.append(found[number])
        return tuple(done)

    @cached_property
    def skipped(self) -> frozenset[int]:
        """The commits that could not be measured."""
        return frozenset(self.place_of(e.trial) for e in self.steps if usable(e) is None)

    @cached_property
    def open_places(self) -> tuple[int, ...]:
        """The places that may be the first changed one: skipped ones cannot be told apart."""
        return tuple(at for at in range(1, self.count) if at not in self.skipped)

    @cached_property
    def belief(self) -> Posterior:
        """Where the change lies, by the ends and the search: the suspect follows from it."""
        return self._belief(self.steps)

    @cached_property
    def belief_at_last(self) -> Posterior:
        """The same with the fresh pairs: what a range is made of."""
        return self._belief((*self.steps, *filter(None, map(self.over, self.fresh))))

    def _belief(self, runs: Sequence[TrialResult]) -> Posterior:
        ends = self.of_ends
        scores = [*((0, v) for v in ends.before), *((self.count - 1, v) for v in ends.after)]
        for each in runs:
            value = self.risen(each)
            if value is not None:
                scores.append((self.place_of(each.trial), value))
        return posterior(
            scores,
            positions=self.open_places,
            sigma=self.sigma,
            expected=ends.estimate,
            level=fmean(ends.before),
            level_error=self.sigma / math.sqrt(len(ends.before)),
        )

    @cached_property
    def next_step(self) -> tuple[Trial, ...]:
        """The next run of the search; () where it is at its end."""
        if not self.is_changed or self.belief.most >= SURE or len(self.steps) >= self.most_steps:
            return ()
        return (self.study.step(self.belief.splitting(), len(self.steps) + 1),)

    # --- the confirmation -----------------------------------------------------

    @cached_property
    def suspect(self) -> int | None:
        """The commit that is to be confirmed; None where none is."""
        if not self.is_changed or self.next_step or self.belief.most < SURE:
            return None
        spent = sum(map(len, self.looks)) + len(self.steps)
        return self.belief.likeliest if spent + 2 * PAIRS <= self.study.budget else None

    @property
    def parent(self) -> int:
        """The commit before the suspect, the nearest that can be measured."""
        found = self.suspect or 0
        return max((at for at in range(found) if at not in self.skipped), default=0)

    @cached_property
    def fresh(self) -> tuple[Trial, ...]:
        """The pairs that confirm."""
        if self.suspect is None:
            return ()
        return self.study.pairs(CONFIRM, self.parent, self.suspect, range(1, PAIRS + 1))

    @cached_property
    def confirmed(self) -> tuple[float, tuple[float, float]] | None:
        """The change at the suspect against its parent, and its 95 % interval; None without one."""
        if self.suspect is None or not all(map(self.over, self.fresh)):
            return None
        found, ends = self.sides(self.fresh, self.parent, self.suspect), self.of_ends
        if not found.is_enough:
            return None
        df = found.df + ends.df
        variance = max((found.squares + ends.squares) / df, _LEAST_SIGMA**2)
        reach = t_quantile(_CONFIRMED, df) * math.sqrt(variance * found.variance_of_one)
        return found.estimate, (found.estimate - reach, found.estimate + reach)

    @cached_property
    def is_confirmed(self) -> bool:
        """Whether the suspect is shown to differ from its parent, by 1 % or more."""
        found = self.confirmed
        return found is not None and found[1][0] > 0 and found[0] >= LEAST

    @cached_property
    def unexplained(self) -> float:
        """How much more the ends differ than the suspect's pairs with its parent say; 0 if none."""
        if self.confirmed is None:
            return 0.0
        ends = self.of_ends
        rest = ends.estimate - self.confirmed[1][1]
        return rest if rest > 2 * self.sigma * math.sqrt(ends.variance_of_one) else 0.0

    @cached_property
    def answer(self) -> Found:
        """The word of the conclusion."""
        if not self.is_compared:
            return Found.NOT_YET
        if not self.of_ends.is_enough:
            return Found.CANNOT_TELL
        if not self.is_changed:
            return Found.NO_CHANGE
        if not self.is_over:
            return Found.NOT_YET
        is_one = self.suspect is not None and self.suspect - self.parent == 1
        return Found.FIRST if self.is_confirmed and is_one else Found.RANGE

    @property
    def range(self) -> tuple[int, int]:
        """The last commit before the change and the last that may have brought it."""
        if self.is_confirmed and self.suspect is not None:
            return self.parent, self.suspect
        # with several small losses a single commit was accused of all
        if self.unexplained:  # several commits changed it, and the belief knows of one
            return 0, self.count - 1
        low, high = self.belief_at_last.holding(SURE)
        return max((at for at in range(low) if at not in self.skipped), default=0), high


def conclusion(search: Halving) -> Conclusion:
    study = search.study
    by_place = search.by_place
    reference = _reference(search, by_place.get(0, []))
    shown = {0: reference}
    for at in sorted({*by_place, search.count - 1} - {0}):
        found_there = _verdict(search, at, by_place.get(at, []), reference)
        is_of_parent = found_there.against == _PARENT
        shown[at] = beside(found_there, shown[search.parent if is_of_parent else 0])
    verdicts = [each for at, each in shown.items() if at]
    known = search.of_ends
    ids = study.ids
    first, last, found = "", "", search.answer
    if found is Found.FIRST and search.suspect is not None:
        first = last = ids[search.suspect]
    elif found is Found.RANGE:
        first, last = (ids[at] for at in search.range)
    record = CommitsRecord(
        sigma=search.sigma if known.df > 0 and known.is_enough else None,
        mde80=None,
        peak_tflops=study.asked.peak_tflops,
        found=str(found),
        first=first,
        last=last,
        delta=_delta(search),
        excluded=_excluded(search),
        commits=study.labels,
        skipped=tuple(ids[at] for at in sorted(search.skipped)),
        losses=search.other_losses((0, at) for at in sorted(by_place) if at),
        why=_why_not(search),
    )
    return Conclusion(
        reference=reference,
        verdicts=tuple(verdicts),
        record=record,
        alpha=ALPHA if search.is_compared else 0.0,
        complete=search.is_over,
        notes=tuple(_notes(search)),
    )


def _delta(search: Halving) -> float | None:
    if search.answer is Found.FIRST and search.confirmed is not None:
        return relative(-search.confirmed[0])
    if search.of_ends.is_enough:
        return relative(-search.of_ends.estimate)
    return None


def _excluded(search: Halving) -> float | None:
    """Return the loss that is excluded where none is shown: a one-sided 95 % bound."""
    if search.answer is not Found.NO_CHANGE:
        return None
    return -relative(-max(search.ceiling(search.of_ends), 0.0))


def _why_not(search: Halving) -> Message | None:
    if search.answer is not Found.CANNOT_TELL:
        return None
    for at, text in (
        (0, "the first commit {commit} has no score: {why}"),
        (search.count - 1, "the last commit {commit} has no score: {why}"),
    ):
        lost = [e for e in search.by_place.get(at, ()) if e.status.is_final and usable(e) is None]
        if lost:
            return say(text, commit=search.study.ids[at], why=lost[0].reason)
    return say("an end has no score")


def _reference(search: Halving, own: Sequence[TrialResult]) -> Verdict:
    base = so_far(search.study.ids[0], own)
    if not base.n:
        lost = [each for each in own if each.status.is_final]
        return decided(base, VerdictKind.INVALID, lost[0].reason or NO_SCORE) if lost else base
    base = not_accused(changed(base, 0.0))
    return replace(base, kind=VerdictKind.EQUIVALENT, method=say(THE_REFERENCE))


def _verdict(search: Halving, at: int, own: Sequence[TrialResult], reference: Verdict) -> Verdict:
    base = so_far(search.study.ids[at], own)
    final = [each for each in own if each.status.is_final]
    if not final:
        return base
    scored = [each for each in final if usable(each)]
    if not scored:
        why = final[0].reason or NO_SCORE
        if search.is_excused(final[0]):
            return undecided(base, say("not measured: {why}", why=why))
        return dropped(base, why) if reference.n else decided(base, VerdictKind.INVALID, why)
    if reference.n:
        mean = fmean(score.value for each in scored if (score := usable(each)))
        level = -fmean(search.of_ends.before) if search.of_ends.before else mean
        base = replace(changed(base, mean - level), against=say("the first commit"))
    if at == search.suspect and search.is_confirmed and search.confirmed is not None:
        estimate, ends = search.confirmed
        low, high = sorted(-each for each in ends)
        if search.answer is Found.FIRST:
            parent = search.study.ids[search.parent]
            return replace(
                changed(decided(base, VerdictKind.SLOWER), -estimate, (low, high)),
                against=_PARENT,
                method=say(
                    "beside its parent {parent} in {pairs} fresh pairs, noise pooled with the "
                    "ends'",
                    parent=parent,
                    pairs=PAIRS,
                ),
            )
    if at == search.count - 1 and search.is_compared and search.of_ends.is_enough:
        sides = search.of_ends
        reach = t_quantile(_CONFIRMED, sides.df) * sides.error
        middle = -sides.estimate
        told = changed(base, middle, (middle - reach, middle + reach))
        told = replace(
            told,
            method=say(
                "beside the first commit in {pairs} alternating pairs", pairs=len(sides.after)
            ),
        )
        if search.is_changed:
            return decided(told, VerdictKind.SLOWER)
        return not_accused(told)
    return screened(base, say("measured to halve the range"))


def _notes(search: Halving) -> list[Message]:
    study, notes = search.study, list[Message]()
    if not search.is_compared or not search.of_ends.is_enough:
        return notes
    sides = search.of_ends
    change = relative(-sides.estimate)
    notes.append(
        say(
            "the ends differ by {change:percent} in {pairs:+pair}; a run's noise is {sigma:.2%}",
            change=change,
            pairs=len(sides.after),
            sigma=search.sigma,
        )
    )
    if not search.is_changed:
        return notes
    if search.steps:
        notes.append(
            say(
                "{runs:+run} halved the range, of at most {most}",
                runs=len(search.steps),
                most=search.most_steps,
            )
        )
    if search.answer is Found.RANGE:
        if search.suspect is None and search.belief.most >= SURE:
            likeliest = study.ids[search.belief.likeliest]
            notes.append(
                say(
                    "the budget of {budget} jobs leaves none to confirm commit {commit}",
                    budget=study.budget,
                    commit=likeliest,
                )
            )
        elif search.suspect is not None and not search.is_confirmed:
            seen = search.confirmed
            told = say(": {change:percent}", change=relative(-seen[0])) if seen else None
            notes.append(
                say(
                    "commit {commit} was likeliest, and {pairs} fresh pairs with its parent do "
                    "not show a loss of 1 % or more{change}",
                    commit=study.ids[search.suspect],
                    pairs=PAIRS,
                    change=told,
                )
            )
        elif search.suspect is not None:
            notes.append(
                say(
                    "the commits between the two could not be measured: one of them made the change"
                )
            )
        else:
            notes.append(say("the runs that the search may take are spent"))
    if search.unexplained:
        notes.append(
            say(
                "the ends differ by about {rest:size} more than this commit explains: several "
                "commits changed it",
                rest=search.unexplained,
            )
        )
    return notes
