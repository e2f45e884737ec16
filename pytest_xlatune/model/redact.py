"""Keep secrets out of texts: which names speak of one, and how its value is replaced.

This is the one place that decides it. In a table the name of a setting is enough to hide its value.
In a text from elsewhere, such as a line of a log, the values themselves are searched for. Standard
library only, no input and no output.
"""

from __future__ import annotations

import html
import json
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

HIDDEN = "(hidden)"
_LINE = 16  # characters; a shorter line of a value is no secret by itself
_TERMS = frozenset({"key", "token"})  # of any program: Key: cuda:local_topology  token: 1024
# what a setting of a secret's name may say that is no secret:  CACHE_KEY=default  AUTH=disabled
# with that variable each message lost the word "default"
_SAY_NOTHING = frozenset(
    {"default", "disable", "disabled", "enable", "enabled", "optional", "required"}
)
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
# values that say by themselves what they are, whatever their name:
# hf_AbC...    ghp_...    glpat-...    sk-proj-...    xoxb-1-...    AKIA...    eyJhb.eyJzd.Sfl
_SHAPE = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{16,}|sk-[A-Za-z0-9_-]{20,}|xox[abeposr]-[A-Za-z0-9-]{10,}|nvapi-[\w-]{20,}"
    r"|A[KS]IA[0-9A-Z]{16}|AIza[\w-]{35}|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]{8,})"
    r"|(?<=[Bb]earer )[^\s\"'(]\S{7,}"
)
# one of these is in all that `_SHAPE` finds: to look for it is 20 times faster
_SHAPE_HAS = (
    *("hf_", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "sk-", "xox"),
    *("nvapi-", "AKIA", "ASIA", "AIza", "eyJ", "earer "),
)
# in a query of any address:  https://h/x?token=abc&se=2    ...&X-Amz-Signature=abc    ?sig=abc
_QUERY = re.compile(r"[?&](?P<name>[A-Za-z_][\w.-]*+)=(?P<value>[^&\s\"'#<>]+)")
_SIGNED = re.compile(r"(?:^|[_.-])(?:sig|signature)$", re.IGNORECASE)
# what a log says of a setting, up to its value:  Config param hf_access_token:    'token': '
# of a command:  --password    '--password', '    of a message of ours:  HF_TOKEN: found ['
# deployed['HF_TOKEN'] is 12
# Tried once for each unbroken run of a name's characters: from every one of them, a value of 32 KB
# takes minutes. What a name cannot begin with is stepped over:  --token=x  2nd_key=x
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
# its value:  hf_x    "a b"    of a header:  Basic YTpi
_ASSIGNED_VALUE = re.compile(
    r"""
    (?<=") (?:[^"\\\n]|\\.){4,}+ (?=") | (?<=') (?:[^'\\\n]|\\.){4,}+ (?=')
    | (?:(?:Basic|Bearer|Digest|Negotiate|Token)[ ]+)? [^\s"',;)}\]]{4,}
    """,
    re.VERBOSE,
)
# one word of a command that a shell reads:  --key='a b'    config.yml    "a b"
_COMMAND_WORD = re.compile(r"""(?:'[^']*'|"[^"]*"|\\.|[^\s'"\\])+""")
_LISTS = frozenset({"XLA_FLAGS", "LIBTPU_INIT_ARGS"})  # options of a compiler: none is a secret
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
    """Return the settings as they may be kept and shown; done twice it is the same.

    A value is hidden whose name speaks of a secret. Of other values the user and the password of
    an address are, a value of a secret's name inside (`{"api_key": ...}`, `--token x`), and what
    has the shape of a token.
    """
    return {name: _shown(name, value) for name, value in settings.items()}


def shown_value(value: object) -> object:
    """Return a value as `repr` may show it: of a mapping of texts, without secrets."""
    if not isinstance(value, Mapping):
        return value
    return {
        name: _shown(name, text) if isinstance(name, str) and isinstance(text, str) else text
        for name, text in value.items()
    }


def _shown(name: str, value: str) -> str:
    if is_secret(name) and value:
        return HIDDEN
    return _plain(value if name in _LISTS else hide_assignments(value))


def _plain(text: str) -> str:
    if "?" in text:
        text = _QUERY.sub(_without_query, text)
    if "://" in text:
        text = _USER.sub(HIDDEN, text)
    return _SHAPE.sub(HIDDEN, text) if any(mark in text for mark in _SHAPE_HAS) else text


def _is_queried(name: str) -> bool:
    return is_secret(name) or _SIGNED.search(name) is not None


def _without_query(match: re.Match[str]) -> str:
    shown = match[0]
    if not _is_queried(match["name"]):
        return shown
    return shown[: match.start("value") - match.start()] + HIDDEN


def command_without_secrets(words: Sequence[str]) -> list[str]:
    """Return the words of a command with secrets hidden: `--token x`, `key=x`, addresses."""
    shown: list[str] = []
    is_value = False
    for word in words:
        name, equals, value = word.partition("=")
        option = name.lstrip("-")
        if is_value and not word.startswith("-"):
            shown.append(HIDDEN)
        elif equals and value and len(name.split()) == 1 and is_secret(option):
            shown.append(f"{name}={HIDDEN}")
        else:
            # --header 'X-Api-Key: x'    bash -c 'HF_TOKEN=x train'    --json={"api_key": "x"}
            shown.append(_without_assigned(_plain(word)))
        is_value = name.startswith("-") and not equals and is_secret(option)
    return shown


_kept: set[str] = set()  # of every sweep of this process: a message of one may quote another's


def keep_secret(secrets: Iterable[str]) -> None:
    """Hide these values from now on in each message and each log of this process."""
    _kept.update(secrets)


def kept_secrets() -> frozenset[str]:
    """Return the values that no message of this process may show, as far as they are known."""
    return frozenset(_kept)


def hide_kept(text: str) -> str:
    """Return the text without the values that this process knows from its sweeps."""
    return hide(text, _kept)


def secrets_of_environment(environ: Mapping[str, str]) -> frozenset[str]:
    """Return the values of an environment that no text may show."""
    named = {name: value for name, value in environ.items() if is_secret(name)}
    placed = (secret for value in environ.values() for secret in _open_ones(value))
    return secrets_of(named) | {secret for secret in placed if len(secret) >= SHORTEST}


def secrets_said(value: object, name: str = "") -> frozenset[str]:
    """Return the values in an argument of a user, of whatever kind, that no text may show."""
    if isinstance(value, Mapping):
        parts = (secrets_said(part, str(key)) for key, part in value.items())
        return frozenset[str]().union(*parts)
    if isinstance(value, list | tuple):
        if len(value) == 2 and isinstance(value[0], str) and is_secret(value[0]):  # noqa: PLR2004
            return secrets_said(value[1], value[0])  # of a mapping's items
        words = [word for word in value if isinstance(word, str)]
        if len(words) < len(value) or is_secret(name):
            return frozenset[str]().union(*(secrets_said(part, name) for part in value))
        return _secrets_of_words(words)
    if isinstance(value, str | bytes | int | float) and is_secret(name):
        return secrets_of({name: str(value)})
    return secrets_of({name: value}) if isinstance(value, str) else frozenset()


def _secrets_of_words(words: Sequence[str]) -> frozenset[str]:
    texts: set[str] = set()
    for word, shown in zip(words, command_without_secrets(words), strict=True):
        if shown == HIDDEN:
            texts.add(word)
        elif shown != word:
            after = word.partition("=")[2]
            is_all = shown.partition("=")[2] == HIDDEN
            texts |= {*_inside(word), *_open_ones(word), *([after] if is_all else [])}
    return frozenset(text for text in texts if len(text) >= SHORTEST)


def brief(value: object, most: int = 80) -> str:
    """Return the beginning of a value as Python writes it, without what no text may show."""
    try:
        return hide_quoted(repr(value), secrets_said(value))[:most]
    except RecursionError:
        return "a value that is nested too deeply"


def secrets_of_command(text: str) -> frozenset[str]:
    """Return the values in a command that no text may show."""
    words = _COMMAND_WORD.findall(text)
    pairs = zip(words, command_without_secrets(words), strict=True)
    changed = (word for word, shown in pairs if shown != word)
    plain = {
        secret.strip("'\"")
        for word in changed
        for secret in (word, word.partition("=")[2], *_inside(word), *_open_ones(word))
    }
    return frozenset(
        secret for secret in plain if len(secret) >= SHORTEST and HIDDEN[:-1] not in secret
    )


def command_text_without_secrets(text: str) -> str:
    """Do so with a command in one line, quotes and blanks as they are."""
    matches = list(_COMMAND_WORD.finditer(text))
    shown, at = "", 0
    for match, word in zip(matches, command_without_secrets([m[0] for m in matches]), strict=True):
        shown += text[at : match.start()] + word
        at = match.end()
    return shown + text[at:]


def secrets_of(*settings: Mapping[str, str]) -> frozenset[str]:
    """Return the values that no text may show: names say so, or they are part of an address."""
    secrets: set[str] = set()
    for name, value in (pair for setting in settings for pair in setting.items()):
        if is_secret(name):
            # a key of several lines is quoted line by line
            secrets |= {value, *(line for line in value.splitlines() if len(line) > _LINE)}
        else:
            secrets |= {*_open_ones(value), *_inside(value)}
    secrets = {secret for secret in secrets if secret.lower() not in _SAY_NOTHING}
    return frozenset(
        secret for secret in secrets if len(secret) >= SHORTEST and HIDDEN[:-1] not in secret
    )


def secrets_in_text(text: str) -> frozenset[str]:
    """Return the values that a file of a shell gives to names of secrets, as it writes them."""
    lines = (line.strip().removeprefix("export ") for line in text.splitlines())
    pairs = (line.partition("=") for line in lines if not line.startswith("#"))
    return secrets_of(*({name: _unquoted(value)} for name, _, value in pairs))


def _unquoted(value: str) -> str:
    # bash writes a value of several lines as  $'first line\nsecond line'
    if value.startswith("$'"):
        value = value[1:].replace("\\n", "\n")
    return value.strip("'\"")


def _assignments(text: str, *, but: frozenset[str] = frozenset()) -> Iterator[re.Match[str]]:
    """Give each value that a text gives to a secret's name, `but` these names."""
    at = 0
    for head in _ASSIGNED.finditer(text):
        name = head["name"]
        is_word = name.lower() in but and not head["is_option"]
        # another program's trouble with a file:  /etc/munge/munge.key: Permission denied
        # whose reason was hidden, as if it were the value of a key
        start = head.start("name")
        is_file = "." in name and text[start - 1 : start] == "/" and head[0].endswith(": ")
        if head.start() < at or not is_secret(name) or is_word or is_file:
            continue
        value = _ASSIGNED_VALUE.match(text, head.end())
        if value and not value[0].rpartition(" ")[2].startswith(HIDDEN[:-1]):
            yield value
            at = value.end()


def _inside(value: str) -> Iterator[str]:
    """Give the values of secrets' names inside a value."""
    return (match[0] for match in _assignments(value))


def _open_ones(value: str) -> Iterator[str]:
    """Give what says by its place or its shape that it is a secret."""
    yield from _USER.findall(value)
    yield from _SHAPE.findall(value)
    for match in _QUERY.finditer(value):
        if _is_queried(match["name"]):
            yield match["value"]


def _without_assigned(text: str, *, but: frozenset[str] = frozenset()) -> str:
    """Return a text without the values of secrets' names, `but` these names."""
    shown, at = "", 0
    for match in _assignments(text, but=but):
        shown += text[at : match.start()] + HIDDEN
        at = match.end()
    return shown + text[at:]


# what a document in markdown puts a backslash before:  a * b <c> \d
_MARKUP = re.compile(r"([\\*<])")


@lru_cache(maxsize=1024)
def _spellings(value: str) -> tuple[str, ...]:
    """Return a value in each way that a text may write it, the longest first."""
    escaped, written = html.escape(value), json.dumps(value)[1:-1]
    page = escaped.replace("&quot;", "&#34;").replace("&#x27;", "&#39;")
    markdown = _MARKUP.sub(r"\\\1", value)
    quoted, plain = urllib.parse.quote, urllib.parse.unquote(value)
    ways = {
        value,
        written,
        json.dumps(written)[1:-1],  # a JSON text inside another one
        json.dumps(value, ensure_ascii=False)[1:-1],
        value.replace("'", "'\"'\"'"),
        escaped,
        page,
        markdown,
        markdown.replace("|", "\\|"),
        repr(value)[1:-1],
        repr(value.encode(errors="replace"))[2:-1],
        quoted(value, errors="replace"),
        quoted(value, safe="", errors="replace"),
        urllib.parse.quote_plus(value, errors="replace"),
        plain if len(plain) >= SHORTEST else value,
    }
    return tuple(sorted(ways, key=lambda spelling: (-len(spelling), spelling)))


def hide(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the text without the values, in whichever way JSON or a shell spells them.

    What says by its shape or its place that it is a secret is hidden in any case.
    """
    # the longest first: one secret may hold another
    for value in sorted(secrets, key=lambda secret: (-len(secret), secret)):
        for spelling in _spellings(value):
            text = text.replace(spelling, HIDDEN)
    return _plain(text)


def hide_quoted(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a line of a log, or what another program said, as it may be quoted.

    What it says of a secret's name is hidden too: not every secret is known here.
    """
    return _without_assigned(hide(text, secrets), but=_TERMS)


def hide_assignments(text: str) -> str:
    """Return a text of a shell, yml or JSON without the value of any name that speaks of a secret.

    What follows the value on its line is hidden too. Each line stays a line.
    """
    text = _KEY_FILE.sub(lambda match: _hidden(match[0]), text)
    text = "\n".join(_without_values_below(text.split("\n")))
    shown, at = "", 0
    for head in _HEAD.finditer(text):
        if head.start() >= at and is_secret(head["name"]):
            value = _VALUE.match(text, head.end())
            if value:
                shown += text[at : head.end()] + _hidden(value[0])
                at = value.end()
    return _plain(shown + text[at:])


def _without_values_below(lines: Iterable[str]) -> Iterator[str]:
    """Give the lines of a yml, hidden where they are deeper than a secret's name, or its list."""
    column = None
    for line in lines:
        text = line.lstrip(" \t")
        indent = len(line) - len(text)
        is_list = indent == column and text.startswith("- ")
        if column is not None and text and (indent > column or is_list):
            yield HIDDEN
            continue
        yield line
        if text:
            key = _KEY.match(line)
            column = key.end(1) if key and is_secret(key[2]) else None


def _hidden(value: str) -> str:
    return "\n".join(HIDDEN if line else "" for line in value.split("\n"))
