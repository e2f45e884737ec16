"""A plugin of pytest for `run_with_workers`: trials have run when they are submitted."""

from __future__ import annotations

import pytest_xlatune.campaign
import pytest_xlatune.executors.local
from tests.helpers.sessions import QuickExecutor

vars(pytest_xlatune.executors.local)["LocalExecutor"] = QuickExecutor
vars(pytest_xlatune.campaign)["TURN_S"] = 0.05
