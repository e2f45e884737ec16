"""What nobody is to read: which names speak of a secret, and how values are kept out of texts.

The one place where this is decided. A name is enough to hide a value in a table; a text that
somebody else wrote, such as the line of a log, is searched for the values themselves. Standard
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
    r"(?:TOKEN|SECRET|SECRETS|PASSWORD|PASSWORDS|PASSWD|PASSPHRASE|CREDENTIAL|CREDENTIALS|KEY)$"
    r"|^(?:PASS|AUTH|PAT)$"
)
# an assignment in a shell file or a yml:  export HF_TOKEN="abc"    hf_access_token: abc
_ASSIGNMENT = re.compile(
    r"^(\s*(?:export\s+|declare\s+-x\s+)?([A-Za-z_][A-Za-z0-9_]*)\s*[=:]\s*)(.+)$"
)


def is_secret(name: str) -> bool:
    """Whether the name of a variable or a setting says that its value is nobody's business."""
    return any(_PART.search(part) for part in name.upper().split("_"))


def without_secrets(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with every value hidden whose name speaks of a secret."""
    return {
        name: HIDDEN if is_secret(name) and value else value for name, value in settings.items()
    }


def secrets_of(*settings: Mapping[str, str]) -> frozenset[str]:
    """Return the values that no text may show, of all settings whose names say so."""
    return frozenset(
        value
        for each in settings
        for name, value in each.items()
        if is_secret(name) and len(value) >= SHORTEST and value != HIDDEN
    )


def hide(text: str, secrets: Iterable[str]) -> str:
    """Return the text without the values, in whichever way JSON or a shell spells them."""
    # the longest first: one secret may hold another
    for value in sorted(secrets, key=lambda each: (-len(each), each)):
        for spelling in dict.fromkeys(
            (value, json.dumps(value)[1:-1], value.replace("'", "'\"'\"'"))
        ):
            text = text.replace(spelling, HIDDEN)
    return text


def hide_assignments(text: str) -> str:
    """Return a shell or yml text with the value of every assignment to a secret's name hidden."""
    lines = text.split("\n")
    for at, line in enumerate(lines):
        match = _ASSIGNMENT.match(line)
        if match and is_secret(match.group(2)):
            lines[at] = f"{match.group(1)}{HIDDEN}"
    return "\n".join(lines)
