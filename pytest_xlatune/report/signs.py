"""Which settings help one parallelism and hurt another: the sign flips of a tuning document."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_xlatune.profiles import Profile, settings_digest
from pytest_xlatune.records import canonical, digest
from pytest_xlatune.report.covered import Covered, names
from pytest_xlatune.report.document import Block, Column, Table, Text, literal
from pytest_xlatune.report.figures import ABSENT, interval, points
from pytest_xlatune.report.leaderboard import CONFIRMED
from pytest_xlatune.report.lines import words
from pytest_xlatune.report.phrases import Say
from pytest_xlatune.results import Verdict, VerdictKind

_SIGN = {VerdictKind.FASTER: 1, VerdictKind.SLOWER: -1}


def sign_flips(cells: Sequence[Covered], say: Say) -> tuple[Block, ...] | None:
    """Return the table of what was measured on several parallelisms; None with only one."""
    if len({each.cell.parallelism for each in cells}) < 2:  # noqa: PLR2004
        return None
    found: dict[str, dict[str, tuple[Profile, Verdict]]] = {}
    for cell in cells:
        for profile in cell.profiles:
            verdict = cell.conclusion.verdict(profile.id)
            if verdict is None or verdict.is_needless:
                continue
            if verdict.delta is not None or not verdict.can_run:
                of_setting = found.setdefault(setting_of(profile), {})
                of_setting.setdefault(cell.cell_digest, (profile, verdict))
    axes = {each.cell_digest: each.cell.parallelism for each in cells}
    shared = [
        each for each in found.values() if len({axes[cell_digest] for cell_digest in each}) > 1
    ]
    if not shared:
        return (Text(text=say("no-signs")),)
    called = names(cells)
    columns = [Column(title="Settings", wrap=True)]
    for each in cells:
        name = called[each.cell_digest]
        columns += [
            Column(title=f"{name}: delta %", align="right"),
            Column(title="95 %"),
            Column(title="verdict", wrap=True),
        ]
    columns.append(Column(title="Sign"))
    rows = []
    for of_setting in shared:
        profile = next(iter(of_setting.values()))[0]
        row = [literal(profile.shown_text)]
        for each in cells:
            verdict = of_setting[each.cell_digest][1] if each.cell_digest in of_setting else None
            row += [
                points(verdict.delta) if verdict else ABSENT,
                interval(verdict.ci95) if verdict else ABSENT,
                words(verdict) if verdict else ABSENT,
            ]
        rows.append((*row, _sign([verdict for _, verdict in of_setting.values()])))
    return (Text(text=say("signs")), Table(columns=tuple(columns), rows=tuple(rows)))


def setting_of(profile: Profile) -> str:
    """Return what two profiles share that do the same thing, whatever they are called."""
    return digest([settings_digest(profile.flags, profile.env), canonical(profile.overrides)])


def _sign(verdicts: Sequence[Verdict]) -> str:
    """Say whether a setting turns its sign; only confirmed verdicts can."""
    confirmed = {_SIGN[each.kind] for each in verdicts if each.kind in _SIGN}
    if len(confirmed) > 1:
        return "flips"
    if any(not each.can_run for each in verdicts):
        return "cannot run on one"
    signs = {each.delta > 0 for each in verdicts if each.delta}
    if len(signs) < 2:  # noqa: PLR2004
        return "the same"
    is_known = all(each.kind in CONFIRMED for each in verdicts)
    return "opposite, not confirmed" if is_known else "opposite in single runs"
