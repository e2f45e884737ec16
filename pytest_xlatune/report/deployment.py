"""Make the patch for `git apply` that deploys the recipe of each cell.

A setting changes in place if each line of the env file is blank, a comment or an `export NAME=...`,
and if the one line that mentions the setting is plain. Any other setting is appended, because the
last assignment counts. The shell is not parsed. If a recipe must not reach another cell, its lines
are always appended, in a guard that reads the parallelism or the configuration, and a comment says
where the recipe is not verified. A line with a hidden secret cannot be context in the patch,
because it would not match the file. Keys of the trainer are in no patch.
"""

from __future__ import annotations

import difflib
import io
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from pytest_xlatune.model.cell import DeployedFile
from pytest_xlatune.model.channels import CHANNELS
from pytest_xlatune.model.profile import (
    ALIASES,
    APPENDING,
    BASELINE_ID,
    NO_ENV_ID,
    Flag,
    Profile,
    shell_exports,
)
from pytest_xlatune.model.redact import HIDDEN, is_secret
from pytest_xlatune.model.result import RecipePart
from pytest_xlatune.model.text import counted, is_relative, percent
from pytest_xlatune.report.document import Block, Code, Text
from pytest_xlatune.report.guards import Conflict, conflicts, guard_against
from pytest_xlatune.report.language import ENGLISH, Translator
from pytest_xlatune.report.lines import effect_words
from pytest_xlatune.report.measured_cell import MeasuredCell

_CONTEXT = 3  # lines of context in a diff; fewer if one of them is hidden
# paths that a diff can name without quotes
_PATH = re.compile(r"[A-Za-z0-9._+/@-]+")
# export NCCL_ALGO=Ring  # as on the old fabric
# export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_a=1 --xla_b=2"
_EXPORT = re.compile(
    r"""(?P<head>export[ ]+(?P<name>[A-Za-z_][A-Za-z0-9_]*)=)
    (?P<value>[A-Za-z0-9_.,:/+@%^=-]*|'[^']*'
    |"(?P<earlier>\$XLA_FLAGS[ ]|\$\{XLA_FLAGS:\+\$XLA_FLAGS[ ]\})?[^"$`\\!]*")
    (?P<comment>[ \t]+\#.*|[ \t]*)""",
    re.VERBOSE,
)
# export PATH=$HOME/bin:$PATH     export LD_LIBRARY_PATH="/opt/rocm/lib:${LD_LIBRARY_PATH:-}"
_OTHER_EXPORT = re.compile(
    r"""export[ ]+[A-Za-z_]\w*=(?:[A-Za-z0-9_.,:/+@%^={}$-]*|"[^"`\\(]*")(?:[ \t]+\#.*|[ \t]*)"""
)
# an export without flags, which does nothing:  export XLA_FLAGS="$XLA_FLAGS "
_SETS_NOTHING = re.compile(
    r'export +XLA_FLAGS="(?:\$XLA_FLAGS|\$\{XLA_FLAGS:\+\$XLA_FLAGS \}) *"[ \t]*(?:#.*)?'
)
_UNQUOTED_VALUE = re.compile(r"[A-Za-z0-9_.,:/+-]*")  # means the same with quotes and without


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """The text for `git apply`.

    Attributes:
        text: the patch; "" if there is none.
        paths: the paths of the files that it changes.
        missing: digest of a cell -> why the patch lacks its recipe.
    """

    text: str
    paths: tuple[str, ...] = ()
    missing: Mapping[str, str]


def patch_of(cells: Sequence[MeasuredCell], say: Translator = ENGLISH) -> Patch:
    """Return the patch that deploys every recipe that env files can deploy.

    `say` writes the reasons for the recipes that are not in it.
    """
    # path -> the env file, as recorded by the newest sweep that read it
    latest = {
        file.path: file
        for cell in sorted(cells, key=lambda cell: cell.written_s)
        if (file := cell.env_file) is not None
    }
    new_texts = {path: file.text for path, file in latest.items()}
    missing, deployed = dict[str, str](), list[str]()
    for cell in cells:
        recipe, file, against = cell.recipe, cell.env_file, conflicts(cell, cells)
        if recipe is None or not (recipe.flags or recipe.env):
            continue
        if not all(conflict.guard for conflict in against):
            why = say("no variable tells the conflicting cells apart")
        elif file is None:
            why = say("the sweep did not record the env file that deploys the cell")
        elif latest[file.path].text != file.text:
            why = say("a file that deploys the cell has changed since")
        else:
            new_texts[file.path] = _with_recipe(new_texts[file.path], cell, recipe, against)
            deployed.append(cell.cell_digest)
            continue
        missing[cell.cell_digest] = why
    diffs = {
        path: diff(file, new_texts[path])
        for path, file in latest.items()
        if new_texts[path] != file.text
    }
    if None in diffs.values():
        why = say("the lines around the change hold a secret, or a diff cannot name its path")
        return Patch(text="", missing={**missing, **dict.fromkeys(deployed, why)})
    return Patch(text="".join(filter(None, diffs.values())), paths=tuple(diffs), missing=missing)


def guarded_lines(recipe: Profile, against: Sequence[Conflict]) -> str:
    """Return the shell lines that a recipe appends, with the guard that they need."""
    shown = {name: value for name, value in recipe.env.items() if not is_secret(name)}
    secrets = (name for name in recipe.env if is_secret(name))
    lines = shell_exports(recipe.flags, shown)
    lines += "".join(f"# {name}: set it yourself, its value is secret\n" for name in secrets)
    guard = guard_against(against)
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
    old_name = "/dev/null" if file.is_new else f"a/{file.path}"
    # split as git does, only at line feeds
    old, new = list(io.StringIO(file.text)), list(io.StringIO(after))
    for context in range(_CONTEXT, -1, -1):
        lines = list(difflib.unified_diff(old, new, old_name, f"b/{file.path}", n=context))
        is_hidden = any(HIDDEN in line for line in lines if line[0] in " -")
        # git refuses a hunk without context, unless the file was empty
        if not is_hidden and (context or not file.text):
            return head + "".join(map(_with_line_feed, lines))
    return None


def _with_line_feed(line: str) -> str:
    """Return a line of a diff with a line feed, and with git's marker if it had none."""
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _with_recipe(
    text: str, cell: MeasuredCell, recipe: Profile, against: Sequence[Conflict]
) -> str:
    """Return the text of an env file with a recipe, and comments on where it is not verified."""
    comment = _recipe_comment(cell, recipe, against)
    lines, changed, names, rest = text.split("\n"), list[int](), list[str](), recipe
    if not guard_against(against):
        changed, names, rest = _change_in_place(lines, recipe)
    # the opposite of a default is no setting: it was taken out, and its line may be gone
    if recipe.id == NO_ENV_ID and names:
        comment += f"# taken out, so at their defaults: {', '.join(names)}\n"
    if changed and not (rest.flags or rest.env):
        lines[changed[0] : changed[0]] = comment.splitlines()
        return "\n".join(lines)
    before = "\n".join(lines)
    block = comment + guarded_lines(rest, against)
    if not before:
        return block
    return f"{before}\n{block}" if before.endswith("\n") else f"{before}\n\n{block}"


def _change_in_place(lines: list[str], recipe: Profile) -> tuple[list[int], list[str], Profile]:
    """Set the plain settings of a recipe in the lines of an env file.

    Flags of the recipe that restores defaults are removed. If the opposite value were appended, the
    old line and the comment above it would stay.

    Returns the numbers of the changed lines, in order, the names of their settings, flags with
    dashes, and the recipe without these settings.
    """
    exports = _plain_exports(lines)
    changed, names = list[int](), list[str]()
    flags, env = list[Flag](), dict[str, str]()
    for name, value in recipe.env.items():
        # a variable that holds flags keeps its deployed text, and the recipe is appended to it
        if name in CHANNELS or name not in exports or is_secret(name):
            env[name] = value
            continue
        match = exports[name]
        at = lines.index(match.string)
        lines[at] = f"{match['head']}{shlex.quote(value)}{match['comment']}"
        changed.append(at)
        names.append(name)
    at = lines.index(exports["XLA_FLAGS"].string) if "XLA_FLAGS" in exports else -1
    drops = recipe.id == NO_ENV_ID
    for flag in recipe.flags:
        is_once = [other.name for other in recipe.flags].count(flag.name) == 1
        line = _with_flag(lines[at], flag, drops=drops) if at >= 0 and is_once else None
        if line is None:
            flags.append(flag)
            continue
        lines[at] = line
        changed.append(at)
        names.append(f"--{flag.name}")
    if drops and at in changed and _SETS_NOTHING.fullmatch(lines[at]):
        del lines[at]
    return sorted(changed), names, replace(recipe, flags=tuple(flags), env=env)


def _plain_exports(lines: list[str]) -> dict[str, re.Match[str]]:
    """Return variable -> the one line that mentions it, a plain export.

    {} if a line of the file does something else than export variables.
    """
    exports: dict[str, re.Match[str]] = {}
    others = list[str]()
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _EXPORT.fullmatch(line)
        is_plain = match is not None and (not match["earlier"] or match["name"] == "XLA_FLAGS")
        if match is not None and is_plain and match["name"] not in exports:
            exports[match["name"]] = match
        elif _OTHER_EXPORT.fullmatch(line):
            others.append(line)
        else:
            return {}
    mentioned = set(re.findall(r"\w+", " ".join(others)))
    return {name: match for name, match in exports.items() if name not in mentioned}


def _with_flag(line: str, flag: Flag, *, drops: bool) -> str | None:
    """Return the export of XLA_FLAGS with another value of a flag, or without the flag.

    None if the line does not have the flag exactly once, or if its values add up.
    """
    is_added = flag.name in APPENDING or is_relative(flag.value or "")
    if is_added or not _UNQUOTED_VALUE.fullmatch(flag.value or ""):
        return None
    aliases = {name for pair in ALIASES.items() if flag.name in pair for name in pair}
    any_name = "|".join(map(re.escape, {flag.name, *aliases}))
    if len(re.findall(rf"--(?:{any_name})(?![A-Za-z0-9_-])", line)) != 1:
        return None
    pattern = rf"""(?<=[\s"'=}}])--{flag.name}(?:={_UNQUOTED_VALUE.pattern})?(?=[\s"']|$)"""
    before, *rest = re.split(pattern, line)
    if not rest:
        return None
    return f"{before}{rest[0].lstrip(' ')}" if drops else f"{before}{flag}{rest[0]}"


def _recipe_comment(cell: MeasuredCell, recipe: Profile, against: Sequence[Conflict]) -> str:
    """Return the comment on a recipe: where it was measured, its parts, and where not to use it."""
    job_ids = cell.best.job_ids if cell.best else ()
    jobs = f", jobs {', '.join(job_ids)}" if job_ids else ""
    remarks = [f"{recipe.id}: measured on {cell.label}{jobs}"]
    parts = cell.conclusion.tuning.recipe
    remarks += map(_part_remark, parts.parts if parts is not None else ())
    if cell.best is not None and cell.best.effect is not None:
        remarks.append(f"its settings in every trial: {effect_words(cell.best)}")
    remarks += [conflict.remark for conflict in against]
    return "".join(f"# {remark}\n" for remark in remarks)


def _part_remark(part: RecipePart) -> str:
    remark = f"{', '.join(part.settings)}: {part.need}"
    if part.gain is not None:
        against = "" if part.without == BASELINE_ID else f" against {part.without}"
        blocks = f", {counted(part.n, 'block')}" if part.n else ""
        remark += f" ({percent(part.gain)}{against}{blocks})"
    return remark
