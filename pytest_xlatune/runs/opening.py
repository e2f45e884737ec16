"""Open the campaign that runs a study into the ledger of a sweep's cell.

The one way in, for a pytest session and for the command line: the site is looked at before anything
is submitted, and trouble is met by the same playbook. This module knows nothing of pytest; what a
site can do about its nodes is handed in.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from pytest_xlatune.campaign.assess import Assessment
from pytest_xlatune.campaign.campaign import Campaign, Setup
from pytest_xlatune.campaign.deployed_files import deployed_files
from pytest_xlatune.campaign.jobs import executor_named
from pytest_xlatune.campaign.versions import versions
from pytest_xlatune.cells import Trial
from pytest_xlatune.ledger import Event, LedgerState
from pytest_xlatune.preflight import preflight
from pytest_xlatune.preflight.flags import ground_of, look_at_rules
from pytest_xlatune.preflight.keys import look_at_keys
from pytest_xlatune.studies import Study
from pytest_xlatune.studies.tuning import TuningStudy
from pytest_xlatune.sweep.sweep import ResolvedSweep

Recover = Callable[[Assessment, tuple[str, ...]], bool]


def site_of(
    resolved: ResolvedSweep, workdir: Path, *, is_first: bool, is_busy: bool
) -> preflight.Site:
    """Return where the trials of a sweep run, for a look at it."""
    return preflight.Site(
        cell=resolved.cell,
        launcher=resolved.sweep.launcher,
        resources=resolved.resources,
        executor=resolved.executor,
        folder=workdir / resolved.folder,
        is_first=is_first,
        is_busy=is_busy,
    )


def open_campaign(
    resolved: ResolvedSweep,
    study: Study,
    *,
    workdir: Path,
    session: str,
    recover: Recover | None = None,
    fresh: bool = False,
) -> Campaign:
    """Return the campaign of a study, joined or begun.

    Args:
        resolved: the sweep whose cell it is about.
        study: what is asked of the cell.
        workdir: below which the cell has its folder.
        session: id of the session, shared by all its processes.
        recover: does what needs a person's rights; None where nobody is there who could.
        fresh: whether the session's first process moves what was measured aside.

    Raises:
        ConfigError: the site is not ready, with everything that is wrong; or the ledger is of
            another cell.
        LedgerError: the ledger cannot be read or written.
    """
    folder = workdir / resolved.folder

    def is_ready(state: LedgerState) -> tuple[str, ...]:
        # what was intended may run too: its session was killed before it could say so
        is_busy = bool(state.in_flight() or state.unresolved())
        site = site_of(resolved, workdir, is_first=not state.opened, is_busy=is_busy)
        found = preflight.look(site)
        keys = look_at_keys(
            resolved.sweep.launcher, resolved.cell, resolved.sweep.profiles, environ=os.environ
        )
        ground = ground_of(resolved.cell, resolved.sweep.launcher)
        rules = look_at_rules(resolved.sweep.profiles, ground)
        found = preflight.Preflight(
            faults=(*found.faults, *keys.faults, *rules.faults), notes=(*found.notes, *keys.notes)
        )
        found.raise_faults(f"sweep {resolved.sweep.name!r}")
        return found.notes

    setup = Setup(
        sweep=resolved.sweep.name,
        cell=resolved.cell,
        launcher=resolved.sweep.launcher,
        executor=executor_named(resolved.executor),
        resources=resolved.resources,
        folder=folder,
        session=session,
        policy=resolved.sweep.retry_policy,
        files=deployed_files(
            resolved.sweep.launcher,
            resolved.cell,
            env_file=resolved.sweep.env_file,
            root=Path.cwd(),
        ),
        limits=resolved.limits,
        versions=versions(),
        settings=dict(resolved.settings),
        recover=recover,
        check=is_ready,
        settle=_settler(resolved, study, folder),
        read=partial(_read, folder=folder),
    )
    campaign = Campaign(setup, study)
    campaign.open(fresh=fresh)
    return campaign


def _read(state: LedgerState, folder: Path) -> tuple[Event, ...]:
    from pytest_xlatune.runs.reading import read_new  # noqa: PLC0415 - numpy only where it reads

    return read_new(state, folder)


def _settler(
    resolved: ResolvedSweep, study: Study, folder: Path
) -> Callable[[LedgerState, Sequence[Trial], Sequence[Trial]], tuple[Event, ...]] | None:
    """Return what compiles the profiles of a tuning study before any trial, if that is asked."""
    screening = resolved.screening
    if screening is None or not isinstance(study, TuningStudy):
        return None
    from pytest_xlatune.screening.step import Step  # noqa: PLC0415 - numpy only where it compiles

    compiler = resolved.compiler(screening)
    step = Step(compiler, resolved.sweep.profiles, controls=screening.controls)
    return partial(step.next, folder=folder)
