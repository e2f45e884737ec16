"""The deployment below the profiles: variables, files, and flags set back to their defaults.

Env files are shell: they append to variables and contain conditions, so only bash can tell their
result; this module starts bash and nothing else. A recipe will be a patch of the deployed files:
the env file that the sweep names, or the launcher's own, and the trainer's configuration. They are
read when a campaign opens, since the report may be written on another day. Paths are relative to
the repository that contains the file, so that a patch applies there.

`baseline-no-env` is the other half of wave 1: the image alone, with every deployed flag at its
default. A profile's text wins over the deployed one, so a flag is undone by appending its default.
Defaults are the compiler's own: from the catalog for the target's jaxlib, or stated by the sweep;
an unknown default is never guessed. Variables stay as they are deployed, except for those whose
value the sweep states. A profile can append but not remove, each library decides whether an empty
variable counts as unset, and several variables describe the site (which adapters, which interface),
without which the job would measure another network.
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
from pytest_xlatune.model.channels import CHANNELS, flags_in
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.profile import (
    APPENDING,
    NO_ENV_ID,
    Flags,
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
from pytest_xlatune.sweep.checkouts import of_commits

_TIMEOUT_S = 30
# variables that bash itself sets, or that say where rather than how
_OWN = frozenset({"_", "SHLVL", "PWD", "OLDPWD", "PATH"})


def deployed_env(
    *files: Path | str,
    base: Mapping[str, str] | None = None,
    parallelism: str = "",
    config_tag: str = "",
) -> dict[str, str]:
    """Return the variables that the files export beyond `base` when sourced in this order.

    Args:
        files: in the order in which they are sourced; relative paths start at the working folder.
        base: the environment of the image; None starts the shell with only a PATH.
        parallelism: that of the cell, e.g. "PP=8", if recipes are deployed for some cells only: it
            sets the variables that their guards read, which are not returned.
        config_tag: the tag of the cell's configuration, used in the same way.

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
    # what a file prints goes to stderr, because it would be read as variables on stdout
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
        message = hide_assignments(done.stderr.decode(errors="replace").strip())
        raise ConfigError(
            f"env files {names} end with exit code {done.returncode}: {message[-300:]}"
        )
    pairs = (part.partition("=") for part in done.stdout.decode().split("\0") if part)
    after = {name: value for name, _, value in pairs}
    return {
        name: value
        for name, value in after.items()
        if name not in _OWN and before.get(name) != value
    }


# most characters of a file; a trainer's configuration has a thousandth of it
MAX_CHARACTERS = 1 << 17
_SHELL = (".sh", ".env", ".bash")
_CONFIG = (".yml", ".yaml")


def deployed_files(
    launcher: Launcher, cell: Cell, *, env_file: str, root: Path
) -> tuple[DeployedFile, ...]:
    """Return the env file for recipes, the trainer's configuration, and the launcher's own file.

    Files that are not on this machine, or cannot be read, are left out.

    Args:
        launcher: the launcher, which names the env files and the trainer's configuration.
        cell: the cell that they deploy.
        env_file: the file that the sweep names; "" takes the launcher's last env file.
        root: the root of the project, for relative paths.
    """
    if of_commits(launcher) is not None:
        return ()  # the commit determines them, and a patch of one would not be a deployment
    shells = [env_file] if env_file else launcher.env_files_of(cell)[-1:]
    configs = [file for file in launcher.files(cell) if PurePosixPath(file).suffix in _CONFIG]
    read = [
        *(_read(root / path, root, is_shell=True) for path in shells),
        *(_read(root / path, root, is_shell=False) for path in configs[:1]),
    ]
    # Recipes go into the first shell file, not this one if the env file is unreadable.
    image = Path(launcher.image_file or "/dev/null")
    if image.is_file() and any(file is not None and file.is_shell for file in read):
        read.append(_read(image, root, is_shell=True))
    inner = launcher.inside
    if inner.source:
        source = _read(Path(inner.source), root, is_shell=False)
        read.append(source and replace(source, cvs_cell=inner.source_cell))
    return tuple(file for file in read if file is not None)


# a line of a configuration:  per_device_batch_size: 8.0  # sequences
_SETTING = re.compile(r"^(\w+):[ \t]+([^\s#]+)", re.MULTILINE)


def configured(launcher: Launcher, cell: Cell) -> dict[str, str]:
    """Return the plain settings of the trainer's configuration; {} if it is not here."""
    if of_commits(launcher) is not None:
        return {}  # each commit has its own configuration
    files = (Path(file) for file in launcher.files(cell))
    config = next((path for path in files if path.suffix in _CONFIG and path.exists()), None)
    read = _read(config, Path.cwd(), is_shell=False) if config is not None else None
    return dict(_SETTING.findall(read.text)) if read is not None else {}


def refuse_changed(
    before: Iterable[DeployedFile],
    now: Iterable[DeployedFile],
    *,
    launcher: Launcher,
    cell: Cell,
    where: str,
) -> None:
    """Raise ConfigError if the trainer's configuration is not the one that was measured.

    An env file's variables are part of the cell and compared there, unless a node sources it.

    Raises:
        ConfigError: the message names the file.
    """
    # The meaning is compared, not the text: otherwise our own recommended patch made each test of
    # the next run an error.
    is_sourced = bool(launcher.env_files_of(cell)) and not cell.sourced
    known = {file.path: _meaning(file.text) for file in before if is_sourced or not file.is_shell}
    for file in now:
        if file.launcher:
            continue  # everything in it is part of the cell
        if known.get(file.path, _meaning(file.text)) != _meaning(file.text):
            raise ConfigError(
                f"{file.path} has changed since the trials in {where} were measured: numbers of "
                "two configurations cannot be compared. Go back to what it was, or start over with "
                "--xlatune-fresh (nothing measured is deleted)"
            )


def _read(path: Path, root: Path, *, is_shell: bool) -> DeployedFile | None:
    named = _below(path, root)
    if not path.exists():
        is_ours = is_shell and path.suffix in _SHELL and path.parent.is_dir()
        return DeployedFile(path=named, is_new=True) if is_ours else None
    try:
        text = path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    if len(text) > MAX_CHARACTERS:
        return None
    return DeployedFile(path=named, text=hide_assignments(text), is_shell=is_shell)


def _below(path: Path, root: Path) -> str:
    """Return the path relative to its repository, else to the project, else the name."""
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
    files = launcher.env_files_of(cell)
    base = {**cell.guard_variables, **cell.deployed}
    return {**cell.deployed, **(deployed_env(*files, base=base) if files else {})}


# settings of an image:
#   DOCKER_IMAGE="${DOCKER_IMAGE:-rocm/jax-training:v26.2}"    export DOCKER_IMAGE=/i/a.tar
_IMAGE = re.compile(
    r"""^[ \t]*(?:export[ ]+)?DOCKER_IMAGE=["']?(?:\$\{DOCKER_IMAGE:-)?([^"'}$\s]+)""", re.MULTILINE
)
# values that a command or the shell computes each time:  $(date +%s)  `hostname`  $RANDOM  $$
_MADE = re.compile(r"\$\(|`|\$\$|\$\{?(?:RANDOM|SECONDS|EPOCH\w*|BASHPID|PPID|HOSTNAME)\b")


def with_sourced(cell: Cell, launcher: Launcher) -> Cell:
    """Return the cell with the variables of its env files, so that a changed file is another cell.

    Secrets, which do not change the speed, and variables of lines that run commands are left out.
    If a file is not here or cannot be sourced, none of its variables is known.
    """
    files = launcher.env_files_of(cell)
    if not files or of_commits(launcher) is not None:
        return cell  # there are none, or the commit determines them
    if launcher.image_file and not cell.image:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            match = _IMAGE.search(secure_files.read_named(Path(launcher.image_file)))
            cell = replace(cell, image=match[1] if match else "")
    try:
        sourced = deployed_env(*files, base={**cell.guard_variables, **cell.deployed})
        text = "\n".join(secure_files.read_named(Path(name)) for name in files)
    except (ConfigError, OSError, UnicodeDecodeError):
        return cell
    made = {
        name
        for line in text.split("\n")
        if _MADE.search(line)
        for name in re.findall(r"\b(\w+)\+?=", line)
    }
    secrets = secrets_of(sourced)
    kept = {
        name: value
        for name, value in without_secrets(sourced).items()
        if name not in made
        and not is_secret(name)
        and name.isidentifier()
        # a secret may be copied to another name:  export OTHER=$HF_TOKEN
        and hide(value, secrets) == value
    }
    return replace(cell, sourced=tuple(sorted(kept.items())))


def hidden_values(
    launcher: Launcher, cells: Iterable[Cell], *, environ: Mapping[str, str]
) -> frozenset[str]:
    """Return the secrets that trials get besides their cells' own, as far as they are known here.

    They are in env files, and in variables of the login that the launcher passes on.
    """
    # they must be known to be hidden, because a library may quote a token in its exception
    names = launcher.inside.inherit
    secrets = secrets_of(
        {
            name: value
            for name, value in environ.items()
            if is_secret(name) and any(fnmatchcase(name, pattern) for pattern in names)
        }
    )
    for cell in cells:
        # files for nodes may fail here; then what they set is not known
        with contextlib.suppress(ConfigError):
            secrets |= secrets_of(_with_env_files(cell, launcher))
        for name in launcher.env_files_of(cell):
            # the text is read too, because a file that fails here may succeed on a node
            with contextlib.suppress(OSError, UnicodeDecodeError):
                secrets |= secrets_in_text(secure_files.read_named(Path(name)))
    return secrets


def context_of(cell: Cell, launcher: Launcher) -> Context:
    """Return what the profiles of a cell are applied to, including env files that are readable.

    Raises:
        ConfigError: the deployed XLA_FLAGS end early, so that no profile would be read.
    """
    is_complete = True
    try:
        deployed = _with_env_files(cell, launcher)
    except ConfigError:
        # the files are made for nodes, and what they set is not known here
        deployed, is_complete = dict(cell.deployed), False
    flags = parse_flags(deployed.get("XLA_FLAGS", ""), where="the deployed XLA_FLAGS")
    return Context(deployed=flags, env=deployed, is_complete=is_complete)


def defaults_of(names: Iterable[str], jaxlib: str) -> dict[str, str]:
    """Return flag -> default in a release, as far as it is known, in the spelling of the flag.

    Without a release, those that never changed. Defaults that no text can restore are left out.

    Raises:
        ConfigError: `jaxlib` is no release number.
    """
    how, defaults = values()["restore"], {}
    for name in names:
        value = history().default(name, jaxlib)
        if value is None or name in how["one_way"]:
            continue
        if name in how["last_word"]:
            value = value.split("_")[-1].lower()
        elif name in how["last_but_one"]:
            value = value.split("_")[-2].lower()
        defaults[name] = value
    return defaults


# Without these flags another cell would run, or none: restoring the number of CPU devices made the
# trial fail.
_OF_CELL = frozenset({"xla_force_host_platform_device_count", "xla_gpu_cuda_data_dir"})


@written("no_env")
@dataclass(frozen=True, slots=True, kw_only=True)
class NoEnv:
    """How deployed flags are set back to their defaults.

    Attributes:
        jaxlib: the target's release, e.g. "0.7.2". With "", it uses defaults that no release
            changed, and for others those of the release that earlier trials of the cell recorded.
        defaults: flag without dashes -> default, besides the catalog, e.g. for a vendor's fork.
        keep: flags that stay as deployed because they belong to the cell, in addition to the number
            of CPU devices and CUDA's folder.
        variables: deployed variable -> value to use as its default, e.g. `{"NCCL_PROTO":
            "LL,LL128,Simple"}`; the others stay, and the note names them.
    """

    jaxlib: str = ""
    defaults: Mapping[str, str] = field(default_factory=dict)
    keep: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def profile(self, launcher: Launcher, cell: Cell) -> Profile:
        """Return the profile `baseline-no-env`; an empty profile's note says why there is none.

        There is none if an env file is not on this machine, if a default is unknown, or if
        appending cannot undo a flag.

        Raises:
            ConfigError: the deployed XLA_FLAGS are malformed, or a variable is not deployed.
        """
        unread = [name for name in launcher.env_files_of(cell) if not Path(name).is_file()]
        if unread:
            return _none(f"{', '.join(unread)} cannot be read here, so what it sets is not known")
        deployed = _with_env_files(cell, launcher)
        flags = parse_flags(deployed.get("XLA_FLAGS", ""), where="the deployed XLA_FLAGS")
        names = deployed.keys() - {"XLA_FLAGS"}
        for name in self.variables.keys() - names:
            raise ConfigError.unknown(
                "variable",
                name,
                valid=sorted(names),
                where="NoEnv(variables={...}), which takes deployed ones",
            )
        kept_flags = (_OF_CELL - self.defaults.keys()) | set(self.keep)
        undone = tuple(flag for flag in flags if flag.name not in kept_flags)
        channels = self._channels(deployed)
        if not undone and not self.variables and not channels:
            return _none("no XLA flag is deployed that could go back to its default")
        try:
            restored = self._restored(undone)
        except ConfigError as error:
            return _none(str(error))
        note = "every deployed flag back to its default"
        kept = sorted(names - self.variables.keys() - channels.keys())
        if kept:
            note += f"; variables stay as deployed: {', '.join(kept)}"
        return Profile(
            id=NO_ENV_ID,
            flags=restored,
            env={**channels, **self.variables},
            wave="wave1",
            note=note,
        )

    def _channels(self, deployed: Mapping[str, str]) -> dict[str, str]:
        """Return what restores the flags of other channels whose defaults are stated."""
        texts = {
            variable: " ".join(
                f"--{flag}={self.defaults[flag]}"
                for flag in flags_in(variable, deployed[variable])
                if flag in self.defaults and flag not in self.keep
            )
            for variable in CHANNELS.keys() & deployed.keys()
        }
        return {variable: text for variable, text in texts.items() if text}

    def _restored(self, flags: Flags) -> Flags:
        names = [name for name in effective_values(flags) if name not in APPENDING]
        known = {**defaults_of(names, self.jaxlib), **self.defaults}
        missing = sorted(set(names) - known.keys())
        if missing:
            release = f"jaxlib {self.jaxlib}" if self.jaxlib else "every jaxlib"
            later = "" if self.jaxlib else _RECORDED
            raise ConfigError(
                f"the default of {', '.join(missing)} in {release} is not known; "
                "state it in NoEnv(defaults={...}), name the target's jaxlib there, or list in "
                f"`keep` those that are part of the cell{later}"
            )
        return restore_default(flags, known)


_RECORDED = ". Trials record their jaxlib: once one has run, the next session takes that"


def _none(why: str) -> Profile:
    return Profile(id=NO_ENV_ID, wave="wave1", note=why)
