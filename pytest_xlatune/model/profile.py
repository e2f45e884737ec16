"""Settings and profiles: the text of XLA_FLAGS and the environment, read as XLA reads them.

A profile is applied *on top of* the deployed settings: its flags are appended to the deployed text,
which is never composed anew. This module is pure; it knows no cluster, file or catalog.

XLA splits XLA_FLAGS (`xla/parse_flags_from_env.cc`) at space, tab, CR and LF. A value in quotes
directly after `=` may contain white space, and a backslash escapes only inside double quotes. At
the first token that does not begin with `-`, XLA stops *without a message* and drops the rest. What
XLA drops silently is an error here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from pytest_xlatune.model.channels import (
    CHANNELS,
    appended,
    channel_of,
    normalized,
    on_top,
    settings_in,
)
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.message import Message
from pytest_xlatune.model.record import Json, Record, canonical, digest
from pytest_xlatune.model.redact import HIDDEN, brief, without_secrets
from pytest_xlatune.model.written import Written

BASELINE_ID = "baseline-deployed"
NO_ENV_ID = "baseline-no-env"  # the profile that sets every deployed flag back to its default
# the flag that names a file from which XLA's scheduler learns how long each operation takes
PGLE = "xla_gpu_pgle_profile_file_or_directory_path"
PGLE_SUFFIX = ".pbtxt"  # XLA reads a PGLE file with this ending as text, others as binary
OPTIONS_FOLDER = "xla_options"  # the folder where XLA writes its options during a scored trial

# A second occurrence of these flags adds to the first instead of replacing it, so appending can
# never undo them (xla/debug_options_flags.cc, effective values of jaxlib 0.12.0.1).
APPENDING = frozenset(
    {
        "xla_disable_hlo_passes",
        "xla_enable_hlo_passes_only",
        "xla_gpu_ptx_file",
        "xla_gpu_llvm_ir_file",
        "xla_gpu_ptx_compiler_extra_flags",
    }
)

# older -> newer name of one option: the last occurrence of either wins (jaxlib 0.11.2 and later)
ALIASES: Mapping[str, str] = {
    "xla_gpu_enable_pipelined_all_gather": "xla_gpu_pipeline_all_gather",
    "xla_gpu_enable_pipelined_all_reduce": "xla_gpu_pipeline_all_reduce",
    "xla_gpu_enable_pipelined_reduce_scatter": "xla_gpu_pipeline_reduce_scatter",
}

_SPACE = " \t\r\n"
# a profile id:  overlap-2.ag_1g+rs    (pytest's -k takes no `=`, `,` or `@`)
SLUG = re.compile(r"[a-z0-9][a-z0-9._+-]{0,63}")
# flags:  --xla_gpu_autotune_level=4    --xla_gpu_ptx_file='a b'    --xla_a="\"b\""    --xla_bare
_FLAG = re.compile(
    r"""--(?P<name>[A-Za-z0-9_][A-Za-z0-9_-]*)
    (?:=(?:'(?P<single>[^']*)'|"(?P<double>(?:[^"\\]|\\.)*)"|(?P<plain>[^ \t\r\n]*)))?""",
    re.VERBOSE | re.DOTALL,
)
# the name of an environment variable:  NCCL_IB_HCA
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Flag(Record, frozen=True, kw_only=True):
    """One XLA flag. `value` None is the bare form `--name`; the empty string is `--name=`."""

    name: str
    value: str | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_-]*", self.name):
            raise ConfigError(
                f"malformed flag name {self.name!r}: expected letters, digits and _, without "
                "dashes in front (write xla_gpu_autotune_level, not --xla_gpu_autotune_level)"
            )
        if self.value is not None and "\0" in self.value:
            raise ConfigError(f"flag --{self.name}: a value cannot hold a NUL character")

    def __str__(self) -> str:
        return f"--{self.name}" if self.value is None else f"--{self.name}={_quoted(self.value)}"


Flags = tuple[Flag, ...]


def parse_flags(text: str, *, where: str = "XLA_FLAGS") -> Flags:
    """Parse the text of XLA_FLAGS in the order given, with duplicates.

    Raises:
        ConfigError: XLA would read a file, drop the rest silently or refuse the token.
    """
    if not isinstance(text, str):
        raise ConfigError(
            f"{where}: the flags are {text!r:.80} ({type(text).__name__}), expected one text such "
            "as '--xla_a=1 --xla_b=2'"
        )
    flags, at = _read(text, where)
    if at < len(text):
        raise ConfigError(_refusal(text, at, where))
    return flags


def read_as_xla(text: str) -> tuple[Flags, str]:
    """Return the flags that XLA reads, and the rest that it silently drops; "" if none.

    Raises:
        ConfigError: XLA would read a file, or refuse a token.
    """
    flags, at = _read(text, "XLA_FLAGS")
    return flags, text[at:].strip(_SPACE)


def format_flags(flags: Iterable[Flag]) -> str:
    """Return the flags as text that `parse_flags`, and XLA, read back as the same flags."""
    return " ".join(map(str, flags))


def append_flags(deployed: str, flags: Iterable[Flag]) -> str:
    """Return the XLA_FLAGS text of a job: the deployed text unchanged, then `flags`."""
    return " ".join(part for part in (deployed.strip(_SPACE), format_flags(flags)) if part)


def merge_flags(*parts: Iterable[Flag]) -> Flags:
    """Return the flags that have effect: the last of each name, and every appending flag.

    They are in the order of their last occurrences. The function is associative.
    """
    kept: list[Flag] = []
    seen: set[str] = set()
    for flag in reversed([flag for part in parts for flag in part]):
        key = ALIASES.get(flag.name, flag.name)
        if flag.name in APPENDING:
            kept.append(flag)
        elif key not in seen:
            seen.add(key)
            kept.append(flag)
    return tuple(reversed(kept))


def effective_values(flags: Iterable[Flag]) -> dict[str, str]:
    """Return flag name -> the value that XLA takes, as far as the text alone shows.

    A bare flag is "true". The values of an appending flag are joined by a comma.
    """
    values: dict[str, str] = {}
    for flag in merge_flags(flags):
        value = "true" if flag.value is None else flag.value
        if flag.name in APPENDING and flag.name in values:
            value = f"{values[flag.name]},{value}"
        values[flag.name] = value
    return values


def settings_digest(flags: Iterable[Flag], env: Mapping[str, str]) -> str:
    """Return a digest of the effective flags and the environment, whatever their order.

    Two profiles with the same digest on the same cell are repeats of one another.
    """
    return digest({"flags": effective_values(flags), "env": normalized(env)})


def shell_exports(flags: Iterable[Flag], env: Mapping[str, str]) -> str:
    """Return POSIX shell lines that append `flags` to XLA_FLAGS and export `env`, byte for byte.

    There is one `export` for each setting; "" if there is none. Flags of another channel are
    appended to that channel's variable. Values are quoted so that the shell expands nothing, except
    for the existing text of a channel.
    """
    text = format_flags(flags)
    exports = [_shell_append("XLA_FLAGS", text)] if text else []
    exports += [
        _shell_append(name, value) if name in CHANNELS else f"export {name}={shlex.quote(value)}\n"
        for name, value in env.items()
    ]
    return "".join(exports)


def _shell_append(variable: str, text: str) -> str:
    return f'export {variable}="${{{variable}:+${variable} }}"{shlex.quote(text)}\n'


def restore_default(deployed: Iterable[Flag], defaults: Mapping[str, str]) -> Flags:
    """Return flags that set every deployed flag back to its stated default when appended.

    Raises:
        ConfigError: a deployed flag has no stated default, or XLA only ever adds to its value, so
            that no later flag can undo it.
    """
    names = list(effective_values(deployed))
    stuck = [name for name in names if name in APPENDING]
    if stuck:
        raise ConfigError(
            f"--{stuck[0]} is deployed, and XLA adds its values up: a flag that is appended "
            "cannot put the default back. Take it out of the deployed XLA_FLAGS to measure the "
            "default."
        )
    missing = [name for name in names if name not in defaults]
    if missing:
        raise ConfigError(
            f"no default is stated for the deployed flag --{missing[0]}; add it to the defaults "
            f"(stated: {', '.join(sorted(defaults)) or 'none'})"
        )
    return tuple(Flag(name=name, value=defaults[name]) for name in names)


class Profile(Written, frozen=True, kw_only=True):
    """A named set of flags, variables and launcher overrides on top of the deployed ones.

    Attributes:
        id: a slug `[a-z0-9][a-z0-9._+-]*`, at most 64 characters; `-k` selects by it.
        flags: the flags that are appended to the deployed XLA_FLAGS.
        env: variables set after the deployed environment; never XLA_FLAGS. The text of another
            channel (`channels.CHANNELS`) is appended to the deployed one.
        overrides: `key=value` for the launcher, after the cell's own.
        wave: the marker of the wave that measures the profile.
        note: why the profile might matter, for the report; "" for none.
        is_control: whether it is known to do nothing. It is then measured like any other to show
            the noise, but enters no stack and is never recommended.
        origin: why a study made it; None if it was declared.
    """

    id: str
    flags: Flags = ()
    env: dict[str, str] = msgspec.field(default_factory=dict)
    overrides: dict[str, str] = msgspec.field(default_factory=dict)
    wave: str = "wave2"
    note: str = ""
    is_control: bool = False
    origin: Message | None = None

    def __post_init__(self) -> None:
        if not SLUG.fullmatch(self.id):
            raise ConfigError(
                f"profile id {self.id!r}: expected [a-z0-9][a-z0-9._+-]*, 64 characters at most; "
                "give a short name and put the flags into `flags`"
            )
        for name, value in (*self.env.items(), *self.overrides.items()):
            if not isinstance(value, str):
                raise ConfigError(
                    f"profile {self.id!r}: {name} is {brief(value)} ({type(value).__name__}), "
                    f"expected a text: write {str(value)!r:.80}"
                )
        for name, value in self.env.items():
            if name == "XLA_FLAGS":
                raise ConfigError(
                    f"profile {self.id!r} sets XLA_FLAGS in env, which would replace the "
                    "deployed ones; put the flags into `flags`, they are appended"
                )
            if not _VARIABLE.fullmatch(name):
                raise ConfigError(
                    f"profile {self.id!r}: {name!r} cannot name an environment variable; expected "
                    "letters, digits and _, no digit first"
                )
            if "\0" in value:
                raise ConfigError(f"profile {self.id!r}: {name} holds a NUL character")

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Profile({self.id!r}, {self.shown_text!r})"  # pytest shows it when a test fails

    def to_json(self) -> dict[str, Json]:
        """Return the record as it is stored: with secrets hidden."""
        kept = {"env": without_secrets(self.env), "overrides": without_secrets(self.overrides)}
        return {**Record.to_json(self), **kept}

    def with_secrets_of(self, known: Iterable[Profile]) -> Profile:
        """Return a stored profile with its secrets restored from these known profiles.

        If one of them has the same id, only that one is used. A value stays hidden if no known
        profile has it, or if two have different ones.
        """
        known = tuple(known)
        known = tuple(profile for profile in known if profile.id == self.id) or known
        return msgspec.structs.replace(
            self,
            env=_revealed(self.env, [profile.env for profile in known]),
            overrides=_revealed(self.overrides, [profile.overrides for profile in known]),
        )

    @property
    def is_baseline(self) -> bool:
        """Whether this is the cell as deployed, with nothing on top."""
        return not (self.flags or self.env or self.overrides)

    def same_as(self, other: Profile) -> bool:
        """Return whether another profile has the same settings in the same order, whatever its id.

        Secrets are ignored, so a stored profile is the same as the declared one.
        """
        if self is other:
            return True
        if self.flags != other.flags:
            return False
        pairs = ((self.env, other.env), (self.overrides, other.overrides))
        return all(without_secrets(mine) == without_secrets(theirs) for mine, theirs in pairs)

    @property
    def settings_text(self) -> str:
        """All settings of the profile as one line: its identity. `shown_text` is for display."""
        settings = (*self.env.items(), *self.overrides.items())
        return " ".join([*map(str, self.flags), *(f"{name}={value}" for name, value in settings)])

    @property
    def shown_text(self) -> str:
        """All settings of the profile as one line that can be pasted; secrets are hidden."""
        env, overrides = without_secrets(self.env), without_secrets(self.overrides)
        return msgspec.structs.replace(self, env=env, overrides=overrides).settings_text


def _revealed(kept: dict[str, str], known: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Return settings in which hidden values are replaced by those of the known settings."""
    revealed = dict(kept)
    for name, value in kept.items():
        if HIDDEN in value:
            matches = [table for table in known if without_secrets(table).get(name) == value]
            values = {table[name] for table in matches} - {value}
            revealed[name] = values.pop() if len(values) == 1 else value
    return revealed


BASELINE = Profile(id=BASELINE_ID, wave="wave1", note="the cell as deployed")


def _table(name: str, kind: str, settings: Mapping[str, str] | None) -> dict[str, str]:
    try:
        return dict(settings or {})
    except (TypeError, ValueError):
        raise ConfigError(
            f"profile {name!r}: {kind} is {brief(settings)} ({type(settings).__name__}), expected "
            "a mapping of names to texts"
        ) from None


def profile(
    id: str,  # noqa: A002 - the word of the field
    flags: str = "",
    *,
    env: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
    wave: str = "wave2",
    note: str = "",
    is_control: bool = False,
) -> Profile:
    """Return a profile from the text of its flags, for sweep files.

    A flag that is read by another library than XLA, such as `--xla_tpu_...`, goes into the variable
    of that library.

    Raises:
        ConfigError: a malformed id, flag or variable.
    """
    xla_flags, channels = by_channel(parse_flags(flags, where=f"profile {id!r}"))
    variables = _table(id, "env", env)
    for name, text in channels.items():
        variables[name] = appended(variables.get(name, ""), text)
    return Profile(
        id=id,
        flags=xla_flags,
        env=variables,
        overrides=_table(id, "overrides", overrides),
        wave=wave,
        note=note,
        is_control=is_control,
    )


def by_channel(flags: Iterable[Flag]) -> tuple[Flags, dict[str, str]]:
    """Return the flags of XLA_FLAGS, and variable -> text for every other channel with flags.

    Raises:
        ConfigError: a value of another channel contains a blank, which such a text cannot quote.
    """
    xla_flags: list[Flag] = []
    texts: dict[str, str] = {}
    for flag in flags:
        variable = channel_of(flag.name)
        if not variable:
            xla_flags.append(flag)
            continue
        if flag.value is not None and len(flag.value.split()) != 1:
            raise ConfigError(
                f"--{flag.name}={flag.value!r}: XLA splits {variable} at blanks and knows no "
                "quotes; give a value without blanks and quotes"
            )
        word = f"--{flag.name}" if flag.value is None else f"--{flag.name}={flag.value}"
        texts[variable] = appended(texts.get(variable, ""), word)
    return tuple(xla_flags), texts


def check_unique(profiles: Sequence[Profile], *, where: str) -> None:
    """Raise ConfigError if two profiles share an id, or one has the baseline's.

    Raises:
        ConfigError: the message has the id and both settings.
    """
    seen: dict[str, Profile] = {}
    for profile in profiles:
        if profile.id == BASELINE_ID:
            raise ConfigError(
                f"{where}: the id {BASELINE_ID!r} belongs to the empty profile, which every sweep "
                "measures by itself; choose another id"
            )
        if profile.id in seen:
            raise ConfigError(
                f"{where}: duplicate profile id {profile.id!r} "
                f"({seen[profile.id].shown_text or 'empty'!r} and "
                f"{profile.shown_text or 'empty'!r}); rename one of them"
            )
        seen[profile.id] = profile


Key = tuple[str, str]  # kind of setting, name


def settings_of(profile: Profile) -> dict[Key, str]:
    """Return (kind, name) -> value for all settings; an alias of a flag gets the newer name."""
    flags = {
        ("flag", ALIASES.get(name, name)): value
        for name, value in effective_values(profile.flags).items()
    }
    env = settings_in(profile.env, "env")
    return {**flags, **env, **{("override", k): v for k, v in profile.overrides.items()}}


def is_part(part: Mapping[Key, str], others: Mapping[Key, str]) -> bool:
    """Return whether the settings are a proper, non-empty subset of others."""
    return bool(part) and part.items() < others.items()


class Effective:
    """The settings that have effect if profiles are applied on top of the deployed ones."""

    def __init__(self, deployed: Mapping[str, str]) -> None:
        self._env = dict(deployed)
        self._flags: Flags = parse_flags(self._env.pop("XLA_FLAGS", ""), where="deployed XLA_FLAGS")

    def key(self, profile: Profile) -> Key:
        """Return a digest of flags and environment, and the overrides; repeats have equal keys."""
        flags, env = (*self._flags, *profile.flags), on_top(self._env, profile.env)
        return settings_digest(flags, env), canonical(profile.overrides)

    def repeats(self, profiles: Iterable[Profile]) -> dict[str, str]:
        """Return the id of each repeat -> the id of the baseline or earlier profile it repeats."""
        first = {(settings_digest(self._flags, self._env), canonical({})): BASELINE_ID}
        owners = {
            profile.id: first.setdefault(self.key(profile), profile.id) for profile in profiles
        }
        return {profile_id: owner for profile_id, owner in owners.items() if owner != profile_id}


def _read(text: str, where: str) -> tuple[Flags, int]:
    """Return the flags up to the place where XLA stops, and that place."""
    flags: list[Flag] = []
    at = _skip_space(text, 0)
    while at < len(text) and (not flags or text[at] == "-"):
        match = _FLAG.match(text, at)
        if match is None:
            raise ConfigError(_refusal(text, at, where))
        value, at = match["plain"], match.end()
        if value and value[0] in "'\"":
            opening = text[match.start("plain") :][:40]
            raise ConfigError(f"{where}: the quote opened at {opening!r} never closes")
        if match["double"] is not None:
            value = re.sub(r"\\(.)", r"\1", match["double"], flags=re.DOTALL)
        elif match["single"] is not None:
            value = match["single"]
        elif value is None and text[at : at + 1].strip(_SPACE):
            token = _token(text, match.start())
            raise ConfigError(f"{where}: malformed flag {token!r}: expected --name or --name=value")
        flags.append(Flag(name=match["name"], value=value))
        at = _skip_space(text, at)
    return tuple(flags), at


def _skip_space(text: str, at: int) -> int:
    return len(text) - len(text[at:].lstrip(_SPACE))


def _token(text: str, at: int) -> str:
    return re.split(f"[{_SPACE}]", text[at:], maxsplit=1)[0]


def _refusal(text: str, at: int, where: str) -> str:
    token = _token(text, at)
    if token.startswith("-"):
        return f"{where}: malformed flag {token!r}: expected --name or --name=value"
    return (
        f"{where}: {token!r} does not begin with '--'. XLA stops reading here, and silently drops "
        f"{text[at:].strip(_SPACE)!r} or takes it for the name of a file; expected --name=value "
        "separated by spaces. A variable belongs into `env` of a profile"
    )


def _quoted(value: str) -> str:
    """Return the value in quotes if XLA would otherwise split it or strip a quote."""
    if not any(char in value for char in _SPACE) and value[:1] not in ("'", '"'):
        return value
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'  # only double quotes with escapes can hold any text
