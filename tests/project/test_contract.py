"""Outside `studies/` no code knows a study by its class, its stages, or beyond the contract."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import pytest_xlatune
from pytest_xlatune.studies import Study
from pytest_xlatune.sweep.registry import KINDS

PACKAGE = Path(pytest_xlatune.__file__).parent
MODULES = [each for each in sorted(PACKAGE.rglob("*.py")) if "studies" not in each.parts]
CLASSES = {kind.study.rpartition(":")[2] for kind in KINDS.values()}
CONTRACT = {name for name in vars(Study) if not name.startswith("_")}
# where a study is made of what a user asks for
MAKERS = {"sweep/resolved.py", "tasks/import_table.py", "tasks/runs.py"}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def is_study(node: ast.expr) -> bool:
    """Whether an expression is a study by its name: `study` or `anything.study`."""
    return (isinstance(node, ast.Name) and node.id == "study") or (
        isinstance(node, ast.Attribute) and node.attr == "study"
    )


def faults(tree: ast.Module, *, makes: bool = False) -> Iterator[str]:
    """Give each place that knows more of a study than the contract says."""
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.ImportFrom):
            taken = {each.name for each in node.names} & CLASSES
            if taken and not makes:
                yield f"{line}: imports {', '.join(sorted(taken))}"
            if "Stage" in {each.name for each in node.names}:
                yield f"{line}: imports Stage"
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance":
            named = {getattr(each, "id", getattr(each, "attr", "")) for each in ast.walk(node)}
            if named & CLASSES:
                yield f"{line}: asks for the class of a study"
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "Stage":
            yield f"{line}: names the stage {node.attr}"
        elif isinstance(node, ast.Attribute) and is_study(node.value):
            if node.attr not in CONTRACT:
                yield f"{line}: takes .{node.attr} of a study"
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            is_stage = any(
                isinstance(each, ast.Attribute) and each.attr == "stage" for each in sides
            )
            if is_stage and any(isinstance(each, ast.Constant) for each in sides):
                yield f"{line}: compares a stage with a constant"


def test_the_contract_is_what_the_design_says() -> None:
    assert {
        "name",
        "cells",
        "reference",
        "policy",
        "arms",
        "propose",
        "conclude",
        "answer",
        "left",
        "at_most",
        "why_more",
        "ahead",
        "outline",
        "whole",
        "to_json",
    } == CONTRACT


def test_no_code_outside_knows_more_than_the_contract() -> None:
    found = {
        name: said
        for path in MODULES
        if (name := str(path.relative_to(PACKAGE)))
        and (said := [*faults(tree_of(path), makes=name in MAKERS)])
    }
    assert found == {}


@pytest.mark.parametrize("path", sorted(MAKERS))
def test_who_may_make_a_study_does(path: str) -> None:
    assert [*faults(tree_of(PACKAGE / path))]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("from pytest_xlatune.studies.gate import GateStudy", "1: imports GateStudy"),
        ("ok = isinstance(known, (int, gate.GateStudy))", "1: asks for the class of a study"),
        ("from pytest_xlatune.model.cell import Stage", "1: imports Stage"),
        ("found = trial.stage is Stage.SCREEN", "1: names the stage SCREEN"),
        ("found = trial.stage == 'confirm'", "1: compares a stage with a constant"),
        ("found = campaign.study.profiles", "1: takes .profiles of a study"),
        ("found = study.sigma_prior", "1: takes .sigma_prior of a study"),
    ],
)
def test_what_bypasses_the_contract_is_seen(text: str, said: str) -> None:
    assert said in [*faults(ast.parse(text))]


def test_what_keeps_the_contract_is_not() -> None:
    text = "found = study.conclude(history), campaign.study.policy.loss, trial.study == study.name"
    assert [*faults(ast.parse(text))] == []


def test_every_kind_of_study_keeps_the_contract() -> None:
    for name, kind in KINDS.items():
        known = {*dir(kind.cls), *kind.cls.__dataclass_fields__}
        assert known >= CONTRACT, name
        assert kind.file_name
