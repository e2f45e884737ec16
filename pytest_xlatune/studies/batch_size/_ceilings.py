"""The largest size that fits, before any has run: by compiled memory, by a log, by a formula."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_xlatune.model.errors import ConfigError


def ceiling_by_compiled_memory(sizes_bytes: Mapping[float, float], *, limit_bytes: float) -> float:
    """Return the size at which compiled memory reaches a limit: a line through what was compiled.

    Args:
        sizes_bytes: size -> bytes of one device that the compiler says; two sizes or more.
        limit_bytes: of one device: memory times the fraction that XLA's pool takes.

    Raises:
        ConfigError: less than two sizes, or memory does not grow with them.
    """
    points = sorted(sizes_bytes.items())
    if len(points) > 1:
        mean = sum(x for x, _ in points) / len(points)
        level = sum(y for _, y in points) / len(points)
        slope = sum((x - mean) * (y - level) for x, y in points) / sum(
            (x - mean) ** 2 for x, _ in points
        )
        if slope > 0 and (found := mean + (limit_bytes - level) / slope) > 0:
            return found
    raise ConfigError(
        f"compiled memory: {points} give no ceiling below {limit_bytes:g} bytes; expected two "
        "sizes or more, memory that grows with them, and a limit above that of no sequence at all"
    )


def ceiling_by_log(*, size: float, allocation_bytes: float, used_bytes: float,
                   limit_bytes: float) -> float:  # fmt: skip
    """Return the largest size by the log of a run that failed: what it asked for, what was free.

    Args:
        size: of that run.
        allocation_bytes: that it could not have: `Out of memory while trying to allocate ...`.
        used_bytes: after the parameters were initialised: `Memstats: After params initialized`.
        limit_bytes: of the pool, in the same line.
    """
    if not 0 < used_bytes < limit_bytes or allocation_bytes <= 0:
        raise ConfigError(
            f"ceiling by a log: {used_bytes:g} of {limit_bytes:g} bytes are used, "
            f"{allocation_bytes:g} were asked for; expected less used than there is, and a "
            "positive allocation"
        )
    return size * (limit_bytes - used_bytes) / allocation_bytes


def ceiling_by_formula(
    *,
    memory_bytes: float,
    fraction: float,
    parameters: float,
    bytes_per_parameter: float,
    shards: int,
    sequence: int,
    embedding: int,
    layers: int,
    bytes_per_activation: float = 12.0,
) -> float:
    """Return the largest size by a rule of thumb; it is wrong by a factor of 1.5 either way.

    Args:
        memory_bytes: of one device.
        fraction: of it that XLA's pool takes.
        parameters: of the model.
        shards: devices over which they are spread.
        bytes_per_parameter: weights, master copy, gradient and both moments together: 2 are the
            weights alone, 16 to 18 what training takes.
        sequence: tokens of one.
        embedding: the model's width.
        layers: its depth.
        bytes_per_activation: kept per token, width and layer; 12 without rematerialisation.
    """
    free = memory_bytes * fraction - parameters * bytes_per_parameter / shards
    if free <= 0:
        raise ConfigError(
            f"ceiling by formula: {memory_bytes * fraction:g} bytes of memory, and the parameters "
            f"alone take {parameters * bytes_per_parameter / shards:g}; spread them over more "
            "devices"
        )
    return free / (sequence * embedding * layers * bytes_per_activation)
