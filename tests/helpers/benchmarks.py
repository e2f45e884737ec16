"""The modules of `benchmarks/` and `docs/`, which are folders of scripts and no packages."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parents[2] / "benchmarks"


def load(name: str, folder: Path = FOLDER) -> ModuleType:
    """Import a script by its name, as one beside it does."""
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    return importlib.import_module(name)
