"""The frame of studies that measure in stages: which trials are due, are over, and are left.

A study asks its question in a walk through a history: a function that runs one stage after the
other, in the order in which things happen. Where a stage is not over the walk ends, and the study
proposes its missing trials. Plan and findings are one: the conclusion rests on what the walk saw.
This module must not know of any question.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Generic, Self, TypeVar

from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.record import Json, digest
from pytest_xlatune.model.result import Conclusion, TrialResult
from pytest_xlatune.model.trial import Trial
from pytest_xlatune.studies import History, Study, remembered
from pytest_xlatune.studies.trials import Past, usable


class _StageOpenError(Exception):
    """A stage is not over: the walk ends here."""


S = TypeVar("S", bound=Study)


class Stages(ABC, Generic[S]):
    """Stages, one after the other, as far as a history reaches, and what was found on the way.

    A subclass has them in `walk`.

    Attributes:
        study: whose question it is.
        planned: the trials of all stages so far, in order.
        pending: those of the last stage that are not over.
        later: how many are likely to follow them, those that cannot be planned yet included.
    """

    def __init__(self, study: S) -> None:
        self.study = study
        self.planned: list[Trial] = []
        self.pending: tuple[Trial, ...] = ()
        self.later = 0

    @abstractmethod
    def result(self, trial: Trial) -> TrialResult | None:
        """Return the result of a trial so far; None where there is none."""

    @abstractmethod
    def walk(self) -> None:
        """Run the stages of the study, the first one first."""

    def go(self) -> Self:
        """Walk as far as the history reaches; return itself."""
        with suppress(_StageOpenError):
            self.walk()
        return self

    def run(self, trials: Sequence[Trial], *, later: int = 0) -> list[TrialResult]:
        """Return the results of a stage, in its order; the walk ends here where one is not over.

        Args:
            trials: of the stage.
            later: how many are likely to follow.
        """
        self.planned += trials
        over = {each.id: found for each in trials if (found := self.over(each)) is not None}
        self.pending = tuple(each for each in trials if each.id not in over)
        if self.pending:
            self.later = later
            raise _StageOpenError
        return [over[each.id] for each in trials]

    def over(self, trial: Trial) -> TrialResult | None:
        """Return the result of a trial that is over; None of another."""
        found = self.result(trial)
        return found if found is not None and found.status.is_final else None

    def value(self, trial: Trial) -> float | None:
        """Return the log score of a trial; None where there is none."""
        found = self.over(trial)
        score = usable(found) if found is not None else None
        return None if score is None else score.value

    def of(self, trials: Sequence[Trial]) -> list[TrialResult]:
        """Return the results of trials, as far as there are any."""
        return [found for each in trials if (found := self.result(each)) is not None]

    @property
    def is_over(self) -> bool:
        """Whether every stage is."""
        return not self.pending

    @property
    def left(self) -> int:
        """How many trials are likely still to come."""
        return len(self.pending) + self.later if self.pending else 0


class Walk(Stages[S]):
    """How far one history reaches: the question in `walk`, the answer in `conclusion`."""

    @abstractmethod
    def conclusion(self) -> Conclusion:
        """Return what follows from the walk, however far it came."""


class PastWalk(Walk[S]):
    """A walk of a study whose trials are scored in a window that they share.

    Attributes:
        past: its own trials of a history.
    """

    def __init__(self, study: S, past: Past) -> None:
        super().__init__(study)
        self.past = past

    def result(self, trial: Trial) -> TrialResult | None:
        """Return the result of a trial so far; None where there is none."""
        return self.past.of(trial)


W = TypeVar("W", bound=Walk[Any])


class StagedStudy(Study, Generic[W], frozen=True, kw_only=True):
    """A study that is a walk through its history: it proposes what the walk waits for."""

    @abstractmethod
    def begin(self, history: History) -> W:
        """Return the walk before its first stage."""

    @remembered
    def walked(self, history: History) -> W:
        """Return the walk as far as a history reaches."""
        return self.begin(history).go()

    def propose(self, history: History) -> tuple[Trial, ...]:
        """Return the trials of the stage that is not over."""
        return self.walked(history).pending

    def left(self, history: History) -> int:
        """Return how many trials are likely still to come, those not planned yet included."""
        return self.walked(history).left

    @remembered
    def conclude(self, history: History) -> Conclusion:
        """Return what follows from the walk."""
        return self.walked(history).conclusion()


def name_of(kind: str, *parts: Json) -> str:
    """Return the name of a study: its kind, and a digest of what tells it from others of it."""
    return f"{kind}-{digest(list(parts), length=8)}" if parts else kind


def refuse_budget(what: str, *, budget: int, least: int, most: int) -> None:
    """Refuse a budget that does not pay for the first stage.

    Args:
        what: takes how many, e.g. `8 nodes need 8 jobs to begin with`.
        budget: of the study.
        least: jobs of the first stage.
        most: jobs that it takes at most.

    Raises:
        ConfigError: naming the budget to ask for.
    """
    if budget < least:
        raise ConfigError(
            f"{what}, the budget is {budget}; ask for --xlatune-budget {most}, which is the most "
            "that it takes"
        )
