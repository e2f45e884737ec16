"""Read a recipe that was measured elsewhere, and write the gate that tries it.

The recipe travels as the data of a tuning document, `<MODEL_TAG>-tuning.json`. Whether it holds in
a new place is shown by the gate, which runs there.
"""

from __future__ import annotations

from pathlib import Path

from pytest_xlatune import secure_files
from pytest_xlatune.model.errors import ConfigError, XlatuneError
from pytest_xlatune.model.profile import PGLE, Profile, effective_values, format_flags
from pytest_xlatune.model.redact import HIDDEN, is_secret
from pytest_xlatune.model.text import interval, percent
from pytest_xlatune.report.document import plain
from pytest_xlatune.report.measured_cell import read_cells
from pytest_xlatune.tasks.files import filled_in

_ASK_AGAIN = "ask for it again, or for the `reports/<MODEL_TAG>-tuning.json` of its sweep"


def recipe_of(path: Path, *, cell: str = "") -> tuple[Profile, str]:
    """Return the recipe in a file, and what the file claims of it.

    Args:
        path: a <MODEL_TAG>-tuning.json.
        cell: the cell whose recipe is meant, e.g. `FSDP=8`; "" if only one cell has a recipe.

    Raises:
        ConfigError: the file is of another kind, it does not have one recipe, or the gate could not
            try the recipe as it is in the file.
    """
    try:
        cells = read_cells(secure_files.read_named(path), where=str(path), advice=_ASK_AGAIN)
    except (OSError, XlatuneError, ValueError) as error:
        raise ConfigError(f"{path} is no tuning document ({error!s:.200}); {_ASK_AGAIN}") from None
    recipes = [
        (measured, best, profile)
        for measured in cells
        if (best := measured.best) is not None
        and (profile := measured.recipe) is not None
        and measured.conclusion.complete
        and cell in ("", measured.label)
    ]
    if len(recipes) != 1:
        labels = ", ".join(measured.label for measured in cells) or "none"
        raise ConfigError(
            f"{path} has {len(recipes)} recipes of finished sweeps that this may mean; name a "
            f"cell that has one by --cell: {labels}"
        )
    ((measured, best, profile),) = recipes
    where = f"{path}: {measured.cell.label}"
    flags = {flag.name: flag.value or "" for flag in profile.flags}
    for name, value in (flags | profile.env | profile.overrides).items():
        if is_secret(name) or HIDDEN in value:
            raise ConfigError(f"{where}: the value of {name} is secret, and not in the file")
    if PGLE in effective_values(profile.flags):
        raise ConfigError(
            f"{where}: its flag {PGLE} needs a file made from the program that was measured, which "
            "is not here; `xlatune evidence` writes such a file from a run here"
        )
    gain = f"{percent(best.delta)}, 95 % {interval(best.ci95)}, n = {best.n}"
    return profile, plain(f"{profile.id}: {gain}; measured on {measured.cell.label}")


def gate_of(profile: Profile, claim: str, *, sweep: str, sweep_file: Path) -> dict[Path, str]:
    """Return path -> text of the gate that tries a recipe in the cell of the sweep in a file.

    Raises:
        ConfigError: the gate's file exists.
    """
    gate = sweep_file.with_name(f"{sweep_file.stem}_recipe.py")
    if gate.exists():
        raise ConfigError(f"{gate} exists, perhaps edited by hand; move it away first")
    text = filled_in(
        "recipe.py.txt",
        name=profile.id,
        file=gate.name,
        claim=claim,
        sweep=sweep_file.name,
        gate=f"{sweep}-recipe",
        flags=format_flags(profile.flags),
        env=profile.env,
        overrides=profile.overrides,
    )
    return {gate: text}
