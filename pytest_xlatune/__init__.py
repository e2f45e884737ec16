"""Sweeps of XLA flags and NCCL variables as pytest runs, with verdicts of known error rates.

The names below are the public API, which is all that a sweep file needs. Each is imported on first
use, so that `import pytest_xlatune` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_xlatune.catalog.candidates import ladders_of, profiles_for
    from pytest_xlatune.launchers.checkout import CheckoutLauncher
    from pytest_xlatune.launchers.command import CommandLauncher
    from pytest_xlatune.launchers.container import ContainerLauncher
    from pytest_xlatune.launchers.maxtext import MaxTextLauncher
    from pytest_xlatune.launchers.maxtext_slurm import MaxTextSlurmLauncher
    from pytest_xlatune.model.cell import Cell, Parallelism, Protocol
    from pytest_xlatune.model.errors import ConfigError, LedgerError, SubmissionError, XlatuneError
    from pytest_xlatune.model.profile import Profile, parse_flags, profile, restore_default
    from pytest_xlatune.model.resources import Next, Patience, Resources, RetryPolicy, RetryRule
    from pytest_xlatune.model.result import (
        Action,
        Conclusion,
        Score,
        TrialResult,
        Verdict,
        VerdictKind,
    )
    from pytest_xlatune.plugin.standard import standard_tests
    from pytest_xlatune.prepare.preflight import Preflight
    from pytest_xlatune.studies import Candidate
    from pytest_xlatune.studies.batch_size import (
        BatchSize,
    )
    from pytest_xlatune.studies.commit_check import Commits, Load
    from pytest_xlatune.studies.derived import (
        Around,
        Crossed,
        Search,
        Singles,
        Stacks,
    )
    from pytest_xlatune.studies.gate import Gate, candidate
    from pytest_xlatune.studies.network_check import Network
    from pytest_xlatune.studies.node_check import Nodes
    from pytest_xlatune.sweep.declaration import CompileCheck, Sweep, load_sweep
    from pytest_xlatune.sweep.deployed import NoEnv, deployed_env
    from pytest_xlatune.sweep.groups import CellSettings, DesignSettings, Limits, SiteSettings

__version__ = "0.1.0"

_NAMES_IN = {
    "catalog.candidates": ("ladders_of", "profiles_for"),
    "launchers.checkout": ("CheckoutLauncher",),
    "launchers.command": ("CommandLauncher",),
    "launchers.container": ("ContainerLauncher",),
    "launchers.maxtext": ("MaxTextLauncher",),
    "launchers.maxtext_slurm": ("MaxTextSlurmLauncher",),
    "model.cell": ("Cell", "Parallelism", "Protocol"),
    "model.errors": ("ConfigError", "LedgerError", "SubmissionError", "XlatuneError"),
    "model.profile": ("Profile", "parse_flags", "profile", "restore_default"),
    "model.resources": ("Next", "Patience", "Resources", "RetryPolicy", "RetryRule"),
    "model.result": ("Action", "Conclusion", "Score", "TrialResult", "Verdict", "VerdictKind"),
    "plugin.standard": ("standard_tests",),
    "prepare.preflight": ("Preflight",),
    "studies": ("Candidate",),
    "studies.batch_size": ("BatchSize",),
    "studies.commit_check": ("Commits", "Load"),
    "studies.gate": ("Gate", "candidate"),
    "studies.network_check": ("Network",),
    "studies.node_check": ("Nodes",),
    "studies.derived": (
        "Around",
        "Crossed",
        "Search",
        "Singles",
        "Stacks",
    ),
    "sweep.declaration": ("CompileCheck", "Sweep", "load_sweep"),
    "sweep.deployed": ("NoEnv", "deployed_env"),
    "sweep.groups": ("CellSettings", "DesignSettings", "Limits", "SiteSettings"),
}
_HOME = {name: home for home, names in _NAMES_IN.items() for name in names}

__all__ = [
    "Action",
    "Around",
    "BatchSize",
    "Candidate",
    "Cell",
    "CellSettings",
    "CheckoutLauncher",
    "CommandLauncher",
    "Commits",
    "CompileCheck",
    "Conclusion",
    "ConfigError",
    "ContainerLauncher",
    "Crossed",
    "DesignSettings",
    "Gate",
    "LedgerError",
    "Limits",
    "Load",
    "MaxTextLauncher",
    "MaxTextSlurmLauncher",
    "Network",
    "Next",
    "NoEnv",
    "Nodes",
    "Parallelism",
    "Patience",
    "Preflight",
    "Profile",
    "Protocol",
    "Resources",
    "RetryPolicy",
    "RetryRule",
    "Score",
    "Search",
    "Singles",
    "SiteSettings",
    "Stacks",
    "SubmissionError",
    "Sweep",
    "TrialResult",
    "Verdict",
    "VerdictKind",
    "XlatuneError",
    "candidate",
    "deployed_env",
    "ladders_of",
    "load_sweep",
    "parse_flags",
    "profile",
    "profiles_for",
    "restore_default",
    "standard_tests",
]


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
