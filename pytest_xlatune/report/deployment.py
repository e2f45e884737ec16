"""Make the patch for `git apply` that deploys the recipe of each cell.

A setting is changed in place if the env file has one plain assignment of it. Otherwise it is
appended, because the last assignment counts. A key of the trainer's configuration is changed in
place. If a recipe must not reach another cell, its lines are always appended, in a guard that reads
the parallelism or the configuration, and a comment says where the recipe is not verified. A line
with a hidden secret cannot be context in the patch, because it would not match the file.
"""

from __future__ import annotations

import difflib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from msgspec.structs import replace

from pytest_xlatune.model.cell import DeployedFile
from pytest_xlatune.model.profile import NO_ENV_ID, Profile, shell_exports
from pytest_xlatune.model.redact import HIDDEN, is_secret
from pytest_xlatune.report._deployed_files import values_of, with_settings, with_value
from pytest_xlatune.report.document import Block, Code, Text
from pytest_xlatune.report.guards import Conflict, conflicts, guard_against
from pytest_xlatune.report.language import ENGLISH, Translator
from pytest_xlatune.report.lines import effect_words
from pytest_xlatune.report.measured_cell import MeasuredCell
from pytest_xlatune.report.recipes import recipe_remarks

_CONTEXT = 3  # lines of context in a diff; fewer if one of them is hidden
# paths that a diff can name without quotes
_PATH = re.compile(r"[A-Za-z0-9._+/@-]+")
# variables of the environment:  XLA_PYTHON_CLIENT_MEM_FRACTION
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
# the blank between two settings:  per_device_batch_size=8 remat_policy=full
_NEXT_SETTING = re.compile(r" (?=[A-Za-z_][\w.]*=)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """The text for `git apply`.

    Attributes:
        text: the patch; "" if there is none.
        paths: the paths of the files that it changes.
        missing: digest of a cell -> why the patch lacks its recipe, or a part of it.
    """

    text: str
    paths: tuple[str, ...] = ()
    missing: Mapping[str, str]


def patch_of(cells: Sequence[MeasuredCell], say: Translator = ENGLISH) -> Patch:
    """Return the patch that deploys every recipe that files can deploy.

    `say` writes the reasons for the recipes that are not in it.
    """
    missing: dict[str, str] = {}
    # path -> the file, as recorded by the newest sweep that read it
    latest = {
        file.path: file
        for cell in sorted(cells, key=lambda cell: cell.written_s)
        for file in cell.files
    }
    new_texts = {path: file.text for path, file in latest.items()}
    deployed = []
    for cell in cells:
        recipe = cell.recipe
        if recipe is None:
            continue
        against = conflicts(cell, cells)
        shell = next((file for file in cell.files if file.is_shell), None)
        config = next((file for file in cell.files if not file.is_shell), None)
        has_lines = bool(recipe.flags or recipe.env)
        why = _why_not(cell, recipe, against, latest, say)
        if not why:
            if shell is not None and has_lines:
                new_texts[shell.path] = _with_recipe(new_texts[shell.path], cell, recipe, against)
            if recipe.overrides:
                why = _set_keys(new_texts, config, cell, recipe, say)
            if has_lines or not why:
                deployed.append(cell.cell_digest)
        if why:
            missing[cell.cell_digest] = why
    diffs = {
        path: diff(file, new_texts[path])
        for path, file in latest.items()
        if new_texts[path] != file.text
    }
    if None in diffs.values():
        why = say("the lines around the change hold a secret, or a diff cannot name its path")
        return Patch(text="", missing={**missing, **dict.fromkeys(deployed, why)})
    text = "".join(filter(None, diffs.values()))
    return Patch(text=text, paths=tuple(diffs), missing=missing)


def _why_not(
    cell: MeasuredCell,
    recipe: Profile,
    against: Sequence[Conflict],
    latest: Mapping[str, DeployedFile],
    say: Translator,
) -> str:
    """Return why the files of a cell cannot deploy its recipe; "" if they can."""
    if not all(conflict.guard for conflict in against):
        return say("no variable tells the conflicting cells apart")
    if (recipe.flags or recipe.env) and not any(file.is_shell for file in cell.files):
        return say("the sweep did not record the env file that deploys the cell")
    if any(latest[file.path].text != file.text for file in cell.files):
        return say("a file that deploys the cell has changed since")
    if any(conflict.is_in_config for conflict in against):
        return say("a configuration file has no guard that keeps the recipe from others")
    return ""


def recommended_patch(cell: MeasuredCell) -> str:
    """Return the patch for the setting that a finished study recommends; "" if there is none."""
    setting = cell.conclusion.facts.setting
    return patch_of_setting(cell.files, setting) if setting and cell.conclusion.complete else ""


def patch_of_setting(files: Sequence[DeployedFile], setting: str) -> str:
    """Return the patch that deploys a setting `key=value`; "" if no file has to change.

    Several settings are `key=value key=value`; if one of them cannot be deployed, there is no
    patch. A name in capitals is a variable of the env file, and any other name is a key of the
    configuration.
    """
    texts: dict[DeployedFile, str] = {}
    for assignment in _NEXT_SETTING.split(setting):
        key, _, value = assignment.partition("=")
        is_variable = _VARIABLE.fullmatch(key) is not None
        file = next((file for file in files if file.is_shell is is_variable), None)
        if file is None or not value:
            return ""
        before = texts.get(file, file.text)
        after = _with_setting(before, key, value) if is_variable else _with_key(before, key, value)
        if after is None:
            return ""
        texts[file] = after
    return "".join(diff(file, text) or "" for file, text in texts.items() if text != file.text)


def _with_setting(text: str, key: str, value: str) -> str:
    changed = with_settings(text, (), {key: value})
    exports = shell_exports((), changed.env)
    return _appended(changed.text, exports) if exports else changed.text


def _with_key(text: str, key: str, value: str) -> str | None:
    written = values_of(text).get(key)
    with suppress(ValueError):
        if written and float(written) == float(value):
            return text
    return with_value(text, key, value)


def recipe_lines(recipe: Profile) -> str:
    """Return the shell lines that a recipe appends, without a guard; "" if there are none."""
    shown = {name: value for name, value in recipe.env.items() if not is_secret(name)}
    secret = (
        f"# {name}: set it yourself, its value is secret\n"
        for name in recipe.env
        if is_secret(name)
    )
    return shell_exports(recipe.flags, shown) + "".join(secret)


def guarded_lines(recipe: Profile, against: Sequence[Conflict]) -> str:
    """Return the shell lines that a recipe appends, with the guard that they need."""
    lines, guard = recipe_lines(recipe), guard_against(against)
    return f"if [[ {guard} ]]; then\n{lines}fi\n" if guard and lines else lines


def deployed_by_hand(
    recipe: Profile, lines: str, head: Text, say: Translator = ENGLISH
) -> Iterator[Block]:
    """Yield the shell lines below their heading, and the trainer's keys that a recipe sets."""
    if lines:
        yield head
        yield Code(text=lines, language="bash")
    if recipe.overrides:
        yield say.text("Give these keys to the trainer:")
        yield Code(text="\n".join(f"{key}={value}" for key, value in recipe.overrides.items()))


def diff(file: DeployedFile, after: str) -> str | None:
    """Return the unified diff of a file whose text becomes `after`; None if git would refuse it."""
    if not _PATH.fullmatch(file.path) or ".." in file.path.split("/"):
        return None
    head = f"diff --git a/{file.path} b/{file.path}\n"
    if file.is_new:
        head += "new file mode 100644\n"
    # split as git does, only at line feeds
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
            return head + "".join(map(_with_line_feed, lines))
    return None


def _with_recipe(
    text: str, cell: MeasuredCell, recipe: Profile, against: Sequence[Conflict]
) -> str:
    """Return the text of an env file with a recipe, and comments on where it is not verified."""
    if guard_against(against):
        comment = _recipe_comment(cell, recipe, against)
        return _appended(text, comment + guarded_lines(recipe, against))
    shown = {name: value for name, value in recipe.env.items() if not is_secret(name)}
    # Lines are changed in place: if the opposite value were appended, the old line and the comment
    # above it would stay.
    is_default = recipe.id == NO_ENV_ID
    changed = with_settings(text, recipe.flags, shown, drops=is_default)
    secret = {name: value for name, value in recipe.env.items() if is_secret(name)}
    lines = recipe_lines(replace(recipe, flags=changed.flags, env={**changed.env, **secret}))
    comment = _recipe_comment(cell, recipe, against)
    if is_default and changed.names:
        comment += f"# taken out, so at their defaults: {', '.join(changed.names)}\n"
    if lines or changed.at is None:
        return _appended(changed.text, comment + lines)
    all_lines = changed.text.split("\n")
    all_lines[changed.at : changed.at] = comment.splitlines()
    return "\n".join(all_lines)


def _recipe_comment(cell: MeasuredCell, recipe: Profile, against: Sequence[Conflict]) -> str:
    """Return the comment on a recipe: where it was measured, its parts, and where not to use it."""
    job_ids = cell.best.job_ids if cell.best else ()
    jobs = f", jobs {', '.join(job_ids)}" if job_ids else ""
    remarks = [f"{recipe.id}: measured on {cell.label}{jobs}"]
    remarks += recipe_remarks(cell.conclusion)
    if cell.best is not None and cell.best.effect is not None:
        remarks.append(f"its settings in every trial: {effect_words(cell.best)}")
    remarks += [conflict.remark for conflict in against]
    return "".join(f"# {remark}\n" for remark in remarks)


def _appended(text: str, block: str) -> str:
    """Return a text with a block after it, separated by a blank line."""
    whole_lines = f"{text}\n" if text and not text.endswith("\n") else text
    return f"{whole_lines}\n{block}" if whole_lines else block


def _set_keys(
    texts: dict[str, str],
    config: DeployedFile | None,
    cell: MeasuredCell,
    recipe: Profile,
    say: Translator,
) -> str:
    """Set the recipe's keys in the entry of `config` in `texts`; return why that fails, or ""."""
    if config is None:
        return say("the sweep did not record the trainer's configuration file")
    overridden = [key for key in recipe.overrides if key in cell.cell.overrides]
    if overridden:
        return say(
            "the sweep itself gives {key} to the trainer, so a file cannot", key=overridden[0]
        )
    text = texts[config.path]
    for key, value in recipe.overrides.items():
        if is_secret(key):
            return say("the value of {key} is secret", key=key)
        changed = with_value(text, key, value)
        if changed is None:
            return say("{key} has no single value in {path}", key=key, path=config.path)
        text = changed
    texts[config.path] = text
    return ""


def _with_line_feed(line: str) -> str:
    """Return a line of a diff with a line feed, and with git's marker if it had none."""
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
