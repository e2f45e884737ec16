"""Questions asked of a cell.

Each is pure: `propose` says what to run next, `conclude` says what is known. Any code that can
feed results back drives them: a campaign on a cluster, a simulated cluster that measures their
error rates, a recorded ledger that is replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pytest_xlatune.cells import Cell, Trial
from pytest_xlatune.profiles import Profile
from pytest_xlatune.records import Json
from pytest_xlatune.results import Conclusion, TrialResult

History = Sequence[TrialResult]


class Study(Protocol):
    """The whole contract between a study and what runs it."""

    @property
    def name(self) -> str:
        """The study's word, e.g. `tuning`; then `-` and a digest where there may be several."""
        ...

    @property
    def cell(self) -> Cell:
        """The cell the question is asked of."""
        ...

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """What is compared with the baseline, which is not among them."""
        ...

    def whole(self) -> Study:
        """Return the study with nothing deselected: what a report is about."""
        ...

    def left(self, history: History) -> int:
        """Return how many trials are likely still to come, those not planned yet included."""
        ...

    def to_json(self) -> dict[str, Json]:
        """Return the study as builtins: with a history it repeats every conclusion."""
        ...

    def propose(self, history: History) -> tuple[Trial, ...]:
        """Return the trials to run next, in order; () when there is nothing left to run.

        Every trial that can be planned now and is not final in `history`. Deterministic given the
        study and the history: whoever asks gets the same trials in the same order.
        """
        ...

    def conclude(self, history: History) -> Conclusion:
        """Return what is known after `history`. Never raises for what a workload did."""
        ...
