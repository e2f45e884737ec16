"""The modules of `benchmarks/` and `docs/`, which are folders of scripts and no packages."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[2] / "benchmarks"


def load(name: str, folder: Path = FOLDER) -> ModuleType:
    """Import a script by its path, once; `pages`, which most of them import, before it."""
    if name != "pages":
        load("pages")
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
    return sys.modules[name]
