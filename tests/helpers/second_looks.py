"""A second look at a claim that `make test` has a cheaper test of.

In the part `slurm` the lab keeps one of xdist's two workers busy with waiting. The other one has
these: what a session with workers says as one without them does, and properties on all examples
(`make test` tries a third of them, new ones each time).
"""

from __future__ import annotations

import pytest
from hypothesis import settings

BESIDE_THE_LAB = pytest.mark.part("slurm")
# names of methods of a project's folder: the same run in this process, and with two workers
ALONE_AND_WITH_WORKERS = (
    pytest.param("run", id="alone"),
    pytest.param("run_with_workers", id="two workers", marks=BESIDE_THE_LAB),
)


def tried(most: int) -> int:
    """Return the `max_examples` of a property: fewer where the profile says fewer than 100."""
    return max(1, most * settings().max_examples // 100)
