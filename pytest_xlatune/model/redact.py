"""Keep secrets out of texts: which names speak of one, and how its value is replaced.

This is the one place that decides it. In a table the name of a setting is enough to hide its value.
In a text from elsewhere, such as a line of a log, the values themselves are searched for. Standard
library only, no input and no output.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

HIDDEN = "(hidden)"
SHORTEST = 6  # characters; a shorter value is part of too many words that are no secret

# the end of one part of a name:  HF_TOKEN  AWS_SECRET_ACCESS_KEY  hf_access_token  WANDB_APIKEY
_PART = re.compile(
    r"(?:TOKEN|SECRET|SECRETS|PASSWORD|PASSWORDS|PASSWD|PASSPHRASE|CREDENTIAL|CREDENTIALS|KEY"
    r"|PWD|WEBHOOK|DSN)$"
    r"|^(?:PASS|AUTH|PAT)$"
)
_FOLDERS = frozenset({"PWD", "OLDPWD"})  # a shell's own
# in any value, whatever its name:  https_proxy=http://user:password@proxy:3128
_USER = re.compile(r"(?<=://)[^/\s:@\"']*:([^/\s@\"']+)(?=@)")
# an assignment in a shell file or a yml:  export HF_TOKEN="abc"    hf_access_token: abc
_ASSIGNMENT = re.compile(
    r"^(\s*(?:export\s+|declare\s+-x\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*[=:]\s*)(.+)$"
)


def is_secret(name: str) -> bool:
    """Whether the name of a variable or a setting says that its value is a secret."""
    return name not in _FOLDERS and any(map(_PART.search, name.upper().split("_")))


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
    """Return a shell or yml text with the value of every assignment to a secret's name hidden."""
    lines = text.split("\n")
    for at, line in enumerate(lines):
        match = _ASSIGNMENT.match(line)
        if match and is_secret(match.group(2)):
            lines[at] = f"{match.group(1)}{HIDDEN}"
    return _USER.sub(HIDDEN, "\n".join(lines))
