"""XLA flags with which a small program of a CPU compiles in a fraction of the time.

Fusions that are not built with MLIR take a quarter of the work, and run as fast. One part is one
thread: the processes of a trial on this machine share its cores.
"""

from __future__ import annotations

from importlib.metadata import version

from pytest_xlatune.catalog.entries import history

_VALUES = {"xla_cpu_use_fusion_emitters": "false", "xla_cpu_parallel_codegen_split_count": "1"}


def names() -> tuple[str, ...]:
    """Return the flags that the installed XLA accepts, without dashes."""
    known, jaxlib = history(), version("jaxlib")
    return tuple(name for name in _VALUES if known.is_accepted(name, jaxlib))


def flags() -> str:
    """Return the same as they stand in XLA_FLAGS."""
    return " ".join(f"--{name}={_VALUES[name]}" for name in names())
