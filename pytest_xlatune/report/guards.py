"""Find the cells of a model that must not get a recipe, and settings that hurt some cells.

All cells of a model may read the file that a recipe is written into. So the lines of a recipe get a
guard, a condition of bash, which keeps them from the other cells. A recipe reaches another cell
without a guard only if that cell has the same recipe, or if the file holds no other recipe and that
cell measured exactly these lines and excludes a loss.

This module writes no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from shlex import quote

from msgspec.structs import replace

from pytest_xlatune.model.cell import CONFIG_TAG_VARIABLE, Cell, axis_variable
from pytest_xlatune.model.profile import Key, Profile, settings_of
from pytest_xlatune.model.result import Verdict, VerdictKind
from pytest_xlatune.model.text import ABSENT, interval, percent, points
from pytest_xlatune.report.document import Block, Table, columns, literal
from pytest_xlatune.report.language import ENGLISH, Translator
from pytest_xlatune.report.lines import words_beside
from pytest_xlatune.report.measured_cell import MeasuredCell, names

# the axes in the order in which a guard prefers to read them; FSDP comes last, because its degree
# is what the other axes leave of the devices
_AXES = ("PP", "TP", "EP", "CP", "SP", "DP", "FSDP")
MARGIN = 0.01  # a loss of this share or more must be excluded in the other cells


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Why a recipe must not reach another cell of the model, or another configuration.

    Attributes:
        where: the label of the other cell, or the tag of the other configuration.
        other: the other cell; None for a configuration that a gate measured.
        verdict: the verdict on the recipe there, or on a part of it that does harm; None if neither
            was measured.
        part: the names of the settings of that part; () if the verdict is on the recipe.
        guard: a condition of bash that holds in the recipe's cell and not in `other`; "" if no
            variable tells the two apart.
        variable: the variable that the condition reads; "" if there is none.
    """

    where: str
    other: MeasuredCell | None = None
    verdict: Verdict | None = None
    part: tuple[str, ...] = ()
    guard: str
    variable: str

    @property
    def is_harmful(self) -> bool:
        """Whether the recipe is slower there, cannot run, or trains to another loss."""
        return self.verdict is not None and is_harm(self.verdict)

    @property
    def remark(self) -> str:
        """The comment in the patch about this conflict, in one line without a line feed."""
        shown = "not measured there"
        if self.verdict is not None:
            change = "" if self.verdict.delta is None else f", {percent(self.verdict.delta)}"
            part = f"{', '.join(self.part)}: " if self.part else ""
            shown = f"{part}{words_beside(self.verdict)} there{change}"
        return f"{'NOT for' if self.is_harmful else 'NOT verified on'} {self.where}: {shown}"


def conflicts(cell: MeasuredCell, cells: Sequence[MeasuredCell]) -> list[Conflict]:
    """Return what must not get the recipe of a cell without a guard, and why.

    Other cells of the model come first. Then come configurations of this cell where wave 6 found a
    loss or could not decide.
    """
    if cell.recipe is None:
        return []
    recipe, own = settings_of(cell.recipe), cell.cell
    # keys of the trainer are in no file that a patch changes
    lines = {key: value for key, value in recipe.items() if key[0] != "override"}
    gates = {gate.config_tag: gate.verdict for gate in cell.elsewhere}
    unproved = {tag: verdict for tag, verdict in gates.items() if not is_no_loss(verdict)}
    recipe_conflicts = []
    for other in cells:
        is_variant = replace(other.cell, config_tag=own.config_tag).variant == own.variant
        tag = other.cell.config_tag if is_variant else None
        # a gate that does not exclude a loss makes a conflict, below
        if other is cell or not lines or not _share_env_file(cell, other) or tag in unproved:
            continue
        part: tuple[str, ...] = ()
        verdict = gates.get(tag or "") or _verdict_on(lines, other)
        if _may_reach(recipe, other, cells, verdict):
            continue
        verdict = verdict or _verdict_on(recipe, other)
        if verdict is None:
            part, verdict = _harmful_part(lines, other)
        guard, variable = guard_of(own, other.cell)
        recipe_conflicts.append(
            Conflict(
                where=other.label,
                other=other,
                verdict=verdict,
                part=part,
                guard=guard,
                variable=variable,
            )
        )
    for tag, verdict in unproved.items():
        guard, variable = _guard_of_tag(own.config_tag, tag)
        conflict = Conflict(where=tag, verdict=verdict, guard=guard, variable=variable)
        recipe_conflicts.append(conflict)
    return recipe_conflicts


def _may_reach(
    recipe: Mapping[Key, str],
    other: MeasuredCell,
    cells: Sequence[MeasuredCell],
    verdict: Verdict | None,
) -> bool:
    """Return whether lines that another cell would get need no guard against it."""
    recipes = [settings_of(cell.recipe) for cell in cells if cell.recipe is not None]
    if other.recipe is not None:
        return settings_of(other.recipe) == recipe
    # Recipes that are harmless one by one may do harm together.
    if verdict is None or any(settings != recipe for settings in recipes):
        return False
    is_repeated = verdict.kind is VerdictKind.INCONCLUSIVE and verdict.n > 1
    excludes_loss = is_repeated and verdict.ci95 is not None and verdict.ci95[0] > -MARGIN
    return is_no_loss(verdict) or excludes_loss


def _share_env_file(cell: MeasuredCell, other: MeasuredCell) -> bool:
    """Return whether two cells read the same env file, which is assumed if one is not recorded."""
    file, other_file = cell.env_file, other.env_file
    return file is None or other_file is None or file.path == other_file.path


def _measured(cell: MeasuredCell) -> Iterable[tuple[Profile, Verdict]]:
    """Yield the profiles of a cell that ran, or that cannot run."""
    for profile in cell.profiles:
        verdict = cell.conclusion.verdict(profile.id)
        if verdict is not None and (
            verdict.n > 0 or verdict.delta is not None or not verdict.can_run
        ):
            yield profile, verdict


def _verdict_on(settings: Mapping[Key, str], cell: MeasuredCell) -> Verdict | None:
    """Return the verdict of a cell on exactly these settings; None if it did not measure them."""
    verdicts = (verdict for profile, verdict in _measured(cell) if settings_of(profile) == settings)
    return next(verdicts, None)


def _harmful_part(
    settings: Mapping[Key, str], cell: MeasuredCell
) -> tuple[tuple[str, ...], Verdict | None]:
    """Return the names of a part of the settings that does harm in a cell, and the verdict on it.

    One flag is enough: if it runs out of memory, even that cell's baseline would fail.
    """
    for profile, verdict in _measured(cell):
        part = settings_of(profile)
        if part and part.items() <= settings.items() and is_harm(verdict):
            return tuple(name for _, name in part), verdict
    return (), None


def is_no_loss(verdict: Verdict) -> bool:
    """Return whether a verdict says that nothing is lost."""
    return verdict.kind in (VerdictKind.FASTER, VerdictKind.EQUIVALENT)


def is_harm(verdict: Verdict) -> bool:
    """Return whether settings are slower, cannot run, or train to another loss."""
    is_broken = verdict.kind is VerdictKind.INVALID and (not verdict.can_run or verdict.n > 0)
    return verdict.kind is VerdictKind.SLOWER or is_broken


def guard_of(cell: Cell, other: Cell) -> tuple[str, str]:
    """Return the condition that holds in `cell` and not in `other`, and the variable it reads.

    It reads the degree of one axis that differs, preferably of an axis that only one of the cells
    uses, because a variable that is not exported is read as 1. If no axis differs, it reads the tag
    of the configuration.
    """
    axes, other_axes = dict(cell.parallelism.axes), dict(other.parallelism.axes)
    degrees = [(axis, axes.get(axis, 1), other_axes.get(axis, 1)) for axis in _AXES]
    differing = [row for row in degrees if row[1] != row[2]]
    if not differing:
        return _guard_of_tag(cell.config_tag, other.config_tag)
    axis, degree, other_degree = next((row for row in differing if 1 in row), differing[0])
    variable = axis_variable(axis)
    test = "-le 1" if degree == 1 else "-gt 1" if other_degree == 1 else f"-eq {degree}"
    return f'"${{{variable}:-1}}" {test}', variable


def _guard_of_tag(tag: str, other: str) -> tuple[str, str]:
    if tag == other:
        return "", ""
    return f'"${{{CONFIG_TAG_VARIABLE}:-}}" == {quote(tag)}', CONFIG_TAG_VARIABLE


def guard_against(against: Sequence[Conflict]) -> str:
    """Return the condition of bash under which the lines of a recipe apply; "" means always."""
    return " && ".join(dict.fromkeys(conflict.guard for conflict in against if conflict.guard))


def sign_flips(cells: Sequence[MeasuredCell], say: Translator) -> tuple[Block, ...] | None:
    """Return a table of the settings measured on several parallelisms, or a text without any.

    None if all cells have the same parallelism.
    """
    if len({cell.cell.parallelism for cell in cells}) < 2:  # noqa: PLR2004
        return None
    texts: dict[frozenset[tuple[Key, str]], str] = {}  # settings -> the settings as text
    # settings -> number of a cell -> the verdict there
    measured: dict[frozenset[tuple[Key, str]], dict[int, Verdict]] = {}
    for index, cell in enumerate(cells):
        for profile, verdict in _measured(cell):
            key = frozenset(settings_of(profile).items())
            texts.setdefault(key, literal(profile.shown_text))
            measured.setdefault(key, {}).setdefault(index, verdict)
    rows = []
    for key, by_cell in measured.items():
        if len({cells[index].cell.parallelism for index in by_cell}) > 1:
            figures = [_figures(by_cell.get(index), say) for index in range(len(cells))]
            rows.append((texts[key], *chain(*figures), sign([*by_cell.values()], say)))
    if not rows:
        return (say.text("No setting was measured on more than one parallelism."),)
    titles = ((f">{name}: delta %", "95 %", "~verdict") for name in names(cells).values())
    return (
        say.text(
            "These settings were measured on more than one parallelism. A flip is "
            "confirmed where both sides are confirmed; a single run proves nothing, "
            "whatever its sign."
        ),
        Table(columns=columns("~Settings", *chain(*titles), "~Sign"), rows=tuple(rows)),
    )


def _figures(verdict: Verdict | None, say: Translator) -> tuple[str, ...]:
    if verdict is None:
        return (ABSENT,) * 3
    return points(verdict.delta), interval(verdict.ci95), words_beside(verdict, say)


def sign(verdicts: Sequence[Verdict], say: Translator = ENGLISH) -> str:
    """Return whether an effect changes its sign between cells; their verdicts stand beside it."""
    kinds = {verdict.kind for verdict in verdicts}
    if {VerdictKind.FASTER, VerdictKind.SLOWER} <= kinds:
        return say("flips")
    deltas = [v.delta for v in verdicts if v.delta and v.kind is not VerdictKind.EQUIVALENT]
    if len({delta > 0 for delta in deltas}) > 1:
        return say("opposite, not confirmed")
    return ABSENT
