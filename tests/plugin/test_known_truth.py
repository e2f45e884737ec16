"""From a truth that is chosen to a patch that is right for both parallelisms."""

from __future__ import annotations

from typing import Any

import pytest

from tests.helpers.known_truth import follow, write
from tests.helpers.second_looks import BESIDE_THE_LAB
from tests.helpers.sessions import run_inside


@BESIDE_THE_LAB  # tests/slurm/test_slurm_known_truth.py follows the same truth
def test_a_known_truth_ends_in_its_recipes_and_a_patch_that_breaks_neither_cell(
    folder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.path / "test_sweep.py").unlink()
    write(folder.path, executor="local")

    def run(axes: str, marker: str) -> object:
        monkeypatch.setenv("AXES", axes)
        chosen = ("-m", marker) if marker else ()
        return run_inside(folder.pytester, "test_truth.py", *chosen)

    follow(folder.path, run)
