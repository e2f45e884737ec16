"""Where the package holds sentences: texts with words one after the other, error messages left out.

    python -m tests.helpers.sentences [FOLDER]        functions, lines and sentences of each package

State is fields, and `report/words.py` makes sentences of it: no function of a study, of the
statistics, of a campaign or of the ledger holds one, or has one made. None is a docstring, what is
raised, what an error or a warning is made of, what names the place of an error (`where=`, `what=`),
or a line of the log. Nor is a text that a function keeps in a variable of which errors and the log
alone are made.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[2] / "pytest_xlatune"
# two words with a blank between them:  nothing shows that
_WORDS = re.compile(r"[A-Za-z]{2,}[,;:]? [a-z]{2,}")
# a call whose texts are an error's or the log's:  ConfigError.unknown(...)    _LOG.info(...)
_EXEMPT = re.compile(
    r"(Error|Warning)(\.unknown)?$|^(_LOG|_log|log|warnings)\.\w+$|^self(\._packing)?\.tell$"
)
_OF_ERRORS = ("where", "what", "metadata")
# what makes a sentence of a reason
_MADE = ("sentence", "plainly", "joined")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_DEFINED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class Held(NamedTuple):
    """The sentences of one function, or of a module outside of functions."""

    file: Path
    function: str
    lines: int
    sentences: tuple[tuple[int, str], ...]


def sentences(path: Path) -> Iterator[Held]:
    """Yield the functions of a file that hold sentences."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: dict[ast.AST, list[tuple[int, str]]] = defaultdict(list)

    def look(node: ast.AST, within: ast.AST, passed: frozenset[str]) -> None:
        if _is_exempt(node) or _is_kept_in(node, passed):
            return
        if isinstance(node, _FUNCTIONS):
            within, passed = node, passed | _for_errors(node)
        text = _text(node)
        if _makes_one(node) or (text is not None and _WORDS.search(text)):
            found[within].append((getattr(node, "lineno", 0), text or ast.unparse(node)))
        for child in _children(node):
            look(child, within, passed)

    look(tree, tree, frozenset())
    for within, own in found.items():
        is_function = isinstance(within, _FUNCTIONS)
        last = getattr(within, "end_lineno", 0) - getattr(within, "lineno", 0) + 1
        yield Held(
            file=path,
            function=within.name if is_function else "",  # type: ignore[attr-defined]
            lines=last if is_function else len(own),
            sentences=tuple(own),
        )


def _for_errors(function: ast.AST) -> frozenset[str]:
    """Return the variables of a function that are read in an error or a line of the log alone."""
    ways: dict[str, list[bool]] = defaultdict(list)

    def look(node: ast.AST, is_error: bool) -> None:
        is_error = is_error or _is_exempt(node)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            ways[node.id].append(is_error)
        for child in ast.iter_child_nodes(node):
            look(child, is_error)

    look(function, is_error=False)
    return frozenset(name for name, way in ways.items() if all(way))


def _is_kept_in(node: ast.AST, names: frozenset[str]) -> bool:
    """Whether a statement gives a value to these variables alone."""
    if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    of = [each for target in targets for each in getattr(target, "elts", [target])]
    return all(isinstance(each, ast.Name) and each.id in names for each in of)


def _makes_one(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in _MADE and isinstance(node.ctx, ast.Load)


def _is_exempt(node: ast.AST) -> bool:
    if isinstance(node, ast.Raise):
        return True
    return isinstance(node, ast.Call) and bool(_EXEMPT.search(ast.unparse(node.func)))


def _children(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a node holds, without its docstring and the arguments that name a place."""
    if isinstance(node, ast.keyword) and node.arg in _OF_ERRORS:
        return
    is_place = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in _OF_ERRORS
    of = [*ast.iter_child_nodes(node)]
    if isinstance(node, ast.JoinedStr):  # its words were looked at as one text
        of = [each for each in of if isinstance(each, ast.FormattedValue)]
    for child in () if is_place else of:
        is_text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
        if not (is_text and isinstance(node, _DEFINED)):
            yield child


def _text(node: ast.AST) -> str | None:
    """Return the text of a literal, `X` in the place of a figure; None of anything else."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(each) or "X" for each in node.values)
    return None


def main() -> None:
    """Print the functions, their lines and the sentences of each package."""
    root = Path(sys.argv[1]) / "pytest_xlatune" if sys.argv[1:] else PACKAGE
    rows: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for path in sorted(root.rglob("*.py")):
        for each in sentences(path):
            row = rows[path.relative_to(root).parts[0]]
            row[0] += 1
            row[1] += each.lines
            row[2] += len(each.sentences)
    print(f"{'package':<12}{'functions':>10}{'lines':>8}{'sentences':>11}")  # noqa: T201
    for name, (functions, lines, texts) in rows.items():
        print(f"{name:<12}{functions:>10}{lines:>8}{texts:>11}")  # noqa: T201
    total = [sum(each) for each in zip(*rows.values(), strict=True)]
    print(f"{'all':<12}{total[0]:>10}{total[1]:>8}{total[2]:>11}")  # noqa: T201


if __name__ == "__main__":
    main()
