"""What a plan says of a tuning sweep: its trials and slots, and the smallest effect it finds."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.text import counted, size
from pytest_xlatune.stats.design import MIN_DF, Plan, Refusal, unused
from pytest_xlatune.studies.tuning._conclude import DEFAULT_SIGMA, NOT_CALIBRATED
from pytest_xlatune.studies.tuning._slots import outlined
from pytest_xlatune.studies.tuning.derived import DerivedRule, Singles

_SIGMAS = (0.003, 0.006, 0.010)  # job noise of a quiet, a usual and a noisy cell
_ONCE = "in brackets: once it is a finalist"
_ADDED = "the more where nothing is faster: added blocks narrow the gain that is ruled out"


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
) -> tuple[str, ...]:
    """Return the trials of a sweep, its slots, and the smallest effect it finds, in lines.

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
        f"{rule.wave}: {counted(rule.slots, 'slot')} for {rule.words}; {known_when(rule)}"
        for rule in rules
    ]
    is_derived = any(not isinstance(rule, Singles) for rule in rules)
    more = ", and those of derived waves" if is_derived else ""
    if not isinstance(layout, Plan):
        return (f"{screened} trials{more}", *slots, f"{layout.what}: {layout.why}")
    found = ((layout.from_start80(each), each) for each in (_SIGMAS if sigma is None else (sigma,)))
    seen = ", ".join(
        f"{size(start)} ({size(layout.mde80(each))}) at {size(each)} job noise"
        for start, each in found
    )
    if sigma is None:
        seen += f"; {size(DEFAULT_SIGMA)} is assumed: {NOT_CALIBRATED}"
    jobs = f"{layout.jobs} jobs of {budget}"
    if at_most > layout.jobs:
        jobs = f"{layout.jobs} to {at_most} jobs, {_ADDED}"
    left = "" if is_stated else unused(layout, budget)
    return (
        f"{screened} trials of the screen{more}, then {layout.words}: {jobs}",
        *([left] if left else []),
        *outlined(cells, layout, rules, is_stated=is_stated),
        *slots,
        f"smallest effect of one winner that is found with 80 % power ({_ONCE}): {seen}",
    )


def held(rules: Sequence[DerivedRule], kinds: tuple[str, ...] | None) -> tuple[str, ...]:
    """Name the collectives of the program that derived profiles must act on; None is unknown."""
    if not rules:
        return ()
    if kinds is not None:
        must = "derived profiles must act on the collectives of the baseline's program"
        return (f"{must}: {', '.join(kinds) or 'none'}",)
    is_run = any(isinstance(each, Singles) and each.evidence for each in rules)
    how = "" if is_run else ": `xlatune evidence SWEEP_FILE`"
    what = "an evidence run of the baseline will show which derived settings do nothing"
    return (f"{what} to its program{how}",)


def known_when(rule: DerivedRule) -> str:
    """Say when it is known what fills the slots of a rule."""
    if not isinstance(rule, Singles):
        return "their results decide which profiles"
    if not rule.evidence:
        return "a profile that is left out, or needs no run, gives its slot to the next"
    return "until that evidence run, one more job, they are in declared order"
