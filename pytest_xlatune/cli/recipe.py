"""`xlatune recipe apply`: try a recipe here that was measured elsewhere."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from pytest_xlatune.cli.parsers import (
    options_of,
)
from pytest_xlatune.cli.show import Output
from pytest_xlatune.cli.sweep_file import resolved_sweep
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.report.document import brief, lines, plain
from pytest_xlatune.tasks.recipe import (
    Applied,
    MeasuredRecipe,
    applied,
    differences,
    lint_recipe,
    recipe_of,
)


def run_apply(arguments: argparse.Namespace) -> Output:
    """Check a recipe for this place; return its gate and its patch."""
    recipe = recipe_of(arguments.file, cell=arguments.cell)
    options = options_of(arguments)
    resolved = resolved_sweep(arguments.to, options)
    faults, notes, jaxlib = lint_recipe(recipe, resolved)
    if faults:
        raise ConfigError(f"{arguments.file}: not for this place: {'; '.join(faults)}")
    asked = [f"jaxlib {jaxlib} here takes its flags"] if jaxlib and recipe.profile.flags else []
    texts = [f"recipe  {recipe.claim}", f"sets    {recipe.profile.shown_text}", *asked, *notes]
    others = differences(recipe, resolved, options.workdir, jaxlib=jaxlib)
    grave = [difference for part, difference in others.items() if part != "jaxlib"]
    if grave and not arguments.elsewhere:
        raise ConfigError(
            f"{arguments.file}: measured elsewhere: {'; '.join(grave)}. Say --elsewhere to try it "
            "here all the same"
        )
    made = applied(recipe, resolved, arguments.to, root=Path.cwd())
    texts += [*others.values(), *_next(made, recipe)]
    return Output(files=made.files, documents=(brief("Recipe", lines(*map(plain, texts))),))


def _next(made: Applied, recipe: MeasuredRecipe) -> Iterator[str]:
    if made.own_table:
        yield f"say [{made.own_table}-recipe] in xlatune.toml as [{made.own_table}]"
    yield f"1. pytest {made.gate}   (exit status 0: it is faster here too)"
    if made.patch is not None:
        yield f"2. git apply {made.patch}"
    if made.missing:
        yield f"by hand: {recipe.profile.shown_text} ({made.missing})"
