"""Report which keys a MaxText installation has; its own interpreter runs this file.

    python -c "$(cat maxtext_keys.py)" PACKAGE CONFIG

It reads the keys in `configs/base.yml` of the package, the fields in `configs/types.py` if the
release has it, and the keys in CONFIG and its bases. It imports nothing of the package. The answer
is one line of JSON. Standard library only.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BASE_KEY = "base_config"
# a top-level key of a YAML file and its value:   base_config: "base.yml"  # shared by all models
_KEY = re.compile(r"^([A-Za-z_]\w*)[ \t]*:[ \t]*(?:[\"']?([^\"'#\s]*))?", re.MULTILINE)


def keys_of(path: Path) -> dict[str, tuple[int, str]]:
    """Return key -> (line, value) for the top-level keys of a YAML file."""
    text = path.read_text(encoding="utf-8")
    return {
        match[1]: (text.count("\n", 0, match.start()) + 1, match[2] or "")
        for match in _KEY.finditer(text)
    }


def fields_of(path: Path) -> list[str]:
    """Return the annotated fields of every class in a Python file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    fields: set[str] = set()
    for node in ast.walk(tree):
        for statement in node.body if isinstance(node, ast.ClassDef) else ():
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                fields.add(statement.target.id)
    return sorted(fields)


def chain_of(config: Path, base: Path) -> Iterator[tuple[str, str, int]]:
    """Yield key, file and line of the keys in a config and its parents, without base.yml."""
    seen = {base.resolve()}
    while config.is_file() and config.resolve() not in seen:
        seen.add(config.resolve())
        keys = keys_of(config)
        yield from ((key, str(config), line) for key, (line, _) in keys.items())
        parent = keys.get(BASE_KEY, (0, ""))[1]
        if not parent:
            return
        # MaxText looks for the parent beside the file first, then beside base.yml
        sibling = config.parent / parent
        config = sibling if sibling.is_file() else base.parent / parent


def answer(package: str, config: str) -> dict[str, Any]:
    """Return the keys of an installed package as JSON data.

    `base` is the path of its base configuration, "" if it has none; `known` are the keys that it
    accepts; `strict` is whether it refuses all others; `config_keys` are those of `chain_of`.
    """
    reply: dict[str, Any] = {
        "version": "",
        "base": "",
        "known": [],
        "strict": False,
        "config_keys": [],
    }
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        base = Path(folder, "configs", "base.yml")
        if not base.is_file():
            continue
        types = base.with_name("types.py")
        fields = fields_of(types) if types.is_file() else []
        reply.update(base=str(base), known=[*keys_of(base), *fields], strict=bool(fields))
        reply["config_keys"] = list(chain_of(Path(config), base))
        break
    # a checkout that was never installed has no version
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        reply["version"] = importlib.metadata.version(package)
    return reply


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answer(*sys.argv[1:])) + "\n")
