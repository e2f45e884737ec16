"""Why something is so, as a value: a kind and its fields. No sentence stands here.

    Reason(Why.LIKELY_SLOWER, runs=2)         -> {"kind": "likely-slower", "runs": 2}
    verbatim("Killed by the site")            -> {"kind": "said", "text": "Killed by the site"}

Studies, statistics and campaigns state reasons, the ledger and every JSON text keep them, and
`report/words.py` makes sentences of them, in each language. What others said, a scheduler or a log,
is kept as they said it: `Why.SAID`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum, auto
from typing import Any, Self

from pytest_xlatune.model.errors import LedgerError
from pytest_xlatune.model.record import Json

# a field: a number, a name, another reason, several of them, or None where there is none
Value = Any
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class Why(StrEnum):
    """The kinds of reasons; `report/words.py` has the fields and the words of each."""

    @staticmethod
    def _generate_next_value_(name: str, start: int, count: int, last_values: list[str]) -> str:
        del start, count, last_values
        return name.lower().replace("_", "-")

    SAID = auto()  # words of others as they stand

    # scores: why a job has none
    NO_STEP = auto()
    LOSS_NOT_FINITE = auto()
    NO_TOKENS = auto()
    NO_FIGURE = auto()
    NO_BANDWIDTH = auto()
    FEW_FIGURES = auto()
    NO_MEASURE = auto()
    STEPS_NOT_KEPT = auto()
    FEW_STEPS = auto()
    FEW_LEFT = auto()
    TOO_SHORT = auto()
    TOO_SHORT_FOR = auto()
    PROFILER_TAKES = auto()
    EVALUATION_TAKES = auto()
    RESUMED_AT = auto()

    # validity: settings and losses
    CONTRADICTED = auto()
    NOT_SET = auto()
    CUT_OFF = auto()
    OPTION_LEFT_OUT = auto()
    OPTION_AT_DEFAULT = auto()
    PGLE_UNREAD = auto()
    PGLE_OF_ANOTHER = auto()
    ONLY_ASKED = auto()
    NOT_SEEN = auto()
    OTHER_LOSS = auto()

    # the window of all trials
    WINDOW_KEPT = auto()
    WINDOW_TOO_SHORT = auto()
    WINDOW_MOVED = auto()
    WINDOW_MOVED_SHORT = auto()
    USE_MORE_STEPS = auto()

    # comparisons: the methods, and why there is none
    FEW_DF = auto()
    SCORES_NOT_FINITE = auto()
    SCORES_COPIED = auto()
    NOT_IN_BLOCKS = auto()
    DUNNETT = auto()
    BONFERRONI = auto()
    OWN_NOISE = auto()
    WELCH = auto()

    # the plan of a sweep, and what it can see
    LAYOUT = auto()
    BLOCKS = auto()
    FIRST_BLOCK = auto()
    FIRST_BLOCKS = auto()
    BEST_IN_MORE = auto()
    BEST_AGAIN = auto()
    AND_THE_PAIR = auto()
    KEPT_FOR_SPARE = auto()
    ONE_MORE_BLOCK = auto()
    MOST_BLOCKS = auto()
    RANKS_ONLY = auto()
    RANKING_ONLY = auto()
    OUTLOOK = auto()
    JOB_NOISE = auto()
    BUDGET_RANKS = auto()
    BUDGET_FINDS = auto()

    # noise between node slots
    SLOT_NOISE = auto()
    SLOT_SLOWER = auto()
    NO_SLOT_SLOWER = auto()
    NEIGHBOURS_UNTOLD = auto()
    NEIGHBOURS_QUIET = auto()
    NEIGHBOURS_SLOW = auto()
    NEIGHBOURS_CHANGE = auto()

    # jobs that ran, and not on what they were for
    ON_THE_CPU = auto()
    OTHER_DEVICE = auto()

    # bandwidth tests
    WRONG_VALUES = auto()
    SEVERAL_SIZES = auto()
    NO_SUMMARY = auto()

    # rotations: their turns, and what they rank
    NO_TURN_BEGAN = auto()
    CALLS_APART = auto()
    CALLS_A_STEP = auto()
    STEP_MADE_ANEW = auto()
    ODD_CALLS = auto()
    LINES_TOO_RARE = auto()
    NO_TURN_OF_BASELINE = auto()
    ROTATION_OFF = auto()
    NO_ROTATION_ON_SLOTS = auto()
    ROTATION_SAVES_NOTHING = auto()
    NONE_ROTATES = auto()
    ROTATES = auto()
    STAYS_A_JOB = auto()
    JOBS_OF_BOTH_PLANS = auto()
    LOOK_FINDS_NONE = auto()
    FIRST_ROTATION_FAILED = auto()
    NO_TURN_OF_ITS_OWN = auto()
    ROTATION_DIED_OF = auto()
    PROFILES_ROTATE = auto()
    ROTATION_CUT = auto()

    # trials that are not run, and those of a table
    TABLE_SAYS = auto()
    COMPILED_ONLY = auto()
    NEEDS_NO_RUN = auto()
    COMPILING_SAYS = auto()

    # rotations: what happened in one
    NO_JOURNAL = auto()
    STEP_NOT_FOUND = auto()
    PROGRAM_REFUSED = auto()
    PROGRAM_TOO_LARGE = auto()
    DIED_COMPILING = auto()
    DIED_IN_TURN = auto()

    # rotations: why a profile stays a job of its own
    STAYS_FOR_KEY = auto()
    STAYS_FOR_VARIABLE = auto()
    STAYS_FOR_MESSAGE = auto()
    STAYS_FOR_START = auto()
    STAYS_FOR_EDIT = auto()

    # what all studies share
    NO_SCORE = auto()
    SCORE_NOT_FINITE = auto()
    NOT_YET_MEASURED = auto()
    UNMEASURED = auto()
    CANNOT_RUN = auto()
    HANG = auto()
    CLASS = auto()
    RUNS_LOST = auto()
    RUNS_LOST_TO = auto()
    SURVIVORS = auto()
    STRAGGLERS = auto()
    NO_SCORED_BLOCK = auto()
    FLAGGED = auto()
    THE_REFERENCE = auto()
    STEADY_LATER = auto()
    STEADY_EARLIER = auto()

    # verdicts and notes of a tuning sweep
    NOISE_SEEN = auto()
    NOISE_KNOWN = auto()
    NOISE_ASSUMED = auto()
    NO_BASELINE_BESIDE = auto()
    MEASURED_ONCE = auto()
    SCREENED_ONLY = auto()
    LIKELY_SLOWER = auto()
    RANKED_IN_TURNS = auto()
    FROM_ROTATIONS = auto()
    FROM_SCREEN_LINE = auto()
    FROM_SCREEN_AND_BLOCKS = auto()
    FINALIST_SO_FAR = auto()
    RANKS_ONCE = auto()
    RANKS_TWICE = auto()
    RANKS_TIMES = auto()
    NOT_AN_ARM = auto()
    ELSE = auto()
    WITH_SPARE_BLOCKS = auto()
    FASTER = auto()
    SLOWER = auto()
    NO_DIFFERENCE = auto()
    CANNOT_TELL = auto()
    AA_TRIAL = auto()
    REPEAT = auto()
    PLAN_FINDS = auto()
    STOP_RULE = auto()
    AA_CONTROL = auto()
    BOUNDED = auto()
    BOUND_REACHES = auto()
    BOUND_REACHES_ONCE = auto()
    NOT_BOUNDED = auto()
    SPARE_BLOCKS = auto()
    NOTHING_BOUNDED = auto()
    SINGLE_BASELINE = auto()
    NEITHER_SELECTED = auto()
    TIE = auto()
    MACHINE_TOO_NOISY = auto()
    UNLIKE_WARMUPS = auto()
    CAME_TOO_LATE = auto()
    EPOCHS = auto()
    UNDECLARED = auto()
    SETTINGS_CHANGED = auto()
    FOREIGN_TRIALS = auto()

    # derived waves: what fills their slots, and what was passed over
    SEVERAL = auto()
    NO_AIM = auto()
    FILLS_SINGLES_BY_EVIDENCE = auto()
    FILLS_SINGLES = auto()
    FILLS_STACKS = auto()
    FILLS_VALUES = auto()
    FILLS_VALUES_OF_MANY = auto()
    FILLS_CROSSED = auto()
    FILLS_SEARCH = auto()
    SEARCH_SO_FAR = auto()
    NUMBERED = auto()
    NAMED = auto()
    NAMED_FOR = auto()
    CHOSEN = auto()
    NONE_CHOSEN = auto()
    CUT_AT = auto()
    LEFT_OUT = auto()
    PROGRAM_HAS_NO = auto()
    NO_TRACE_OF = auto()
    NO_PGLE = auto()
    SHARE_OF_STEP = auto()
    SHARE_OF_STEP_ALONE = auto()
    DECLARED_ORDER = auto()
    WITHOUT_EVIDENCE = auto()
    NOTHING_OF_STEP = auto()
    EVIDENCE_SAYS_NOTHING = auto()
    BY_EVIDENCE = auto()
    DECLARED_ITSELF = auto()
    SAME_SETTINGS = auto()
    GAINS_NOTHING = auto()
    FELL_SHORT = auto()
    PAIR_UNDECIDED = auto()
    PAIR_NEEDS_SWEEP = auto()

    # what a plan says of a tuning sweep
    RULE_SLOTS = auto()
    SEARCHES = auto()
    AND_DERIVED = auto()
    TRIALS_OF_PLAN = auto()
    FINDS_AT = auto()
    JOBS_OF_BUDGET = auto()
    JOBS_UP_TO = auto()
    PLAN = auto()
    PLAN_OF_BLOCKS = auto()
    SMALLEST = auto()
    SMALLEST_ASSUMED = auto()
    ACTS_ON = auto()
    ACTS_ON_NONE = auto()
    EVIDENCE_COMES = auto()
    EVIDENCE_WOULD_SHOW = auto()
    RESULTS_DECIDE = auto()
    NEXT_TAKES_SLOT = auto()
    UNTIL_EVIDENCE = auto()
    SLOTS_BESIDE = auto()
    SCREEN_USES = auto()
    MORE_JOBS_FIND = auto()
    SLOT_STAYS_SLOWER = auto()
    SLOT_DEAD = auto()
    BLOCK_WENT_TOO = auto()
    BLOCK_FOR_WORST = auto()
    BLOCK_FOR_BOUND = auto()

    # why a study made a profile
    LEADER = auto()
    STACKED = auto()
    BESIDE_LEADER = auto()
    CROSSED = auto()
    SEARCHED = auto()
    PLACED_BY_EVIDENCE = auto()
    AA_ALIAS = auto()

    # gates
    TOO_EARLY = auto()
    CANNOT_TELL_FOR = auto()
    NOT_INFERIOR = auto()
    NOT_INFERIOR_TO_STORED = auto()
    GATE_FASTER = auto()
    GATE_HOLDS = auto()
    GATE_FAILS = auto()
    GATE_OPEN = auto()
    TOO_CLOSE = auto()
    BLOCKS_WOULD_DECIDE = auto()
    NO_FINITE_SCORE = auto()
    TRIALS_MISSING = auto()
    NOTHING_SHOWS = auto()
    ABOVE_FLOOR = auto()
    BELOW_FLOOR = auto()
    FLOOR_OPEN = auto()
    GATE_LAYOUT = auto()
    GATE_LAYOUT_STORED = auto()
    BASELINE_STORED = auto()
    GATE_PLAN = auto()
    GATE_SEES = auto()

    # whether a gain carries to another cell

    # calibrations, evidence runs, imported tables
    TRIALS_DEPLOYED = auto()
    TRIALS_ON_SLOTS = auto()
    FEW_ON_SLOTS = auto()
    EVIDENCE_PLAN = auto()
    EVIDENCE_MEASURES_NOTHING = auto()
    TABLE_IS_OVER = auto()
    OF_CONTROL_GROUP = auto()
    NOTHING_RUN_TWICE = auto()
    INSIDE_NOISE = auto()
    INSIDE_NOISE_OF_ALL = auto()
    OUTSIDE_NOISE = auto()
    ORDER_NOT_RANDOM = auto()
    NOISE_OF_EQUAL = auto()
    CONTROL_BY_CATALOG = auto()
    AGAINST_CONTROL_GROUP = auto()
    ONE_BASELINE_RUN = auto()
    SETTINGS_UNTOLD = auto()

    # nodes
    COUNTED = auto()
    NODES_COUNTED = auto()
    NODES_OPEN = auto()
    RECOMMENDED = auto()
    NONE_RECOMMENDED = auto()
    NO_NODE_GOOD = auto()
    ASKED_ELSEWHERE = auto()
    MEDIAN_OF_FIRST = auto()
    ITS_FIRST_RUN = auto()
    ITS_FIRST_RUN_AGAIN = auto()
    ALL_NODES_FAIL = auto()
    OWN_LOG = auto()
    OWN_LOG_SAYS = auto()
    OWN_RUNS_SCATTER = auto()
    RUN_AGAIN = auto()
    RUNS_FAILED = auto()
    NODE_OTHER_LOSS = auto()
    LOW_NOT_AGAIN = auto()
    FIRST_RUNS_SPREAD = auto()
    NOT_LOW = auto()
    LOW_NO_BUDGET = auto()
    NO_CONTROL_BESIDE = auto()
    ROUNDS_BESIDE = auto()
    BY_DUNNETT = auto()
    BY_BONFERRONI = auto()
    LOSS_OF_SUSPECT = auto()
    INTERVAL_HOLDS_BOTH = auto()
    LOSS_OPEN = auto()
    LOW_ONCE_ONLY = auto()
    NODE_BELOW_FLOOR = auto()
    NODE_FLOOR_OPEN = auto()
    LIKE_THE_OTHERS = auto()
    OWN_LOG_UNKNOWN = auto()
    NODES_DIFFER = auto()
    MEDIAN_NOT_TRUSTED = auto()
    BUDGET_ALLOWS_ROUNDS = auto()
    MEDIAN_SHIFT = auto()
    NO_REFERENCE_OF_NODES = auto()
    ONE_JOB_A_NODE = auto()
    ROUNDS_OF_SUSPECTS = auto()
    FIRST_RUN_OF_NODES = auto()
    ROUND_OF_SUSPECTS = auto()

    # the network between nodes
    WORD_FOR = auto()
    LOAD_BANDWIDTH = auto()
    LOAD_TRAINING = auto()
    PAIRS_FAILED = auto()
    SINGLE_RUNS_OF_PAIRS = auto()
    FEW_PAIRS_SCORED = auto()
    SLOW_WITH_ONE = auto()
    NOT_LOW_IN_PAIRS = auto()
    LOW_PAIRS_NO_BUDGET = auto()
    FRESH_PAIRS_MISSING = auto()
    FRESH_PAIRS = auto()
    LOW_PAIRS_OPEN = auto()
    LOW_PAIRS_NOT_AGAIN = auto()
    PAIR_DEAD = auto()
    NODE_SLOW = auto()
    NODE_UNHEALTHY = auto()
    CANNOT_COMMUNICATE = auto()
    NOTHING_SLOW = auto()
    ALL_PAIRS_FAIL = auto()
    LOOK_AT_CLUSTER = auto()
    LINK_SLOW = auto()
    RACKS_SLOW = auto()
    SLOW_NO_BUDGET = auto()
    LOSS_OF_OPEN = auto()
    LINK_WITHOUT_SCORE = auto()
    LINKS_UNKNOWN = auto()
    NOT_MEASURED = auto()
    LOSS_AT_LEAST = auto()
    LOAD_NOTED = auto()
    PAIRS_DIFFER = auto()
    LINKS_UNSAID = auto()
    ENDS_WITH_ACCUSED = auto()
    ONE_PAIR_OF_RACKS = auto()
    CROSS_CHECK = auto()
    SLOWEST_ONLY = auto()
    PAIRS_EXCUSED = auto()
    ACCUSATION_RESTS_ON = auto()
    JOBS_OF_PAIRS = auto()
    FRESH_RUNS_OF_SLOW = auto()
    LOAD_IS = auto()
    PAIRS_OF_RACKS = auto()
    FEW_RACKS = auto()
    MANY_PAIRS = auto()
    BUDGET_NOT_ALL_PAIRS = auto()
    SLOW_NODES_AGAIN = auto()
    SLOW_PAIRS_AGAIN = auto()
    LINK_AGAIN = auto()
    ROUND_OF_PAIRS = auto()
    NETWORK_FOUND = auto()
    NO_NODE_COSTS = auto()
    NO_OTHER_NODE_COSTS = auto()
    NO_LINK_COSTS = auto()

    # batch sizes and other values
    THE_BEST = auto()
    THE_NEXT = auto()
    SAME_AS_IT = auto()
    CEILING = auto()
    CEILING_BELOW = auto()
    CEILING_ABOVE = auto()
    CEILINGS = auto()
    CEILING_WITH = auto()
    NO_VALUE_FOR = auto()
    VALUES_NOT_RANKED = auto()
    NO_VALUE_FITS = auto()
    NO_VALUE_MEASURED = auto()
    SINGLE_RUNS = auto()
    NEXT_IS = auto()
    NEXT_IS_ABOUT = auto()
    WITH_TGS = auto()
    SIZE_RECOMMENDED = auto()
    STOOD_STILL = auto()
    NOT_RANKED_FOR = auto()
    FINDING_ONLY = auto()
    SO_FAR = auto()
    BLOCKS_BONFERRONI = auto()
    DIFFERENCE_EXCLUDED = auto()
    WITHIN_NOISE = auto()
    LEADS_ALONE = auto()
    SMALLER_RECOMMENDED = auto()
    UNFIT_HEADROOM = auto()
    UNFIT_HUNG = auto()
    UNFIT_KILLED = auto()
    UNFIT_HOST = auto()
    CLASS_MEANS = auto()
    WITH_DETAIL = auto()
    TOO_NEAR_CEILING = auto()
    RAN_AT_OTHER_TIMES = auto()
    LARGER_THAN_UNFIT = auto()
    ABOVE_COMPILED = auto()
    BUDGET_SPENT = auto()
    NO_COMPILER_ASKED = auto()
    NO_COMPILED_MEMORY = auto()
    SIZE_TAKES = auto()
    MEMORY_DOES_NOT_GROW = auto()
    LARGEST_FITS = auto()
    NONE_FITS = auto()
    NONE_ABOVE_RUN = auto()
    COMPILED_MEMORY = auto()
    STOPPED = auto()
    BUDGET_ENDED_SEARCH = auto()
    BUDGET_ALLOWS_BLOCKS = auto()
    NOISE_MEASURED = auto()
    NOISE_UNKNOWN = auto()
    NOISE_OF_A_JOB = auto()
    NO_SIZE_MENDS = auto()
    ALL_SIZES_FAIL = auto()
    NO_BLOCK_WITH_BEST = auto()
    VALUES_ONCE = auto()
    VALUES_UPWARDS = auto()
    SIZES_FROM = auto()
    WITH_EACH = auto()
    WITH_EACH_LISTED = auto()
    LENGTHS_DIFFER = auto()
    MEMORY_IS_SAME = auto()
    MEMORY_OF_SOME = auto()
    GIVEN_UP = auto()
    PAIRS_NEED_MEMORY = auto()
    COMPILER_FIRST = auto()
    BLOCKS_OF_LEADING = auto()

    # commits
    ARM = auto()
    ITS_PARENT = auto()
    THE_FIRST_COMMIT = auto()
    THE_COMMIT_BEFORE = auto()
    SLIGHT_CHANGE = auto()
    BY_CHANGE = auto()
    FIRST_BAD = auto()
    FIRST_FASTER = auto()
    COMMITS_SKIPPED = auto()
    RANGE = auto()
    NO_LOSS_AMONG = auto()
    NO_GAIN_AMONG = auto()
    COMMITS_COUNTED = auto()
    COMMITS_OPEN = auto()
    SEARCH_NOT_OVER = auto()
    COMMIT_OTHER_LOSS = auto()
    FIRST_WITHOUT_SCORE = auto()
    LAST_WITHOUT_SCORE = auto()
    END_WITHOUT_SCORE = auto()
    NOT_MEASURED_FOR = auto()
    BESIDE_PARENT = auto()
    BESIDE_FIRST = auto()
    TO_HALVE_RANGE = auto()
    ENDS_DIFFER = auto()
    DIFFERENCE_IS = auto()
    RANGE_HALVED = auto()
    NO_JOB_TO_CONFIRM = auto()
    LIKELIEST_NOT_SHOWN = auto()
    LIKELIEST_NOT_SHOWN_BY = auto()
    BETWEEN_NOT_MEASURED = auto()
    SEARCH_SPENT = auto()
    MORE_LIES_ELSEWHERE = auto()
    SEVERAL_CHANGED_IT = auto()
    PAIRS_OF_ENDS = auto()
    MORE_WHERE_OPEN = auto()
    HALVES_THE_REST = auto()
    PAIRS_OF_LIKELIEST = auto()
    LOADS_ON_COMMITS = auto()
    PAIRS_OF_SLOWER = auto()
    COMMIT_BREAKS = auto()
    BREAKS_OTHERS = auto()
    IT_RUNS = auto()
    RUNS_FIRST_TIME = auto()
    UNLIKE_NO_BUDGET = auto()
    FIRST_RUNS_DIFFERENCES = auto()
    NO_LOSS_AT_FIRST = auto()
    PAIRS_SCORED = auto()
    PAIRS_BONFERRONI = auto()
    LOSS_ABOVE = auto()
    GAIN_ABOVE = auto()
    CHANGE_OPEN = auto()
    UNLIKE_ONCE_ONLY = auto()
    COMMITS_DIFFER = auto()
    BUDGET_ALLOWS_SUSPECTS = auto()

    # what follows from an attempt
    COUNTS_AS_SUCCESS = auto()
    RETRIED = auto()
    NOT_RUN_AGAIN = auto()
    SWEEP_STOPS = auto()
    NO_SESSION_WAITS = auto()
    DECIDED = auto()
    DECIDED_ON = auto()
    DECIDED_FOR = auto()
    IN_BRACKETS = auto()
    TIMES_IN_A_ROW = auto()
    UNREADABLE = auto()
    FILE_UNREADABLE = auto()
    DID_YOU_MEAN = auto()
    AND_LAST_LINE = auto()
    SEE_LOG = auto()

    # a job that stands still: which rank is behind, and in what
    RANKS_BEHIND = auto()
    ON_NODES = auto()
    ON_THAT_NODE_ALONE = auto()
    AFTER_STEP = auto()
    OTHERS_DO = auto()
    IN_CODE = auto()
    RANK_GONE = auto()
    RANK_SILENT = auto()
    RANK_STOPPED = auto()
    RANK_IN_DISK = auto()
    RANK_READS = auto()
    RANK_SLEEPS = auto()
    RANK_RUNS = auto()
    RANK_WAITS = auto()
    RANK_BESIDE = auto()
    RANK_COMPUTES = auto()
    RANK_IDLES = auto()
    FEWER_COLLECTIVES = auto()
    FEWER_ENQUEUED = auto()
    FEWER_COMPLETED = auto()
    EARLIER_COLLECTIVE = auto()
    NO_WATCHDOG = auto()
    FEWER_STEPS = auto()
    NAMED_BY = auto()
    ALL_STAND_ALIKE = auto()
    RANK_SLOWER = auto()
    NO_RANK_SLOWER = auto()
    NONE_STANDS_OUT = auto()
    NO_STEP_IN = auto()
    LAST_STEP = auto()
    AND_SHOWN = auto()
    FAULTS = auto()
    FAULTS_FOUND = auto()
    FAULTS_AFTER_RESUME = auto()
    FAULTS_ARE = auto()
    FAULTS_STAY = auto()
    RESUMED_IN_VAIN = auto()
    NOT_DONE = auto()
    WAITED_IN_VAIN = auto()
    HOURS_SPENT = auto()
    REFERENCE_CANNOT_RUN = auto()
    REFERENCE_NOT_SCORED = auto()
    DEPLOYED_CANNOT_RUN = auto()
    DEPLOYED_NOT_SCORED = auto()

    # nodes that are not what they were
    NOT_COMPARED = auto()
    NODES_CHANGED = auto()
    VERSION_CHANGED = auto()
    CODE_CHANGED = auto()
    COMMIT_CHANGED = auto()
    NODES_SWAPPED = auto()
    NODES_RESUMED = auto()
    NODES_FIT_AGAIN = auto()
    SITE_DID = auto()

    # what a session notes
    LIMIT_UNTIL_OURS = auto()
    LIMIT_UNTIL_OTHERS = auto()
    SCHEDULER_SILENT = auto()
    SCHEDULER_BACK = auto()
    AND_OTHERS = auto()
    LOST_ATTEMPTS = auto()
    LOST_LEFT_ALONE = auto()
    LOST_READ_AGAIN = auto()
    FLAG_UNSEEN = auto()
    VARIABLE_UNSEEN = auto()
    OVERRIDE_UNSEEN = auto()
    SETTINGS_OF_NONE = auto()
    NO_FLAG_SEEN = auto()
    LEDGER_UNREAD = auto()


class Reason:
    """A kind and its fields. Equal, hashable, and the same after a way through JSON.

    Attributes:
        kind: which reason.
        fields: name -> number, name, other reason, several of these, or None, in order.
    """

    __slots__ = ("_fields", "kind")
    kind: Why
    _fields: tuple[tuple[str, Value], ...]

    def __init__(self, kind: Why, /, **fields: Value) -> None:
        object.__setattr__(self, "kind", kind)
        kept = sorted((name, _kept(value)) for name, value in fields.items())
        object.__setattr__(self, "_fields", tuple(kept))

    @property
    def fields(self) -> dict[str, Value]:
        """Name -> value."""
        return dict(self._fields)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a reason is never changed: {name}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Reason):
            return NotImplemented
        return self.kind == other.kind and self._fields == other._fields

    def __hash__(self) -> int:
        return hash((self.kind, self._fields))

    def __repr__(self) -> str:
        named = "".join(f", {name}={value!r}" for name, value in self._fields)
        return f"Reason({self.kind!s}{named})"

    def __format__(self, spec: str) -> str:
        raise TypeError(f"a reason has no words; report/words.py makes them: {self!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Reason.from_json, (self.to_json(),)

    def changed(self, text: Callable[[str], str]) -> Self:
        """Return the reason with each text of its fields changed, those of its reasons too."""

        def new(value: Value) -> Value:
            if isinstance(value, Reason):
                return value.changed(text)
            if isinstance(value, tuple):
                return tuple(map(new, value))
            return text(value) if type(value) is str else value

        return type(self)(self.kind, **{name: new(value) for name, value in self._fields})

    def to_json(self) -> dict[str, Json]:
        """Return the kind and the fields as builtins, in one mapping."""
        return {"kind": str(self.kind), **{name: _json(value) for name, value in self._fields}}

    @classmethod
    def from_json(cls, data: Json) -> Self:
        """Return the reason that `to_json` described.

        Raises:
            LedgerError: it is none, or of a kind that this version does not know.
        """
        if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
            raise LedgerError(f"Reason: expected a kind and its fields, found {data!r:.80}")
        try:
            kind = Why(data["kind"])
        except ValueError:
            raise LedgerError(
                f"Reason: the kind {data['kind']!r:.80} is unknown; written by another version?"
            ) from None
        return cls(kind, **{name: _read(item) for name, item in data.items() if name != "kind"})


def verbatim(text: str) -> Reason:
    """Return what others said, a log or a scheduler, as they said it."""
    return Reason(Why.SAID, text=text)


def first(reasons: Iterable[Reason | None]) -> Reason | None:
    """Return the first reason that there is."""
    return next((each for each in reasons if each is not None), None)


def several(reasons: Sequence[Reason]) -> Reason | None:
    """Return reasons that hold together as one; None where there is none."""
    if len(reasons) > 1:
        return Reason(Why.SEVERAL, reasons=reasons)
    return first(reasons)


def _kept(value: Value) -> Value:
    return tuple(map(_kept, value)) if isinstance(value, list | tuple | range) else value


def _json(value: Value) -> Json:
    if isinstance(value, Reason):
        return value.to_json()
    if isinstance(value, tuple):
        return [_json(each) for each in value]
    if isinstance(value, StrEnum):
        return str(value)
    if type(value) is float and not math.isfinite(value):
        return str(value)
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(f"a reason holds numbers, names and reasons, found {value!r:.80}")


def _read(item: Json) -> Value:
    if isinstance(item, dict):
        return Reason.from_json(item)
    if isinstance(item, list):
        return tuple(map(_read, item))
    return _NON_FINITE.get(item, item) if isinstance(item, str) else item
