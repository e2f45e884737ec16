"""The defaults of flags as texts that the flags themselves take, to put deployed flags back."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_xlatune.catalog.history import history

# flags that take one word of an enum's name only: which, from the end of the full name
_SHORT = {
    **dict.fromkeys(
        (
            "xla_gpu_pipeline_all_gather",
            "xla_gpu_pipeline_all_reduce",
            "xla_gpu_pipeline_reduce_scatter",
        ),
        -1,
    ),
    **dict.fromkeys(
        (
            "xla_gpu_all_gather_mode",
            "xla_gpu_collective_permute_mode",
            "xla_gpu_ragged_all_to_all_mode",
        ),
        -2,
    ),
    **dict.fromkeys(
        (
            "xla_detect_unstable_reductions",
            "xla_detect_unstable_reductions_post_optimizations",
            "xla_gpu_detect_inf",
            "xla_gpu_detect_nan",
            "xla_gpu_experimental_deterministic_ops_triton",
        ),
        -1,
    ),
}
# no text puts these back: an empty list or a number is refused, or the default of an old name sets
# a new option (jaxlib 0.6.2, 0.8.3, 0.10.2 and 0.12.0.1, every flag that shows a default)
_ONE_WAY = frozenset(
    {
        "xla_gpu_disable_async_collectives",
        "xla_cpu_enable_concurrency_optimized_scheduler",
        "xla_gpu_graph_enable_concurrent_region",
        "xla_gpu_unsupported_use_all_reduce_one_shot_kernel",
        "xla_autotuner_preferred_backend",
        "xla_gpu_experimental_autotune_backends",
    }
)


def defaults_of(names: Iterable[str], jaxlib: str) -> dict[str, str]:
    """Return the defaults of a release that are known, as the flags themselves take them.

    Without a release, those that no release has changed. What no text puts back is not among them.

    Raises:
        ConfigError: `jaxlib` is no release number.
    """
    found = {}
    for name in names:
        ever = history().defaults(name)
        sole = next(iter(ever)) if len(ever) == 1 else None
        value = history().default(name, jaxlib) if jaxlib else sole
        if value is not None and name not in _ONE_WAY:
            found[name] = value.split("_")[_SHORT[name]].lower() if name in _SHORT else value
    return found
