"""How the tests are spread over xdist's workers."""

from __future__ import annotations

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling


class OneWorkerForTheLab(LoadScopeScheduling):  # type: ignore[misc]
    """One test at a time to whoever is free; all that need the Slurm lab to one worker, first.

    There is one lab on a machine: a second worker would only wait. The mark `xdist_group` with
    `--dist loadgroup` writes the group into the node id, which pytest 9.2 no longer allows.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "lab" if nodeid.startswith("tests/slurm/") else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> OneWorkerForTheLab | None:
    if config.getvalue("dist") != "load":
        return None
    return OneWorkerForTheLab(config, log)
