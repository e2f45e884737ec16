"""What a sweep recommends, setting by setting: needed, or not shown to be needed.

A table for documents and terminals, and comments for the patch. All figures are those of the
conclusion, but what recipes were measured to be at the sweep's noise: `MEASURED`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pytest_xlatune.model.profile import BASELINE_ID
from pytest_xlatune.model.result import Conclusion, Needed, RecipePart
from pytest_xlatune.model.text import ABSENT, counted, fine, percent, points
from pytest_xlatune.report.document import Block, Table, Text, columns, literal, literals
from pytest_xlatune.report.language import ENGLISH, Translator

_COLUMNS = columns("~Settings", "~deployed", "~verdict", ">gain %", "~against", ">blocks")


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What the recipes of simulated sweeps were at one noise; shares are fractions of recipes.

    Attributes:
        sigma: the noise of one job's score that those sweeps told, the largest of their medians.
        whole: least and largest share that held all settings that help, where one or three do.
        useless: largest share that held a setting that does nothing, where one, three or six help.
        misled: largest share that called such a setting needed.
    """

    sigma: float
    whole: tuple[float, float]
    useless: float
    misled: float


# the table "recipes by noise" of error_rates.md, less noise first; a test compares them
MEASURED = (
    Promise(sigma=0.0039, whole=(0.997, 1.0), useless=0.033, misled=0.03),
    Promise(sigma=0.0064, whole=(0.817, 1.0), useless=0.077, misled=0.041),
    Promise(sigma=0.0101, whole=(0.26, 0.992), useless=0.255, misled=0.063),
)
_NEAR = 1.25  # times the measured noise: up to there it tells of a sweep


def recipe_blocks(conclusion: Conclusion, say: Translator = ENGLISH) -> Iterator[Block]:
    """Yield the recipe's settings as a table, its ties and what a recipe promises at this noise.

    Nothing without a recipe.
    """
    recipe = conclusion.tuning.recipe
    if recipe is None:
        return
    if recipe.parts:
        yield Table(
            title=f"Recipe: {literal(recipe.arm)}",
            columns=_COLUMNS,
            rows=tuple(map(_row, recipe.parts)),
        )
    if recipe.largest != recipe.arm:
        yield say.text(
            "{largest} has the largest estimate. Its other settings are not shown to be needed, "
            "so the recipe leaves them out.",
            largest=literal(recipe.largest),
        )
    if any(each.need is Needed.NOT_TESTED for each in recipe.parts):
        yield say.text(
            "No run without some of these settings stands in the same blocks: they are known to "
            "help together, and any of them may do nothing."
        )
    if recipe.ties:
        yield say.text(
            "A tie: the recipe is not shown to be faster than {names}.",
            names=literals(recipe.ties),
        )
    if conclusion.noise.sigma is not None:
        yield Text(text=" ".join(_promise(conclusion.noise.sigma, say)))


def _promise(sigma: float, say: Translator) -> Iterator[str]:
    """Say what recipes were measured to be at a noise: the least of the table that is near it."""
    near = next((each for each in MEASURED if sigma <= _NEAR * each.sigma), None)
    told = near or MEASURED[-1]
    yield say(
        "The noise of a job is {sigma} here. At {noise}, as measured in simulated sweeps of 25 "
        "profiles and eight stacks in 65 jobs, {low} to {high} % of the recipes held all "
        "settings that help where one or three profiles gain 2 %, and none did where six do. Up"
        " to {useless} % held a setting that does nothing, and up to {misled} % called one "
        "needed (docs/explanation/how_sure.md).",
        sigma=fine(sigma),
        noise=fine(told.sigma),
        low=_whole(told.whole[0]),
        high=_whole(told.whole[1]),
        useless=_whole(told.useless),
        misled=_whole(told.misled),
    )
    if near is None:
        yield say(
            "More noise than that was not measured: expect less where a gain is small beside it."
        )


def _whole(share: float) -> str:
    return f"{100 * share:.0f}"


def recipe_remarks(conclusion: Conclusion) -> list[str]:
    """Return what a patch says of each setting of the recipe, one line each."""
    recipe = conclusion.tuning.recipe
    return [] if recipe is None else [_remark(each) for each in recipe.parts]


def _row(part: RecipePart) -> tuple[str, ...]:
    return (
        literals(part.settings),
        "yes" if part.is_deployed else "no",
        str(part.need),
        ABSENT if part.gain is None else points(part.gain),
        literal(part.without) if part.without else ABSENT,
        str(part.n) if part.n else ABSENT,
    )


def _remark(part: RecipePart) -> str:
    named = ", ".join(part.settings)
    against = "" if part.without == BASELINE_ID else f" against {part.without}"
    gain = "" if part.gain is None else f" ({percent(part.gain)}{against}"
    gain += f", {counted(part.n, 'block')})" if part.n else ")" if gain else ""
    what = f"{named}: {part.need}{gain}"
    return what if part.is_deployed else f"left out: {what}"
