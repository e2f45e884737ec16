"""A check of nodes through pytest: a test a node, the report, the list that a sweep takes."""

from __future__ import annotations

from typing import Any

import pytest

# this machine stands for every node
CONFTEST = """\
import dataclasses
import msgspec
from pytest_xlatune.executors.local import LocalExecutor

real = LocalExecutor.submit

def submit(self, spec, request):
    resources = msgspec.structs.replace(request.resources, nodes=1)
    return real(self, spec, dataclasses.replace(request, nodelist=(), resources=resources))

LocalExecutor.submit = submit
"""
NODES = ("--xlatune-nodelist", "node[001-004]")


@pytest.fixture
def project(folder: Any, sweep_file: str) -> Any:
    """A sweep file of a node study; node002 is 30 % slower."""
    (folder.path / "conftest.py").write_text(CONFTEST, encoding="utf-8")
    head = sweep_file.partition("@pytest.mark")[0]
    head = head.replace("    profiles=(\n        PROFILES\n    ),\n", "    study=Nodes(),\n")
    head = head.replace("    profile,\n", "    Nodes,\n    standard_tests,\n")
    folder.write(text=f"{head}tests = standard_tests(SWEEP)\n")
    trainer = folder.path / "trainer.py"
    slow = 'speed = 700.0 if "node002" in sys.argv[2] else 1000.0'
    trainer.write_text(trainer.read_text("utf-8").replace("speed = 1000.0", slow), encoding="utf-8")
    return folder


def test_a_slow_node_fails_its_test_and_a_sweep_takes_the_others(
    project: Any, sweep_file: str
) -> None:
    done = project.run("-m", "nodes", "-v", *NODES)
    done.assert_outcomes(passed=4, failed=1)
    done.stdout.fnmatch_lines(["*test_arm?node002?*SLOWER*"])
    done.stdout.fnmatch_lines(["*4 nodes: slower: node002 -*% (-*"])
    assert len(project.submitted) == 4 + 4 * 4, "a run of each, then four rounds"
    report = project.read("reports/pretend/nodes.md")
    assert "| `node002` | SLOWER | " in report
    assert "--xlatune-nodelist=@healthy" in report
    listed = project.read(".xlatune/healthy.nodes").splitlines()
    assert listed[-1] == "node001,node003,node004"
    again = project.run("-k", "node003", "--xlatune-nodelist=@healthy", "--collect-only", "-q")
    again.stdout.fnmatch_lines(["*test_arm?node003?"])
    again.stdout.no_fnmatch_line("*node002*")

    profiles = "".join(f'profile("{name}", "--xla_{name}=1"),' for name in ("fast", "same"))
    sweep = sweep_file.replace("PROFILES", profiles).replace("FSDP=4", "FSDP=3")
    (project.path / "test_sweep.py").write_text(sweep, encoding="utf-8")
    swept = project.run("--xlatune-nodelist=@healthy", "-m", "wave1 or wave2", "-v")
    swept.assert_outcomes(passed=3)
    swept.stdout.fnmatch_lines(["*fast*screened +*"])
    assert len(project.submitted) == 20 + 4, "two baselines, two profiles"
    assert "Nodes: `node001`, `node003`, `node004`" in project.read(
        "reports/pretend/leaderboard.md"
    )


def test_inputs_that_compare_nothing_end_in_one_message(project: Any) -> None:
    done = project.run()
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stdout.fnmatch_lines(["*compares nodes, so it needs their names*"])
    done = project.run("--xlatune-nodelist", "node[001-002]")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stdout.fnmatch_lines(["*2 nodes are named, at least 3 are needed*"])
    done = project.run("--xlatune-nodelist=@healthy")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    (done.stdout if "@healthy" in done.stdout.str() else done.stderr).fnmatch_lines(
        ["*'@healthy', but *healthy.nodes cannot be read; a node study*"]
    )
