"""The hooks that this plugin calls, and the keys and helpers that its modules share.

Implement the hooks in a conftest.py or a plugin of your own. Every pytest run loads this module.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_xlatune.campaign.playbook import Ruling
    from pytest_xlatune.model.result import Conclusion, TrialResult
    from pytest_xlatune.plugin.session import Session
    from pytest_xlatune.sweep.declaration import Sweep
    from pytest_xlatune.sweep.groups import RunSettings

SWEEPS = "pytest_xlatune.sweep.declaration"  # imported by every file that declares a sweep
CONTROLLER = "xlatune-controller"  # our name among the plugins, and our key in xdist's messages
IS_USAGE = "xlatune_is_usage"  # attribute of a collector's report: whether the error is the user's
REFUSED = "xlatune.refused"  # property of a test whose fixture raised our error: the error's class
CLAIM = "xlatune_claim"  # attribute of an error: an assertion of a standard test raised it
EXIT = "xlatune_exit"  # attribute of a failed test's report: the exit status of the run
OPTIONS_KEY: pytest.StashKey[RunSettings] = pytest.StashKey()
OPENING_KEY = pytest.StashKey[list[str]]()  # names of sweeps whose campaign is being opened
SESSION_KEY: pytest.StashKey[Session] = pytest.StashKey()
NO_TAG = ""  # the tag of a sweep without tags


def root_of(config: pytest.Config) -> Path:
    """Return the folder of `--rootdir` or of pytest's ini file, else the working directory.

    Without either, pytest would derive its root directory from the arguments, including the value
    of `--xlatune-workdir` once that exists, and the next run would not find this one's results.
    """
    is_named = config.inipath is not None or config.getoption("rootdir", None)
    return config.rootpath if is_named else config.invocation_params.dir


def sweep_of(module: object) -> Sweep | None:
    """Return the sweep that a test module declares as SWEEP; None if SWEEP is something else."""
    declaration = sys.modules.get(SWEEPS)
    declared = getattr(module, "SWEEP", None)
    return declared if declaration and isinstance(declared, declaration.Sweep) else None


@pytest.hookspec
def pytest_xlatune_trial_ended(sweep: str, result: TrialResult) -> None:
    """Called once for each trial that ends during the session, in the order of the ledger.

    It runs in the controlling process, never in an xdist worker, and may be missed if that process
    is killed. The return value is ignored.

        def pytest_xlatune_trial_ended(sweep, result):
            dashboard.post(sweep, result.to_json())
    """


@pytest.hookspec(firstresult=True)
def pytest_xlatune_recover(sweep: str, decision: Ruling, nodes: tuple[str, ...]) -> bool | None:
    """Called before a retry that needs a person's rights, e.g. to reset a network adapter.

    It runs in the process that drives the campaign. Return True if the nodes can be used again;
    False or None stops the sweep with the decision's reason.

        def pytest_xlatune_recover(sweep, decision, nodes):
            return decision.cls == "nic-fault" and all(reset_nic(node) for node in nodes)
    """


@pytest.hookspec
def pytest_xlatune_concluded(sweep: str, conclusion: Conclusion) -> None:
    """Called once at the end of the session in the controlling process; verdicts may be missing.

    The return value is ignored.

        def pytest_xlatune_concluded(sweep, conclusion):
            if conclusion.tuning.finalists:
                notify(f"{sweep}: {conclusion.verdicts[0].kind}")
    """
