"""All that is known of an attempt that is over, which is the input of its assessment.

The values are read from the ledger and from the folder of the attempt before it is assessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_xlatune.campaign.playbook import Facts
from pytest_xlatune.ledger import AttemptCutShort
from pytest_xlatune.logs import LogReport
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.channels import Options
from pytest_xlatune.model.metric import Logged
from pytest_xlatune.model.result import Blamed, Outcome, StepRecord
from pytest_xlatune.model.rotation import RotationRead
from pytest_xlatune.model.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftovers:
    """What an ended attempt left in its folder, as far as it could be read.

    Attributes:
        report: what its logs say.
        metrics: the unrounded steps of MaxText's metrics file; () if there is none.
        logged: the figures of the protocol's metric that are not in step records; None if they
            were not read.
        journal: what the worker of a rotation wrote; None if there is none.
        options: the options that XLA dumped; None if it dumped none.
        devices: module of XLA's dump -> the device for which it was compiled.
    """

    report: LogReport
    metrics: tuple[StepRecord, ...] = ()
    logged: Logged | None = None
    journal: RotationRead | None = None
    options: Options | None = None
    devices: Mapping[str, str] = field(default_factory=dict)

    @property
    def steps(self) -> Sequence[StepRecord]:
        """The steps of the metrics file, or those of the log if the log has more steps.

        A trainer that dies may leave an incomplete metrics file.
        """
        is_complete = bool(self.metrics) and len(self.metrics) >= len(self.report.steps)
        return self.metrics if is_complete else self.report.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """All that is known of an attempt that is over: its trial, its end and its files.

    Attributes:
        trial, cell: the trial and the cell of the attempt.
        outcome: how it ended, according to the scheduler and the payload.
        left: what it left in its folder.
        number: the number of the attempt.
        cut: why we ended it; None if we did not.
        blamed: the programs that earlier attempts of a rotation died of; () for other trials.
        dumps_options: whether XLA was asked to dump its options.
        exempt: patterns of settings that the sweep declares as impossible to observe.
        ran_on: arm -> line or file that shows a device -> the device, for the trials that the
            attempt is compared with.
        log: the log to show to a person; None if there is none.
        facts: other facts for the rules of the playbook.
    """

    trial: Trial
    cell: Cell
    outcome: Outcome
    left: Leftovers
    number: int = 1
    cut: AttemptCutShort | None = None
    blamed: Sequence[Blamed] = ()
    dumps_options: bool = False
    exempt: Sequence[str] = ()
    ran_on: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    log: Path | None = None
    facts: Facts = field(default_factory=Facts)
