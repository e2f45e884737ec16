"""Questions asked of cells: the contract between a study and all that runs or reports it.

Each study is pure: `propose` says what to run next, `conclude` says what follows, `answer` says
what a waiting test may know. Any code that can feed results back drives them: a campaign on a
cluster, a simulated cluster that measures their error rates, a recorded ledger that is replayed.
Outside this package no code names a study's class or a stage.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar, Protocol, TypeVar, runtime_checkable

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.profile import BASELINE_ID, Profile
from pytest_xlatune.model.reason import Reason
from pytest_xlatune.model.record import Json, Record
from pytest_xlatune.model.resources import RetryRule
from pytest_xlatune.model.result import Conclusion, TrialResult, Verdict
from pytest_xlatune.model.trial import Arm, Behind, Trial

History = Sequence[TrialResult]
Owner = TypeVar("Owner")
Value = TypeVar("Value")
_REMEMBERED = 4  # histories


class OnNodeFailure(StrEnum):
    """What follows when a node cannot take its trial."""

    STOP = "stop"  # the study stops: its nodes are held fixed
    VERDICT = "verdict"  # the failure is the answer for the arm on that node; the study goes on


class LossRule(StrEnum):
    """With what the loss of a trial is compared."""

    REFERENCE = "reference"  # with the reference's: arms must compute the same
    OWN_ARM = "own-arm"  # with the other trials of its arm: another cell has another loss
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a study wants of the campaign that runs it.

    Attributes:
        on_node_failure: what follows when a node cannot take its trial.
        loss: with what a trial's loss is compared.
        reads_evidence: whether its history holds the evidence trials of other studies too.
        compiles_first: whether a compile check may say that trials outside blocks need no run.
        compiled_stage: the stage whose trials are compiled alone and never submitted: each is
            answered with the memory that its cell needs; "" where it has none.
        asks_nodes: whether each node is asked what its own log says, where the site can.
        derives: whether profiles follow from results, so that no plan can name them.
        rules: failure class -> what follows, before the playbook's rule and after the site's.
    """

    on_node_failure: OnNodeFailure = OnNodeFailure.STOP
    loss: LossRule = LossRule.REFERENCE
    reads_evidence: bool = False
    compiles_first: bool = False
    compiled_stage: str = ""
    asks_nodes: bool = False
    derives: bool = False
    rules: Mapping[str, RetryRule] = field(default_factory=dict)


class Ask(StrEnum):
    """What a waiting test may ask."""

    REFERENCE = "reference"  # the line of the reference, once its first trials are over
    SCREENED = "screened"  # an arm as measured once to rank, once its wave is over
    CONFIRMED = "confirmed"  # the verdict on an arm, once everything is over
    SLOT = "slot"  # the arm that filled a named slot, once its wave is over
    RANKED = "ranked"  # the arm that went to confirmation as number so and so, from 0
    BEST = "best"  # the arm that is proved fastest, once everything is over
    PROVEN = "proven"  # the same from the results so far, whatever this run has deselected


@dataclass(frozen=True, slots=True, kw_only=True)
class Question(Record):
    """A question to a study.

    Attributes:
        about: what.
        name: of an arm, or of a slot.
        wave: where the arm or slot stands; "" is anywhere.
        number: of a ranked arm, from 0.
    """

    about: Ask
    name: str = ""
    wave: str = ""
    number: int = 0


class Answered(StrEnum):
    """How far an answer is."""

    NOT_YET = "not-yet"
    NEVER = "never"  # the study has no such arm
    UNMEASURED = "unmeasured"  # the trials are over and could not be measured
    YES = "yes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Record):
    """What a study says to a question.

    Attributes:
        state: how far it is.
        verdict: where one was asked for and the trials are over.
        arm: where one was asked for; None although `state` is YES: there is none.
    """

    state: Answered
    verdict: Verdict | None = None
    arm: Arm | None = None


NOT_YET = Answer(state=Answered.NOT_YET)
NEVER = Answer(state=Answered.NEVER)


class Study(Protocol):
    """The whole contract between a study and what runs it."""

    @property
    def name(self) -> str:
        """The study's word, e.g. `tuning`; then `-` and a digest where there may be several."""
        ...

    @property
    def cells(self) -> tuple[Cell, ...]:
        """Every cell that a trial of it may name, by digest."""
        ...

    @property
    def reference(self) -> str:
        """The id of the arm that the others are compared with; "" where there is none."""
        ...

    @property
    def policy(self) -> Policy:
        """What the study wants of the campaign that runs it."""
        ...

    def arms(self, history: History) -> tuple[Arm, ...]:
        """Return all that it compares, the reference first: declared arms, then derived ones."""
        ...

    def propose(self, history: History) -> tuple[Trial, ...]:
        """Return the trials to run next, in order; () when there is nothing left to run.

        Every trial that can be planned now and is not final in `history`. Deterministic given the
        study and the history: every process that asks gets the same trials in the same order.
        """
        ...

    def conclude(self, history: History) -> Conclusion:
        """Return what follows from `history`. Never raises for what a workload did."""
        ...

    def answer(self, history: History, question: Question) -> Answer:
        """Return what a waiting test asks: a verdict, an arm, "not yet" or "never"."""
        ...

    def left(self, history: History) -> int:
        """Return how many trials are likely still to come, those not planned yet included."""
        ...

    def at_most(self, history: History) -> int:
        """Return how many trials may still come at most; `left` where no more can follow."""
        ...

    def why_more(self, history: History) -> Reason | None:
        """Return which trials were added to those that were planned, and why; None: none were."""
        ...

    def ahead(self, history: History) -> tuple[Trial, ...]:
        """Return the trials that are proposed, and those that can be named and wait for others."""
        ...

    def outline(self, history: History) -> tuple[Reason, ...]:
        """Return what a plan says of the study: its trials, and what they can show."""
        ...

    def whole(self) -> Study:
        """Return the study with nothing deselected: what a report is about."""
        ...

    def to_json(self) -> dict[str, Json]:
        """Return the study as builtins: with a history it repeats every conclusion."""
        ...


@runtime_checkable
class _SaysWhere(Protocol):
    def place(self, trial: Trial) -> Reason | None: ...


def says_where(study: Study) -> bool:
    """Whether a study says itself where its trials stand; of others a block is confirmation."""
    return isinstance(study, _SaysWhere)


def place_in(study: Study, trial: Trial) -> Reason | None:
    """Return where a trial stands, e.g. `round 3 of about 7, 4 pairs`; None of most."""
    return study.place(trial) if isinstance(study, _SaysWhere) else None


@runtime_checkable
class _SaysRounds(Protocol):
    def rounds(self, history: History) -> int: ...


def rounds_in(study: Study, history: History) -> int:
    """Return how many of the trials still to come follow one another; all of them in most."""
    return study.rounds(history) if isinstance(study, _SaysRounds) else study.left(history)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate(Record):
    """A rival of the cell as deployed: settings, a commit, an image, an interpreter.

    Attributes:
        profile: its id, and its settings on top of the deployed; none where the rest says all.
        code: of the trainer's repository: a hash, a branch, `HEAD`, or "uncommitted".
        image: in the place of the cell's.
        python: the trainer's interpreter, in the place of the launcher's.
    """

    profile: Profile
    code: str = ""
    image: str = ""
    python: str = ""

    @property
    def is_a_cell(self) -> bool:
        """Whether it is measured in a cell of its own: it is more than settings."""
        return bool(self.code or self.image or self.python)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a sweep file and the selected tests hand to a declaration, which makes its study of it.

    Attributes:
        cell: of the sweep.
        variants: config tag -> the cell of that configuration.
        profiles: all that the sweep declares.
        others: id of a profile -> the cell that it is measured in, where that is another.
        selected: ids of the arms that the selected tests name; None is all.
        budget: trials that the study may cost.
        seed: of the random orders.
        loss_tolerance: relative distance of a loss that makes a trial invalid.
        read_baselines: path of an earlier report -> when it was written, and its baseline trials;
            raises ConfigError where it is no report of this very cell.
        read_reference: path of an earlier `nodes.json` -> Tokens/s/device of its median node;
            raises likewise, but for the nodes.
        commits: as the user named them, where commits are compared: `others` has their cells by
            short hash and subject then, in order.
        asks_compiler: whether the sweep asks for a compile check.
    """

    cell: Cell
    variants: Mapping[str, Cell]
    profiles: tuple[Profile, ...]
    others: Mapping[str, Cell]
    selected: frozenset[str] | None
    budget: int
    seed: int
    loss_tolerance: float
    read_baselines: Callable[[str], tuple[str, tuple[TrialResult, ...]]]
    read_reference: Callable[[str], float]
    commits: str = ""
    asks_compiler: bool = False


class DeclaredStudy(Protocol):
    """A study as a sweep file declares it: `Sweep(study=...)`. Its attributes are the study's own.

    Attributes:
        kind: of its entry in the registry.
    """

    kind: ClassVar[str]

    def study(self, asked: Asked) -> Study:
        """Return the study of a sweep; raises ConfigError where the two do not fit."""
        ...


@runtime_checkable
class _EndsEarly(Protocol):
    def behind(self, history: History, running: TrialResult) -> Behind | None: ...


def behind_in(study: Study, history: History, running: TrialResult) -> Behind | None:
    """Return how far behind a running trial is, where it is to be ended early; None in most.

    `running` has the score of its first steps.
    """
    return study.behind(history, running) if isinstance(study, _EndsEarly) else None


def profiles_in(study: Study, history: History) -> tuple[Profile, ...]:
    """Return the profiles that a study compares, each once, the deployed baseline left out."""
    found = {each.profile.id: each.profile for each in study.arms(history)}
    return tuple(each for name, each in found.items() if name != BASELINE_ID)


def remembered(
    method: Callable[[Owner, tuple[TrialResult, ...]], Value],
) -> Callable[[Owner, History], Value]:
    """Make a pure method keep its last results: asked again of a history, it costs a comparison.

    Results are compared one by one with those of the history before, which is fast where they are
    the same objects: a campaign hands the same ones over until something happens.
    """
    name = f"_last_of_{method.__name__}"

    @functools.wraps(method)
    def asked(self: Owner, history: History) -> Value:
        known: list[tuple[tuple[TrialResult, ...], Value]] = vars(self).setdefault(name, [])
        asked_of = tuple(history)
        for past, value in known:
            if past is asked_of or past == asked_of:
                return value
        value = method(self, asked_of)
        known.insert(0, (asked_of, value))
        del known[_REMEMBERED:]
        return value

    return asked
