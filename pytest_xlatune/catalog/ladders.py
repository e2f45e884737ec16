"""The values of a setting in order: what is tried beside a value that led."""

from __future__ import annotations

from pytest_xlatune.catalog.entries import Status, load

_SWITCH = 1  # values up to here are off and on, which have nothing beside them


def ladders_of(axis: str) -> dict[str, tuple[str, ...]]:
    """Return the settings of an axis that are tried at several numbers -> these, smallest first.

    Args:
        axis: e.g. FSDP; what matters on any axis is among them.

    Raises:
        ConfigError: no such axis.
    """
    values: dict[str, set[int]] = {}
    for entry in load().of_axis(axis):
        if entry.status is Status.CANDIDATE and all(each.isdecimal() for each in entry.values):
            values.setdefault(entry.name, set()).update(map(int, entry.values))
    return {
        name: tuple(map(str, sorted(found)))
        for name, found in values.items()
        if len(found) > 1 and max(found) > _SWITCH
    }
