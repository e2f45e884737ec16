"""Assess an attempt from a few of its facts, with what the others mostly are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pytest_xlatune.campaign import assess as campaign_assess
from pytest_xlatune.campaign._follow import EndedAttempt, Leftovers
from pytest_xlatune.campaign.assess import Assessment
from pytest_xlatune.campaign.playbook import Facts
from pytest_xlatune.ledger import AttemptCutShort
from pytest_xlatune.logs import LogReport
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.result import Finding, Outcome
from pytest_xlatune.model.trial import Trial


def assess(
    trial: Trial,
    cell: Cell,
    outcome: Outcome,
    report: LogReport,
    *,
    earlier: Sequence[str] = (),
    reference: str = "",
    reference_runs: bool = True,
    fatal: Finding | None = None,
    dumps_options: bool = False,
    ran_on: Mapping[str, Mapping[str, str]] | None = None,
    **left: Any,
) -> Assessment:
    cut = None
    if fatal is not None:
        cut = AttemptCutShort(trial_id=trial.id, attempt=1, still_s=60, fatal=fatal)
    return campaign_assess.assess(
        EndedAttempt(
            trial=trial,
            cell=cell,
            outcome=outcome,
            left=Leftovers(report=report, **left),
            cut=cut,
            dumps_options=dumps_options,
            ran_on=ran_on or {},
            facts=Facts(
                earlier=earlier,
                is_reference=trial.arm == reference,
                reference_runs=reference_runs,
            ),
        )
    )
