"""The sweeps of one pytest session: what is selected of each, and its campaign.

Every process of the session (xdist workers, the controlling process, or the only one) has a
`Session` with the same id and options. This module knows pytest's items and configuration; what it
creates does not.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from pytest_xlatune import secure_files
from pytest_xlatune.campaign import Campaign
from pytest_xlatune.model.errors import ConfigError, LedgerError
from pytest_xlatune.model.hosts import expand
from pytest_xlatune.model.message import sentence
from pytest_xlatune.model.profile import NO_ENV_ID
from pytest_xlatune.model.resources import RetryPolicy
from pytest_xlatune.prepare import preflight
from pytest_xlatune.studies import Study
from pytest_xlatune.sweep.declaration import Sweep
from pytest_xlatune.sweep.deployed import context_of
from pytest_xlatune.sweep.earlier import read_calibration, recorded_trials
from pytest_xlatune.sweep.groups import RunSettings
from pytest_xlatune.sweep.resolved import ResolvedSweep
from pytest_xlatune.tasks.runs import Runs, run_preflight


@dataclass(slots=True, kw_only=True)
class Selection:
    """What this run selects of one sweep.

    Attributes:
        declared: the sweep as declared in its file.
        sweep: the sweep with the user's inputs.
        profiles: ids of profiles or arms, and names of derived ones, that selected tests measure.
        confirm: whether a selected test needs the confirmation.
        checked: the result of the project's own preflight; None to use ours.
    """

    declared: Sweep
    sweep: ResolvedSweep
    profiles: set[str] = field(default_factory=set)
    confirm: bool = False
    checked: preflight.Preflight | None = None

    def study(self, options: RunSettings, *, session: str) -> Study:
        """Return the study that answers this selection.

        Results of this `session` do not change its own plan. After `--xlatune-fresh` there are no
        earlier results.

        Raises:
            ConfigError, LedgerError: as `ResolvedSweep.study` and `read_calibration` raise them.
        """
        folder, declared = options.workdir / self.sweep.folder, self.declared
        calibration = read_calibration(folder, self.sweep.cell)
        all_names = {profile.id for profile in declared.profiles}
        all_names |= {slot.name for slot in declared.slots()}
        # a run of only the confirmation chooses among all profiles, and screens those not yet run
        is_all = (self.confirm and not self.profiles) or all_names <= self.profiles
        return self.sweep.study(
            selected=None if is_all else frozenset(self.profiles),
            confirm=self.confirm,
            sigma=calibration.noise.sigma_job if calibration else None,
            earlier=() if options.fresh else recorded_trials(folder, session=session),
        )


class Session:
    """The sweeps of this session in this process."""

    def __init__(self, options: RunSettings, session_id: str, *, config: pytest.Config) -> None:
        self.options = options
        self.id = session_id
        self._config = config
        self._selections: dict[str, Selection] = {}
        self._campaigns: dict[str, Campaign] = {}
        self._refused: dict[str, str] = {}  # sweep -> why it cannot begin
        # an xdist worker gets the command line of the controlling process
        words = getattr(config, "workerinput", {}).get("mainargv", sys.argv)
        self._runs = Runs(options, session=session_id, command=words)
        self.overridden: set[str] = set()  # names of sweeps for which `override` was called

    @property
    def folders_file(self) -> Path:
        """The file in which the processes of this session name the folders that they use."""
        return self.options.workdir / "sessions" / f"{self.id}.txt"

    def select(self, sweeps: Mapping[pytest.Item, Sweep]) -> None:
        """Read from the selected tests what they need of each sweep.

        Raises:
            ConfigError: a sweep lacks an input, or two sweeps have the same name.
        """
        selections: dict[str, Selection] = {}
        for item, sweep in sweeps.items():
            selection = selections.get(sweep.name)
            if selection is None:
                resolved = sweep.resolve(self.options.for_sweeps)
                selection = selections[sweep.name] = Selection(declared=sweep, sweep=resolved)
            elif selection.declared is not sweep:
                raise ConfigError(
                    f"two sweep files declare a sweep named {sweep.name!r}: rename one of them"
                )
            params = getattr(getattr(item, "callspec", None), "params", {})
            fixtures = set(getattr(item, "fixturenames", ()))
            # a profile is not measured if the test needs only its evidence
            if "profile" in params and ("measure" in fixtures or "evidence" not in fixtures):
                selection.profiles.add(params["profile"].id)
            if "arm" in params:
                selection.profiles.add(params["arm"].id)
            if "baseline_no_env" in fixtures and selection.sweep.has_no_env:
                selection.profiles.add(NO_ENV_ID)
            if "derived" in params:
                selection.profiles.add(params["derived"].name)
            selection.confirm |= "finalist" in params or "winner" in fixtures
        self._selections = selections

    def selection(self, sweep: Sweep) -> Selection:
        """Return what this run selects of a sweep."""
        return self._selections[sweep.name]

    def override(
        self,
        sweep: Sweep,
        *,
        retry_policy: RetryPolicy,
        nodes: tuple[str, ...] | None = None,
        checked: preflight.Preflight | None = None,
    ) -> None:
        """Use the values of the project's own fixtures for a sweep; None where it has none.

        Raises:
            ConfigError: the nodes do not fit the sweep.
        """
        selection = self._selections[sweep.name]
        if nodes is not None:
            user_options = self.options.for_sweeps
            names = expand(",".join(nodes))
            # the fixture also replaces a number of nodes
            others = {name: value for name, value in user_options.values.items() if name != "nodes"}
            user_options = msgspec.structs.replace(
                user_options,
                values={**others, "nodelist": names},
            )
            selection.sweep = selection.declared.resolve(user_options)
        declared = selection.sweep.sweep
        if retry_policy != declared.site.retry_policy:
            site = msgspec.structs.replace(declared.site, retry_policy=retry_policy)
            declared = msgspec.structs.replace(declared, site=site)
            selection.sweep = dataclasses.replace(selection.sweep, sweep=declared)
        selection.checked = checked
        self.overridden.add(sweep.name)

    def studies(self) -> list[tuple[ResolvedSweep, Study]]:
        """Return each selected sweep with its study."""
        return [
            (selection.sweep, selection.study(self.options, session=self.id))
            for selection in self._selections.values()
        ]

    def campaign(self, sweep: Sweep) -> Campaign:
        """Return the campaign of a sweep, opened.

        Raises:
            ConfigError, LedgerError: it cannot begin.
        """
        if sweep.name in self._refused:
            raise ConfigError(self._refused[sweep.name])
        if sweep.name not in self._campaigns:
            selection = self._selections[sweep.name]
            study = selection.study(self.options, session=self.id)
            self._campaigns[sweep.name] = self.run(selection.sweep, study)
        return self._campaigns[sweep.name]

    def run(self, resolved: ResolvedSweep, study: Study) -> Campaign:
        """Return the campaign that runs a study into the ledger of the sweep's cell, opened.

        Raises:
            ConfigError, LedgerError: it cannot begin.
        """
        folder = self.options.workdir / resolved.folder
        is_new = folder not in self._runs.folders
        selections = self._selections.values()
        checks = (chosen.checked for chosen in selections if chosen.sweep.folder == resolved.folder)
        campaign = self._runs.open(
            resolved,
            study,
            preflight_result=next(checks, None),
            recover=lambda decision, nodes: bool(
                self._config.hook.pytest_xlatune_recover(
                    sweep=resolved.sweep.name, decision=decision, nodes=nodes
                )
            ),
        )
        if is_new:
            self._announce(folder)
        return campaign

    def close(self) -> None:
        """Stop waiting for anything, so that jobs that still run may be ended."""
        self._runs.close()

    def preflight(self, sweep: Sweep, *, is_opening: bool = False) -> preflight.Preflight:
        """Check the site of a sweep and the flags of its selected profiles.

        With `is_opening`, for a project's own preflight before the campaign opens, check no flags.

        Raises:
            ConfigError: everything that is wrong, in one message.
        """
        selection = self._selections[sweep.name]
        resolved = selection.sweep
        if is_opening:
            folder = self.options.workdir / resolved.folder
            checked = run_preflight(resolved, folder, is_first=True, is_busy=True)
            checked.raise_faults(f"sweep {sweep.name!r}")
            return checked
        campaign = self.campaign(sweep)
        view = campaign.view()
        # unselected values of a search are checked too
        profiles = [
            profile
            for profile in sweep.named_profiles
            if profile.id in selection.profiles or profile not in sweep.profiles
        ]
        measured = set[str]()
        if not view.pending:
            verdicts = campaign.conclude().verdicts
            measured = {verdict.arm for verdict in verdicts if verdict.n and verdict.can_run}
        flags = preflight.check_flags(
            profiles or sweep.profiles,
            context_of(resolved.cell, resolved.sweep.launcher),
            python=resolved.sweep.launcher.interpreter,
            environ=os.environ,
            measured=measured,
        )
        try:
            flags.raise_faults(f"sweep {sweep.name!r}")
        except ConfigError as error:
            if not view.state.trials:  # then other tests of the sweep must not submit anything
                self._refused[sweep.name] = str(error)
            raise
        notes = (*map(sentence, view.state.notes), *flags.notes)
        return preflight.Preflight(notes=notes)

    def _announce(self, folder: Path) -> None:
        """Name a folder in the file from which the controlling process learns what to follow."""
        append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        try:
            secure_files.make_folder(self.folders_file.parent)
            with os.fdopen(secure_files.open_file(self.folders_file, append), "ab") as file:
                file.write(os.fsencode(f"{folder}\n"))
        except OSError as error:
            raise LedgerError(str(error)) from None
