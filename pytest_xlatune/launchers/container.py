"""Any launcher's trainer in a container: docker, podman or apptainer on the node, or pyxis' srun.

    ContainerLauncher(inner=MaxTextLauncher(...), runtime="podman", mounts=("/data",))

One container a rank, started by the payload that Slurm's srun (or this machine) runs on the node:
srun around the container. With pyxis each payload asks srun for a step in a container, and the
container is Slurm's own. The image is the cell's, and is named with its digest: a tag can be moved
between two trials, and their numbers would be compared. Paths of the inner launcher are those
inside; the attempt's folder has one name inside and outside.

The environment goes by a file that only the container reads; no value stands in a command line, and
of the node's variables the container gets those that the inner launcher inherits, less those that
belong to the node itself. This module renders and starts nothing.

Three files of an attempt's folder, which the container sees under its own name:

    container.sh         on the node: writes down the node's variables, starts the container
    container.entry.sh   in the container: sets the environment, becomes or minds the trainer
    container.env.sh     the environment of the cell and the trial, byte for byte

docker and podman keep the container apart from the process that asks for it, so that SIGKILL of
that process leaves it running. Here the container reads from a pipe that only `container.sh` holds:
when that is gone, however it went, the entry script ends the trainer. apptainer and srun start the
trainer below themselves and need nothing of the kind.

Sources: the manuals of docker run, podman run and apptainer exec; pyxis' README for srun's options.

`configured` puts a site's settings on top of a sweep file's launcher: those of a container put it
into one, or change the one that it is in; the runtime `none` takes it out.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import PurePosixPath
from typing import Any, TypeVar, cast

from pytest_xlatune.launchers import Launcher
from pytest_xlatune.launchers.program import ProgramLauncher
from pytest_xlatune.model.cell import Cell
from pytest_xlatune.model.errors import ConfigError
from pytest_xlatune.model.trial import LaunchSpec, Trial

HOST_FILE = "container.sh"
ENTRY_FILE = "container.entry.sh"
ENV_FILE = "container.env.sh"
FOLDER_WORD = "{xlatune.folder}"  # the payload's own words, see `executors.payload`
RANK_WORD = "{xlatune.rank}"


class Runtime(StrEnum):
    """What runs the container."""

    DOCKER = "docker"
    PODMAN = "podman"
    APPTAINER = "apptainer"
    PYXIS = "pyxis"

    @property
    def is_apart(self) -> bool:
        """Whether the container is no descendant of the process that asks for it."""
        return self in (Runtime.DOCKER, Runtime.PODMAN)

    @property
    def program(self) -> str:
        """The command, where none is named."""
        return "srun" if self is Runtime.PYXIS else str(self)


class Gpus(StrEnum):
    """Whose GPUs the container gets."""

    NONE = ""
    NVIDIA = "nvidia"
    AMD = "amd"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A directory or file of the node, and where the container sees it."""

    source: str
    target: str
    is_read_only: bool = False

    def __str__(self) -> str:
        return f"{self.source}:{self.target}" + (":ro" if self.is_read_only else "")

    def outside(self, path: PurePosixPath) -> str:
        """Return the node's name of a path inside."""
        return str(PurePosixPath(self.source) / path.relative_to(self.target))


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What a runtime is asked for."""

    runtime: Runtime  # which one; program: its command as words
    program: tuple[str, ...]
    image: str  # what the runtime is told, pinned
    mounts: tuple[Mount, ...] = ()  # besides the attempt's folder
    gpus: Gpus = Gpus.NONE  # whose; devices: further device files
    devices: tuple[str, ...] = ()
    shm_size: str = ""  # of a /dev/shm of its own; "" shares the node's
    as_me: bool = False  # as the submitting user, not as the image's
    pull: bool = False  # whether an image that is missing may be pulled
    args: tuple[str, ...] = ()  # further words for the runtime
    # names of the node's variables that it gets; a trailing * means all that begin so
    variables: tuple[str, ...] = ()
    cwd: str = ""  # where the trainer starts; "" is the attempt's folder


_HEAD = """\
# One rank's trainer in a container, by {runtime}: `bash container.sh FOLDER RANK COMMAND...`
folder=$1 rank=$2
shift 2
(
  umask 077
  for variable in {variables}; do
    [ -n "${{!variable+set}}" ] && printf 'export %s=%q\\n' "$variable" "${{!variable}}"
  done > "$folder/container.node.$rank.sh"
)
"""

# the name says which attempt it is: `docker ps` of a node can then be read
_APART = """\
run=${{folder%/*}}
name=xlt-${{run##*/}}-${{folder##*/}}-$rank
name=${{name//[^a-zA-Z0-9_.-]/-}}
exec 4>&1
# we alone hold the other end of its standard input: when we are killed, the container hears it
coproc CLIENT {{ exec {command} >&4 2>&1 4>&-; }}
client=$!
# less than the payload's patience, so that the runtime's own books are right as well
trap 'asked=1; {program} stop -t 3 "$name" >/dev/null 2>&1 &' TERM INT HUP
trap '{program} rm --force "$name" >/dev/null 2>&1' EXIT
asked=1
while [ -n "$asked" ]; do asked=; wait "$client"; status=$?; done
exit "$status"
"""

_BELOW = """\
# the node's libraries are for the node
export -n LD_LIBRARY_PATH
exec {command}
"""

# what the node says is read once and does not stay: a site may have named a secret
_ENTRY = """\
# In the container: `bash container.entry.sh FOLDER RANK COMMAND...`
xlatune_folder=$1 xlatune_rank=$2
shift 2
. "$xlatune_folder/container.node.$xlatune_rank.sh" || exit 78
rm -f -- "$xlatune_folder/container.node.$xlatune_rank.sh"
. "$xlatune_folder/container.env.sh" || exit 78
"""
_ENTRY_BECOME = """\
exec "$@"
"""
# bash gives a command in the background /dev/null for its input, so that the pipe needs a number
_ENTRY_MIND = """\
exec 3<&0 </dev/null
"$@" 3<&- &
trainer=$!
trap 'asked=1; kill -TERM "$trainer" 2>/dev/null' TERM INT HUP
{ while read -r -u 3 _; do :; done; kill -KILL "$trainer"; } 2>/dev/null &
asked=1
while [ -n "$asked" ]; do asked=; wait "$trainer"; status=$?; done
exit "$status"
"""


def host_script(asked: Container) -> str:
    """Return `container.sh`: what the node runs for a rank."""
    form = _HEAD + (_APART if asked.runtime.is_apart else _BELOW)
    return form.format(
        runtime=asked.runtime,
        variables=" ".join(map(_variable, asked.variables)),
        # over several lines, so that a person can read and change it
        command=" \\\n  ".join(_WORDS[asked.runtime](asked)),
        program=shlex.join(asked.program),
    )


def entry_script(runtime: Runtime) -> str:
    """Return `container.entry.sh`: what the container runs for a rank."""
    return _ENTRY + (_ENTRY_MIND if runtime.is_apart else _ENTRY_BECOME)


def env_script(env: Mapping[str, str], unset: Sequence[str]) -> str:
    """Return `container.env.sh`: variables for bash, byte for byte; the payload's words filled."""
    lines = [f"export {name}={_filled(value)}\n" for name, value in env.items()]
    return "".join([*lines, *(f"unset {shlex.quote(name)}\n" for name in unset)])


def _var(name: str) -> str:
    """Return the word that `_quoted` makes a variable of; no word of a user's can hold a NUL."""
    return f"\0{name}\0"


_FOLDER = _var("folder")


def checks(asked: Container, inside: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return (shell command, why it fails) for every node.

    The last of them starts a container as a trial's is and looks for `inside`: paths that the
    image or a mount must have. With pyxis that would import the image first, and is not done.
    """
    program, image = shlex.join(asked.program), shlex.quote(asked.image)
    looked = ["bash", "-c", 'for each do [ -e "$each" ] || exit 1; done', "bash", *inside]
    started = (
        shlex.join([*asked.program, *_SITE_WORDS[asked.runtime](asked), asked.image, *looked]),
        f"a container of {asked.image} does not start, or has not all of bash"
        + "".join(f", {path}" for path in inside)
        + ": mount what the image has not",
    )
    if asked.runtime is Runtime.PYXIS:
        said = f"{program} has no --container-image: the pyxis plugin of Slurm is not installed"
        return ((f"{program} --help | grep -q -e --container-image", said),)
    if asked.runtime is Runtime.APPTAINER:
        runs = (f"{program} --version >/dev/null 2>&1", f"{program} does not run")
        return runs, started
    runs = (f"{program} info >/dev/null 2>&1", f"{program} does not run (try `{program} info`)")
    has_image = (
        f"{program} image inspect {image} >/dev/null 2>&1",
        f"{program} has no image {asked.image}; pull or load it there, or allow `pull`",
    )
    return (runs,) if asked.pull else (runs, has_image, started)


def _engine_site(asked: Container) -> list[str]:
    """Return the words of docker and podman that every container of a site has."""
    is_podman = asked.runtime is Runtime.PODMAN
    words = [
        "run", "--rm", f"--pull={'missing' if asked.pull else 'never'}", "--network=host",
        f"--shm-size={asked.shm_size}" if asked.shm_size else "--ipc=host",
    ]  # fmt: skip
    if is_podman:
        words.append("--http-proxy=false")  # a proxy's password is in its address
    if asked.gpus is Gpus.NVIDIA:
        words.append("--device=nvidia.com/gpu=all" if is_podman else "--gpus=all")
    elif asked.gpus is Gpus.AMD:
        words += ["--device=/dev/kfd", "--device=/dev/dri", "--group-add=video"]
    words += [f"--device={each}" for each in asked.devices]
    return [*words, *(f"--volume={each}" for each in asked.mounts), *asked.args]


def _engine(asked: Container) -> list[str]:
    """Return the command of docker and podman, quoted for the shell."""
    run, rm, *site = _engine_site(asked)
    words = ["--interactive", f"--name={_var('name')}", *site]
    if asked.as_me:
        words.append(f"--user={_var('UID')}:{_var('GROUPS')}")
    words += [f"--volume={_FOLDER}:{_FOLDER}", f"--workdir={asked.cwd or _FOLDER}"]
    return [shlex.join([*asked.program, run, rm]), *map(_quoted, words), *_trainer(asked)]


def _apptainer_site(asked: Container) -> list[str]:
    words = ["exec", "--cleanenv", "--no-home"]
    words += {Gpus.NVIDIA: ["--nv"], Gpus.AMD: ["--rocm"], Gpus.NONE: []}[asked.gpus]
    return [*words, *(f"--bind={each}" for each in asked.mounts), *asked.args]


def _apptainer(asked: Container) -> list[str]:
    run, *site = _apptainer_site(asked)
    words = [*site, f"--bind={_FOLDER}", f"--pwd={asked.cwd or _FOLDER}"]
    return [shlex.join([*asked.program, run]), *map(_quoted, words), *_trainer(asked)]


def _pyxis(asked: Container) -> list[str]:
    # enroot's own hooks bring NVIDIA's devices in
    amd = [Mount(source=each, target=each) for each in ("/dev/kfd", "/dev/dri")]
    mounts = [*map(str, [*asked.mounts, *(amd if asked.gpus is Gpus.AMD else [])])]
    words = [
        f"--nodelist={_var('SLURMD_NODENAME')}", "--export=ALL", "--kill-on-bad-exit=1", "--quiet",
        f"--container-image={asked.image}",
        f"--container-mounts={','.join([*mounts, f'{_FOLDER}:{_FOLDER}'])}",
        f"--container-workdir={asked.cwd or _FOLDER}", "--no-container-mount-home", *asked.args,
    ]  # fmt: skip
    step = [*asked.program, "--overlap", "--nodes=1", "--ntasks=1"]
    return [shlex.join(step), *map(_quoted, words), *_trainer(asked)]


def _trainer(asked: Container) -> list[str]:
    image = [] if asked.runtime is Runtime.PYXIS else [shlex.quote(asked.image)]
    return [*image, f'bash --norc --noprofile "$folder/{ENTRY_FILE}" "$folder" "$rank" "$@"']


_SITE_WORDS: Mapping[Runtime, Callable[[Container], list[str]]] = {
    Runtime.DOCKER: _engine_site,
    Runtime.PODMAN: _engine_site,
    Runtime.APPTAINER: _apptainer_site,
    Runtime.PYXIS: lambda _: [],
}
_WORDS = {
    Runtime.DOCKER: _engine,
    Runtime.PODMAN: _engine,
    Runtime.APPTAINER: _apptainer,
    Runtime.PYXIS: _pyxis,
}


def _quoted(word: str) -> str:
    """Quote a word for bash; what `_var` wrote stays a variable."""
    parts = word.split("\0")
    return "".join(
        f'"${part}"' if index % 2 else shlex.quote(part) if part or len(parts) == 1 else ""
        for index, part in enumerate(parts)
    )


def _filled(value: str) -> str:
    quoted = shlex.quote(value)
    # the words hold braces, so they stand inside single quotes: close, expand, open again
    for word, name in ((FOLDER_WORD, "xlatune_folder"), (RANK_WORD, "xlatune_rank")):
        quoted = quoted.replace(word, f"'\"${name}\"'")
    return quoted


def _variable(name: str) -> str:
    return f'"${{!{name[:-1]}@}}"' if name.endswith("*") else name


# They say where things are on the node; the image has its own.
_OF_THE_NODE = frozenset(
    {"PATH", "HOME", "USER", "LOGNAME", "TMPDIR", "LANG", "LC_ALL", "LD_LIBRARY_PATH"}
)
# What the runtime's own command may need of the node, beside a PATH.
_FOR_THE_RUNTIME = (
    *("PATH", "HOME", "USER", "XDG_RUNTIME_DIR", "SLURMD_NODENAME"),
    *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "CONTAINER_HOST"),
)
# an image and what it is:  rocm/jax:26.4@sha256:0f...   sha256:0f...   /shared/jax.sif@sha256:0f...
_PINNED = re.compile(r"(?:(?P<name>\S+)@)?(?P<digest>sha256:[0-9a-f]{64})")
_SHOW = {
    Runtime.DOCKER: "docker image inspect --format '{{.Id}} {{.RepoDigests}}' NAME",
    Runtime.PODMAN: "podman image inspect --format '{{.Digest}}' NAME",
    Runtime.APPTAINER: "sha256sum FILE",
    Runtime.PYXIS: "sha256sum FILE",
}
# What the harness sets itself: names, devices, and no value in a command line.
_REFUSED = {
    **dict.fromkeys(("-e", "--env"), "the cell's `deployed` or an env file"),
    "--env-file": "an env file of the inner launcher",
    "--env-host": "the inner launcher's `inherit`",
    "--name": "nothing: it is the attempt's",
    "--rm": "nothing: it is always so",
    **dict.fromkeys(("-d", "--detach"), "nothing: a trial is waited for"),
    **dict.fromkeys(("-t", "--tty"), "nothing: a trial has no terminal"),
    "--restart": "the retry policy",
    "--container-image": "the cell's image",
    "--export": "the inner launcher's `inherit`",
}
E = TypeVar("E", bound=StrEnum)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerLauncher:
    """Start what another launcher starts, in the cell's image.

    Attributes:
        inner: how the trainer is started inside.
        runtime: "docker", "podman", "apptainer" or "pyxis".
        mounts: `/path`, `/path:/inside` or `/path:/inside:ro`; the attempt's folder is always one.
        gpus: "nvidia" or "amd"; "" is no GPU.
        devices: further device files, e.g. /dev/infiniband; docker and podman only.
        shm_size: e.g. "256g" for a /dev/shm of its own; "" shares the node's. As `devices`.
        as_me: whether it runs as the submitting user instead of the image's. As `devices`.
        pull: whether the first trial on a node may pull the image.
        program: how the runtime is called, if not by its name: "sudo -n docker".
        args: further words for the runtime, e.g. --ulimit=memlock=-1.
    """

    inner: Launcher
    runtime: str = "docker"
    mounts: tuple[str, ...] = ()
    gpus: str = ""
    devices: tuple[str, ...] = ()
    shm_size: str = ""
    as_me: bool = False
    pull: bool = False
    program: str = ""
    args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        runtime = _member(Runtime, self.runtime, "runtime")
        _member(Gpus, self.gpus, "gpus")
        for mount in self.mounts:
            _mount(mount)
        if isinstance(self.inner, ContainerLauncher):
            raise ConfigError("container: its inner launcher is a container as well; name one")
        for name in () if runtime.is_apart else ("devices", "shm_size", "as_me"):
            if getattr(self, name):
                raise ConfigError(
                    f"container: {name} means nothing to {runtime}, which shares the node's "
                    "devices, /dev/shm and user; leave it out"
                )
        for word in self.args:
            if (name := word.partition("=")[0]) in _REFUSED:
                raise ConfigError(
                    f"container: args has {name}, which is set by {_REFUSED[name]}; take it out"
                )
        if isinstance(self.inner, ProgramLauncher):
            # the image's own XLA_FLAGS are deployed too; only a shell inside can append to them
            object.__setattr__(self, "inner", dataclasses.replace(self.inner, in_shell=True))

    def describe(self) -> str:
        """Return the runtime with all that differs from its defaults, then the inner launcher."""
        parts = [f"container {self.runtime}"]
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name in ("inner", "runtime") or value == field.default:
                continue
            text = shlex.join(value) if isinstance(value, tuple) else shlex.quote(str(value))
            parts.append(f"{field.name}={text}")
        return f"{' '.join(parts)} around {self.inner.describe()}"

    def env_files_of(self, cell: Cell) -> tuple[str, ...]:
        """Return the deployed shell files: by the node's names below a mount, else the image's."""
        files = self.inner.env_files_of(cell)
        return tuple((self._outside((path,)) or (path,))[0] for path in files)

    @property
    def interpreter(self) -> str:
        """Return "": no interpreter outside knows the flags of the image's XLA."""
        return ""

    def files(self, cell: Cell) -> tuple[str, ...]:
        """Return the absolute paths that the node must have: mounts, files below them, devices.

        Raises:
            ConfigError: the cell's image is not pinned.
        """
        asked = self._asked(cell)
        own = {Gpus.AMD: ("/dev/kfd", "/dev/dri"), Gpus.NVIDIA: ("/dev/nvidiactl",)}
        found = (
            *(each.source for each in asked.mounts),
            *self._outside(self.inner.files(cell)),
            *own.get(asked.gpus, ()),
            *asked.devices,
            *([asked.image] if asked.image.startswith("/") else []),
        )
        return tuple(dict.fromkeys(found))

    def checks(self, cell: Cell) -> tuple[tuple[str, str], ...]:
        """Return (shell command, why it fails) for every node of the cell.

        Raises:
            ConfigError: the cell's image is not pinned.
        """
        return checks(self._asked(cell), self.inner.files(cell))

    def launch(self, trial: Trial, cell: Cell) -> LaunchSpec:
        """Return the inner launcher's spec with a container around its command.

        Raises:
            ConfigError: the cell's image is not pinned, or the inner launcher cannot say it.
        """
        spec = self.inner.launch(trial, cell)
        passed = tuple(each for each in spec.inherit if each not in _OF_THE_NODE)
        asked = dataclasses.replace(self._asked(cell), variables=passed, cwd=spec.cwd)
        files = {
            HOST_FILE: host_script(asked),
            ENTRY_FILE: entry_script(asked.runtime),
            ENV_FILE: env_script(spec.env, spec.unset),
        }
        return dataclasses.replace(
            spec,
            argv=("bash", "--norc", "--noprofile", HOST_FILE, FOLDER_WORD, RANK_WORD, *spec.argv),
            env={},
            unset=(),
            inherit=tuple(dict.fromkeys((*_FOR_THE_RUNTIME, *spec.inherit))),
            files={**spec.files, **files},
            cwd="",
        )

    def _asked(self, cell: Cell) -> Container:
        runtime = Runtime(self.runtime)
        return Container(
            runtime=runtime,
            program=tuple(shlex.split(self.program)) or (runtime.program,),
            image=_image(cell.image, runtime),
            mounts=tuple(map(_mount, self.mounts)),
            gpus=Gpus(self.gpus),
            devices=self.devices,
            shm_size=self.shm_size,
            as_me=self.as_me,
            pull=self.pull,
            args=self.args,
        )

    def _outside(self, paths: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names on the node of what lies below a mount; the rest is the image's."""
        # the innermost mount hides those around it
        mounts = sorted(map(_mount, self.mounts), key=lambda each: len(each.target), reverse=True)
        named = (
            next((each.outside(path) for each in mounts if path.is_relative_to(each.target)), "")
            for path in map(PurePosixPath, paths)
        )
        return tuple(filter(None, named))


def _image(image: str, runtime: Runtime) -> str:
    """Return what the runtime is told of a pinned image: a file by its path, else all of it."""
    match = _PINNED.fullmatch(image)
    name = (match["name"] or "") if match else image
    if not image:
        raise ConfigError("container: the cell names no image; give --xlatune-image IMAGE@sha256:…")
    if match is None:
        raise ConfigError(
            f"container: image {image!r} is not pinned. What a tag or a file name stands for can "
            "change between two trials, and the numbers of two images would be compared. Write "
            f"{image.partition('@')[0]}@sha256:<64 hexadecimal digits>; "
            f"`{_SHOW[runtime]}` shows the digest"
        )
    is_file = name.startswith("/")
    if is_file == runtime.is_apart or (runtime is Runtime.APPTAINER and not is_file):
        wanted = "an image by name" if runtime.is_apart else "the absolute path of an image file"
        raise ConfigError(f"container: {runtime} needs {wanted}, found {image!r}")
    return name if is_file else image


def _mount(text: str) -> Mount:
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    paths = [source, target or source]
    is_good = mode in ("", "ro", "rw") and all(PurePosixPath(each).is_absolute() for each in paths)
    # a comma would part pyxis' list of mounts
    if not is_good or "," in text or "\0" in text:
        raise ConfigError(
            f"container: mount {text!r}: expected /path, /path:/inside or /path:/inside:ro, "
            "absolute and without commas"
        )
    return Mount(source=source, target=target or source, is_read_only=mode == "ro")


def _member(kind: type[E], value: str, name: str) -> E:
    try:
        return kind(value)
    except ValueError:
        valid = [str(each) for each in kind if each]
        raise ConfigError.unknown(name, value, valid=valid, where="container") from None


_ADDED = "env_files"
_NOT_SETTINGS = frozenset({"inner", "in_shell"})
_NO_CONTAINER = "none"
_TRUTH = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def configured(
    launcher: Launcher, settings: Mapping[str, Any], container: Mapping[str, Any], *, where: str
) -> Launcher:
    """Return the launcher with settings on top; the very same one where there are none.

    A key is an attribute of the launcher, with - for _. A value of the site takes the place of the
    sweep file's, but for `env-files`, which come after it: the sweep file's say how processes find
    each other, the site's what users deploy.

    Args:
        launcher: the sweep file's.
        settings: by name; of the launcher inside, where it is in a container.
        container: of the container.
        where: said those, for messages.

    Raises:
        ConfigError: a name that this launcher does not have, or a value of another kind.
    """
    inner = launcher.inner if isinstance(launcher, ContainerLauncher) else launcher
    changed = _with(inner, settings, f"{where}, launcher") if settings else inner
    if container.get("runtime") in (_NO_CONTAINER, [_NO_CONTAINER]):
        return cast("Launcher", changed)
    if isinstance(launcher, ContainerLauncher):
        if not container and changed is inner:
            return launcher
        outer = dataclasses.replace(launcher, inner=changed)
        return cast("Launcher", _with(outer, container, f"{where}, container"))
    if not container:
        return cast("Launcher", changed)
    outer = ContainerLauncher(inner=cast("Launcher", changed))
    return cast("Launcher", _with(outer, container, f"{where}, container"))


def _with(launcher: Any, settings: Mapping[str, Any], where: str) -> Any:
    if not dataclasses.is_dataclass(launcher) or isinstance(launcher, type):
        raise ConfigError(
            f"{where}: {type(launcher).__name__} is no dataclass, so that it has no settings; "
            "take them out, or give them in the sweep file"
        )
    known = {
        each.name.replace("_", "-"): each.name
        for each in dataclasses.fields(launcher)
        if each.name not in _NOT_SETTINGS
    }
    values = {}
    for key, value in settings.items():
        name = known.get(key.replace("_", "-"))
        if name is None:
            raise ConfigError.unknown("setting", key, valid=known, where=where)
        before = getattr(launcher, name)
        found = _like(before, value, f"{where}: {key}")
        values[name] = (*before, *found) if name == _ADDED else found
    return dataclasses.replace(launcher, **values)


def _like(before: object, value: Any, what: str) -> Any:
    """Return a value of the kind that the launcher has; on a command line all are lists of text."""
    is_list = isinstance(value, Sequence) and not isinstance(value, str)
    if isinstance(before, tuple):
        found = list(value) if is_list else [value]
        if all(isinstance(each, str) for each in found):
            return tuple(found)
        raise ConfigError(f"{what}: found {value!r}, expected a list of text")
    if isinstance(before, Mapping):
        if is_list and all(isinstance(each, str) and "=" in each for each in value):
            value = dict(each.split("=", 1) for each in value)
        if isinstance(value, Mapping) and all(isinstance(each, str) for each in value.values()):
            return dict(value)
        raise ConfigError(f"{what}: found {value!r}, expected a table of text")
    if is_list and value:
        value = value[-1]  # said twice on a command line: the last wins
    if isinstance(before, bool):
        if isinstance(value, str):
            value = _TRUTH.get(value.lower(), value)
        if isinstance(value, bool):
            return value
        raise ConfigError(f"{what}: found {value!r}, expected true or false")
    if isinstance(before, str) and isinstance(value, str):
        return value
    raise ConfigError(f"{what}: found {value!r}, expected text")
