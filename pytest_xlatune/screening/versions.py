"""What an interpreter compiles with: the versions of its JAX and of the plugin for a GPU.

A plugin of another version than its jaxlib compiles, and nobody promises what.
"""

from __future__ import annotations

import subprocess

from pytest_xlatune.errors import ConfigError
from pytest_xlatune.screening.ways import Compiler

_PLUGINS = ("jax-cuda12-pjrt", "jax-cuda13-pjrt")
_VERSIONS_TIMEOUT_S = 60.0
_VERSIONS = """
import importlib.metadata as metadata
for name in ("jax", "jaxlib", "jax-cuda12-pjrt", "jax-cuda13-pjrt"):
    try:
        print(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        pass
"""


def compiled_by(compiler: Compiler) -> str:
    """Return what compiles, and for which device.

    Raises:
        ConfigError: the interpreter cannot be run, or has no compiler of its version for the GPU.
    """
    found = _versions(compiler.python)
    if compiler.target is not None:
        versions = dict(each.split() for each in found)
        jaxlib = versions.get("jaxlib", "none")
        plugins = {name: versions[name] for name in _PLUGINS if name in versions}
        if jaxlib not in plugins.values():
            has = ", ".join(f"{name} {version}" for name, version in plugins.items())
            raise ConfigError(
                f"screening: {compiler.python} has jaxlib {jaxlib} and {has or 'no CUDA compiler'}"
                f"; install jax-cuda12-pjrt=={jaxlib} beside it, or name another interpreter"
            )
    return f"{', '.join(found) or 'an unknown jaxlib'} for {compiler.place}"


def _versions(python: str) -> tuple[str, ...]:
    """Return what an interpreter compiles with; () where it cannot say."""
    if not python:
        return ()
    try:
        done = subprocess.run(
            [python, "-c", _VERSIONS],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSIONS_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(
            f"screening: {python} cannot be run ({error}); name an interpreter that has the JAX to "
            "compile with"
        ) from None
    return tuple(done.stdout.splitlines())
