"""Find the cells of a model that must not get a recipe, and settings that hurt some cells.

All cells of a model may read the file that a recipe is written into. So a recipe gets a guard by
default. It reaches another cell without a guard only if all settings that this cell would then have
were measured there, and a loss is excluded against the baseline and against that cell's own recipe.
Measurements of a part count too: a setting that cannot run there is named. It writes no file.
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
from pytest_xlatune.report.language import Translator
from pytest_xlatune.report.leaderboard import CONFIRMED
from pytest_xlatune.report.lines import words_beside
from pytest_xlatune.report.measured_cell import MeasuredCell, names

# the axes, in the order in which they tell cells apart; FSDP takes what the others leave
_AXES = ("PP", "TP", "EP", "CP", "SP", "DP", "FSDP")
MARGIN = 0.01  # a loss of this share or more must be excluded elsewhere

Settings = Mapping[tuple[str, str], str]  # (kind, name) -> value


class Doubt(StrEnum):
    """Why a recipe must not reach another cell without a guard; the worst reason comes first."""

    HARMFUL = "harmful"  # measured there: it is slower, cannot run, or trains to another loss
    CONTRARY = "contrary"  # the recipe of the other cell sets the same key to another value
    LESS = "less"  # measured there, and not shown to be as fast as the other cell's settings
    UNTOLD = "untold"  # measured there, and a loss is not excluded
    UNMEASURED = "unmeasured"  # never measured there, or not together


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """What keeps a recipe from another cell of the model, or from another configuration.

    Attributes:
        where: the cell that must not get it, or the tag of the configuration, in a few words.
        other: the other cell; None for a configuration that a gate measured.
        doubt: why the other must not get the recipe.
        settings: the names of the recipe's settings that the doubt is about.
        is_of_keys: whether a part of the recipe would be in a configuration file that both read.
        verdict: the verdict on these settings in the other cell; None if there is none.
        guard: a condition of bash that holds in the recipe's cell and not in `other`; "" if none.
        variables: the variables that the condition reads.
    """

    where: str
    other: MeasuredCell | None = None
    doubt: Doubt
    settings: tuple[str, ...] = ()
    is_of_keys: bool = False
    verdict: Verdict | None = None
    guard: str
    variables: tuple[str, ...]

    @property
    def is_open(self) -> bool:
        """Whether the recipe is only not verified there, and nothing forbids it."""
        return self.doubt in (Doubt.UNTOLD, Doubt.UNMEASURED)

    @property
    def remark(self) -> str:
        """The remark of the patch about it, in one line without a line feed."""
        named = ", ".join(self.settings)
        label = self.where
        match self.doubt:
            case Doubt.HARMFUL if self.other is None:
                return f"NOT for {label}: a gate found it harmful there"
            case _ if self.other is None:
                return f"NOT verified on {label}: a gate measured it there and cannot tell"
            case Doubt.HARMFUL:
                return f"NOT for {label}: {named}: {_short(self.verdict)}"
            case Doubt.CONTRARY:
                return f"NOT for {label}: its own recipe sets {named} to another value"
            case Doubt.LESS:
                least = "not shown to be as fast there as its own recipe without it"
                gain = percent(self.verdict.delta if self.verdict else None)
                return f"NOT for {label}: {named}: {least} ({gain} with it)"
            case Doubt.UNTOLD:
                return f"NOT verified on {label}: {named}: {_short(self.verdict)}"
            case _:
                together = " together" if len(self.settings) > 1 else ""
                return f"NOT verified on {label}: {named} not measured there{together}"


def conflicts(cell: MeasuredCell, cells: Sequence[MeasuredCell]) -> list[Conflict]:
    """Return what must not get the recipe of a cell without a guard, and why.

    Other cells of the model come first. Then come configurations of this cell where wave 6 found a
    loss or cannot tell. A cell gets the unguarded recipes of all others together with its own. So
    each recipe is judged together with the recipes before it in `cells` that need no guard.
    """
    if cell.recipe is None:
        return []
    recipe_conflicts = []
    for other in cells:
        if other is cell:
            continue
        doubt = _reach(other, cells).get(cell.cell_digest)
        if doubt is not None:
            guard, variables = guard_of(cell, other)
            recipe_conflicts.append(
                Conflict(
                    where=other.label,
                    other=other,
                    doubt=doubt.kind,
                    settings=doubt.settings,
                    is_of_keys=any(kind == _OVERRIDE for kind, _ in _added(cell, other)),
                    verdict=doubt.verdict,
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
                    doubt=Doubt.HARMFUL if gate.is_harmful else Doubt.UNTOLD,
                    is_of_keys=gate.is_harmful and bool(cell.recipe.overrides),
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


_WORST = tuple(Doubt)


def _reach(other: MeasuredCell, cells: Sequence[MeasuredCell]) -> dict[str, _Reason]:
    """Return digest of a cell -> why its recipe must not reach `other`."""
    reasons: dict[str, _Reason] = {}
    has = dict(settings_of(other.recipe)) if other.recipe else {}
    for cell in cells:
        if cell.cell_digest == other.cell_digest or cell.recipe is None:
            continue
        added = _added(cell, other)
        # judge it together with the cell's settings and alone: its own recipe may be in no patch
        both = (_doubt(added, base, cell=cell, other=other) for base in (has, {}))
        reason = min(filter(None, both), key=lambda doubt: _WORST.index(doubt.kind), default=None)
        if reason is None:
            has |= added
        else:
            reasons[cell.cell_digest] = reason
    return reasons


def _added(cell: MeasuredCell, other: MeasuredCell) -> Settings:
    """Return the part of a recipe that is in a file which the other cell reads too.

    A file that the sweep did not record counts as one that both read.
    """
    shared = {}
    for is_shell in (True, False):
        # a recipe is written into the first file of each kind
        mine, theirs = (
            next((file.path for file in reader.files if file.is_shell is is_shell), "")
            for reader in (cell, other)
        )
        shared[is_shell] = not mine or not theirs or mine == theirs
    settings = settings_of(cell.recipe) if cell.recipe else {}
    return {key: value for key, value in settings.items() if shared[key[0] != _OVERRIDE]}


def _doubt(
    added: Settings, has: Settings, *, cell: MeasuredCell, other: MeasuredCell
) -> _Reason | None:
    """Return why settings must not be added to those of a cell; None if they may be."""
    after = {**has, **added}
    if after == dict(has):
        return None  # the cell already has these settings
    contrary = tuple(key[1] for key, value in added.items() if has.get(key, value) != value)
    if contrary:
        return _Reason(kind=Doubt.CONTRARY, settings=contrary)
    named = tuple(key[1] for key in added)
    verdict_after = _verdict_on(after, other)
    is_safe = verdict_after is not None and _excludes_a_loss(verdict_after)
    own_settings = settings_of(other.recipe) if has and other.recipe else {}
    # A gain over the baseline can be a loss against the cell's own recipe, and each setting that
    # others bring without a guard may cost a little.
    against = (_verdict_on(base, other) for base in (has, own_settings) if base)
    if (
        verdict_after is not None
        and is_safe
        and all(_keeps(verdict_after, before) for before in against)
    ):
        return None
    if not has and _is_shown_by_a_gate(cell, other):
        return None
    # Every part that was measured there counts. A recipe once went without a guard to a cell where
    # one of its flags had run out of memory. After `git apply` even the baseline failed there.
    parts = [
        (tuple(key[1] for key in part), verdict)
        for profile, verdict in _measured(other)
        if (part := settings_of(profile)) and part.items() <= after.items() and part.keys() & added
    ]
    harmful = [pair for pair in parts if _is_harm(pair[1])]
    if harmful:
        # the smallest harmful part says most
        settings, verdict = min(harmful, key=lambda pair: len(pair[0]))
        return _Reason(kind=Doubt.HARMFUL, settings=settings, verdict=verdict)
    if verdict_after is not None:
        if is_safe:
            more = tuple(key[1] for key in added if key not in has)
            return _Reason(kind=Doubt.LESS, settings=more, verdict=verdict_after)
        return _Reason(kind=Doubt.UNTOLD, settings=named, verdict=verdict_after)
    return _Reason(kind=Doubt.UNMEASURED, settings=named)


def _is_shown_by_a_gate(cell: MeasuredCell, other: MeasuredCell) -> bool:
    """Return whether wave 6 excluded a loss from the recipe in the other cell."""
    mine, theirs = cell.cell, other.cell
    is_variant = mine.parallelism == theirs.parallelism and mine.batch_text == theirs.batch_text
    gates = (gate for gate in cell.elsewhere if gate.config_tag == theirs.config_tag)
    return is_variant and any(gate.holds for gate in gates)


_OVERRIDE = "override"


def settings_of(profile: Profile) -> dict[tuple[str, str], str]:
    """Return (kind, name) -> value for all settings of a profile; aliases have the newer name."""
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
        if verdict is not None and _was_tried(verdict):
            yield profile, verdict


def _was_tried(verdict: Verdict) -> bool:
    return verdict.n > 0 or verdict.delta is not None or not verdict.can_run


def _verdict_on(settings: Settings, cell: MeasuredCell) -> Verdict | None:
    """Return the verdict of a cell on exactly these settings; the surest of several."""
    verdicts = [
        verdict for profile, verdict in _measured(cell) if settings_of(profile) == dict(settings)
    ]
    return max(verdicts, key=_sureness, default=None)


def _sureness(verdict: Verdict) -> int:
    return 2 if verdict.kind in CONFIRMED or not verdict.can_run else verdict.n > 0


def _excludes_a_loss(verdict: Verdict) -> bool:
    """Return whether a verdict excludes a loss of `MARGIN` or more."""
    if verdict.kind in (VerdictKind.FASTER, VerdictKind.EQUIVALENT):
        return True
    is_told = verdict.kind is VerdictKind.INCONCLUSIVE and verdict.n > 1
    return is_told and verdict.ci95 is not None and verdict.ci95[0] > -MARGIN


def _keeps(after: Verdict, has: Verdict | None) -> bool:
    """Return whether a loss of `MARGIN` or more against the settings of a cell is excluded.

    A gain over the baseline may be less than the cell's own recipe gives. Both share their
    baselines, so the interval of the difference, as of independent estimates, is rather too wide.
    """
    if has is None or after.delta is None or has.delta is None:
        return False
    if after.ci95 is None or has.ci95 is None:
        return False
    error = math.hypot(after.delta - after.ci95[0], has.ci95[1] - has.delta)
    return after.delta - has.delta - error > -MARGIN


def _is_harm(verdict: Verdict) -> bool:
    return verdict.kind is VerdictKind.SLOWER or _is_broken(verdict)


def _is_broken(verdict: Verdict) -> bool:
    """Return whether the settings cannot run, or train to another loss."""
    return verdict.kind is VerdictKind.INVALID and (not verdict.can_run or verdict.n > 0)


def _short(verdict: Verdict | None) -> str:
    """Return a verdict of the other cell in one line for a patch."""
    if verdict is None:
        return "not measured there"
    if not verdict.can_run:
        why = sentence(first(verdict.reasons))
        return " ".join(f"cannot run there{f': {why}' if why else ''}".split())[:160]
    if verdict.kind is VerdictKind.INVALID:
        return "trains to another loss there"
    if verdict.kind is VerdictKind.SCREENED:
        runs = "one run" if verdict.n == 1 else f"{verdict.n} runs"
        return f"{runs} there, {percent(verdict.delta)}: proves nothing"
    if verdict.word:
        return f"{verdict.word} there, {percent(verdict.delta)}"
    if verdict.kind is VerdictKind.SLOWER:
        return f"slower there, {percent(verdict.delta)}"
    return f"cannot be told there, {percent(verdict.delta)}"


def guard_of(cell: MeasuredCell, other: MeasuredCell) -> tuple[str, tuple[str, ...]]:
    """Return the condition that tells a cell from another, and the variables that it reads.

    It reads one axis that differs, if there is one. A variable that is not exported counts as 1, so
    an axis that a cell does not use is best. Else it reads the tag of the configuration.
    """
    mine, theirs = dict(cell.cell.parallelism.axes), dict(other.cell.parallelism.axes)
    degrees = [(axis, mine.get(axis, 1), theirs.get(axis, 1)) for axis in _AXES]
    differing = [degree for degree in degrees if degree[1] != degree[2]]
    if not differing:
        return _guard_of_tag(cell.cell.config_tag, other.cell.config_tag)
    axis, here, there = next((degree for degree in differing if 1 in degree), differing[0])
    variable = axis_variable(axis)
    test = f"-eq {here}" if here > 1 and there > 1 else "-gt 1" if here > 1 else "-le 1"
    return f'"${{{variable}:-1}}" {test}', (variable,)


def _guard_of_tag(tag: str, other: str) -> tuple[str, tuple[str, ...]]:
    if tag == other:
        return "", ()
    return f'"${{{CONFIG_TAG_VARIABLE}:-}}" == {quote(tag)}', (CONFIG_TAG_VARIABLE,)


def guard_against(against: Sequence[Conflict]) -> str:
    """Return the condition of bash under which the lines of a recipe apply; "" means always."""
    return " && ".join(dict.fromkeys(conflict.guard for conflict in against if conflict.guard))


def sign_flips(cells: Sequence[MeasuredCell], say: Translator) -> tuple[Block, ...] | None:
    """Return a table of the settings measured on several parallelisms; None if only one."""
    if len({cell.cell.parallelism for cell in cells}) < 2:  # noqa: PLR2004
        return None
    shown: dict[str, str] = {}
    measured: dict[str, dict[str, Verdict]] = {}  # settings -> cell -> the surest verdict there
    for cell in cells:
        for profile, verdict in _measured(cell):
            key = _identity(profile)
            shown.setdefault(key, literal(profile.shown_text))
            by_cell = measured.setdefault(key, {})
            earlier = by_cell.get(cell.cell_digest)
            if earlier is None or _sureness(verdict) > _sureness(earlier):
                by_cell[cell.cell_digest] = verdict
    called = names(cells)
    rows = tuple(
        (
            shown[key],
            *chain(*(_figures(by_cell.get(cell.cell_digest)) for cell in cells)),
            sign({called[digest]: verdict for digest, verdict in by_cell.items()}),
        )
        for key, by_cell in measured.items()
        if len({cell.cell.parallelism for cell in cells if cell.cell_digest in by_cell}) > 1
    )
    if not rows:
        return (say.text("No setting was measured on more than one parallelism."),)
    titles = ((f">{name}: delta %", "95 %", "~verdict") for name in called.values())
    return (
        say.text(
            "These settings were measured on more than one parallelism. A flip is "
            "confirmed where both sides are confirmed; a single run proves nothing, "
            "whatever its sign."
        ),
        Table(columns=columns("~Settings", *chain(*titles), "~Sign"), rows=rows),
    )


def _figures(verdict: Verdict | None) -> tuple[str, ...]:
    if verdict is None:
        return (ABSENT,) * 3
    return points(verdict.delta), interval(verdict.ci95), words_beside(verdict)


def _identity(profile: Profile) -> str:
    """Return the identity of a profile's settings, which does not depend on its name."""
    settings = sorted((*key, value) for key, value in settings_of(profile).items())
    return digest(canonical([list(setting) for setting in settings]))


_UP_OR_DOWN = {VerdictKind.FASTER: 1, VerdictKind.SLOWER: -1}


def sign(verdicts: Mapping[str, Verdict]) -> str:
    """Return how an effect changes its sign between cells, from name of a cell -> its verdict."""
    # a setting that was dropped on both cells once read "cannot run on one"
    broken = [name for name, verdict in verdicts.items() if _is_broken(verdict)]
    dead = [name for name in broken if not verdicts[name].can_run]
    for these, what in ((dead, "cannot run"), (broken, "not valid")):
        if these and len(these) == len(verdicts):
            return f"{what} on any of them"
        if these:
            return f"{what} on {', '.join(these)}"
    every = list(verdicts.values())
    kinds = {verdict.kind for verdict in every}
    moves = {_UP_OR_DOWN[kind] for kind in kinds if kind in _UP_OR_DOWN}
    if len(moves) > 1:
        up, down = (
            ", ".join(name for name, verdict in verdicts.items() if verdict.kind is kind)
            for kind in (VerdictKind.FASTER, VerdictKind.SLOWER)
        )
        return f"flips: faster on {up}, slower on {down}"
    if kinds == {VerdictKind.EQUIVALENT}:
        return "no difference on any of them"
    if kinds <= {*_UP_OR_DOWN, VerdictKind.EQUIVALENT}:
        moved = [name for name, verdict in verdicts.items() if verdict.kind in _UP_OR_DOWN]
        is_same = len(moved) == len(verdicts)
        return "the same" if is_same else f"a difference on {', '.join(moved)} only"
    signs = {verdict.delta > 0 for verdict in every if verdict.delta}
    once = sum(verdict.kind is VerdictKind.SCREENED for verdict in every)
    direction = "the same sign" if len(signs) < 2 else "opposite"  # noqa: PLR2004 - two signs
    if once == len(every):
        return f"{direction} in single runs"
    if once:
        return f"{direction}, confirmed against a single run"
    return f"{direction}, not confirmed"
