"""Keep secrets out of texts: which names speak of one, and how its value is replaced.

This is the one place that decides it. In a table the name of a setting is enough to hide its value.
In a text from elsewhere, such as a line of a log, the values themselves are searched for. Standard
library only, no input and no output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

HIDDEN = "(hidden)"
SHORTEST = 6  # characters; a shorter value is part of too many words that are no secret

# the end of one part of a name:  HF_TOKEN  AWS_SECRET_ACCESS_KEY  hf-access-token  WANDB_APIKEY
_PART = re.compile(
    r"(?:TOKEN|SECRET|SECRETS|PASSWORD|PASSWORDS|PASSWD|PASSPHRASE|CREDENTIAL|CREDENTIALS|KEY"
    r"|PWD|WEBHOOK|DSN)$"
    r"|^(?:PASS|AUTH|AUTHORIZATION|PAT)$"
)
_FOLDERS = frozenset({"PWD", "OLDPWD"})  # a shell's own
# in any value, whatever its name:  http://user:password@proxy:3128    https://token@github.com
_USER = re.compile(
    r"(?:(?<=://)[^/\s:@\"']*:|(?<=http://)|(?<=https://))(?P<password>[^/\s@\"']+)(?=@)"
)
# up to a value, wherever in a line:  export HF_TOKEN=    "token":    --api-key    setenv API_KEY
# and the two lines of a list of variables:  name: HF_TOKEN  value:
_HEAD = re.compile(
    r"""
    (?<![\w.-]) (?P<is_word>setenv[ \t]+|--)? -? (?P<name>[A-Za-z_][\w.-]*+) ["']?
    (?: [ \t]* (?: \+?=(?!=) | : ) | ,?\s*["']?value["']?[ \t]*[:=] | (?(is_word)[ \t]+(?!-)|(?!)) )
    [ \t]*
    """,
    re.VERBOSE,
)
# to the end of the line, or of the quotes that a line leaves open:  "first line\nsecond" # why
_VALUE = re.compile(r"""(?:[ \t]\#[^\n]*|"(?:[^"\\]|\\.)*+"|'[^']*+'|\\.|[^\n])++""", re.DOTALL)
# a name in a yml, whose value may be in the lines below:  - private_key: |
_KEY = re.compile(r"""([ \t]*(?:-[ \t]+)*)["']?([A-Za-z_][\w.-]*+)["']?[ \t]*:""")
# -----BEGIN RSA PRIVATE KEY-----
_KEY_FILE = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)", re.DOTALL
)


def is_secret(name: str) -> bool:
    """Whether the name of a variable or a setting says that its value is a secret."""
    return name not in _FOLDERS and any(map(_PART.search, re.split(r"[_.-]", name.upper())))


def without_secrets(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with every value hidden whose name speaks of a secret.

    Of other values the user and the password of an address are hidden.
    """
    return {
        name: HIDDEN if is_secret(name) and value else _USER.sub(HIDDEN, value)
        for name, value in settings.items()
    }


def secrets_of(*settings: Mapping[str, str]) -> frozenset[str]:
    """Return the values that no text may show: names say so, or they are part of an address."""
    found: set[str] = set()
    for name, value in (pair for each in settings for pair in each.items()):
        found |= {value} if is_secret(name) else set(_USER.findall(value))  # the passwords
    return frozenset(each for each in found if len(each) >= SHORTEST and each != HIDDEN)


def hide(text: str, secrets: Iterable[str]) -> str:
    """Return the text without the values, in whichever way JSON or a shell spells them."""
    # the longest first: one secret may hold another
    for value in sorted(secrets, key=lambda each: (-len(each), each)):
        for spelling in dict.fromkeys(
            (value, json.dumps(value)[1:-1], value.replace("'", "'\"'\"'"))
        ):
            text = text.replace(spelling, HIDDEN)
    return _USER.sub(HIDDEN, text)


def hide_assignments(text: str) -> str:
    """Return a text of a shell, yml or JSON without the value of any name that speaks of a secret.

    What follows the value on its line is hidden too. Each line stays a line.
    """
    text = _KEY_FILE.sub(lambda found: _hidden(found[0]), text)
    text = "\n".join(_without_values_below(text.split("\n")))
    shown, at = "", 0
    for head in _HEAD.finditer(text):
        if head.start() >= at and is_secret(head["name"]):
            value = _VALUE.match(text, head.end())
            if value:
                shown += text[at : head.end()] + _hidden(value[0])
                at = value.end()
    return _USER.sub(HIDDEN, shown + text[at:])


def _without_values_below(lines: Iterable[str]) -> Iterator[str]:
    """Give the lines of a yml, hidden where they are deeper than a secret's name, or its list."""
    column = None
    for line in lines:
        said = line.lstrip(" \t")
        indent = len(line) - len(said)
        is_list = indent == column and said.startswith("- ")
        if column is not None and said and (indent > column or is_list):
            yield HIDDEN
            continue
        yield line
        if said:
            key = _KEY.match(line)
            column = key.end(1) if key and is_secret(key[2]) else None


def _hidden(value: str) -> str:
    return "\n".join(HIDDEN if line else "" for line in value.split("\n"))
