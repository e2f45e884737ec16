"""What is published: the sdist and the wheel hold all files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# of the checkout alone: what a pipeline, a forge or an editor reads
NOT_PUBLISHED = {".ci", ".github", ".gitlab", ".pre-commit-config.yaml", ".gitignore"}


def lines_of(*argv: str) -> list[str]:
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 128:
        pytest.skip("no checkout of git")
    return done.stdout.split()


def test_the_builder_takes_every_file_of_the_checkout_but_those_of_a_pipeline() -> None:
    """What the built archives hold, asked of the builder alone, which takes no second."""
    if not os.environ.get("CI"):  # which runs this test and does not skip it
        pytest.importorskip("hatchling", reason="`pip install --group package` installs it")
    from hatchling.builders.sdist import SdistBuilder
    from hatchling.builders.wheel import WheelBuilder

    taken = {
        builder: {each.distribution_path for each in builder(str(ROOT)).recurse_included_files()}
        for builder in (SdistBuilder, WheelBuilder)
    }
    of_itself = {"LICENSE", "pyproject.toml"}  # which the builder adds when it builds
    tracked = set(lines_of("git", "ls-files"))
    published = {name for name in tracked if name.split("/")[0] not in NOT_PUBLISHED}
    assert published - taken[SdistBuilder] == of_itself
    assert set(lines_of("git", "ls-files", "pytest_xlatune")) - taken[WheelBuilder] == set()
    assert {each.split("/")[0] for each in taken[WheelBuilder]} == {"pytest_xlatune"}
