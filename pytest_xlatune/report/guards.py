"""Find the cells of a model that must not get a recipe, and settings that hurt some cells.

All cells of a model may read the file that a recipe is written into. So the lines of a recipe get a
guard, a condition of bash, which keeps them from the other cells. A recipe may reach another cell
without a guard only if two conditions hold. All settings that the other cell would then have were
measured in that cell. These measurements exclude a loss, against the baseline and against that
cell's own recipe. If a part of the recipe is known to do harm there, the conflict names that part.

This module writes no file.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from shlex import quote

from pytest_xlatune.model.cell import CONFIG_TAG_VARIABLE, axis_variable
from pytest_xlatune.model.channels import settings_in
from pytest_xlatune.model.message import first, sentence
from pytest_xlatune.model.profile import ALIASES, Profile, effective_values
from pytest_xlatune.model.record import canonical, digest
from pytest_xlatune.model.result import Verdict, VerdictKind
from pytest_xlatune.model.text import ABSENT, interval, percent, points
from pytest_xlatune.report.document import Block, Table, columns, literal
from pytest_xlatune.report.language import ENGLISH, Translator
from pytest_xlatune.report.leaderboard import CONFIRMED
from pytest_xlatune.report.lines import words_beside
from pytest_xlatune.report.measured_cell import MeasuredCell, OtherCell, names

# the axes in the order in which a guard prefers to read them; FSDP comes last, because its degree
# is what the other axes leave of the devices
_AXES = ("PP", "TP", "EP", "CP", "SP", "DP", "FSDP")
MARGIN = 0.01  # a loss of this share or more must be excluded in the other cells

Settings = Mapping[tuple[str, str], str]  # (kind, name) -> value


class Doubt(StrEnum):
    """Why a recipe must not reach another cell without a guard; the worst reason comes first."""

    HARMFUL = "harmful"  # measured there: it is slower, cannot run, or trains to another loss
    CONTRARY = "contrary"  # the recipe of the other cell sets the same key to another value
    NOT_AS_FAST = "not as fast"  # measured there, not shown to be as fast as the cell's own recipe
    UNDECIDED = "undecided"  # measured there, and a loss is not excluded
    UNMEASURED = "unmeasured"  # never measured there, or only a part of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Why a recipe must not reach another cell of the model, or another configuration.

    Attributes:
        where: the label of the other cell, or the tag of the other configuration.
        other: the other cell; None for a configuration that a gate measured.
        doubt: the kind of the reason.
        settings: the names of the recipe's settings that the doubt is about.
        is_in_config: whether the trainer's configuration file, which both cells read, would get a
            part of the recipe.
        verdict: the verdict on these settings in the other cell; None if there is none.
        guard: a condition of bash that holds in the recipe's cell and not in `other`; "" if no
            variable tells the two apart.
        variables: the variables that the condition reads.
    """

    where: str
    other: MeasuredCell | None = None
    doubt: Doubt
    settings: tuple[str, ...] = ()
    is_in_config: bool = False
    verdict: Verdict | None = None
    guard: str
    variables: tuple[str, ...]

    @property
    def is_open(self) -> bool:
        """Whether the recipe is only unverified there, and not known to be wrong."""
        return self.doubt in (Doubt.UNDECIDED, Doubt.UNMEASURED)

    @property
    def remark(self) -> str:
        """The comment in the patch about this conflict, in one line without a line feed."""
        named = ", ".join(self.settings)
        label = self.where
        match self.doubt:
            case Doubt.HARMFUL if self.other is None:
                return f"NOT for {label}: a gate found it harmful there"
            case _ if self.other is None:
                return f"NOT verified on {label}: a gate measured it there and cannot tell"
            case Doubt.HARMFUL:
                return f"NOT for {label}: {named}: {_verdict_remark(self.verdict)}"
            case Doubt.CONTRARY:
                return f"NOT for {label}: its own recipe sets {named} to another value"
            case Doubt.NOT_AS_FAST:
                reason = "not shown to be as fast there as its own recipe without it"
                gain = percent(self.verdict.delta if self.verdict else None)
                return f"NOT for {label}: {named}: {reason} ({gain} with it)"
            case Doubt.UNDECIDED:
                return f"NOT verified on {label}: {named}: {_verdict_remark(self.verdict)}"
            case _:
                together = " together" if len(self.settings) > 1 else ""
                return f"NOT verified on {label}: {named} not measured there{together}"


def conflicts(cell: MeasuredCell, cells: Sequence[MeasuredCell]) -> list[Conflict]:
    """Return what must not get the recipe of a cell without a guard, and why.

    Other cells of the model come first. Then come configurations of this cell where wave 6 found a
    loss or could not decide. A cell gets its own recipe and all recipes of other cells that have no
    guard. So each recipe is judged together with those recipes before it in `cells` that need no
    guard.
    """
    if cell.recipe is None:
        return []
    recipe_conflicts = []
    for other in cells:
        gate = _gate_on(cell, other)
        if other is cell or (gate is not None and not gate.holds):
            continue  # the gate itself makes a conflict, below
        reason = _reasons_against(other, cells).get(cell.cell_digest)
        if reason is not None:
            guard, variables = guard_of(cell, other)
            recipe_conflicts.append(
                Conflict(
                    where=other.label,
                    other=other,
                    doubt=reason.kind,
                    settings=reason.settings,
                    is_in_config=any(kind == _OVERRIDE for kind, _ in _shared_part(cell, other)),
                    verdict=reason.verdict,
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
                    doubt=Doubt.HARMFUL if gate.is_harmful else Doubt.UNDECIDED,
                    is_in_config=gate.is_harmful and bool(cell.recipe.overrides),
                    guard=guard,
                    variables=variables,
                )
            )
    return recipe_conflicts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reason:
    kind: Doubt
    settings: tuple[str, ...]
    verdict: Verdict | None = None


_DOUBTS = tuple(Doubt)  # the worst comes first


def _reasons_against(other: MeasuredCell, cells: Sequence[MeasuredCell]) -> dict[str, _Reason]:
    """Return digest of a cell -> why its recipe must not reach `other`."""
    reasons: dict[str, _Reason] = {}
    present = dict(settings_of(other.recipe)) if other.recipe else {}
    for cell in cells:
        if cell.cell_digest == other.cell_digest or cell.recipe is None:
            continue
        added = _shared_part(cell, other)
        # also judged without the settings of `other`, because its own recipe may be in no patch
        found = [_doubt(added, base, cell=cell, other=other) for base in (present, {})]
        doubts = [reason for reason in found if reason is not None]
        if doubts:
            reasons[cell.cell_digest] = min(doubts, key=lambda doubt: _DOUBTS.index(doubt.kind))
        else:
            present |= added
    return reasons


def _shared_part(cell: MeasuredCell, other: MeasuredCell) -> Settings:
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
    return {
        (kind, name): value
        for (kind, name), value in settings.items()
        if is_shared[kind != _OVERRIDE]
    }


def _doubt(
    added: Settings, present: Settings, *, cell: MeasuredCell, other: MeasuredCell
) -> _Reason | None:
    """Return why settings of `cell` must not be added to those of `other`; None if they may be."""
    after = {**present, **added}
    if after == dict(present):
        return None  # the other cell already has these settings
    contrary = tuple(key[1] for key, value in added.items() if present.get(key, value) != value)
    if contrary:
        return _Reason(kind=Doubt.CONTRARY, settings=contrary)
    added_names = tuple(name for _, name in added)
    verdict_after = _verdict_on(after, other)
    is_safe = verdict_after is not None and _excludes_a_loss(verdict_after)
    own_settings = settings_of(other.recipe) if present and other.recipe else {}
    # A gain over the baseline can be a loss against the cell's own recipe. Several recipes without
    # a guard may each cost a little. So the verdict is compared with that on the settings before
    # this recipe, and with that on the cell's own recipe.
    before = [_verdict_on(base, other) for base in (present, own_settings) if base]
    if (
        verdict_after is not None
        and is_safe
        and all(_excludes_loss_against(verdict_before, verdict_after) for verdict_before in before)
    ):
        return None
    gate = _gate_on(cell, other)
    if not present and gate is not None and gate.holds:
        return None
    # Parts of these settings are checked too: with a flag that runs out of memory there, even the
    # baseline of the other cell would fail.
    parts = [
        (tuple(name for _, name in part), verdict)
        for profile, verdict in _measured(other)
        if (part := settings_of(profile)) and part.items() <= after.items() and part.keys() & added
    ]
    harmful = [(part_names, verdict) for part_names, verdict in parts if _is_harm(verdict)]
    if harmful:
        # the smallest harmful part says best which setting does the harm
        settings, verdict = min(harmful, key=lambda part: len(part[0]))
        return _Reason(kind=Doubt.HARMFUL, settings=settings, verdict=verdict)
    if verdict_after is None:
        return _Reason(kind=Doubt.UNMEASURED, settings=added_names)
    if is_safe:
        new_names = tuple(key[1] for key in added if key not in present)
        return _Reason(kind=Doubt.NOT_AS_FAST, settings=new_names, verdict=verdict_after)
    return _Reason(kind=Doubt.UNDECIDED, settings=added_names, verdict=verdict_after)


def _gate_on(cell: MeasuredCell, other: MeasuredCell) -> OtherCell | None:
    """Return what wave 6 found for the recipe in the other cell; None if it was not there."""
    is_variant = (
        cell.cell.parallelism == other.cell.parallelism
        and cell.cell.batch_text == other.cell.batch_text
    )
    gates = (gate for gate in cell.elsewhere if gate.config_tag == other.cell.config_tag)
    return next(gates, None) if is_variant else None


_OVERRIDE = "override"


def settings_of(profile: Profile) -> dict[tuple[str, str], str]:
    """Return (kind, name) -> value of all settings of a profile.

    A flag with two names in XLA has the newer one.
    """
    flags = effective_values(profile.flags)
    return {
        **{("flag", ALIASES.get(name, name)): value for name, value in flags.items()},
        **settings_in(profile.env, "variable"),
        **{(_OVERRIDE, name): value for name, value in profile.overrides.items()},
    }


def _measured(cell: MeasuredCell) -> Iterable[tuple[Profile, Verdict]]:
    """Yield the profiles of a cell that ran, or that cannot run."""
    for profile in cell.profiles:
        verdict = cell.conclusion.verdict(profile.id)
        if verdict is not None and (
            verdict.n > 0 or verdict.delta is not None or not verdict.can_run
        ):
            yield profile, verdict


def _verdict_on(settings: Settings, cell: MeasuredCell) -> Verdict | None:
    """Return the verdict of a cell on exactly these settings, the surest if there are several.

    None if they were not measured there.
    """
    verdicts = [
        verdict for profile, verdict in _measured(cell) if settings_of(profile) == dict(settings)
    ]
    return max(verdicts, key=_sureness, default=None)


def _sureness(verdict: Verdict) -> int:
    """Return 2 for a decided verdict, 1 for a verdict from single runs, 0 without a run."""
    return 2 if verdict.kind in CONFIRMED or not verdict.can_run else verdict.n > 0


def _excludes_a_loss(verdict: Verdict) -> bool:
    """Return whether a verdict excludes a loss of `MARGIN` or more."""
    if verdict.kind in (VerdictKind.FASTER, VerdictKind.EQUIVALENT):
        return True
    is_repeated = verdict.kind is VerdictKind.INCONCLUSIVE and verdict.n > 1
    return is_repeated and verdict.ci95 is not None and verdict.ci95[0] > -MARGIN


def _excludes_loss_against(before: Verdict | None, after: Verdict) -> bool:
    """Return whether a loss of `MARGIN` or more from one set of settings to another is excluded.

    Both verdicts are changes against the same baselines. The interval of their difference is that
    of independent estimates, and so rather too wide.
    """
    if before is None or after.delta is None or before.delta is None:
        return False
    if after.ci95 is None or before.ci95 is None:
        return False
    error = math.hypot(after.delta - after.ci95[0], before.ci95[1] - before.delta)
    return after.delta - before.delta - error > -MARGIN


def _is_harm(verdict: Verdict) -> bool:
    return verdict.kind is VerdictKind.SLOWER or _is_broken(verdict)


def _is_broken(verdict: Verdict) -> bool:
    """Return whether the settings cannot run, or train to another loss."""
    return verdict.kind is VerdictKind.INVALID and (not verdict.can_run or verdict.n > 0)


def _verdict_remark(verdict: Verdict | None) -> str:
    """Return a verdict of the other cell in one line for a patch."""
    if verdict is None:
        return "not measured there"
    if not verdict.can_run:
        why = sentence(first(verdict.reasons))
        text = f"cannot run there: {why}" if why else "cannot run there"
        return " ".join(text.split())[:_MAX_REMARK_CHARS]
    if verdict.kind is VerdictKind.INVALID:
        return "trains to another loss there"
    if verdict.kind is VerdictKind.SCREENED:
        runs = "one run" if verdict.n == 1 else f"{verdict.n} runs"
        return f"{runs} there, {percent(verdict.delta)}: proves nothing"
    if verdict.word:
        return f"{verdict.word} there, {percent(verdict.delta)}"
    if verdict.kind is VerdictKind.SLOWER:
        return f"slower there, {percent(verdict.delta)}"
    return f"not decided there, {percent(verdict.delta)}"


_MAX_REMARK_CHARS = 160


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
    texts: dict[str, str] = {}  # identity of settings -> the settings as text
    # identity of settings -> digest of a cell -> the surest verdict there
    measured: dict[str, dict[str, Verdict]] = {}
    for cell in cells:
        for profile, verdict in _measured(cell):
            key = _identity(profile)
            texts.setdefault(key, literal(profile.shown_text))
            by_cell = measured.setdefault(key, {})
            earlier = by_cell.get(cell.cell_digest)
            if earlier is None or _sureness(verdict) > _sureness(earlier):
                by_cell[cell.cell_digest] = verdict
    name_of = names(cells)
    rows = []
    for key, by_cell in measured.items():
        if len({cell.cell.parallelism for cell in cells if cell.cell_digest in by_cell}) > 1:
            figures = [_figures(by_cell.get(cell.cell_digest), say) for cell in cells]
            by_name = {name_of[digest]: verdict for digest, verdict in by_cell.items()}
            rows.append((texts[key], *chain(*figures), sign(by_name, say)))
    if not rows:
        return (say.text("No setting was measured on more than one parallelism."),)
    titles = ((f">{name}: delta %", "95 %", "~verdict") for name in name_of.values())
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


def _identity(profile: Profile) -> str:
    """Return the identity of a profile's settings, which does not depend on its name."""
    settings = sorted((*key, value) for key, value in settings_of(profile).items())
    return digest(canonical([list(setting) for setting in settings]))


def sign(verdicts: Mapping[str, Verdict], say: Translator = ENGLISH) -> str:
    """Return how an effect changes its sign between cells.

    `verdicts` is name of a cell -> the verdict on the setting there.
    """

    def cells_with(*kinds: VerdictKind) -> list[str]:
        return [name for name, verdict in verdicts.items() if verdict.kind in kinds]

    broken = [name for name, verdict in verdicts.items() if _is_broken(verdict)]
    unable = [name for name in broken if not verdicts[name].can_run]
    if unable:
        return say("cannot run on {names}", names=", ".join(unable))
    if broken:
        return say("not valid on {names}", names=", ".join(broken))
    faster, slower = cells_with(VerdictKind.FASTER), cells_with(VerdictKind.SLOWER)
    if faster and slower:
        return say(
            "flips: faster on {faster}, slower on {slower}",
            faster=", ".join(faster),
            slower=", ".join(slower),
        )
    equivalent, changed = cells_with(VerdictKind.EQUIVALENT), [*faster, *slower]
    if len(equivalent) == len(verdicts):
        return say("no difference on any of them")
    if len(changed) == len(verdicts):
        return say("the same")
    if len(changed) + len(equivalent) == len(verdicts):
        return say("a difference on {names} only", names=", ".join(changed))
    return _unconfirmed_sign(verdicts, say)


def _unconfirmed_sign(verdicts: Mapping[str, Verdict], say: Translator) -> str:
    """Return whether the changes have the same sign, and how sure that is."""
    signs = {verdict.delta > 0 for verdict in verdicts.values() if verdict.delta}
    direction = say("the same sign") if len(signs) < 2 else say("opposite")  # noqa: PLR2004 - two signs
    screened = sum(verdict.kind is VerdictKind.SCREENED for verdict in verdicts.values())
    if screened == len(verdicts):
        return say("{direction} in single runs", direction=direction)
    if screened:
        return say("{direction}, confirmed against a single run", direction=direction)
    return say("{direction}, not confirmed", direction=direction)
