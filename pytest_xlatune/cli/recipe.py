"""`xlatune recipe apply`: prepare a gate that tries a recipe of another place at this place."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from pytest_xlatune.cli.options import options_of
from pytest_xlatune.cli.show import Output
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.report.document import brief, lines, plain
from pytest_xlatune.sweep.declaration import load_sweep
from pytest_xlatune.tasks.recipe import (
    MeasuredRecipe,
    RecipeFiles,
    differences,
    lint_recipe,
    recipe_files,
    recipe_of,
)


def run_apply(arguments: argparse.Namespace) -> Output:
    """Check a recipe for this place; return its gate and its patch."""
    recipe = recipe_of(arguments.file, cell=arguments.cell)
    options = options_of(arguments)
    resolved = load_sweep(arguments.to).resolve(options.for_sweeps, workdir=options.workdir)
    faults, notes, jaxlib = lint_recipe(recipe, resolved)
    if faults:
        raise ConfigError(f"{arguments.file}: not for this place: {'; '.join(faults)}")
    texts = [f"recipe  {recipe.claim}", f"sets    {recipe.profile.shown_text}"]
    if jaxlib and recipe.profile.flags:
        texts.append(f"jaxlib {jaxlib} here accepts its flags")
    texts += notes
    differing = differences(recipe, resolved, options.workdir, jaxlib=jaxlib)
    # another jaxlib alone needs no --elsewhere, because the flags were checked above
    serious = [difference for part, difference in differing.items() if part != "jaxlib"]
    if serious and not arguments.elsewhere:
        raise ConfigError(
            f"{arguments.file}: measured elsewhere: {'; '.join(serious)}. Say --elsewhere to try "
            "it here all the same"
        )
    written = recipe_files(recipe, resolved, arguments.to, root=Path.cwd())
    texts += [*differing.values(), *_next_steps(written, recipe)]
    return Output(files=written.files, documents=(brief("Recipe", lines(*map(plain, texts))),))


def _next_steps(written: RecipeFiles, recipe: MeasuredRecipe) -> Iterator[str]:
    table = written.own_table
    if table:
        yield f"copy [{table}] in xlatune.toml to [{table}-recipe], whose settings the gate uses"
    yield f"1. pytest {written.gate}   (exit status 0: it is faster here too)"
    if written.patch is not None:
        yield f"2. git apply {written.patch}"
    if written.missing:
        yield f"by hand: {recipe.profile.shown_text} ({written.missing})"
