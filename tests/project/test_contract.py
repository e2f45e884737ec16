"""Outside `studies/` no code knows a study by its class, its stages, or beyond the contract.

A study, its declaration and its record are used by calling them, never by asking what they are: no
`getattr` with a name in a string, no `isinstance` against a class of theirs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeGuard

import pytest

from pytest_xlatune.model.result import StudyRecord
from pytest_xlatune.studies import Study
from pytest_xlatune.sweep.registry import KINDS, StudyKind
from tests.helpers.source import MODULES, PACKAGE, nodes_of, tree_of

OUTSIDE = [each for each in MODULES if "studies" not in each.parts]
CLASSES = {kind.study.rpartition(":")[2] for kind in KINDS.values()}
# `cells` is a field or a property, so that the base class has it for the type checker alone
CONTRACT = {name for name in dir(Study) if not name.startswith("_")} - {"from_json", "gone"} | {
    "cells"
}
# names by which code of a shell calls pytest's own objects, whose attributes differ by its releases
OF_PYTEST = {"call", "config", "item", "module", "params", "report", "request"}
OURS = {"conclusion", "declared", "facts", "record", "study"}
_ = [kind.cls for kind in KINDS.values()]  # each brings its record along
RECORDS = {"StudyRecord", *(each.__name__ for each in StudyRecord._kinds.values())}
# below the trainer's interpreter: no study reaches it, and attributes of JAX differ by its releases
BELOW_THE_TRAINER = "workers/rotate.py"
# where a study is made of what a user asks for
STUDIES = "pytest_xlatune.studies"
MAKERS = {"sweep/resolved.py", "tasks/import_table.py", "tasks/runs.py"}


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


def root_of(node: ast.expr) -> str:
    """The name that an expression begins with: `item` of `getattr(item.module, "a").b`."""
    match node:
        case ast.Name():
            return node.id
        case ast.Attribute() | ast.Subscript():
            return root_of(node.value)
        case ast.BoolOp():
            return root_of(node.values[0])
        case ast.Call():
            return root_of(node.args[0] if is_called(node, "getattr") else node.func)
    return ""


def is_called(node: ast.AST, *names: str) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") in names


def bypasses(
    tree: ast.Module, *, is_plugin: bool = False, is_general: bool = False
) -> Iterator[str]:
    """Give each place that asks what a study, a declaration, a record or a launcher is."""
    of_studies = {
        each.asname or each.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(STUDIES)
        for each in node.names
    }
    for node in ast.walk(tree):
        if is_called(node, "getattr", "hasattr"):
            asked, name = node.args[:2]
            own = {getattr(each, "attr", getattr(each, "id", "")) for each in ast.walk(asked)}
            if own & OURS and not is_general:
                yield f"{node.lineno}: looks an attribute up by its name: {ast.unparse(node)}"
            elif isinstance(name, ast.Constant) and not (is_plugin and root_of(asked) in OF_PYTEST):
                yield f"{node.lineno}: names an attribute in a string: {ast.unparse(node)}"
        elif is_called(node, "isinstance", "issubclass"):
            kinds = {
                getattr(each, "attr", getattr(each, "id", "")) for each in ast.walk(node.args[1])
            }
            if found := sorted(kinds & (of_studies | RECORDS)):
                yield f"{node.lineno}: asks whether it is {', '.join(found)}"


def test_the_contract_is_what_the_design_says() -> None:
    assert {
        *("traits", "name", "cells", "reference", "policy", "seed", "to_json"),
        *("decide", "outlook", "answer"),
    } == CONTRACT


def test_the_registry_holds_what_is_needed_before_a_study_is_imported() -> None:
    assert StudyKind._fields == ("study", "document", "file_name", "markers", "asked_by_file")


def test_what_a_sweep_file_can_ask_for_is_told_without_an_import_as_the_classes_tell() -> None:
    for name, kind in KINDS.items():
        assert kind.asked_by_file is not None, name
        assert kind.is_declared == kind._replace(asked_by_file=None).is_declared, name


def test_a_study_a_declaration_and_a_record_are_used_and_never_asked_what_they_are() -> None:
    found = {
        name: said
        for path in OUTSIDE
        if (name := str(path.relative_to(PACKAGE))) != BELOW_THE_TRAINER
        and (
            said := [
                *bypasses(
                    tree_of(path),
                    is_plugin=name.startswith(("plugin/", "guests/cvs/items")),
                    is_general=name == "model/written.py",  # checks whatever a user makes
                )
            ]
        )
    }
    assert found == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("found = getattr(record, 'setting', '')", "looks an attribute up"),
        ("ok = hasattr(conclusion.record, 'setting')", "looks an attribute up"),
        ("found = [getattr(record, each) for each in ('first', 'last')]", "looks an attribute up"),
        ("found = getattr(sweep.declared, name, ())", "looks an attribute up"),
        ("inner = getattr(launcher, 'inner', launcher)", "names an attribute"),
        ("found = getattr(error, 'strerror', None)", "names an attribute"),
        ("ok = isinstance(found.record, pairs.NetworkRecord | None)", "asks whether it is"),
        (
            "from pytest_xlatune.studies.gate import Gate\nok = isinstance(asked, Gate)",
            "asks whether it is Gate",
        ),
    ],
)
def test_asking_what_something_is_is_seen(text: str, said: str) -> None:
    (found,) = bypasses(ast.parse(text))
    assert said in found


def test_pytest_may_be_asked_in_its_plugin_alone() -> None:
    tree = ast.parse("found = getattr(getattr(request.node, 'callspec', None), 'params', {})")
    assert [*bypasses(tree, is_plugin=True)] == []
    assert len([*bypasses(tree)]) == 2


def test_no_code_outside_knows_more_than_the_contract() -> None:
    found = {
        name: said
        for path in OUTSIDE
        if (name := str(path.relative_to(PACKAGE)))
        and (said := [*faults(tree_of(path), makes=name in MAKERS)])
    }
    assert found == {}


def test_a_record_is_read_by_the_document_of_its_study_alone() -> None:
    own = {kind.document.partition(":")[0] for kind in KINDS.values()}
    found = {
        name: taken
        for path in OUTSIDE
        if (name := ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)) not in own
        # a guest has its study and its document in one folder
        and not name.startswith(("pytest_xlatune.model.", "pytest_xlatune.guests."))
        and (
            taken := [
                each.name
                for node in nodes_of(path)
                if isinstance(node, ast.ImportFrom)
                for each in node.names
                if each.name in RECORDS
            ]
        )
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
    text = "found = study.decide(history), campaign.study.policy.derives, trial.study == study.name"
    assert [*faults(ast.parse(text))] == []


def test_every_kind_of_study_keeps_the_contract() -> None:
    for name, kind in KINDS.items():
        assert issubclass(kind.cls, Study), name
        # a field that is called as a method of the contract would hide it
        own = {*kind.cls.__struct_fields__}
        assert own & CONTRACT <= {"cells", "seed"}, name
        assert kind.file_name
