"""How the time of a step is divided in an evidence run, which orders the settings to try next."""

from __future__ import annotations

import msgspec

from pytest_xlatune.model.channels import COLLECTIVES
from pytest_xlatune.model.message import Message, say
from pytest_xlatune.model.record import Real, Record
from pytest_xlatune.model.sentences import SHARE_OF_STEP, SHARE_OF_STEP_ALONE


class Shares(Record, frozen=True, kw_only=True):
    """How the time of a step is divided in an evidence run, as far as its files show it.

    Attributes:
        of_step: part of a step -> its share of the time; 0.2 is 20 %. The shares of communication,
            copies and each kind of collective count only the time in which nothing else ran. A part
            is absent if no trace shows it.
        kinds: the kinds of collectives in the compiled program; None if there is no dump.
        kernels: class of kernels -> names of its kernels that run alone for the longest time.
    """

    of_step: dict[str, Real]
    kinds: tuple[str, ...] | None = None
    kernels: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)

    @property
    def exposed(self) -> Message | None:
        """A sentence with the share of each class of kernels, largest first; None without a trace.

        The shares of communication and copies count only the time in which nothing else ran.
        """
        classes = {name: share for name, share in self.of_step.items() if name not in COLLECTIVES}
        shares = [
            say(
                SHARE_OF_STEP if name in ("compute", "idle") else SHARE_OF_STEP_ALONE,
                parts=[name],
                share=share,
            )
            for name, share in sorted(classes.items(), key=lambda item: -item[1])
        ]
        return say("{reasons:; }", reasons=shares) if shares else None
