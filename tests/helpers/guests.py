"""Distributions on `sys.path`, as pip leaves them; the whole examples of extend.md, to be such."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "extend.md"
# [xlatune_pool.py](../../sweeps/extend/xlatune_pool.py)
_MODULE = re.compile(r"\]\((\.\./\.\./sweeps/extend/\w+\.py)\)")


def install(
    folder: Path,
    name: str,
    entry_points: Mapping[str, Mapping[str, str]],
    modules: Mapping[str, str] | None = None,
) -> Path:
    """Write a distribution of entry points (group -> name -> target) and modules; give its folder.

    The test puts the folder on `sys.path`.
    """
    info = folder / f"{name.replace('-', '_')}-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n", "utf-8")
    lines = [
        line
        for group, targets in entry_points.items()
        for line in (f"[{group}]", *(f"{each} = {target}" for each, target in targets.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join([*lines, ""]), "utf-8")
    for module, text in (modules or {}).items():
        (folder / f"{module}.py").write_text(text, "utf-8")
    return folder


def whole(what: str) -> tuple[list[str], dict[str, Any]]:
    """Return the modules of `How to add WHAT`, and the table `project` of its pyproject.toml."""
    page = PAGE.read_text(encoding="utf-8")
    section = page.partition(f"## How to add {what}\n")[2].partition("\n## ")[0]
    head = section.partition("\n1. ")[0].partition("```")[0]
    text = "".join(re.findall(r"(?m)^    (\S.*\n)", head))
    modules = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    modules += [(PAGE.parent / path).read_text("utf-8") for path in _MODULE.findall(section)]
    return modules, tomllib.loads(text)["project"]
