"""A check of a network through pytest: a test a node, the conclusion, the report."""

from __future__ import annotations

import json
import re
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
    pairs = project.read("test_sweep.py")
    alone = pairs.replace('name="pretend"', 'name="alone"').replace("Network", "Nodes")
    project.write(text=alone)
    project.run(*NODES).assert_outcomes(passed=5)
    project.write(text=pairs)
    slow(project, '"node002+node003" in sys.argv[2]')
    done = project.run("-m", "network", "-v", *NODES)
    done.stdout.fnmatch_lines(["*slower: node002+node003 -*"])
    assert done.parseoutcomes()["passed"] == 4, "no node is accused"
    assert done.parseoutcomes()["failed"] == 1
    done.stdout.fnmatch_lines(["FAILED*test_conclusion*Failed: 4 nodes*"])
    report = project.read("reports/pretend/network.md")
    assert "the link is slower than both of its nodes with other partners" in report
    (said,) = (line for line in report.splitlines() if "checked alone" in line)
    assert re.fullmatch(
        r"\* the nodes were checked alone, 20.* UTC, `alone`: 4 nodes: none .*", said
    )
    conclusion = json.loads(project.read("reports/pretend/network.json"))["conclusion"]
    assert conclusion["verdicts"][0]["arm"] == "node002+node003"
    assert len(project.submitted) <= 4 + 6 + 4 + 12
