"""What wave 6 found of a winner on the model's other configurations, from ledgers beside its own.

A gate of a winner is a cell, a ledger and a report of its own, named by the sweep and the
configuration: `.xlatune/<sweep>-<tag>/<cell>/`. Nothing is measured here.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pytest_xlatune.campaign.jobs import LEDGER
from pytest_xlatune.cells import Cell
from pytest_xlatune.ledger import Ledger, replay
from pytest_xlatune.profiles import Profile
from pytest_xlatune.report.covered import Elsewhere
from pytest_xlatune.studies.declared import study_of
from pytest_xlatune.studies.gate import GateStudy


def elsewhere(folder: Path, cell: Cell, winner: Profile) -> tuple[Elsewhere, ...]:
    """Return the finished gates of a winner, by configuration.

    Args:
        folder: of the ledger that the winner was found in.
        cell: its cell; a gate of another one is of another winner.
        winner: with the settings that won.

    Raises:
        LedgerError: a ledger beside it cannot be read.
    """
    sweep = folder.parent.name
    found: dict[str, tuple[float, Elsewhere]] = {}
    for path in sorted(folder.parent.parent.glob(f"{sweep}-*/*/{LEDGER}")):
        name = path.parent.parent.name
        tag = name.removeprefix(f"{sweep}-")
        entries = Ledger(path).refresh()
        state = replay(entries)
        for opened in state.opened:
            gate = study_of(opened.study, opened.declared)
            is_ours = isinstance(gate, GateStudy) and _is_of(gate.cell, cell, tag=tag)
            if not is_ours or not any(_is_same(each, winner) for each in gate.profiles):
                continue
            conclusion = gate.conclude(state.history(gate.name))
            verdict, at_s = conclusion.verdict(winner.id), entries[-1].at_s
            if verdict is not None and conclusion.complete and found.get(tag, (0.0,))[0] <= at_s:
                found[tag] = at_s, Elsewhere(config_tag=tag, sweep=name, verdict=verdict)
    return tuple(found[tag][1] for tag in sorted(found))


def _is_same(one: Profile, other: Profile) -> bool:
    return (one.id, one.settings_text) == (other.id, other.settings_text)


def _is_of(there: Cell, here: Cell, *, tag: str) -> bool:
    """Whether a cell is another configuration of one: the same but for that."""
    as_here = replace(there, config_tag=here.config_tag, overrides=here.overrides)
    return there.config_tag == tag and as_here.digest == here.digest
