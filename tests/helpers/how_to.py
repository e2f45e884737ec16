"""The whole examples of extend.md: what a person who follows the page has in the end."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "extend.md"
# [xlatune_pool.py](../../sweeps/extend/xlatune_pool.py)
_MODULE = re.compile(r"\]\((\.\./\.\./sweeps/extend/\w+\.py)\)")


def whole(what: str) -> tuple[list[str], dict[str, Any]]:
    """Return the modules of `How to add WHAT`, and the table `project` of its pyproject.toml."""
    page = PAGE.read_text(encoding="utf-8")
    section = page.partition(f"## How to add {what}\n")[2].partition("\n## ")[0]
    head = section.partition("\n1. ")[0].partition("```")[0]
    text = "".join(re.findall(r"(?m)^    (\S.*\n)", head))
    modules = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    modules += [(PAGE.parent / path).read_text("utf-8") for path in _MODULE.findall(section)]
    return modules, tomllib.loads(text)["project"]
