"""Ask libtpu what it takes as options of a compilation, without a TPU.

    python tests/libtpu/options.py LIBRARY names               which of its own names it takes
    python tests/libtpu/options.py LIBRARY programs < JOBS     what options make of a small program

The first prints {"known": [...], "refused": [...]}: the flags of its variable, and those of them
that are no option. JOBS is a JSON list of options; the second prints a digest of each program. The
variable is what the environment says. Imports JAX and nothing of ours.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

BAD = "~bad~"
NAME = re.compile(rb"\x00((?:xla|megascale)_[a-z0-9_]{3,80})(?=\x00)")
AWAY = {
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_LOG_DIR": "disabled",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


def lowered(width: int) -> Any:
    """Return two layers in a loop, their weights in as many parts as there are chips."""
    from jax.experimental import topologies

    devices = topologies.get_topology_desc("v5e:2x4", platform="tpu").devices
    step, given = made(list(devices), width)
    return step.trace(*given).lower(lowering_platforms=("tpu",))


def made(devices: list[Any], width: int) -> tuple[Any, tuple[Any, ...]]:
    """Return a step of these layers, and the shapes that it takes."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    spec: Any = PartitionSpec
    shaped: Any = jax.ShapeDtypeStruct
    mesh = Mesh(np.array(devices), ("x",))

    def shape(*sizes: int, by: Any) -> Any:
        return shaped(sizes, jnp.bfloat16, sharding=NamedSharding(mesh, by))

    def loss(w: Any, x: Any) -> Any:
        out, _ = jax.lax.scan(lambda x, w: (x + jnp.tanh(jnp.tanh(x @ w) @ w.T), None), x, w)
        return jnp.mean(jax.nn.softmax(out.astype("f4")) ** 2)

    given = shape(2, width, width, by=spec(None, "x")), shape(width, width, by=spec("x"))
    return jax.jit(jax.value_and_grad(loss)), given


def digest(program: Any, options: dict[str, str]) -> str:
    """Return a digest of what is compiled and of the memory that it takes; or the refusal."""
    try:
        compiled = program.compile(compiler_options=options or None)
    except Exception as error:  # noqa: BLE001 - whatever a compiler raises
        return " ".join(str(error).split())[:300]
    memory = compiled.memory_analysis()
    taken = memory.temp_size_in_bytes, memory.generated_code_size_in_bytes
    return hashlib.sha256(f"{taken}\n{compiled.as_text()}".encode()).hexdigest()


def main(library: str, asked: str) -> None:
    """Answer on standard output."""
    os.environ.update(AWAY, TPU_LIBRARY_PATH=library)
    if asked == "programs":
        program = lowered(512)
        json.dump([digest(program, each) for each in json.load(sys.stdin)], sys.stdout)
        return
    found = {each.decode() for each in NAME.findall(Path(library).read_bytes())}
    text = " ".join(f"--{name}={BAD}" for name in sorted(found))
    parse = (
        "from jax.experimental.topologies import get_topology_desc as get; get('v5e:2x4', 'tpu')"
    )
    said = subprocess.run(
        [sys.executable, "-c", parse],
        env={**os.environ, "LIBTPU_INIT_ARGS": text},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    ).stderr
    # ERROR: Unknown command line flag 'xla_tpu_nope'
    known = found - set(re.findall(r"Unknown command line flag '([^']+)'", said))
    program = lowered(128)
    refused = [name for name in sorted(known) if is_refused(digest(program, {name: BAD}))]
    json.dump({"known": sorted(known), "refused": refused}, sys.stdout)


def is_refused(said: str) -> bool:
    """Whether a compiler has no option of the name; a value it cannot read is of one it has."""
    return "No such compile option" in said or "has an unrecognized type" in said


if __name__ == "__main__":
    main(*sys.argv[1:])
