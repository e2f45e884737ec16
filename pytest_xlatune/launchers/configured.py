"""A sweep file's launcher with the site's settings on top: what a user calls by a key.

    configured(launcher, {"python": "/opt/venv/bin/python"}, {"runtime": "podman"}, where=...)

The keys are the launcher's own attributes, with - for _. A value of the site takes the place of the
sweep file's, but for `env-files`, which come after it: the sweep file's say how processes find each
other, the site's what is deployed. Settings of a container put the launcher into one, or change the
one that it is in; the runtime `none` takes it out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, cast

from pytest_xlatune.errors import ConfigError
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.container import ContainerLauncher

_ADDED = "env_files"
_NOT_SETTINGS = frozenset({"inner", "in_shell"})
_NO_CONTAINER = "none"
_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def configured(
    launcher: Launcher, settings: Mapping[str, Any], container: Mapping[str, Any], *, where: str
) -> Launcher:
    """Return the launcher with settings on top; the very same one where there are none.

    Args:
        launcher: the sweep file's.
        settings: by name; of the launcher inside, where it is in a container.
        container: of the container.
        where: said those, for messages.

    Raises:
        ConfigError: a name that this launcher does not have, or a value of another kind.
    """
    inner = launcher.inner if isinstance(launcher, ContainerLauncher) else launcher
    changed = _with(inner, settings, f"{where}, launcher") if settings else inner
    if container.get("runtime") in (_NO_CONTAINER, [_NO_CONTAINER]):
        return cast("Launcher", changed)
    if isinstance(launcher, ContainerLauncher):
        if not container and changed is inner:
            return launcher
        outer = dataclasses.replace(launcher, inner=changed)
        return cast("Launcher", _with(outer, container, f"{where}, container"))
    if not container:
        return cast("Launcher", changed)
    outer = ContainerLauncher(inner=cast("Launcher", changed))
    return cast("Launcher", _with(outer, container, f"{where}, container"))


def _with(launcher: Any, settings: Mapping[str, Any], where: str) -> Any:
    if not dataclasses.is_dataclass(launcher) or isinstance(launcher, type):
        raise ConfigError(
            f"{where}: {type(launcher).__name__} is no dataclass, so that it has no settings; "
            "take them out, or give them in the sweep file"
        )
    known = {
        each.name.replace("_", "-"): each.name
        for each in dataclasses.fields(launcher)
        if each.name not in _NOT_SETTINGS
    }
    values = {}
    for key, value in settings.items():
        name = known.get(key.replace("_", "-"))
        if name is None:
            raise ConfigError.unknown("setting", key, valid=known, where=where)
        before = getattr(launcher, name)
        found = _like(before, value, f"{where}: {key}")
        values[name] = (*before, *found) if name == _ADDED else found
    return dataclasses.replace(launcher, **values)


def _like(before: object, value: Any, what: str) -> Any:
    """Return a value of the kind that the launcher has; on a command line all are lists of text."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    if isinstance(before, tuple):
        found = list(value) if is_list else [value]
        if all(isinstance(each, str) for each in found):
            return tuple(found)
        raise ConfigError(f"{what}: found {value!r}, expected a list of text")
    if isinstance(before, Mapping):
        if is_list and all(isinstance(each, str) and "=" in each for each in value):
            value = dict(each.split("=", 1) for each in value)
        if isinstance(value, Mapping) and all(isinstance(each, str) for each in value.values()):
            return dict(value)
        raise ConfigError(f"{what}: found {value!r}, expected a table of text")
    if is_list and value:
        value = value[-1]  # said twice on a command line: the last wins
    if isinstance(before, bool):
        if isinstance(value, str):
            value = _TRUTH.get(value.lower(), value)
        if isinstance(value, bool):
            return value
        raise ConfigError(f"{what}: found {value!r}, expected true or false")
    if isinstance(before, str) and isinstance(value, str):
        return value
    raise ConfigError(f"{what}: found {value!r}, expected text")
