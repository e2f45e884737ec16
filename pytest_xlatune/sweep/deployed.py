"""The deployment below the profiles: variables, files, and flags set back to their defaults.

Env files are shell: they append to variables and contain conditions, so only bash can compute their
result; this module starts bash and nothing else. A recipe is a patch of the deployed files: the env
file that the sweep names, or the launcher's own, and the trainer's configuration. They are read
when a campaign opens, because the report may be written on another day. Paths are relative to the
repository that contains the file, so that a patch applies there.

`baseline-no-env` is a profile of wave 1: the image alone, with every deployed flag at its default.
A profile's text wins over the deployed one, so a flag is undone by appending its default. Defaults
are the compiler's own: from the catalog for the target's jaxlib, or stated by the sweep; an unknown
default is never guessed. Variables stay as they are deployed: a profile cannot remove a variable,
each library decides whether an empty one counts as unset, and without those that describe the site
(adapters, interfaces) another network would be measured.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from msgspec.structs import replace

from pytest_xlatune import secure_files
from pytest_xlatune.catalog.context import Context
from pytest_xlatune.catalog.entries import history, values
from pytest_xlatune.launchers import Launcher
from pytest_xlatune.model.cell import CONFIG_TAG_VARIABLE, Cell, DeployedFile, Parallelism
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import (
    NO_ENV_ID,
    Profile,
    effective_values,
    parse_flags,
    restore_default,
)
from pytest_xlatune.model.redact import (
    hide,
    hide_assignments,
    is_secret,
    secrets_in_text,
    secrets_of,
    without_secrets,
)
from pytest_xlatune.model.written import written
from pytest_xlatune.sweep.checkouts import as_checkout_launcher

_TIMEOUT_S = 30
# variables that bash itself sets, and two that it gets from us: PATH, and the one of the loop
_SHELL_VARIABLES = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "PATH", "xlatune_env_file"})


def deployed_env(
    *files: Path | str,
    base: Mapping[str, str] | None = None,
    parallelism: str = "",
    config_tag: str = "",
) -> dict[str, str]:
    """Return the variables that the files export beyond `base` when sourced in this order.

    Args:
        files: in the order in which they are sourced; relative paths start at the working folder.
        base: the environment of the image; with None the shell gets only a PATH.
        parallelism: the cell's, e.g. "PP=8", for files with recipes of single cells: it sets the
            variables that the `if` lines of recipes read, which are not returned. "" sets none.
        config_tag: the tag of the cell's configuration, used in the same way; "" sets none.

    Raises:
        ConfigError: a file is missing or fails, or there is no such parallelism.
    """
    # bash would look up a name without a slash in its PATH
    paths = [Path(file).absolute() for file in files]
    for path in paths:
        if not path.is_file():
            raise ConfigError(f"env file {path} does not exist; name the file that is deployed")
    axes = Parallelism.parse(parallelism).variables if parallelism else {}
    if config_tag:
        axes[CONFIG_TAG_VARIABLE] = config_tag
    before = {"PATH": "/usr/local/bin:/usr/bin:/bin", **axes, **(base or {})}
    # what a file prints goes to stderr, because on stdout it would be read as variables
    loop = 'for xlatune_env_file in "$@"; do . "$xlatune_env_file" >&2; done'
    script = f"set -e; {loop}; exec env -0"
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
        message = hide_assignments(done.stderr.decode(errors="replace").strip())
        raise ConfigError(
            f"env files {names} end with exit code {done.returncode}: {message[-300:]}"
        )
    pairs = (part.partition("=") for part in done.stdout.decode().split("\0") if part)
    after = {name: value for name, _, value in pairs}
    return {
        name: value
        for name, value in after.items()
        if name not in _SHELL_VARIABLES and before.get(name) != value
    }


MAX_CHARACTERS = 1 << 17  # most characters of a file that is read
_SHELL_SUFFIXES = (".sh", ".env", ".bash")
_CONFIG_SUFFIXES = (".yml", ".yaml")


def deployed_files(
    launcher: Launcher, cell: Cell, *, env_file: str, root: Path
) -> tuple[DeployedFile, ...]:
    """Return the env file for recipes, and the trainer's configuration.

    Files that are not on this machine, cannot be read or are too long are left out.

    Args:
        launcher: the launcher, which names the env files and the trainer's configuration.
        cell: the cell that they deploy.
        env_file: the file that the sweep names; "" takes the launcher's last env file.
        root: the root of the project, for relative paths.
    """
    if as_checkout_launcher(launcher) is not None:
        return ()  # the files belong to the commit, and a patch of a checkout deploys nothing
    shells = [env_file] if env_file else launcher.env_files_of(cell)[-1:]
    configs = [
        file for file in launcher.files(cell) if PurePosixPath(file).suffix in _CONFIG_SUFFIXES
    ]
    files = [
        *(_read(root / path, root, is_shell=True) for path in shells),
        *(_read(root / path, root, is_shell=False) for path in configs[:1]),
    ]
    # A recipe goes into the first shell file, which must not be the image's file.
    image = Path(launcher.image_file or "/dev/null")
    if image.is_file() and any(file is not None and file.is_shell for file in files):
        files.append(_read(image, root, is_shell=True))
    return tuple(file for file in files if file is not None)


def refuse_changed(
    before: Iterable[DeployedFile],
    now: Iterable[DeployedFile],
    *,
    launcher: Launcher,
    cell: Cell,
    where: str,
) -> None:
    """Raise ConfigError if the trainer's configuration is not the one that was measured.

    The text of an env file is compared only if this machine cannot source the file; otherwise its
    variables are part of the cell.

    Raises:
        ConfigError: the message names the file.
    """
    # Comments are not compared: the patch that a report recommends adds some.
    is_unsourced = bool(launcher.env_files_of(cell)) and not cell.sourced
    known = {file.path: _meaning(file.text) for file in before if is_unsourced or not file.is_shell}
    for file in now:
        if known.get(file.path, _meaning(file.text)) != _meaning(file.text):
            raise ConfigError(
                f"{file.path} has changed since the trials in {where} were measured: numbers of "
                "two configurations cannot be compared. Restore the file, or start over with "
                "--xlatune-fresh (nothing measured is deleted)"
            )


def _read(path: Path, root: Path, *, is_shell: bool) -> DeployedFile | None:
    name = _relative(path, root)
    if not path.exists():
        can_be_made = is_shell and path.suffix in _SHELL_SUFFIXES and path.parent.is_dir()
        return DeployedFile(path=name, is_new=True) if can_be_made else None
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if len(text) > MAX_CHARACTERS:
        return None
    return DeployedFile(path=name, text=hide_assignments(text), is_shell=is_shell)


def _relative(path: Path, root: Path) -> str:
    """Return the path relative to its repository, else to the project, else only its name."""
    path = path.absolute()
    repository = next((parent for parent in path.parents if (parent / ".git").exists()), None)
    for folder in (repository, root):
        if folder is not None and path.is_relative_to(folder):
            return path.relative_to(folder).as_posix()
    return path.name


def _meaning(text: str) -> list[str]:
    """Return the lines without comments, blank lines and trailing blanks."""
    lines = (line.split(" #")[0].rstrip() for line in text.split("\n"))
    return [line for line in lines if line and not line.lstrip().startswith("#")]


def _with_env_files(cell: Cell, launcher: Launcher) -> dict[str, str]:
    """Return the deployed variables, including those of the launcher's env files.

    Raises:
        ConfigError: a file is missing or fails.
    """
    files = launcher.env_files_of(cell)
    base = {**cell.guard_variables, **cell.deployed}
    return {**cell.deployed, **(deployed_env(*files, base=base) if files else {})}


# a line that sets the image:
#   DOCKER_IMAGE="${DOCKER_IMAGE:-rocm/jax-training:v26.2}"    export DOCKER_IMAGE=/i/a.tar
_IMAGE = re.compile(
    r"""^[ \t]*(?:export[ ]+)?DOCKER_IMAGE=["']?(?:\$\{DOCKER_IMAGE:-)?([^"'}$\s]+)""", re.MULTILINE
)
# values that a command or the shell computes each time:  $(date +%s)  `hostname`  $RANDOM  $$
_COMPUTED = re.compile(r"\$\(|`|\$\$|\$\{?(?:RANDOM|SECONDS|EPOCH\w*|BASHPID|PPID|HOSTNAME)\b")


def with_sourced(cell: Cell, launcher: Launcher) -> Cell:
    """Return the cell with the variables of its env files, so that a changed file is another cell.

    Secrets, which do not change the speed, and variables whose values are computed are left out. If
    a file is not on this machine or cannot be sourced, the cell stays as it is.
    """
    files = launcher.env_files_of(cell)
    if not files or as_checkout_launcher(launcher) is not None:
        return cell  # there are no files, or they belong to the commit
    if launcher.image_file and not cell.image:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            match = _IMAGE.search(secure_files.read_named(Path(launcher.image_file)))
            cell = replace(cell, image=match[1] if match else "")
    try:
        sourced = deployed_env(*files, base={**cell.guard_variables, **cell.deployed})
        text = "\n".join(secure_files.read_named(Path(name)) for name in files)
    except (ConfigError, OSError, UnicodeDecodeError):
        return cell
    computed: set[str] = set()
    for line in text.split("\n"):
        if _COMPUTED.search(line):
            computed.update(re.findall(r"\b(\w+)\+?=", line))
    secrets = secrets_of(sourced)
    known = {
        name: value
        for name, value in without_secrets(sourced).items()
        if name not in computed
        and not is_secret(name)
        and name.isidentifier()
        # a secret may be copied to another name:  export OTHER=$HF_TOKEN
        and hide(value, secrets) == value
    }
    return replace(cell, sourced=tuple(sorted(known.items())))


def hidden_values(
    launcher: Launcher, cells: Iterable[Cell], *, environ: Mapping[str, str]
) -> frozenset[str]:
    """Return the secrets that trials get besides those in their cells, as far as they are known.

    They are in env files, and in variables of this process that the launcher passes on. They are
    hidden in logs, where a library may quote a token in its exception.
    """
    names = launcher.inside.inherit
    secrets = secrets_of(
        {
            name: value
            for name, value in environ.items()
            if is_secret(name) and any(fnmatchcase(name, pattern) for pattern in names)
        }
    )
    for cell in cells:
        # a file that is written for nodes may fail on this machine
        with contextlib.suppress(ConfigError):
            secrets |= secrets_of(_with_env_files(cell, launcher))
        for name in launcher.env_files_of(cell):
            # so the text is read too
            with contextlib.suppress(OSError, UnicodeDecodeError):
                secrets |= secrets_in_text(secure_files.read_named(Path(name)))
    return secrets


def context_of(cell: Cell, launcher: Launcher) -> Context:
    """Return what the profiles of a cell are applied to, including env files that can be sourced.

    Raises:
        ConfigError: XLA stops reading inside the deployed XLA_FLAGS, so it would read no profile.
    """
    is_complete = True
    try:
        deployed = _with_env_files(cell, launcher)
    except ConfigError:
        # a file that is written for nodes fails on this machine, so its variables are unknown
        deployed, is_complete = dict(cell.deployed), False
    flags = parse_flags(deployed.get("XLA_FLAGS", ""), where="the deployed XLA_FLAGS")
    return Context(deployed=flags, env=deployed, is_complete=is_complete)


def defaults_of(names: Iterable[str], jaxlib: str) -> dict[str, str]:
    """Return flag -> default in a release, where it is known, spelled as XLA_FLAGS takes it.

    With "" as `jaxlib`, it returns the defaults that never changed. Defaults that no text can
    restore are left out.

    Raises:
        ConfigError: `jaxlib` is no release number.
    """
    spelling, defaults = values()["restore"], {}
    for name in names:
        value = history().default(name, jaxlib)
        if value is None or name in spelling["one_way"]:
            continue
        if name in spelling["last_word"]:
            value = value.split("_")[-1].lower()
        elif name in spelling["last_but_one"]:
            value = value.split("_")[-2].lower()
        defaults[name] = value
    return defaults


# flags without which no cell would run, or another one, e.g. on another number of CPU devices
_CELL_FLAGS = frozenset({"xla_force_host_platform_device_count", "xla_gpu_cuda_data_dir"})


@written("no_env")
@dataclass(frozen=True, slots=True, kw_only=True)
class NoEnv:
    """How deployed flags are set back to their defaults.

    Attributes:
        jaxlib: the target's release, e.g. "0.7.2"; "" for defaults that never changed.
        defaults: flag without dashes -> default, for flags whose default the catalog does not have,
            or has differently, e.g. in a vendor's fork.
        keep: flags that stay as deployed because they belong to the cell, in addition to the number
            of CPU devices and CUDA's folder.
    """

    jaxlib: str = ""
    defaults: Mapping[str, str] = field(default_factory=dict)
    keep: tuple[str, ...] = ()

    def profile(self, launcher: Launcher, cell: Cell) -> Profile:
        """Return the profile `baseline-no-env`; an empty profile's note says why there is none.

        There is none if an env file fails on this machine, if a default is unknown, or if appending
        cannot undo a flag.
        """
        kept_flags = (_CELL_FLAGS - self.defaults.keys()) | set(self.keep)
        try:
            deployed = _with_env_files(cell, launcher).get("XLA_FLAGS", "")
            flags = parse_flags(deployed, where="the deployed XLA_FLAGS")
            undone = tuple(flag for flag in flags if flag.name not in kept_flags)
            known = {**defaults_of(effective_values(undone), self.jaxlib), **self.defaults}
            restored = restore_default(undone, known)
        except ConfigError as error:
            return _none(f"{error} (of NoEnv: `defaults`, `jaxlib`, or `keep`)")
        if not restored:
            return _none("no XLA flag is deployed that could go back to its default")
        note = "every deployed flag back to its default; variables stay as deployed"
        return Profile(id=NO_ENV_ID, flags=restored, wave="wave1", note=note)


def _none(why: str) -> Profile:
    return Profile(id=NO_ENV_ID, wave="wave1", note=why)
