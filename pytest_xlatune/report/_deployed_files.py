"""Change settings in place in the texts of the files that deploy a cell. Pure.

The env file is a shell text. A setting changes in place only if each line of the file is blank, a
comment or an `export NAME=...`, and if the one line that mentions the setting is plain. Any other
setting is left to the caller, who appends it, because the last assignment counts. The shell is not
parsed.

The trainer's configuration is a YAML text. A key at the top level changes where it has one value in
one line, and the changed text is parsed again as a check.
"""

from __future__ import annotations

import io
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from pytest_xlatune.model.channels import CHANNELS
from pytest_xlatune.model.profile import ALIASES, APPENDING, Flag, Flags
from pytest_xlatune.model.text import is_relative

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
    exports = _plain_exports(lines)
    changed = list[int]()  # numbers of changed lines
    to_append_flags, to_append_env, names = list[Flag](), dict[str, str](), list[str]()
    for name, value in env.items():
        # a variable that holds flags keeps its deployed text, and the recipe is appended to it
        if name in CHANNELS or name not in exports:
            to_append_env[name] = value
            continue
        match = exports[name]
        at = lines.index(match.string)
        lines[at] = f"{match['head']}{shlex.quote(value)}{match['comment']}"
        changed.append(at)
        names.append(name)
    at = lines.index(exports["XLA_FLAGS"].string) if "XLA_FLAGS" in exports else -1
    for flag in flags:
        is_once = [other.name for other in flags].count(flag.name) == 1
        line = _with_flag(lines[at], flag, drops=drops) if at >= 0 and is_once else None
        if line is None:
            to_append_flags.append(flag)
            continue
        lines[at] = line
        changed.append(at)
        names.append(f"--{flag.name}")
    if drops and at in changed and _SETS_NOTHING.fullmatch(lines[at]):
        del lines[at]
    return Changed(
        text="\n".join(lines),
        names=tuple(names),
        at=min(changed, default=None),
        flags=tuple(to_append_flags),
        env=to_append_env,
    )


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
    written = "" if drops else str(flag)
    return f"{before}{written}{rest[0] if written else rest[0].lstrip(' ')}"


# scalars that YAML reads without quotes:  false   0.5   minimal_flash
_PLAIN_SCALAR = re.compile(r"[A-Za-z0-9_.+/][A-Za-z0-9_.+/-]*|-[0-9.][A-Za-z0-9_.+/-]*")


def loaded(text: str) -> dict[str, Any] | None:
    """Return the keys at the top level of a YAML text, in order; None if it is not a YAML table.

    A scalar is its text without quotes, "" if it is empty.
    """
    try:
        content = YAML(typ="base").load(io.StringIO(text))
    except (YAMLError, ValueError):
        return None
    if content is None:
        return {}
    if not isinstance(content, dict):
        return None
    return {str(key): "" if value is None else value for key, value in content.items()}


def values_of(text: str) -> dict[str, str]:
    """Return key -> scalar for the top level of a YAML text."""
    return {key: value for key, value in (loaded(text) or {}).items() if isinstance(value, str)}


def with_value(text: str, key: str, value: str) -> str | None:
    """Return a YAML text with a key at the top level set; None if its value cannot be replaced."""
    before = loaded(text)
    if before is None:
        return None
    written = value if _PLAIN_SCALAR.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    if key not in before:
        whole_lines = text if not text or text.endswith("\n") else f"{text}\n"
        new_text = f"{whole_lines}{key}: {written}\n"
    else:
        # remat_policy: 'full'  # as it was
        line = re.compile(
            rf"""^({re.escape(key)}:[ ]*)(?:'[^'\n]*'|"[^"\n]*"|[^\s#'"](?:[^\n#]*[^\s#])?)?
            ([ \t]*(?:[ \t]\#.*)?\r?)$""",
            re.MULTILINE | re.VERBOSE,
        )
        matches = list(line.finditer(text))
        if len(matches) != 1 or not isinstance(before[key], str):
            return None
        head, comment = matches[0][1].rstrip(), matches[0][2] or ""
        blanks = matches[0][1][len(head) :] or " "
        start, end = matches[0].span()
        new_text = f"{text[:start]}{head}{blanks}{written}{comment}{text[end:]}"
    return new_text if loaded(new_text) == {**before, key: value} else None
