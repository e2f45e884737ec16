"""What a plan says of a tuning sweep: its trials and slots, and the smallest effect it finds."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.reason import Reason, Why
from pytest_xlatune.stats.design import MIN_DF, Plan, Refusal, unused
from pytest_xlatune.studies.tuning._conclude import DEFAULT_SIGMA
from pytest_xlatune.studies.tuning._slots import outlined
from pytest_xlatune.studies.tuning.derived import DerivedRule, Singles

_SIGMAS = (0.003, 0.006, 0.010)  # job noise of a quiet, a usual and a noisy cell


def check_layout(
    layout: Plan | Refusal, count: int, screened: int, *, budget: int, where: str
) -> None:
    """Refuse a sweep whose trials exceed its budget, or whose blocks cannot tell the noise.

    Raises:
        ConfigError: names the jobs, or the degrees of freedom.
    """
    jobs = layout.jobs if isinstance(layout, Plan) else screened
    if jobs > budget:
        raise ConfigError(
            f"{where}: {count} profiles and their baselines need {jobs} jobs, "
            f"the budget is {budget}; raise the budget or declare fewer"
        )
    if isinstance(layout, Plan) and layout.df < MIN_DF:
        raise ConfigError(
            f"{where}: {layout.blocks} blocks of {layout.finalists} finalists and "
            f"{layout.block_baselines} baselines leave {layout.df} degrees of freedom, "
            f"{MIN_DF} are needed; add a block or a baseline"
        )


def capacity(
    cells: Sequence[Cell],
    layout: Plan | Refusal,
    rules: Sequence[DerivedRule],
    *,
    screened: int,
    sigma: float | None,
    budget: int,
    at_most: int,
    is_stated: bool,
) -> tuple[Reason, ...]:
    """Return the trials of a sweep, its slots, and the smallest effect it finds.

    Args:
        cells: of its node slots.
        layout: as planned.
        rules: of the derived waves.
        screened: trials of the screen that can be named.
        sigma: job noise as it is known; None shows usual ones.
        budget: of jobs.
        at_most: jobs where blocks are added.
        is_stated: whether the sweep states its blocks.
    """
    slots = [
        Reason(
            Why.RULE_SLOTS,
            wave=rule.wave,
            slots=rule.slots,
            fills=rule.fills,
            known=known_when(rule),
        )
        for rule in rules
    ]
    is_derived = any(not isinstance(rule, Singles) for rule in rules)
    more = Reason(Why.AND_DERIVED) if is_derived else None
    if not isinstance(layout, Plan):
        trials = Reason(Why.TRIALS_OF_PLAN, trials=screened, more=more)
        return (trials, *slots, Reason(Why.RANKING_ONLY, why=layout.why))
    seen = [
        Reason(
            Why.FINDS_AT,
            start=layout.from_start80(each),
            finalist=layout.mde80(each),
            sigma=each,
        )
        for each in (_SIGMAS if sigma is None else (sigma,))
    ]
    jobs = Reason(Why.JOBS_OF_BUDGET, jobs=layout.jobs, budget=budget)
    if at_most > layout.jobs:
        jobs = Reason(Why.JOBS_UP_TO, jobs=layout.jobs, most=at_most)
    left = None if is_stated else unused(layout, budget)
    return (
        Reason(Why.PLAN, screened=screened, more=more, blocks=layout.shape, jobs=jobs),
        *([left] if left else []),
        *outlined(cells, layout, rules, is_stated=is_stated),
        *slots,
        Reason(Why.SMALLEST_ASSUMED, seen=seen, sigma=DEFAULT_SIGMA)
        if sigma is None
        else Reason(Why.SMALLEST, seen=seen),
    )


def held(rules: Sequence[DerivedRule], kinds: tuple[str, ...] | None) -> tuple[Reason, ...]:
    """Return the collectives of the program that derived profiles must act on; None is unknown."""
    if not rules:
        return ()
    if kinds is not None:
        return (Reason(Why.ACTS_ON, collectives=kinds) if kinds else Reason(Why.ACTS_ON_NONE),)
    is_run = any(isinstance(each, Singles) and each.evidence for each in rules)
    return (Reason(Why.EVIDENCE_COMES if is_run else Why.EVIDENCE_WOULD_SHOW),)


def known_when(rule: DerivedRule) -> Reason:
    """Return when it is known what fills the slots of a rule."""
    if not isinstance(rule, Singles):
        return Reason(Why.RESULTS_DECIDE)
    return Reason(Why.UNTIL_EVIDENCE if rule.evidence else Why.NEXT_TAKES_SLOT)
