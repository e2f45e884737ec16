"""The recipe of each cell as text for `git apply`: appended lines, guards and unified diffs.

A recipe goes to the end of the env file, where it has the last word. A key of the trainer's
configuration changes in place. Where recipes conflict, a guard reads the parallelism that each was
measured on. A line with a hidden secret is no context: it would not match. The sign flips are here
too: settings that help one parallelism and hurt another.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_xlatune.model.cell import DeployedFile, axis_variable
from pytest_xlatune.model.profile import (
    Profile,
    effective_values,
    settings_digest,
    shell_exports,
)
from pytest_xlatune.model.record import canonical, digest
from pytest_xlatune.model.redact import HIDDEN, is_secret
from pytest_xlatune.model.result import Verdict, VerdictKind
from pytest_xlatune.model.text import ABSENT, interval, points
from pytest_xlatune.report._trainer_config import with_value
from pytest_xlatune.report.covered import Covered, names
from pytest_xlatune.report.document import (
    Block,
    Table,
    columns,
    literal,
)
from pytest_xlatune.report.language import ENGLISH, Say
from pytest_xlatune.report.leaderboard import CONFIRMED
from pytest_xlatune.report.lines import words

CONTEXT = 3  # lines; fewer where one of them is hidden
# the axes in the order in which they tell cells apart; FSDP takes what the others leave
_AXES = ("PP", "TP", "EP", "CP", "SP", "DP", "FSDP")
# a path that a diff may name without quoting it
_PATH = re.compile(r"[A-Za-z0-9._+/@-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A recipe and another cell of the model that must not get it.

    Attributes:
        cell: whose recipe; other: a cell that must not get it.
        settings: the settings that they disagree on.
        guard: a condition of bash that holds in `cell` and not in `other`; "" where none does.
        variables: the variables that the condition reads.
    """

    cell: Covered
    other: Covered
    settings: tuple[str, ...]
    guard: str
    variables: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """The text for `git apply`.

    Attributes:
        text: the patch; "" where there is none.
        paths: of the files that it changes.
        cells: digests of the cells whose recipes are in it.
        missing: cell digest -> why the patch lacks its recipe or a part of it.
    """

    text: str
    paths: tuple[str, ...] = ()
    cells: tuple[str, ...] = ()
    missing: Mapping[str, str]


def conflicts(cells: Sequence[Covered]) -> list[Conflict]:
    """Return every pair of a recipe and a cell that it would hurt or whose recipe it undoes."""
    found = []
    for cell in cells:
        for other in cells:
            if other is cell or cell.recipe is None:
                continue
            settings = _disagreement(cell.recipe, other)
            if settings:
                guard, variables = _guard(cell, other)
                found.append(
                    Conflict(
                        cell=cell,
                        other=other,
                        settings=settings,
                        guard=guard,
                        variables=variables,
                    )
                )
    return found


def patch_of(cells: Sequence[Covered], say: Say = ENGLISH) -> Patch:
    """Return the patch that deploys every recipe that a file can deploy.

    `say` writes the reasons of recipes that are not in it.
    """
    against = conflicts(cells)
    missing: dict[str, str] = {}
    latest = _latest(cells)
    after = {path: file.text for path, file in latest.items()}
    done = []
    for cell in cells:
        recipe = cell.recipe
        if recipe is None:
            continue
        mine = [each for each in against if each.cell is cell]
        shell = next((each for each in cell.files if each.is_shell), None)
        config = next((each for each in cell.files if not each.is_shell), None)
        why = _why_not(cell, mine, latest, shell=shell, config=config, say=say)
        if why:
            missing[cell.cell_digest] = why
            continue
        edited = dict(after)
        if shell is not None and (recipe.flags or recipe.env):
            edited[shell.path] = _appended(edited[shell.path], _shell_block(cell, mine))
        if recipe.overrides:
            why = _configured(edited, config, cell, say)
        if why:
            missing[cell.cell_digest] = why
        after = edited
        if not why or recipe.flags or recipe.env:
            done.append(cell.cell_digest)
    diffs = {
        path: diff(file, after[path]) for path, file in latest.items() if after[path] != file.text
    }
    if any(text is None for text in diffs.values()):
        why = say("the lines around the change hold a secret, or a diff cannot name its path")
        return Patch(text="", missing={**missing, **dict.fromkeys(done, why)})
    return Patch(
        text="".join(text for text in diffs.values() if text),
        paths=tuple(diffs),
        cells=tuple(done),
        missing=missing,
    )


def _why_not(
    cell: Covered,
    against: Sequence[Conflict],
    latest: Mapping[str, DeployedFile],
    *,
    shell: DeployedFile | None,
    config: DeployedFile | None,
    say: Say,
) -> str:
    """Return why no file that others read too can deploy a recipe; "" where one can."""
    recipe = cell.recipe
    if recipe is None:
        return ""
    harmed = [each.config_tag for each in cell.elsewhere if each.is_harmful]
    if any(not each.guard for each in against):
        return say("no variable tells the conflicting cells apart")
    if harmed:
        return say(
            "{tags} would get it too, and a gate found it harmful there", tags=", ".join(harmed)
        )
    if (recipe.flags or recipe.env) and shell is None:
        return say("the sweep did not record the env file that deploys the cell")
    if any(_is_stale(each, latest) for each in (shell, config) if each is not None):
        return say("a file that deploys the cell has changed since")
    if recipe.overrides and against:
        return say("a configuration file cannot ask for the parallelism")
    return ""


def recipe_lines(cell: Covered) -> str:
    """Return the shell lines that a recipe appends, without a guard; "" where it has none."""
    recipe = cell.recipe
    if recipe is None:
        return ""
    shown = {name: value for name, value in recipe.env.items() if not is_secret(name)}
    secret = [name for name in recipe.env if is_secret(name)]
    lines = [f"# {name}: set it yourself, its value is secret\n" for name in secret]
    return shell_exports(recipe.flags, shown) + "".join(lines)


def diff(file: DeployedFile, after: str) -> str | None:
    """Return the unified diff of a file that became `after`; None where it cannot be written."""
    if not _PATH.fullmatch(file.path) or ".." in file.path.split("/"):
        return None
    head = f"diff --git a/{file.path} b/{file.path}\n"
    if file.is_new:
        head += "new file mode 100644\n"
    before_lines, after_lines = _lines(file.text), _lines(after)
    for context in range(CONTEXT, -1, -1):
        lines = list(
            difflib.unified_diff(
                before_lines,
                after_lines,
                "/dev/null" if file.is_new else f"a/{file.path}",
                f"b/{file.path}",
                n=context,
            )
        )
        is_hidden = any(HIDDEN in line for line in lines if line[0] in " -")
        # git refuses a hunk without context, unless the file was empty
        if not is_hidden and (context or not file.text):
            return head + "".join(map(_ended, lines))
    return None


def _disagreement(recipe: Profile, other: Covered) -> tuple[str, ...]:
    """Return the settings of a recipe that another cell must not get; () where none is known."""
    mine = _settings(recipe)
    theirs = _settings(other.recipe) if other.recipe else {}
    named = [name for name, value in mine.items() if theirs.get(name, value) != value]
    for profile in other.profiles:
        verdict = other.conclusion.verdict(profile.id)
        if verdict is None or setting_of(profile) != setting_of(recipe) or verdict.is_needless:
            continue
        # a single run proves no loss, but one is enough not to deploy there without a question
        if (verdict.delta or 0.0) < 0 or not verdict.can_run:
            named += [name for name in mine if name not in named]
    return tuple(named)


def _settings(recipe: Profile) -> dict[str, str]:
    return {**effective_values(recipe.flags), **recipe.env, **recipe.overrides}


def _guard(cell: Covered, other: Covered) -> tuple[str, tuple[str, ...]]:
    """Return the condition that tells a cell from another by one axis, and the variable it reads.

    A variable that is not exported counts as 1, so the best axis is one that a cell does not use.
    """
    mine, theirs = dict(cell.cell.parallelism.axes), dict(other.cell.parallelism.axes)
    differing = [
        axis
        for axis in _AXES
        if axis in {*mine, *theirs} and mine.get(axis, 1) != theirs.get(axis, 1)
    ]
    if not differing:
        return "", ()
    axis = next(
        (each for each in differing if 1 in (mine.get(each, 1), theirs.get(each, 1))), differing[0]
    )
    own, others = mine.get(axis, 1), theirs.get(axis, 1)
    variable = axis_variable(axis)
    test = f"-eq {own}" if own > 1 and others > 1 else "-gt 1" if own > 1 else "-le 1"
    return f'"${{{variable}:-1}}" {test}', (variable,)


def _latest(cells: Sequence[Covered]) -> dict[str, DeployedFile]:
    """Return path -> the file as the newest sweep saw it."""
    found: dict[str, DeployedFile] = {}
    for cell in sorted(cells, key=lambda each: each.written_s):
        found |= {file.path: file for file in cell.files}
    return found


def _is_stale(file: DeployedFile, latest: Mapping[str, DeployedFile]) -> bool:
    return latest[file.path].text != file.text


def _shell_block(cell: Covered, against: Sequence[Conflict]) -> str:
    lines = recipe_lines(cell)
    best = cell.best
    jobs = f", jobs {', '.join(best.job_ids)}" if best and best.job_ids else ""
    comment = f"# {best.arm if best else ''}: measured on {cell.label}{jobs}\n"
    tests = dict.fromkeys(each.guard for each in against)
    if not tests:
        return comment + lines
    return f"{comment}if [[ {' && '.join(tests)} ]]; then\n{lines}fi\n"


def _appended(text: str, block: str) -> str:
    ended = f"{text}\n" if text and not text.endswith("\n") else text
    return f"{ended}\n{block}" if ended else block


def _configured(after: dict[str, str], config: DeployedFile | None, cell: Covered, say: Say) -> str:
    """Change the trainer's configuration in place; return why that is impossible, or ""."""
    recipe = cell.recipe
    if config is None or recipe is None:
        return say("the sweep did not record the trainer's configuration file")
    fixed = [key for key in recipe.overrides if key in cell.cell.overrides]
    if fixed:
        return say("the sweep itself gives {key} to the trainer, so a file cannot", key=fixed[0])
    text = after[config.path]
    for key, value in recipe.overrides.items():
        if is_secret(key):
            return say("the value of {key} is secret", key=key)
        changed = with_value(text, key, value)
        if changed is None:
            return say("{key} has no single value in {path}", key=key, path=config.path)
        text = changed
    after[config.path] = text
    return ""


def _lines(text: str) -> list[str]:
    """Split as git does: at line feeds and nothing else."""
    parts = text.split("\n")
    ended = [f"{part}\n" for part in parts[:-1]]
    return [*ended, parts[-1]] if parts[-1] else ended


def _ended(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


_SIGN = {VerdictKind.FASTER: 1, VerdictKind.SLOWER: -1}


def sign_flips(cells: Sequence[Covered], say: Say) -> tuple[Block, ...] | None:
    """Return the table of settings measured on several parallelisms; None with only one."""
    if len({each.cell.parallelism for each in cells}) < 2:  # noqa: PLR2004
        return None
    found: dict[str, dict[str, tuple[Profile, Verdict]]] = {}
    for cell in cells:
        for profile in cell.profiles:
            verdict = cell.conclusion.verdict(profile.id)
            if verdict is None or verdict.is_needless:
                continue
            if verdict.delta is not None or not verdict.can_run:
                of_setting = found.setdefault(setting_of(profile), {})
                of_setting.setdefault(cell.cell_digest, (profile, verdict))
    axes = {each.cell_digest: each.cell.parallelism for each in cells}
    shared = [
        each for each in found.values() if len({axes[cell_digest] for cell_digest in each}) > 1
    ]
    if not shared:
        return (say.text("No setting was measured on more than one parallelism."),)
    called = names(cells)
    titles = [
        title
        for each in cells
        for title in (f">{called[each.cell_digest]}: delta %", "95 %", "~verdict")
    ]
    rows = []
    for of_setting in shared:
        profile = next(iter(of_setting.values()))[0]
        row = [literal(profile.shown_text)]
        for each in cells:
            verdict = of_setting[each.cell_digest][1] if each.cell_digest in of_setting else None
            row += [
                points(verdict.delta) if verdict else ABSENT,
                interval(verdict.ci95) if verdict else ABSENT,
                words(verdict) if verdict else ABSENT,
            ]
        rows.append((*row, _sign([verdict for _, verdict in of_setting.values()])))
    return (
        say.text(
            "These settings were measured on more than one parallelism. A flip is "
            "confirmed where both sides are confirmed; single runs of opposite sign "
            "prove nothing."
        ),
        Table(columns=columns("~Settings", *titles, "Sign"), rows=tuple(rows)),
    )


def setting_of(profile: Profile) -> str:
    """Return the identity of a profile's settings: equal for profiles of different names."""
    return digest([settings_digest(profile.flags, profile.env), canonical(profile.overrides)])


def _sign(verdicts: Sequence[Verdict]) -> str:
    """Say whether the effect of a setting changes its sign; only confirmed verdicts can show it."""
    confirmed = {_SIGN[each.kind] for each in verdicts if each.kind in _SIGN}
    if len(confirmed) > 1:
        return "flips"
    if any(not each.can_run for each in verdicts):
        return "cannot run on one"
    signs = {each.delta > 0 for each in verdicts if each.delta}
    if len(signs) < 2:  # noqa: PLR2004
        return "the same"
    is_known = all(each.kind in CONFIRMED for each in verdicts)
    return "opposite, not confirmed" if is_known else "opposite in single runs"
