"""What to deploy, as text that `git apply` takes: recipes, guards and unified diffs.

A recipe is appended to the env file, so that it has the last word, and a key of the trainer's
configuration is changed where it stands. Recipes that conflict are guarded by the parallelism they
were measured on. A line that holds a hidden secret is no context: it would not match.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_xlatune.cells import DeployedFile, axis_variable
from pytest_xlatune.hidden import HIDDEN, is_secret
from pytest_xlatune.profiles import Profile, effective_values, shell_exports
from pytest_xlatune.report.covered import Covered
from pytest_xlatune.report.signs import setting_of

CONTEXT = 3  # lines; fewer where one of them is hidden
# the axes in the order in which they tell cells apart; FSDP takes what the others leave
_AXES = ("PP", "TP", "EP", "CP", "SP", "DP", "FSDP")
# a path that a diff may name without quoting it
_PATH = re.compile(r"[A-Za-z0-9._+/@-]+")
# a scalar that a yml reads as it stands:  false   0.5   minimal_flash
_PLAIN = re.compile(r"[A-Za-z0-9_.+/-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A recipe and another cell of the model that must not get it.

    Attributes:
        cell: whose recipe; other: who must not get it.
        settings: the settings they disagree on.
        guard: a condition of bash that holds in `cell` and not in `other`; "" where none does.
        variables: that the condition reads.
    """

    cell: Covered
    other: Covered
    settings: tuple[str, ...]
    guard: str
    variables: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """What `git apply` gets.

    Attributes:
        text: the patch; "" where there is none.
        paths: of the files that it changes.
        cells: digests of the cells whose recipes are in it.
        missing: cell digest -> why its recipe is not, or not all of it, in the patch.
    """

    text: str
    paths: tuple[str, ...] = ()
    cells: tuple[str, ...] = ()
    missing: Mapping[str, str]


def conflicts(cells: Sequence[Covered]) -> list[Conflict]:
    """Return every pair of a recipe and a cell that it would hurt, or whose recipe it undoes."""
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


def patch_of(cells: Sequence[Covered]) -> Patch:
    """Return the patch that deploys every recipe that can be deployed by a file."""
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
        why = _why_not(cell, mine, latest, shell=shell, config=config)
        if why:
            missing[cell.cell_digest] = why
            continue
        edited = dict(after)
        if shell is not None and (recipe.flags or recipe.env):
            edited[shell.path] = _appended(edited[shell.path], _shell_block(cell, mine))
        if recipe.overrides:
            why = _configured(edited, config, cell)
        if why:
            missing[cell.cell_digest] = why
        after = edited
        if not why or recipe.flags or recipe.env:
            done.append(cell.cell_digest)
    diffs = {
        path: diff(file, after[path]) for path, file in latest.items() if after[path] != file.text
    }
    if any(text is None for text in diffs.values()):
        why = "the lines around the change hold a secret, or its path cannot be named in a diff"
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
) -> str:
    """Return why a recipe cannot be deployed by a file that others read too; "" where it can."""
    recipe = cell.recipe
    if recipe is None:
        return ""
    harmed = [each.config_tag for each in cell.elsewhere if each.is_harmful]
    if any(not each.guard for each in against):
        return "no variable tells the conflicting cells apart"
    if harmed:
        return f"{', '.join(harmed)} would get it too, and it was found harmful there"
    if (recipe.flags or recipe.env) and shell is None:
        return "the env file that is deployed was not recorded"
    if any(_is_stale(each, latest) for each in (shell, config) if each is not None):
        return "a file that deploys the cell has changed since"
    if recipe.overrides and against:
        return "a configuration file cannot ask for the parallelism"
    return ""


def recipe_lines(cell: Covered) -> str:
    """Return the shell lines that a recipe appends, without a guard; "" where it has none."""
    recipe = cell.recipe
    if recipe is None:
        return ""
    shown = {name: value for name, value in recipe.env.items() if not is_secret(name)}
    secret = [name for name in recipe.env if is_secret(name)]
    lines = [f"# {name}: set it yourself, its value is not shown\n" for name in secret]
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
        # a single run proves no loss, but it is reason enough not to deploy there unasked
        if (verdict.delta or 0.0) < 0 or not verdict.can_run:
            named += [name for name in mine if name not in named]
    return tuple(named)


def _settings(recipe: Profile) -> dict[str, str]:
    return {**effective_values(recipe.flags), **recipe.env, **recipe.overrides}


def _guard(cell: Covered, other: Covered) -> tuple[str, tuple[str, ...]]:
    """Return the condition that tells a cell from another by one axis, and the variable it reads.

    A variable that is not exported counts as 1, so an axis that one of them does not use is best.
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
    comment = f"# {best.profile if best else ''}: measured on {cell.label}{jobs}\n"
    tests = dict.fromkeys(each.guard for each in against)
    if not tests:
        return comment + lines
    return f"{comment}if [[ {' && '.join(tests)} ]]; then\n{lines}fi\n"


def _appended(text: str, block: str) -> str:
    ended = f"{text}\n" if text and not text.endswith("\n") else text
    return f"{ended}\n{block}" if ended else block


def _configured(after: dict[str, str], config: DeployedFile | None, cell: Covered) -> str:
    """Change the trainer's configuration in place; return why it cannot be."""
    recipe = cell.recipe
    if config is None or recipe is None:
        return "the trainer's configuration file was not recorded"
    fixed = [key for key in recipe.overrides if key in cell.cell.overrides]
    if fixed:
        return f"the sweep itself gives {fixed[0]} to the trainer, so a file cannot"
    text = after[config.path]
    for key, value in recipe.overrides.items():
        if is_secret(key):
            return f"the value of {key} is not shown"
        changed = _with_key(text, key, value)
        if changed is None:
            return f"{key} has no single value in {config.path}"
        text = changed
    after[config.path] = text
    return ""


def _with_key(text: str, key: str, value: str) -> str | None:
    """Return a yml with a top-level key set; None where it has a value of several lines."""
    written = value if _PLAIN.fullmatch(value) else json.dumps(value)
    # a key of a yml, its value, a comment:  remat_policy: "full"  # costs time
    pattern = re.compile(
        rf"^({re.escape(key)}:[ \t]*)(\"[^\"\n]*\"|'[^'\n]*'|[^#\n]*?)"
        r"([ \t]*(?:[ \t]#[^\n]*)?)$(?!\n[ \t]+\S)",
        re.MULTILINE,
    )
    found = list(re.finditer(rf"^{re.escape(key)}:", text, re.MULTILINE))
    if not found:
        return _appended_line(text, f"{key}: {written}\n")
    match = pattern.search(text)
    if len(found) > 1 or match is None or match.group(2)[:1] in ("|", ">", "[", "{", "&", "*"):
        return None
    head = match.group(1) if match.group(1)[-1] in " \t" else f"{match.group(1)} "
    return f"{text[: match.start()]}{head}{written}{match.group(3)}{text[match.end() :]}"


def _appended_line(text: str, line: str) -> str:
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{line}"


def _lines(text: str) -> list[str]:
    """Split as git does: at line feeds and nothing else."""
    parts = text.split("\n")
    ended = [f"{part}\n" for part in parts[:-1]]
    return [*ended, parts[-1]] if parts[-1] else ended


def _ended(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
