"""What `make docs` does beside mkdocs: files outside of docs/ that a document links are copied.

`[example](../../reports/example/x.md)` holds where the repository is read; in the site the file
lies at the same path below its root, as it is. Pages lie in a folder below docs/.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
# [text](../../reports/example/x.md)   but not  [text](../how-to/tuning.md)  nor  [text](https://...)
OUTSIDE = re.compile(r"\]\(\.\./\.\./([^)#\s]+)")


def on_files(files: Files, config: Any) -> Files:
    """Add what documents link outside of docs/."""
    linked = {
        path
        for page in files.documentation_pages()
        for path in OUTSIDE.findall(Path(page.abs_src_path).read_text(encoding="utf-8"))
    }
    for path in sorted(linked):
        content = (ROOT / path).read_bytes()  # a document is copied as text, not made a page
        name = f"{path}.txt" if path.endswith(".md") else path
        files.append(File.generated(config, name, content=content))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point the links at the copies."""

    def inside(found: re.Match[str]) -> str:
        path = found.group(1)
        return f"](../{path}.txt" if path.endswith(".md") else f"](../{path}"

    return OUTSIDE.sub(inside, markdown)
