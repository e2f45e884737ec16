"""Which commit made it slower, and which models a commit breaks or slows.

An arm is a commit, or a load (a model on so many nodes) on a commit. The first run only
chooses suspects; fresh pairs carry an accusation. A commit that cannot run is an answer too.
This module must not know git, executors or logs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar

import msgspec
from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell, Parallelism
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.failure import FailureClass
from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.record import Real
from pytest_xlatune.model.resources import Next, RetryRule
from pytest_xlatune.model.text import counted
from pytest_xlatune.model.trial import Arm, Trial
from pytest_xlatune.model.written import Written
from pytest_xlatune.studies import (
    Aim,
    Asked,
    DeclaredStudy,
    History,
    Policy,
    Traits,
    name_of,
)
from pytest_xlatune.studies.cell_arms import (
    CellArms,
    refuse_budget,
    refuse_unless_positive,
    waves_in,
)
from pytest_xlatune.studies.commit_check import _halving, _table
from pytest_xlatune.studies.commit_check._record import KIND, CommitsRecord, Found

__all__ = ["KIND", "CommitStudy", "Commits", "CommitsRecord", "Found", "Load"]

_SHORT = 12  # characters of a hash
_ONCE = "once"
# what a commit names or asks for wrongly: it is broken, and the others go on
_CANNOT_START = (
    *(FailureClass.IMAGE_MISSING, FailureClass.CONTAINER_FAIL),
    *(FailureClass.UNKNOWN_FLAG, FailureClass.CONFIG_ERROR),
)


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

        Raises:
            ConfigError: the sweep names fewer nodes.
        """
        return replace(
            of,
            model_tag=self.model,
            parallelism=Parallelism.parse(self.parallelism) if self.parallelism else of.parallelism,
            overrides={**of.overrides, **self.overrides},
            per_device_batch_size=self.per_device_batch_size or of.per_device_batch_size,
            nodelist=self._nodes(of.nodelist),
        )

    def _nodes(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return nodes `count .. 2 count - 1`: 1, 2 and 4 of 8 are disjoint, and run together."""
        count = self.nodes or len(names)
        if count > len(names) and names:
            raise ConfigError(
                f"commits: {self.name} needs {count} nodes, the node list names {len(names)}"
            )
        return names[count : 2 * count] if 2 * count <= len(names) else names[len(names) - count :]


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
        names = [each.name for each in self.loads]
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
            seed=asked.seed,
            loss_tolerance=asked.loss_tolerance,
        )


class CommitStudy(
    CellArms[_halving.Halving | _table.CommitTable], frozen=True, kw_only=True, dict=True
):
    """One study of commits: a search, or a table.

    Attributes:
        cells: of a search the commits in order; of a table load by load, each on all commits.
        labels: of the commits in order: short hash, then subject.
        asked: the demands.
        is_search: whether the change is looked for between the first and the last commit.
        budget: jobs that it may cost.
        seed: kept for later; orders alternate and are not random.
        loss_tolerance: relative distance of losses at which commits compute something else.
    """

    traits: ClassVar[Traits] = Traits(aim=Aim.ACCUSES)
    cells: tuple[Cell, ...]
    labels: tuple[str, ...]
    asked: Commits = Commits()
    is_search: bool = False
    budget: int = 50
    seed: int = 0
    loss_tolerance: Real = 0.02

    def __post_init__(self) -> None:
        if not self.labels or len(self.cells) % len(self.labels):
            raise ConfigError(
                "commits: no commit is named; name them (--xlatune-commits main..HEAD)"
            )
        least = 4 * _halving.PAIRS + 1 if self.is_search else len(self.cells)
        what = (
            f"commits: {'a search' if self.is_search else counted(len(self.cells), 'first run')} "
            f"takes {least} jobs or more"
        )
        refuse_budget(what, budget=self.budget, least=least, most=self.most_jobs)

    @cached_property
    def name(self) -> str:
        """The study's word, and which one it is where that was said."""
        parts = [self.asked.key]
        if self.is_search:  # another range is another search
            parts += [self.cells[0].digest, self.cells[-1].digest]
        elif not self.asked.key:
            return KIND
        return name_of(KIND, *parts)

    @property
    def policy(self) -> Policy:
        """Another commit may compute another loss, or be unable to start: both are findings."""
        broken = RetryRule(retries=0, then=Next.DROP)
        # the server of a submodule may be away for a moment
        again = RetryRule(retries=1, backoff_s=60, then=Next.DROP)
        rules: dict[str, RetryRule] = dict.fromkeys(_CANNOT_START, broken)
        rules[FailureClass.CHECKOUT_FAIL] = again
        return Policy(rules=rules)

    @property
    def commits(self) -> int:
        """How many."""
        return len(self.labels)

    @property
    def loads(self) -> tuple[str, ...]:
        """Names of the loads; one without a name where the sweep's own cell is the load."""
        return tuple(each.name for each in self.asked.loads) or ("",)

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Digest of a cell -> its place among the cells."""
        return {each.digest: at for at, each in enumerate(self.cells)}

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The arms' ids, by place."""
        hashes = [each.code[:_SHORT] for each in self.cells[: self.commits]]
        if self.is_search:
            return tuple(hashes)
        return tuple("-".join(filter(None, (load, each))) for load in self.loads for each in hashes)

    @property
    def most_jobs(self) -> int:
        """What it costs at most."""
        if self.is_search:
            steps = _halving.JOBS_PER_DOUBLING * (self.commits - 1).bit_length()
            return 6 * _halving.PAIRS + steps
        return len(self.cells) + 2 * _table.PAIRS * len(self.loads) * (self.commits - 1)

    def compared(self, history: History) -> tuple[Arm, ...]:
        """Return the loads on commits; of a search the ends, then what was measured between."""
        if not self.is_search:
            return self.every_arm
        seen = {self.places.get(each.trial.cell_digest, 0) for each in history}
        between = sorted(seen - {0, len(self.cells) - 1})
        return tuple(self.every_arm[at] for at in (0, len(self.cells) - 1, *between))

    @property
    def outline(self) -> tuple[Message, ...]:
        """What a plan says of it."""
        most = min(self.most_jobs, self.budget)
        if self.is_search:
            pairs = _halving.PAIRS
            return (
                say(
                    "{jobs} jobs: {pairs} alternating pairs of the first and the last of "
                    "{commits:+commit}",
                    jobs=2 * pairs,
                    pairs=pairs,
                    commits=self.commits,
                ),
                say(
                    "{jobs} more if these cannot tell; if they show no change, the search ends",
                    jobs=2 * pairs,
                ),
                say("then the commit that halves the rest, one job after the other on all nodes"),
                say(
                    "then {pairs} fresh pairs of the likeliest and its parent: at most {most} "
                    "jobs in all",
                    pairs=pairs,
                    most=most,
                ),
            )
        pairs = _table.PAIRS
        return (
            say(
                "{jobs:+job} in {waves:+wave}: {loads:+load} on {commits:+commit}, those on "
                "disjoint nodes at the same time",
                jobs=len(self.cells),
                waves=self._waves,
                loads=len(self.loads),
                commits=self.commits,
            ),
            say(
                "then {pairs} fresh pairs of each that looks slower, {waves} waves where their "
                "nodes are disjoint: at most {most} jobs in all",
                pairs=pairs,
                waves=2 * pairs,
                most=most,
            ),
        )

    @property
    def _waves(self) -> int:
        """How many first runs of equal length follow each other where most do."""
        return waves_in(cell.nodelist for cell in self.cells)

    def begin(self, history: History) -> _halving.Halving | _table.CommitTable:
        """Return the walk before its first pairs, or first runs."""
        return (_halving.Halving if self.is_search else _table.CommitTable)(self, history)

    def pairs(self, stage: str, one: int, other: int, numbers: range) -> tuple[Trial, ...]:
        """Return pairs of two places, one first, then the other first, and so on."""
        return tuple(
            self.trial_of(self.every_arm[at], stage, block=number, position=other)
            for number in numbers
            for at in ((one, other) if number % 2 else (other, one))
        )

    def step(self, place: int, number: int) -> Trial:
        """Return a run of the search, counted from 1."""
        return self.trial_of(self.every_arm[place], _halving.STEP, block=number)

    def once(self, place: int) -> Trial:
        """Return the first run of a load on a commit."""
        return self.trial_of(self.every_arm[place], _ONCE)
