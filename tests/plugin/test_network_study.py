"""A check of a network through pytest: a test a node, the conclusion, the report."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.plugin.test_node_study import CONFTEST

NODES = ("--xlatune-nodelist", "node[001-004]")


@pytest.fixture
def project(folder: Any, sweep_file: str) -> Any:
    """A sweep file of a network study; the trainer reads its pair from the trial's name."""
    (folder.path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    head = sweep_file.partition("@pytest.mark")[0]
    head = head.replace("    profiles=(\n        PROFILES\n    ),\n", "    study=Network(),\n")
    head = head.replace("    profile,\n", "    Network,\n    standard_tests,\n")
    folder.write(text=f"{head}tests = standard_tests(SWEEP)\n")
    return folder


def slow(folder: Any, condition: str) -> None:
    trainer = folder.path / "trainer.py"
    text = trainer.read_text("utf-8")
    line = f"speed = 700.0 if {condition} else 1000.0"
    trainer.write_text(text.replace("speed = 1000.0", line), encoding="utf-8")


def test_a_slow_link_fails_the_conclusion_and_no_node(project: Any) -> None:
    slow(project, '"node002+node003" in sys.argv[2]')
    done = project.run("-m", "network", "-v", *NODES)
    done.stdout.fnmatch_lines(["*the link node002-node003 is slower*"])
    assert done.parseoutcomes()["passed"] == 4, "no node is accused"
    assert done.parseoutcomes()["failed"] == 1
    done.stdout.fnmatch_lines(["FAILED*test_conclusion*the link node002-node*"])
    report = project.read("reports/pretend/network.md")
    assert "the link node002-node003 is slower than both" in report
    conclusion = json.loads(project.read("reports/pretend/network.json"))["conclusion"]
    assert conclusion["record"]["link"] == ["node002", "node003"]
    assert len(project.submitted) <= 6 + 4 + 12
