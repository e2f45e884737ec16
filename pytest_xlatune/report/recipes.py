"""Show which settings of a recipe are needed, and which are not shown to be needed.

Documents and terminals get a table, and the patch gets comments. All figures are those of the
conclusion.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.result import Conclusion, Needed, RecipePart
from pytest_xlatune.model.text import ABSENT, counted, percent, points
from pytest_xlatune.report.document import Block, Table, columns, literal, literals
from pytest_xlatune.report.language import ENGLISH, Translator

_COLUMNS = columns("~Settings", "~in the recipe", "~verdict", ">gain %", "~against", ">blocks")


def recipe_blocks(conclusion: Conclusion, say: Translator = ENGLISH) -> Iterator[Block]:
    """Yield the settings of the recipe as a table, its ties, and a link to how sure it is.

    Yield nothing if there is no recipe, or if its gain may be nothing.
    """
    recipe = conclusion.tuning.recipe
    if recipe is None or conclusion.winner is None:
        return
    if recipe.parts:
        yield Table(
            title=say("Recipe: {profile}", profile=literal(recipe.arm)),
            columns=_COLUMNS,
            rows=tuple(_row(part, say) for part in recipe.parts),
        )
    if recipe.largest != recipe.arm:
        yield say.text(
            "{largest} has the largest estimate. Its other settings are not shown to be needed, "
            "so the recipe leaves them out.",
            largest=literal(recipe.largest),
        )
    if any(part.need is Needed.NOT_TESTED for part in recipe.parts):
        yield say.text(
            "The same blocks have no run without some of these settings: they are known to help "
            "together, and any of them may do nothing."
        )
    if recipe.ties:
        yield say.text(
            "A tie: the recipe is not shown to be faster than {names}.",
            names=literals(recipe.ties),
        )
    yield say.text(
        "How often such a recipe has all settings that help, depending on the noise of a job: "
        "docs/explanation/how_sure.md."
    )


def recipe_remarks(conclusion: Conclusion) -> list[str]:
    """Return what a patch says about each setting of the recipe, in one line each."""
    recipe = conclusion.tuning.recipe
    return [] if recipe is None else [_remark(part) for part in recipe.parts]


def _row(part: RecipePart, say: Translator) -> tuple[str, ...]:
    return (
        literals(part.settings),
        say("yes") if part.is_deployed else say("no"),
        say.text_of(str(part.need)),
        ABSENT if part.gain is None else points(part.gain),
        literal(part.without) if part.without else ABSENT,
        str(part.n) if part.n else ABSENT,
    )


def _remark(part: RecipePart) -> str:
    remark = f"{', '.join(part.settings)}: {part.need}"
    figures = []
    if part.gain is not None:
        against = "" if part.without == BASELINE_ID else f" against {part.without}"
        figures.append(f"{percent(part.gain)}{against}")
        if part.n:
            figures.append(counted(part.n, "block"))
        remark += f" ({', '.join(figures)})"
    return remark if part.is_deployed else f"left out: {remark}"
