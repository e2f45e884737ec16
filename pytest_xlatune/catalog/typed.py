"""Flags and variables as a person types them: a profile of them, or the context below profiles."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence

from pytest_xlatune.catalog.context import Context
from pytest_xlatune.model.profile import Profile, parse_flags

TEXT_ID = "text"  # the profile that words of a command line make


def text_profile(words: Sequence[str]) -> Profile:
    """Return the profile that words of a command line are: flags, and NAME=value.

    Raises:
        ConfigError: a word is neither, or XLA would stop reading at it.
    """
    flags, env = _parted(word.strip() for word in words)
    return Profile(id=TEXT_ID, flags=parse_flags(" ".join(flags), where="the text"), env=env)


def deployed_context(text: str, *, jaxlib: str = "", device: str = "") -> Context:
    """Return the context that `--deployed` names: flags and NAME=value, as in a shell.

    Raises:
        ConfigError: malformed.
    """
    flags, env = _parted(shlex.split(text) if text else [])
    # the shell's quotes are off; those of a value that holds blanks are the flag's own
    deployed = parse_flags(" ".join(map(_requoted, flags)), where="--deployed")
    return Context(deployed=deployed, env=env, jaxlib=jaxlib, device=device)


def _parted(words: Iterable[str]) -> tuple[list[str], dict[str, str]]:
    """Return the flags among words, and the variables."""
    flags: list[str] = []
    env: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name.isidentifier():
            env[name] = value
        elif word:
            flags.append(word)
    return flags, env


def _requoted(word: str) -> str:
    name, equals, value = word.partition("=")
    is_split = any(char.isspace() for char in value) or not value
    return f"{name}='{value}'" if equals and is_split else word
