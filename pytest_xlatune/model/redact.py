"""Keep secrets out of texts: recognise their names and values, and replace them.

No other module decides what a secret is. In a table, the name of a setting is enough to hide its
value. In a text from elsewhere, such as a line of a log, known values are searched for. This module
uses only the standard library and does no input or output.
"""

from __future__ import annotations

import html
import json
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

HIDDEN = "(hidden)"
_Span = tuple[int, int, str]  # begin and end of a hidden part of a text, and the secret in it
_SHORT_LINE = 16  # characters; only a longer line of a secret is a secret by itself
# words that other programs write before values that are no secrets:
# Key: cuda:local_topology  token: 1024
_OTHER_MEANINGS = frozenset({"key", "token"})
# Values that are no secret even if the name of the setting looks like one:  CACHE_KEY=default
# If they were, every message would lose the word "default".
_ORDINARY_VALUES = frozenset(
    {"default", "disable", "disabled", "enable", "enabled", "optional", "required"}
)
SHORTEST = 6  # characters; shorter values occur in too many harmless words

# the end of a name of a secret:  HF_TOKEN  AWS_SECRET_ACCESS_KEY  hf-access-token  WANDB_APIKEY
_SECRET_WORD = re.compile(
    r"(?:(?:SECRET|PASSWORD|CREDENTIAL)S?|TOKEN|PASSWD|PASSPHRASE|KEY|PWD|WEBHOOK|DSN)$"
    r"|^(?:PASS|AUTH|AUTHORIZATION|PAT)$"
)
_FOLDERS = frozenset({"PWD", "OLDPWD"})  # variables that a shell sets itself
# user and password of an address:  http://user:password@proxy:3128    https://token@github.com
_URL_PASSWORD = re.compile(
    r"(?:(?<=://)[^/\s:@\"']*:|(?<=http://)|(?<=https://))(?P<password>[^/\s\"']+)(?=@)"
)
# a name up to its value:  export HF_TOKEN=    "token":    --api-key    setenv API_KEY
# and in a list of variables, over two lines:  name: HF_TOKEN  value:
_NAME_OF_VALUE = re.compile(
    r"""
    (?<![\w.-]) (?P<is_word>setenv[ \t]+|--)? -? (?P<name>[A-Za-z_][\w.-]*+) ["']?
    (?: [ \t]* (?: \+?=(?!=) | : ) | ,?\s*["']?value["']?[ \t]*[:=] | (?(is_word)[ \t]+(?!-)|(?!)) )
    [ \t]*
    """,
    re.VERBOSE,
)
# the value up to the end of its line, or of quotes that the line leaves open:  "a\nb" # why
_VALUE = re.compile(r"""(?:[ \t]\#[^\n]*|"(?:[^"\\]|\\.)*+"|'[^']*+'|\\.|[^\n])++""", re.DOTALL)
# secrets with a known form: hf_AbC...    ghp_...    glpat-...    sk-proj-...    xoxb-1-...
# AKIA...    eyJhb.eyJzd.Sfl
_TOKEN = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{16,}|sk-[A-Za-z0-9_-]{20,}|xox[abeposr]-[A-Za-z0-9-]{10,}|nvapi-[\w-]{20,}"
    r"|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{35}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,})"
    r"|(?<=[Bb]earer )[^\s\"'(]\S{7,}"
)
# parameters of an address:  https://h/x?token=abc&se=2    ...&X-Amz-Signature=abc    ?sig=abc
_URL_PARAMETER = re.compile(r"[?&](?P<name>[A-Za-z_][\w.-]*+)=(?P<value>[^&\s\"'#<>]+)")
_SIGNATURE = re.compile(r"(?:^|[_.-])(?:sig|signature)$", re.IGNORECASE)
# a setting up to its value, in a log:  Config param hf_access_token:    'token': '
# in a command:  --password    '--password', '
# in messages of ours:  HF_TOKEN: found [' deployed['HF_TOKEN'] is 12
# It is tried once for each unbroken run of name characters; trying at each character of 32 KB takes
# minutes. Leading characters that no name begins with are skipped:  --token=x  2nd_key=x
_ASSIGNED = re.compile(
    r"""
    (?<![\w.-]) (?: (?P<is_option>--)(?=[A-Za-z_]) | (?:[^\WA-Za-z_]|[.-])*+ )
    (?P<name>[A-Za-z_][\w.-]*+)
    (?: ["']? [ \t]* [:=] [ \t]* (?:found[ \t]+)? (?:(?!\(hidden)[\[(])*+
      | ["']?\]? [ ]is[ ] (?=["'\d\[({]) (?:(?!\(hidden)[\[(])*+
      | (?(is_option) (?: [ \t]+ | ["'],[ \t]+(?=["']) ) (?!["']?-) | (?!)) )
    ["']?
    """,
    re.VERBOSE,
)
# the value of such a setting:  hf_x    "a b"    in a header:  Basic YTpi
_ASSIGNED_VALUE = re.compile(
    r"""
    (?<=") (?:[^"\\\n]|\\.){4,}+ (?=") | (?<=') (?:[^'\\\n]|\\.){4,}+ (?=')
    | (?:(?i:basic|bearer|digest|negotiate|token)[ ]+)? [^\s"',;)}\]]{4,}
    """,
    re.VERBOSE,
)
# one word of a shell command:  --key='a b'    config.yml    "a b"
_COMMAND_WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|\\.|[^\s'"\\])+""")
# variables with options of a compiler, of which none is a secret
_FLAG_VARIABLES = frozenset({"XLA_FLAGS", "LIBTPU_INIT_ARGS"})
# a name in YAML whose value may be in the lines below:  - private_key: |
_YAML_NAME = re.compile(r"""([ \t]*(?:-[ \t]+)*)["']?([A-Za-z_][\w.-]*+)["']?[ \t]*:""")
# a key file:  -----BEGIN RSA PRIVATE KEY-----
_KEY_FILE = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*-----|\Z)", re.DOTALL
)


def is_secret(name: str) -> bool:
    """Return whether the name of a variable or setting shows that its value is a secret."""
    return name not in _FOLDERS and any(map(_SECRET_WORD.search, re.split(r"[_.-]", name.upper())))


def without_secrets(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings with secrets hidden, as they may be stored and shown. Idempotent.

    A value is hidden if its name is that of a secret. In other values these parts are hidden: user
    and password of an address, what is assigned to such a name (`{"api_key": ...}`, `--token x`),
    and texts with the form of a token.
    """
    shown = {
        name: hide(value) if name in _FLAG_VARIABLES else hide_assignments(value)
        for name, value in settings.items()
    }
    return shown | {name: HIDDEN for name, value in settings.items() if value and is_secret(name)}


def _forms(text: str) -> Iterator[_Span]:
    """Yield the secrets in a text that are known by their form, or by their place in an address."""
    for match in _URL_PARAMETER.finditer(text):
        if is_secret(match["name"]) or _SIGNATURE.search(match["name"]):
            yield (*match.span("value"), match["value"])
    # the user is hidden too
    yield from ((*match.span(), match["password"]) for match in _URL_PASSWORD.finditer(text))
    yield from ((*match.span(), match[0]) for match in _TOKEN.finditer(text))


def _spans(text: str) -> Iterator[_Span]:
    """Yield the secrets in a text that are known by their form, or by the name before them."""
    yield from _forms(text)
    yield from _assigned(text)


def _without(text: str, spans: Iterable[_Span]) -> str:
    """Return a text of as many lines, in which these parts, which may overlap, are hidden."""
    joined = [(0, 0)]
    for start, end, _ in sorted(spans):
        if start >= joined[-1][1]:
            joined.append((start, end))
        else:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
    shown, at = "", 0
    for start, end in joined[1:]:
        lines = text[start:end].split("\n")
        shown += text[at:start] + "\n".join(HIDDEN if line else "" for line in lines)
        at = end
    return shown + text[at:]


def _secret_parts(words: Iterable[str]) -> Iterator[int]:
    """Yield where the secret part of each word of a command begins: --token x  key=x."""
    is_value = False
    for word in words:
        name, equals, value = word.partition("=")
        option = name.lstrip("-")
        if is_value and not word.startswith("-"):
            yield 0
        else:
            is_assigned = value and len(name.split()) == 1 and is_secret(option)
            yield len(name) + 1 if is_assigned else len(word)
        is_value = name.startswith("-") and not equals and is_secret(option)


def command_without_secrets(words: Sequence[str]) -> list[str]:
    """Return the words of a command with secrets hidden: `--token x`, `key=x`, addresses."""
    return [
        # words that contain a secret:  'X-Api-Key: x'    'HF_TOKEN=x'    --json={"api_key": "x"}
        word[:at] + HIDDEN if at < len(word) else hide_quoted(word, skipped=frozenset())
        for word, at in zip(words, _secret_parts(words), strict=True)
    ]


# secrets of all sweeps of this process, because a message about one may quote another
_kept: set[str] = set()


def keep_secret(secrets: Iterable[str]) -> None:
    """Hide these values in all later messages and logs of this process."""
    _kept.update(secrets)


def kept_secrets() -> frozenset[str]:
    """Return the known values that no message of this process may show."""
    return frozenset(_kept)


def hide_kept(text: str) -> str:
    """Return the text without the secrets of the sweeps of this process."""
    return hide(text, _kept)


def secrets_in_argument(value: object, name: str = "") -> frozenset[str]:
    """Return the secret values in a user's argument of any type."""
    items: list[tuple[str, object]] = []
    if isinstance(value, Mapping):
        items = [(str(key), part) for key, part in value.items()]
    elif isinstance(value, list | tuple):
        if len(value) == 2 and isinstance(value[0], str) and is_secret(value[0]):  # noqa: PLR2004
            items = [(value[0], value[1])]  # an item of a mapping
        elif is_secret(name) or not all(isinstance(word, str) for word in value):
            items = [(name, part) for part in value]
        else:
            return _secrets_of_words(value)
    elif isinstance(value, str) or (isinstance(value, bytes | int | float) and is_secret(name)):
        return secrets_of({name: str(value)})
    return frozenset[str]().union(*(secrets_in_argument(part, key) for key, part in items))


def _long_enough(secrets: Iterable[str]) -> frozenset[str]:
    """Leave out texts that are part of too many words, and texts that are hidden already."""
    return frozenset(
        secret for secret in secrets if len(secret) >= SHORTEST and HIDDEN[:-1] not in secret
    )


def brief(value: object, most: int = 80) -> str:
    """Return the beginning of a value's `repr`, with secrets hidden."""
    try:
        return hide_quoted(repr(value), secrets_in_argument(value))[:most]
    except RecursionError:
        return "a value that is nested too deeply"


def _secrets_of_words(words: Sequence[str]) -> frozenset[str]:
    secrets: set[str] = set()
    for word, at in zip(words, _secret_parts(words), strict=True):
        secrets.update((word[at:], *(secret for _, _, secret in _spans(word))))
    return _long_enough(secrets)


def secrets_of_command(text: str) -> frozenset[str]:
    """Return the secret values in a command."""
    words = (secret.strip("'\"") for secret in _secrets_of_words(_COMMAND_WORD.findall(text)))
    return _long_enough(words)


def command_text_without_secrets(text: str) -> str:
    """Return a command in one line with secrets hidden; quotes and blanks stay as they are."""
    words = iter(command_without_secrets(_COMMAND_WORD.findall(text)))
    return _COMMAND_WORD.sub(lambda _: next(words), text)


def secrets_of(*settings: Mapping[str, str]) -> frozenset[str]:
    """Return the secret values in settings: by their names, or as part of an address."""
    secrets: set[str] = set()
    for name, value in (pair for setting in settings for pair in setting.items()):
        if is_secret(name):
            # a key of several lines may be quoted line by line
            secrets |= {value, *(line for line in value.splitlines() if len(line) > _SHORT_LINE)}
        else:
            secrets.update(secret for _, _, secret in _spans(value))
    return _long_enough(secret for secret in secrets if secret.lower() not in _ORDINARY_VALUES)


def secrets_in_text(text: str) -> frozenset[str]:
    """Return the values that a shell file assigns to names of secrets, as they are written."""
    lines = (line.strip().removeprefix("export ") for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    return secrets_of(*({name: _unquoted(value)} for name, _, value in pairs))


def _unquoted(value: str) -> str:
    # bash writes a value of several lines as:  $'first line\nsecond line'
    if value.startswith("$'"):
        value = value[1:].replace("\\n", "\n")
    return value.strip("'\"")


def _assigned(text: str, *, skipped: frozenset[str] = frozenset()) -> Iterator[_Span]:
    """Yield each value that a text assigns to the name of a secret other than the `skipped`."""
    at = 0
    for head in _ASSIGNED.finditer(text):
        name = head["name"]
        is_word = name.lower() in skipped and not head["is_option"]
        # Not a key but a program's error about a file, which must stay readable:
        # /etc/munge/munge.key: Permission denied
        start = head.start("name")
        is_file = "." in name and text[start - 1 : start] == "/" and head[0].endswith(": ")
        if head.start() < at or not is_secret(name) or is_word or is_file:
            continue
        value = _ASSIGNED_VALUE.match(text, head.end())
        if value and not value[0].rpartition(" ")[2].startswith(HIDDEN[:-1]):
            yield (*value.span(), value[0])
            at = value.end()


# characters that markdown escapes with a backslash:  a * b <c> \d
_MARKUP = re.compile(r"([\\*<])")


@lru_cache(maxsize=1024)
def _spellings(value: str) -> tuple[str, ...]:
    escaped, written = html.escape(value), json.dumps(value)[1:-1]
    page = escaped.replace("&quot;", "&#34;").replace("&#x27;", "&#39;")
    markdown = _MARKUP.sub(r"\\\1", value)
    quote, plain = urllib.parse.quote, urllib.parse.unquote(value)
    spellings = {
        value,
        written,
        json.dumps(written)[1:-1],  # a JSON text inside a JSON text
        json.dumps(value, ensure_ascii=False)[1:-1],
        value.replace("'", "'\"'\"'"),
        escaped,
        page,
        markdown,
        markdown.replace("|", "\\|"),
        repr(value)[1:-1],
        repr(value.encode(errors="replace"))[2:-1],
        quote(value, errors="replace"),
        quote(value, safe="", errors="replace"),
        urllib.parse.quote_plus(value, errors="replace"),
        plain if len(plain) >= SHORTEST else value,
    }
    return tuple(sorted(spellings, key=lambda spelling: (-len(spelling), spelling)))


def hide(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the text without these values, also if JSON, a page or a shell spells them otherwise.

    Secrets that are recognised by their form or place in an address are hidden in any case.
    """
    # the longest first, because one secret may contain another
    for value in sorted(secrets, key=lambda secret: (-len(secret), secret)):
        for spelling in _spellings(value):
            text = text.replace(spelling, HIDDEN)
    return _without(text, _forms(text))


def hide_quoted(
    text: str, secrets: Iterable[str] = (), *, skipped: frozenset[str] = _OTHER_MEANINGS
) -> str:
    """Return a line of a log, or another program's message, with secrets hidden for quoting.

    Values assigned to names of secrets are hidden too, because not all secrets are known here.
    """
    text = hide(text, secrets)
    return _without(text, _assigned(text, skipped=skipped))


def hide_assignments(text: str) -> str:
    """Return a text in shell, YAML or JSON with the values of names of secrets hidden.

    The rest of a line after such a value is hidden too. The number of lines stays the same.
    """
    text = _without(text, ((*match.span(), match[0]) for match in _KEY_FILE.finditer(text)))
    text = _without(text, _values_below(text))
    heads = (head for head in _NAME_OF_VALUE.finditer(text) if is_secret(head["name"]))
    values = filter(None, (_VALUE.match(text, head.end()) for head in heads))
    return hide(_without(text, ((*value.span(), value[0]) for value in values)))


def _values_below(text: str) -> Iterator[_Span]:
    """Yield the lines of a YAML text that belong to the value of a secret's name above them."""
    column, start = None, 0
    for line in text.split("\n"):
        body = line.lstrip(" \t")
        indent = len(line) - len(body)
        is_list = indent == column and body.startswith("- ")
        if column is not None and body and (indent > column or is_list):
            yield start, start + len(line), line
        elif body:
            key = _YAML_NAME.match(line)
            column = key.end(1) if key and is_secret(key[2]) else None
        start += len(line) + 1
