"""Change settings in the texts of the files that deploy a cell, where those set them. Pure.

The env file is a shell text. A setting is changed in place if the file has one plain assignment of
it; else the caller appends the setting, because the last assignment counts. Plain is a variable
that one line sets to a text without expansions, outside of blocks, and that the file mentions
nowhere else. Plain is also a flag that the file has once, in an assignment to XLA_FLAGS that later
ones keep. The shell is not parsed: if this module is not sure, the caller appends.

The trainer's configuration is a YAML text. ruamel.yaml gives the position of each value, and only
the characters of a changed value are replaced. So comments, quotes, blanks and order are kept, and
a patch shows only the change. The result is read again before it is returned.
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
_OF_FLAGS = re.compile(r"export +XLA_FLAGS\+?=")
# the flags so far:  $XLA_FLAGS   ${XLA_FLAGS}   ${XLA_FLAGS:+$XLA_FLAGS }   ${XLA_FLAGS:-}
_SO_FAR = re.compile(
    r"\$XLA_FLAGS\b|\$\{XLA_FLAGS(?::?-)?\}|\$\{XLA_FLAGS:?\+(?:\$XLA_FLAGS|\$\{XLA_FLAGS\}) ?\}"
)
# what is left of a line without its flags:  export XLA_FLAGS="${XLA_FLAGS:+$XLA_FLAGS }"     \
# (A line without the flags so far matters: it discards what the trainer would inherit.)
_SETS_NOTHING = re.compile(rf"""{_OF_FLAGS.pattern}"?(?:{_SO_FAR.pattern})\s*"?\s*|\s*\\?\s*""")
_SAFE = re.compile(r"[A-Za-z0-9_.,:/+-]*")  # needs no quotes, within quotes or without
# lines of a block may run in another order, more than once or never
_BLOCK = re.compile(
    r"\s*(?:if|for|while|until|case|select|function|then|else|elif|do|fi|done|esac)\b|.*[{(]\s*$"
    r"|\s*[(){}]|.*(?:&&|\|\||<<)|.*;"
)
# lines that run another file or text:  source site.sh   . ./site.sh   eval "$MORE"   unset A
_RUNS = re.compile(
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
        text: the text of the file.
        names: the names of the changed settings, as people write them.
        at: the number of the first changed line, from 0; None if no line was changed.
        flags, env: the settings that the caller has to append.
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

    With `drops` the flags get their defaults, so plain ones are removed.
    """
    lines = text.split("\n")
    changed: set[int] = set()
    left_flags, left_env, names = list[Flag](), dict[str, str](), list[str]()
    is_plain = _is_simple(lines)
    for name, value in env.items():
        # the deployed text of a variable of flags is kept, and the recipe is appended to it
        at = _variable(lines, name) if is_plain and name not in CHANNELS else None
        if at is None:
            left_env[name] = value
            continue
        match = _ASSIGNED.fullmatch(lines[at])
        comment = match["comment"] if match else ""
        head = match["head"] if match else ""
        lines[at] = f"{head}{shlex.quote(value)}{comment}"
        changed.add(at)
        names.append(name)
    for flag in flags:
        at = _flag(lines, flag, flags) if is_plain else None
        if at is None:
            left_flags.append(flag)
            continue
        written = f"--{flag.name}" if flag.value is None else f"--{flag.name}={flag.value}"
        before, after = _token(flag.name).split(lines[at])
        left = f"{before.rstrip(' ')}{after}" if drops else f"{before}{written}{after}"
        lines[at] = left
        changed.add(at)
        names.append(f"--{flag.name}")
    at = min((_begin(lines, at) for at in changed), default=None)
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
        flags=tuple(left_flags),
        env=left_env,
    )


def _is_simple(lines: list[str]) -> bool:
    """Return whether no line runs another file or is in a block, so that the last line decides."""
    return not any(_BLOCK.match(line) or _RUNS.match(line) for line in _code(lines))


def _code(lines: list[str]) -> list[str]:
    """Return the lines without their comments."""
    code = _QUOTED_OR_COMMENT.sub(
        lambda part: "" if part[0].startswith("#") else part[0], "\n".join(lines)
    )
    return [line.rstrip() for line in code.split("\n")]


def _variable(lines: list[str], name: str) -> int | None:
    """Return the number of the line that sets a variable; None if other lines mention it too."""
    speaks = [
        at for at, line in enumerate(_code(lines)) if re.search(rf"(?<!\w){name}(?!\w)", line)
    ]
    if len(speaks) != 1:
        return None
    at = speaks[0]
    match = _ASSIGNED.fullmatch(lines[at])
    is_own = match is not None and match["name"] == name and HIDDEN not in lines[at]
    return at if is_own and not _is_inside(lines, at) else None


def _token(name: str) -> re.Pattern[str]:
    """Return the pattern for a flag in a text of flags, with a value that needs no quotes."""
    return re.compile(rf"""(?<=[\s"'=}}])--{re.escape(name)}(?:={_SAFE.pattern})?(?=[\s"'\\]|$)""")


def _flag(lines: list[str], flag: Flag, recipe: Flags) -> int | None:
    """Return the number of the line with a flag; None if another line may decide its value."""
    if (
        flag.name in APPENDING
        or is_relative(flag.value or "")
        or not _SAFE.fullmatch(flag.value or "")
        or sum(other.name == flag.name for other in recipe) > 1
    ):
        return None
    same = {flag.name}
    for alias, name in ALIASES.items():
        same |= {alias, name} if flag.name in (alias, name) else set()
    code = _code(lines)
    spoken = re.compile(rf"(?:{'|'.join(map(re.escape, same))})(?![A-Za-z0-9_-])")
    speaks = [at for at, line in enumerate(code) for _ in spoken.findall(line)]
    if len(speaks) != 1:
        return None
    at = speaks[0]
    begin = _begin(lines, at)
    command = "\n".join(code[begin : at + 1])
    token = _token(flag.name)
    is_plain = (
        _OF_FLAGS.match(command) is not None
        and _is_one_assignment(command)
        and len(token.findall(command)) == 1
        and HIDDEN not in command
        and not _is_inside(lines, begin)
    )
    if not is_plain:
        return None
    # the flags so far come before it, and nothing later removes it
    after = token.split(command)[1]
    behind = [line for line in code[at + 1 :] if "XLA_FLAGS" in line]
    is_last = not _SO_FAR.search(after) and not _expands(command)
    is_kept = all(
        _OF_FLAGS.match(line)
        and not _expands(line)
        and "'" not in line
        and ("+=" in line or _SO_FAR.search(line))
        for line in behind
    )
    others = [line for line in code[:begin] if "XLA_FLAGS" in line]
    return at if is_last and is_kept and all(map(_OF_FLAGS.match, others)) else None


def _is_one_assignment(command: str) -> bool:
    """Return whether `export` is followed by one word; its quotes may end on a later line."""
    for end in ("", '"', "'"):
        with suppress(ValueError):  # a quotation is not closed
            _, _, *more = shlex.split(command.rstrip("\\") + end)
            return not more
    return False


def _expands(command: str) -> bool:
    """Return whether the shell expands more in a command than the flags so far."""
    return bool(re.search(r"[$`]", _SO_FAR.sub("", command)))


def _begin(lines: list[str], at: int) -> int:
    """Return the first line of the command that a line belongs to, across ends with a backslash."""
    while at and lines[at - 1].endswith("\\") and not lines[at - 1].lstrip().startswith("#"):
        at -= 1
    return at


def _is_inside(lines: list[str], at: int) -> bool:
    """Return whether a line may be within quotes, or may continue the command before it."""
    left = _QUOTED_OR_COMMENT.sub("", "\n".join(lines[:at]))
    return "'" in left or '"' in left or _begin(lines, at) != at


# scalars that YAML reads without quotes:  false   0.5   minimal_flash
_PLAIN = re.compile(r"[A-Za-z0-9_.+/][A-Za-z0-9_.+/-]*|-[0-9.][A-Za-z0-9_.+/-]*")
_SEVERAL = "(several lines)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A key at the top level of a configuration.

    Attributes:
        key: the name of the key.
        value: the text of a scalar without quotes, "" if it is empty; None for a list or a table.
        written: the setting as the file has it, in one line.
        at: the start and the end of the value in the text; None if the value has several lines, or
            if other keys refer to it.
    """

    key: str
    value: str | None
    written: str
    at: tuple[int, int] | None


def settings_of(text: str) -> tuple[Setting, ...] | None:
    """Return the keys at the top level of a YAML text, in order; None if it is no YAML table."""
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
    """Return a YAML text with a key at the top level set; None if the key has no single value."""
    before = settings_of(text)
    if before is None:
        return None
    written = value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    same = [setting for setting in before if setting.key == key]
    if not same:
        ended = text if not text or text.endswith("\n") else f"{text}\n"
        made = f"{ended}{key}: {written}\n"
    elif len(same) == 1 and same[0].at is not None:
        start, end = same[0].at
        blank = " " if text[start - 1] == ":" else ""
        made = f"{text[:start]}{blank}{written}{text[end:]}"
    else:
        return None
    wanted = {setting.key: setting.value for setting in before} | {key: value}
    after = {setting.key: setting.value for setting in settings_of(made) or ()}
    return made if after == wanted else None


def _setting(text: str, key: Any, node: Any) -> Setting:
    start, end = node.start_mark.index, node.end_mark.index
    if start == end:  # the position of an empty value is that of the next key
        start = end = text.find(":", key.end_mark.index) + 1
    is_scalar = isinstance(node.value, str)
    is_block = not is_scalar and not node.flow_style
    # the node of an alias is the node that it refers to, which is earlier in the text
    is_alias = start < key.end_mark.index
    is_one_line = is_scalar and "\n" not in text[start:end]
    return Setting(
        key=str(key.value),
        value=node.value if is_scalar else None,
        written=_SEVERAL if is_block else " ".join(text[start:end].split()),
        at=(start, end) if is_one_line and not is_alias and not node.anchor else None,
    )
