"""Distributions that a folder on `sys.path` holds, as pip leaves an installed one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


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
