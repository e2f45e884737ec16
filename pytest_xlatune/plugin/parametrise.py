"""What a test of a sweep is parametrised with: profiles of its waves, slots, finalists, tags.

All of it is known when tests are collected, the same in every process: what earlier waves found
only fills slots, at run time. Nothing here waits for a result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_xlatune.errors import ConfigError

if TYPE_CHECKING:
    from pytest_xlatune.profiles import Profile
    from pytest_xlatune.sweep.sweep import Sweep

NO_TAG = ""  # stands for the tags of a sweep that has none


def parametrise(
    metafunc: pytest.Metafunc, sweep: Sweep, *, waves: tuple[str, ...], budget: int | None
) -> None:
    """Parametrise the fixtures that stand for one of several.

    Args:
        metafunc: the test.
        sweep: as its module declares it.
        waves: the names of the markers that are waves.
        budget: the user's, which decides how many finalists there are.

    Raises:
        ConfigError: a marker names a wave or a profile that the sweep does not have.
    """
    wanted = set(metafunc.fixturenames)
    if "profile" in wanted:
        profiles = _profiles_of(metafunc, sweep, waves)
        metafunc.parametrize("profile", profiles, ids=[each.id for each in profiles])
    if "derived" in wanted:
        slots = sweep.slots(*(name for name, _ in _waves_of(metafunc, waves)))
        if not slots:
            marked = ", ".join(name for name, _ in _waves_of(metafunc, waves)) or "any wave"
            raise ConfigError(
                f"{metafunc.function.__name__} takes `derived`, but sweep {sweep.name!r} derives "
                f"nothing in {marked}; add a rule to the sweep: derived=(Stacks(...), Around(...))"
            )
        ids = [each.name for each in slots]
        metafunc.parametrize("derived", slots, ids=ids, indirect=True)
    if "finalist" in wanted:
        numbers = range(sweep.finalist_count(budget=budget))
        ids = [f"finalist-{k + 1}" for k in numbers]
        metafunc.parametrize("finalist", numbers, ids=ids, indirect=True)
    if "winner_elsewhere" in wanted:
        tags = tuple(sweep.config_tags) or (NO_TAG,)
        ids = [tag or "no-tag" for tag in tags]
        metafunc.parametrize("winner_elsewhere", tags, ids=ids, indirect=True)


def check_markers(metafunc: pytest.Metafunc) -> None:
    """Refuse a marker that is nearly one of the registered: its test would be of every wave.

    Raises:
        ConfigError: names it and the nearest that there is.
    """
    import difflib  # noqa: PLC0415 - only whoever has a sweep pays for it

    # a registered marker:  wave6: the winner on the other config tags; takes margin=0.01
    registered = {
        line.partition(":")[0].partition("(")[0].strip()
        for line in metafunc.config.getini("markers")
    }
    for name in {marker.name for marker in metafunc.definition.iter_markers()} - registered:
        near = difflib.get_close_matches(name, registered, n=1, cutoff=0.8)
        if near or name.startswith("wave"):
            where = f"{metafunc.function.__name__}, where the ini file does not register it"
            raise ConfigError.unknown("marker", name, valid=registered, where=where)


def keep_own_wave(item: pytest.Item, waves: tuple[str, ...]) -> None:
    """Leave a test of several waves the marker of its own profile's wave, so that `-m` selects one.

    Where the marker lists a profile of another wave all of them stay.
    """
    callspec = getattr(item, "callspec", None)
    params = callspec.params if callspec is not None else {}
    own = getattr(params.get("profile") or params.get("derived"), "wave", "")
    marked = [each.name for each in item.own_markers]
    if own in marked:
        item.own_markers[:] = [
            each for each in item.own_markers if each.name == own or each.name not in waves
        ]


def _waves_of(
    metafunc: pytest.Metafunc, waves: tuple[str, ...]
) -> list[tuple[str, tuple[str, ...] | None]]:
    """Return the test's wave markers, each with its `profiles` argument; None without one."""
    found = []
    for marker in metafunc.definition.iter_markers():
        if marker.name not in waves:
            continue
        valid = ["margin", "blocks"] if marker.name == "wave6" else ["profiles"]
        unknown = sorted(marker.kwargs.keys() - set(valid))
        if unknown or marker.args:
            raise ConfigError.unknown(
                "argument",
                unknown[0] if unknown else repr(marker.args[0]),
                valid=valid,
                where=f"@pytest.mark.{marker.name}",
            )
        found.append((marker.name, marker.kwargs.get("profiles")))
    return found


def _profiles_of(metafunc: pytest.Metafunc, sweep: Sweep, waves: tuple[str, ...]) -> list[Profile]:
    """Return the profiles of the test's wave markers, narrowed by their `profiles` argument."""
    found: list[Profile] = []
    for name, ids in _waves_of(metafunc, waves):
        if ids is None:
            found += sweep.wave_profiles(name)
        else:
            found += [_find(sweep, each) for each in ids]
    return found or list(sweep.profiles)


def _find(sweep: Sweep, profile_id: str) -> Profile:
    """Return a profile of the sweep, or the baseline: an evidence run may be of it too."""
    from pytest_xlatune.profiles import BASELINE  # noqa: PLC0415

    return BASELINE if profile_id == BASELINE.id else sweep.find(profile_id)
