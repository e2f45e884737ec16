"""What a scheduler is asked for, how long is waited, how often a failure is tried again."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from pytest_xlatune.model.failure import Action
from pytest_xlatune.model.written import Written, check_least


class Patience(Written, frozen=True, kw_only=True):
    """How long a running trial may make no progress; a step is progress, a line of the log is not.

    Seconds of the watching process without suspended time, 1 at least.

    Attributes:
        before_memstats_s: from the start to `Memstats: After params initialized`.
        compiling_s: from there to the first step; a large model's first compilation takes long.
        training_s: between two steps.
        after_fatal_s: in any phase, after a line that says that the program cannot go on, and three
            times its last step where that is longer.
    """

    before_memstats_s: float = 600.0
    compiling_s: float = 1800.0
    training_s: float = 600.0
    after_fatal_s: float = 60.0

    def __post_init__(self) -> None:
        check_least(self, what="patience", least=dict.fromkeys(self.__struct_fields__, 1))


_LEAST_RESOURCES = {"nodes": 0, "tasks_per_node": 1, "time_limit_s": 1, "queue_limit_s": 0}


class Resources(Written, frozen=True, kw_only=True):
    """What a scheduler is asked for; not part of a cell's identity.

    Attributes:
        nodes: how many nodes; 0 is "as many as the node list names".
        tasks_per_node: ranks per node, 1 for JAX.
        time_limit_s: Slurm's limit for a trial, in seconds.
        queue_limit_s: how long a trial may wait in the queue, in seconds; 0 is for ever.
        patience: how long a running trial may make no progress before it is ended.
        options: anything else for the scheduler by key, e.g. partition, account, qos.
    """

    nodes: int = 0
    tasks_per_node: int = 1
    time_limit_s: int = 2700
    queue_limit_s: int = 0
    patience: Patience = msgspec.field(default_factory=Patience)
    options: dict[str, str] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_least(self, what="resources", least=_LEAST_RESOURCES)

    def __hash__(self) -> int:
        return hash((self.nodes, tuple(sorted(self.options.items()))))


class Next(StrEnum):
    """What happens to the trial."""

    ACCEPT = "accept"  # it ran: score it
    RETRY = "retry"  # another attempt, the same nodes
    DROP = "drop"  # the profile cannot run here
    GIVE_UP = "give-up"  # it could not be measured; the sweep goes on
    STOP = "stop"  # the sweep cannot go on
    INTERRUPTED = "interrupted"  # we ended it, for no session waits for it; it is run again


ENDLESS = 1_000_000  # retries of what ends by itself


class RetryRule(Written, frozen=True, kw_only=True):
    """How often a failure class is retried, and what follows when that did not help.

    Attributes:
        retries: further attempts after the first of this class; `ENDLESS` have no limit, and their
            trial keeps its attempts for other trouble.
        backoff_s: seconds to wait before each; before the later ones of `ENDLESS` an hour.
        then: what happens after the last.
        before: what must be done before the next attempt.
    """

    retries: int = 1
    backoff_s: float = 0.0
    then: Next = Next.GIVE_UP
    before: Action = Action.NONE


class RetryPolicy(Written, frozen=True, kw_only=True):
    """The rules of a site: the playbook's, with its own on top.

    Attributes:
        max_attempts: of one trial, whatever the classes.
        rules: class -> rule, before the playbook's own.
    """

    max_attempts: int = 4
    rules: dict[str, RetryRule] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_least(self, what="retry policy", least={"max_attempts": 1})
