"""`xlatune recipe apply`: write a gate that tries a recipe of another place at this place."""

from __future__ import annotations

import argparse

from pytest_xlatune.cli.show import Output
from pytest_xlatune.report.document import brief, lines, plain
from pytest_xlatune.sweep.declaration import load_sweep
from pytest_xlatune.tasks.recipe import gate_of, recipe_of


def run_apply(arguments: argparse.Namespace) -> Output:
    """Return the gate of a recipe, and what the recipe sets."""
    profile, claim = recipe_of(arguments.file, cell=arguments.cell)
    files = gate_of(profile, claim, sweep=load_sweep(arguments.to).name, sweep_file=arguments.to)
    (gate,) = files
    texts = (
        f"recipe  {claim}",
        f"sets    {profile.shown_text}",
        f"pytest {gate}   (exit status 0: it is faster here too)",
    )
    return Output(files=files, documents=(brief("Recipe", lines(*map(plain, texts))),))
