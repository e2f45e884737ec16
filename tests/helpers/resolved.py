"""A campaign over a pretended sweep: a cell, a launcher, an executor, and nothing to resolve."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytest_xlatune.campaign import Campaign, Clock, Recover
from pytest_xlatune.executors import Executor
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.command import CommandLauncher
from pytest_xlatune.ledger import LEDGER, Ledger
from pytest_xlatune.model.profile import profile
from pytest_xlatune.studies import Study
from pytest_xlatune.sweep.declaration import Sweep
from pytest_xlatune.sweep.groups import Limits, SiteSettings
from pytest_xlatune.sweep.resolved import ResolvedSweep


def campaign_of(
    folder: Path,
    executor: Executor,
    study: Study,
    *,
    name: str = "pretend",
    session: str = "first",
    launcher: Launcher | None = None,
    limits: Limits | None = None,
    clock: Clock | None = None,
    recover: Recover | None = None,
    site: Mapping[str, Any] | None = None,
) -> Campaign:
    """Return the campaign of a study whose ledger lies in a folder; it is not open yet."""
    sweep = Sweep(
        name=name,
        launcher=launcher or CommandLauncher(argv=("trainer", "{steps}")),
        profiles=(profile("pretended", "--xla_pretended=1"),),
        limits=limits or Limits(),
        site=SiteSettings(**(site or {})),
    )
    return Campaign(
        ResolvedSweep(sweep=sweep, cell=study.cells[0]),
        executor,
        Ledger(folder / LEDGER),
        study=study,
        session=session,
        recover=recover,
        clock=clock,
    )


def again(made: Campaign, study: Study, *, session: str, executor: Executor) -> Campaign:
    """Return a campaign over the same sweep and ledger, as another process has it."""
    ledger = Ledger(made.ledger.path)
    return Campaign(made.resolved, executor, ledger, study=study, session=session)
