"""The hooks that this plugin calls; implement them in a conftest.py or in a plugin of your own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_xlatune.campaign.playbook import Decision
    from pytest_xlatune.model.result import Conclusion, TrialResult


@pytest.hookspec
def pytest_xlatune_trial_ended(sweep: str, result: TrialResult) -> None:
    """Called once for each trial that ends during the session, in the order of the ledger.

    Runs in the controlling process, never in an xdist worker; may be missed if that process is
    killed. The return value is ignored.

        def pytest_xlatune_trial_ended(sweep, result):
            dashboard.post(sweep, result.to_json())
    """


@pytest.hookspec(firstresult=True)
def pytest_xlatune_recover(sweep: str, decision: Decision, nodes: tuple[str, ...]) -> bool | None:
    """Called before a retry that needs a person's rights, e.g. the reset of a network adapter.

    Runs in whichever process looks after the campaign. Return True when the nodes are fit again;
    False or None stops the sweep with the decision's reason.

        def pytest_xlatune_recover(sweep, decision, nodes):
            return decision.cls == "nic-fault" and all(reset_nic(node) for node in nodes)
    """


@pytest.hookspec
def pytest_xlatune_concluded(sweep: str, conclusion: Conclusion) -> None:
    """Called once at the end of the session, in the controlling process; verdicts may be missing.

    The return value is ignored.

        def pytest_xlatune_concluded(sweep, conclusion):
            if conclusion.tuning.finalists:
                notify(f"{sweep}: {conclusion.verdicts[0].kind}")
    """
