"""Options from every place that may speak: command line, environment, ini file, settings file.

The first that speaks decides, tables add up by key, and where none speaks the sweep file decides.
All of it is read once, when pytest is configured, so that a wrong value ends the run before
anything is collected. Standard library only: this is loaded with every pytest run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_xlatune.errors import ConfigError
from pytest_xlatune.settings.options import OPTIONS, TABLES, Option, Options

if TYPE_CHECKING:
    from pytest_xlatune.settings.file import Settings

_PREFIX = "XLATUNE_"


def resolve_options(
    command_line: Mapping[str, Any],
    environ: Mapping[str, str],
    ini: Mapping[str, str],
    *,
    root: Path,
) -> Options:
    """Return what the three places and the settings file say together.

    Args:
        command_line: by `Option.key`, None where not given; switches by name with underscores.
        environ: the environment.
        ini: by `Option.key`, "" where not set.
        root: what relative directories are relative to.

    Raises:
        ConfigError: a value that cannot be read, with the place where it stands.
    """
    _refuse_misspelt(environ)
    said, places = _said(command_line, environ, ini)
    settings = _settings(said.get("config"), root)
    parts = {} if settings is None else settings.sweeps
    sweeps = {
        name: _options(command_line, said, places, (settings, part), root=root)
        for name, part in parts.items()
    }
    files = () if settings is None else (settings,)
    return _options(command_line, said, places, files, root=root, sweeps=sweeps)


def _options(
    command_line: Mapping[str, Any],
    above: Mapping[str, Any],
    above_places: Mapping[str, str],
    files: Sequence[Settings | None],
    *,
    root: Path,
    sweeps: Mapping[str, Options] | None = None,
) -> Options:
    """Put what was said above the settings file on top of what it says, its last part first."""
    said: dict[str, Any] = {}
    places: dict[str, str] = {}
    tables: dict[str, dict[str, Any]] = {"deployed": {}, "overrides": {}}
    for settings in filter(None, files):
        _drop_slot(settings.scalars, said, places)
        for option in OPTIONS:
            if option.name in settings.scalars:
                text = settings.scalars[option.name]
                said[option.attribute] = _parsed(option, text, f"{settings.place}: {option.name}")
                places[option.name] = settings.place
        for name, number in settings.numbers.items():
            said[name.replace("-", "_")] = number
            places[name] = settings.place
        for name, table in settings.tables.items():
            tables.setdefault(name, {}).update(table)
            places[name] = settings.place
    _drop_slot(above, said, places)
    for name in TABLES:
        if name in above:
            tables.setdefault(name, {}).update(above[name])
    said |= {**above, **tables}
    for name, default in (("workdir", ".xlatune"), ("reports", "reports")):
        said[name] = root / said.get(name, default)
    return Options(
        is_off=bool(command_line.get("no_xlatune")),
        fresh=any(command_line.get(name) for name in ("xlatune_fresh", "xlatune_new_baseline")),
        keep_jobs=bool(command_line.get("xlatune_keep_jobs")),
        plan=bool(command_line.get("xlatune_plan")),
        zh=bool(command_line.get("xlatune_zh")),
        file=next((each.place for each in files if each), ""),
        places={**places, **above_places},
        sweeps=sweeps or {},
        **said,
    )


def _drop_slot(names: Iterable[str], said: dict[str, Any], places: dict[str, str]) -> None:
    """Let whoever names the nodes, or their number, replace both: they are one node slot."""
    if {"nodelist", "nodes"} & set(names):
        for name in ("nodelist", "nodes"):
            said.pop(name, None)
            places.pop(name, None)


def _refuse_misspelt(environ: Mapping[str, str]) -> None:
    """Refuse a variable that is nearly that of an option: nobody would see that it says nothing."""
    known = {option.variable for option in OPTIONS}
    found = [name for name in environ if name.startswith(_PREFIX) and name not in known]
    if not found:
        return
    import difflib  # noqa: PLC0415 - only who has such a variable pays for it

    names = [each.removeprefix(_PREFIX) for each in sorted(known)]
    for each in sorted(found):
        if difflib.get_close_matches(each.removeprefix(_PREFIX), names, n=1, cutoff=0.8):
            raise ConfigError.unknown("variable", each, valid=known, where="the environment")


def _said(
    command_line: Mapping[str, Any], environ: Mapping[str, str], ini: Mapping[str, str]
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return by attribute what the first place that speaks says, and by option where."""
    said, where = {}, {}
    for option in OPTIONS:
        places = (
            (option.flag, command_line.get(option.key)),
            (option.variable, environ.get(option.variable) or None),
            (f"ini key {option.key}", ini.get(option.key) or None),
        )
        for place, text in places:
            if text is not None:
                said[option.attribute] = _parsed(option, text, place)
                where[option.name] = place
                break
    return said, where


def _settings(named: str | None, root: Path) -> Settings | None:
    """Return the settings file that is named, or the nearest from the root directory upward."""
    if named:
        path = root / named
    else:
        found = (each / "xlatune.toml" for each in _upward(root))
        path = next((each for each in found if each.is_file()), root)
        if path == root:
            return None
    from pytest_xlatune.settings.file import read_settings  # noqa: PLC0415 - only where there is one

    return read_settings(path, root=root)


def _upward(root: Path) -> Iterator[Path]:
    """Give the root directory and those above it, as far as the project's repository goes."""
    for each in (root, *root.parents):
        yield each
        if (each / ".git").exists():
            return


def _parsed(option: Option, text: str, place: str) -> Any:
    if option.choices and text not in option.choices:
        raise ConfigError.unknown("value", text, valid=option.choices, where=place)
    try:
        return option.parse(text)
    except ValueError as error:
        raise ConfigError(f"{place}: found {text!r}, expected {option.metavar} ({error})") from None
