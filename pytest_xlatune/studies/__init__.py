"""Questions asked of cells: the contract between a study and all that runs or reports it.

Each study is pure: `decide` says what to run next and what follows, `outlook` what is still to
come, `answer` what a waiting test may know. Any code that can feed results back drives them: a
campaign on a cluster, a simulated cluster that measures their error rates, a recorded ledger that
is replayed. Outside this package no code names a study's class or a stage.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Self, TypeVar

from msgspec.structs import replace

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.message import Message
from pytest_xlatune.model.profile import BASELINE_ID, Profile
from pytest_xlatune.model.record import Json, Record, digest
from pytest_xlatune.model.resources import RetryRule
from pytest_xlatune.model.result import Conclusion, TrialResult, Verdict
from pytest_xlatune.model.trial import Arm, Trial
from pytest_xlatune.model.written import Written, wrong_kind
from pytest_xlatune.stats.rotations import JobWork

History = Sequence[TrialResult]
S = TypeVar("S", bound="Study")
Owner = TypeVar("Owner")
Value = TypeVar("Value")
_REMEMBERED = 4  # how many histories a method keeps its results for


class OnNodeFailure(StrEnum):
    """What follows when a node cannot take its trial."""

    STOP = "stop"  # the study stops: its nodes are held fixed
    VERDICT = "verdict"  # the failure is the answer for the arm on that node; the study goes on


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a study wants of the campaign that runs it.

    Attributes:
        on_node_failure: what follows when a node cannot take its trial.
        reads_evidence: whether its history holds the evidence trials of other studies too.
        compiled_stage: the stage whose trials are compiled alone and never submitted: each is
            answered with the memory that its cell needs; "" where it has none.
        asks_nodes: whether each node is asked what its own log says, where the site can.
        derives: whether profiles follow from results, so that no plan can name them.
        rules: failure class -> what follows, before the playbook's rule and after the site's.
    """

    on_node_failure: OnNodeFailure = OnNodeFailure.STOP
    reads_evidence: bool = False
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


class Question(Record, frozen=True, kw_only=True):
    """A question to a study.

    Attributes:
        about: what is asked.
        name: the name of an arm, or of a slot.
        wave: the wave in which the arm or slot stands; "" is any.
        number: the number of a ranked arm, from 0.
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


class Answer(Record, frozen=True, kw_only=True):
    """What a study says to a question.

    Attributes:
        state: how far the answer is.
        verdict: the verdict, where one was asked for and the trials are over.
        arm: the arm, where one was asked for; None although `state` is YES: there is none.
    """

    state: Answered
    verdict: Verdict | None = None
    arm: Arm | None = None


NOT_YET = Answer(state=Answered.NOT_YET)
NEVER = Answer(state=Answered.NEVER)


class Aim(StrEnum):
    """What a kind of study does with its arms, which says when the test of an arm fails."""

    EXPLORES = "explores"  # when it is slower; one that cannot run is an expected failure
    ACCUSES = "accuses"  # when it is slower, or cannot run: both are findings about it
    RANKS = "ranks"  # never: every place is an answer. Its arms are cells, which share their nodes
    GATES = "gates"  # when it is not shown to be no worse


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What every study of a kind is, for all that collect, place and report it.

    Attributes:
        aim: what it does with its arms; the verdicts of one that gates say besides that a winner
            holds on another configuration.
        about_cell: whether it tells of the cell itself: a report shows it only where nothing else
            was asked, and no sweep file asks for it.
        compares_settings: whether a report adds what settings do to program and pipeline.
        is_deployed: whether the tuning document of the model covers it; a sweep file asks for it
            by its profiles.
        cell_nodes: nodes of each of its cells; 0 is all that are named. A node that takes no job
            is then an answer, and keeps no sweep from beginning.
        has_slots: whether it can lie on several node slots of its cell, which stay as they are.
        selection_fields: the fields that deselect a part of it -> their values where nothing is
            deselected.
        measured_fields: the fields that hold what earlier sessions measured.
    """

    aim: Aim = Aim.EXPLORES
    about_cell: bool = False
    compares_settings: bool = False
    is_deployed: bool = False
    cell_nodes: int = 0
    has_slots: bool = False
    selection_fields: Mapping[str, Json] = field(default_factory=dict)
    measured_fields: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a study makes of a history. Not slotted: the conclusion is drawn at the first use.

    Attributes:
        due: the trials to run next, in order; () when there is nothing left to run. Every trial
            that can be planned now and is not final in the history.
        arms: all that is compared, the reference first: declared arms, then derived ones.
        concluded: draws the conclusion. Never raises for what a workload did.
        added: which trials were added to those that were planned, and why; None: none were.
    """

    due: tuple[Trial, ...]
    arms: tuple[Arm, ...]
    concluded: Callable[[], Conclusion]
    added: Message | None = None

    @functools.cached_property
    def conclusion(self) -> Conclusion:
        """What follows from the history: verdicts, facts and notes."""
        return self.concluded()

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """The profiles that are compared, each once, the deployed baseline left out."""
        by_id = {arm.profile.id: arm.profile for arm in self.arms}
        return tuple(profile for name, profile in by_id.items() if name != BASELINE_ID)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What is still to come of a study, as far as it can be foretold.

    Attributes:
        ahead: the trials that are due, and those that can be named and wait for others.
        left: how many trials are likely still to come, those not planned yet included.
        at_most: how many may still come at most.
        rounds: how many of those that are left follow one another.
        work: what the trials to come have to do; None where they are alike, as in most studies.
        places: where a trial of the history, or of those ahead, stands, by its id: `round 3 of
            about 7, 4 pairs`. Where a study says nothing, a trial in a block belongs to the
            confirmation.
        write_lines: gives `lines`, which are written only when a plan asks for them.
    """

    ahead: tuple[Trial, ...]
    left: int
    at_most: int
    rounds: int
    work: JobWork | None = None
    places: Mapping[str, Message] = field(default_factory=dict)
    write_lines: Callable[[], tuple[Message, ...]] = tuple

    @property
    def lines(self) -> tuple[Message, ...]:
        """What a plan says of the study: its trials, and what they can show."""
        return self.write_lines()

    @classmethod
    def of(cls, due: tuple[Trial, ...], *, lines: tuple[Message, ...]) -> Self:
        """Return the outlook of a study whose trials can all be planned: one after the other."""
        count = len(due)
        return cls(ahead=due, left=count, at_most=count, rounds=count, write_lines=lambda: lines)


class Study(Record, frozen=True, kw_only=True, dict=True, weakref=True):
    """The whole contract between a study and all that runs it.

    A subclass is a frozen dataclass without slots, for what follows from its fields is kept. As
    builtins (`to_json`) it repeats, with a history, every conclusion.

    Attributes:
        traits: those of its kind.
        seed: the seed of its random orders; None where it draws none.
    """

    traits: ClassVar[Traits] = Traits()
    if TYPE_CHECKING:  # no fields: a subclass has its own, or a property

        @property
        def seed(self) -> int | None:
            """What its random orders follow from."""

        @property
        def cells(self) -> tuple[Cell, ...]:
            """Every cell that a trial of it may name, by digest."""
    else:
        seed = None

    @property
    @abstractmethod
    def name(self) -> str:
        """The study's word, e.g. `tuning`; then `-` and a digest where there may be several."""

    @property
    def reference(self) -> str:
        """The id of the arm that the others are compared with; "" where there is none."""
        return ""

    @property
    def policy(self) -> Policy:
        """What the study wants of the campaign that runs it."""
        return Policy()

    @abstractmethod
    def decide(self, history: History) -> Decision:
        """Return what to run next, and what follows from what ran.

        Deterministic given the study and the history: every process that asks gets the same trials
        in the same order, and the same verdicts.
        """

    @abstractmethod
    def outlook(self, history: History) -> Outlook:
        """Return what is still to come."""

    @abstractmethod
    def answer(self, history: History, question: Question) -> Answer:
        """Return what a waiting test asks: a verdict, an arm, "not yet" or "never"."""


def name_of(kind: str, *parts: Json) -> str:
    """Return the name of a study: its kind, and a digest of what tells it from others of it."""
    return f"{kind}-{digest(list(parts), length=8)}" if parts else kind


def all_selected(study: S) -> S:
    """Return a study with nothing deselected: what a report is about."""
    fields = study.traits.selection_fields
    changes = {name: value for name, value in fields.items() if getattr(study, name) != value}
    return replace(study, **changes) if changes else study


def as_begun(study: S, declared: Mapping[str, Json]) -> S:
    """Return a study as the first process of its session declared it.

    What was found since then, such as a calibration's noise, counts from the next session on:
    otherwise two processes of one session would plan differently.
    """
    current, before = (
        study.to_json(),
        {name: declared.get(name) for name in study.traits.measured_fields},
    )
    if current | before == current:
        return study
    # a declaration is kept without its secrets: all but what was found stays our own
    restored = study.from_json(current | before)
    return replace(study, **{name: getattr(restored, name) for name in before})


class Candidate(Record, frozen=True, kw_only=True):
    """A rival of the cell as deployed: settings, a commit, an image, an interpreter.

    Attributes:
        profile: its id, and its settings on top of the deployed; none where the rest says all.
        code: of the trainer's repository: a hash, a branch or `HEAD`.
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
        cell: the cell of the sweep.
        variants: config tag -> the cell of that configuration.
        profiles: all that the sweep declares.
        others: id of a profile -> the cell that it is measured in, where that is another.
        selected: ids of the arms that the selected tests name; None is all.
        budget: trials that the study may cost.
        seed: the seed of the random orders.
        loss_tolerance: relative distance of a loss that makes a trial invalid.
        configured: the trainer's configuration file, key -> value, where it can be read here.
        commits: the commits as the user named them, where some are compared: `others` has their
            cells by short hash and subject then, in order.
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
    configured: Mapping[str, str] = field(default_factory=dict)
    commits: str = ""
    asks_compiler: bool = False


class DeclaredStudy(Written, frozen=True, kw_only=True):
    """A study as a sweep file declares it: `Sweep(study=...)`. Its fields are the study's own.

    A subclass is a frozen, slotted, keyword-only dataclass in the module of its study.

    Attributes:
        kind: the kind of its entry in the registry.
    """

    kind: ClassVar[str] = ""

    @abstractmethod
    def study(self, asked: Asked) -> Study:
        """Return the study of a sweep; raises ConfigError where the two do not fit."""

    @property
    def names_arms(self) -> bool:
        """Whether the arms are known before anything runs, so that each can have a test."""
        return True

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """What it compares beside the profiles of the sweep."""
        return ()

    @property
    def commits(self) -> str | None:
        """The commits that it compares, "" where an option names them; None compares none."""
        return None

    def is_search(self, commits: str) -> bool:
        """Whether these commits are searched, and so every one between the ends is a cell."""
        del commits
        return False


def check_declared(declaration: object, *, kinds: Collection[str], what: str) -> None:
    """Refuse a value that declares no study of one of these kinds.

    Raises:
        ConfigError: names it `what`.
    """
    if not isinstance(declaration, DeclaredStudy) or declaration.kind not in kinds:
        raise wrong_kind(what, declaration, "a study's declaration, e.g. Gate(...)")


def remembered(
    method: Callable[[Owner, tuple[TrialResult, ...]], Value],
) -> Callable[[Owner, History], Value]:
    """Make a pure method keep its last results: asked again of a history, it costs a comparison.

    Results are compared one by one with those of the history before, which is fast where they are
    the same objects: a campaign hands the same ones over until something happens. Equal studies,
    such as the session's own and the one that a report reads from the ledger, share them.
    """
    known: list[tuple[Owner, tuple[TrialResult, ...], Value]] = []

    @functools.wraps(method)
    def asked(self: Owner, history: History) -> Value:
        asked_of = tuple(history)
        for at, (study, past, value) in enumerate(known):
            is_same = study is self or study == self
            if is_same and (past is asked_of or past == asked_of):
                known.insert(0, known.pop(at))  # those that are asked of most stay
                return value
        value = method(self, asked_of)
        known.insert(0, (self, asked_of, value))
        del known[_REMEMBERED:]
        return value

    return asked
