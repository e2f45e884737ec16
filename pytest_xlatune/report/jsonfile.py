"""The leaderboard for programs: one JSON text with everything a conclusion rests on.

    schema       1; raised when a field changes its meaning or goes
    written      when, ISO 8601
    cell_digest  identity of the cell
    cell         `Cell`; deployed values whose names speak of secrets are hidden
    profiles     list of `Profile`
    conclusion   `Conclusion`: verdicts, baseline, finalists, bound (M), mde80, sigma, alpha_spent;
                 relative changes are fractions, +0.034 is +3.4 %
    trials       list of `TrialResult`, each with its `id`; sorted by it

The records are those of the package, field by field, as their own `to_json` writes them: absent
values are null, not-a-number and the infinities are the strings "nan", "inf" and "-inf". Keys are
sorted, so that two reports can be compared line by line.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from pytest_xlatune.cells import Cell
from pytest_xlatune.hidden import secrets_of, without_secrets
from pytest_xlatune.profiles import Profile
from pytest_xlatune.results import Conclusion, TrialResult

SCHEMA = 1


def render(
    conclusion: Conclusion,
    *,
    cell: Cell,
    profiles: Sequence[Profile],
    history: Sequence[TrialResult],
    now: datetime,
) -> str:
    """Return the text, one newline at its end."""
    trials = [{"id": each.trial.id, **shown(each).to_json()} for each in history]
    document = {
        "schema": SCHEMA,
        "written": now.isoformat(timespec="seconds"),
        "cell_digest": cell.digest,
        "cell": shown_cell(cell).to_json(),
        "profiles": [each.shown.to_json() for each in profiles],
        "conclusion": conclusion.to_json(),
        "trials": sorted(trials, key=lambda each: str(each["id"])),
    }
    text = json.dumps(document, indent=2, sort_keys=True, allow_nan=False)
    return f"{text}\n"


def shown_cell(cell: Cell) -> Cell:
    """Return the cell as it may be shown; its digest is then another."""
    return replace(
        cell, deployed=without_secrets(cell.deployed), overrides=without_secrets(cell.overrides)
    )


def secrets_in(cell: Cell, profiles: Sequence[Profile]) -> frozenset[str]:
    """Return the values that no text about a cell may show."""
    settings = (each for profile in profiles for each in (profile.env, profile.overrides))
    return secrets_of(cell.deployed, cell.overrides, *settings)


def shown(result: TrialResult) -> TrialResult:
    """Return the result as it may be shown; its trial's id may then be another."""
    profile = result.trial.profile
    if profile.shown == profile:
        return result
    return replace(result, trial=replace(result.trial, profile=profile.shown))
