"""Read a recipe that was measured elsewhere, compare its place, and write the gate that tries it.

The recipe travels as the data of a tuning document, `<MODEL_TAG>-tuning.json`, which has its cell,
versions, jobs and evidence. Whether it holds in a new place is shown by the gate, which runs there.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from pytest_xlatune import secure_files
from pytest_xlatune.catalog.context import Level
from pytest_xlatune.ledger import LEDGER, Ledger
from pytest_xlatune.ledger.state import replay
from pytest_xlatune.model.environment import NodeEnvironment, RunRecord
from pytest_xlatune.model.errors import ConfigError, LedgerError, XlatuneError
from pytest_xlatune.model.profile import (
    PGLE,
    Profile,
    effective_values,
    format_flags,
)
from pytest_xlatune.model.redact import HIDDEN, is_secret
from pytest_xlatune.model.result import MIN_TRIALS, Verdict
from pytest_xlatune.model.text import interval, percent
from pytest_xlatune.prepare.lint import Target, lint
from pytest_xlatune.report.deployment import patch_of
from pytest_xlatune.report.document import plain
from pytest_xlatune.report.measured_cell import MeasuredCell, read_cells
from pytest_xlatune.sweep.deployed import context_of, deployed_files
from pytest_xlatune.sweep.resolved import ResolvedSweep
from pytest_xlatune.tasks.files import filled_in
from pytest_xlatune.workers.probe_environment import node_facts

_ASK_AGAIN = "ask for it again, or for the `reports/<MODEL_TAG>-tuning.json` of its sweep"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRecipe:
    """A recipe in a file, with the place where it was measured.

    Attributes:
        path: the path of the file.
        cell: the measured cell, its trials and its conclusion.
        best: the verdict on the recipe.
        profile: the settings of the recipe.
    """

    path: Path
    cell: MeasuredCell
    best: Verdict
    profile: Profile

    @property
    def place(self) -> dict[str, str]:
        """The facts of the place where it was measured; places are compared by them."""
        return _place(self.cell.cell.model_tag, self.cell.cell.variant, self.cell.record)

    @property
    def claim(self) -> str:
        """Its gain in a few words, with the place for which it was measured."""
        where = ", ".join(f"{name} {text}" for name, text in self.place.items() if text)
        low_high = self.best.ci95 or (0.0, 0.0)
        gain = f"{percent(self.best.delta)}, 95 % {interval(low_high)}, n = {self.best.n}"
        return plain(f"{self.profile.id}: {gain}; {where}")


def _place(model: str, variant: str, record: RunRecord | None) -> dict[str, str]:
    return {
        "model": model,
        "cell": variant,
        "device": device_of(record),
        "jaxlib": "" if record is None else record.facts("packages").get("jaxlib", ""),
    }


def device_of(record: RunRecord | None) -> str:
    """Return the kind of device that trials reported, e.g. `NVIDIA H100 80GB HBM3`; "" if none."""
    if record is None:
        return ""
    devices = record.facts("node").get("GPUs") or record.facts("devices").get("devices", "")
    # texts of devices:  8 x NVIDIA H100 80GB HBM3
    return devices.partition(" x ")[2] or devices


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
    return MeasuredRecipe(path=path, cell=cell, best=best, profile=profile)


def lint_recipe(
    recipe: MeasuredRecipe, resolved: ResolvedSweep
) -> tuple[list[str], list[str], str]:
    """Return the faults of a recipe's settings here, remarks on them, and the version of jaxlib.

    If XLA cannot be asked, a remark says so.
    """
    context = context_of(resolved.cell, resolved.sweep.launcher)
    python = resolved.sweep.launcher.interpreter
    try:
        if not python:
            raise ConfigError("the launcher names no interpreter")
        linted = lint((recipe.profile,), context, Target(python=python, environ=os.environ))
    except XlatuneError as error:
        return [], [f"the flags were not checked: {error}"], ""
    faults, notes = list[str](), list[str]()
    for objection in linted.objections:
        if objection.profile == recipe.profile.id:
            # settings that are already deployed are not tried again
            is_fault = objection.level is Level.FAULT or objection.rule == "no-op"
            (faults if is_fault else notes).append(str(objection))
    return faults, [*notes, *linted.unchecked], linted.jaxlib


def differences(
    recipe: MeasuredRecipe, resolved: ResolvedSweep, workdir: Path, *, jaxlib: str
) -> dict[str, str]:
    """Return how the new place differs: fact -> a phrase; unknown facts are left out.

    The device of the new place is the one that trials of the cell reported. Before the first trial
    on this machine, it is the GPU that the kernel of this machine lists.
    """
    record = _record(resolved, workdir)
    here = _place(resolved.cell.model_tag, resolved.cell.variant, record)
    here["jaxlib"] = jaxlib or here["jaxlib"]
    there = recipe.cell.record
    if record.nodes and there is not None and there.facts("node").get("GPUs"):
        here["device"] = here["device"] or "no GPU"
    return {
        name: f"{name}: measured on {plain(text)}, here {plain(here[name])}"
        for name, text in recipe.place.items()
        if text and here[name] and text != here[name]
    }


def _record(resolved: ResolvedSweep, workdir: Path) -> RunRecord:
    ledger = workdir / resolved.folder / LEDGER
    state = replay(Ledger(ledger).refresh()) if ledger.exists() else None
    nodes = state.environments.get(resolved.cell.digest, ()) if state is not None else ()
    if not nodes and resolved.sweep.site.chosen_executor.is_here:
        nodes = (NodeEnvironment(name="here", node=node_facts()),)
    return RunRecord(nodes=nodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeFiles:
    """The files that bring a recipe to a new place.

    Attributes:
        gate: the test file that measures the recipe there.
        patch: the patch for `git apply` after the gate has passed; None if no file can deploy it.
        missing: why the patch lacks the recipe or a part of it; "" if it has the whole recipe.
        own_table: a table of `xlatune.toml` that sets something for this sweep, and so not for the
            gate, which has another name; "" if none.
        files: path -> text of the gate and the patch.
    """

    gate: Path
    patch: Path | None
    missing: str
    own_table: str
    files: dict[Path, str]


def recipe_files(
    recipe: MeasuredRecipe, resolved: ResolvedSweep, sweep_file: Path, *, root: Path
) -> RecipeFiles:
    """Return the gate that tries a recipe in the cell of a sweep file, and the patch for later.

    Raises:
        ConfigError: one of the files exists.
    """
    sweep, profile = resolved.sweep, recipe.profile
    files = deployed_files(sweep.launcher, resolved.cell, env_file=sweep.site.env_file, root=root)
    # The patch keeps the measured cell, because its comment says where the recipe was measured.
    # It gets the overrides of the new place, which no patch of a file changes.
    cell = replace(recipe.cell.cell, overrides=resolved.cell.overrides)
    deployment = patch_of((replace(recipe.cell, cells=(cell,), files=files, elsewhere=()),))
    gate = sweep_file.with_name(f"{sweep_file.stem}_recipe.py")
    patch = sweep_file.with_name(f"{sweep_file.stem}_recipe.patch") if deployment.text else None
    texts = {
        gate: filled_in(
            "recipe.py.txt",
            name=profile.id,
            file=gate.name,
            claim=recipe.claim,
            sweep=sweep_file.name,
            gate=f"{sweep.name}-recipe",
            flags=format_flags(profile.flags),
            env=profile.env,
            overrides=profile.overrides,
        ),
    }
    if patch is not None:
        texts[patch] = (
            f"# {recipe.claim}\n# apply it once pytest {gate.name} has passed\n{deployment.text}"
        )
    if existing := [str(path) for path in texts if path.exists()]:
        raise ConfigError(
            f"{', '.join(existing)} exists, perhaps edited by hand, so nothing was written; "
            "move it away first"
        )
    missing = "" if deployment.text else "its settings are deployed already"
    if deployment.missing:
        missing = next(iter(deployment.missing.values()))
    table = f"sweeps.{sweep.name}"
    is_own = any(table in place for place in resolved.settings.values())
    return RecipeFiles(
        gate=gate,
        patch=patch,
        missing=missing,
        own_table=table if is_own else "",
        files=texts,
    )
