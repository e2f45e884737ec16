"""Read a recipe that was measured elsewhere, and write the gate that tries it.

The recipe travels as the data of a tuning document, `<MODEL_TAG>-tuning.json`. Whether it holds in
a new place is shown by the gate, which runs there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pytest_xlatune import secure_files
from pytest_xlatune.model.errors import ConfigError, LedgerError, XlatuneError
from pytest_xlatune.model.profile import PGLE, Profile, effective_values, format_flags
from pytest_xlatune.model.redact import HIDDEN, is_secret
from pytest_xlatune.model.result import MIN_TRIALS, Verdict
from pytest_xlatune.model.text import interval, percent
from pytest_xlatune.report.document import plain
from pytest_xlatune.report.measured_cell import MeasuredCell, read_cells
from pytest_xlatune.tasks.files import filled_in

_ASK_AGAIN = "ask for it again, or for the `reports/<MODEL_TAG>-tuning.json` of its sweep"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRecipe:
    """A recipe in a file.

    Attributes:
        cell: the measured cell, its trials and its conclusion.
        best: the verdict on the recipe.
        profile: the settings of the recipe.
    """

    cell: MeasuredCell
    best: Verdict
    profile: Profile

    @property
    def claim(self) -> str:
        """Its gain in a few words, with the cell in which it was measured."""
        gain = f"{percent(self.best.delta)}, 95 % {interval(self.best.ci95)}, n = {self.best.n}"
        return plain(f"{self.profile.id}: {gain}; measured on {self.cell.cell.label}")


def recipe_of(path: Path, *, cell: str = "") -> MeasuredRecipe:
    """Return the recipe in a file.

    Args:
        path: a <MODEL_TAG>-tuning.json.
        cell: the cell whose recipe is meant, e.g. `FSDP=8`; "" if only one cell has a recipe.

    Raises:
        ConfigError: the file is of another kind or has no recipe, or `cell` does not name one cell.
    """
    cells = _read(path)
    named = [
        measured
        for measured in cells
        if cell in (measured.label, measured.cell.label, measured.sweep)
    ]
    if cell and not named:
        known = [measured.label for measured in cells]
        raise ConfigError.unknown("cell", cell, valid=known, where=str(path))
    with_winner = [measured for measured in cells if measured.best is not None]
    chosen = named or with_winner or list(cells)
    if len(chosen) != 1:
        several = ", ".join(f"{measured.label} ({measured.sweep})" for measured in chosen) or "none"
        raise ConfigError(f"{path} holds several cells: {several}; name one by --cell")
    return _checked(path, chosen[0])


def _read(path: Path) -> tuple[MeasuredCell, ...]:
    try:
        text = secure_files.read_named(path)
    except OSError as error:
        why = error.strerror or "it is not a plain file"
        raise ConfigError(f"{path} cannot be read: {why}; {_ASK_AGAIN}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} cannot be read: it is not a text file; {_ASK_AGAIN}") from None
    try:
        return read_cells(text, where=str(path), advice=_ASK_AGAIN)
    except LedgerError as error:
        raise ConfigError(str(error)) from None
    except (XlatuneError, ValueError, KeyError, AttributeError) as error:
        message = f"{path} is not the data of a tuning document ({error!s:.80})"
        raise ConfigError(f"{message}; {_ASK_AGAIN}") from None


def _checked(path: Path, cell: MeasuredCell) -> MeasuredRecipe:
    """Return the recipe of a cell.

    Raises:
        ConfigError: the cell has no recipe, or the gate could not try it as it is in the file.
    """
    where, best, profile = f"{path}: {cell.cell.label}", cell.best, cell.recipe
    if best is None or profile is None or not cell.conclusion.complete:
        why = "its sweep was not over" if not cell.conclusion.complete else "no profile wins"
        raise ConfigError(f"{where} has no recipe: {why}")
    hidden = [
        name
        for name, value in (
            *((flag.name, flag.value or "") for flag in profile.flags),
            *profile.env.items(),
            *profile.overrides.items(),
        )
        if is_secret(name) or HIDDEN in value
    ]
    if hidden:
        raise ConfigError(f"{where}: the value of {hidden[0]} is secret, and not in the file")
    if PGLE in effective_values(profile.flags):
        raise ConfigError(
            f"{where}: its flag {PGLE} needs a file made from the program that was measured, which "
            "is not here; Singles(..., pgle=True) makes such a file from a run here"
        )
    if not best.wins or best.n < MIN_TRIALS or best.ci95 is None:
        raise ConfigError(f"{where}: {profile.id} is not FASTER by two trials or more")
    return MeasuredRecipe(cell=cell, best=best, profile=profile)


def gate_of(recipe: MeasuredRecipe, *, sweep: str, sweep_file: Path) -> dict[Path, str]:
    """Return path -> text of the gate that tries a recipe in the cell of the sweep in a file.

    Raises:
        ConfigError: the gate's file exists.
    """
    profile = recipe.profile
    gate = sweep_file.with_name(f"{sweep_file.stem}_recipe.py")
    if gate.exists():
        raise ConfigError(f"{gate} exists, perhaps edited by hand; move it away first")
    text = filled_in(
        "recipe.py.txt",
        name=profile.id,
        file=gate.name,
        claim=recipe.claim,
        sweep=sweep_file.name,
        gate=f"{sweep}-recipe",
        flags=format_flags(profile.flags),
        env=profile.env,
        overrides=profile.overrides,
    )
    return {gate: text}
