"""Report which keys a MaxText installation accepts; its own interpreter runs this file.

    python -c "$(cat maxtext_keys.py)" PACKAGE CONFIG

They are the keys in `configs/base.yml` of the package and the fields in `configs/types.py`. A
release without that file accepts what a configuration declares: the keys in CONFIG and its bases.
Nothing of the package is imported. The answer is one line of JSON. Standard library only.
"""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import importlib.util
import json
import re
import sys
from pathlib import Path

_BASE_KEY = "base_config"
# a top-level key of a YAML file and its value:   base_config: "base.yml"  # shared by all models
_KEY = re.compile(r"^([A-Za-z_]\w*)[ \t]*:[ \t]*(?:[\"']?([^\"'#\s]*))?", re.MULTILINE)


def keys_of(path: Path) -> dict[str, str]:
    """Return the top-level keys of a YAML file with their values."""
    return dict(_KEY.findall(path.read_text(encoding="utf-8")))


def fields_of(path: Path) -> set[str]:
    """Return the annotated fields of every class in a Python file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    classes = [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return {
        statement.target.id
        for node in classes
        for statement in node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }


def answer(package: str, config: str) -> dict[str, object]:
    """Return the release as JSON data: `version`, path of its `base`, and the `known` keys.

    `base` is "" if the package has no base configuration.
    """
    reply: dict[str, object] = {"version": "", "base": "", "known": []}
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        base = Path(folder, "configs", "base.yml")
        if not base.is_file():
            continue
        known, types = {*keys_of(base)}, base.with_name("types.py")
        if types.is_file():
            known |= fields_of(types)
        else:
            path, seen = Path(config), {base}
            while path.is_file() and path not in seen:
                seen.add(path)
                keys = keys_of(path)
                known |= keys.keys()
                # MaxText looks for the parent beside the file first, then beside base.yml
                parent = keys.get(_BASE_KEY, "")
                sibling = path.parent / parent
                path = sibling if sibling.is_file() else base.parent / parent
        reply |= {"base": str(base), "known": sorted(known)}
        break
    # a checkout that was never installed has no version
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        reply["version"] = importlib.metadata.version(package)
    return reply


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answer(*sys.argv[1:])) + "\n")
