"""Find the cells of a model that must not get a recipe, and settings that hurt some cells.

All cells of a model may read the file that a recipe is written into. So the lines of a recipe get a
guard, a condition of bash, which keeps them from the other cells. A recipe reaches another cell
without a guard only if that cell has the same recipe, or if the file holds no other recipe and that
cell measured exactly these settings and excludes a loss.

This module writes no file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from shlex import quote

from pytest_xlatune.model.cell import CONFIG_TAG_VARIABLE, axis_variable
from pytest_xlatune.model.profile import Key, Profile, settings_of
from pytest_xlatune.model.result import Verdict, VerdictKind
from pytest_xlatune.model.text import ABSENT, interval, percent, points
from pytest_xlatune.report.document import Block, Table, columns, literal
from pytest_xlatune.report.language import ENGLISH, Translator
from pytest_xlatune.report.lines import words, words_beside
from pytest_xlatune.report.measured_cell import MeasuredCell, OtherCell, names

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
        is_harmful: whether the recipe is slower there, cannot run, or trains to another loss.
        is_in_config: whether the trainer's configuration file, which both cells read, would get a
            part of the recipe.
        verdict: the verdict on the recipe there, or on a part of it that does harm; None if neither
            was measured.
        part: the names of the settings of that part; () if the verdict is on the recipe.
        guard: a condition of bash that holds in the recipe's cell and not in `other`; "" if no
            variable tells the two apart.
        variables: the variables that the condition reads.
    """

    where: str
    other: MeasuredCell | None = None
    is_harmful: bool
    is_in_config: bool
    verdict: Verdict | None = None
    part: tuple[str, ...] = ()
    guard: str
    variables: tuple[str, ...]

    @property
    def remark(self) -> str:
        """The comment in the patch about this conflict, in one line without a line feed."""
        shown = "not measured there"
        if self.verdict is not None:
            change = "" if self.verdict.delta is None else f", {percent(self.verdict.delta)}"
            part = f"{', '.join(self.part)}: " if self.part else ""
            shown = f"{part}{words(self.verdict)} there{change}"
        return f"{'NOT for' if self.is_harmful else 'NOT verified on'} {self.where}: {shown}"


def conflicts(cell: MeasuredCell, cells: Sequence[MeasuredCell]) -> list[Conflict]:
    """Return what must not get the recipe of a cell without a guard, and why.

    Other cells of the model come first. Then come configurations of this cell where wave 6 found a
    loss or could not decide.
    """
    if cell.recipe is None:
        return []
    recipe_conflicts = []
    for other in cells:
        shared = _shared_part(cell, other)
        gate = _gate_on(cell, other)
        if other is cell or not shared or (gate is not None and not gate.holds):
            continue  # a gate that does not hold makes a conflict, below
        verdict = gate.verdict if gate is not None else _verdict_on(shared, other)
        if _may_reach(shared, other, cells, verdict):
            continue
        part: tuple[str, ...] = ()
        if verdict is None:
            part, verdict = _harmful_part(shared, other)
        guard, variables = guard_of(cell, other)
        recipe_conflicts.append(
            Conflict(
                where=other.label,
                other=other,
                is_harmful=verdict is not None and _is_harm(verdict),
                is_in_config=any(kind == "override" for kind, _ in shared),
                verdict=verdict,
                part=part,
                guard=guard,
                variables=variables,
            )
        )
    for gate in cell.elsewhere:
        if not gate.holds:
            guard, variables = _guard_of_tag(cell.cell.config_tag, gate.config_tag)
            recipe_conflicts.append(
                Conflict(
                    where=gate.config_tag,
                    is_harmful=gate.is_harmful,
                    is_in_config=bool(cell.recipe.overrides),
                    verdict=gate.verdict,
                    guard=guard,
                    variables=variables,
                )
            )
    return recipe_conflicts


def _may_reach(
    shared: Mapping[Key, str],
    other: MeasuredCell,
    cells: Sequence[MeasuredCell],
    verdict: Verdict | None,
) -> bool:
    """Return whether settings that another cell would get need no guard against it."""
    if other.recipe is not None:
        return settings_of(other.recipe) == shared
    # Recipes that are harmless one by one may do harm together.
    is_only_one = all(cell.recipe is None or settings_of(cell.recipe) == shared for cell in cells)
    return is_only_one and verdict is not None and _excludes_a_loss(verdict)


def _shared_part(cell: MeasuredCell, other: MeasuredCell) -> dict[Key, str]:
    """Return the part of a cell's recipe that is in a file which the other cell reads too.

    If the sweep did not record a file, both cells are assumed to read it.
    """
    is_shared = {}
    for is_shell in (True, False):
        # a recipe is written into the first file of each kind
        path, other_path = (
            next((file.path for file in reader.files if file.is_shell is is_shell), "")
            for reader in (cell, other)
        )
        is_shared[is_shell] = not path or not other_path or path == other_path
    settings = settings_of(cell.recipe) if cell.recipe else {}
    return {key: value for key, value in settings.items() if is_shared[key[0] != "override"]}


def _gate_on(cell: MeasuredCell, other: MeasuredCell) -> OtherCell | None:
    """Return what wave 6 found for the recipe in the other cell; None if it did not run there."""
    is_variant = (
        cell.cell.parallelism == other.cell.parallelism
        and cell.cell.batch_text == other.cell.batch_text
    )
    gates = (gate for gate in cell.elsewhere if gate.config_tag == other.cell.config_tag)
    return next(gates, None) if is_variant else None


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
        if part and part.items() <= settings.items() and _is_harm(verdict):
            return tuple(name for _, name in part), verdict
    return (), None


def _excludes_a_loss(verdict: Verdict) -> bool:
    """Return whether a verdict excludes a loss of `MARGIN` or more."""
    if verdict.kind in (VerdictKind.FASTER, VerdictKind.EQUIVALENT):
        return True
    is_repeated = verdict.kind is VerdictKind.INCONCLUSIVE and verdict.n > 1
    return is_repeated and verdict.ci95 is not None and verdict.ci95[0] > -MARGIN


def _is_harm(verdict: Verdict) -> bool:
    """Return whether settings are slower, cannot run, or train to another loss."""
    is_broken = verdict.kind is VerdictKind.INVALID and (not verdict.can_run or verdict.n > 0)
    return verdict.kind is VerdictKind.SLOWER or is_broken


def guard_of(cell: MeasuredCell, other: MeasuredCell) -> tuple[str, tuple[str, ...]]:
    """Return the condition that holds in `cell` and not in `other`, and the variables it reads.

    It reads the degree of one axis that differs, preferably of an axis that only one of the cells
    uses, because a variable that is not exported is read as 1. If no axis differs, it reads the tag
    of the configuration.
    """
    axes, other_axes = dict(cell.cell.parallelism.axes), dict(other.cell.parallelism.axes)
    degrees = [(axis, axes.get(axis, 1), other_axes.get(axis, 1)) for axis in _AXES]
    differing = [(axis, own, others) for axis, own, others in degrees if own != others]
    if not differing:
        return _guard_of_tag(cell.cell.config_tag, other.cell.config_tag)
    axis, degree, other_degree = next((row for row in differing if 1 in row), differing[0])
    variable = axis_variable(axis)
    if degree == 1:
        test = "-le 1"
    elif other_degree == 1:
        test = "-gt 1"
    else:
        test = f"-eq {degree}"
    return f'"${{{variable}:-1}}" {test}', (variable,)


def _guard_of_tag(tag: str, other: str) -> tuple[str, tuple[str, ...]]:
    if tag == other:
        return "", ()
    return f'"${{{CONFIG_TAG_VARIABLE}:-}}" == {quote(tag)}', (CONFIG_TAG_VARIABLE,)


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
    # settings -> digest of a cell -> the verdict there
    measured: dict[frozenset[tuple[Key, str]], dict[str, Verdict]] = {}
    for cell in cells:
        for profile, verdict in _measured(cell):
            key = frozenset(settings_of(profile).items())
            texts.setdefault(key, literal(profile.shown_text))
            measured.setdefault(key, {}).setdefault(cell.cell_digest, verdict)
    rows = []
    for key, by_cell in measured.items():
        if len({cell.cell.parallelism for cell in cells if cell.cell_digest in by_cell}) > 1:
            figures = [_figures(by_cell.get(cell.cell_digest), say) for cell in cells]
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
