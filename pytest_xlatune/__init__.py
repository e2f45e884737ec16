"""Sweeps of XLA flags and NCCL variables as pytest runs, with verdicts whose error rates are known.

The names below are the public API, imported on first use: `import pytest_xlatune` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_xlatune.campaign.limits import Limits
    from pytest_xlatune.cells import Cell, Parallelism, Patience, Protocol, Resources
    from pytest_xlatune.deployed import deployed_env
    from pytest_xlatune.errors import ConfigError, LedgerError, SubmissionError, XlatuneError
    from pytest_xlatune.profiles import Profile, profile, restore_default
    from pytest_xlatune.results import Conclusion, Score, Verdict, VerdictKind
    from pytest_xlatune.screening import Screening
    from pytest_xlatune.studies.derived import Around, Stacks
    from pytest_xlatune.studies.gate import Gate
    from pytest_xlatune.studies.singles import Singles
    from pytest_xlatune.sweep.no_env import NoEnv
    from pytest_xlatune.sweep.sweep import Sweep

__version__ = "0.1.0"

_HOME = {
    "Around": "studies.derived",
    "Cell": "cells",
    "Limits": "campaign.limits",
    "Parallelism": "cells",
    "Patience": "cells",
    "Protocol": "cells",
    "Resources": "cells",
    "deployed_env": "deployed",
    "ConfigError": "errors",
    "Gate": "studies.gate",
    "LedgerError": "errors",
    "NoEnv": "sweep.no_env",
    "SubmissionError": "errors",
    "XlatuneError": "errors",
    "Profile": "profiles",
    "profile": "profiles",
    "restore_default": "profiles",
    "Conclusion": "results",
    "Score": "results",
    "Screening": "screening",
    "Verdict": "results",
    "VerdictKind": "results",
    "Singles": "studies.singles",
    "Stacks": "studies.derived",
    "Sweep": "sweep.sweep",
}

__all__ = [
    "Around",
    "Cell",
    "Conclusion",
    "ConfigError",
    "Gate",
    "LedgerError",
    "Limits",
    "NoEnv",
    "Parallelism",
    "Patience",
    "Profile",
    "Protocol",
    "Resources",
    "Score",
    "Screening",
    "Singles",
    "Stacks",
    "SubmissionError",
    "Sweep",
    "Verdict",
    "VerdictKind",
    "XlatuneError",
    "deployed_env",
    "profile",
    "restore_default",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
