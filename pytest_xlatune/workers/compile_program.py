"""Compile a user's function for a target, in a process of its own: flags are parsed once in each.

    python -P compile_program.py MODULE:FUNCTION TARGET TOPOLOGY [NAME=VALUE ...]

MODULE is imported from the working directory. FUNCTION is called with the devices and returns a
jitted function and its arguments, which may be shapes (`jax.ShapeDtypeStruct`). It is handed each
NAME=VALUE of a cell that it has an argument for, e.g. `per_device_batch_size=8`. TARGET is "cpu",
the file of a GPU target configuration, or a TPU such as `v5e:2x4`; TOPOLOGY is `partitions x hosts
x devices` of it, e.g. `1x1x8`, where the partitions of a TPU are slices. The program is written by
`--xla_dump_to`. Imports jax and nothing of ours, so that any interpreter with a JAX can run it.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import sys
from pathlib import Path
from typing import Any


def main(program: str, target: str, topology: str, *values: str) -> None:
    """Compile, and leave the rest to the dump."""
    os.environ["JAX_PLATFORMS"] = "cpu"  # the arguments need no device, and there may be none
    import jax

    platform, devices = "cpu", jax.devices()
    # v5e:2x4
    if ":" in target and "/" not in target:
        platform, devices = "tpu", _of_tpu(target, int(topology.partition("x")[0]))
    elif target != "cpu":
        platform, devices = "cuda", _described(Path(target), topology)
    module, _, function = program.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    called = getattr(importlib.import_module(module), function)
    jitted, arguments = called(devices, **_taken(called, values))
    jitted.trace(*arguments).lower(lowering_platforms=(platform,)).compile()


def _taken(called: Any, values: tuple[str, ...]) -> dict[str, Any]:
    """Return the values that a function has arguments for: numbers where they are numbers."""
    known = inspect.signature(called).parameters
    taken: dict[str, Any] = {}
    for name, _, text in (each.partition("=") for each in values):
        if name in known:
            try:
                taken[name] = ast.literal_eval(text)
            except (SyntaxError, ValueError):
                taken[name] = text
    return taken


def _described(target: Path, topology: str) -> list[Any]:
    """Return the devices of a target that is not here; its plugin's wheel compiles for it."""
    from jax.experimental import topologies

    said = {"target_config": target.read_text(encoding="utf-8"), "topology": topology}
    try:
        described = topologies.get_topology_desc("", platform="cuda", **said)
    except NotImplementedError:
        _register()
        described = topologies.get_topology_desc("", platform="cuda", **said)
    return list(described.devices)


def _of_tpu(target: str, slices: int) -> list[Any]:
    """Return the devices of slices of a TPU that is not here; libtpu compiles for it."""
    from jax.experimental import topologies

    more = {"num_slices": slices} if slices > 1 else {}
    return list(topologies.get_topology_desc(target, platform="tpu", **more).devices)


def _register() -> None:
    """Register the plugin, which in jaxlib 0.6 does so itself only beside CUDA's libraries."""
    import jax_plugins.xla_cuda12 as plugin
    from jax._src import xla_bridge

    library = Path(plugin.__file__).with_name("xla_cuda_plugin.so")
    xla_bridge.register_plugin("cuda", priority=500, library_path=str(library), options={})


if __name__ == "__main__":
    main(*sys.argv[1:])
