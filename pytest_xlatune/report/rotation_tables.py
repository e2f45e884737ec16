"""How a row was measured, and what ordinary jobs say of what won in rotations. Computes nothing."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_xlatune.model.reason import Reason, Why
from pytest_xlatune.model.result import Conclusion, Verdict
from pytest_xlatune.model.text import ABSENT, counted, percent
from pytest_xlatune.report.document import Table, columns, literal, plain

MEASURED_IN = "~measured in"
_CHECKS = {
    Why.CHECK_AGREES: "agrees",
    Why.CHECK_UNTOLD: "too noisy to contradict",
    Why.CHECK_MORE: "more than noise explains",
    Why.CHECK_CONTRADICTS: "contradicts",
}


def has_rotations(verdicts: Sequence[Verdict]) -> bool:
    """Whether rotations are behind any of these."""
    return any(_in_rotations(each) for each in verdicts)


def measured_in(verdict: Verdict) -> str:
    """Return in what an arm was measured, e.g. `4 rotations, 2 jobs`, for a cell of a table."""
    found = _in_rotations(verdict)
    if not found:
        return counted(verdict.n, "job") if verdict.n else ABSENT
    check = check_of(verdict)
    jobs = check.fields["jobs"] if check is not None else 0
    return counted(found, "rotation") + (f", {counted(jobs, 'job')}" if jobs else "")


def _in_rotations(verdict: Verdict) -> int:
    method = verdict.method
    is_rotated = method is not None and method.kind is Why.IN_ROTATIONS
    return int(method.fields["rotations"]) if method is not None and is_rotated else 0


def check_of(verdict: Verdict) -> Reason | None:
    """Return what the check of the deployed form says of an arm; None where there was none."""
    return next((each for each in verdict.reasons if each.kind in _CHECKS), None)


def check_table(conclusion: Conclusion) -> Table | None:
    """Return rotations beside ordinary jobs, a row for each arm that was checked; None of none."""
    rows = tuple(
        (
            literal(each.arm),
            percent(check.fields["rotation"]),
            percent(check.fields["deployed"]),
            percent(check.fields["least"]),
            str(check.fields["jobs"]),
            str(check.fields["beside"]),
            plain(_CHECKS[check.kind]),
        )
        for each in conclusion.verdicts
        if (check := check_of(each)) is not None
    )
    titles = columns(
        "~Profile",
        ">in rotations",
        ">deployed",
        ">contradicts below",
        ">jobs",
        ">baselines",
        "~what it says",
    )
    return Table(columns=titles, rows=rows) if rows else None
