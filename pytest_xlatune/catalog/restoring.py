"""What the image alone gives: the profile that puts every deployed flag back."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_xlatune.catalog.history import history
from pytest_xlatune.errors import ConfigError
from pytest_xlatune.profiles import (
    APPENDING,
    Profile,
    effective_values,
    parse_flags,
    restore_default,
)

# what a machine forces on its devices is the cell, not a setting
_HOST = "xla_force_host_platform_device_count"
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
        ),
        -1,
    ),
}
# no text puts these back: an empty list is refused, or the default of an old name sets a new option
_ONE_WAY = frozenset(
    {
        "xla_gpu_disable_async_collectives",
        "xla_cpu_enable_concurrency_optimized_scheduler",
        "xla_gpu_graph_enable_concurrent_region",
    }
)


def restored(
    deployed: str, *, jaxlib: str, image: str = "", profile_id: str = "baseline-no-env"
) -> Profile:
    """Return the profile that puts every deployed flag back to what the image alone gives.

    Args:
        deployed: the deployed XLA_FLAGS, the image's own among them.
        jaxlib: the image's release, whose defaults hold where its environment names none.
        image: the XLA_FLAGS of the image's environment.
        profile_id: the id of the profile.

    Raises:
        ConfigError: a flag's default is unknown, or XLA appends to it, which nothing later undoes.
    """
    flags = parse_flags(deployed, where="the deployed XLA_FLAGS")
    now = effective_values(flags)
    before = effective_values(parse_flags(image, where="the image's XLA_FLAGS"))
    asked = [
        flag
        for flag in flags
        if flag.name != _HOST
        and not (flag.name in APPENDING and now[flag.name] == before.get(flag.name))
    ]
    stuck = [flag.name for flag in asked if flag.name in _ONE_WAY and flag.name not in before]
    if stuck:
        raise ConfigError(
            f"--{stuck[0]} is deployed and no later flag puts it back to its default; take it out "
            "of the deployed XLA_FLAGS to measure the default"
        )
    return Profile(
        id=profile_id,
        flags=restore_default(asked, defaults_of((each.name for each in asked), jaxlib) | before),
        wave="wave1",
        note="every deployed flag back: what the image alone gives",
    )


def defaults_of(names: Iterable[str], jaxlib: str) -> dict[str, str]:
    """Return the defaults of a release that are known, as the flags themselves take them.

    Raises:
        ConfigError: `jaxlib` is no release number.
    """
    found = {}
    for name in names:
        value = history().default(name, jaxlib)
        if value is not None and name not in _ONE_WAY:
            found[name] = value.split("_")[_SHORT[name]].lower() if name in _SHORT else value
    return found
