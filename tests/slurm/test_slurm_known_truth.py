"""From a truth that is chosen to a patch that is right for both parallelisms, by jobs of Slurm."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from tests.helpers.known_truth import CELLS, follow, write

Project = Any  # of conftest.py, which cannot be imported from here

pytestmark = pytest.mark.part("sweeps")

NODES = dict(zip(CELLS, ("node[001-002]", "node[003-004]"), strict=True))


@pytest.mark.timeout(1800)
def test_a_known_truth_ends_in_its_recipes_and_a_patch_that_breaks_neither_cell(
    project: Project, lab: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(project.path, executor="slurm")

    def run(axes: str, marker: str) -> None:
        monkeypatch.setenv("AXES", axes)
        chosen = ("-m", marker) if marker else ()
        options = ("-n", "0", "--xlatune-nodelist", NODES[axes])
        project.run("test_truth.py", *chosen, *options, timeout_s=900)

    follow(project.path, run)
    submitted = project.submitted
    # each trial once: the baselines that the patch deploys are trials of another cell
    assert len(submitted) == len(set(submitted))
    assert project.jobs(lab) == len(submitted)
