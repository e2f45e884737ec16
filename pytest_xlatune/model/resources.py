"""What a trial requests from a scheduler, how long to wait for it, and how often to retry it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from pytest_xlatune.model.failure import Action
from pytest_xlatune.model.written import Written, check_least


class Patience(Written, frozen=True, kw_only=True):
    """How long a running trial may make no progress. A step is progress, a log line is not.

    Each is a number of seconds, at least 1, on the clock of the watching process; the time for
    which that process or the job is suspended does not count.

    Attributes:
        before_memstats_s: from the start until the log says `Memstats: After params initialized`.
        compiling_s: from that line to the first step; compiling a large model takes long.
        training_s: between two steps.
        after_fatal_s: after a log line that says that the program cannot go on; three times the
            duration of the last step if that is longer.
    """

    before_memstats_s: float = 600.0
    compiling_s: float = 1800.0
    training_s: float = 600.0
    after_fatal_s: float = 60.0

    def __post_init__(self) -> None:
        check_least(self, what="patience", least=dict.fromkeys(self.__struct_fields__, 1))


_LEAST_RESOURCES = {"nodes": 0, "tasks_per_node": 1, "time_limit_s": 1, "queue_limit_s": 0}


class Resources(Written, frozen=True, kw_only=True):
    """What a trial requests from a scheduler; no part of a cell's identity.

    Attributes:
        nodes: number of nodes; 0 means all nodes of the node list.
        tasks_per_node: number of ranks on each node; 1 for JAX.
        time_limit_s: Slurm's limit for a trial, in seconds.
        queue_limit_s: how long a trial may wait in the queue, in seconds; 0 means without limit.
        patience: how long a running trial may make no progress before it is ended.
        options: other options of the scheduler by key, e.g. partition, account, qos.
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
    """What happens to a trial after an attempt."""

    ACCEPT = "accept"  # it ran and is scored
    RETRY = "retry"  # another attempt on the same nodes
    DROP = "drop"  # the profile cannot run here
    GIVE_UP = "give-up"  # it could not be measured; the sweep goes on
    STOP = "stop"  # the sweep cannot go on
    INTERRUPTED = "interrupted"  # we ended it because no session waits for it; it runs again later


ENDLESS = 1_000_000  # `RetryRule.retries` without a limit, for trouble that passes by itself


class RetryRule(Written, frozen=True, kw_only=True):
    """How often a failure class is retried, and what follows if that did not help.

    Attributes:
        retries: attempts after the first one with this class. `ENDLESS` means no limit; such
            attempts do not count against the trial's `max_attempts`.
        backoff_s: seconds to wait before each retry; with `ENDLESS`, later retries wait an hour.
        then: what happens to the trial after the last retry.
        before: what must be done before the next attempt; "" if nothing.
    """

    retries: int = 1
    backoff_s: float = 0.0
    then: Next = Next.GIVE_UP
    before: Action = Action.NONE


class RetryPolicy(Written, frozen=True, kw_only=True):
    """The retry rules of a site, which replace those of the playbook.

    Attributes:
        max_attempts: most attempts of one trial, over all classes.
        rules: failure class -> rule that replaces the playbook's; {} for none.
    """

    max_attempts: int = 4
    rules: dict[str, RetryRule] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        check_least(self, what="retry policy", least={"max_attempts": 1})
