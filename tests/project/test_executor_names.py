"""The names of executors stand in `executors/`; all other code asks an executor for its facts."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from pytest_xlatune.executors import Executor
from pytest_xlatune.executors.named import EXECUTORS
from tests.helpers.source import MODULES, PACKAGE, nodes_of

OUTSIDE = [each for each in MODULES if "executors" not in each.parts]
NAMES = frozenset(EXECUTORS.ours)
HOMES = {target.partition(":")[0] for target in EXECUTORS.ours.values()}
CONTRACT = {name for name in vars(Executor) if not name.startswith("_")}
# a word that is an executor's name too, and what it is there
OTHERS = {
    ("sweep/settings.py", "slurm"): "the table of options for sbatch",
}
# --xlatune-executor slurm    executor="local"    the local executor
SAID = re.compile(rf"\bexecutor[ =\"']+({'|'.join(NAMES)})\b|\b({'|'.join(NAMES)}) executor\b")


def docstrings(nodes: Sequence[ast.AST]) -> set[ast.expr]:
    """The nodes that are texts for people who read the code."""
    homes = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    firsts = [each.body[0] for each in nodes if isinstance(each, homes) and each.body]
    return {each.value for each in firsts if isinstance(each, ast.Expr)}


def is_name_of_one(node: ast.expr) -> bool:
    """Whether an expression is the name of an executor: `executor` or `anything.executor`."""
    return (isinstance(node, ast.Name) and node.id == "executor") or (
        isinstance(node, ast.Attribute) and node.attr == "executor"
    )


def is_taken_of_one(node: ast.Attribute) -> bool:
    """Whether it takes of `runs_by` what the contract does not have."""
    of = node.value
    said = of.attr if isinstance(of, ast.Attribute) else of.id if isinstance(of, ast.Name) else ""
    return said == "runs_by" and node.attr not in CONTRACT


def faults(nodes: Sequence[ast.AST], file: str) -> Iterator[str]:
    """Give each place that knows an executor by its name."""
    texts = docstrings(nodes)
    for node in nodes:
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in texts:
            if node.value in NAMES and (file, node.value) not in OTHERS:
                yield f"{line}: names {node.value!r}"
            elif found := SAID.search(node.value):
                yield f"{line}: says {found[0]!r}"
        elif isinstance(node, ast.ImportFrom | ast.Import):
            taken = {f"{getattr(node, 'module', '')}.{each.name}".strip(".") for each in node.names}
            homes = taken | {each.rpartition(".")[0] for each in taken}
            if known := sorted(each for each in homes for home in HOMES if each.startswith(home)):
                yield f"{line}: imports {known[0]}"
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(is_name_of_one, sides)) and any(isinstance(s, ast.Constant) for s in sides):
                yield f"{line}: compares the name of an executor"
        elif isinstance(node, ast.Match) and is_name_of_one(node.subject):
            yield f"{line}: matches the name of an executor"
        elif isinstance(node, ast.Attribute) and is_taken_of_one(node):
            yield f"{line}: takes .{node.attr} of an executor"


def test_no_name_of_an_executor_outside_its_package() -> None:
    wrong = []
    for path in OUTSIDE:
        file = str(path.relative_to(PACKAGE))
        wrong += [f"{file}:{each}" for each in faults(nodes_of(path), file)]
    assert wrong == []


def test_every_other_meaning_is_still_there() -> None:
    for file, name in OTHERS:
        nodes = nodes_of(PACKAGE / file)
        assert any(isinstance(n, ast.Constant) and n.value == name for n in nodes), file


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("if site.executor == 'local': ...", "names 'local'"),
        ("is_held = name in {'allocation': 1}", "names 'allocation'"),
        ("match executor:\n    case 'slurm': ...", "matches the name of an executor"),
        ("if site.executor != other or site.executor == 'pbs': ...", "compares the name"),
        ("say(f'--xlatune-executor slurm {more}')", "says 'executor slurm'"),
        ("say('by the local executor')", "says 'local executor'"),
        ("from pytest_xlatune.executors.slurm.nodes import check_nodes", "imports pytest_xlatune"),
        ("def late():\n    import pytest_xlatune.executors.local", "imports pytest_xlatune"),
        ("from pytest_xlatune.executors import slurm", "imports pytest_xlatune.executors.slurm"),
        ("site.runs_by._run(['squeue'])", "takes ._run of an executor"),
    ],
)
def test_the_walk_sees_each_way_to_know_a_name(code: str, said: str) -> None:
    assert any(said in each for each in faults([*ast.walk(ast.parse(code))], "tasks/new.py"))


def test_the_walk_lets_facts_and_docstrings_pass() -> None:
    code = '"""As `slurm` does."""\nif site.runs_by.is_here and a.executor == b.executor: ...\n'
    assert not list(faults([*ast.walk(ast.parse(code))], "tasks/new.py"))


def test_facts_are_had_without_what_is_slow_to_import() -> None:
    theirs = ("numpy", "scipy", "submitit")
    code = (
        "import sys; from pathlib import Path; from pytest_xlatune.sweep import settings; "
        "settings.resolve_options({'xlatune_executor': 'slurm'}, {}, {}, root=Path('/')); "
        "from pytest_xlatune.executors.named import EXECUTORS, class_named; "
        "print([(name, class_named(name).is_here) for name in EXECUTORS.ours], "
        f"[each for each in {theirs} if each in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ("[('local', True), ('slurm', False), ('allocation', False)] []")
