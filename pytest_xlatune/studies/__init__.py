"""Questions asked of cells: the contract between a study and all that runs or reports it.

Each study is pure: `decide` returns what to run next and what follows from the results so far,
`outlook` what is still to come, `answer` what a waiting test may know. Any code that can return
results drives a study: a campaign on a cluster, a simulated cluster that measures error rates, a
recorded ledger that is replayed. Outside this package no code names a study's class or a stage.
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
_REMEMBERED = 4  # number of results that a method of a study caches


class OnNodeFailure(StrEnum):
    """What follows when a node cannot take its trial."""

    STOP = "stop"  # the study stops: its nodes are held fixed
    VERDICT = "verdict"  # the failure is the answer for the arm on that node; the study goes on


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a study demands of the campaign that runs it.

    Attributes:
        on_node_failure: what follows when a node cannot take its trial.
        reads_evidence: whether the history of the study includes other studies' evidence.
        compiled_stage: the stage whose trials are only compiled and never submitted; the result of
            each is the memory that its cell needs. "" if the study has no such stage.
        asks_nodes: whether the log of each node is searched for errors, where the site allows it.
        rules: failure class -> what follows. A rule of the site takes precedence over these, and
            these over the playbook.
    """

    on_node_failure: OnNodeFailure = OnNodeFailure.STOP
    reads_evidence: bool = False
    compiled_stage: str = ""
    asks_nodes: bool = False
    rules: Mapping[str, RetryRule] = field(default_factory=dict)


class Ask(StrEnum):
    """What a waiting test may ask."""

    REFERENCE = "reference"  # the verdict line of the reference, once the screen is over
    SCREENED = "screened"  # an arm as the screen ranks it, once its wave is over
    CONFIRMED = "confirmed"  # the verdict on an arm, once everything is over
    SLOT = "slot"  # the arm that filled a named slot, once the wave of the slot is over
    RANKED = "ranked"  # the arm that entered the confirmation at a rank, counted from 0
    BEST = "best"  # the arm that is shown to be the fastest, once everything is over
    # the arm that is shown to be the fastest by the results so far, even if this run deselected
    # some trials
    PROVEN = "proven"


class Question(Record, frozen=True, kw_only=True):
    """A question to a study.

    Attributes:
        about: what is asked.
        name: the name of an arm, or of a slot.
        wave: the wave of the arm or slot; "" accepts any wave.
        number: for `Ask.RANKED`, `Ask.BEST` and `Ask.PROVEN`, the rank of the arm, from 0.
    """

    about: Ask
    name: str = ""
    wave: str = ""
    number: int = 0


class Answered(StrEnum):
    """Whether a question has its answer yet."""

    NOT_YET = "not-yet"
    NEVER = "never"  # the study has no such arm and will have none
    UNMEASURED = "unmeasured"  # the trials are over, but the arm could not be measured
    YES = "yes"


class Answer(Record, frozen=True, kw_only=True):
    """The answer of a study to a question.

    Attributes:
        state: whether the question has its answer yet.
        verdict: the verdict, if the question was about one and the trials are over; else None.
        arm: the arm, if the question was about one. None with the state YES means that there is
            none.
    """

    state: Answered
    verdict: Verdict | None = None
    arm: Arm | None = None


NOT_YET = Answer(state=Answered.NOT_YET)
NEVER = Answer(state=Answered.NEVER)


class Aim(StrEnum):
    """What a kind of study does with its arms. It decides when the test of an arm fails."""

    # the test fails if the arm is slower; an arm that cannot run is an expected failure
    EXPLORES = "explores"
    # the test fails if the arm is slower or cannot run: both are findings about the arm
    ACCUSES = "accuses"
    # the test never fails, because every rank is an answer; the arms are cells on the same nodes
    RANKS = "ranks"
    GATES = "gates"  # the test fails unless the arm is shown to be no worse


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What all studies of a kind have in common, for the code that collects and reports them.

    Attributes:
        aim: what the study does with its arms. The verdicts of a study that gates also say whether
            a winner holds on another configuration.
        about_cell: whether the study describes the cell itself. No sweep file declares such a
            study, and a report shows it only if it has nothing else.
        compares_settings: whether a report adds what the settings change in the compiled program.
        is_deployed: whether the tuning document of the model covers the study. A sweep file
            declares such a study by its profiles.
        cell_nodes: number of nodes of each cell of the study; 0 means all named nodes. With another
            number, a node that takes no job is an answer and does not keep the sweep from starting.
        has_slots: whether its trials can be spread over node slots, which are then fixed.
        selection_fields: fields that select a part of the study -> their values if all is selected.
        measured_fields: names of the fields that hold what earlier sessions measured.
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
    """What a study decides from a history. It has no slots: the conclusion is cached on first use.

    Attributes:
        due: the trials to run next, in order: every trial that can be planned now and is not final
            in the history. () when nothing is left to run.
        arms: all arms that are compared, the reference first, derived arms last.
        concluded: a function that draws the conclusion; it raises nothing for what a workload did.
    """

    due: tuple[Trial, ...]
    arms: tuple[Arm, ...]
    concluded: Callable[[], Conclusion]

    @functools.cached_property
    def conclusion(self) -> Conclusion:
        """The verdicts, facts and notes that follow from the history."""
        return self.concluded()

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """The profiles that are compared, each once, without the deployed baseline."""
        by_id = {arm.profile.id: arm.profile for arm in self.arms}
        return tuple(profile for name, profile in by_id.items() if name != BASELINE_ID)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a study still has to run, as far as it can be foretold.

    Attributes:
        ahead: trials that are due, then the trials that wait for others but have a name already.
        left: how many trials are likely still to come, including those not planned yet.
        at_most: how many trials may still come at most.
        rounds: how many trials must still follow one another on a slot; 0 if there is one slot.
        work: what the trials to come have to do; None if all are alike, as in most studies.
        places: id of a trial -> its place in the study, e.g. `round 3 of about 7, 4 pairs`. A trial
            without an entry belongs to the confirmation if it has a block number.
        write_lines: a function that writes `lines`; it is called only when a plan shows them.
    """

    ahead: tuple[Trial, ...]
    left: int
    at_most: int
    rounds: int = 0
    work: JobWork | None = None
    places: Mapping[str, Message] = field(default_factory=dict)
    write_lines: Callable[[], tuple[Message, ...]] = tuple

    @property
    def lines(self) -> tuple[Message, ...]:
        """The lines of a plan about the study: its trials, and what they can show."""
        return self.write_lines()

    @classmethod
    def of(cls, due: tuple[Trial, ...], *, lines: tuple[Message, ...]) -> Self:
        """Return the outlook of a study whose trials can all be planned and run one by one."""
        count = len(due)
        return cls(ahead=due, left=count, at_most=count, write_lines=lambda: lines)


class Study(Record, frozen=True, kw_only=True, dict=True, weakref=True, gc=True):
    """The whole contract between a study and all that runs it.

    A subclass is a frozen record with a `__dict__`, because values derived from its fields are
    cached there. The JSON form of a study (`to_json`) and a history reproduce every conclusion.

    Attributes:
        traits: the traits of the kind of study.
        seed: the seed of its random orders; None if it draws none.
    """

    traits: ClassVar[Traits] = Traits()
    if TYPE_CHECKING:  # these are no fields here: a subclass has a field or a property of the name

        @property
        def seed(self) -> int | None:
            """The seed of its random orders."""

        @property
        def cells(self) -> tuple[Cell, ...]:
            """All cells that its trials may name, ordered by digest."""
    else:
        seed = None

    @property
    @abstractmethod
    def name(self) -> str:
        """The kind of study, e.g. `tuning`, then `-` and a digest if a ledger can hold several."""

    @property
    def reference(self) -> str:
        """The id of the arm that the others are compared with; "" if there is none."""
        return ""

    @property
    def policy(self) -> Policy:
        """What the study demands of the campaign that runs it."""
        return Policy()

    @abstractmethod
    def decide(self, history: History) -> Decision:
        """Return what to run next, and what follows from what ran.

        The result depends on the study and the history alone: every process gets the same trials in
        the same order, and the same verdicts.
        """

    @abstractmethod
    def outlook(self, history: History) -> Outlook:
        """Return what is still to come."""

    @abstractmethod
    def answer(self, history: History, question: Question) -> Answer:
        """Return the answer to a waiting test: a verdict, an arm, "not yet" or "never"."""


def name_of(kind: str, *parts: Json) -> str:
    """Return a study's name: its kind, and a digest of the parts that distinguish it."""
    return f"{kind}-{digest(list(parts), length=8)}" if parts else kind


def all_selected(study: S) -> S:
    """Return the study with nothing deselected, which is what a report describes."""
    fields = study.traits.selection_fields
    changes = {name: value for name, value in fields.items() if getattr(study, name) != value}
    return replace(study, **changes) if changes else study


def as_begun(study: S, declared: Mapping[str, Json]) -> S:
    """Return the study as the first process of its session declared it.

    What was measured since then, such as the noise of a calibration, is used from the next session
    on. Otherwise two processes of one session would plan differently.

    Args:
        study: the study as this process declares it.
        declared: the JSON form of the study as the first process declared it.
    """
    current = study.to_json()
    measured = {name: declared.get(name) for name in study.traits.measured_fields}
    if current | measured == current:
        return study
    # A recorded declaration has no secrets, so only the measured fields are taken from it.
    restored = study.from_json(current | measured)
    return replace(study, **{name: getattr(restored, name) for name in measured})


class Candidate(Record, frozen=True, kw_only=True):
    """A rival of the deployed cell: other settings, another commit, image or interpreter.

    Attributes:
        profile: its id, and its settings on top of the deployed ones; it may have none.
        code: a commit of the trainer's repository: a hash, a branch or `HEAD`; "" keeps the cell's.
        image: the image that replaces the cell's; "" keeps the cell's.
        python: the interpreter that replaces the launcher's for the trainer; "" keeps it.
    """

    profile: Profile
    code: str = ""
    image: str = ""
    python: str = ""

    @property
    def is_a_cell(self) -> bool:
        """Whether the candidate changes more than settings, so that it has a cell of its own."""
        return bool(self.code or self.image or self.python)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a sweep file and the selected tests pass to a declaration, which returns the study.

    Attributes:
        cell: the cell of the sweep.
        variants: config tag -> the cell of the sweep in that configuration.
        profiles: all profiles that the sweep declares.
        others: id of a profile -> the cell that it is measured in, for profiles with another cell.
        selected: ids of the arms that the selected tests name; None selects all.
        budget: how many trials the study may run.
        seed: the seed of the random orders.
        loss_tolerance: relative deviation of a loss that makes a trial invalid.
        configured: the trainer's configuration file, key -> value; empty if it cannot be read here.
        commits: the commits as the user named them; "" if none are compared. If some are, `others`
            holds their cells in order, by short hash and subject.
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
    """A study as a sweep file declares it: `Sweep(study=...)`.

    A subclass is a frozen, keyword-only record in the module of its study, and adds the options.

    Attributes:
        kind: the name of its kind in the registry.
    """

    kind: ClassVar[str] = ""

    @abstractmethod
    def study(self, asked: Asked) -> Study:
        """Return the study of a sweep; raise ConfigError if the declaration does not suit it."""

    @property
    def names_arms(self) -> bool:
        """Whether the arms are known before anything runs, so that every arm can have a test."""
        return True

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The candidates that it compares in addition to the profiles of the sweep."""
        return ()

    @property
    def commits(self) -> str | None:
        """The commits that the study compares.

        They are "" if an option of the command line names them, None if the study compares none.
        """
        return None

    def is_search(self, commits: str) -> bool:
        """Return whether these commits are a range to search, where every commit is a cell."""
        del commits
        return False


def check_declared(declaration: object, *, kinds: Collection[str], what: str) -> None:
    """Refuse a value that declares no study of one of these kinds.

    Raises:
        ConfigError: the value is no such declaration; the message calls it `what`.
    """
    if not isinstance(declaration, DeclaredStudy) or declaration.kind not in kinds:
        raise wrong_kind(what, declaration, "a study's declaration, e.g. Gate(...)")


def remembered(
    method: Callable[[Owner, tuple[TrialResult, ...]], Value],
) -> Callable[[Owner, History], Value]:
    """Return the pure method with a cache of its last results, keyed by study and history.

    Histories are compared result by result. This is fast if the results are the same objects, and a
    campaign passes the same objects until something happens. Equal studies, such as the session's
    own and the one that a report reads from the ledger, share a cache.
    """
    cached: list[tuple[Owner, tuple[TrialResult, ...], Value]] = []

    @functools.wraps(method)
    def cached_method(self: Owner, history: History) -> Value:
        results = tuple(history)
        for at, (study, cached_results, value) in enumerate(cached):
            # The lengths are compared first: comparing a history with a longer one that begins with
            # the same results would go through all of them.
            if len(cached_results) != len(results) or not (study is self or study == self):
                continue
            if cached_results is results or cached_results == results:
                cached.insert(0, cached.pop(at))  # the entries used most recently stay
                return value
        value = method(self, results)
        cached.insert(0, (self, results, value))
        del cached[_REMEMBERED:]
        return value

    return cached_method
