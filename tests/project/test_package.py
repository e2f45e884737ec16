"""What is published: the sdist and the wheel hold all files, and one version stands everywhere."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import pytest_xlatune

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
VERSION: str = PROJECT["project"]["version"]
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


def test_one_version_stands_everywhere() -> None:
    assert pytest_xlatune.__version__ == VERSION
    cited = YAML(typ="safe").load(ROOT / "CITATION.cff")
    assert cited["version"] == VERSION
    assert cited["license"] == PROJECT["project"]["license"]
    # ## 0.2.0 (2027-01-31)  ->  0.2.0
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    first, *_ = re.findall(r"(?m)^## (\S+)", changelog)
    assert first in ("Unreleased", VERSION), f"the changelog begins with {first}"


def test_every_public_name_is_there() -> None:
    for name in pytest_xlatune.__all__:
        assert getattr(pytest_xlatune, name).__name__
    assert sorted(pytest_xlatune.__all__) == pytest_xlatune.__all__
