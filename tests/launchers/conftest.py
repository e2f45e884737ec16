"""A pretend checkout of maxtext-slurm for each test that wants one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.checkout import Site


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)
