"""Change settings in place in the texts of the files that deploy a cell. Pure.

The env file is a shell text. A setting is changed in place if the file has one plain assignment of
it; otherwise the caller appends the setting, because the last assignment counts. A variable is
plain if one line outside of blocks sets it to a text without expansions, and no other line mentions
it. A flag is plain if the file has it once, in an assignment to XLA_FLAGS that later assignments
extend. The shell is not parsed: in doubt, the setting is not plain.

The trainer's configuration is a YAML text. ruamel.yaml gives the position of each value, and only
the characters of a changed value are replaced. So comments, quotes, blanks and order are kept, and
a patch shows only the change. The changed text is parsed again as a check.
"""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML, MappingNode
from ruamel.yaml.error import YAMLError

from pytest_xlatune.model.channels import CHANNELS
from pytest_xlatune.model.profile import ALIASES, APPENDING, Flag, Flags
from pytest_xlatune.model.redact import HIDDEN
from pytest_xlatune.model.text import is_relative

# assignments:  export NCCL_ALGO=Ring  # as on the old fabric        export A='two words'
_ASSIGNED = re.compile(
    r"""(?P<head>export[ ]+(?P<name>[A-Za-z_][A-Za-z0-9_]*)=)
    (?P<value>[A-Za-z0-9_.,:/+@%^=-]*|'[^']*'|"[^"$`\\!]*")
    (?P<comment>[ \t]+\#.*|[ \t]*)""",
    re.VERBOSE,
)
# the start of an assignment of flags:  export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }--xla_a=1
_SETS_FLAGS = re.compile(r"export +XLA_FLAGS\+?=")
# the earlier flags:  $XLA_FLAGS   ${XLA_FLAGS}   ${XLA_FLAGS:+$XLA_FLAGS }   ${XLA_FLAGS:-}
_EARLIER_FLAGS = re.compile(
    r"\$XLA_FLAGS\b|\$\{XLA_FLAGS(?::?-)?\}|\$\{XLA_FLAGS:?\+(?:\$XLA_FLAGS|\$\{XLA_FLAGS\}) ?\}"
)
# a line that does nothing without its flags:  export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }"     \
# (A line without the earlier flags does something: it discards inherited flags.)
_SETS_NOTHING = re.compile(
    rf"""{_SETS_FLAGS.pattern}"?(?:{_EARLIER_FLAGS.pattern})\s*"?\s*|\s*\\?\s*"""
)
_UNQUOTED_VALUE = re.compile(r"[A-Za-z0-9_.,:/+-]*")  # means the same with quotes and without
# a line of a block, which may run in another order, more than once or never:  if [ $A ]; then
_BLOCK = re.compile(
    r"\s*(?:if|for|while|until|case|select|function|then|else|elif|do|fi|done|esac)\b|.*[{(]\s*$"
    r"|\s*[(){}]|.*(?:&&|\|\||<<)|.*;"
)
# lines that run another file or text:  source site.sh   . ./site.sh   eval "$MORE"   unset A
_RUNS_OTHER_TEXT = re.compile(
    r"\s*(?:source|\.|eval|unset|exec|exit|return|set|declare|typeset|local)\b|\s*\. "
)
# an escaped character, a text in quotes, or a comment, whichever starts first
_QUOTED_OR_COMMENT = re.compile(
    r"""\\.|\$'(?:\\.|[^'\\])*'|'[^']*'|"(?:\\.|[^"\\])*"|(?<![^\s;&|()])\#[^\n]*""", re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """An env file in which settings were changed.

    Attributes:
        text: the new text of the file.
        names: the names of the changed settings, flags with dashes.
        at: the number of the first changed line, from 0; None if no line was changed.
        flags, env: the settings that are not plain, which the caller has to append.
    """

    text: str
    names: tuple[str, ...]
    at: int | None
    flags: Flags
    env: dict[str, str]


def with_settings(
    text: str, flags: Flags, env: Mapping[str, str], *, drops: bool = False
) -> Changed:
    """Return an env file in which each plain setting has its new value.

    With `drops`, plain flags are removed, so that they get their defaults.
    """
    lines = text.split("\n")
    changed: set[int] = set()  # numbers of changed lines
    to_append_flags, to_append_env, names = list[Flag](), dict[str, str](), list[str]()
    is_simple = _is_simple(lines)
    for name, value in env.items():
        # a variable that holds flags keeps its deployed text, and the recipe is appended to it
        at = _line_of_variable(lines, name) if is_simple and name not in CHANNELS else None
        if at is None:
            to_append_env[name] = value
            continue
        match = _ASSIGNED.fullmatch(lines[at])
        comment = match["comment"] if match else ""
        head = match["head"] if match else ""
        lines[at] = f"{head}{shlex.quote(value)}{comment}"
        changed.add(at)
        names.append(name)
    for flag in flags:
        at = _line_of_flag(lines, flag, flags) if is_simple else None
        if at is None:
            to_append_flags.append(flag)
            continue
        written = f"--{flag.name}" if flag.value is None else f"--{flag.name}={flag.value}"
        before, after = _flag_pattern(flag.name).split(lines[at])
        lines[at] = f"{before.rstrip(' ')}{after}" if drops else f"{before}{written}{after}"
        changed.add(at)
        names.append(f"--{flag.name}")
    at = min((_first_line_of_command(lines, at) for at in changed), default=None)
    if drops:
        lines = [
            line
            for number, line in enumerate(lines)
            if number not in changed or not _SETS_NOTHING.fullmatch(line)
        ]
    return Changed(
        text="\n".join(lines),
        names=tuple(names),
        at=at,
        flags=tuple(to_append_flags),
        env=to_append_env,
    )


def _is_simple(lines: list[str]) -> bool:
    """Return whether no line runs another text or is in a block, so that lines run in order."""
    return not any(
        _BLOCK.match(line) or _RUNS_OTHER_TEXT.match(line) for line in _without_comments(lines)
    )


def _without_comments(lines: list[str]) -> list[str]:
    code = _QUOTED_OR_COMMENT.sub(
        lambda part: "" if part[0].startswith("#") else part[0], "\n".join(lines)
    )
    return [line.rstrip() for line in code.split("\n")]


def _line_of_variable(lines: list[str], name: str) -> int | None:
    """Return the number of the line that plainly assigns a variable; None if no line does."""
    mentions = [
        at
        for at, line in enumerate(_without_comments(lines))
        if re.search(rf"(?<!\w){name}(?!\w)", line)
    ]
    if len(mentions) != 1:
        return None
    at = mentions[0]
    match = _ASSIGNED.fullmatch(lines[at])
    is_assignment = match is not None and match["name"] == name and HIDDEN not in lines[at]
    return at if is_assignment and not _is_inside(lines, at) else None


def _flag_pattern(name: str) -> re.Pattern[str]:
    """Return the pattern of a flag in a text of flags, with a value that needs no quotes."""
    value = _UNQUOTED_VALUE.pattern
    return re.compile(rf"""(?<=[\s"'=}}])--{re.escape(name)}(?:={value})?(?=[\s"'\\]|$)""")


def _line_of_flag(lines: list[str], flag: Flag, recipe: Flags) -> int | None:
    """Return the number of the line with a plain flag; None if another line may decide its value.

    `recipe` has all flags of the recipe: a flag that it has twice is not plain.
    """
    if (
        flag.name in APPENDING
        or is_relative(flag.value or "")
        or not _UNQUOTED_VALUE.fullmatch(flag.value or "")
        or sum(other.name == flag.name for other in recipe) > 1
    ):
        return None
    flag_names = {flag.name}
    for alias, name in ALIASES.items():
        if flag.name in (alias, name):
            flag_names |= {alias, name}
    code = _without_comments(lines)
    any_name = re.compile(rf"(?:{'|'.join(map(re.escape, flag_names))})(?![A-Za-z0-9_-])")
    mentions = [at for at, line in enumerate(code) for _ in any_name.findall(line)]
    if len(mentions) != 1:
        return None
    at = mentions[0]
    begin = _first_line_of_command(lines, at)
    command = "\n".join(code[begin : at + 1])
    pattern = _flag_pattern(flag.name)
    is_plain = (
        _SETS_FLAGS.match(command) is not None
        and _is_one_assignment(command)
        and len(pattern.findall(command)) == 1
        and HIDDEN not in command
        and not _is_inside(lines, begin)
    )
    if not is_plain:
        return None
    # two conditions: in its assignment, the flag comes after the earlier flags; and no later
    # assignment discards it
    after_flag = pattern.split(command)[1]
    is_last = not _EARLIER_FLAGS.search(after_flag) and not _expands_more(command)
    later = [line for line in code[at + 1 :] if "XLA_FLAGS" in line]
    is_kept = all(
        _SETS_FLAGS.match(line)
        and not _expands_more(line)
        and "'" not in line
        and ("+=" in line or _EARLIER_FLAGS.search(line))
        for line in later
    )
    earlier = [line for line in code[:begin] if "XLA_FLAGS" in line]
    return at if is_last and is_kept and all(map(_SETS_FLAGS.match, earlier)) else None


def _is_one_assignment(command: str) -> bool:
    """Return whether `export` is followed by one word; its quotes may end on a later line."""
    for quote in ("", '"', "'"):
        with suppress(ValueError):  # another quote is open
            _, _, *more_words = shlex.split(command.rstrip("\\") + quote)
            return not more_words
    return False


def _expands_more(command: str) -> bool:
    """Return whether the shell expands something other than earlier flags in a command."""
    return bool(re.search(r"[$`]", _EARLIER_FLAGS.sub("", command)))


def _first_line_of_command(lines: list[str], at: int) -> int:
    """Return the number of the line where the command in line `at` begins.

    A command continues after a line that ends with a backslash.
    """
    while at and lines[at - 1].endswith("\\") and not lines[at - 1].lstrip().startswith("#"):
        at -= 1
    return at


def _is_inside(lines: list[str], at: int) -> bool:
    """Return whether a line may be within quotes, or may continue the command before it."""
    unquoted = _QUOTED_OR_COMMENT.sub("", "\n".join(lines[:at]))
    return "'" in unquoted or '"' in unquoted or _first_line_of_command(lines, at) != at


# scalars that YAML reads without quotes:  false   0.5   minimal_flash
_PLAIN_SCALAR = re.compile(r"[A-Za-z0-9_.+/][A-Za-z0-9_.+/-]*|-[0-9.][A-Za-z0-9_.+/-]*")
_SEVERAL_LINES = "(several lines)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A key at the top level of a configuration.

    Attributes:
        key: the name of the key.
        value: the text of a scalar without quotes, "" if it is empty; None for a list or a table.
        written: the value as the file has it, in one line; `(several lines)` for a block.
        at: the start and the end of the value in the text; None if the value cannot be replaced,
            because it has several lines, or because it is an alias or has an anchor.
    """

    key: str
    value: str | None
    written: str
    at: tuple[int, int] | None


def settings_of(text: str) -> tuple[Setting, ...] | None:
    """Return the keys at the top level of a YAML text, in order; None if it is not a YAML table."""
    try:
        root = YAML().compose(io.StringIO(text))
    except YAMLError:
        return None
    if root is None:
        return ()
    if not isinstance(root, MappingNode):
        return None
    return tuple(_setting(text, key, value) for key, value in root.value)


def values_of(text: str) -> dict[str, str]:
    """Return key -> scalar for the top level of a YAML text."""
    settings = settings_of(text) or ()
    return {setting.key: setting.value for setting in settings if setting.value is not None}


def with_value(text: str, key: str, value: str) -> str | None:
    """Return a YAML text with a key at the top level set; None if its value cannot be replaced."""
    before = settings_of(text)
    if before is None:
        return None
    written = value if _PLAIN_SCALAR.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    with_key = [setting for setting in before if setting.key == key]
    if not with_key:
        whole_lines = text if not text or text.endswith("\n") else f"{text}\n"
        new_text = f"{whole_lines}{key}: {written}\n"
    elif len(with_key) == 1 and with_key[0].at is not None:
        start, end = with_key[0].at
        blank = " " if text[start - 1] == ":" else ""
        new_text = f"{text[:start]}{blank}{written}{text[end:]}"
    else:
        return None
    expected = {setting.key: setting.value for setting in before} | {key: value}
    after = {setting.key: setting.value for setting in settings_of(new_text) or ()}
    return new_text if after == expected else None


def _setting(text: str, key: Any, node: Any) -> Setting:
    start, end = node.start_mark.index, node.end_mark.index
    if start == end:  # ruamel.yaml gives an empty value the position of the next key
        start = end = text.find(":", key.end_mark.index) + 1
    is_scalar = isinstance(node.value, str)
    is_block = not is_scalar and not node.flow_style
    # the node of an alias is the node that it refers to, which is earlier in the text
    is_alias = start < key.end_mark.index
    is_one_line = is_scalar and "\n" not in text[start:end]
    return Setting(
        key=str(key.value),
        value=node.value if is_scalar else None,
        written=_SEVERAL_LINES if is_block else " ".join(text[start:end].split()),
        at=(start, end) if is_one_line and not is_alias and not node.anchor else None,
    )
