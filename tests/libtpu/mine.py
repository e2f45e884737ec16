"""A sweep of libtpu's flags, and a step that is compiled for a TPU."""

from __future__ import annotations

from typing import Any

from pytest_xlatune import (
    CellSettings,
    CommandLauncher,
    SiteSettings,
    Sweep,
    profile,
    standard_tests,
)

SWEEP = Sweep(
    name="mine",
    launcher=CommandLauncher(argv=("python", "/shared/train.py", "--steps={steps}")),
    cell=CellSettings(model_tag="my-model", parallelism="FSDP=8", devices=8),
    site=SiteSettings(executor="local"),
    profiles=(
        profile("vmem-98304", "--xla_tpu_scoped_vmem_limit_kib=98304"),
        profile("overlap-off", "--xla_tpu_overlap_compute_collective_tc=false"),
        profile("fuse-rs", "--xla_tpu_enable_async_collective_fusion_fuse_reduce_scatter=true"),
        profile("as-in-xlas-guide", "--xla_enable_async_all_gather=kEnabled"),
        profile("misspelt", "--xla_tpu_scoped_vmem_limit_kb=98304"),
    ),
)
tests = standard_tests(SWEEP)


def step(devices: list[Any]) -> tuple[Any, tuple[Any, ...]]:
    """Four layers in a loop, their weights in as many parts as there are chips."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = Mesh(np.array(devices), ("fsdp",))

    def shape(*sizes: int, by: Any) -> Any:
        return jax.ShapeDtypeStruct(sizes, jnp.bfloat16, sharding=NamedSharding(mesh, by))

    def loss(weights: Any, x: Any) -> Any:
        out, _ = jax.lax.scan(lambda x, w: (x + jax.nn.relu(x @ w) @ w.T, None), x, weights)
        return jnp.mean(out.astype("f4") ** 2)

    weights, batch = shape(4, 1024, 2048, by=P(None, "fsdp")), shape(2048, 1024, by=P("fsdp"))
    return jax.jit(jax.value_and_grad(loss)), (weights, batch)
