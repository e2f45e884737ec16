"""What env files deploy: sourced in a clean shell, and the environment compared.

Env files are shell: they append to what an earlier one set, and ask conditions. Only bash says what
they come to. This module starts bash and nothing else.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from pytest_xlatune.cells import Parallelism
from pytest_xlatune.errors import ConfigError

_TIMEOUT_S = 30
# what bash itself sets, and what says where rather than how
_OWN = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "PATH"})


def deployed_env(
    *files: Path | str, base: Mapping[str, str] | None = None, parallelism: str = ""
) -> dict[str, str]:
    """Return the variables that the files, sourced in this order, export beyond `base`.

    Args:
        files: in the order they are sourced; relative ones lie below the working directory.
        base: the image's own environment; without one the shell starts with nothing but a PATH.
        parallelism: the cell's, e.g. "PP=8", where recipes are deployed for some cells only: the
            variables that their guards read are set, and are no part of what is returned.

    Raises:
        ConfigError: a file is missing or does not run to its end; no such parallelism.
    """
    # bash looks a name without a slash up on its PATH
    paths = [Path(file).absolute() for file in files]
    for path in paths:
        if not path.is_file():
            raise ConfigError(f"env file {path} does not exist; name the file that is deployed")
    axes = Parallelism.parse(parallelism).variables if parallelism else {}
    before = {"PATH": "/usr/local/bin:/usr/bin:/bin", **axes, **(base or {})}
    script = 'set -e; for each in "$@"; do . "$each" >&2; done; exec env -0'
    try:
        done = subprocess.run(
            ["bash", "--norc", "--noprofile", "-c", script, "xlatune", *map(str, paths)],
            env=before,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"env files cannot be read with bash: {error}") from None
    names = ", ".join(map(str, files))
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise ConfigError(f"env files {names} end with exit code {done.returncode}: {said[-300:]}")
    pairs = (part.partition("=") for part in done.stdout.decode().split("\0") if part)
    after = {name: value for name, _, value in pairs}
    return {
        name: value
        for name, value in after.items()
        if name not in _OWN and before.get(name) != value
    }
