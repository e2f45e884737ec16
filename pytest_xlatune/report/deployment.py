"""The recipe of each cell as text for `git apply`: appended lines, guards and unified diffs.

A recipe goes to the end of the env file, where it has the last word. A key of the trainer's
configuration changes in place. Where recipes conflict, a guard reads the parallelism that each was
measured on. A line with a hidden secret is no context: it would not match. The sign flips are here
too: settings that help one parallelism and hurt another.
"""

from __future__ import annotations

import difflib
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from pytest_xlatune.model.cell import DeployedFile, axis_variable
from pytest_xlatune.model.profile import Profile, effective_values, settings_digest, shell_exports
from pytest_xlatune.model.record import canonical, digest
from pytest_xlatune.model.redact import HIDDEN, is_secret
from pytest_xlatune.model.result import Verdict, VerdictKind
from pytest_xlatune.model.text import ABSENT, interval, points
from pytest_xlatune.report._trainer_config import with_value
from pytest_xlatune.report.covered import Covered, names
from pytest_xlatune.report.document import Block, Table, columns, literal
from pytest_xlatune.report.language import ENGLISH, Say
from pytest_xlatune.report.leaderboard import CONFIRMED
from pytest_xlatune.report.lines import words

_CONTEXT = 3  # lines; fewer where one of them is hidden
# the axes in the order in which they tell cells apart; FSDP takes what the others leave
_AXES = ("PP", "TP", "EP", "CP", "SP", "DP", "FSDP")
# a path that a diff may name without quoting it
_PATH = re.compile(r"[A-Za-z0-9._+/@-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """What keeps a recipe from another cell of the model.

    Attributes:
        other: the cell that must not get it.
        settings: the settings that the two disagree on.
        guard: a condition of bash that holds in the recipe's cell and not in `other`; "" where none
            does.
        variables: the variables that the condition reads.
    """

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
        missing: cell digest -> why the patch lacks its recipe or a part of it.
    """

    text: str
    paths: tuple[str, ...] = ()
    missing: Mapping[str, str]


def conflicts(cell: Covered, cells: Sequence[Covered]) -> list[Conflict]:
    """Return the cells that the recipe of one would hurt, and those whose recipe it undoes."""
    found = []
    for other in cells:
        if other is cell or cell.recipe is None:
            continue
        settings = _disagreement(cell.recipe, other)
        if settings:
            guard, variables = _guard(cell, other)
            found.append(Conflict(other=other, settings=settings, guard=guard, variables=variables))
    return found


def patch_of(cells: Sequence[Covered], say: Say = ENGLISH) -> Patch:
    """Return the patch that deploys every recipe that a file can deploy.

    `say` writes the reasons of recipes that are not in it.
    """
    missing: dict[str, str] = {}
    # each file as the newest sweep saw it
    latest = {
        file.path: file
        for cell in sorted(cells, key=lambda each: each.written_s)
        for file in cell.files
    }
    after = {path: file.text for path, file in latest.items()}
    done = []
    for cell in cells:
        recipe = cell.recipe
        if recipe is None:
            continue
        against = conflicts(cell, cells)
        shell = next((each for each in cell.files if each.is_shell), None)
        config = next((each for each in cell.files if not each.is_shell), None)
        has_lines = bool(recipe.flags or recipe.env)
        why = _why_not(cell, recipe, against, latest, say)
        if not why:
            if shell is not None and has_lines:
                block = _shell_block(cell, recipe, against)
                after[shell.path] = _appended(after[shell.path], block)
            if recipe.overrides:
                why = _configured(after, config, cell, recipe, say)
            if has_lines or not why:
                done.append(cell.cell_digest)
        if why:
            missing[cell.cell_digest] = why
    diffs = {
        path: diff(file, after[path]) for path, file in latest.items() if after[path] != file.text
    }
    if None in diffs.values():
        why = say("the lines around the change hold a secret, or a diff cannot name its path")
        return Patch(text="", missing={**missing, **dict.fromkeys(done, why)})
    text = "".join(filter(None, diffs.values()))
    return Patch(text=text, paths=tuple(diffs), missing=missing)


def _why_not(
    cell: Covered,
    recipe: Profile,
    against: Sequence[Conflict],
    latest: Mapping[str, DeployedFile],
    say: Say,
) -> str:
    """Return why no file that others read too can deploy a recipe; "" where one can."""
    harmed = [each.config_tag for each in cell.elsewhere if each.is_harmful]
    if any(not each.guard for each in against):
        return say("no variable tells the conflicting cells apart")
    if harmed:
        return say(
            "{tags} would get it too, and a gate found it harmful there", tags=", ".join(harmed)
        )
    if (recipe.flags or recipe.env) and not any(each.is_shell for each in cell.files):
        return say("the sweep did not record the env file that deploys the cell")
    if any(latest[each.path].text != each.text for each in cell.files):
        return say("a file that deploys the cell has changed since")
    if recipe.overrides and against:
        return say("a configuration file cannot ask for the parallelism")
    return ""


def recipe_lines(recipe: Profile) -> str:
    """Return the shell lines that a recipe appends, without a guard; "" where it has none."""
    shown = {name: value for name, value in recipe.env.items() if not is_secret(name)}
    secret = (
        f"# {name}: set it yourself, its value is secret\n"
        for name in recipe.env
        if is_secret(name)
    )
    return shell_exports(recipe.flags, shown) + "".join(secret)


def diff(file: DeployedFile, after: str) -> str | None:
    """Return the unified diff of a file that became `after`; None where it cannot be written."""
    if not _PATH.fullmatch(file.path) or ".." in file.path.split("/"):
        return None
    head = f"diff --git a/{file.path} b/{file.path}\n"
    if file.is_new:
        head += "new file mode 100644\n"
    # split as git does: at line feeds and nothing else
    before_lines, after_lines = list(io.StringIO(file.text)), list(io.StringIO(after))
    for context in range(_CONTEXT, -1, -1):
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
    mine, theirs = (
        {**effective_values(each.flags), **each.env, **each.overrides} if each else {}
        for each in (recipe, other.recipe)
    )
    named = [name for name, value in mine.items() if theirs.get(name, value) != value]
    for profile in other.profiles:
        verdict = other.conclusion.verdict(profile.id)
        if verdict is None or _settings(profile) != _settings(recipe) or verdict.is_needless:
            continue
        # a single run proves no loss, but one is enough not to deploy there without a question
        if (verdict.delta or 0.0) < 0 or not verdict.can_run:
            return tuple(dict.fromkeys((*named, *mine)))
    return tuple(named)


def _guard(cell: Covered, other: Covered) -> tuple[str, tuple[str, ...]]:
    """Return the condition that tells a cell from another by one axis, and the variable it reads.

    A variable that is not exported counts as 1, so the best axis is one that a cell does not use.
    """
    mine, theirs = dict(cell.cell.parallelism.axes), dict(other.cell.parallelism.axes)
    degrees = [(axis, mine.get(axis, 1), theirs.get(axis, 1)) for axis in _AXES]
    differing = [each for each in degrees if each[1] != each[2]]
    if not differing:
        return "", ()
    axis, own, others = next((each for each in differing if 1 in each), differing[0])
    variable = axis_variable(axis)
    test = f"-eq {own}" if own > 1 and others > 1 else "-gt 1" if own > 1 else "-le 1"
    return f'"${{{variable}:-1}}" {test}', (variable,)


def _shell_block(cell: Covered, recipe: Profile, against: Sequence[Conflict]) -> str:
    jobs = cell.best.job_ids if cell.best else ()
    of_jobs = f", jobs {', '.join(jobs)}" if jobs else ""
    comment = f"# {recipe.id}: measured on {cell.label}{of_jobs}\n"
    tests = " && ".join(dict.fromkeys(each.guard for each in against))
    lines = recipe_lines(recipe)
    return f"{comment}if [[ {tests} ]]; then\n{lines}fi\n" if tests else comment + lines


def _appended(text: str, block: str) -> str:
    ended = f"{text}\n" if text and not text.endswith("\n") else text
    return f"{ended}\n{block}" if ended else block


def _configured(
    after: dict[str, str], config: DeployedFile | None, cell: Covered, recipe: Profile, say: Say
) -> str:
    """Change the trainer's configuration in place; return why that is impossible, or ""."""
    if config is None:
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


def _ended(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


_SIGN = {VerdictKind.FASTER: 1, VerdictKind.SLOWER: -1}


def sign_flips(cells: Sequence[Covered], say: Say) -> tuple[Block, ...] | None:
    """Return the table of settings measured on several parallelisms; None with only one."""
    if len({each.cell.parallelism for each in cells}) < 2:  # noqa: PLR2004
        return None
    shown: dict[str, str] = {}
    found: dict[str, dict[str, Verdict]] = {}  # by the settings, then by the cell
    for cell in cells:
        for profile in cell.profiles:
            verdict = cell.conclusion.verdict(profile.id)
            if verdict is None or verdict.is_needless:
                continue
            if verdict.delta is not None or not verdict.can_run:
                key = _settings(profile)
                shown.setdefault(key, literal(profile.shown_text))
                found.setdefault(key, {}).setdefault(cell.cell_digest, verdict)
    rows = []
    for key, by_cell in found.items():
        if len({each.cell.parallelism for each in cells if each.cell_digest in by_cell}) > 1:
            figures = (_figures(by_cell.get(each.cell_digest)) for each in cells)
            rows.append((shown[key], *chain(*figures), _sign(list(by_cell.values()))))
    if not rows:
        return (say.text("No setting was measured on more than one parallelism."),)
    titles = ((f">{name}: delta %", "95 %", "~verdict") for name in names(cells).values())
    return (
        say.text(
            "These settings were measured on more than one parallelism. A flip is "
            "confirmed where both sides are confirmed; single runs of opposite sign "
            "prove nothing."
        ),
        Table(columns=columns("~Settings", *chain(*titles), "Sign"), rows=tuple(rows)),
    )


def _figures(verdict: Verdict | None) -> tuple[str, ...]:
    if verdict is None:
        return (ABSENT,) * 3
    return points(verdict.delta), interval(verdict.ci95), words(verdict)


def _settings(profile: Profile) -> str:
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
