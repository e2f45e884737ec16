"""A study of another distribution is declared in a sweep file, and has its marker, test, report."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import toy
from tests.helpers.guests import install

DECLARED = """\
    study=toy.Toy(rounds=2),
    config_tags={"quiet": {"mode": "quiet"}, "loud": {"mode": "loud"}},
"""


@pytest.fixture
def project(
    folder: Any, sweep_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """A sweep file of the toy study, which the package knows by an entry point alone."""
    group = {"pytest_xlatune.studies": {toy.KIND: "their_toy:TOY"}}
    source = Path(toy.__file__).read_text(encoding="utf-8")
    install(tmp_path / "there", "their-toy", group, {"their_toy": source})
    monkeypatch.syspath_prepend(tmp_path / "there")
    head = sweep_file.partition("@pytest.mark")[0]
    head = head.replace("    profiles=(\n        PROFILES\n    ),\n", DECLARED)
    head = head.replace("    profile,\n", "    standard_tests,\n")
    head = head.replace("import pytest\n", "import pytest\nimport their_toy as toy\n", 1)
    head = head.replace('"{trial}")', '"{trial}", "{overrides}")')
    folder.write(text=f"{head}tests = standard_tests(SWEEP)\n")
    yield folder
    sys.modules.pop("their_toy", None)


def test_it_runs_by_its_marker_and_has_a_report(project: Any) -> None:
    done = project.run("-m", "toy", "-v")
    done.assert_outcomes(passed=3)
    done.stdout.fnmatch_lines(["*test_arm?quiet?*screened*", "*test_arm?loud?*screened*"])
    assert len(project.submitted) == 4, "two rounds of two cells"
    assert "| quiet | " in project.read("reports/pretend/toy.md")
    conclusion = json.loads(project.read("reports/pretend/toy.json"))["conclusion"]
    assert conclusion["record"]["kind"] == "toy"
    assert conclusion["record"]["rounds"] == 2
    project.run("-k", "loud").assert_outcomes(passed=1)
    assert len(project.submitted) == 4, "what was measured is taken from the ledger"


def test_its_marker_is_listed_and_one_that_is_gone_is_refused(
    project: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    project.run("--markers").stdout.fnmatch_lines(["@pytest.mark.toy: which of the cells is *"])
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(there)])
    monkeypatch.setitem(sys.modules, "their_toy", toy)
    done = project.run()
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stdout.fnmatch_lines(["*study is Toy(rounds=2) (Toy), expected a study's declaration*"])


def test_a_test_may_name_an_arm(project: Any) -> None:
    own = """

@pytest.mark.toy
def test_own(measure):
    assert measure("loud").n == 2
    measure("lout")
"""
    project.write(text=project.read("test_sweep.py") + own)
    done = project.run("-k", "own")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(["*unknown arm 'lout' in sweep 'pretend'*did you mean 'loud'*"])
